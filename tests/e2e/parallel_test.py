"""Groups of several ranks in a whole daemon: the same videos as one rank makes, and what happens when one of the ranks is
cancelled, fails, dies or hangs in the middle of the others' collectives.

    parallel_test.py [--kills 50] [--seed N]    (CI runs a few kills)
"""
import argparse
import json
import os
import pathlib
import random
import signal
import sys
import unittest

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api
from daemon import Daemon, find_binary, script, wait_until
from daemon_case import CANCELLED, DEADLINE_EXCEEDED, FAILED, INTERNAL, READY, SUCCEEDED, DaemonCase, stage_runs

ARGUMENTS = None
MIDDLE = topologies.ranks(2, "tp: 2") + ", "
LONG = "sum_bytes: 65536, step_ms: 20, steps: 200"
SHORT = "sum_bytes: 65536, steps: 20"


def two_ranks(options, extra=""):
    """Three noop groups; the one in the middle has two ranks, which sum up a tensor in each step."""
    text = topologies.noop(relay=options, extra=extra)
    assert text.count("name: middle, stage: noop, ") == 1
    return text.replace("name: middle, stage: noop, ", "name: middle, stage: noop, " + MIDDLE)


class RanksCase(DaemonCase):
    def group(self, name="middle"):
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        return next(group for group in topology.groups if group.name == name)

    def ranks(self, epoch=1, name="middle"):
        """The pids of the group by rank, once all are ready in this epoch or a later one."""
        def found():
            group = self.group(name)
            ready = group.epoch >= epoch and all(worker.state in READY and worker.pid > 0 for worker in group.workers)
            return [worker.pid for worker in group.workers] if ready else None
        return wait_until(found, 60, lambda: f"{name} ready in epoch {epoch}: {self.group(name)}")

    def records(self, name="middle"):
        return self.client.admin.GetFlightRecords(api.GetFlightRecordsRequest(group=name), timeout=30).groups

    def verdict(self, name="middle"):
        return self.records(name)[0].verdict


