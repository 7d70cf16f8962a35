"""One rank of collectives.py: torch's own collectives of two processes, timed. Prints a JSON object, {what: [ms, ...]}."""
import argparse
import datetime
import json
import time

import torch
import torch.distributed as dist

HEAD = 128
# Heads and sequence of one tensor of Q, K or V.
ALL_TO_ALL = {"12 heads, sequence 32,760": (12, 32760), "40 heads, sequence 32,760": (40, 32760),
              "40 heads, sequence 75,600": (40, 75600)}
ALL_REDUCE = {"4 KiB": 4 << 10, "128 MiB": 128 << 20}
ROUNDS, BATCH, WARM_UP = 20, 10, 3
TINY = 64  # times smaller


def finish(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(work, device, rounds, batch):
    """Of one call, of `batch` that are submitted one after the other; with 1 the way to the device and back is in it."""
    samples = []
    for _ in range(WARM_UP + rounds):
        dist.barrier()
        finish(device)
        start = time.perf_counter()
        for _ in range(batch):
            work()
        finish(device)
        samples.append(1e3 * (time.perf_counter() - start) / batch)
    return sorted(samples[WARM_UP:])[rounds // 2]


def exchanges(heads, sequence, ranks, device, dtype):
    """(the exchange alone, with the packing copy): a part of the sequence with all heads becomes all of it with some."""
    rows, mine = sequence // ranks, heads // ranks
    tokens = torch.zeros(rows, ranks, mine, HEAD, device=device, dtype=dtype)
    packed = torch.empty(ranks, rows, mine, HEAD, device=device, dtype=dtype)
    out = torch.empty_like(packed)

    def with_packing():
        packed.copy_(tokens.transpose(0, 1))
        dist.all_to_all_single(out, packed)
    return [lambda: dist.all_to_all_single(out, packed), with_packing]


def measure(arguments, device):
    scale, rounds, batch = (TINY, 2, 1) if arguments.tiny else (1, ROUNDS, BATCH)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # Gloo has no bfloat16 for all of them
    found = {}
    for name, (heads, sequence) in ALL_TO_ALL.items():
        works = exchanges(heads, sequence // scale, arguments.ranks, device, dtype)
        found[f"all-to-all, {name}"] = [median_ms(work, device, rounds, batch) for work in works]
    for name, size in ALL_REDUCE.items():
        tensor = torch.zeros(max(64, size // scale // dtype.itemsize), device=device, dtype=dtype)
        found[f"all-reduce, {name}"] = [median_ms(lambda: dist.all_reduce(tensor), device, rounds, 1 if size < 1 << 20 else batch)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--meet", required=True, help="file in which the ranks find each other")
    parser.add_argument("--tiny", action="store_true", help="sizes of a few milliseconds on a CPU")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=f"file://{arguments.meet}",
                            rank=arguments.rank, world_size=arguments.ranks, timeout=datetime.timedelta(seconds=60))
    found = measure(arguments, device)
    if arguments.rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
