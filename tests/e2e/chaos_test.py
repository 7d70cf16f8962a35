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
from daemon import Daemon, at_most, descriptors, processes, wait_until

ARGUMENTS = None
QUEUE_FULL, INVALID, UNAVAILABLE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
IN_QUIET = 20  # jobs at once between two looks at a process


def topology():
    """A queue that is full at times: nobody waits for a third of the jobs."""
    return topologies.noop(source="steps: 3, step_ms: 2", relay="steps: 5, step_ms: 3", sink="steps: 2, step_ms: 2",
                           extra=f"queue: {{length_max: {max(IN_QUIET, ARGUMENTS.clients)}}}\nlimits: {{jobs_kept: 100000}}")


class Tally:
    """What the clients saw: ids of accepted jobs, ends of those that were waited for, refused submissions by code."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ids, self.ends, self.refused, self.errors = set(), {}, collections.Counter(), []

    def submitted(self, job_id):
        with self.lock:
            self.ids.add(job_id)

    def ended(self, job):
        with self.lock:
            self.ends[job.id] = end_of(job)

    def refusal(self, code):
        with self.lock:
            self.refused[code] += 1

    def error(self, error):
        with self.lock:
            self.errors.append(str(error))


def end_of(job):
    """What may not change once a job has ended."""
    return job.state, job.error.code, job.error.message, job.finish_time.ToNanoseconds()


def submit(client, tally, rng):
    """A job, or None where the daemon refused it. One in twenty asks for too much."""
    parameters = {"steps": 1_000_000} if rng.random() < 0.05 else {}
    try:
        job = client.submit(priority=rng.randrange(-5, 6), **parameters)
    except grpc.RpcError as error:
        tally.refusal(error.code())
        if error.code() not in (QUEUE_FULL, UNAVAILABLE) and not (error.code() == INVALID and parameters):
            tally.error(error)
        time.sleep(0.05)
        return None
    tally.submitted(job.id)
    return job


def client_life(daemon, tally, seed, end):
    """One client: jobs, watches and cancels at random until the end."""
    rng = random.Random(seed)
    with Client(daemon.grpc) as client:
        while time.monotonic() < end:
            job = submit(client, tally, rng)
            if job is None:
                continue
            try:
                action = rng.random()
                if action < 0.3:
                    client.cancel(job.id)
                elif action < 0.6:
                    tally.ended(client.wait(job.id, timeout=ARGUMENTS.seconds + 120))  # of a low priority as long as others come
                elif action < 0.7:
                    stream = client.jobs.Watch(api.WatchJobRequest(id=job.id), timeout=60)
                    next(stream)
                    stream.cancel()
                time.sleep(rng.random() * 0.3)
            except grpc.RpcError as error:
                # A watch too many, a daemon that was killed, a job cancelled after it had ended.
                if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                    tally.error(error)
                time.sleep(0.05)


def open_and_shared(pid):
    """How many descriptors a process has open, and how many of them are shared memory."""
    targets = descriptors(pid)
    return len(targets), sum(target.startswith("/memfd:") for target in targets)


class ChaosTest(unittest.TestCase):
    def test_every_job_ends_once(self):
        print(f"seed {ARGUMENTS.seed}", flush=True)
        with Daemon(topology()) as daemon, Client(daemon.grpc) as client:
            client.wait(client.submit().id)
            before = len(descriptors(daemon.process.pid))
            end = time.monotonic() + ARGUMENTS.seconds
            tally, threads = self.start_clients(daemon, end)
            rng = random.Random(ARGUMENTS.seed)
            for kill in range(ARGUMENTS.kills):
                wait_until(lambda: time.monotonic() > end - ARGUMENTS.seconds * (1 - (kill + 1) / (ARGUMENTS.kills + 1)), 600, "time of the kill")
                pid, _ = wait_until(lambda: rng.choice(daemon.workers() or [None]), 60, "a worker to kill")
                os.kill(pid, rng.choice((signal.SIGKILL, signal.SIGTERM)))
            self.join(threads)
            self.assertEqual(tally.errors, [])
            ends = {job_id: end_of(client.wait(job_id, timeout=120)) for job_id in tally.ids}
            self.check_counters(daemon, ends, tally)
            self.check_quiet(daemon, client)
            wait_until(lambda: len(descriptors(daemon.process.pid)) <= before + 8, 60,
                       lambda: f"the daemon's {before} descriptors, now {descriptors(daemon.process.pid)}")
            self.check_slots(daemon)
            self.assertEqual({job_id: end_of(client.get(job_id)) for job_id in tally.ids}, ends, "an end is the end")
            self.assertEqual({job_id: ends[job_id] for job_id in tally.ends}, tally.ends, "also what was seen at once")
            states = collections.Counter(api.JobState.Name(end[0]) for end in ends.values())
            print(f"{len(tally.ids)} jobs, refusals {dict(tally.refused)}, states {dict(states)}")

    def test_a_supervisor_killed_in_the_middle_of_it(self):
        with Daemon(topology()) as daemon:
            end = time.monotonic() + min(ARGUMENTS.seconds, 10)
            tally, threads = self.start_clients(daemon, end)
            wait_until(lambda: time.monotonic() > end - 2, 60, "time of the kill")
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait(30)
            wait_until(lambda: not processes(str(daemon.folder)), at_most(1), lambda: f"workers gone within a second: {processes(str(daemon.folder))}")
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

    def check_counters(self, daemon, ends, tally):
        """The daemon counted what the clients saw, and one job before them."""
        metrics = daemon.metrics()
        states = collections.Counter(end[0] for end in ends.values())
        self.assertTrue(set(states) <= TERMINAL, states)
        for state, result in ((api.JOB_STATE_SUCCEEDED, "succeeded"), (api.JOB_STATE_FAILED, "failed"), (api.JOB_STATE_CANCELLED, "cancelled")):
            counted = metrics[f'latentd_jobs_total{{result="{result}"}}']
            self.assertEqual(counted, states[state] + (state == api.JOB_STATE_SUCCEEDED), result)
        self.assertEqual(metrics["latentd_jobs_submitted_total"], len(tally.ids) + 1)
        rejected = {reason: metrics[f'latentd_jobs_rejected_total{{reason="{reason}"}}'] for reason in ("queue_full", "invalid", "draining", "not_ready")}
        self.assertEqual(rejected, {"queue_full": tally.refused[QUEUE_FULL], "invalid": tally.refused[INVALID], "draining": 0,
                                    "not_ready": tally.refused[UNAVAILABLE]})
        self.assertEqual((metrics["latentd_queue_depth"], metrics["latentd_jobs_running"]), (0, 0))

    def check_quiet(self, daemon, client):
        """Jobs that nobody disturbs all succeed and leave no descriptor and no shared memory, in whatever process."""
        def run():
            for job in [client.submit() for _ in range(IN_QUIET)]:
                self.assertEqual(client.wait(job.id).state, api.JOB_STATE_SUCCEEDED)

        def used():
            return {pid: open_and_shared(pid) for pid in [daemon.process.pid, *(pid for pid, _ in daemon.workers())]}

        run()  # a worker that was killed at last makes its pools
        there = used()
        self.assertEqual(len(there), 4, "the daemon and three workers")
        for _ in range(3):
            run()
            # A file descriptor of a call that ends is closed a moment after its answer.
            wait_until(lambda: all(now <= then for name in there for now, then in zip(used()[name], there[name])), 60,
                       lambda: f"descriptors and shared memory as they were: {there}, now {used()}")

    def check_slots(self, daemon):
        def in_use():
            return {name: value for name, value in daemon.metrics().items() if name.startswith("latentd_slots_in_use") and value}
        wait_until(lambda: not in_use(), 60, lambda: f"slots free: {in_use()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
