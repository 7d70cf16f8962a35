"""tools/bench/multi_gpu from end to end on a CPU: two ranks over Gloo, the small model, the smallest videos."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the others, throughput is the same daemon and client, killed ranks are those of //tests/e2e:parallel_test, and
# collectives run in //tests/tools:package_test.
PARTS = ["peers", "suites", "parity", "steps"]


class SmokeTest(unittest.TestCase):
    def test_checks_pass_and_figures_are_in_both_reports(self):
        with tempfile.TemporaryDirectory(prefix="ld", dir=os.environ.get("TEST_TMPDIR")) as name:
            command = [sys.executable, "-B", ROOT / "tools/bench/multi_gpu", "--devices", "cpu,cpu", "--tiny", "--out", name]
            result = subprocess.run([*command, *(f"--only={part}" for part in PARTS)], capture_output=True, text=True, timeout=280)
            self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:])
            report = json.loads((pathlib.Path(name) / "report.json").read_text())
            text = (pathlib.Path(name) / "report.txt").read_text()
        checks = {check["name"]: check["result"] for check in report["checks"]}
        self.assertEqual(checks, {"cpu to cpu": "passed", "C++ suites on devices": "not run", "one rank, float32": "passed",
                                  "ulysses 2, spatial 2, on the CPU, float32": "passed"})
        self.assertEqual({name: "problem" in part for name, part in report["parts"].items()},
                         {"peers, suites, parity": False, "steps": False})
        steps, decode = report["tables"]
        self.assertEqual([row[0] for row in steps["rows"]], ["one rank", "one rank, guided", "ulysses 2", "ulysses 2, c10d"])
        self.assertTrue(all(float(row[1]) > 0 for row in [*steps["rows"], *decode["rows"]]), steps)
        self.assertEqual(report["goals"], [], "ranks that share a CPU prove nothing about scaling")
        self.assertIn("3 checks passed, 0 failed, 1 not run", text)
        for table in report["tables"]:
            self.assertIn(f"## {table['title']}", text)
            self.assertRegex(table["title"], r" \(void: ranks share the CPU\)$")
        self.assertIn("run: --tiny: ", text)
        self.assertRegex(text, re.compile(r"^\| ulysses 2 +\| [0-9.]+ +\|", re.M))


if __name__ == "__main__":
    unittest.main()
