"""Checks that start clang: formatting, headers that compile alone, thread-safety annotations."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

# Headers of torch take seconds each; the files that include them are proven by their own .cc coming first.
_HEAVY = re.compile(r'#include\s*<(ATen|torch|c10|cuda)|#include\s*"(stages|mesh|runtime/cuda|runtime/worker|tests/stages)/')
_PROCESSES = 2
# The one version: others break some lines elsewhere.
_FORMATTER = "clang-format-14"


def _clang(*names):
    return next((path for path in map(shutil.which, names) if path), None)


def formatting(tree):
    tool = _clang(_FORMATTER)
    if tool is None:
        return [f"{_FORMATTER} is not installed: run tools/setup"]
    files = [str(path) for path in tree.cpp()]
    result = subprocess.run([tool, "--dry-run", "-Werror", *files], cwd=tree.root, capture_output=True, text=True)
    names = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", result.stderr, re.M)))
    return [f"{name}:1: not formatted: {_FORMATTER} -i {name}" for name in names]


def _includes_of(tree, path, seen):
    """Project headers that `path` reaches."""
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', tree.text(path), re.M):
        target = type(path)(name)
        if target in seen or not (tree.root / target).is_file():
            continue
        seen.add(target)
        _includes_of(tree, target, seen)
    return seen


def _is_heavy(tree, path):
    return any(_HEAVY.search(tree.text(p)) for p in {path} | _includes_of(tree, path, set()))


class _Passes:
    """What compiled, by the contents of everything that went into it; beside Bazel's own cache."""

    def __init__(self, tree, generated, command):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self.folder = pathlib.Path(cache) / "latentd" / "tidy"
        self.tree = tree
        compiler = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout
        protos = [path.read_bytes() for path in sorted(pathlib.Path(generated).rglob("*.pb.h"))]
        words = [word for word in command if not word.startswith(f"-I{generated}")]
        self.common = hashlib.sha256("\0".join([compiler, *words]).encode() + b"\0".join(protos))

    def stamp(self, path):
        key = self.common.copy()
        for each in sorted({path} | _includes_of(self.tree, path, set())):
            key.update(f"{each}\0{self.tree.text(each)}\0".encode())
        return self.folder / key.hexdigest()

    @staticmethod
    def remember(stamp):
        try:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
        except OSError:
            pass  # a cache that cannot be written costs time only


def _each(tree, paths, generated, command, judge):
    """What judge() finds in each file that has not been judged by this command as it is."""
    passes = _Passes(tree, generated, command)

    def one(path):
        stamp = passes.stamp(path)
        if stamp.exists():
            return []
        findings = judge(path)
        if not findings:
            passes.remember(stamp)
        return findings

    with ThreadPoolExecutor(_PROCESSES) as pool:
        return [finding for findings in pool.map(one, paths) for finding in findings]


def _compile(tree, paths, generated, command, what):
    def judge(path):
        result = subprocess.run([*command, str(path)], cwd=tree.root, capture_output=True, text=True, timeout=300)
        if result.returncode == 0:
            return []
        first = next((line for line in result.stderr.split("\n") if "error" in line), result.stderr.strip()[:200])
        return [f"{path}:1: {what}: {first}"]

    return _each(tree, paths, generated, command, judge)


def headers_compile_alone(tree, generated):
    """Headers without a .cc of their own; the others are proven by the .cc that includes them first."""
    known = set(tree.files)
    lonely = [p for p in tree.cpp() if p.suffix == ".h" and p.with_suffix(".cc") not in known
              and p.with_suffix(".cu") not in known and not _is_heavy(tree, p)]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-w", "-I.", f"-I{generated}", "-DSPDLOG_FMT_EXTERNAL", "-x", "c++"]
    return _compile(tree, lonely, generated, command, "does not compile alone")


def thread_safety(tree, generated):
    tool = _clang("clang++", "clang++-18", "clang++-14")
    if tool is None:
        return ["clang++ is not installed: run tools/setup"]
    guarded = [p for p in tree.cpp() if p.suffix == ".cc" and p.parts[0] != "tests" and not _is_heavy(tree, p)
               and any("GUARDED_BY" in tree.text(h) for h in {p} | _includes_of(tree, p, set()) if h.name != "mutex.h")]
    command = [tool, "-std=c++20", "-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety", "-I.", f"-I{generated}",
               "-DSPDLOG_FMT_EXTERNAL", "-DSPDLOG_COMPILED_LIB"]
    return _compile(tree, guarded, generated, command, "thread safety")


def _site_includes(tree):
    site = tree.root / ".deps" / "site"
    folders = [site / "torch" / "include", site / "torch" / "include" / "torch" / "csrc" / "api" / "include",
               site / "nvidia" / "cu13" / "include"]
    return [f"-isystem{folder}" for folder in folders if folder.is_dir()]


def clang_tidy(tree, generated, paths):
    """The checks of .clang-tidy. A file takes seconds, one that includes torch a minute: name the files."""
    tool = _clang("clang-tidy", "clang-tidy-18", "clang-tidy-14")
    if tool is None:
        return ["clang-tidy is not installed: run tools/setup"]
    # As text, so that a changed rule is a changed command.
    command = [tool, "--quiet", "--config=" + (tree.root / ".clang-tidy").read_text()]
    flags = ["-std=c++20", "-I.", f"-I{generated}", "-DSPDLOG_FMT_EXTERNAL", "-DSPDLOG_COMPILED_LIB", *_site_includes(tree)]

    def judge(path):
        result = subprocess.run([*command, str(path), "--", *flags], cwd=tree.root, capture_output=True, text=True, timeout=600)
        if result.returncode == 0:
            return []
        errors = re.findall(r"^.*\berror: .*$", result.stdout + result.stderr, re.M)
        return [error.removeprefix(f"{tree.root}/").removeprefix("./") for error in dict.fromkeys(errors)] or [f"{path}:1: clang-tidy failed: {result.stderr[-300:]}"]

    return _each(tree, paths, generated, [*command, *flags], judge)


# Files of a second or two that include what nearly all include; the whole tree would take an hour.
_SAMPLE = ("runtime/base/status.cc", "channel/strided_copy.cc")


def clang_tidy_sample(tree, generated):
    return clang_tidy(tree, generated, [path for path in tree.cpp() if path.as_posix() in _SAMPLE])
