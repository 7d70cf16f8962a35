"""A denoiser whose ranks hold parts of the sequence feeds a decoder whose ranks hold rows: nobody gathers, the video is that
of one rank each, and stages that cannot be joined like this are refused before anything starts.

    reshard_test.py
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api
from daemon import Daemon, find_binary, wait_until
from daemon_case import DaemonCase

# 5 rows of 4 patches in 2 frames: neither three ranks of tokens nor two of rows get whole frames or equal shares.
SMALL = {"frames": 5, "width": 64, "height": 80, "steps": 4, "seed": 11, "guidance_scale": 2.5, "float_pixels": True}
LATENT_BYTES = 16 * 2 * 10 * 8 * 4
EDGE = "denoise.denoise->decode.decode"


def demo(denoise="", decode=""):
    return topologies.demo(denoiser=denoise, vae_decoder=decode)


RING = topologies.ranks(3, "ring: 3")
ULYSSES = topologies.ranks(4, "cfg: 2, ulysses: 2")
ROWS = topologies.ranks(2, "spatial: 2")


class ReshardTest(DaemonCase):
    def video(self, topology):
        """The video, and the bytes that crossed the edge for it."""
        with Daemon(topology) as daemon, Client(daemon.grpc) as self.client:
            job = self.expect_next_succeeds(**SMALL)
            key = f'latentd_edge_bytes_total{{edge="{EDGE}"}}'
            wait_until(lambda: daemon.metrics().get(key), 10, f"{key} counts")
            self.publish_and_read = self.check_ranks(job)
            return self.client.video(job.id), daemon.metrics()[key]

    def check_ranks(self, job):
        """Each rank that publishes a part, or reads one, has its own figures."""
        def parts(figures):
            return {figure.rank: figure.bytes for figure in figures if figure.bytes > 0}

        def edge():
            edges = self.client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges
            return next(edge for edge in edges if edge.name == EDGE)

        def counted(figures):
            # Each rank tells with a heartbeat of its own.
            return figures.bytes == LATENT_BYTES and all(consumer.bytes > 0 for consumer in figures.consumers)

        wait_until(lambda: counted(edge()), 10, lambda: f"all of it is counted: {edge()}")
        published = parts(edge().producers)
        self.assertEqual(sum(published.values()), LATENT_BYTES)
        transfers = [transfer for transfer in self.client.get(job.id).transfers if transfer.edge == EDGE]
        self.assertEqual(parts(transfers), published)
        return len(published), len(parts(edge().consumers))

    def test_every_pair_of_shardings_makes_the_video_of_one_rank_and_moves_one_tensor(self):
        alone, crossed = self.video(demo())
        self.assertEqual(crossed, LATENT_BYTES)
        self.assertEqual(self.publish_and_read, (1, 1))
        for name, ranks, topology in (("3 ranks of tokens to 2 of rows", (3, 2), demo(RING, ROWS)),
                               ("2 ranks of tokens, twice, to 2 of rows", (2, 2), demo(ULYSSES, ROWS)),
                               ("2 ranks of tokens, twice, to one", (2, 1), demo(ULYSSES)),
                               ("one to 2 of rows", (1, 2), demo(decode=ROWS)),
                               ("one to 2 of rows, of which each reads its slice", (1, 2),
                                demo(decode=ROWS).replace("to: decode.decode", "to: decode.decode, consumer_shard_dim: 3"))):
            with self.subTest(name):
                video, crossed = self.video(topology)
                self.assertEqual(self.publish_and_read, ranks)
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
                      self.check(demo(RING)).stdout)
        tiles = ROWS + ", options: {tile_height: 64, tile_width: 64, tile_overlap: 16}"
        self.assertIn("in token layout: producer publishes by tokens, consumer reads whole", self.check(demo(RING, tiles)).stdout)
        self.assertNotIn("token layout", self.check(demo()).stdout)
        whole = RING + ", options: {latents: whole}"
        self.assertNotIn("token layout", self.check(demo(whole, ROWS)).stdout)

    def test_a_stage_that_takes_no_tokens_is_refused_at_its_edge(self):
        topology = demo(RING).replace("stage: wan.vae_decoder", "stage: noop, options: {input_keys: latents}")
        topology = topology.replace("decode.decode", "decode.sink")
        refused = self.check(topology)
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
        line = topology[:topology.index("decode.sink")].count("\n") + 1
        for word in (f"topology.yaml:{line}: edges[1].to", "decode.sink", "latents", "wan.vae_decoder", "latents: whole"):
            self.assertIn(word, refused.stderr)
        allowed = self.check(topology.replace("parallel: {ring: 3}", "parallel: {ring: 3}, options: {latents: whole}"))
        self.assertEqual(allowed.returncode, 0, allowed.stderr)


if __name__ == "__main__":
    unittest.main()