class NoopRanksTest(RanksCase):
    def test_what_ranks_exchange_is_shown_and_counted(self):
        daemon = self.run_daemon(two_ranks(SHORT))
        self.expect_next_succeeds()
        shown = daemon.ctl("topology").stdout
        self.assertIn("mesh of middle: tp 2 over gloo (its ranks are on the CPU)", shown)
        self.assertRegex(shown, r"middle +noop +1 +tp 1 +cpu")
        dump = daemon.ctl("dump", "middle").stdout
        self.assertIn("middle, epoch 1", dump)
        self.assertIn("all_reduce", dump)
        records = json.loads(daemon.ctl("--json", "dump").stdout)["groups"][0]
        self.assertEqual(records["verdict"], "", "nobody waits")
        # A sum in the warm-up and in each step; each rank gives half of it twice.
        self.assertEqual([(rank["operations"], rank["bytes_sent"]) for rank in records["ranks"]], [("21", str(21 * 65536))] * 2)
        for name, expected in (("operations", 21), ("bytes", 21 * 65536)):
            for rank in (0, 1):
                key = f'latentd_mesh_{name}_total{{group="middle",rank="{rank}"}}'
                wait_until(lambda: daemon.metrics()[key] == expected, 10, lambda: f"{key}: {daemon.metrics()[key]}")
        self.assertNotIn('latentd_mesh_bytes_total{group="first",rank="0"}', daemon.metrics())
        for group, words in (("first", "one rank"), ("nobody", "no group")):
            refused = daemon.ctl("dump", group, check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(words, refused.stderr)

    def test_a_cancel_stops_all_ranks_at_one_step_and_the_group_goes_on(self):
        self.run_daemon(two_ranks(LONG))
        pids = self.ranks()
        for step in (1, 3):
            job = self.client.submit()
            self.client.watch_until(job.id, stage_runs(1, step))
            self.client.cancel(job.id)
            self.assertEqual(self.client.wait(job.id).state, CANCELLED)
        self.assertEqual((self.ranks(), self.group().restarts), (pids, 0))

    def test_a_killed_rank_ends_its_group_at_once_and_the_group_comes_back(self):
        daemon = self.run_daemon(two_ranks(LONG))
        for epoch, rank in enumerate((1, 0), start=1):
            job = self.client.submit()
            self.client.watch_until(job.id, stage_runs(1))
            os.kill(self.ranks(epoch)[rank], signal.SIGKILL)
            lost = self.client.wait(job.id, timeout=60)
            self.expect_lost(lost, f"middle rank {rank}")
            self.assertIn("of 200 steps done", lost.error.message)
            self.ranks(epoch + 1)
            # What its ranks had done stays as it was, beside what they do now.
            present, last = self.records()
            self.assertEqual((present.epoch, present.ended, last.epoch, last.ended), (epoch + 1, False, epoch, True))
            self.assertIn(f"middle rank {rank}", last.cause.message)
            self.assertGreater(last.ranks[rank].operations, 1)
            self.assertEqual(last.ranks[rank].recent[-1].run, 1)
            self.assertEqual(last, self.records()[1])
            self.assertRegex(daemon.ctl("dump", "middle").stdout, rf"middle, epoch {epoch}, which failed [\d.]+ s ago, at [-: \d]+: UNAVAILABLE: middle rank {rank} ")
        self.assertIn("middle: rank 0: ", daemon.log(), "what the ranks did last is in the log")
        folders = [path.name for path in daemon.folder.glob("latentd-*/ranks-*")]
        self.assertEqual(folders, ["ranks-1-3"], "of the epochs that are over nothing is left")

    def test_a_job_may_be_retried_after_a_rank_died(self):
        self.run_daemon(two_ranks("sum_bytes: 65536, step_ms: 20, steps: 150"))
        job = self.client.submit(retries=1)
        self.client.watch_until(job.id, stage_runs(1))
        os.kill(self.ranks()[1], signal.SIGKILL)
        ended = self.client.wait(job.id)
        self.assertEqual((ended.state, ended.restarts), (SUCCEEDED, 1), ended)
        self.assertIn("middle rank 1", ended.restart_cause.message)

    def test_a_rank_that_fails_alone_is_the_cause(self):
        for rank in (0, 1):
            with self.subTest(rank):
                self.run_daemon(two_ranks(f"{SHORT}, fail_at_step: 7, only_rank: {rank}, only_prompt: bad"))
                self.expect_failed(self.client.wait(self.client.submit("a bad one").id), INTERNAL,
                                   f"stage middle (noop), rank {rank}, step 7", "option fail_at_step is 7")
                self.ranks(epoch=2)
                self.expect_next_succeeds()

    def test_a_rank_that_cannot_start_is_the_cause(self):
        code, said = Daemon.refused(two_ranks(f"{SHORT}, fail_load: true, only_rank: 1"))
        self.assertEqual(code, 1)
        self.assertIn("middle rank 1 (noop), loading: loading noop: stage noop: option fail_load is true", said.splitlines()[-1])

    def test_ranks_that_load_at_different_speeds_wait_for_each_other(self):
        self.run_daemon(two_ranks(f"{SHORT}, load_ms: 5000, only_rank: 0", extra="deadlines: {collective: 3s}"))
        self.expect_next_succeeds()

    def test_a_stopped_rank_is_named_while_it_hangs_and_by_the_deadline(self):
        daemon = self.run_daemon(two_ranks(LONG, extra="deadlines: {collective: 3s, heartbeat_miss: 1m}"))
        job = self.client.submit()
        self.client.watch_until(job.id, stage_runs(1))
        stopped = self.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(self.verdict, 20, "a rank waits")
        self.assertRegex(self.verdict(), r"^rank 0 waits in all_reduce \d+ of \w+ for \d+\.\d\d s, which rank 1 has not begun$")
        self.assertIn("under way for", daemon.ctl("dump", "middle").stdout)
        self.expect_failed(self.client.wait(job.id), DEADLINE_EXCEEDED, "stage middle (noop), rank 0", "all_reduce",
                           "3000 ms (deadlines.collective); rank 0 waits in all_reduce", "which rank 1 has not begun")
        self.assertNotEqual(self.ranks(epoch=2)[1], stopped)
        self.assertIn("which rank 1 has not begun", daemon.log())
        self.assertFalse(pathlib.Path(f"/proc/{stopped}").exists())

    def test_a_stopped_rank_is_found_by_its_heartbeat(self):
        self.run_daemon(two_ranks(LONG, extra="deadlines: {heartbeat: 100ms, heartbeat_miss: 3s, collective: 1m}"))
        job = self.client.submit()
        self.client.watch_until(job.id, stage_runs(1))
        os.kill(self.ranks()[0], signal.SIGSTOP)
        self.expect_failed(self.client.wait(job.id, timeout=60), 14, "middle rank 0", "no heartbeat")
        self.ranks(epoch=2)

    def test_random_kills_in_a_row(self):
        print(f"seed {ARGUMENTS.seed}", flush=True)
        rng = random.Random(ARGUMENTS.seed)
        daemon = self.run_daemon(two_ranks("sum_bytes: 65536, step_ms: 2, steps: 0",
                                           extra="deadlines: {collective: 10s}").replace("backoff_min: 50ms, backoff_max: 1s",
                                                                                         "backoff_min: 10ms, backoff_max: 50ms, failures_max: 1000"))
        for kill in range(1, ARGUMENTS.kills + 1):
            pids = self.ranks(epoch=kill)
            job = self.client.submit(steps=1000)  # which ends by the kill, however late that comes
            step = rng.randrange(0, 200)
            self.client.watch_until(job.id, lambda job: len(job.stages) > 1 and (job.stages[1].step >= step or job.stages[1].HasField("finish_time")))
            rank = rng.randrange(2)
            os.kill(pids[rank], signal.SIGKILL)
            ended = self.client.wait(job.id, timeout=30)
            self.assertEqual((ended.state, "SIGKILL" in ended.error.message), (FAILED, True), f"kill {kill}: {ended}")
            self.assertIn(f"middle rank {rank}", ended.error.message, f"kill {kill}")
        self.ranks(epoch=ARGUMENTS.kills + 1)
        self.expect_next_succeeds()
        self.assertEqual(self.group().restarts, ARGUMENTS.kills)
        self.assertEqual(len(list(daemon.folder.glob("latentd-*/ranks-*"))), 1)


CONFINED = "its ranks cannot share memory: rank 1: the process of rank 0: pidfd_open: Operation not permitted"
# The denoiser has four ranks there.
SHIPPED = (ROOT / "configs" / "parallel-cpu.yaml").read_text().replace("model: ", "model: {root}/configs/")


class DemoRanksTest(RanksCase):
    """The demo model, its denoiser on several ranks."""
    SMALL = {"frames": 5, "width": 64, "height": 64, "steps": 4, "seed": 11, "guidance_scale": 2.5, "float_pixels": True}

    def video(self):
        job = self.expect_next_succeeds(**self.SMALL)
        return self.client.video(job.id)

    @staticmethod
    def ulysses(transport="auto"):
        return topologies.demo(denoiser=topologies.ranks(2, "ulysses: 2") + f", ulysses_transport: {transport}")

    def test_every_topology_makes_the_video_of_one_rank(self):
        with Daemon(topologies.demo()) as daemon, Client(daemon.grpc) as self.client:
            alone = self.video()
        for name, topology, transport, reason in (("cfg", topologies.demo(denoiser=topologies.ranks(2, "cfg: 2")), "", ""),
                                                  ("cfg x ulysses", SHIPPED, "shm", "its ranks are on the CPU"),
                                                  ("ulysses", self.ulysses(), "shm", "its ranks are on the CPU"),
                                                  ("ulysses over c10d", self.ulysses("c10d"), "c10d", "the topology says so"),
                                                  ("ulysses where a rank is confined", self.ulysses(), "c10d", CONFINED)):
            flags = {"--worker-binary": self.confined_worker()} if reason == CONFINED else {}
            with self.subTest(name), Daemon(topology, flags=flags) as daemon, Client(daemon.grpc) as self.client:
                video = self.video()
                self.assertEqual(video.shape, alone.shape)
                self.assertLessEqual(float(numpy.abs(video - alone).max()), 5e-5)
                records = json.loads(daemon.ctl("--json", "dump", "denoise").stdout)["groups"][0]
                self.assertTrue(all(int(rank["bytes_sent"]) > 0 for rank in records["ranks"]), "the ranks worked together")
                self.expect_scattered(daemon, records, transport, reason)

    def expect_scattered(self, daemon, records, transport, reason):
        """Over this transport, for this reason; an empty one: not at all."""
        group = self.group("denoise")
        self.assertEqual((group.ulysses_transport, group.ulysses_transport_reason), (transport, reason))
        taken = [name for name, value in daemon.metrics().items() if name.startswith("latentd_ulysses_info") and value]
        self.assertEqual(taken, [f'latentd_ulysses_info{{group="denoise",transport="{transport}"}}'] if transport else [])
        if transport:
            self.assertIn(f"heads scattered over {transport} ({reason})", daemon.ctl("topology").stdout)
            kinds = {"c10d": {"all_to_all"}, "shm": {"scatter_q", "scatter_k", "scatter_v"}}[transport]
            self.assertLessEqual(kinds, {operation["kind"] for operation in records["ranks"][0]["recent"]})
        if reason == CONFINED:
            self.assertIn(reason.removeprefix("its ranks cannot share memory: "), daemon.log())

    def confined_worker(self):
        """The worker, whose rank 1 may get no handle of another process, as in some containers: a filter of system calls
        answers pidfd_open (434 on every architecture) with EPERM."""
        return script(self, f"""#!{sys.executable}
import ctypes, errno, os, struct, sys
if sys.argv[1:] and "--rank 1" in " ".join(sys.argv):
    load, jump_unless_equal, give = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 0), (jump_unless_equal, 0, 1, 434), (give, 0, 0, 0x50000 | errno.EPERM), (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    program = struct.pack("@HP", 4, ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0
os.execv({find_binary("latent-worker")!r}, sys.argv)
""")

    def test_direct_writes_that_were_asked_for_and_are_impossible_end_the_start(self):
        code, said = Daemon.refused(self.ulysses("shm"), flags={"--worker-binary": self.confined_worker()})
        self.assertEqual(code, 1)
        for words in (CONFINED.removeprefix("its ranks cannot share memory: "), "ulysses_transport", "auto"):
            self.assertIn(words, said.splitlines()[-1])

    def test_cancel_and_kill_in_the_middle_of_a_step(self):
        self.run_daemon(SHIPPED)
        long = {**self.SMALL, "steps": 100}
        job = self.client.submit(**long)
        self.client.watch_until(job.id, stage_runs(1, 2))
        self.client.cancel(job.id)
        self.assertEqual(self.client.wait(job.id).state, CANCELLED)
        self.assertEqual(self.group("denoise").restarts, 0)
        job = self.client.submit(**long)
        self.client.watch_until(job.id, stage_runs(1, 2))
        os.kill(self.ranks(name="denoise")[2], signal.SIGKILL)
        self.expect_lost(self.client.wait(job.id, timeout=20), "denoise rank 2")
        self.ranks(epoch=2, name="denoise")
        self.video()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
