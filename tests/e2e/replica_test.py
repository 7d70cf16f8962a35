"""Replicas of a stage in a whole daemon: jobs spread over them, the same seed makes the same video on either, and the death
of one costs the job that it was running and no other."""
import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import api
from daemon import find_binary, wait_until
from daemon_case import CANCELLED, SUCCEEDED, DaemonCase, stage_runs

REPLICAS = ("middle.0", "middle.1")


def two_replicas(options, middle="", **kwargs):
    """Three noop groups; the one in the middle has two replicas. middle: further keys of it."""
    text = topologies.noop(relay=options, **kwargs)
    assert text.count("name: middle, stage: noop, ") == 1
    keys = middle or "devices: [cpu, cpu], parallel: {dp: 2}, "
    return text.replace("name: middle, stage: noop, ", "name: middle, stage: noop, " + keys)


@contextlib.contextmanager
def topology_file(text):
    with tempfile.TemporaryDirectory(prefix="ld") as folder:
        path = pathlib.Path(folder) / "topology.yaml"
        path.write_text(text)
        yield path


class ReplicaTest(DaemonCase):
    def group_of(self, job):
        return job.stages[1].group

    def edges(self):
        return self.client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges

    def expect_http_ready(self, daemon):
        with urllib.request.urlopen(f"http://{daemon.http}/readyz", timeout=30) as answer:
            self.assertEqual(answer.status, 200)

    def test_jobs_spread_over_replicas(self):
        # Long enough that the second one is there before the first has ended.
        daemon = self.run_daemon(two_replicas("step_ms: 20, steps: 100"))
        jobs = [self.client.wait(job.id) for job in [self.client.submit() for _ in range(8)]]
        self.assertEqual({job.state for job in jobs}, {SUCCEEDED})
        counts = collections.Counter(map(self.group_of, jobs))
        self.assertEqual(set(counts), set(REPLICAS))
        self.assertGreaterEqual(min(counts.values()), 2, f"of 8 equal jobs, however fast either was: {counts}")
        self.assertEqual([[stage.stage, stage.group] for stage in jobs[0].stages],
                         [["first", "first"], ["middle", "middle.0"], ["last", "last"]])
        # The last acknowledgements may be told after the job's end.
        handed = wait_until(lambda: len(self.client.get(jobs[1].id).transfers) == 2 and self.client.get(jobs[1].id), 30, "both hand-offs")
        self.assertEqual([transfer.edge for transfer in handed.transfers],
                         ["first.source->middle.1.relay", "middle.1.relay->last.sink"])
        # They worked side by side.
        first, second = (job.stages[1] for job in jobs[:2])
        self.assertLess(second.compute_start_time.ToNanoseconds(), first.finish_time.ToNanoseconds())
        self.assertLess(first.compute_start_time.ToNanoseconds(), second.finish_time.ToNanoseconds())

        wait_until(lambda: sum(edge.handoffs for edge in self.edges()) == 16, 30, "all hand-offs")
        metrics = daemon.metrics()
        for group in REPLICAS:
            self.assertEqual(metrics[f'latentd_stage_commands_total{{group="{group}",stage="middle"}}'], counts[group])
            self.assertEqual(metrics[f'latentd_worker_up{{group="{group}",rank="0"}}'], 1)
        # Stages and edges are those of the file, however many replicas there are.
        self.assertEqual(metrics['latentd_stage_seconds_count{stage="middle"}'], 8)
        self.assertEqual(metrics['latentd_handoffs_total{edge="first.source->middle.relay"}'], 8)
        self.assertEqual(metrics['latentd_slots{edge="first.source->middle.relay"}'], 4)
        named = {name for name in metrics if 'stage="middle.' in name or 'edge="first.source->middle.0' in name}
        self.assertEqual(named, set())

        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        self.assertEqual([group.name for group in topology.groups], ["first", *REPLICAS, "last"])
        self.assertEqual([edge.handoffs for edge in self.edges()], 2 * [counts["middle.0"], counts["middle.1"]])
        for word in REPLICAS:
            self.assertIn(word, daemon.ctl("topology").stdout)
        self.assertRegex(daemon.ctl("get", jobs[1].id).stdout, r"middle\.1 +done +100/100")
        tracks = json.loads(daemon.ctl("trace", jobs[1].id, "-o", "-").stdout)
        self.assertIn("middle.1", json.dumps(tracks))
        self.assertNotIn("middle.0", json.dumps(tracks))

    def test_the_plan_shows_replicas(self):
        for keys, devices in (("devices: [cpu, cpu], parallel: {dp: 2}, ", "cpu"),
                              ("devices: [cpu, cpu, cpu, cpu], parallel: {dp: 2, tp: 2}, ", "cpu, cpu")):
            path = self.enterContext(topology_file(two_replicas("", middle=keys)))
            command = [find_binary("latentd"), "--config", path, "--check", "--worker-binary", find_binary("latent-worker")]
            shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("2 replicas; a job uses the one with the least to do", shown.stdout)
            self.assertRegex(shown.stdout, rf"middle\.1: \d ranks? on {devices}, ")
            plan = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60).stdout)
            self.assertEqual([group["replica_of"] for group in plan["groups"]], [None, "middle", "middle", None])
        refused = self.enterContext(topology_file(two_replicas("bytez: 1")))
        shown = subprocess.run([*command[:2], refused, *command[3:]], capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 2)
        self.assertEqual(shown.stderr.count("bytez"), 2, "what is wrong with one replica is told once: " + shown.stderr)

    def test_the_same_seed_makes_the_same_video_on_either_replica(self):
        text = topologies.demo().replace("stage: wan.denoiser}", "stage: wan.denoiser, threads: 1, devices: [cpu, cpu], parallel: {dp: 2}}")
        self.assertIn("dp: 2", text)
        self.run_daemon(text)
        jobs = [self.client.submit("a red ball", seed=7, frames=5, width=64, height=64, steps=4) for _ in range(4)]
        jobs = [self.client.wait(job.id) for job in jobs]
        self.assertEqual({job.state for job in jobs}, {SUCCEEDED})
        self.assertEqual({job.stages[1].group for job in jobs}, {"denoise.0", "denoise.1"})
        videos = {self.client.download(job.id) for job in jobs}
        self.assertEqual(len(videos), 1, "bit by bit")

    def test_a_killed_replica_costs_its_job_alone(self):
        daemon = self.run_daemon(two_replicas("step_ms: 20, steps: 0", sink="step_ms: 1", extra="queue: {length_max: 20}"))
        # The first one ends by the kill, and the second one not before that was seen.
        jobs = [self.client.submit(steps=steps).id for steps in (1000, 500, 10, 10, 10, 10)]
        for job in jobs[:2]:
            self.client.watch_until(job, stage_runs(1, step=3))
        self.assertEqual([self.group_of(self.client.get(job)) for job in jobs[:2]], list(REPLICAS))
        before = self.worker("middle.0")
        os.kill(before, signal.SIGKILL)
        self.expect_lost(self.client.wait(jobs[0]), "middle.0")
        self.expect_http_ready(daemon)
        self.assertEqual(self.client.get(jobs[1]).state, api.JOB_STATE_RUNNING, "the other one does not notice")
        ended = [self.client.wait(job) for job in jobs[1:]]
        self.assertEqual({job.state for job in ended}, {SUCCEEDED}, [job.error for job in ended])
        self.assertEqual([job.restarts for job in ended], [0] * 5)

        # It comes back, with a new process, and takes its share.
        self.worker("middle.0", other_than=before)
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        self.assertEqual([(group.name, group.epoch) for group in topology.groups],
                         [("first", 1), ("middle.0", 2), ("middle.1", 1), ("last", 1)])
        wait_until(lambda: "serving again" in daemon.log(), 30, "its edges are open")
        jobs = [self.client.wait(job.id) for job in [self.client.submit() for _ in range(2)]]
        self.assertEqual({self.group_of(job) for job in jobs}, set(REPLICAS))
        self.assertEqual(daemon.metrics()['latentd_worker_restarts_total{group="middle.0",reason="signal"}'], 1)

    def test_a_job_that_may_be_retried_goes_on_at_once_on_the_other_replica(self):
        self.run_daemon(two_replicas("step_ms: 20, steps: 150, load_ms: 3000"))
        job = self.client.submit(retries=1)
        self.client.watch_until(job.id, stage_runs(1, step=3))
        os.kill(self.worker("middle.0"), signal.SIGKILL)
        again = self.client.watch_until(job.id, lambda now: now.restarts == 1 and stage_runs(1)(now))
        self.assertEqual(self.group_of(again), "middle.1")
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        self.assertNotEqual(topology.groups[1].workers[0].state, api.WORKER_STATE_READY, "the lost one is still on its way")
        self.assertEqual(self.client.wait(job.id).state, SUCCEEDED)

    def test_short_jobs_pass_a_long_one(self):
        self.run_daemon(two_replicas("step_ms: 20, steps: 0"))
        long = self.client.submit(steps=1000)
        self.client.watch_until(long.id, stage_runs(1))
        short = [self.client.wait(job.id) for job in [self.client.submit(steps=5) for _ in range(6)]]
        self.assertEqual({job.state for job in short}, {SUCCEEDED})
        self.assertEqual(collections.Counter(map(self.group_of, short)), {"middle.1": 6})
        self.assertEqual(self.client.get(long.id).state, api.JOB_STATE_RUNNING, "the last group did not wait for it")
        self.client.cancel(long.id)
        self.assertEqual(self.client.wait(long.id).state, CANCELLED)
        self.expect_next_succeeds(steps=5)

    def test_replicas_everywhere_each_of_two_ranks(self):
        keys = "devices: [cpu, cpu, cpu, cpu], parallel: {dp: 2, tp: 2}, "
        text = topologies.noop(relay="step_ms: 5, steps: 5", groups="devices: [cpu, cpu], parallel: {dp: 2}, ")
        text = text.replace("name: middle, stage: noop, threads: 1, devices: [cpu, cpu], parallel: {dp: 2}, ",
                            "name: middle, stage: noop, threads: 1, " + keys)
        self.assertIn("tp: 2", text)
        daemon = self.run_daemon(text)
        self.assertEqual(len(daemon.workers()), 8)
        jobs = [self.client.wait(job.id) for job in [self.client.submit() for _ in range(12)]]
        self.assertEqual({job.state for job in jobs}, {SUCCEEDED})
        for place, name in enumerate(("first", "middle", "last")):
            self.assertEqual({job.stages[place].group for job in jobs}, {f"{name}.0", f"{name}.1"})
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    unittest.main()
