"""What the benchmarks share: the project's Python, its programs, a quiet machine, and figures."""
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

QUIET_LOAD = 0.5  # of two cores: what this process and a desktop take
BUILD = "bazel build //tools:all //tests/bench:all"


def use_project_python():
    """Starts this program again in the environment of tools/setup unless it runs there already."""
    environment = ROOT / ".deps" / "venv"
    python = environment / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == environment.resolve():
        return
    if not python.exists():
        sys.exit(f"{python} is missing: run tools/setup")
    os.execv(python, [str(python), *sys.argv])


use_project_python()
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "bench")]


def bench_binary(name):
    """A program of tests/bench, among the runfiles or of the last build."""
    for folder in (pathlib.Path.cwd(), ROOT / "bazel-bin"):
        path = folder / "tests" / "bench" / name
        if path.is_file():
            return str(path)
    sys.exit(f"{name} is not built: {BUILD}")


def json_lines(*command):
    """What a program of tests/bench printed, one object a line."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def busy_processors(seconds=1.0):
    """How many processors worked on average while we slept: what the machine does besides us."""
    def ticks():
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields) - fields[3] - fields[4]  # all but idle and waiting for a disk

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def wait_quiet(seconds):
    """Waits until nothing else works; the processors that are busy at last, which a report must tell."""
    end = time.monotonic() + seconds
    while True:
        busy = busy_processors()
        if busy < QUIET_LOAD or time.monotonic() > end:
            return round(busy, 2)


def hardware():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} cores, {model}"


def add_common_arguments(parser):
    parser.add_argument("--smoke", action="store_true", help="a few repetitions of the smallest case: does it run at all")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quiet-seconds", type=float, default=60, help="longest wait for a quiet machine before each run")


def print_table(head, rows):
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
