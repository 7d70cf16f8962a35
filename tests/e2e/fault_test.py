"""Processes that die, hang or go away at a bad moment: each job ends with the cause, nothing is left, the next one works."""
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import grpc
from google.protobuf.duration_pb2 import Duration

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import TERMINAL, Client, api, code_of
from daemon import Daemon, find_binary, processes, wait_until
from daemon_case import CANCELLED, DEADLINE_EXCEEDED, FAILED, SLOW, SUCCEEDED, UNAVAILABLE, DaemonCase, stage_runs

LOADING = (api.WORKER_STATE_LOADING,)
GROUPS = ("first", "middle", "last")


def encoders(daemon):
    return [pid for pid, command in processes(str(daemon.folder)) if command.split()[0].endswith("latent-encoder")]


class KillAtABadMomentTest(DaemonCase):
    def test_while_loading_again(self):
        self.run_daemon(topologies.noop(relay="load_ms: 1000"))
        before = self.worker("middle")
        os.kill(before, signal.SIGKILL)
        loading = self.worker("middle", LOADING, other_than=before)
        job = self.client.submit()
        os.kill(loading, signal.SIGKILL)
        self.assertEqual(self.client.wait(job.id).state, SUCCEEDED, "it had only waited")
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=10)
        middle = next(group for group in topology.groups if group.name == "middle")
        self.assertEqual((middle.epoch, middle.restarts), (3, 2))
        for word in ("loading", "SIGKILL"):
            self.assertIn(word, middle.last_failure.message)

    def test_while_publishing(self):
        # 256 MiB take longer to stage than the last step's report takes to come here.
        self.run_daemon(topologies.noop(source="bytes: 268435456, steps: 2, step_ms: 1"))
        lost = 0
        for _ in range(3):
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
            wait_until(lambda: not encoders(daemon), 5, "no encoder waits for frames that will not come")
            self.expect_next_succeeds(format=format, **small)
        self.assertFalse(list(daemon.folder.rglob("*.partial")))

    def test_the_encoder_in_the_middle_of_its_stream(self):
        daemon = self.run_daemon(topologies.noop(sink="steps: 20, step_ms: 50"))
        for format in (api.OUTPUT_FORMAT_MP4, api.OUTPUT_FORMAT_GIF):
            job = self.client.submit(format=format)
            pid = wait_until(lambda: encoders(daemon), 20, "an encoder")[0]
            os.kill(pid, signal.SIGKILL)
            self.expect_failed(self.client.wait(job.id), UNAVAILABLE, "latent-encoder", "SIGKILL")
            self.expect_next_succeeds(format=format)
        self.assertEqual(sum(value for name, value in daemon.metrics().items() if name.startswith("latentd_worker_restarts_total")), 0)

    def test_every_group_twice_within_the_back_off(self):
        starting = (api.WORKER_STATE_STARTING, *LOADING, api.WORKER_STATE_WARMING_UP)
        self.run_daemon(topologies.noop(*["load_ms: 500"] * 3))
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
        for group in self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=10).groups:
            self.assertEqual(group.restarts, 2, group)

    def test_a_supervisor_killed_in_the_middle_of_everything(self):
        daemon = self.run_daemon(topologies.noop(sink="step_ms: 20, steps: 50"))
        for format in (api.OUTPUT_FORMAT_MP4, api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_GIF):
            self.client.submit(format=format)
        wait_until(lambda: encoders(daemon), 20, "an encoder")
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait(10)
        wait_until(lambda: not processes(str(daemon.folder)), 1, "workers and encoders gone within a second")


