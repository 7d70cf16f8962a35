"""The house rules that no compiler checks, as a test. Run `bazel test //tools/tidy` or `python3 tools/tidy/tidy.py`.

Prints one line a finding, "file:line: what is wrong and what would be right", and fails if there is any.
"""
import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compile_checks
import text_checks


def tracked_files(root):
    """Files of the tree that Git knows or would add, as paths relative to root."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({pathlib.Path(name) for name in listing if name and (root / name).is_file()})


def run(root, generated, compile_too):
    tree = text_checks.Tree(root, tracked_files(root))
    findings = []
    for check in text_checks.ALL:
        findings += check(tree)
    if compile_too:
        findings += compile_checks.formatting(tree)
        findings += compile_checks.headers_compile_alone(tree, generated)
        findings += compile_checks.thread_safety(tree, generated)
        findings += compile_checks.clang_tidy_sample(tree, generated)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--generated", type=pathlib.Path, help="folder with proto/*.pb.h; default: bazel-bin of the root")
    parser.add_argument("--text-only", action="store_true", help="leave out what starts a compiler")
    parser.add_argument("--clang-tidy", type=pathlib.Path, nargs="+", metavar="FILE.cc", help="only the checks of .clang-tidy, of these files")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    generated = arguments.generated or root / "bazel-bin"
    if arguments.clang_tidy:
        files = [path.resolve().relative_to(root) for path in arguments.clang_tidy]
        findings = compile_checks.clang_tidy(text_checks.Tree(root, tracked_files(root)), generated, files)
    else:
        findings = run(root, generated, not arguments.text_only)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
