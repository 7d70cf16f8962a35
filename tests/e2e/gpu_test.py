"""latentd on one GPU that several workers share: a video, edges in device memory and through the host, faults, and no
wait of a host for its device in steady hand-offs. Needs a GPU: bazel test --config=gpu //tests/e2e:gpu_test."""
import os
import pathlib
import signal
import struct
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import api
from daemon import find_binary, wait_until
from daemon_case import RESOURCE_EXHAUSTED, SLOW, SUCCEEDED, DaemonCase, stage_runs

ON_GPU = 'devices: ["cuda:0"], '
PROMPT = "a red circle moving right"


def demo(*stages):
    """The demo in float32 with these of its stages on the GPU."""
    return topologies.demo(**{stage: 'devices: ["cuda:0"]' for stage in stages})


class GpuTest(DaemonCase):
    def video(self, **parameters):
        job = self.client.wait(self.client.submit(PROMPT, seed=3, float_pixels=True, **parameters).id)
        self.assertEqual(job.state, SUCCEEDED, job.error)
        return self.client.video(job.id)

    def transports(self):
        edges = self.client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges
        return {edge.name: edge.transport for edge in edges}

    def test_the_video_is_the_cpus_wherever_the_stages_are(self):
        self.run_daemon(demo())
        reference = self.video()
        cases = {
            ("text_encoder", "denoiser", "vae_decoder"): ["cuda_ipc", "cuda_ipc"],
            ("denoiser",): ["pinned", "pinned"],
            ("text_encoder", "denoiser"): ["cuda_ipc", "pinned"],
            ("denoiser", "vae_decoder"): ["pinned", "cuda_ipc"],
        }
        for stages, transports in cases.items():
            with self.subTest(stages=stages):
                self.run_daemon(demo(*stages))
                self.assertEqual(list(self.transports().values()), transports)
                difference = abs(self.video() - reference).max()
                self.assertLess(difference, 5e-5)

    def test_bfloat16_gives_the_same_video_each_time_and_after_a_respawn(self):
        text = (ROOT / "configs" / "one-gpu.yaml").read_text().replace("model: ", "model: {root}/configs/")
        self.run_daemon(text)
        first = self.video()
        self.assertTrue((self.video() == first).all())
        pid = self.worker("denoise")
        os.kill(pid, signal.SIGKILL)
        self.worker("denoise", other_than=pid)
        self.assertTrue((self.video() == first).all())

    def test_a_job_that_does_not_fit_the_device_fails_alone(self):
        self.run_daemon(topologies.noop(relay="allocate_bytes: 1000000000000, only_prompt: large", groups=ON_GPU))
        pid = self.worker("middle")
        self.expect_next_succeeds()
        job = self.client.wait(self.client.submit("a large one").id)
        self.expect_failed(job, RESOURCE_EXHAUSTED, "out of memory", "cuda:0", "MiB", "free")
        self.expect_next_succeeds()
        self.assertEqual(self.worker("middle"), pid)

    def test_a_worker_that_dies_in_a_step_takes_its_job_and_nothing_else(self):
        daemon = self.run_daemon(topologies.noop(relay=SLOW, groups=ON_GPU))
        job = self.client.submit()
        self.client.watch_until(job.id, stage_runs(1))
        pid = self.worker("middle")
        os.kill(pid, signal.SIGKILL)
        self.expect_lost(self.client.wait(job.id), "middle")
        self.worker("middle", other_than=pid)
        quick = self.client.submit()
        self.client.watch_until(quick.id, stage_runs(1))
        self.client.cancel(quick.id)
        self.assertEqual(self.client.wait(quick.id).state, api.JOB_STATE_CANCELLED)
        self.assertIn('latentd_device_memory_bytes{device="cuda:0",kind="pools"}', daemon.metrics())

    def test_hand_offs_do_not_make_a_host_wait_for_its_device(self):
        """A run waits once for its one step; receiving, publishing and acknowledging add nothing, torch's part included."""
        counter = pathlib.Path(find_binary("latent-worker")).resolve().parents[1] / "tests/channel/cuda/libcount_synchronise.so"
        with tempfile.TemporaryDirectory(prefix="ld") as folder:
            self.run_daemon(topologies.noop("bytes: 1048576", "check: false", "check: false", groups=ON_GPU),
                            environment={"LD_PRELOAD": str(counter), "LATENTD_COUNT_SYNCHRONISE": folder})
            workers = [self.worker(group) for group in ("first", "middle", "last")]

            def counts():
                """By worker; one that never waited has no file."""
                files = [pathlib.Path(folder) / str(pid) for pid in workers]
                return [struct.unpack("q", file.read_bytes())[0] if file.exists() else 0 for file in files]

            for _ in range(10):
                self.expect_next_succeeds()
            before = counts()
            for _ in range(100):
                self.expect_next_succeeds()
            for count, earlier in zip(counts(), before):
                self.assertLessEqual(count - earlier, 100)

    def test_what_a_gpu_holds_is_told(self):
        daemon = self.run_daemon(demo("text_encoder", "denoiser", "vae_decoder"))
        self.video()

        def told():
            metrics = daemon.metrics()
            values = {kind: metrics.get(f'latentd_device_memory_bytes{{device="cuda:0",kind="{kind}"}}')
                      for kind in ("allocated", "reserved", "pools")}
            return values if all(values.values()) else None
        values = wait_until(told, 60, "memory of cuda:0 by kind")
        self.assertGreaterEqual(values["reserved"], values["allocated"])
        self.assertGreaterEqual(values["pools"], 2 * 2 * 2**20)


if __name__ == "__main__":
    unittest.main()
