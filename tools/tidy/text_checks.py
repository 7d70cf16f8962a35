"""Checks that read text only. Each takes a Tree and returns findings."""
import ast
import re

import cpp

FILE_LINES_MAX = 500
TEST_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 120

CPP_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}

# What each part may include from the others, design "Folders": a longer prefix wins. proto/ holds wire contracts.
LAYERS = {
    "proto": [],
    "runtime/base": [],
    "runtime/cuda": ["runtime/base"],
    "runtime/config": ["runtime/base", "proto"],
    "runtime/metrics": ["runtime/base"],
    "runtime/media": ["runtime/base", "runtime/metrics", "proto"],
    "runtime/api": ["runtime/base", "runtime/metrics", "runtime/supervisor/job_service.h", "proto"],
    "runtime/supervisor": ["runtime/base", "runtime/config", "runtime/media", "runtime/metrics", "proto"],
    "runtime/worker": ["runtime/base", "runtime/cuda", "runtime/media", "channel", "mesh", "stages", "proto"],
    "channel": ["runtime/base", "runtime/cuda", "proto"],
    "mesh": ["runtime/base", "runtime/cuda"],
    "stages": ["mesh", "runtime/base"],
}
# Parts that never see torch: the supervisor must not be able to hold a tensor, and what is free of torch runs under TSan.
TORCH_FREE = ("runtime/base", "runtime/config", "runtime/metrics", "runtime/media", "runtime/api", "runtime/supervisor", "channel", "proto")

# pattern, where it is allowed (path prefixes), why not elsewhere
BANNED = [
    (r"\bsleep_for\b|\bsleep_until\b|\busleep\s*\(|\bnanosleep\s*\(|[^_\w]sleep\s*\(", ["tests/", "stages/device/step_pacer.cc"], "a sleep is no synchronisation: wait for the event with a deadline"),
    (r"\bgetenv\s*\(", ["tools/", "tests/"], "only the mains read the environment"),
    (r"\.detach\s*\(\s*\)\s*;", ["stages/", "tests/stages/", "tests/bench/", "tests/support/fake_worker.cc"], "a detached thread has no owner: keep it and join it"),
    (r"\bstd::(recursive_)?mutex\b|\bstd::condition_variable\b|\babsl::Mutex\b", ["runtime/base/mutex.h", "runtime/base/log.cc"], "use latentd::Mutex (runtime/base/mutex.h)"),
    (r"[^_\w](system|popen)\s*\(", ["tests/"], "no shell: exec the program (runtime/base/child_process.h)"),
    (r"[^_\w.>](fork|vfork)\s*\(\s*\)", ["runtime/base/child_", "tests/"], "start children with runtime/base/child_process.h"),
    (r"\bcudaDeviceSynchronize\b|\bcuCtxSynchronize\b", ["tests/"], "no device-wide synchronise: order with streams and events"),
    (r"#\s*include\s*<(torch/(torch|all|extension)\.h|ATen/ATen\.h)>", [], "include <ATen/core/Tensor.h> and <ATen/ops/...>: the umbrella header costs 35 s a file"),
    (r"\bstd::(cout|cerr)\b|[^_\w:sf]printf\s*\(", ["tools/", "tests/"], "log through runtime/base/log.h"),
]
# Hidden cases that are no long tests: the other processes of tests, what needs a preloaded library, and what prints a table.
HIDDEN_FOR_OTHERS = {"child", "cuda_synchronise", "table"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|farm|root)/")


class Tree:
    """The files to look at. Texts are read once."""

    def __init__(self, root, files):
        self.root = root
        self.files = files
        self._texts = {}

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(errors="replace")
        return self._texts[path]

    def cpp(self):
        return [path for path in self.files if path.suffix in CPP_SUFFIXES]


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def lengths(tree):
    findings = []
    for path in tree.cpp():
        text = tree.text(path)
        count = text.count("\n")
        most = TEST_LINES_MAX if path.parts[0] == "tests" else FILE_LINES_MAX
        if count > most:
            findings.append(f"{path}:1: {count} lines; at most {most}: split it by concept")
        for first, last, head in cpp.functions(text):
            # A Catch2 test case is a list of checks, not logic.
            if last - first + 1 > FUNCTION_LINES_MAX and not re.search(r"\b(TEST_CASE|SECTION)\b", head):
                findings.append(f"{path}:{first}: a function of {last - first + 1} lines; at most {FUNCTION_LINES_MAX}: {head}")
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > COLUMNS_MAX and "http" not in line and 'R"' not in line:
                findings.append(f"{path}:{number}: {len(line)} columns; at most {COLUMNS_MAX}")
    return findings


def layer_of(name):
    """The longest key of LAYERS that `name` lies under."""
    return max((key for key in LAYERS if name == key or name.startswith(key + "/")), key=len, default=None)


