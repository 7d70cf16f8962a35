"""What tools/bench/multi_gpu makes of what it measured, its children, and the weights that it makes."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import pathlib
import struct
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "bench"), str(ROOT / "tests" / "bench")]
import numpy
import random_checkpoint
import torch
from gpu_bench import checks, collectives, handoff, mps, speed, topology, videos
from gpu_bench import run as bench_run
from gpu_bench.children import Children, Failed
from gpu_bench.daemon import Refused
from gpu_bench.report import Report, efficiency, meets, text_table


def load_program(name="multi_gpu"):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools/bench" / name))
    program = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(program)
    return program


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report(self):
        report = Report(self.folder, {"host": {"GPUs": "none"}})
        report.say = lambda text: None
        return report


class HandoffGpuTest(unittest.TestCase):
    def setUp(self):
        self.program = load_program("handoff_gpu")
        self.told = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def test_a_budget_stops_between_sizes_and_says_what_it_left_out(self):
        measured = []
        with unittest.mock.patch.object(self.program.time, "monotonic", side_effect=[0, 4, 5]):
            results = self.program.measure_each([65536, 1 << 20, 1 << 24, 1 << 26], 5, lambda size: measured.append(size) or [size])
        self.assertEqual((measured, results), ([65536, 1 << 20], [65536, 1 << 20]))
        self.assertEqual(self.told.getvalue(), "left out after --max-seconds 5: 16384 KiB, 65536 KiB\n")

    def test_each_figure_is_told_as_it_is_measured(self):
        arguments = unittest.mock.Mock(devices="cuda:0", only="latentd,bare program", rounds=2, transfers=4, phases=False)
        seen = []

        def measured(samples):
            return lambda *_: seen.append(self.told.getvalue().count("\n")) or samples
        with unittest.mock.patch.multiple(self.program, latentd=measured([100.0]), bare_program=measured([50.0])):
            self.program.measure(None, 65536, arguments)
        self.assertEqual(seen, [0, 1, 2, 3])
        self.assertEqual(self.told.getvalue().splitlines()[0], "64 KiB, latentd, round 1 of 2: 100 / 100 / 100 us")
        self.assertEqual(self.told.getvalue().splitlines()[3], "64 KiB, bare program, round 2 of 2: 50 / 50 / 50 us")

    def test_jobs_are_queued_at_once_or_each_when_the_last_one_is_over(self):
        for one_by_one in (False, True):
            daemon = unittest.mock.MagicMock()
            daemon.__enter__.return_value = daemon
            daemon.submit.return_value = "queued"
            daemon.submit_and_follow.return_value = {"id": "over"}
            bench = self.program.Bench(None, None, None, one_by_one)
            with unittest.mock.patch.object(self.program, "Daemon", return_value=daemon):
                self.program.latentd_traces(bench, 65536, 3, ["cuda:0"], ["cuda:0"])
            self.assertEqual([call.args[0] for call in daemon.trace.call_args_list], ["over" if one_by_one else "queued"] * 3)
            self.assertEqual(daemon.submit_and_follow.call_count > 0, one_by_one)


class ReportTest(InFolder):
    def test_efficiency_is_the_share_of_the_ranks_that_one_would_need(self):
        self.assertEqual(efficiency(600, 300, 2), 1)
        self.assertAlmostEqual(efficiency(630, 369, 2), 0.85, places=2)
        self.assertEqual(efficiency(600, 600, 4), 0.25)

    def test_a_goal_is_met_at_its_bound(self):
        self.assertTrue(meets(0.88, ">=", 0.88))
        self.assertFalse(meets(0.8799, ">=", 0.88))
        self.assertTrue(meets(255, "<=", 255))
        self.assertFalse(meets(256, "<=", 255))

    def test_a_missed_goal_is_told_and_is_no_failure(self):
        report = self.report()
        report.check("parity", "cfg 2", True, "worst pixel 0")
        report.check("suites", "NCCL", None, "needs 2 GPUs")
        self.assertFalse(report.goal("steps", "efficiency of ulysses 2", 0.5, ">=", 0.88))
        self.assertTrue(report.goal("steps", "step, ms", 250, "<=", 255))
        report.part("steps", 1.25)
        report.write()
        self.assertEqual(report.failures(), [])
        self.assertEqual(report.verdict(), ["1 checks passed, 0 failed, 1 not run; 1 of 2 goals met"])
        text = (self.folder / "report.txt").read_text()
        self.assertIn("| efficiency of ulysses 2 | 0.5      | >= 0.88 | MISSED  |", text)
        written = json.loads((self.folder / "report.json").read_text())
        self.assertEqual([goal["met"] for goal in written["goals"]], [False, True])
        self.assertEqual(written["checks"][1]["result"], "not run")

    def test_failed_checks_and_broken_parts_are_failures_with_their_cause(self):
        report = self.report()
        report.check("parity", "tp 2", False, "worst pixel 0.3\nand the log")
        report.part("steps", 2, "latentd ended with 1\nand its log")
        self.assertEqual(report.failures(), ["tp 2", "steps: latentd ended with 1"])
        report.write()
        text = (self.folder / "report.txt").read_text()
        self.assertIn("FAILED: steps: latentd ended with 1", text)
        self.assertNotIn("and the log", text)
        self.assertIn("and the log", (self.folder / "report.json").read_text())

    def test_tables_are_aligned_and_in_both_files(self):
        self.assertEqual(text_table(["a", "long"], [["xyz", 1]]), ["| a   | long |", "|-----|------|", "| xyz | 1    |"])
        report = self.report()
        report.table("steps", "Steps", ["topology"], [["cfg 2"]], ["A note."], figures=[{"p50": 1}])
        report.write()
        self.assertIn("## Steps\n\n| topology |\n|----------|\n| cfg 2    |\n\nA note.", (self.folder / "report.txt").read_text())
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["tables"][0]["figures"], [{"p50": 1}])


def trace(steps_of_ranks, decode=(), group="denoise"):
    """Trace events of steps that end at these microseconds, by rank, and of decode ranks that take so many."""
    events = []
    for rank, ends in enumerate(steps_of_ranks):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"{group}/{rank}"}})
        events += [{"name": f"step {i}", "ph": "X", "pid": rank, "ts": end - 10, "dur": 10} for i, end in enumerate(ends)]
    for rank, length in enumerate(decode, start=100):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"decode/{rank}"}})
        events.append({"name": "stage", "ph": "X", "pid": rank, "ts": 0, "dur": length})
    return events


class SpeedTest(unittest.TestCase):
    def test_a_step_is_from_end_to_end_of_the_slowest_rank_without_the_first_ones(self):
        one = trace([[100, 5_100, 7_100, 9_100, 12_100]])
        self.assertEqual(speed.step_ms(one, dropped=2), [2, 2, 3])
        two = trace([[100, 5_100, 7_100], [200, 5_000, 8_100]])
        self.assertEqual(speed.step_ms(two, dropped=1), [4.9, 3.0])

    def test_steps_of_other_groups_and_of_step_10_are_told_apart(self):
        many = trace([[1000 * (i + 1) for i in range(12)]])
        self.assertEqual(speed.step_ms(many, dropped=2), [1] * 10)
        self.assertEqual(speed.step_ms(trace([[1, 2, 3, 4]], group="text") + trace([]), dropped=1), [])

    def test_a_decode_lasts_as_long_as_its_slowest_rank(self):
        self.assertEqual(speed.decode_ms(trace([[1]], decode=[800_000, 900_000])), 900)


class Run:
    """As much of a run as figures need."""

    def __init__(self, report, apart):
        self.report, self.apart = report, apart


class GoalTest(InFolder):
    def test_steps_are_judged_where_ranks_have_a_gpu_each(self):
        one, two = speed.Times(600, 610, 1000, 10), speed.Times(330, 340, 640, 10)
        ulysses = topology.spreads(2)[0]
        apart, shared = Run(self.report(), True), Run(self.report(), False)
        self.assertEqual(speed.step_row(apart, ulysses, 2, two, one), ["ulysses 2", "330.0 (255)", "340.0", 10, "0.91 (0.88)"])
        self.assertEqual(speed.decode_row(apart, 2, 640, 1000), [2, "640", "0.78 (0.8)"])
        self.assertEqual(speed.decode_row(apart, 4, 300, 1000), [4, "300", "0.83"])
        self.assertEqual([(goal["what"], goal["met"]) for goal in apart.report.content["goals"]],
                         [("step of ulysses 2, ms", False), ("efficiency of ulysses 2", True), ("efficiency of spatial 2", False)])
        self.assertEqual(speed.step_row(shared, ulysses, 2, two, one), ["ulysses 2", "330.0", "340.0", 10, "0.91"])
        self.assertEqual(shared.report.content["goals"], [])

    def test_a_decode_counts_with_the_best_of_a_number_of_ranks(self):
        run, found = Run(self.report(), False), speed.Found()
        for decode_ms in (700, 640, 650):
            times = speed.Times(330, 340, decode_ms, 10)
            found.add(run, topology.spreads(2)[0], 2, times, times)
        self.assertEqual(found.decodes, {2: 640})
        self.assertEqual(found.figures[1], {"topology": "ulysses 2", "ranks": 2, "guided": False, "step_ms": 330, "step_p95_ms": 340,
                                            "decode_ms": 640, "steps": 10})

    def test_guidance_has_goals_of_its_own(self):
        run = Run(self.report(), True)
        cfg = next(spread for spread in topology.spreads(2) if spread.guided)
        times = speed.Times(640, 650, 1, 10)
        self.assertEqual(speed.step_row(run, cfg, 2, times, speed.Times(1200, 1200, 1, 10))[-1], "0.94 (0.92)")
        self.assertEqual(speed.step_row(run, speed.ONE_GUIDED, 1, times, times)[1], "640.0")


    def test_a_split_that_is_not_served_is_a_failure_of_two_ranks_only(self):
        run, times = Run(self.report(), True), speed.Times(600, 610, 1000, 10)
        one = {speed.PLAIN: times, speed.GUIDED: times}
        for raised, ranks, cell, broken in ((Refused("heads"), 8, "not served", 0), (Refused("heads"), 2, "not served", 1),
                                            (Failed("died"), 8, "failed", 1)):
            found = speed.Found()
            with unittest.mock.patch.object(speed, "spread_out", side_effect=raised):
                speed.measure_spread(run, None, topology.spreads(ranks)[0], ranks, one, found)
            self.assertEqual((found.rows[0][1], len(found.broken), found.decodes, found.figures), (cell, broken, {}, []))


class SideBySideTest(InFolder):
    def test_one_task_fails_alone_whatever_it_raises(self):
        run = bench_run.Run(*[None] * 4, self.report(), *[None] * 3)

        def fails(error):
            raise error
        results = run.side_by_side({"a": lambda: 1, "b": lambda: fails(Failed("known")), "c": lambda: fails(KeyError("x")), "d": lambda: 2})
        self.assertEqual((results["a"], str(results["b"]), results["d"]), (1, "known", 2))
        self.assertIsInstance(results["c"], Failed)
        self.assertTrue(str(results["c"]).startswith("KeyError: 'x'\n"))

    def test_a_part_that_breaks_is_reported_and_the_next_one_runs(self):
        run = bench_run.Run(*[None] * 4, self.report(), *[None] * 3)
        program = load_program()
        program.run_part(run, "steps", lambda: {}["absent"])
        program.run_part(run, "throughput", lambda: None)
        self.assertEqual(run.report.failures(), ["steps: KeyError: 'absent'"])
        self.assertEqual(list(json.loads((self.folder / "report.json").read_text())["parts"]), ["steps", "throughput"])


class VisibleDevicesTest(unittest.TestCase):
    def test_a_suite_sees_the_named_gpus_first_and_no_others(self):
        run = bench_run.Run(*[None] * 8)
        for seen, devices, expected in (("", ["cuda:1", "cuda:0"], "1,0"), ("4,5,6", ["cuda:2", "cuda:0"], "6,4"),
                                        ("", ["cuda:0", "cuda:0"], "0")):
            with unittest.mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": seen}):
                self.assertEqual(run.visible_devices(devices), {"CUDA_VISIBLE_DEVICES": expected})


class TopologyTest(unittest.TestCase):
    def test_two_ranks_are_spread_in_every_way(self):
        self.assertEqual([spread.parallel for spread in topology.spreads(2)],
                         ["ulysses: 2", "ulysses: 2", "ring: 2", "ring: 2", "cfg: 2", "tp: 2", "pp: 2"])
        self.assertEqual(len({spread.name for spread in topology.spreads(2)}), 7)

    def test_more_ranks_share_guidance_and_sequence(self):
        self.assertIn("cfg: 2, ulysses: 2", [spread.parallel for spread in topology.spreads(4)])
        self.assertEqual(topology.rank_counts(["cuda:0"] * 2), [2])
        self.assertEqual(topology.rank_counts([f"cuda:{i}" for i in range(8)]), [2, 4, 8])
        self.assertEqual(topology.rank_counts([f"cuda:{i}" for i in range(6)]), [2, 4])


def ramp(offset=0.0, scale=1.0):
    return torch.linspace(0, scale, 24).reshape(2, 2, 2, 3) + offset


class ParityTest(InFolder):
    ALONE = {"float32": ramp(), "bfloat16": ramp(0.01)}

    def test_float32_is_one_ranks_to_five_in_a_hundred_thousand(self):
        self.assertTrue(checks.judge(ramp(4e-5), "float32", self.ALONE)[0])
        self.assertFalse(checks.judge(ramp(6e-5), "float32", self.ALONE)[0])

    def test_bfloat16_is_as_near_to_float32_as_one_ranks(self):
        self.assertTrue(checks.judge(ramp(-0.012), "bfloat16", self.ALONE)[0])
        self.assertFalse(checks.judge(ramp(0.013), "bfloat16", self.ALONE)[0])

    def test_not_a_number_or_another_shape_is_never_right(self):
        for dtype in ("float32", "bfloat16"):
            self.assertFalse(checks.judge(ramp() * math.nan, dtype, self.ALONE)[0])
            self.assertFalse(checks.judge(ramp()[:1], dtype, self.ALONE)[0])

    def test_a_video_is_read_as_numpy_writes_it(self):
        path = self.folder / "video.npy"
        numpy.save(path, ramp().numpy())
        self.assertTrue(torch.equal(videos.load(path), ramp()))
        numpy.save(path, ramp().double().numpy())
        with self.assertRaisesRegex(ValueError, "expected float32"):
            videos.load(path)

    def test_a_suite_passes_only_if_it_says_so(self):
        self.assertIn("3 test cases", checks.judge_suite(0, "x\nAll tests passed (9 assertions in 3 test cases)\n", "log"))
        for code, said in ((1, "test cases: 3 | 2 passed | 1 failed"), (0, "No tests ran"), (-11, ""),
                           (3, "All tests passed (9 assertions in 3 test cases)")):
            with self.assertRaises(Failed):
                checks.judge_suite(code, said, "log")


class ComparisonTest(InFolder):
    def test_a_figure_from_elsewhere_is_reproduced_within_a_quarter(self):
        self.assertTrue(collectives.is_reproduced([0.121, 0.33], [0.16, 0.266]))
        self.assertFalse(collectives.is_reproduced([0.16, 0.34], [0.16, 0.266]))

    def test_hand_offs_are_judged_between_gpus_alone(self):
        result = {"bytes": 1 << 20, "latentd": {"p50_us": 40}, "reference": {"p50_us": 500}, "bare program": {"p50_us": 30}}
        for apart, goals in ((True, 2), (False, 0)):
            run = Run(self.report(), apart)
            self.assertEqual(handoff.judge(run, result), ["0.08 (0.10)", "1.33 (1.15)"])
            self.assertEqual([goal["met"] for goal in run.report.content["goals"]], [True, False][:goals])


class ChildrenTest(InFolder):
    def test_a_child_ends_at_its_deadline_with_all_of_its_session(self):
        marker = self.folder / "pid"
        with Children() as children, self.assertRaisesRegex(Failed, "not over within 5 s"):
            children.run(["sh", "-c", f"sleep 100 & echo $! > {marker}; wait"], 5)
        pid = int(marker.read_text())
        end = time.monotonic() + 20
        while self.runs(pid) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertFalse(self.runs(pid))

    @staticmethod
    def runs(pid):
        with contextlib.suppress(OSError):
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        return False

    def test_nothing_outlives_the_run_and_nothing_starts_after_it(self):
        with Children() as children:
            process = children.start(["sleep", "100"])
        self.assertIsNotNone(process.poll())
        with self.assertRaisesRegex(Failed, "being ended"):
            children.start(["true"])

    def test_a_failure_tells_the_command_and_what_it_said(self):
        with Children() as children:
            with self.assertRaisesRegex(Failed, "exit 3\nwhy"):
                children.output(["sh", "-c", "echo why >&2; exit 3"], 10)
            with self.assertRaisesRegex(Failed, "does not start"):
                children.run([self.folder / "absent"], 10)
            self.assertEqual(children.output(["sh", "-c", "echo $WORD"], 10, environment={"WORD": "passed on"}), "passed on\n")


class MpsTest(InFolder):
    """With a program in the place of NVIDIA's that writes down what it is told and ends when it is told to."""

    def setUp(self):
        super().setUp()
        self.told = self.folder / "told"
        self.install("""if [ "$1" = -f ]; then : > $CUDA_MPS_PIPE_DIRECTORY/up; while [ -e $CUDA_MPS_PIPE_DIRECTORY/up ]; do sleep 0.05; done; exit; fi
[ -e $CUDA_MPS_PIPE_DIRECTORY/up ] || exit 1
read command; echo $command >> TOLD; [ $command != quit ] || rm $CUDA_MPS_PIPE_DIRECTORY/up""")
        path = f"{self.folder}:{os.environ['PATH']}"
        self.enterContext(unittest.mock.patch.dict(os.environ, {"PATH": path}))

    def install(self, script):
        program = self.folder / mps.CONTROL
        program.write_text(f"#!/bin/sh\n{script.replace('TOLD', str(self.told))}\n")
        program.chmod(0o755)

    def test_it_serves_until_it_is_left_also_by_a_failure(self):
        with Children() as children:
            for failure in (None, Failed("inside")):
                with contextlib.suppress(Failed), mps.Mps(children) as environment:
                    folder = pathlib.Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
                    self.assertTrue((folder / "up").exists())
                    self.assertEqual(children.output(["sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"], 10, environment=environment).strip(), str(folder))
                    if failure:
                        raise failure
                self.assertFalse(folder.exists())
            self.assertEqual(children._running, set())
        self.assertEqual(self.told.read_text().split(), ["get_server_list", "quit"] * 2)

    def test_one_that_does_not_start_is_told_with_what_it_said(self):
        self.install("exit 1")
        with Children() as children, self.assertRaisesRegex(Failed, f"{mps.CONTROL} get_server_list: exit 1"):
            mps.Mps(children).__enter__()

    def test_a_suite_runs_through_it_where_it_is_there(self):
        with Children() as children:
            run = unittest.mock.Mock(children=children, programs=self.folder, quick=True, on_gpus=True, devices=["cuda:0"],
                                     log=lambda name: self.folder / name.replace(" ", "-"), visible_devices=lambda devices: {})
            for name in ("latentd-tests", "cuda_kill_test"):
                (self.folder / name).write_text('#!/bin/sh\n[ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ] && echo "All tests passed (1)"\n')
                (self.folder / name).chmod(0o755)
            tasks = checks.suite_tasks(run)
            self.assertEqual(tasks["channel through MPS: kills in every slot state"](), "All tests passed (1)")
            with self.assertRaises(Failed):
                tasks["channel: kills in every slot state"]()
            with unittest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
                self.assertNotIn("channel through MPS: kills in every slot state", checks.suite_tasks(run))


