"""Prompt to embeddings of a checkpoint with diffusers, timed as tests/bench/text_bench.cc times latentd's. Prints one
JSON object.

    python tests/bench/text_reference.py --model DIR [--prompt TEXT] [--threads 2] [--repeats 20] [--dtype float32]
"""
import argparse
import json
import statistics
import time

import torch
from diffusers import WanPipeline
from transformers import AutoTokenizer, UMT5EncoderModel


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="A cat walks slowly along a quiet beach at sunset, cinematic lighting.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    pipe = WanPipeline.from_pretrained(
        arguments.model, tokenizer=AutoTokenizer.from_pretrained(arguments.model + "/tokenizer"), transformer=None,
        transformer_2=None, vae=None,
        text_encoder=UMT5EncoderModel.from_pretrained(arguments.model + "/text_encoder", dtype=dtype).eval())

    def encode_once():
        start = time.perf_counter()
        pipe.encode_prompt(arguments.prompt, None, True, max_sequence_length=512)
        return 1e3 * (time.perf_counter() - start)

    encode_once()
    before = time.process_time()
    milliseconds = [encode_once() for _ in range(arguments.repeats)]
    processor = 1e3 * (time.process_time() - before) / arguments.repeats
    print(json.dumps({
        "what": "diffusers", "dtype": arguments.dtype, "threads": arguments.threads,
        "best_ms": round(min(milliseconds), 3), "median_ms": round(statistics.median(milliseconds), 3),
        "processor_ms": round(processor, 3)}))


if __name__ == "__main__":
    main()