def layering(tree):
    findings = []
    for path in tree.cpp():
        layer = layer_of(str(path))
        if layer is None:
            continue
        for match in re.finditer(r'^\s*#\s*include\s*([<"])([^">]+)[>"]', tree.text(path), re.M):
            quote, target = match.groups()
            where = f"{path}:{line_of(tree.text(path), match.start())}"
            if quote == "<":
                if layer in TORCH_FREE and re.match(r"(ATen|torch|c10|cuda_runtime)", target):
                    findings.append(f"{where}: {layer} must not see torch or CUDA, but includes <{target}>")
                continue
            other = layer_of(target)
            allowed = other is None or other == layer or any(target == a or target.startswith(a + "/") for a in LAYERS[layer])
            if not allowed or target.startswith(("tools/", "tests/")):
                findings.append(f"{where}: {layer} must not depend on {target}; it may use {', '.join(LAYERS[layer]) or 'nothing'}")
    return findings


def banned(tree):
    findings = []
    for path in tree.cpp():
        code = cpp.blank(tree.text(path))
        for pattern, allowed, reason in BANNED:
            if any(str(path).startswith(prefix) for prefix in allowed):
                continue
            source = tree.text(path) if pattern.startswith("#") else code
            for match in re.finditer(pattern, source):
                findings.append(f"{path}:{line_of(source, match.start())}: {match.group().strip()}: {reason}")
    return findings


def unfinished(tree):
    findings = []
    for path in tree.files:
        if path.suffix not in CPP_SUFFIXES | {".py", ".proto", ".bzl", ".bazel", ".md", ".yaml"} or path.parts[:2] == ("tools", "tidy"):
            continue
        text = tree.text(path)
        for match in UNFINISHED.finditer(text):
            findings.append(f"{path}:{line_of(text, match.start())}: {match.group()}: finish it, or say it in the issue")
        for match in MACHINE_PATH.finditer(text):
            findings.append(f"{path}:{line_of(text, match.start())}: a path of one machine: {match.group()}")
    return findings


def owned(tree):
    """Every source file stands in the BUILD.bazel of its folder, or of the nearest one above."""
    findings = []
    builds = {path.parent: tree.text(path) for path in tree.files if path.name == "BUILD.bazel"}
    for path in tree.files:
        if path.suffix not in CPP_SUFFIXES | {".proto"}:
            continue
        package = next((folder for folder in path.parents if folder in builds), None)
        label = str(path.relative_to(package)) if package is not None else None
        if label is None or f'"{label}"' not in builds[package]:
            findings.append(f"{path}:1: no target owns this file: name it in the BUILD.bazel of its folder")
    return findings


def headers(tree):
    findings = []
    known = set(tree.files)
    for path in tree.cpp():
        text = tree.text(path)
        if path.suffix in {".h", ".cuh"} and not re.search(r"^#pragma once$", text, re.M):
            findings.append(f"{path}:1: no #pragma once")
        own = path.with_suffix(".h")
        if path.suffix in {".cc", ".cu"} and own in known:
            first = re.search(r'^#include\s+["<]([^">]+)[">]', text, re.M)
            if first is None or first.group(1) != str(own):
                findings.append(f'{path}:1: include "{own}" first, so that the header is proven to compile alone')
    return findings


def invariants(tree):
    """Each invariant (**C1**) of a PROTOCOL.md is named by a test ([C1] in a test case's name or a comment at the check)."""
    findings = []
    tests = "\n".join(tree.text(path) for path in tree.cpp() if path.parts[0] == "tests")
    for path in tree.files:
        if path.name != "PROTOCOL.md":
            continue
        for name in sorted(set(re.findall(r"\*\*([A-Z]\d+)\*\*", tree.text(path)))):
            if f"[{name}]" not in tests:
                findings.append(f"{path}:1: invariant {name} has no test: put [{name}] into the name of the one that checks it")
    return findings


def targets_of(build):
    """(names of its srcs, its tags) of each target of a BUILD.bazel."""
    def texts(value):
        return {node.value for node in ast.walk(value) if isinstance(node, ast.Constant)}
    for call in ast.walk(ast.parse(build)):
        if isinstance(call, ast.Call):
            keywords = {keyword.arg: texts(keyword.value) for keyword in call.keywords}
            yield keywords.get("srcs", set()), keywords.get("tags", set())


def hidden_cases(tree):
    """A case that is hidden because it is long is in a target tagged "long": those are what `tools/test --long` runs."""
    findings = []
    for path in tree.cpp():
        build = path.parent / "BUILD.bazel"
        hidden = [match for match in re.finditer(r'"((?:\[[^\]"]+\])+)"', tree.text(path)) if path.parts[0] == "tests" and "[.]" in match.group(1)
                  and not HIDDEN_FOR_OTHERS & set(re.findall(r"\w+", match.group(1)))]
        if hidden and build in tree.files and not any(path.name in srcs and "long" in tags for srcs, tags in targets_of(tree.text(build))):
            findings.append(f'{path}:{line_of(tree.text(path), hidden[0].start())}: a hidden case that nothing runs: tag its target "long"')
    return findings


ALL = [lengths, layering, banned, unfinished, owned, headers, invariants, hidden_cases]
