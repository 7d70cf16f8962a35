"""Memory, disk, descriptors: who asks for too much is told what and how much; everybody else goes on."""
import pathlib
import resource
import subprocess
import sys
import unittest

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api, code_of
from daemon import Daemon, descriptors, wait_until
from daemon_case import FAILED, RESOURCE_EXHAUSTED, SUCCEEDED, DaemonCase

MIB = 1 << 20
NO_LIMIT = resource.RLIM_INFINITY


def status_bytes(pid, name):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text[text.index(name + ":"):].split()[1]) * 1024


def in_small_folder(folder, size):
    """The command prefix that gives a daemon `size` bytes of disk in `folder`; None where mounting is not allowed."""
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'mkdir -p "{folder}" && mount -t tmpfs -o size={size} none "{folder}" && exec "$@"', "sh"]
    allowed = subprocess.run([word.replace("{folder}", "/tmp") for word in prefix[:3]] + ["true"], capture_output=True, timeout=30).returncode == 0
    return prefix if allowed else None


class MemoryTest(DaemonCase):
    def test_a_job_above_its_group_s_memory_fails_alone(self):
        self.run_daemon(topologies.noop(relay="allocate_bytes: 4294967296, only_prompt: huge", groups="memory_max: 1GiB, "))
        pid = self.worker("middle")
        jobs = [self.client.submit("huge" if index % 3 == 1 else "small").id for index in range(9)]
        for index, job_id in enumerate(jobs):
            job = self.client.wait(job_id)
            if index % 3 == 1:
                self.expect_failed(job, RESOURCE_EXHAUSTED, "middle", "memory_max", "4294967296", "1024 MiB")
            else:
                self.assertEqual(job.state, SUCCEEDED, job.error)
        self.assertEqual(self.worker("middle"), pid, "memory that came back needs no new process")

    def test_what_a_failed_job_took_is_there_for_the_next_one(self):
        daemon = self.run_daemon(topologies.demo().replace("stage: wan.vae_decoder", "stage: wan.vae_decoder, memory_max: 64TiB"))
        pid = self.worker("decode")
        fits, too_large = dict(frames=17, width=128, height=128, steps=1), dict(frames=33, width=256, height=256, steps=1)
        resource.prlimit(pid, resource.RLIMIT_DATA, (status_bytes(pid, "VmData") + 176 * MIB, 64 << 40))  # memory_max stays above
        for _ in range(2):
            self.expect_next_succeeds(**fits)
            self.expect_failed(self.client.wait(self.client.submit(**too_large).id), RESOURCE_EXHAUSTED, "decode", "memory_max")
        self.expect_next_succeeds(**fits)
        self.assertEqual(self.worker("decode"), pid, "it had everything back")
        restarts = {name: value for name, value in daemon.metrics().items() if name.startswith("latentd_worker_restarts_total") and value}
        self.assertEqual(restarts, {})

    def test_a_tensor_above_the_memory_limit(self):
        self.run_daemon(topologies.noop(source="bytes_per_frame: 33554432", groups="memory_max: 768MiB, "))
        self.expect_next_succeeds(frames=1)
        for frames in (33, 101):
            job = self.client.wait(self.client.submit(frames=frames).id)
            self.expect_failed(job, RESOURCE_EXHAUSTED, "first", "768 MiB")
            self.expect_next_succeeds(frames=1)

    def limited(self, group, limit, bytes_max):
        """A daemon one of whose workers gets this limit before its first job; then it is lifted again."""
        self.run_daemon(topologies.noop(source="bytes_per_frame: 16777216"))
        pid = self.worker(group)
        resource.prlimit(pid, limit, (bytes_max(pid), NO_LIMIT))
        job = self.client.wait(self.client.submit(frames=17).id)
        self.expect_failed(job, RESOURCE_EXHAUSTED, group)
        self.assertRegex(job.error.message, r"2[0-9]{8} bytes|[5-9][0-9]{8} bytes")
        self.expect_next_succeeds(frames=1)
        resource.prlimit(pid, limit, (NO_LIMIT, NO_LIMIT))
        # A consumer that could not map a pool asks for it when it is next needed, and has it the time after.
        if self.client.wait(self.client.submit(frames=17).id).state != SUCCEEDED:
            self.assertEqual(group, "middle")
            self.expect_next_succeeds(frames=17)
        self.assertEqual(self.worker(group), pid)

    def test_a_pool_that_cannot_be_allocated(self):
        self.limited("first", resource.RLIMIT_FSIZE, lambda pid: 100 * MIB)

    def test_a_pool_that_cannot_be_mapped_by_its_producer(self):
        self.limited("first", resource.RLIMIT_AS, lambda pid: status_bytes(pid, "VmSize") + 400 * MIB)

    def test_a_pool_that_cannot_be_mapped_by_its_consumer(self):
        self.limited("middle", resource.RLIMIT_AS, lambda pid: status_bytes(pid, "VmSize") + 200 * MIB)


