"""Processes that die at a bad moment: each job ends with the cause, nothing is left, the next one works."""
import os
import pathlib
import signal
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import api
from daemon import at_most, processes, wait_until
from daemon_case import FAILED, SUCCEEDED, UNAVAILABLE, DaemonCase, stage_runs

LOADING = (api.WORKER_STATE_LOADING,)
GROUPS = ("first", "middle", "last")
LONG = 1000  # steps of a job that ends by a kill, however late that comes


def encoder_failures(daemon):
    prefix = "latentd_encoder_failures_total"
    return {name: value for name, value in daemon.metrics().items() if name.startswith(prefix) and value}


def encoders(daemon):
    return [pid for pid, command in processes(str(daemon.folder)) if command.split(" ")[0].endswith("latent-encoder")]


class KillAtABadMomentTest(DaemonCase):
    def test_while_loading_again(self):
        self.run_daemon(topologies.noop(relay="load_ms: 3000"))
        before = self.worker("middle")
        os.kill(before, signal.SIGKILL)
        loading = self.worker("middle", LOADING, other_than=before)
        job = self.client.submit()
        os.kill(loading, signal.SIGKILL)
        self.assertEqual(self.client.wait(job.id).state, SUCCEEDED, "it had only waited")
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        middle = next(group for group in topology.groups if group.name == "middle")
        self.assertEqual((middle.epoch, middle.restarts), (3, 2))
        for word in ("loading", "SIGKILL"):
            self.assertIn(word, middle.last_failure.message)

    def test_while_publishing(self):
        # 256 MiB take longer to stage than the last step's report takes to come here.
        self.run_daemon(topologies.noop(source="bytes: 268435456, steps: 2, step_ms: 1"))
        lost = 0
        for attempt in range(10):
            if lost and attempt >= 3:
                break
            job = self.client.submit()
            self.client.watch_until(job.id, stage_runs(0, 2))
            os.kill(self.worker("first"), signal.SIGKILL)
            ended = self.client.wait(job.id)
            if ended.state == FAILED:
                self.expect_lost(ended, "first")
                lost += 1
        self.assertGreater(lost, 0, "no kill came before the consumer had its input")
        self.expect_next_succeeds()

    def test_while_decoding(self):
        daemon = self.run_daemon(topologies.demo())
        small = dict(frames=5, width=64, height=64, steps=1)
        for format in (api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_MP4):
            job = self.client.submit(frames=65, width=160, height=160, steps=1, format=format)
            self.client.watch_until(job.id, stage_runs(2, 2))
            os.kill(self.worker("decode"), signal.SIGKILL)
            self.expect_lost(self.client.wait(job.id), "decode")
            wait_until(lambda: not encoders(daemon), 30, "no encoder waits for frames that will not come")
            self.expect_next_succeeds(format=format, **small)
        self.assertFalse(list(daemon.folder.rglob("*.partial")))
        self.assertEqual(encoder_failures(daemon), {}, "the frames did not come: no encoder failed")

    def test_while_every_format_waits_for_the_first_frame(self):
        daemon = self.run_daemon(topologies.noop(relay="steps: 0, step_ms: 20"))
        for format in (api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_GIF, api.OUTPUT_FORMAT_MP4):
            job = self.client.submit(format=format, steps=LONG)
            self.client.watch_until(job.id, stage_runs(1))
            os.kill(self.worker("middle"), signal.SIGKILL)
            self.expect_lost(self.client.wait(job.id), "middle")
            self.expect_next_succeeds(format=format)
        self.assertEqual(encoder_failures(daemon), {})

    def test_the_encoder_in_the_middle_of_its_stream(self):
        daemon = self.run_daemon(topologies.noop(sink="steps: 0, step_ms: 50"))
        for format in (api.OUTPUT_FORMAT_MP4, api.OUTPUT_FORMAT_GIF):
            job = self.client.submit(format=format, steps=LONG)
            pid = wait_until(lambda: encoders(daemon), 60, "an encoder")[0]
            os.kill(pid, signal.SIGKILL)
            self.expect_failed(self.client.wait(job.id), UNAVAILABLE, "latent-encoder", "SIGKILL")
            self.expect_next_succeeds(format=format)
        self.assertEqual(encoder_failures(daemon), {'latentd_encoder_failures_total{reason="UNAVAILABLE"}': 2})
        self.assertEqual(sum(value for name, value in daemon.metrics().items() if name.startswith("latentd_worker_restarts_total")), 0)

    def test_every_group_twice_within_the_back_off(self):
        starting = (api.WORKER_STATE_STARTING, *LOADING, api.WORKER_STATE_WARMING_UP)
        self.run_daemon(topologies.noop(*["load_ms: 2000"] * 3))
        first = {group: self.worker(group) for group in GROUPS}
        for pid in first.values():
            os.kill(pid, signal.SIGKILL)
        second = {group: self.worker(group, starting, other_than=first[group]) for group in GROUPS}
        waiting = self.client.submit()
        for pid in second.values():
            os.kill(pid, signal.SIGKILL)
        ended = self.client.wait(waiting.id)
        self.assertEqual(ended.state, SUCCEEDED, ended.error)
        self.expect_next_succeeds()
        for group in self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30).groups:
            self.assertEqual(group.restarts, 2, group)

    def test_a_supervisor_killed_in_the_middle_of_everything(self):
        daemon = self.run_daemon(topologies.noop(sink="step_ms: 20, steps: 50"))
        for format in (api.OUTPUT_FORMAT_MP4, api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_GIF):
            self.client.submit(format=format)
        wait_until(lambda: encoders(daemon), 60, "an encoder")
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait(30)
        wait_until(lambda: not processes(str(daemon.folder)), at_most(1), lambda: f"workers and encoders gone within a second: {processes(str(daemon.folder))}")


if __name__ == "__main__":
    unittest.main()
