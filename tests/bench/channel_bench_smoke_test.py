"""channel_bench measures one hand-off, copied and in place: that it runs and says what tools/bench/handoff reads."""
import json
import pathlib
import subprocess
import unittest

BENCH = pathlib.Path("tests/bench/channel_bench")
SIZES = [4096, 1 << 20]


class ChannelBenchSmokeTest(unittest.TestCase):
    def measure(self, *flags):
        command = [str(BENCH), "--sizes", ",".join(map(str, SIZES)), "--transfers", "1", *flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def check(self, results, in_place):
        self.assertEqual([result["bytes"] for result in results], SIZES)
        for result in results:
            self.assertEqual((result["transfers"], result["in_place"]), (1, in_place))
            for what in ("round_trip", "handoff", "floor"):
                self.assertGreater(result[what]["p50_us"], 0)
            self.assertLessEqual(result["handoff"]["p50_us"], result["round_trip"]["p50_us"])

    def test_copies(self):
        self.check(self.measure(), False)

    def test_reads_in_place(self):
        self.check(self.measure("--borrow"), True)


if __name__ == "__main__":
    unittest.main()
