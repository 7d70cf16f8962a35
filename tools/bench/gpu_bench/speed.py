"""Part C: step and decode times of Wan 2.1 1.3B by number of ranks, and the throughput of two ways to use two GPUs."""
import dataclasses
import statistics
import sys
import time

from figures import percentile
from gpu_bench import topology
from gpu_bench.children import Failed
from gpu_bench.daemon import ROOT
from gpu_bench.report import efficiency
from gpu_bench.run import SMALL_MODEL

PROMPT = {"prompt": "two ships under a red sky", "seed": 1, "format": "rgb"}
FULL = {**PROMPT, "frames": 81, "size": "832x480"}  # 32,760 tokens
SHARED = {**PROMPT, "frames": 17, "size": "416x240"}  # where ranks share a device: the path, not its speed
TINY = {**PROMPT, "frames": 5, "size": "64x64"}
# The first step finds no plan of a kernel made, the second may still wait for the first one's allocations.
DROPPED_STEPS = 2
STEPS = {"full": 12, "quick": 6, "tiny": 3}
JOB_SECONDS = 180
# Issue 6 and baselines.md: efficiency, of the model step; diffusers' own in this work is 0.85.
STEP_GOALS = {"cfg": 0.92, "ulysses": 0.88}
ULYSSES_MS = 255
DECODE_GOAL = 0.8
ONE_RANK_GOALS = {"forward": 465, "decode": 800}


# ---- weights ----------------------------------------------------------------------------------------------------

def weights(run, folder):
    """Random ones in the published sizes, unless a model was named."""
    if run.model is not None:
        return run.model
    run.report.say("  writing random weights in the sizes of Wan 2.1 T2V 1.3B (3.2 GiB) ...")
    bench = ROOT / "tests" / "bench"
    run.children.output([sys.executable, bench / "random_checkpoint.py", "--from-sizes", bench / "wan21_t2v_1_3b.json",
                         "--tokenizer", SMALL_MODEL / "tokenizer", folder / "wan"], 300)
    return folder / "wan"


# ---- one job's times --------------------------------------------------------------------------------------------

def spans(events, group, name):
    """By rank of the group, its spans of this name (a prefix) in order of their ends."""
    ranks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = {}
    for event in events:
        if event["ph"] == "X" and event["name"].startswith(name) and ranks[event["pid"]].split("/")[0] == group:
            found.setdefault(ranks[event["pid"]], []).append(event)
    return {rank: sorted(each, key=lambda event: event["ts"] + event["dur"]) for rank, each in found.items()}


def step_ms(events, dropped=DROPPED_STEPS):
    """From the end of one step to the end of the next, as the device completes them, of the slowest rank at each step."""
    ends = [[event["ts"] + event["dur"] for event in rank] for rank in spans(events, "denoise", "step ").values()]
    last = [max(at) for at in zip(*ends)]
    return [(end - start) / 1e3 for start, end in zip(last, last[1:])][max(0, dropped - 1):]


def decode_ms(events):
    """Of the slowest rank, inside the stage."""
    return max(event["dur"] for rank in spans(events, "decode", "stage").values() for event in rank) / 1e3


@dataclasses.dataclass(frozen=True)
class Times:
    step_ms: float
    step_p95_ms: float
    decode_ms: float
    steps: int


def measure_job(daemon, job):
    events = daemon.trace(daemon.run(job, JOB_SECONDS)["id"])
    steps = step_ms(events)
    return Times(statistics.median(steps), percentile(steps, 95), decode_ms(events), len(steps))


def video_of(run):
    return TINY if run.tiny else FULL if run.apart else SHARED


def job_of(run, guidance):
    steps = STEPS["tiny" if run.tiny else "quick" if run.quick else "full"]
    return {**video_of(run), "steps": steps + 1, "guidance": guidance}


def timed(run, name, text, guidances):
    """Times by guidance, after a job that is only there to warm up."""
    run.report.say(f"  {name} ...")
    with run.daemon(f"speed of {name}", text) as daemon:
        daemon.run({**job_of(run, guidances[0]), "steps": 2}, JOB_SECONDS)
        return {guidance: measure_job(daemon, job_of(run, guidance)) for guidance in guidances}


# ---- by number of ranks -----------------------------------------------------------------------------------------

GUIDED, PLAIN = 5, 1


def dtype_of(run):
    return "bfloat16" if run.on_gpus else "float32"


def alone(run, model):
    """One rank of each stage, all on the first device."""
    first = run.devices[:1]
    return timed(run, "one rank", topology.pipeline(model, first, first, first, dtype_of(run)), [PLAIN, GUIDED])


def spread_out(run, model, spread, ranks):
    devices = run.devices[:ranks]
    text = topology.pipeline(model, devices[:1], devices, devices, dtype_of(run), spread,
                             topology.Spread("", f"spatial: {ranks}"))
    guidance = GUIDED if spread.guided else PLAIN
    return timed(run, spread.name, text, [guidance])[guidance]


def measured_spreads(run, ranks):
    """Without pipelines: they need several jobs or branches in flight to be of use, and RESULTS.md predicts 0.25 and less."""
    found = [spread for spread in topology.spreads(ranks) if not spread.parallel.startswith("pp")]
    return [spread for spread in found if spread.parallel.startswith("ulysses")] if run.tiny else found