class DiskTest(DaemonCase):
    def spool(self, daemon):
        return pathlib.Path(f"/proc/{daemon.process.pid}/root{daemon.folder}/spool")

    def expect_disk_full(self, daemon, words):
        for format in (api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_Y4M, api.OUTPUT_FORMAT_RGB24, api.OUTPUT_FORMAT_NPY):
            job = self.client.wait(self.client.submit(frames=1025, width=256, height=256, format=format).id)
            self.assertEqual(job.state, FAILED)
            self.assertRegex(job.error.message, words)
            wait_until(lambda: not [path for path in self.spool(daemon).iterdir() if path.suffix != ".lock"], 30, "the space is free again")
            self.expect_next_succeeds(format=format)
            for done in self.client.jobs.List(api.ListJobsRequest(states=[SUCCEEDED]), timeout=30).jobs:
                self.client.jobs.Delete(api.DeleteJobRequest(id=done.id), timeout=30)

    def test_a_full_disk(self):
        prefix = in_small_folder("{folder}/spool", "8m")
        if prefix is None:
            self.skipTest("user namespaces are not allowed here: no small disk can be mounted")
        daemon = self.run_daemon(topologies.noop(extra="spool: {dir: '{folder}/spool'}"), prefix=prefix)
        self.expect_disk_full(daemon, "(?i)no space left.*spool|spool.*no space left")
        job = self.client.wait(self.client.submit(frames=1025, width=512, height=512, format=api.OUTPUT_FORMAT_MP4).id)
        self.assertEqual(job.state, SUCCEEDED, job.error)  # a plain colour compresses

    def test_a_file_size_limit(self):
        daemon = self.run_daemon(topologies.noop(extra="spool: {dir: '{folder}/spool'}"), limits={resource.RLIMIT_FSIZE: 32 * MIB})
        self.expect_disk_full(daemon, "(?i)file too large")
        self.expect_next_succeeds(format=api.OUTPUT_FORMAT_MP4)

    def test_the_bound_of_the_spool(self):
        daemon = self.run_daemon(topologies.noop(extra="spool: {dir: '{folder}/spool', bytes_max: 8MiB}"))
        jobs = [self.expect_next_succeeds(frames=17, width=256, height=256).id for _ in range(6)]  # 3.2 MiB each
        held = sum(path.stat().st_size for path in self.spool(daemon).iterdir())
        self.assertLessEqual(held, 8 * MIB)
        self.assertGreater(held, 6 * MIB)
        code, text = code_of(lambda: self.client.download(jobs[0]))
        self.assertEqual(code, grpc.StatusCode.NOT_FOUND)
        self.assertIn(jobs[0], text)
        self.assertFalse(self.client.get(jobs[0]).result_available)
        self.assertEqual(self.client.video(jobs[-1]).shape, (17, 256, 256, 3))
        job = self.client.wait(self.client.submit(frames=65, width=256, height=256).id)
        self.expect_failed(job, RESOURCE_EXHAUSTED, "spool.bytes_max", "8388608", str(65 * 256 * 256 * 3 + 128))
        self.assertEqual(len(self.client.download(jobs[-1])), 17 * 256 * 256 * 3 + 128, "it pushed nobody out")

    def test_dev_shm_does_not_matter(self):
        prefix = in_small_folder("/dev/shm", "4k")
        if prefix is None:
            self.skipTest("user namespaces are not allowed here: /dev/shm cannot be replaced")
        prefix[5] = prefix[5].replace(' && exec', ' && head -c 4096 /dev/zero > /dev/shm/full && exec')
        self.run_daemon(topologies.noop(source="bytes: 33554432"), prefix=prefix)
        for _ in range(3):
            self.expect_next_succeeds()


