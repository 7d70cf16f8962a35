"""What tests of daemons under attack share: who runs where, who may be blamed, and that the next job succeeds."""
import unittest

from client import Client, api
from daemon import Daemon, wait_until

FAILED, SUCCEEDED, CANCELLED = api.JOB_STATE_FAILED, api.JOB_STATE_SUCCEEDED, api.JOB_STATE_CANCELLED
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 4, 8, 13, 14
READY = (api.WORKER_STATE_READY, api.WORKER_STATE_BUSY)
SLOW = "step_ms: 100, steps: 100"


def stage_runs(index, step=1):
    """Of a job: its stage number `index` has done so many steps."""
    return lambda job: len(job.stages) > index and job.stages[index].step >= step


class DaemonCase(unittest.TestCase):
    def run(self, result=None):
        self.result = result
        self.failed_before = self.failures()
        return super().run(result)

    def failures(self):
        return 0 if self.result is None else len(self.result.failures) + len(self.result.errors)

    def run_daemon(self, topology, **kwargs):
        daemon = self.enterContext(Daemon(topology, **kwargs))
        # A context that a test entered does not learn that the test failed.
        self.addCleanup(lambda: self.failures() > self.failed_before and print(f"the daemon of {self.id()} said:\n{daemon.log()[-8000:]}"))
        self.client = self.enterContext(Client(daemon.grpc))
        return daemon

    def worker(self, group, states=READY, other_than=None):
        """The pid of the group's worker, once it is in one of these states."""
        def found():
            topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
            return next((w.pid for g in topology.groups if g.name == group for w in g.workers
                         if w.state in states and w.pid > 0 and w.pid != other_than), None)
        return wait_until(found, 60, lambda: f"worker of {group} in state {states}: {self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)}")

    def expect_failed(self, job, code, *words):
        self.assertEqual(job.state, FAILED, job)
        self.assertEqual(job.error.code, code, job.error)
        for word in words:
            self.assertIn(word, job.error.message)

    def expect_lost(self, job, group, what="SIGKILL"):
        self.expect_failed(job, UNAVAILABLE, group, what)

    def expect_next_succeeds(self, **parameters):
        job = self.client.wait(self.client.submit(**parameters).id)
        self.assertEqual(job.state, SUCCEEDED, job.error)
        return job
