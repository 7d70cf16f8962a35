"""One tensor at a time from a producer to a consumer process with torch.multiprocessing, timed as latentd times its edges.

A hand-off is: copy the stage's tensor into shared memory, send it through a torch.multiprocessing queue, copy it into
the consumer's own tensor, acknowledge. With --reuse two shared tensors are sent once and used in turn, and the queue
carries only which one: no more can be had from this module. With --compute-ms the producer makes a new tensor and
computes before each hand-off, as a stage does, so that nobody is awake or in a cache by accident. Prints one JSON object a
size: p50, p95 and mean in microseconds.

    python tests/bench/handoff_torch_multiprocessing.py --sizes 65536,1048576 [--transfers 200] [--threads 1] [--reuse]
                                                        [--compute-ms 5]
"""
import argparse
import json
import time

import torch
import torch.multiprocessing as mp
from handoff_timing import WARM_UP, add_arguments, compute, figures


def consume(queue, acknowledgements, count, threads):
    torch.set_num_threads(threads)
    target, kept = None, []
    for _ in range(count):
        shared = queue.get()
        if isinstance(shared, list):
            kept = shared
            shared = queue.get()
        if isinstance(shared, int):
            shared = kept[shared]
        if target is None:
            target = torch.empty(shared.shape, dtype=shared.dtype)
        target.copy_(shared)
        del shared
        acknowledgements.put(None)


def send_new(source, queue):
    """A new shared tensor each time: the consumer may still hold the previous one, and torch offers no slots."""
    shared = torch.empty_like(source).share_memory_()
    shared.copy_(source)
    queue.put(shared)


class KeptSender:
    def __init__(self, source, queue):
        self.kept = [torch.empty_like(source).share_memory_() for _ in range(2)]
        self.turn = 0
        queue.put(self.kept)

    def __call__(self, source, queue):
        self.kept[self.turn].copy_(source)
        queue.put(self.turn)
        self.turn = 1 - self.turn


def measure(size, arguments):
    context = mp.get_context("spawn")
    # SimpleQueue: no feeder thread, so the fastest queue of the module.
    queue, acknowledgements = context.SimpleQueue(), context.SimpleQueue()
    count = arguments.transfers + WARM_UP
    consumer = context.Process(target=consume, args=(queue, acknowledgements, count, arguments.threads), daemon=True)
    consumer.start()
    source = torch.full((size // 4,), 0.5)
    send = KeptSender(source, queue) if arguments.reuse else send_new
    samples = []
    for i in range(count):
        if arguments.compute_ms:
            compute(arguments.compute_ms)
            source = torch.full((size // 4,), float(i))
        start = time.perf_counter()
        send(source, queue)
        acknowledgements.get()
        if i >= WARM_UP:
            samples.append(1e6 * (time.perf_counter() - start))
    consumer.join(60)
    return {**figures(size, samples, arguments), "reuse": arguments.reuse}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reuse", action="store_true", help="two shared tensors for all transfers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for size in map(int, arguments.sizes.split(",")):
        print(json.dumps(measure(size, arguments)), flush=True)


if __name__ == "__main__":
    main()
