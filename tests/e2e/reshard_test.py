"""A denoiser whose ranks hold parts of the sequence feeds a decoder whose ranks hold rows: nobody gathers, the video is that
of one rank each, and stages that cannot be joined like this are refused before anything starts.

    reshard_test.py
"""
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client
from daemon import Daemon, find_binary, wait_until
from daemon_case import DaemonCase

# 5 rows of 4 patches in 2 frames: neither three ranks of tokens nor two of rows get whole frames or equal shares.
SMALL = {"frames": 5, "width": 64, "height": 80, "steps": 4, "seed": 11, "guidance_scale": 2.5, "float_pixels": True}
LATENT_BYTES = 16 * 2 * 10 * 8 * 4
EDGE = "denoise.denoise->decode.decode"


def group(name, stage, ranks=1, parallel="", options=""):
    devices = ", ".join(["cpu"] * ranks)
    return f"{{name: {name}, stage: {stage}, devices: [{devices}], parallel: {{{parallel}}}, options: {{{options}}}}}"


def demo(denoise, decode):
    text = topologies.demo()
    for plain, made in (("{name: denoise, stage: wan.denoiser}", denoise), ("{name: decode, stage: wan.vae_decoder}", decode)):
        assert plain in text
        text = text.replace(plain, made)
    return text


ONE = group("denoise", "wan.denoiser"), group("decode", "wan.vae_decoder")
RING = group("denoise", "wan.denoiser", 3, "ring: 3")
ULYSSES = group("denoise", "wan.denoiser", 4, "cfg: 2, ulysses: 2")
ROWS = group("decode", "wan.vae_decoder", 2, "spatial: 2")


class ReshardTest(DaemonCase):
    def video(self, topology):
        """The video, and the bytes that crossed the edge for it."""
        with Daemon(topology) as daemon, Client(daemon.grpc) as self.client:
            job = self.expect_next_succeeds(**SMALL)
            key = f'latentd_edge_bytes_total{{edge="{EDGE}"}}'
            wait_until(lambda: daemon.metrics().get(key), 10, f"{key} counts")
            return numpy.load(io.BytesIO(self.client.download(job.id))), daemon.metrics()[key]

    def test_every_pair_of_shardings_makes_the_video_of_one_rank_and_moves_one_tensor(self):
        alone, crossed = self.video(demo(*ONE))
        self.assertEqual(crossed, LATENT_BYTES)
        for name, topology in (("3 ranks of tokens to 2 of rows", demo(RING, ROWS)),
                               ("2 ranks of tokens, twice, to 2 of rows", demo(ULYSSES, ROWS)),
                               ("2 ranks of tokens, twice, to one", demo(ULYSSES, ONE[1])),
                               ("one to 2 of rows", demo(ONE[0], ROWS)),
                               ("one to 2 of rows, of which each reads its slice",
                                demo(ONE[0], ROWS).replace("to: decode.decode", "to: decode.decode, consumer_shard_dim: 3"))):
            with self.subTest(name):
                video, crossed = self.video(topology)
                self.assertEqual(video.shape, alone.shape)
                self.assertLessEqual(float(numpy.abs(video - alone).max()), 5e-5)
                self.assertEqual(crossed, LATENT_BYTES, "all ranks together publish one logical tensor")

    def check(self, topology):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "topology.yaml"
            path.write_text(topology.replace("{root}", str(ROOT)))
            return subprocess.run([find_binary("latentd"), "--config", str(path), "--check"], text=True, capture_output=True,
                                  timeout=120)

    def test_the_plan_says_how_tokens_cross_an_edge(self):
        self.assertIn("in token layout: producer publishes by tokens, consumer reads by rows", self.check(demo(RING, ROWS)).stdout)
        self.assertIn("in token layout: producer publishes by tokens, consumer reads whole",
                      self.check(demo(RING, ONE[1])).stdout)
        tiles = group("decode", "wan.vae_decoder", 2, "spatial: 2", "tile_height: 64, tile_width: 64, tile_overlap: 16")
        self.assertIn("in token layout: producer publishes by tokens, consumer reads whole", self.check(demo(RING, tiles)).stdout)
        self.assertNotIn("token layout", self.check(demo(*ONE)).stdout)
        whole = group("denoise", "wan.denoiser", 3, "ring: 3", "latents: whole")
        self.assertNotIn("token layout", self.check(demo(whole, ROWS)).stdout)

    def test_a_stage_that_takes_no_tokens_is_refused_at_its_edge(self):
        sink = "{name: decode, stage: noop, options: {input_keys: latents}}"
        topology = demo(RING, sink).replace("decode.decode", "decode.sink")
        refused = self.check(topology)
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
        line = topology[:topology.index("decode.sink")].count("\n") + 1
        for word in (f"topology.yaml:{line}: edges[1].to", "decode.sink", "latents", "wan.vae_decoder", "latents: whole"):
            self.assertIn(word, refused.stderr)
        allowed = self.check(topology.replace("parallel: {ring: 3}, options: {}", "parallel: {ring: 3}, options: {latents: whole}"))
        self.assertEqual(allowed.returncode, 0, allowed.stderr)


if __name__ == "__main__":
    unittest.main()
