"""Part B: hand-offs from one GPU to the other, by tools/bench/handoff_gpu, and what they are to be."""
import json
import sys

from gpu_bench.children import Failed
from gpu_bench.daemon import ROOT

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
# Issue 6: p50 as a part of the Python transport that SGLang's stages use, between two GPUs.
GOALS = {64 * KIB: 0.10, MIB: 0.10, 16 * MIB: 0.20, 64 * MIB: 0.35, 256 * MIB: 0.60}
BARE_GOAL = 1.15  # of the bare program's p50
SECONDS = 240  # of one size


def name_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def measure(run, size):
    """Whole runs have every column of handoff_gpu, quick ones those that are judged."""
    run.report.say(f"  {name_of(size)} ...")
    command = [sys.executable, ROOT / "tools" / "bench" / "handoff_gpu", "--programs", run.programs, "--sizes", size,
               "--devices", ",".join(run.devices[:2]), "--json"]
    command += ["--transfers", 40, "--rounds", 1, "--only", "latentd,reference,bare program"] if run.quick else ["--transfers", 200]
    output = run.children.output(command, SECONDS)
    lines = [line for line in output.splitlines() if line.startswith("[")]
    if not lines:
        raise Failed(f"handoff_gpu printed no JSON: {output[-500:]}")
    return json.loads(lines[-1])[0]


def handoff(run):
    if not run.on_gpus:
        run.report.check("handoff", "hand-off between GPUs", None, "no GPUs were named")
        return
    results, broken = [], []
    try:
        for size in SIZES:
            try:
                results.append(measure(run, size))
            except Failed as failure:
                broken.append(f"{name_of(size)}: {failure}")
    finally:  # also of a run that is ended
        if results:
            show(run, results)
    if broken:
        raise Failed("\n".join(broken))


def show(run, results):
    names = [name for name, value in results[0].items() if isinstance(value, dict) and "p50_us" in value]
    rows = [[name_of(result["bytes"]), *(f"{result[name]['p50_us']:.0f} / {result[name]['p95_us']:.0f}" for name in names),
             *judge(run, result)] for result in results]
    notes = ["The producer computes for 2 ms and makes a new tensor before each hand-off; hot: it does not. Bare: the least "
             "that two processes can do."]
    notes += [] if run.apart else ["Producer and consumer share a GPU here; the goals are for two."]
    run.table("handoff", f"Hand-off of one tensor from {run.devices[0]} to {run.devices[1]}, p50 / p95 in microseconds",
              ["size", *names, "latentd/reference (goal)", "latentd/bare (goal)"], rows, notes, figures=results)


def judge(run, result):
    """Cells: the two ratios of p50; between two GPUs they are goals."""
    cells = []
    for other, goal in (("reference", GOALS[result["bytes"]]), ("bare program", BARE_GOAL)):
        ratio = result["latentd"]["p50_us"] / result[other]["p50_us"]
        cells.append(f"{ratio:.2f} ({goal:.2f})")
        if run.apart:
            run.report.goal("handoff", f"hand-off of {name_of(result['bytes'])}, p50 / {other}", ratio, "<=", goal)
    return cells