class StartTest(DaemonCase):
    """All or nothing: what cannot start ends the daemon with the first cause, and leaves nothing."""

    def refused(self, topology, *words, seconds=30, **kwargs):
        start = time.monotonic()
        code, text = Daemon.refused(topology, seconds=seconds, **kwargs)
        self.assertEqual(code, 1, text)
        last = text[text.rindex("latentd: "):]
        for word in words:
            self.assertIn(word, last, text)
        return time.monotonic() - start

    def test_one_of_three_fails_to_load(self):
        for options in (dict(source="fail_load: true", relay="load_ms: 20000"), dict(sink="fail_load: true", source="load_ms: 20000")):
            group = "first" if "fail_load" in options.get("source", "") else "last"
            self.assertLess(self.refused(topologies.noop(**options), group, "fail_load"), 15, "the others are not awaited")

    def test_a_load_that_hangs(self):
        self.refused(topologies.noop(relay="load_ms: 3000000", extra="deadlines: {load: 2s}"), "middle", "deadlines.load", "2 s")

    def test_a_warm_up_that_hangs(self):
        self.refused(topologies.noop(sink="warm_up_ms: 3000000", extra="deadlines: {warm_up: 1s}"), "last", "deadlines.warm_up", "1 s")

    def test_killed_while_loading_the_first_time(self):
        daemon = Daemon(topologies.noop(relay="load_ms: 60000"))
        daemon.launch()
        try:
            wait_until(lambda: "waiting: middle is not ready; rank 0 loading" in daemon.log(), 30, "the load is under way")
            pid = next(pid for pid, command in daemon.workers() if "--group middle" in command)
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(daemon.process.wait(10), 1)
            self.assertIn("died while loading: signal SIGKILL", daemon.log()[daemon.log().rindex("latentd: "):])
            wait_until(lambda: not processes(str(daemon.folder)), 1, "no process left")
        finally:
            daemon.clean_up()

    def test_interrupted_while_loading(self):
        daemon = Daemon(topologies.noop(relay="load_ms: 60000"))
        daemon.launch()
        try:
            wait_until(daemon.workers, 20, "workers")
            self.assertEqual(daemon.stop(10), 0)
            daemon.assert_nothing_left()
        finally:
            daemon.clean_up()


class DeadlineTest(DaemonCase):
    def submit(self, **request):
        parameters = api.JobParameters(prompt="x", format=api.OUTPUT_FORMAT_NPY)
        return self.client.jobs.Submit(api.SubmitRequest(parameters=parameters, **request), timeout=10)

    def test_a_step_without_progress(self):
        daemon = self.run_daemon(topologies.noop(relay="steps: 3, step_ms: 5", extra="deadlines: {stall: 1s, heartbeat_miss: 1h}"))
        pid = self.worker("middle")
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        self.expect_failed(self.client.wait(self.submit().id), DEADLINE_EXCEEDED, "middle", "1 s", "stall_timeout")
        self.assertLess(time.monotonic() - start, 5)
        # It does not obey the cancellation either: its group is replaced.
        self.worker("middle", other_than=pid)
        self.expect_next_succeeds()
        self.assertIn('latentd_worker_restarts_total{group="middle",reason="recycle"}', daemon.metrics())

    def test_progress_extends_the_stall_timer(self):
        self.run_daemon(topologies.noop(relay="steps: 30, step_ms: 50", extra="deadlines: {stall: 700ms}"))
        self.expect_next_succeeds()

    def test_a_request_has_its_own_stall_timeout(self):
        self.run_daemon(topologies.noop(relay="steps: 2, step_ms: 3000"))
        job = self.submit(stall_timeout=Duration(nanos=500_000_000))
        self.expect_failed(self.client.wait(job.id), DEADLINE_EXCEEDED, "middle", "0.5 s")
        self.expect_next_succeeds()

    def test_a_job_past_its_deadline(self):
        self.run_daemon(topologies.noop(relay=SLOW))
        running = self.submit(deadline=Duration(seconds=1))
        queued = [self.submit(deadline=Duration(seconds=2)) for _ in range(3)]
        start = time.monotonic()
        self.expect_failed(self.client.wait(running.id), DEADLINE_EXCEEDED, "deadline", "middle")
        self.assertLess(time.monotonic() - start, 3)
        for job in queued:
            self.expect_failed(self.client.wait(job.id), DEADLINE_EXCEEDED, "deadline")
        self.assertLess(time.monotonic() - start, 5)


