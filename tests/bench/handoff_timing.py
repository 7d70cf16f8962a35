"""What the Python transports of hand-offs share: a stage's work before each of them, and their figures."""
import statistics
import time

WARM_UP = 20


def add_arguments(parser):
    parser.add_argument("--sizes", default="65536,1048576,16777216,67108864,268435456")
    parser.add_argument("--transfers", type=int, default=200)
    parser.add_argument("--compute-ms", type=float, default=0,
                        help="processor time, and a new tensor, before each transfer, as a stage has")
    parser.add_argument("--samples", action="store_true", help="print every transfer's time too")


def compute(milliseconds):
    """Takes this much processor time."""
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        pass


def figures(size, samples, arguments):
    """Of samples in microseconds."""
    ordered = sorted(samples)
    result = {
        "bytes": size,
        "transfers": arguments.transfers,
        "p50_us": round(ordered[len(ordered) // 2], 1),
        "p95_us": round(ordered[int(len(ordered) * 0.95)], 1),
        "mean_us": round(statistics.fmean(ordered), 1),
    }
    if arguments.samples:
        result["samples_us"] = [round(sample, 1) for sample in samples]
    return result
