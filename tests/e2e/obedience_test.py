"""The demo's videos show what their prompts say, as often as diffusers' do with the same seeds."""
import json
import pathlib
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tools" / "moving_shapes")]
import obedience
from daemon import Daemon
from measure import measure, score


class ObedienceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = json.loads((ROOT / "tests" / "data" / "obedience.json").read_text())
        cls.scenes = [scene for scene, _, _ in obedience.scenes()]
        with Daemon((ROOT / "configs" / "demo.yaml").read_text().replace("model: ", "model: {root}/configs/")) as daemon:
            def make(index):
                clip, settings = cls.reference["clips"][index], cls.reference["settings"]
                path = daemon.folder / f"{index}.npy"
                daemon.ctl("submit", "--prompt", clip["prompt"], "--seed", clip["seed"], "--frames", settings["frames"],
                           "--size", f"{settings['width']}x{settings['height']}", "--steps", settings["steps"],
                           "--guidance", settings["guidance"], "--float", "-o", path, timeout=600)
                return np.load(path)

            # A few at once, so that the pipeline of the three groups is full.
            with ThreadPoolExecutor(4) as pool:
                cls.videos = list(pool.map(make, range(len(cls.reference["clips"]))))
        cls.seen = [measure(video) for video in cls.videos]

    def test_prompts_are_those_of_the_reference(self):
        self.assertEqual([prompt for _, prompt, _ in obedience.scenes()], [clip["prompt"] for clip in self.reference["clips"]])

    def test_videos_obey_as_well_as_the_reference(self):
        ours, reference = {}, {}
        for scene, seen, clip in zip(self.scenes, self.seen, self.reference["clips"]):
            for name, obeyed in score(scene, seen).items():
                ours[name] = ours.get(name, 0) + bool(obeyed)
            for name, obeyed in clip["obeyed"].items():
                reference[name] = reference.get(name, 0) + obeyed
        print("ours", ours, "reference", reference)
        for name, count in reference.items():
            self.assertGreaterEqual(ours[name], count, name)

    def test_the_same_seed_gives_the_same_video(self):
        for video, clip in zip(self.videos, self.reference["clips"]):
            self.assertLess(np.abs(video.mean((0, 1, 2), dtype="float64") - np.array(clip["mean"])).max(), 2e-5)

    def test_shuffled_prompts_fail(self):
        """The measurement can tell: the next prompt's video does not obey this one."""
        right = sum(all(score(scene, seen).values()) for scene, seen in zip(self.scenes, self.seen))
        wrong = sum(all(score(scene, seen).values()) for scene, seen in zip(self.scenes, self.seen[1:] + self.seen[:1]))
        self.assertGreaterEqual(right, 15)
        self.assertLessEqual(wrong, 4)


if __name__ == "__main__":
    unittest.main()