class DescriptorTest(DaemonCase):
    def test_too_few_descriptors(self):
        for count in (8, 40, 87):
            with self.subTest(count):
                code, text = Daemon.refused(topologies.noop(), limits={resource.RLIMIT_NOFILE: count})
                self.assertEqual(code, 1, text)
                for word in ("open files", str(count), "88", "ulimit -n"):
                    self.assertIn(word, text)

    def test_just_enough_descriptors(self):
        self.run_daemon(topologies.noop(), limits={resource.RLIMIT_NOFILE: 88})
        jobs = [self.client.submit(format=format).id for format in (api.OUTPUT_FORMAT_NPY, api.OUTPUT_FORMAT_MP4) * 8]
        for job_id in jobs:
            job = self.client.wait(job_id)
            self.assertEqual(job.state, SUCCEEDED, job.error)

    def test_more_clients_than_descriptors(self):
        daemon = self.run_daemon(topologies.noop(), limits={resource.RLIMIT_NOFILE: 128})
        others = [Client(daemon.grpc) for _ in range(200)]
        calls = [other.admin.GetVersion.future(api.GetVersionRequest(), timeout=20) for other in others]
        answered = sum(call.exception() is None for call in calls)
        self.assertGreater(answered, 10)
        for other in others:
            other.channel.close()
        # Whoever comes when there is room again is served.
        def served():
            with Client(daemon.grpc) as client:
                try:
                    return client.wait(client.submit().id, timeout=30).state == SUCCEEDED
                except grpc.RpcError:
                    return False
        wait_until(served, 60, "a job after the crowd has gone")


class FlatTest(DaemonCase):
    def test_jobs_of_changing_sizes_leave_nothing_behind(self):
        daemon = self.run_daemon(topologies.noop(source="bytes: 65536, bytes_per_frame: 32768", extra="limits: {jobs_kept: 40}\nqueue: {length_max: 64}"))
        pids = [daemon.process.pid] + [self.worker(group) for group in ("first", "middle", "last")]
        frames = [1 + 4 * (index * 7 % 20) for index in range(300)]  # 20 sizes, 8 of which get a pool
        # The first 100 fill pools, caches and the table of kept jobs.
        self.run_jobs(frames[:100])
        before = [(status_bytes(pid, "VmRSS"), len(descriptors(pid))) for pid in pids]
        self.run_jobs(frames[100:])
        for pid, (memory, count) in zip(pids, before):
            grown = status_bytes(pid, "VmRSS") - memory
            self.assertLess(grown, 6 * MIB, f"{pid} of {pids}")  # 200 jobs of 1.3 MiB on average: 3 % would show
            wait_until(lambda: len(descriptors(pid)) <= count, 60, lambda: f"descriptors of {pid} of {pids}: {descriptors(pid)} after {count}")
        # Workers count, and say so with their heartbeats.
        def counts():
            edges = self.client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges
            return [(edge.handoffs, edge.slots_in_use) for edge in edges]
        wait_until(lambda: counts() == [(300, 0), (300, 0)], 60, lambda: f"every slot free after 300 hand-offs: {counts()}")

    def run_jobs(self, frames):
        for first in range(0, len(frames), 20):
            jobs = [self.client.submit(frames=count).id for count in frames[first:first + 20]]
            for job_id in jobs:
                job = self.client.wait(job_id)
                self.assertEqual(job.state, SUCCEEDED, job.error)


if __name__ == "__main__":
    unittest.main()
