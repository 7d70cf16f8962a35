"""Just enough of C++ to find functions: comments and literals blanked, braces matched."""
import re

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delim>[^()\\ ]{0,16})\(.*?\)(?P=delim)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
_CONTROL = re.compile(r"\b(if|for|while|switch|catch|do|else|try|namespace|class|struct|enum|union|extern)\b")


def blank(text):
    """The text with comments and literals replaced by spaces; line numbers stay."""
    return _TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions(text):
    """(first line, last line, head) of each outermost function body, 1-based. Lambdas count to their function."""
    code = blank(text)
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group()), code, flags=re.M)
    found, stack, head_start = [], [], 0
    for position, char in enumerate(code):
        if char == "{":
            head = code[head_start:position].strip()
            inside = any(kind == "function" for kind, _, _ in stack)
            is_function = not inside and ")" in head and not _CONTROL.match(head.split("(")[0].split()[0] if head.split("(")[0].split() else "")
            stack.append(("function" if is_function else "other", position, head))
            head_start = position + 1
        elif char == "}":
            if stack:
                kind, start, head = stack.pop()
                if kind == "function":
                    found.append((code.count("\n", 0, start) + 1, code.count("\n", 0, position) + 1, " ".join(head.split())[-80:]))
            head_start = position + 1
        elif char == ";":
            head_start = position + 1
    return found
