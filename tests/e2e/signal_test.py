"""SIGTERM and SIGINT: to one worker a loss like any other, to the daemon or to all of its processes a drain, twice an end."""
import os
import pathlib
import signal
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import api
from daemon import at_most, processes, wait_until
from daemon_case import READY, SUCCEEDED, DaemonCase, stage_runs

BOTH = ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT"))
STARTING = (api.WORKER_STATE_STARTING, api.WORKER_STATE_LOADING)


class OneWorkerTest(DaemonCase):
    """As in kill_test.py and fault_test.py, with signals that a process may catch."""

    def group(self, name):
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        return next(group for group in topology.groups if group.name == name)

    def test_idle(self):
        daemon = self.run_daemon(topologies.noop())
        for (number, word), group in zip(BOTH, ("first", "last")):
            pid = self.worker(group)
            os.kill(pid, number)
            self.worker(group, other_than=pid)
            self.expect_next_succeeds()
            self.assertRegex(self.group(group).last_failure.message, f"{group} rank 0 .*: died while ready: signal {word}")
        restarts = {name: value for name, value in daemon.metrics().items() if name.startswith("latentd_worker_restarts_total") and value}
        self.assertEqual(restarts, {f'latentd_worker_restarts_total{{group="{group}",reason="signal"}}': 1 for group in ("first", "last")})

    def test_starting_and_loading_again(self):
        self.run_daemon(topologies.noop(relay="load_ms: 3000"))
        pid = self.worker("middle")
        os.kill(pid, signal.SIGTERM)
        pid = self.worker("middle", STARTING, other_than=pid)
        job = self.client.submit()
        for number, word, states in ((signal.SIGINT, "starting|loading", STARTING), (signal.SIGTERM, "loading", STARTING[1:])):
            pid = self.worker("middle", states)
            os.kill(pid, number)
            wait_until(lambda: self.group("middle").last_failure.message.endswith(signal.Signals(number).name), 30, "it is lost")
            self.assertRegex(self.group("middle").last_failure.message, f"died while ({word}): signal")
            self.worker("middle", (*STARTING, *READY), other_than=pid)
        self.assertEqual(self.client.wait(job.id).state, SUCCEEDED, "it had only waited")
        self.assertEqual(self.group("middle").restarts, 3)

    def test_in_a_step(self):
        self.run_daemon(topologies.noop(relay="step_ms: 50, steps: 0"))
        for number, word in BOTH:
            job, behind = self.client.submit(steps=600), self.client.submit()
            self.client.watch_until(job.id, stage_runs(1))
            self.client.watch_until(behind.id, lambda job: job.stages[0].HasField("finish_time"))
            os.kill(self.worker("middle"), number)
            ended = self.client.wait(job.id, timeout=20)
            self.expect_lost(ended, "middle rank 0", word)
            self.assertIn(f"died while running job {job.id}", ended.error.message)
            self.assertEqual(self.client.wait(behind.id).state, SUCCEEDED, "it had not begun there")

    def test_in_a_step_of_a_job_that_may_be_retried(self):
        self.run_daemon(topologies.noop(relay="step_ms: 50, steps: 100"))
        job = self.client.submit(retries=1)
        self.client.watch_until(job.id, stage_runs(1))
        os.kill(self.worker("middle"), signal.SIGTERM)
        ended = self.client.wait(job.id)
        self.assertEqual((ended.state, ended.restarts), (SUCCEEDED, 1), ended)
        self.assertIn("SIGTERM", ended.restart_cause.message)

    def test_in_the_middle_of_publishing(self):
        self.run_daemon(topologies.noop(source="bytes: 268435456, steps: 2, step_ms: 1"))
        for restarts in (1, 2, 3):
            job = self.client.submit(retries=1)
            self.client.watch_until(job.id, stage_runs(0, 2))
            os.kill(self.worker("first"), signal.SIGTERM)
            ended = self.client.wait(job.id)
            self.assertEqual(ended.state, SUCCEEDED, ended.error)
            # A job may end before its group does.
            wait_until(lambda: self.group("first").restarts == restarts, 30, "it ended the group")
        self.expect_next_succeeds()

    def test_one_of_several_ranks(self):
        text = topologies.noop(relay="sum_bytes: 65536, step_ms: 20, steps: 250")
        self.run_daemon(text.replace("name: middle, ", "name: middle, devices: [cpu, cpu], parallel: {tp: 2}, "))
        for rank, (number, word) in enumerate(BOTH):
            job = self.client.submit(retries=rank)
            self.client.watch_until(job.id, stage_runs(1))
            os.kill(self.group("middle").workers[rank].pid, number)
            ended = self.client.wait(job.id)
            if rank == 0:
                self.expect_lost(ended, "middle rank 0", word)
            else:
                self.assertEqual((ended.state, ended.restarts), (SUCCEEDED, 1), ended)
                self.assertIn("middle rank 1", ended.restart_cause.message)

    def test_an_encoder_goes_on(self):
        daemon = self.run_daemon(topologies.noop(sink="steps: 20, step_ms: 50"))
        job = self.client.submit(format=api.OUTPUT_FORMAT_MP4)

        def encoders():
            return [pid for pid, command in processes(str(daemon.folder)) if command.split(" ")[0].endswith("latent-encoder")]
        os.kill(wait_until(encoders, 60, "an encoder")[0], signal.SIGTERM)
        self.assertEqual(self.client.wait(job.id).state, SUCCEEDED)


