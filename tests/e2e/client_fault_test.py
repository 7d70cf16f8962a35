"""Clients that go away, stand still or change their mind: nobody else notices, nothing is left of them."""
import pathlib
import subprocess
import sys
import threading
import unittest

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import TERMINAL, Client, api, code_of
from daemon import Daemon, descriptors, find_binary, wait_until
from daemon_case import CANCELLED, SUCCEEDED, DaemonCase


class ClientTest(DaemonCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(topologies.noop(sink="steps: 10, step_ms: 20", extra="limits: {frames_max: 1025}")))

    def setUp(self):
        self.client = self.enterContext(Client(self.daemon.grpc))

    def descriptors(self):
        return len(descriptors(self.daemon.process.pid))

    def resident(self):
        status = pathlib.Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        return int(status[status.index("VmRSS:"):].split()[1]) * 1024

    def test_killed_command_lines(self):
        self.expect_next_succeeds()
        done = self.client.jobs.List(api.ListJobsRequest(), timeout=30).jobs[0].id
        before = self.descriptors()
        for arguments in (["submit", "--prompt", "x", "-o", str(self.daemon.folder / "killed.npy")], ["watch", done], ["download", done, "-o", "-"]):
            for delay in (0, 0.02, 0.05, 0.1, 0.3):
                child = subprocess.Popen([find_binary("latentctl"), "--endpoint", self.daemon.grpc, *arguments],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                threading.Event().wait(delay)
                child.kill()
                child.wait(30)
        for job in self.client.jobs.List(api.ListJobsRequest(), timeout=30).jobs:
            self.assertIn(self.client.wait(job.id).state, TERMINAL)
        wait_until(lambda: self.descriptors() <= before + 2, 60, lambda: f"descriptors back to {before}: {self.descriptors()}")
        self.assertFalse((self.daemon.folder / "killed.npy").exists(), "half a file has another name")
        self.daemon.ctl("download", done, "-o", self.daemon.folder / "killed.npy")
        self.assertEqual([path.name for path in self.daemon.folder.iterdir() if "killed" in path.name], ["killed.npy"])

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
        wait_until(lambda: self.descriptors() <= before + 2, 60, lambda: f"descriptors back to {before}: {self.descriptors()}")

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
        self.client.jobs.Delete(api.DeleteJobRequest(id=big.id), timeout=30)
        self.assertEqual(len(firsts[0].data) + sum(len(chunk.data) for chunk in streams[0]), size)
        for stream in streams[1:]:
            stream.cancel()
        self.assertEqual(code_of(lambda: self.client.download(big.id))[0], grpc.StatusCode.NOT_FOUND)

    def test_a_cancel_that_comes_at_any_time(self):
        self.expect_next_succeeds()
        ended = []
        for delay in (*range(0, 300, 20), None):
            job = self.client.submit()
            if delay is None:
                self.client.wait(job.id)
            else:
                threading.Event().wait(delay / 1000)
            try:
                self.client.cancel(job.id)
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.FAILED_PRECONDITION, "it had ended")
            ended.append(self.client.wait(job.id).state)
        self.assertEqual(set(ended), {SUCCEEDED, CANCELLED})

        def in_use():
            return {name: value for name, value in self.daemon.metrics().items() if name.startswith("latentd_slots_in_use") and value}
        # Workers count, and say so with their heartbeats.
        wait_until(lambda: not in_use(), 60, lambda: f"slots free: {in_use()}")


if __name__ == "__main__":
    unittest.main()
