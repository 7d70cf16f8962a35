"""Clients that submit, watch and cancel at random while workers are killed: every job ends once, and the counters add up.

    chaos_test.py [--clients 200] [--seconds 60] [--kills 2] [--seed N]    (CI runs a short one)
"""
import argparse
import collections
import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import TERMINAL, Client, api
from daemon import Daemon, processes, wait_until

ARGUMENTS = None
TOPOLOGY = topologies.noop(source="steps: 3, step_ms: 2", relay="steps: 5, step_ms: 3", sink="steps: 2, step_ms: 2",
                           extra="queue: {length_max: 256}\nlimits: {jobs_kept: 100000}")


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.ids, self.rejected, self.errors = set(), 0, []

    def submitted(self, job_id):
        with self.lock:
            self.ids.add(job_id)


def client_life(daemon, tally, seed, end):
    """One client: jobs, watches and cancels at random until the end."""
    rng = random.Random(seed)
    with Client(daemon.grpc) as client:
        while time.monotonic() < end:
            try:
                job = client.submit(priority=rng.randrange(-5, 6))
                tally.submitted(job.id)
                action = rng.random()
                if action < 0.3:
                    client.cancel(job.id)
                elif action < 0.6:
                    client.wait(job.id, timeout=ARGUMENTS.seconds + 120)  # of a low priority as long as others come
                elif action < 0.7:
                    stream = client.jobs.Watch(api.WatchJobRequest(id=job.id), timeout=60)
                    next(stream)
                    stream.cancel()
                time.sleep(rng.random() * 0.3)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
                    with tally.lock:
                        tally.rejected += 1
                    time.sleep(0.05)
                elif error.code() != grpc.StatusCode.FAILED_PRECONDITION:  # cancelled after it had ended
                    with tally.lock:
                        tally.errors.append(str(error))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class ChaosTest(unittest.TestCase):
    def test_every_job_ends_once(self):
        print(f"seed {ARGUMENTS.seed}", flush=True)
        with Daemon(TOPOLOGY) as daemon, Client(daemon.grpc) as client:
            client.wait(client.submit().id)
            before = descriptors(daemon.process.pid)
            end = time.monotonic() + ARGUMENTS.seconds
            tally, threads = self.start_clients(daemon, end)
            rng = random.Random(ARGUMENTS.seed)
            for kill in range(ARGUMENTS.kills):
                wait_until(lambda: time.monotonic() > end - ARGUMENTS.seconds * (1 - (kill + 1) / (ARGUMENTS.kills + 1)), 600, "time of the kill")
                pid, _ = wait_until(lambda: rng.choice(daemon.workers() or [None]), 20, "a worker to kill")
                os.kill(pid, signal.SIGKILL)
            self.join(threads)
            self.assertEqual(tally.errors, [])
            states = collections.Counter()
            for job_id in tally.ids:
                job = client.wait(job_id, timeout=120)
                self.assertIn(job.state, TERMINAL)
                states[job.state] += 1
            self.check_counters(daemon, states, tally)
            self.assertEqual(client.wait(client.submit().id).state, api.JOB_STATE_SUCCEEDED)
            wait_until(lambda: descriptors(daemon.process.pid) <= before + 8, 20,
                       f"descriptors back to {before}, now {descriptors(daemon.process.pid)}")
            self.check_slots(daemon)
            print(f"{len(tally.ids)} jobs, {tally.rejected} refusals, states {dict(states)}")

    def test_a_supervisor_killed_in_the_middle_of_it(self):
        with Daemon(TOPOLOGY) as daemon:
            end = time.monotonic() + min(ARGUMENTS.seconds, 10)
            tally, threads = self.start_clients(daemon, end)
            wait_until(lambda: time.monotonic() > end - 2, 60, "time of the kill")
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait(10)
            wait_until(lambda: not processes(str(daemon.folder)), 1, "workers gone within a second")
            self.join(threads)
            self.assertTrue(tally.ids)
            self.assertEqual(tally.errors, [], "whoever waits is told that the daemon is gone")

    def start_clients(self, daemon, end):
        tally = Tally()
        threads = [threading.Thread(target=client_life, args=(daemon, tally, f"{ARGUMENTS.seed}.{i}", end)) for i in range(ARGUMENTS.clients)]
        for thread in threads:
            thread.start()
        return tally, threads

    def join(self, threads):
        for thread in threads:
            thread.join(ARGUMENTS.seconds + 180)
        self.assertFalse([thread for thread in threads if thread.is_alive()], "a client hangs")

    def check_counters(self, daemon, states, tally):
        metrics = daemon.metrics()
        for state, result in ((api.JOB_STATE_SUCCEEDED, "succeeded"), (api.JOB_STATE_FAILED, "failed"), (api.JOB_STATE_CANCELLED, "cancelled")):
            counted = metrics.get(f'latentd_jobs_total{{result="{result}"}}', 0)
            self.assertEqual(counted, states[state] + (state == api.JOB_STATE_SUCCEEDED), result)
        self.assertEqual(metrics["latentd_queue_depth"], 0)

    def check_slots(self, daemon):
        def in_use():
            return {name: value for name, value in daemon.metrics().items() if name.startswith("latentd_slots_in_use") and value}
        wait_until(lambda: not in_use(), 20, f"slots free: {in_use()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