class DaemonTest(DaemonCase):
    def drains(self, send, formats=(api.OUTPUT_FORMAT_MP4, api.OUTPUT_FORMAT_NPY)):
        """Jobs in two stages end well after send(daemon), and the daemon in order."""
        # A busy machine takes many seconds for the jobs.
        daemon = self.run_daemon(topologies.noop(relay="step_ms: 50, steps: 20", sink="step_ms: 50, steps: 20",
                                                 extra="deadlines: {shutdown_grace: 1m}"))
        jobs = [self.client.submit(format=format).id for format in formats]
        self.client.watch_until(jobs[-1], stage_runs(1))
        ended, watched = [], threading.Barrier(len(jobs) + 1)

        def watch(job):
            states = self.client.watch(job)
            next(states)
            watched.wait(60)
            ended.append(list(states)[-1])
        watchers = [threading.Thread(target=watch, args=(job,)) for job in jobs]
        for watcher in watchers:
            watcher.start()
        watched.wait(60)
        send(daemon)
        self.assertEqual(daemon.process.wait(60), 0, daemon.log()[-4000:])
        for watcher in watchers:
            watcher.join(60)
        self.assertEqual([job.state for job in ended], [SUCCEEDED] * len(jobs), ended)
        return daemon

    def test_one_ctrl_c_drains(self):
        daemon = self.drains(lambda daemon: os.killpg(daemon.process.pid, signal.SIGINT))
        for said in ("may finish for 30 s, then are cancelled", "ended within 60 s", "ended\n"):
            self.assertIn(said, daemon.log())

    def test_a_signal_to_every_process_drains(self):
        for number, _ in BOTH:
            with self.subTest(number):
                self.drains(lambda daemon: daemon.signal_everything(number))

    def test_a_signal_that_comes_twice_at_once_is_one(self):
        def twice(daemon):
            # `timeout` sends it to the process that it started, and again to its group.
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "shutting down" in daemon.log(), 30, "the first is seen")
            os.killpg(daemon.process.pid, signal.SIGTERM)
        self.drains(twice)

    def test_a_second_one_kills(self):
        for send in (lambda daemon: daemon.process.send_signal(signal.SIGINT), lambda daemon: daemon.signal_everything(signal.SIGTERM)):
            daemon = self.run_daemon(topologies.noop(relay="step_ms: 60000, steps: 10"))
            job = self.client.submit()
            self.client.watch_until(job.id, lambda job: job.state == api.JOB_STATE_RUNNING)
            send(daemon)
            wait_until(lambda: "shutting down" in daemon.log(), 30, "the first is seen")

            def ended():
                # At first it is taken for the first one, which came twice.
                if daemon.process.poll() is None:
                    send(daemon)
                return daemon.process.poll() is not None
            wait_until(ended, at_most(3), "killed by a second signal")
            self.assertEqual(daemon.process.returncode, 3)
            daemon.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
