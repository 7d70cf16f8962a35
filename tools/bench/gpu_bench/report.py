"""What a run found, as text and as JSON, written anew after each part so that a run that is cut short leaves what it has."""
import json
import threading
import time

LINE_MAX = 140


def efficiency(one, many, ranks):
    """Of `ranks` ranks that take `many` for what one rank does in `one`."""
    return one / (ranks * many)


def meets(value, relation, bound):
    return value <= bound if relation == "<=" else value >= bound


def first_line(text):
    """Of a detail; all of it is in the JSON."""
    line = text.split("\n")[0]
    return line if len(line) <= LINE_MAX else line[:LINE_MAX] + " ..."


def text_table(head, rows):
    """As in RESULTS.md, and aligned."""
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


class Report:
    """Thread: one adds and writes; any may say()."""

    def __init__(self, folder, about):
        self.folder = folder
        self.started = time.monotonic()
        self.content = {**about, "seconds": 0, "parts": {}, "checks": [], "tables": [], "goals": []}
        self._lock = threading.Lock()

    def say(self, text):
        with self._lock:
            print(f"[{time.monotonic() - self.started:5.0f} s] {text}", flush=True)

    # ---- what is in it --------------------------------------------------------------------------------------

    def check(self, part, name, passed, detail=""):
        """passed: None where it could not be run here, with the reason."""
        result = {True: "passed", False: "FAILED", None: "not run"}[passed]
        self.content["checks"].append({"part": part, "name": name, "result": result, "detail": detail})
        self.say(f"{result}: {name}{': ' if detail else ''}{first_line(detail)}")

    def table(self, part, title, head, rows, notes=(), **figures):
        """figures: what a program wants to know, beside the text of the cells."""
        self.content["tables"].append({"part": part, "title": title, "head": head, "rows": rows, "notes": list(notes), **figures})
        for line in ["", title, *text_table(head, rows), *notes, ""]:
            self.say(line)

    def goal(self, part, what, value, relation, bound):
        """Whether a measured value is what was aimed at; this does not make a run fail."""
        met = meets(value, relation, bound)
        self.content["goals"].append({"part": part, "what": what, "value": round(value, 4), "relation": relation,
                                      "goal": bound, "met": met})
        return met

    def part(self, name, seconds, problem=None):
        self.content["parts"][name] = {"seconds": round(seconds, 1), **({"problem": problem} if problem else {})}

    # ---- verdict --------------------------------------------------------------------------------------------

    def failures(self):
        failed = [check["name"] for check in self.content["checks"] if check["result"] == "FAILED"]
        return failed + [f"{name}: {first_line(part['problem'])}"
                         for name, part in self.content["parts"].items() if "problem" in part]

    def verdict(self):
        checks = self.content["checks"]
        count = {result: sum(check["result"] == result for check in checks) for result in ("passed", "FAILED", "not run")}
        goals = self.content["goals"]
        met = sum(goal["met"] for goal in goals)
        lines = [f"{count['passed']} checks passed, {count['FAILED']} failed, {count['not run']} not run; "
                 f"{met} of {len(goals)} goals met"]
        return lines + [f"FAILED: {failure}" for failure in self.failures()]

    # ---- files ----------------------------------------------------------------------------------------------

    def text(self):
        content = self.content
        host = content.get("host", {})
        lines = ["# latentd on several GPUs", "", *(f"{name}: {value}" for name, value in host.items()), "", *self.verdict()]
        if content["checks"]:
            rows = [[check["part"], check["name"], check["result"], first_line(check["detail"])] for check in content["checks"]]
            lines += ["", "## Checks", "", *text_table(["part", "check", "result", ""], rows)]
        if content["goals"]:
            rows = [[goal["what"], goal["value"], f"{goal['relation']} {goal['goal']}", "met" if goal["met"] else "MISSED"]
                    for goal in content["goals"]]
            lines += ["", "## Goals", "", *text_table(["what", "measured", "goal", "verdict"], rows)]
        for table in content["tables"]:
            lines += ["", f"## {table['title']}", "", *text_table(table["head"], table["rows"])]
            lines += ["", *table["notes"]] if table["notes"] else []
        rows = [[name, part["seconds"], first_line(part.get("problem", ""))] for name, part in content["parts"].items()]
        return "\n".join([*lines, "", "## Parts", "", *text_table(["part", "seconds", "problem"], rows), ""])

    def write(self):
        self.content["seconds"] = round(time.monotonic() - self.started, 1)
        (self.folder / "report.json").write_text(json.dumps(self.content, indent=1) + "\n")
        (self.folder / "report.txt").write_text(self.text())