class CheckpointTest(InFolder):
    def test_random_weights_are_safetensors_of_the_shapes_that_were_asked_for(self):
        path = self.folder / "w.safetensors"
        torch.manual_seed(1)
        random_checkpoint.save({"a.weight": [64, 31], "norm.weight": [500]}, torch.bfloat16, path, "cpu")
        data = path.read_bytes()
        length = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:8 + length])
        self.assertEqual(header["norm.weight"], {"dtype": "BF16", "shape": [500], "data_offsets": [3968, 4968]})
        self.assertEqual((length % 8, len(data)), (0, 8 + length + 4968))
        values = torch.frombuffer(bytearray(data[8 + length:]), dtype=torch.bfloat16).float()
        self.assertAlmostEqual(values[:1984].std().item(), 0.02, delta=0.005)
        self.assertAlmostEqual(values[1984:].mean().item(), 1, delta=0.01)

    def test_the_shipped_sizes_are_those_of_the_published_model(self):
        text = (ROOT / "tests/bench/wan21_t2v_1_3b.json").read_text()
        found = json.loads(text)
        self.assertEqual(random_checkpoint.as_text(found), text)
        parameters = {name: sum(math.prod(shape) for shape in part["shapes"].values()) for name, part in found.items()}
        self.assertEqual(parameters, {"transformer": 1_418_996_800, "vae": 126_892_531})


class CommandLineTest(unittest.TestCase):
    def test_bad_arguments_are_refused_with_what_would_be_right(self):
        for arguments, words in ((["--devices", "tpu:0"], "expected cuda:0,cuda:1 or cpu,cpu"),
                                 (["--devices", "cpu,cuda:0"], "not both"), (["--only", "speed"], "throughput")):
            said = io.StringIO()
            with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(said):
                load_program().arguments_of(arguments)
            self.assertEqual(refused.exception.code, 2)
            self.assertIn(words, said.getvalue())

    def test_ranks_share_a_device_that_is_named_alone(self):
        self.assertEqual(load_program().arguments_of(["--devices", "cuda:3"]).devices, ["cuda:3", "cuda:3"])
        self.assertEqual(load_program().arguments_of(["--devices", "cuda:1,cuda:0,cuda:2"]).devices, ["cuda:1", "cuda:0", "cuda:2"])


if __name__ == "__main__":
    unittest.main()
