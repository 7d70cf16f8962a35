"""The life of a job through API, command line and files."""
import io
import os
import pathlib
import subprocess
import sys
import time
import unittest
import urllib.request

import grpc
import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api, code_of
from daemon import Daemon, at_most, find_binary, processes

SMALL = dict(frames=5, width=64, height=64, steps=2)


class JobTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(topologies.demo()))
        cls.client = cls.enterClassContext(Client(cls.daemon.grpc))

    def make(self, **parameters):
        job = self.client.wait(self.client.submit("a red ball moves right", **{**SMALL, **parameters}).id)
        self.assertEqual(job.state, api.JOB_STATE_SUCCEEDED, job.error)
        return job

    def test_effective_parameters_and_times_are_echoed(self):
        job = self.make(seed=3)
        p = job.parameters
        self.assertEqual((p.frames, p.width, p.height, p.steps, p.seed), (5, 64, 64, 2, 3))
        self.assertEqual((p.guidance_scale, p.fps, p.flow_shift), (2.5, 8, 3))  # the shift is the checkpoint's scheduler's
        self.assertTrue(p.HasField("negative_prompt"))
        self.assertLessEqual(job.create_time.ToNanoseconds(), job.start_time.ToNanoseconds())
        self.assertLessEqual(job.start_time.ToNanoseconds(), job.finish_time.ToNanoseconds())
        self.assertEqual([stage.stage for stage in job.stages], ["text", "denoise", "decode"])
        self.assertEqual((job.stages[1].step, job.stages[1].steps), (2, 2))
        self.assertTrue(all(stage.compute.ToNanoseconds() > 0 for stage in job.stages))
        self.assertEqual(len(job.transfers), 2)
        self.assertTrue(all(transfer.bytes > 0 and transfer.duration.ToNanoseconds() > 0 for transfer in job.transfers))

    def test_one_seed_one_video_and_a_random_one_is_echoed(self):
        first, second = self.make(seed=5), self.make(seed=5)
        self.assertEqual(self.client.download(first.id), self.client.download(second.id))
        random = self.make()
        again = self.make(seed=random.parameters.seed)
        self.assertEqual(self.client.download(random.id), self.client.download(again.id))
        self.assertNotEqual(self.client.download(random.id), self.client.download(first.id))

    def test_uint8_is_the_rounded_float(self):
        whole = self.client.video(self.make(seed=1).id)
        real = self.client.video(self.make(seed=1, float_pixels=True).id)
        self.assertEqual((whole.shape, whole.dtype, real.dtype), ((5, 64, 64, 3), np.uint8, np.float32))
        self.assertTrue(((real >= 0) & (real <= 1)).all())
        np.testing.assert_array_equal(whole, np.round(real * 255).astype(np.uint8))

    def test_every_file_format(self):
        for name in ("a.mp4", "a.gif", "a.png", "a.npy", "a.y4m", "a.rgb"):
            path = self.daemon.folder / name
            self.daemon.ctl("submit", "--prompt", "a red ball", "--frames", 5, "--size", "64x64", "--steps", 1, "-o", path)
            data = path.read_bytes()
            start = {"a.mp4": b"ftyp", "a.gif": b"GIF8", "a.png": b"\x89PNG", "a.npy": b"\x93NUMPY", "a.y4m": b"YUV4MPEG2", "a.rgb": b""}[name]
            self.assertIn(start, data[:16], name)
            if name in ("a.gif", "a.png"):
                Image.open(io.BytesIO(data)).load()
        self.assertEqual(len((self.daemon.folder / "a.rgb").read_bytes()), 5 * 64 * 64 * 3)
        self.assertFalse([path for path in self.daemon.folder.iterdir() if "tmp" in path.name or "part" in path.name])

    def test_a_stream_to_standard_output(self):
        result = subprocess.run([find_binary("latentctl"), "--endpoint", self.daemon.grpc, "submit", "--prompt", "a red ball", "--frames", "5",
                                 "--size", "64x64", "--steps", "1", "--format", "npy", "-o", "-"], capture_output=True, timeout=240)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(np.load(io.BytesIO(result.stdout)).shape, (5, 64, 64, 3))

    def test_list_pages_delete(self):
        ids = [self.make().id for _ in range(3)]
        seen, token = [], ""
        while True:
            page = self.client.jobs.List(api.ListJobsRequest(page_size=2, page_token=token), timeout=30)
            seen += [job.id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break
        self.assertEqual(len(seen), len(set(seen)))
        self.assertEqual([job for job in seen if job in ids], ids[::-1], "newest first")
        self.client.jobs.Delete(api.DeleteJobRequest(id=ids[0]), timeout=30)
        self.assertEqual(code_of(lambda: self.client.get(ids[0]))[0], grpc.StatusCode.NOT_FOUND)
        self.assertEqual(code_of(lambda: self.client.download(ids[0]))[0], grpc.StatusCode.NOT_FOUND)
        self.client.download(ids[1])

    def test_cancel_in_each_stage_and_in_the_queue(self):
        for stage in (0, 1, 2):
            job = self.client.submit("a red ball", frames=33, width=128, height=128, steps=50)
            if stage:
                self.client.watch_until(job.id, lambda j: len(j.stages) > stage - 1 and j.stages[stage - 1].step > 0)
            start = time.monotonic()
            self.client.cancel(job.id)
            ended = self.client.wait(job.id)
            self.assertIn(ended.state, (api.JOB_STATE_CANCELLED, api.JOB_STATE_SUCCEEDED) if stage == 2 else (api.JOB_STATE_CANCELLED,))
            self.assertLess(time.monotonic() - start, at_most(5))
        blocker = self.client.submit("a red ball", frames=33, width=128, height=128, steps=50)
        queued = [self.client.submit("a red ball", **SMALL) for _ in range(6)]
        self.client.cancel(queued[-1].id)
        self.assertEqual(self.client.wait(queued[-1].id).state, api.JOB_STATE_CANCELLED)
        self.client.cancel(blocker.id)
        for job in queued[:-1]:
            self.assertEqual(self.client.wait(job.id).state, api.JOB_STATE_SUCCEEDED)

    def test_request_ids_are_idempotent(self):
        request = api.SubmitRequest(parameters=api.JobParameters(prompt="x", format=api.OUTPUT_FORMAT_NPY, **SMALL), request_id="once")
        first, second = (self.client.jobs.Submit(request, timeout=30) for _ in range(2))
        self.assertEqual(first.id, second.id)
        self.client.wait(first.id)

    def test_health_metrics_and_reflection(self):
        for path in ("healthz", "readyz"):
            self.assertEqual(urllib.request.urlopen(f"http://{self.daemon.http}/{path}", timeout=30).status, 200)
        self.make()
        text = urllib.request.urlopen(f"http://{self.daemon.http}/metrics", timeout=30).read()
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=120)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, b"", b""))
        metrics = self.daemon.metrics()
        self.assertGreater(metrics['latentd_jobs_total{result="succeeded"}'], 0)
        for name in ("latentd_queue_depth", "latentd_queue_wait_seconds_count", 'latentd_stage_seconds_count{stage="denoise"}',
                     "latentd_denoise_step_seconds_count", 'latentd_edge_bytes_total{edge="text.encode->denoise.denoise"}',
                     'latentd_handoff_seconds_count{edge="denoise.denoise->decode.decode"}',
                     'latentd_slot_wait_seconds_count{edge="denoise.denoise->decode.decode"}',
                     'latentd_slots_in_use{edge="denoise.denoise->decode.decode"}'):
            self.assertIn(name, metrics)
        health = self.client.channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda raw: raw, response_deserializer=lambda raw: raw)
        self.assertEqual(health(b"", timeout=30), b"\x08\x01")

    def test_topology_and_edges_are_shown(self):
        topology = self.client.admin.GetTopology(api.GetTopologyRequest(), timeout=30)
        self.assertEqual([group.name for group in topology.groups], ["text", "denoise", "decode"])
        self.assertEqual((topology.limits.frame_step, topology.limits.size_multiple), (4, 16))
        edges = self.client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges
        self.assertEqual({edge.transport for edge in edges}, {"shm"})
        for command in ("topology", "edges", "list", "version"):
            self.assertTrue(self.daemon.ctl(command).stdout)

    def run_python(self, *arguments, path):
        result = subprocess.run([sys.executable, "-B", *map(str, arguments)], cwd=self.daemon.folder, capture_output=True, text=True,
                                timeout=180, env={**os.environ, "PYTHONPATH": str(path), "LATENTD_ENDPOINT": self.daemon.grpc})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def test_the_example_client_makes_a_video(self):
        stubs = self.daemon.folder / "stubs"
        stubs.mkdir()
        self.run_python("-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={stubs}", f"--grpc_python_out={stubs}", "proto/common.proto",
                        "proto/api.proto", path=stubs)
        result = self.run_python(ROOT / "tools/python/client_example.py", "a red circle", "example.mp4", "--steps", 2, path=stubs)
        self.assertEqual(result.stdout, "example.mp4\n")
        self.assertIn("succeeded: decode", result.stderr)
        self.assertIn(b"ftyp", (self.daemon.folder / "example.mp4").read_bytes()[:16])

    def test_the_client_of_the_readme_makes_a_video(self):
        text = (ROOT / "README.md").read_text()
        client = text.split("```python\n", 1)[1].split("```", 1)[0]
        self.assertIn("127.0.0.1:7411", client)
        result = self.run_python("-c", client.replace("127.0.0.1:7411", self.daemon.grpc), path=ROOT)
        self.assertIn("JOB_STATE_SUCCEEDED", result.stdout)
        self.assertIn(b"ftyp", (self.daemon.folder / "ball.mp4").read_bytes()[:16])

    def test_no_process_is_left_after_a_job(self):
        self.make(format=api.OUTPUT_FORMAT_MP4)
        self.assertFalse([command for _, command in processes(str(self.daemon.folder)) if command.split(" ")[0].endswith("latent-encoder")])


if __name__ == "__main__":
    unittest.main()
