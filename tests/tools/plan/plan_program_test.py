"""`latentd plan` as a program: what it proposes for the shipped model is what `latentd --check` takes, workers included."""
import json
import pathlib
import subprocess
import tempfile
import unittest

MODEL = "configs/moving-shapes"


def binary(name):
    return next(p for p in (pathlib.Path("tools") / name, pathlib.Path("bazel-bin/tools") / name) if p.exists())


def latentd(*arguments):
    return subprocess.run([binary("latentd"), *arguments], capture_output=True, text=True, timeout=60)


def plan(*arguments):
    return latentd("plan", "--model", MODEL, "--size", "512x512", "--frames", "81", *arguments)


class PlanProgramTest(unittest.TestCase):
    def test_the_proposal_passes_the_check(self):
        for gpus, goal in (("1", "latency"), ("4", "latency"), ("4", "throughput")):
            with self.subTest(gpus=gpus, goal=goal), tempfile.TemporaryDirectory() as folder:
                file = str(pathlib.Path(folder) / "plan.yaml")
                made = plan("--gpus", gpus, "--goal", goal, "--json", "--yaml", file)
                self.assertEqual((made.returncode, made.stderr), (0, ""))
                proposal = json.loads(made.stdout)["proposal"]
                checked = latentd("--config", file, "--check", "--json")
                self.assertEqual((checked.returncode, checked.stderr), (0, ""))
                groups = [group for group in json.loads(checked.stdout)["groups"] if group["stage"] == "wan.denoiser"]
                self.assertEqual(len(groups), proposal["parallel"]["dp"])
                for group in groups:
                    for dimension in ("cfg", "ring", "ulysses"):
                        self.assertEqual(group["parallel"][dimension], proposal["parallel"][dimension])

    def test_errors_name_the_flag_and_exit_codes_are_those_of_help(self):
        for arguments, code, words in (
            (["plan"], 2, ["--model is required"]),
            (["plan", "--model", MODEL], 2, ["--gpus is required"]),
            (["plan", "--model", MODEL, "--gpus", "0"], 2, ["--gpus", "'0'", "1 to 64"]),
            (["plan", "--model", "nowhere", "--gpus", "1"], 2, ["--model", "'nowhere'", "diffusers directory"]),
            (["plan", "--model", MODEL, "--gpus", "1", "--bogus"], 2, ["--bogus"]),
            (["plan", "--model", MODEL, "--gpus", "1", "--memory", "1GiB"], 1, ["nothing fits", "--memory 4GiB", "These would do"]),
        ):
            with self.subTest(arguments=arguments):
                refused = latentd(*arguments)
                self.assertEqual(refused.returncode, code, refused.stderr)
                self.assertEqual(refused.stdout, "")
                for word in words:
                    self.assertIn(word, refused.stderr)

    def test_help_has_every_flag(self):
        shown = latentd("plan", "--help")
        self.assertEqual(shown.returncode, 0)
        for flag in ("--model", "--gpus", "--gpu ", "--link", "--memory", "--gpus-per-host", "--size", "--frames",
                     "--steps", "--guidance", "--dtype", "--goal", "--json", "--yaml"):
            self.assertIn(flag, shown.stdout)
        self.assertIn("plan", latentd("--help").stdout)


if __name__ == "__main__":
    unittest.main()
