"""What takes too long, while starting or running, ends with the deadline's name; a start is all or nothing."""
import os
import pathlib
import signal
import sys
import time
import unittest

from google.protobuf.duration_pb2 import Duration

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import api
from daemon import Daemon, at_most, processes, wait_until
from daemon_case import CANCELLED, DEADLINE_EXCEEDED, SLOW, SUCCEEDED, DaemonCase, stage_runs


class StartTest(DaemonCase):
    """All or nothing: what cannot start ends the daemon with the first cause, and leaves nothing."""

    def refused(self, topology, *words, seconds=120, **kwargs):
        start = time.monotonic()
        code, text = Daemon.refused(topology, seconds=seconds, **kwargs)
        self.assertEqual(code, 1, text)
        last = text[text.rindex("latentd: "):]
        for word in words:
            self.assertIn(word, last, text)
        return time.monotonic() - start

    def test_one_of_three_fails_to_load(self):
        for options in (dict(source="fail_load: true", relay="load_ms: 90000"), dict(sink="fail_load: true", source="load_ms: 90000")):
            group = "first" if "fail_load" in options.get("source", "") else "last"
            self.assertLess(self.refused(topologies.noop(**options), group, "fail_load"), 60, "the others are not awaited")

    def test_a_load_that_hangs(self):
        self.refused(topologies.noop(relay="load_ms: 3000000", extra="deadlines: {load: 15s}"), "middle", "loading", "deadlines.load", "15 s")

    def test_a_warm_up_that_hangs(self):
        self.refused(topologies.noop(sink="warm_up_ms: 3000000", extra="deadlines: {warm_up: 3s}"), "last", "deadlines.warm_up", "3 s")

    def test_killed_while_loading_the_first_time(self):
        daemon = Daemon(topologies.noop(relay="load_ms: 60000"))
        daemon.launch()
        try:
            wait_until(lambda: "waiting: middle is not ready; rank 0 loading" in daemon.log(), 120, lambda: f"the load is under way:\n{daemon.log()}")
            pid = next(pid for pid, command in daemon.workers() if "--group middle" in command)
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(daemon.process.wait(30), 1)
            self.assertIn("died while loading: signal SIGKILL", daemon.log()[daemon.log().rindex("latentd: "):])
            wait_until(lambda: not processes(str(daemon.folder)), at_most(1), lambda: f"no process left: {processes(str(daemon.folder))}")
        finally:
            daemon.clean_up()

    def test_interrupted_while_loading(self):
        daemon = Daemon(topologies.noop(relay="load_ms: 60000"))
        daemon.launch()
        try:
            wait_until(daemon.workers, 60, "workers")
            self.assertEqual(daemon.stop(30), 0)
            daemon.assert_nothing_left()
        finally:
            daemon.clean_up()


class DeadlineTest(DaemonCase):
    def submit(self, **request):
        parameters = api.JobParameters(prompt="x", format=api.OUTPUT_FORMAT_NPY)
        return self.client.jobs.Submit(api.SubmitRequest(parameters=parameters, **request), timeout=30)

    def test_a_step_without_progress(self):
        daemon = self.run_daemon(topologies.noop(relay="steps: 3, step_ms: 5", extra="deadlines: {stall: 2s, heartbeat_miss: 1h}"))
        pid = self.worker("middle")
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        self.expect_failed(self.client.wait(self.submit().id), DEADLINE_EXCEEDED, "middle", "2 s", "stall_timeout")
        self.assertLess(time.monotonic() - start, at_most(6))
        # It does not obey the cancellation either: its group is replaced.
        self.worker("middle", other_than=pid)
        self.expect_next_succeeds()
        self.assertIn('latentd_worker_restarts_total{group="middle",reason="recycle"}', daemon.metrics())

    def test_the_job_behind_one_that_cannot_be_cancelled_runs_again(self):
        self.run_daemon(topologies.noop(relay="steps: 100, step_ms: 50", extra="deadlines: {stall: 2s, heartbeat_miss: 1h}"))
        pid = self.worker("middle")
        stuck, behind = self.submit().id, self.submit().id
        self.client.watch_until(stuck, stage_runs(1))
        os.kill(pid, signal.SIGSTOP)
        self.client.cancel(stuck)
        self.assertEqual(self.client.wait(stuck).state, CANCELLED)
        ended = self.client.wait(behind)
        self.assertEqual((ended.state, ended.displacements), (SUCCEEDED, 1), ended)
        self.assertNotEqual(self.worker("middle"), pid)

    def test_a_group_has_its_own_stall_limit(self):
        self.run_daemon(topologies.noop(relay="steps: 1, step_ms: 3000", extra="deadlines: {stall: 2s}").replace(
            "name: middle,", "name: middle, stall: 1m,"))
        self.expect_next_succeeds()

    def test_progress_extends_the_stall_timer(self):
        self.run_daemon(topologies.noop(relay="steps: 30, step_ms: 100", extra="deadlines: {stall: 2s}"))
        self.expect_next_succeeds()

    def test_a_request_has_its_own_stall_timeout(self):
        self.run_daemon(topologies.noop(relay="steps: 1, step_ms: 4000"))
        job = self.submit(stall_timeout=Duration(seconds=1, nanos=500_000_000))
        self.expect_failed(self.client.wait(job.id), DEADLINE_EXCEEDED, "middle", "1.5 s")
        self.expect_next_succeeds()

    def test_a_job_past_its_deadline(self):
        self.run_daemon(topologies.noop(relay=SLOW))
        running = self.submit(deadline=Duration(seconds=5))
        queued = [self.submit(deadline=Duration(seconds=6)) for _ in range(3)]
        start = time.monotonic()
        self.expect_failed(self.client.wait(running.id), DEADLINE_EXCEEDED, "deadline", "middle")
        self.assertLess(time.monotonic() - start, at_most(7))
        for job in queued:
            self.expect_failed(self.client.wait(job.id), DEADLINE_EXCEEDED, "deadline")
        self.assertLess(time.monotonic() - start, at_most(8))


if __name__ == "__main__":
    unittest.main()
