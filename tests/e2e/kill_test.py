"""Processes that die or hang, one at a time: the job fails with a clear status, the next one succeeds."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api
from daemon import Daemon, at_most, find_binary, processes, wait_until
from daemon_case import FAILED, SLOW, SUCCEEDED, DaemonCase, stage_runs


BY_JOB = "step_ms: 50, steps: 0"  # as many as the job has
LONG = 600  # of a job that ends by a kill, however late that comes


class KillTest(DaemonCase):
    def test_a_worker_killed_while_idle(self):
        daemon = self.run_daemon(topologies.noop())
        for group in ("first", "middle", "last"):
            pid = self.worker(group)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.worker(group) != pid, 60, "respawn")
            self.expect_next_succeeds()
        restarts = {name: value for name, value in daemon.metrics().items() if name.startswith("latentd_worker_restarts_total")}
        self.assertEqual(sum(restarts.values()), 3, restarts)

    def test_a_worker_killed_in_a_step(self):
        for group, index in (("first", 0), ("middle", 1), ("last", 2)):
            options = {"source": "", "relay": "", "sink": ""}
            options[{"first": "source", "middle": "relay", "last": "sink"}[group]] = SLOW
            with self.subTest(group), Daemon(topologies.noop(**options)) as daemon, Client(daemon.grpc) as self.client:
                job = self.client.submit()
                self.client.watch_until(job.id, stage_runs(index))
                os.kill(self.worker(group), signal.SIGKILL)
                start = time.monotonic()
                self.expect_lost(self.client.wait(job.id), group)
                self.assertLess(time.monotonic() - start, at_most(5))

    def test_a_kill_is_told_by_its_cause_alone(self):
        group = "name: middle, stage: noop, "
        for ranks, options in (("", SLOW), (topologies.ranks(2, "tp: 2") + ", ", SLOW + ", sum_bytes: 4096")):
            topology = topologies.noop(relay=options).replace(group, group + ranks)
            with self.subTest(ranks), Daemon(topology) as daemon, Client(daemon.grpc) as self.client:
                job = self.client.submit()
                self.client.watch_until(job.id, stage_runs(1))
                os.kill(self.worker("middle"), signal.SIGKILL)
                self.expect_lost(self.client.wait(job.id), "middle")
                told = [line.split(" ", 3) for line in daemon.log().splitlines() if line.split(" ", 3)[2:3] in (["W"], ["E"])]
                self.assertRegex(told[0][3], "latentd fleet: middle rank 0 .*died while running job .*SIGKILL")
                self.assertEqual([line[3] for line in told if "channel failed" in line[3]], [], "its consequences")
                self.assertRegex(told[-1][3], f"latentd jobs: job {job.id} failed")

    def test_queued_jobs_keep_their_place(self):
        self.run_daemon(topologies.noop(relay=BY_JOB))
        jobs = [self.client.submit(steps=LONG).id, *(self.client.submit().id for _ in range(7))]
        self.client.watch_until(jobs[0], stage_runs(1))
        os.kill(self.worker("middle"), signal.SIGKILL)
        states = [self.client.wait(job).state for job in jobs]
        self.assertEqual(states[0], FAILED)
        self.assertEqual(set(states[1:]), {SUCCEEDED}, "jobs that the group had not begun survive")
        finished = [self.client.get(job).finish_time.ToNanoseconds() for job, state in zip(jobs, states) if state == SUCCEEDED]
        self.assertEqual(finished, sorted(finished))

    def test_a_job_behind_one_that_dies_with_its_worker_runs_again(self):
        daemon = self.run_daemon(topologies.noop(relay=BY_JOB))
        first, second = self.client.submit(steps=LONG).id, self.client.submit().id
        self.client.watch_until(first, stage_runs(1))
        # Its command is queued in the worker: the pipeline has it, and it waits for the group.
        waits = self.client.watch_until(second, lambda job: job.stages[0].HasField("finish_time"))
        self.assertEqual([stage.waiting for stage in waits.stages], [False, True, False], waits)
        self.assertEqual(waits.stages[1].wait_reason, api.WAIT_REASON_GROUP_BUSY)
        self.assertIn("waiting for middle", daemon.ctl("list").stdout)
        shown = daemon.ctl("get", second).stdout
        self.assertRegex(shown, r"waiting for +middle: it runs another job\n")
        self.assertRegex(shown, r"middle +waiting +-")
        os.kill(self.worker("middle"), signal.SIGKILL)
        self.expect_lost(self.client.wait(first), "middle")
        ended = self.client.wait(second)
        self.assertEqual((ended.state, ended.restarts, ended.displacements, ended.retries), (SUCCEEDED, 0, 1, 0), ended)
        self.assertIn("middle", ended.restart_cause.message)
        metrics = daemon.metrics()
        failures = {name: value for name, value in metrics.items() if name.startswith("latentd_stage_failures_total") and value}
        self.assertEqual(failures, {'latentd_stage_failures_total{reason="UNAVAILABLE",stage="middle"}': 1})
        self.assertEqual(metrics["latentd_jobs_retried_total"], 0)
        self.assertEqual(metrics["latentd_jobs_displaced_total"], 1)
        self.assertRegex(daemon.ctl("get", second).stdout, r"displacements +1\nput back by +middle rank 0")
        self.assertEqual(json.loads(daemon.ctl("--json", "get", second).stdout)["displacements"], 1)
        self.assertIn("displaced: middle rank 0", daemon.ctl("watch", second).stderr)

    def test_only_a_job_in_an_earlier_stage_overtakes_a_displaced_one(self):
        self.run_daemon(topologies.noop(sink=f"{BY_JOB}, load_ms: 1000", extra="limits: {in_flight_per_group: 1}"))
        jobs = [self.client.submit(steps=LONG).id, *(self.client.submit().id for _ in range(5))]

        def waits(reason):
            return lambda job: job.stages[1].waiting and job.stages[1].wait_reason == reason

        # The first one is in the last group; the two behind it fill that group's slots, the next two the middle one's.
        self.client.watch_until(jobs[3], waits(api.WAIT_REASON_EDGE_FULL))
        self.client.watch_until(jobs[4], lambda job: job.state == api.JOB_STATE_RUNNING)
        states = self.client.watch(jobs[3])
        next(states)
        os.kill(self.worker("last"), signal.SIGKILL)
        self.assertTrue(any(waits(api.WAIT_REASON_GROUP_NOT_READY)(job) for job in states))
        ended = [self.client.wait(job, timeout=120) for job in jobs]
        self.assertEqual([job.state for job in ended], [FAILED] + [SUCCEEDED] * 5)
        self.assertEqual([job.displacements for job in ended], [0, 1, 1, 0, 0, 0])
        order = sorted(range(1, 6), key=lambda index: ended[index].finish_time.ToNanoseconds())
        self.assertEqual(order, [3, 4, 1, 2, 5], "what was still queued stays behind those that came back")

    def test_a_job_that_may_be_retried_survives_a_worker(self):
        daemon = self.run_daemon(topologies.noop(relay=BY_JOB))
        output = daemon.folder / "x.npy"
        submit = subprocess.Popen([find_binary("latentctl"), "--endpoint", daemon.grpc, "submit", "--prompt", "x", "--steps", "100", "--retry", "-o", output],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.client.jobs.List(api.ListJobsRequest(), timeout=30).jobs, 60, "the job is there")
        first = self.client.jobs.List(api.ListJobsRequest(), timeout=30).jobs[0]
        self.client.watch_until(first.id, stage_runs(1))
        later = self.client.submit()
        states = self.client.watch(first.id)
        next(states)
        os.kill(self.worker("middle"), signal.SIGKILL)
        again = next(job for job in states if job.restarts == 1)
        self.assertEqual((again.state, again.retries), (api.JOB_STATE_QUEUED, 1))
        for word in ("middle", f"died while running job {first.id}, step", "SIGKILL"):
            self.assertIn(word, again.restart_cause.message)
        _, shown = submit.communicate(timeout=180)
        self.assertEqual(submit.returncode, 0, shown)
        self.assertIn("restarted: middle", shown)
        self.assertTrue(output.stat().st_size > 0)
        ended = self.client.get(first.id)
        self.assertEqual((ended.state, ended.restarts, len(ended.transfers)), (SUCCEEDED, 1, 2), ended)
        self.assertEqual(self.client.wait(later.id).state, SUCCEEDED)
        self.assertEqual(daemon.metrics()["latentd_jobs_retried_total"], 1)

    def test_a_job_that_kills_its_workers_is_run_twice_at_most(self):
        daemon = self.run_daemon(topologies.noop(relay="crash_at_step: 0, only_prompt: crash"))
        job = self.client.wait(self.client.submit("crash please", retries=1).id)
        self.expect_lost(job, "middle", "SIGSEGV")
        self.assertEqual(job.restarts, 1)
        self.expect_next_succeeds()
        self.assertEqual(daemon.metrics()["latentd_jobs_retried_total"], 1)

    def test_a_crash_shows_its_signal(self):
        self.run_daemon(topologies.noop(relay="crash_at_step: 0, only_prompt: crash"))
        job = self.client.wait(self.client.submit("crash please").id)
        self.expect_lost(job, "middle", "SIGSEGV")
        self.expect_next_succeeds()

    def test_a_stopped_worker_is_found_by_its_heartbeat(self):
        daemon = self.run_daemon(topologies.noop(extra="deadlines: {heartbeat: 100ms, heartbeat_miss: 3s}"))
        pid = self.worker("middle")
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: self.worker("middle") != pid, 60, "respawn after a missed heartbeat")
        self.expect_next_succeeds()
        self.assertTrue(any("heartbeat" in name for name, value in daemon.metrics().items()
                            if name.startswith("latentd_worker_restarts_total") and value > 0))

    def test_a_killed_supervisor_takes_everything_with_it(self):
        daemon = self.run_daemon(topologies.noop(relay=SLOW))
        job = self.client.submit()
        self.client.watch_until(job.id, stage_runs(1))
        daemon.process.kill()
        daemon.process.wait(30)
        wait_until(lambda: not processes(str(daemon.folder)), at_most(1), lambda: f"workers gone within a second: {processes(str(daemon.folder))}")
        # Nobody was left to remove the private folder: the next start does.
        left = list(daemon.folder.glob("latentd-*"))
        self.assertTrue(left)
        with Daemon(topologies.noop(), environment={"XDG_RUNTIME_DIR": str(daemon.folder)}):
            self.assertFalse([path for path in left if path.exists()])

    def test_a_stopped_supervisor_does_not_stop_the_hand_off(self):
        daemon = self.run_daemon(topologies.noop(source="step_ms: 300, steps: 10", relay="step_ms: 20"))
        middle = self.worker("middle")
        job = self.client.submit()
        self.client.watch_until(job.id, stage_runs(0))
        before = cpu_seconds(middle)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            # The relay's steps burn processor time: it got its input while the supervisor stood still.
            wait_until(lambda: cpu_seconds(middle) - before > 0.03, 60, "the consumer ran its steps")
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        ended = self.client.wait(job.id)
        self.assertEqual(ended.state, SUCCEEDED, ended.error)

    def test_one_port_two_daemons(self):
        daemon = self.run_daemon(topologies.noop())
        result = subprocess.run([find_binary("latentd"), "--config", str(daemon.folder / "topology.yaml"), "--listen", daemon.grpc,
                                 "--http", "127.0.0.1:0", "--worker-binary", find_binary("latent-worker")],
                                capture_output=True, text=True, timeout=120)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(str(daemon.process.pid), result.stderr + result.stdout)
        self.expect_next_succeeds()


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    unittest.main()
