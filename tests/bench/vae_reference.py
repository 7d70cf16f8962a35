"""VAE decode of a checkpoint with diffusers, timed as tests/bench/vae_bench.cc times latentd's. Prints one JSON object.

    python tests/bench/vae_reference.py --model DIR [--frames 17] [--height 128] [--width 128] [--threads 2]
                                        [--repeats 5] [--device cpu] [--dtype float32]
"""
import argparse
import json
import resource
import statistics
import time

import torch
from diffusers import AutoencoderKLWan


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def decode_once(vae, latents):
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1).to(vae.device, vae.dtype)
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1).to(vae.device, vae.dtype)
    start = time.perf_counter()
    vae.decode(latents.to(vae.dtype) / inverse_std + mean, return_dict=False)[0].cpu()
    return time.perf_counter() - start


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    vae = AutoencoderKLWan.from_pretrained(arguments.model + "/vae", torch_dtype=getattr(torch, arguments.dtype)).eval()
    vae = vae.to(arguments.device)
    loaded = peak_mib()
    scale = vae.config.scale_factor_spatial
    latent_frames = 1 + (arguments.frames - 1) // vae.config.scale_factor_temporal
    latents = torch.randn(1, vae.config.z_dim, latent_frames, arguments.height // scale, arguments.width // scale)
    latents = latents.to(arguments.device)
    cold = decode_once(vae, latents)
    before = time.process_time()
    seconds = [decode_once(vae, latents) for _ in range(arguments.repeats)]
    processor = (time.process_time() - before) / arguments.repeats
    print(json.dumps({
        "what": "diffusers", "device": arguments.device, "dtype": arguments.dtype,
        "frames": arguments.frames, "height": arguments.height,
        "width": arguments.width, "threads": arguments.threads, "cold_s": round(cold, 4),
        "best_s": round(min(seconds), 4), "median_s": round(statistics.median(seconds), 4),
        "processor_s": round(processor, 4), "loaded_mib": round(loaded), "peak_mib": round(peak_mib())}))


if __name__ == "__main__":
    main()
