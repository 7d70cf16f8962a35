"""One tensor at a time between two processes on GPUs, as Python serving stacks do it, timed as latentd is timed.

A hand-off is: copy the stage's tensor into a staging tensor, send what names it, copy it into the consumer's own tensor,
synchronise the consumer's stream, acknowledge.

--method multiprocessing: the staging tensor goes through a torch.multiprocessing queue.
--method reference: a memory handle, an event handle, shape and dtype go through a pipe, pickled; the consumer opens the
handle, makes its stream wait for the event, copies. This is what SGLang's diffusion stages do between processes.

Prints one JSON object a size: p50, p95 and mean in microseconds.

    python tests/bench/handoff_cuda_python.py --method reference [--devices cuda:0,cuda:1] [--sizes 65536] [--transfers 200]
"""
import argparse
import json
import time

import torch
import torch.multiprocessing as mp
from handoff_timing import WARM_UP, add_arguments, compute, figures


class QueueSender:
    def __init__(self, context):
        self.queue = context.SimpleQueue()

    def send(self, staging):
        self.queue.put(staging)

    def receive(self):
        return self.queue.get()


class ReferenceSender:
    """Handles of memory and event, through a pipe."""

    def __init__(self, context):
        self.receiving, self.sending = context.Pipe(duplex=False)

    def send(self, staging):
        event = torch.cuda.Event(interprocess=True)
        event.record()
        self.sending.send((staging.untyped_storage()._share_cuda_(), event.ipc_handle(), staging.shape, staging.dtype))
        self.event = event  # outlives the import

    def receive(self):
        handle, event, shape, dtype = self.receiving.recv()
        storage = torch.UntypedStorage._new_shared_cuda(*handle)
        # On the consumer's device: a stream of another one than the event is imported for crashes on it.
        torch.cuda.Event.from_ipc_handle(torch.device("cuda", torch.cuda.current_device()), event).wait()
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage).view(shape)


METHODS = {"multiprocessing": QueueSender, "reference": ReferenceSender}


def consume(sender, acknowledgements, count, device):
    torch.cuda.set_device(device)
    target = None
    for _ in range(count):
        shared = sender.receive()
        if target is None:
            target = torch.empty(shared.shape, dtype=shared.dtype, device=device)
        target.copy_(shared)
        torch.cuda.current_stream().synchronize()
        del shared
        acknowledgements.put(None)


def measure(size, arguments):
    context = mp.get_context("spawn")
    producer, consumer = (arguments.devices.split(",") * 2)[:2]
    torch.cuda.set_device(producer)
    sender, acknowledgements = METHODS[arguments.method](context), context.SimpleQueue()
    count = arguments.transfers + WARM_UP
    process = context.Process(target=consume, args=(sender, acknowledgements, count, consumer), daemon=True)
    process.start()
    source = torch.full((size // 4,), 0.5, device=producer)
    torch.cuda.synchronize()
    samples = []
    for i in range(count):
        if arguments.compute_ms:
            compute(arguments.compute_ms)
            source = torch.full((size // 4,), float(i), device=producer)
            torch.cuda.current_stream().synchronize()
        start = time.perf_counter()
        staging = torch.empty_like(source)
        staging.copy_(source)
        sender.send(staging)
        acknowledgements.get()
        if i >= WARM_UP:
            samples.append(1e6 * (time.perf_counter() - start))
    process.join(60)
    return {**figures(size, samples, arguments), "method": arguments.method, "devices": [producer, consumer]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=sorted(METHODS), default="reference")
    parser.add_argument("--devices", default="cuda:0", help="of the producer and of the consumer; one: they share it")
    add_arguments(parser)
    arguments = parser.parse_args()
    for size in map(int, arguments.sizes.split(",")):
        print(json.dumps(measure(size, arguments)), flush=True)


if __name__ == "__main__":
    main()