class ClientTest(DaemonCase):
    """Clients that go away or stand still are nobody else's business."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(topologies.noop(sink="steps: 10, step_ms: 20", extra="limits: {frames_max: 1025}")))

    def setUp(self):
        self.client = self.enterContext(Client(self.daemon.grpc))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))

    def resident(self):
        status = pathlib.Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        return int(status[status.index("VmRSS:"):].split()[1]) * 1024

    def test_killed_command_lines(self):
        self.expect_next_succeeds()
        done = self.client.jobs.List(api.ListJobsRequest(), timeout=10).jobs[0].id
        before = self.descriptors()
        for arguments in (["submit", "--prompt", "x", "-o", str(self.daemon.folder / "killed.npy")], ["watch", done], ["download", done, "-o", "-"]):
            for delay in (0, 0.02, 0.05, 0.1, 0.3):
                child = subprocess.Popen([find_binary("latentctl"), "--endpoint", self.daemon.grpc, *arguments],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                threading.Event().wait(delay)
                child.kill()
                child.wait(10)
        for job in self.client.jobs.List(api.ListJobsRequest(), timeout=10).jobs:
            self.assertIn(self.client.wait(job.id).state, TERMINAL)
        wait_until(lambda: self.descriptors() <= before + 2, 20, f"descriptors back to {before}")
        self.assertFalse((self.daemon.folder / "killed.npy").exists(), "half a file has another name")

    def test_calls_given_up_by_the_client(self):
        self.expect_next_succeeds()
        before = self.descriptors()
        ids = []
        for _ in range(20):
            with Client(self.daemon.grpc) as other:
                future = other.jobs.Submit.future(api.SubmitRequest(parameters=api.JobParameters(prompt="x", format=api.OUTPUT_FORMAT_NPY)))
                future.cancel()
                ids.append(other.submit().id)
                next(other.jobs.Watch(api.WatchJobRequest(id=ids[-1]), timeout=30))
        for job_id in ids:
            self.assertEqual(self.client.wait(job_id).state, SUCCEEDED, "a client that goes away cancels nothing")
        wait_until(lambda: self.descriptors() <= before + 2, 20, f"descriptors back to {before}")

    def test_a_download_that_is_not_read(self):
        big = self.expect_next_succeeds(frames=33, width=1024, height=1024)
        size = self.client.get(big.id).result_bytes
        self.assertGreater(size, 100_000_000)
        before = self.resident()
        streams = [self.client.jobs.Download(api.DownloadRequest(id=big.id), timeout=60) for _ in range(8)]
        firsts = [next(stream) for stream in streams]
        for _ in range(3):
            self.expect_next_succeeds()
        self.assertLess(self.resident() - before, 64 << 20, "what is not read is not buffered")
        # The result may go while it is read: who has begun gets all of it.
        self.client.jobs.Delete(api.DeleteJobRequest(id=big.id), timeout=10)
        self.assertEqual(len(firsts[0].data) + sum(len(chunk.data) for chunk in streams[0]), size)
        for stream in streams[1:]:
            stream.cancel()
        self.assertEqual(code_of(lambda: self.client.download(big.id))[0], grpc.StatusCode.NOT_FOUND)

    def test_a_cancel_that_comes_at_any_time(self):
        self.expect_next_succeeds()
        for delay in range(0, 300, 20):
            job = self.client.submit()
            threading.Event().wait(delay / 1000)
            self.client.cancel(job.id)
            self.assertIn(self.client.wait(job.id).state, (SUCCEEDED, CANCELLED))
        self.assertFalse([name for name, value in self.daemon.metrics().items() if name.startswith("latentd_slots_in_use") and value])


if __name__ == "__main__":
    unittest.main()