def steps(run, model):
    one = alone(run, model)
    rows = [step_row("one rank", 1, one[PLAIN], one[PLAIN]), step_row("one rank, guided", 1, one[GUIDED], one[GUIDED])]
    decodes, broken = {1: one[PLAIN].decode_ms}, []
    try:
        for ranks in topology.rank_counts(run.devices):
            for spread in measured_spreads(run, ranks):
                measure_spread(run, model, spread, ranks, one, (rows, decodes, broken))
    finally:  # also of a run that is ended
        show(run, rows, decodes, one)
    if broken:
        raise Failed("\n".join(broken))


def measure_spread(run, model, spread, ranks, one, found):
    rows, decodes, broken = found
    try:
        times = spread_out(run, model, spread, ranks)
    except Failed as failure:
        broken.append(f"{spread.name}: {failure}")
        rows.append([spread.name, "failed", "", "", ""])
        return
    base = one[GUIDED if spread.guided else PLAIN]
    rows.append(step_row(spread.name, ranks, times, base))
    decodes[ranks] = min(decodes.get(ranks, times.decode_ms), times.decode_ms)
    judge_step(run, spread, ranks, times, base)


def step_row(name, ranks, times, base):
    cells = [name, f"{times.step_ms:.1f}", f"{times.step_p95_ms:.1f}", times.steps]
    return [*cells, "" if ranks == 1 else f"{efficiency(base.step_ms, times.step_ms, ranks):.2f}"]


def judge_step(run, spread, ranks, times, base):
    if not run.apart or ranks != 2:
        return
    for kind, goal in STEP_GOALS.items():
        if spread.parallel == f"{kind}: 2":
            run.report.goal("steps", f"efficiency of {spread.name}", efficiency(base.step_ms, times.step_ms, 2), ">=", goal)
    if spread.parallel == "ulysses: 2":
        run.report.goal("steps", "step of ulysses 2, ms", times.step_ms, "<=", ULYSSES_MS)


def show(run, rows, decodes, one):
    if run.apart:
        run.report.goal("steps", "forward pass of one rank, ms", one[PLAIN].step_ms, "<=", ONE_RANK_GOALS["forward"])
        run.report.goal("steps", "decode of one rank, ms", decodes[1], "<=", ONE_RANK_GOALS["decode"])
        if 2 in decodes:
            run.report.goal("steps", "efficiency of spatial 2", efficiency(decodes[1], decodes[2], 2), ">=", DECODE_GOAL)
    size = video_of(run)
    notes = ["From the end of one step to the end of the next; an unguided step is one forward pass, a guided one two. "
             "Efficiency: time of one rank / (ranks x time).", *void(run)]
    run.report.table("steps", f"Denoise step, {size['frames']} frames {size['size']}, {dtype_of(run)}, by topology",
                     ["topology", "step p50 ms", "p95", "steps", "efficiency"], rows, notes)
    rows = [[ranks, f"{ms:.0f}", "" if ranks == 1 else f"{efficiency(decodes[1], ms, ranks):.2f}"] for ranks, ms in decodes.items()]
    run.report.table("steps", f"VAE decode, {size['frames']} frames {size['size']}, {dtype_of(run)}, ranks share its height",
                     ["ranks", "decode ms (best)", "efficiency"], rows, void(run))


def void(run):
    return [] if run.apart else ["Ranks share a device here: the path is exercised, the figures say nothing about scaling."]


# ---- throughput -------------------------------------------------------------------------------------------------

JOBS = 10
SIZES = {"small": {"frames": 17, "size": "416x240"}, "medium": {"frames": 33, "size": "832x480"}}


def ways(run, model):
    """Two ways to use two devices."""
    first, second = run.devices[:2]
    replicas = topology.Spread("", "dp: 2")
    both = [first, second]
    return {
        "denoise and decode apart": topology.pipeline(model, [second], [first], [second], dtype_of(run)),
        "each does both (dp 2)": topology.pipeline(model, [second], both, both, dtype_of(run), replicas, replicas),
    }


def jobs_per_minute(run, daemon, job, jobs):
    daemon.run(job, JOB_SECONDS)
    daemon.run(job, JOB_SECONDS)  # the other replica's first one
    started = time.monotonic()
    ids = [daemon.submit({**job, "seed": seed}) for seed in range(jobs)]
    for job_id in ids:
        daemon.wait(job_id, JOB_SECONDS)
    return 60 * jobs / (time.monotonic() - started)


def throughput(run, model):
    steps_of = 2 if run.tiny else 4 if run.quick else 10
    jobs = 2 if run.tiny else JOBS
    sizes = {"tiny": TINY} if run.tiny else SIZES if run.apart else {"small": SHARED}
    rates = {}
    for way, text in ways(run, model).items():
        run.report.say(f"  {way} ...")
        with run.daemon(f"throughput, {way}", text) as daemon:
            for size, parameters in sizes.items():
                job = {**PROMPT, **parameters, "steps": steps_of, "guidance": GUIDED}
                rates[size, way] = jobs_per_minute(run, daemon, job, jobs)
    names = list(ways(run, model))
    rows = [[f"{size}: {sizes[size]['frames']} frames {sizes[size]['size']}", *(f"{rates[size, way]:.1f}" for way in names),
             f"{rates[size, names[0]] / rates[size, names[1]]:.2f}"] for size in sizes]
    run.report.table("throughput", f"Jobs a minute, {jobs} jobs at once, {steps_of} guided steps each, on two devices",
                     ["size", *names, "ratio"], rows, void(run))


