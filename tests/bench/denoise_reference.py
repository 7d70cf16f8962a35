"""Denoising with WanPipeline of diffusers, timed as tests/bench/denoise_bench.cc times latentd's. Prints one JSON object.

    python tests/bench/denoise_reference.py --model DIR [--frames 17] [--height 128] [--width 128] [--threads 2]
                                            [--steps 10] [--repeats 3] [--device cpu] [--dtype float32]
                                            [--guidance 5] [--text-rows 24]
"""
import argparse
import json
import resource
import statistics
import time

import torch
from diffusers import WanPipeline

CONTEXT_ROWS = 512


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def text(rows, dim, dtype):
    padded = torch.zeros(1, CONTEXT_ROWS, dim)
    padded[:, :rows] = torch.randn(1, rows, dim)
    return padded.to(dtype)


def run_job(pipe, arguments, prompt, negative):
    """Seconds of every step but the first, whose start the pipeline does not tell, and of the whole job."""
    ends = []

    def note(pipe, step, timestep, kwargs):
        if arguments.device != "cpu":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        return {}

    start = time.perf_counter()
    pipe(prompt_embeds=prompt, negative_prompt_embeds=negative, num_frames=arguments.frames, height=arguments.height,
         width=arguments.width, num_inference_steps=arguments.steps, guidance_scale=arguments.guidance,
         output_type="latent", callback_on_step_end=note)
    return [b - a for a, b in zip(ends, ends[1:])], time.perf_counter() - start


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--guidance", type=float, default=5.0)
    parser.add_argument("--text-rows", type=int, default=24)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    pipe = WanPipeline.from_pretrained(arguments.model, text_encoder=None, tokenizer=None, torch_dtype=dtype,
                                       local_files_only=True).to(arguments.device)
    pipe.set_progress_bar_config(disable=True)
    loaded = peak_mib()
    dim = pipe.transformer.config.text_dim
    prompt = text(arguments.text_rows, dim, dtype).to(arguments.device)
    negative = text(1, dim, dtype).to(arguments.device)
    run_job(pipe, arguments, prompt, negative)
    before = time.process_time()
    jobs = [run_job(pipe, arguments, prompt, negative) for _ in range(arguments.repeats)]
    processor = (time.process_time() - before) / arguments.repeats / arguments.steps
    steps = [seconds for job, _ in jobs for seconds in job]
    print(json.dumps({
        "what": "diffusers", "device": arguments.device, "dtype": arguments.dtype,
        "frames": arguments.frames, "height": arguments.height,
        "width": arguments.width, "guidance": arguments.guidance, "threads": arguments.threads,
        "best_step_s": round(min(steps), 5), "median_step_s": round(statistics.median(steps), 5),
        "processor_step_s": round(processor, 5), "job_s": round(statistics.mean(total for _, total in jobs), 4),
        "loaded_mib": round(loaded), "peak_mib": round(peak_mib())}))


if __name__ == "__main__":
    main()
