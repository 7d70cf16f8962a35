"""Twenty prompts of held-out scenes, and how well diffusers obeys them: what tests/e2e/obedience_test.py compares with.

    python obedience.py ../../configs/moving-shapes --out ../../tests/data/obedience.json
"""
import argparse
import json
import random

import moving_shapes as world
from measure import measure, score

COUNT = 20
SETTINGS = dict(frames=17, width=128, height=128, steps=16, guidance=2.5)


def scenes(seed=11):
    """(scene, prompt, seed of the noise) of each clip: single objects, of combinations never shown in training."""
    rng = random.Random(seed)
    chosen = [world.sample_scene(rng, 1, 1, kind="single", held_out=True) for _ in range(COUNT)]
    return [(scene, world.plain_caption(scene, rng), 100 + i) for i, scene in enumerate(chosen)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    import torch
    from diffusers import WanPipeline

    pipe = WanPipeline.from_pretrained(arguments.pipeline, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    clips = []
    for scene, prompt, seed in scenes():
        video = pipe(prompt=prompt, negative_prompt="", height=SETTINGS["height"], width=SETTINGS["width"], num_frames=SETTINGS["frames"],
                     num_inference_steps=SETTINGS["steps"], guidance_scale=SETTINGS["guidance"], output_type="np",
                     generator=torch.Generator().manual_seed(seed)).frames[0]
        obeyed = {name: bool(value) for name, value in score(scene, measure(video)).items()}
        clips.append(dict(prompt=prompt, seed=seed, obeyed=obeyed, mean=[round(float(c), 5) for c in video.mean((0, 1, 2), dtype="float64")]))
        print(json.dumps(clips[-1]), flush=True)
    with open(arguments.out, "w") as out:
        json.dump(dict(settings=SETTINGS, clips=clips), out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
