"""Part C: step and decode times of Wan 2.1 1.3B by number of ranks, and the throughput of two ways to use two GPUs."""
import dataclasses
import statistics
import sys
import time

from figures import percentile
from gpu_bench import topology
from gpu_bench.children import Failed
from gpu_bench.daemon import ROOT, Refused
from gpu_bench.report import efficiency
from gpu_bench.run import SMALL_MODEL

PROMPT = {"prompt": "two ships under a red sky", "seed": 1, "format": "rgb"}
FULL = {**PROMPT, "frames": 81, "size": "832x480"}  # 32,760 tokens
SHARED = {**PROMPT, "frames": 17, "size": "416x240"}  # where ranks share a device: the path, not its speed
TINY = {**PROMPT, "frames": 5, "size": "64x64"}
# The first step finds no plan of a kernel made, the second may still wait for the first one's allocations.
DROPPED_STEPS = 2
STEPS = {"full": 12, "quick": 5, "tiny": 3}
JOB_SECONDS = 180
# What was aimed at, of two ranks with a GPU each and of one rank; diffusers' Ulysses took 369 of 630 ms, 0.85.
EFFICIENCY_GOALS = {"cfg: 2": 0.92, "ulysses: 2": 0.88, "spatial: 2": 0.8}
MS_GOALS = {"": 465, "ulysses: 2": 255}
DECODE_MS_GOAL = 800


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
    found = Found()
    found.add(run, topology.ONE, 1, one[PLAIN], one[PLAIN])
    found.add(run, ONE_GUIDED, 1, one[GUIDED], one[GUIDED])
    try:
        for ranks in topology.rank_counts(run.devices):
            for spread in measured_spreads(run, ranks):
                measure_spread(run, model, spread, ranks, one, found)
    finally:  # also of a run that is ended
        show(run, found)
    if found.broken:
        raise Failed("\n".join(found.broken))


class Found:
    """What was measured so far."""

    def __init__(self):
        self.rows, self.figures, self.broken = [], [], []
        self.decodes = {}  # by number of ranks, the best

    def add(self, run, spread, ranks, times, base):
        self.rows.append(step_row(run, spread, ranks, times, base))
        self.figures.append({"topology": spread.name, "ranks": ranks, "guided": spread.guided, **dataclasses.asdict(times)})
        self.decodes[ranks] = min(self.decodes.get(ranks, times.decode_ms), times.decode_ms)


ONE_GUIDED = topology.Spread("one rank, guided", guided=True)


def measure_spread(run, model, spread, ranks, one, found):
    try:
        times = spread_out(run, model, spread, ranks)
    except Refused as refused:
        found.rows.append([spread.name, "not served", "", "", ""])
        if ranks == 2:  # more may be too many for the model's heads
            found.broken.append(f"{spread.name}: {refused}")
    except Failed as failure:
        found.rows.append([spread.name, "failed", "", "", ""])
        found.broken.append(f"{spread.name}: {failure}")
    else:
        found.add(run, spread, ranks, times, one[GUIDED if spread.guided else PLAIN])


def with_goal(run, what, value, relation, goal, digits):
    """A cell; where ranks have a GPU each, with the goal behind it, which is then judged."""
    text = f"{value:.{digits}f}"
    if goal is None or not run.apart:
        return text
    run.report.goal("steps", what, value, relation, goal)
    return f"{text} ({goal})"


def step_row(run, spread, ranks, times, base):
    ms_goal = None if spread.guided else MS_GOALS.get(spread.parallel)
    cells = [spread.name, with_goal(run, f"step of {spread.name}, ms", times.step_ms, "<=", ms_goal, 1),
             f"{times.step_p95_ms:.1f}", times.steps]
    if ranks == 1:
        return [*cells, ""]
    return [*cells, with_goal(run, f"efficiency of {spread.name}", efficiency(base.step_ms, times.step_ms, ranks), ">=",
                              EFFICIENCY_GOALS.get(spread.parallel), 2)]


def decode_row(run, ranks, ms, alone_ms):
    if ranks == 1:
        return [1, with_goal(run, "decode of one rank, ms", ms, "<=", DECODE_MS_GOAL, 0), ""]
    return [ranks, f"{ms:.0f}", with_goal(run, f"efficiency of spatial {ranks}", efficiency(alone_ms, ms, ranks), ">=",
                                          EFFICIENCY_GOALS.get(f"spatial: {ranks}"), 2)]


def show(run, found):
    size = f"{video_of(run)['frames']} frames {video_of(run)['size']}, {dtype_of(run)}"
    notes = ["From the end of one step to the end of the next; an unguided step is one forward pass, a guided one two. "
             "Efficiency: time of one rank / (ranks x time). Goals in brackets."]
    run.table("steps", f"Denoise step, {size}, by topology", ["topology", "step p50 ms", "p95", "steps", "efficiency"],
              found.rows, notes, figures=found.figures)
    rows = [decode_row(run, ranks, ms, found.decodes[1]) for ranks, ms in found.decodes.items()]
    run.table("steps", f"VAE decode, {size}, ranks share its height", ["ranks", "ms (best)", "efficiency"], rows,
              figures=found.decodes)


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
    run.table("throughput", f"Jobs a minute, {jobs} jobs at once, {steps_of} guided steps each, on two devices",
              ["size", *names, "ratio"], rows,
              figures=[{"size": size, "way": way, "jobs_per_minute": rate} for (size, way), rate in rates.items()])


