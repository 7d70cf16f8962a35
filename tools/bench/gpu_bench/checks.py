"""Part A: what must hold on these devices before a figure means anything."""
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import tempfile
import time

from gpu_bench import mps, topology, videos
from gpu_bench.children import TAIL, Failed
from gpu_bench.daemon import ROOT, JobFailed
from gpu_bench.run import SMALL_MODEL

# Design, "Stages": a video in float32 is the reference's to 5e-5, its pixels in [0, 1]; in bfloat16 its error may be that of
# one rank in bfloat16. A quarter more, since other roundings of the same size are other numbers.
FLOAT32_WORST = 5e-5
BFLOAT16_RMS = 1.25

JOB = {"prompt": "a red circle moving right", "negative-prompt": "blurred", "seed": 3, "format": "npy", "float": True}
SMALL = {**JOB, "frames": 17, "size": "128x128", "steps": 16, "guidance": 2.5}
TINY = {**JOB, "frames": 5, "size": "64x64", "steps": 2, "guidance": 2.5}
JOB_SECONDS = 120


def job_of(run):
    return TINY if run.tiny else SMALL


# ---- peers ------------------------------------------------------------------------------------------------------

def peer(run, consumer):
    """What latentd makes of the first device and this one: how a tensor goes from one to the other."""
    producer = run.devices[0]
    text = topology.pipeline(SMALL_MODEL, [producer], [consumer], [producer])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        plan = json.loads(run.children.output([run.programs / "latentd", "--config", file.name, "--check", "--json"], 120))
    edge = plan["edges"][0]
    return f"{edge['transport']}: {edge['transport_reason']}"


def peer_tasks(run):
    return {f"{run.devices[0]} to {device}": lambda device=device: peer(run, device) for device in dict.fromkeys(run.devices[1:])}


# ---- suites -----------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Suite:
    name: str
    program: str
    filter: str
    gpus: int = 1       # that it needs at least
    quick: bool = True  # belongs to a quick run
    mps: bool = False   # its processes share a GPU through MPS
    seconds: int = 240


SUITES = [
    Suite("channel: contract and hand-off", "latentd-tests", "[channel][cuda]~[.]"),
    Suite("channel: kills in every slot state", "cuda_kill_test", "[kill][cuda]~[.]"),
    Suite("channel through MPS: contract and hand-off", "latentd-tests", "[channel][cuda]~[.]", quick=False, mps=True),
    Suite("channel through MPS: kills in every slot state", "cuda_kill_test", "[kill][cuda]~[.]", mps=True),
    Suite("process groups, attention and denoiser over ranks", "latentd-tests", "[mesh][cuda]~[.]"),
    Suite("collectives over NCCL", "latentd-tests", "[mesh][nccl]~[.]", gpus=2),
    Suite("spatial VAE over ranks that share a GPU", "latentd-tests", "spatial VAE: on a device*"),
    Suite("stages, workers and CUDA handles on a GPU", "latentd-tests", "[cuda]~[channel]~[mesh]~[.]", quick=False),
]


def find_test(programs, name):
    """Beside latentd in the tarball, else of the last build."""
    for path in (programs / name, ROOT / "bazel-bin/tests" / name, ROOT / "bazel-bin/tests/channel/cuda" / name):
        if path.is_file():
            return path
    raise Failed(f"{name} is not there: bazel build //tests:latentd-tests //tests/channel/cuda:cuda_kill_test")


def run_suite(run, suite, devices):
    """The summary of a Catch2 program that passed."""
    log = run.log(f"{suite.name} {len(set(devices))}")
    with mps.Mps(run.children) if suite.mps else contextlib.nullcontext({}) as environment:
        process = run.children.start([find_test(run.programs, suite.program), suite.filter, "--durations", "yes"], log=log,
                                     environment={**run.visible_devices(devices), **environment})
        code = run.children.wait(process, suite.seconds, suite.name)
    return judge_suite(code, log.read_text(errors="replace"), log.name)


def judge_suite(code, said, name):
    summary = re.search(r"^(All tests passed.*|test cases: .*)$", said, re.M)
    if code == 0 and summary and summary.group().startswith("All"):
        return summary.group()
    what = summary.group() if summary else "no test ran to its end"
    raise Failed(f"exit {code}, {what}, see {name}\n{said[-TAIL:]}")


def suite_tasks(run):
    if not run.on_gpus:
        run.report.check("suites", "C++ suites on devices", None, "no GPUs were named")
        return {}
    tasks = {}
    for suite in SUITES:
        if run.quick and not suite.quick:
            continue
        if suite.gpus > len(set(run.devices)):
            run.report.check("suites", suite.name, None, f"needs {suite.gpus} GPUs")
            continue
        if suite.mps and not mps.is_there():
            run.report.check("suites", suite.name, None, f"needs {mps.CONTROL}")
            continue
        tasks[suite.name] = lambda suite=suite: run_suite(run, suite, run.devices)
    return tasks


# ---- the same video from every topology -------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Case:
    """One topology that makes the video."""
    name: str
    dtype: str
    text: str
    group: str = ""          # of several ranks
    communication: str = ""  # that it must have chosen


def placements(run):
    """(what they are called, devices, what such ranks talk over), by how ranks lie on the devices."""
    if not run.on_gpus:
        return [("on the CPU", run.devices, "gloo")]
    shared = ("sharing a GPU", run.one_device, "gloo")
    return [("a GPU each", run.devices, "nccl"), shared] if run.apart else [shared]


def dtypes_of(run):
    return ["float32", "bfloat16"] if run.on_gpus else ["float32"]


def alone_cases(run):
    """What everything else is compared with."""
    first = run.devices[:1]
    return [Case(f"one rank, {dtype}", dtype, topology.pipeline(SMALL_MODEL, first, first, first, dtype, threads=1))
            for dtype in dtypes_of(run)]


def spread_cases(run):
    dtypes, found = dtypes_of(run), []
    for where, devices, communication in placements(run):
        # What differs between types is the same wherever ranks lie.
        for dtype in dtypes if (where, devices, communication) == placements(run)[0] else dtypes[:1]:
            for ranks in topology.rank_counts(devices):
                found += cases_of(devices[:ranks], dtype, where, communication, run.tiny)
    return found


def cases_of(devices, dtype, where, communication, tiny):
    ranks, first, last = len(devices), devices[:1], devices[-1:]
    spatial = topology.Spread(f"spatial {ranks}", f"spatial: {ranks}")
    if tiny:  # both in one
        spread = topology.spreads(ranks)[0]
        text = topology.pipeline(SMALL_MODEL, first, devices, devices, dtype, spread, spatial, threads=1)
        return [Case(f"{spread.name}, {spatial.name}, {where}, {dtype}", dtype, text, "denoise", communication)]
    spreads = topology.spreads(ranks)
    found = [Case(f"{spread.name}, {where}, {dtype}", dtype,
                  topology.pipeline(SMALL_MODEL, first, devices, last, dtype, spread, threads=1), "denoise", communication)
             for spread in spreads]
    text = topology.pipeline(SMALL_MODEL, first, first, devices, dtype, decode_spread=spatial, threads=1)
    return [*found, Case(f"{spatial.name}, {where}, {dtype}", dtype, text, "decode", communication)]


def make_video(run, case, folder):
    with run.daemon(case.name, case.text) as daemon:
        if case.group:
            chosen = daemon.group(case.group)["communication"]
            if chosen != case.communication:
                raise Failed(f"{case.group} talks over {chosen}, expected {case.communication}")
        job = daemon.run(job_of(run), JOB_SECONDS)
        if case.group:
            ranks = daemon.json("dump", case.group)["groups"][0]["ranks"]
            if any(int(rank["bytes_sent"]) == 0 for rank in ranks):
                raise Failed(f"a rank of {case.group} gave the others nothing: they did not work together")
        return videos.load(daemon.download(job["id"], folder / f"{job['id']}.npy"))


def judge(video, dtype, alone):
    """(whether it is right, why) of a video beside those that one rank made, by type."""
    worst = videos.worst(video, alone["float32"])
    if dtype == "float32":
        return worst <= FLOAT32_WORST, f"worst pixel {worst:.1e} from one rank's (at most {FLOAT32_WORST:.0e})"
    mine = videos.rms(video, alone["float32"])
    most = BFLOAT16_RMS * videos.rms(alone["bfloat16"], alone["float32"])
    return mine <= most, f"rms {mine:.2e} from one rank's in float32 (at most {most:.2e})"


def compare(run, part, name, result, dtype, alone):
    if isinstance(result, Failed):
        run.report.check(part, name, False, str(result))
    elif isinstance(alone[dtype], Failed) or isinstance(alone["float32"], Failed):
        run.report.check(part, name, False, "one rank made no video to compare with")
    else:
        run.report.check(part, name, *judge(result, dtype, alone))


# ---- killed ranks -----------------------------------------------------------------------------------------------

def long_job(run):
    """One that is still in its steps when a rank is killed."""
    return {**job_of(run), "steps": 100 if run.tiny else 400}


def kill_during(daemon, job_id, group, rank):
    """SIGKILL of a rank while the job denoises; the group's epoch until then."""
    daemon.wait_step(job_id, "denoise", 2, JOB_SECONDS)
    before = daemon.group(group)
    os.kill(before["workers"][rank]["pid"], signal.SIGKILL)
    return int(before["epoch"])


def expect_lost(daemon, job_id, rank):
    try:
        daemon.wait(job_id, JOB_SECONDS)
    except JobFailed as failed:
        if f"denoise rank {rank}" not in str(failed) or "SIGKILL" not in str(failed):
            raise Failed(f"the job of the killed rank {rank} does not say so: {failed}") from None
        return
    raise Failed(f"the job went on without rank {rank}")


def next_video(run, daemon, folder):
    job = daemon.run(job_of(run), JOB_SECONDS)
    return videos.load(daemon.download(job["id"], folder / f"{job['id']}.npy"))


def kill_ranks(run, text, folder):
    """Each rank of the denoiser in turn: its job is lost, its group comes back, the next video is right."""
    found = []
    with run.daemon("kills of ranks", text) as daemon:
        ranks = len(daemon.group("denoise")["workers"])
        for rank in range(ranks):
            job_id = daemon.submit(long_job(run))
            epoch = kill_during(daemon, job_id, "denoise", rank)
            expect_lost(daemon, job_id, rank)
            started = time.monotonic()
            daemon.wait_group("denoise", epoch + 1)
            seconds = time.monotonic() - started
            found.append((f"video after rank {rank} of {ranks} was killed (group back in {seconds:.1f} s)",
                          next_video(run, daemon, folder), "float32"))
    return found


def kill_retried(run, text, folder):
    """With --retry the job of a killed rank is run again; the death of a consumer costs it nothing but time."""
    with run.daemon("kills with retry", text) as daemon:
        job_id = daemon.submit(long_job(run), retry=True)
        kill_during(daemon, job_id, "denoise", 1)
        job = daemon.wait(job_id, JOB_SECONDS)
        if job["restarts"] != 1:
            raise Failed(f"the job succeeded after {job['restarts']} restarts, expected 1")
        job_id = daemon.submit(long_job(run), retry=True)
        epoch = kill_during(daemon, job_id, "decode", 0)
        daemon.wait(job_id, JOB_SECONDS)
        daemon.wait_group("decode", epoch + 1)
        return [("video after a retried job and a killed decoder", next_video(run, daemon, folder), "float32")]


def kill_tasks(run, folder):
    where, devices, _ = placements(run)[0]
    text = topology.pipeline(SMALL_MODEL, devices[:1], devices[:2], devices[-1:], "float32",
                             topology.Spread("ulysses 2", "ulysses: 2"), threads=1)
    tasks = {f"kill ranks, {where}": lambda: kill_ranks(run, text, folder)}
    if not run.tiny:
        tasks[f"kill with retry, {where}"] = lambda: kill_retried(run, text, folder)
    return tasks


# ---- files that are shipped -------------------------------------------------------------------------------------

def shipped(run):
    """The file that these devices are for, and its element type."""
    if {"cuda:0", "cuda:1"} <= set(run.devices):
        return "two-gpus.yaml", "bfloat16"
    run.report.check("files", "configs/two-gpus.yaml", None, "needs cuda:0 and cuda:1")
    return ("one-gpu.yaml", "bfloat16") if "cuda:0" in run.devices else ("demo.yaml", "float32")


def video_of_file(run, name, dtype, folder):
    with run.daemon(name, ROOT / "configs" / name) as daemon:
        edges = ", ".join(f"{edge['name']} {edge['transport']}" for edge in daemon.json("edges")["edges"])
        return [(f"configs/{name} makes a video ({edges})", next_video(run, daemon, folder), dtype)]


def file_tasks(run, folder):
    name, dtype = shipped(run)
    return {f"configs/{name}": lambda: video_of_file(run, name, dtype, folder)}


# ---- all of them ------------------------------------------------------------------------------------------------

def checks(run, parts):
    """Side by side, since nothing is timed here. What makes videos is compared at the end with what one rank made."""
    with tempfile.TemporaryDirectory(prefix="ld") as name:
        folder = pathlib.Path(name)
        plain = {"suites": suite_tasks(run) if "suites" in parts else {},
                 "peers": peer_tasks(run) if "peers" in parts else {}}
        spreads = {case.name: case for case in spread_cases(run)} if "parity" in parts else {}
        several = {"kills": kill_tasks(run, folder) if "kills" in parts else {},
                   "files": file_tasks(run, folder) if "files" in parts else {}}
        alone = {case.name: case for case in alone_cases(run)} if spreads or any(several.values()) else {}
        tasks = {key: task for group in [*plain.values(), *several.values()] for key, task in group.items()}
        tasks.update({case.name: lambda case=case: make_video(run, case, folder) for case in [*alone.values(), *spreads.values()]})
        results = run.side_by_side(tasks)
    for part, group in plain.items():
        for key in group:
            run.report.check(part, key, not isinstance(results[key], Failed), str(results[key]))
    judge_videos(run, results, {case.dtype: results[key] for key, case in alone.items()}, spreads, several)


def judge_videos(run, results, alone, spreads, several):
    for dtype, video in alone.items():
        failed = isinstance(video, Failed)
        run.report.check("parity", f"one rank, {dtype}", not failed, str(video) if failed else f"a video of {list(video.shape)}")
    for name, case in spreads.items():
        compare(run, "parity", name, results[name], case.dtype, alone)
    for part, group in several.items():
        for name in group:
            found = results[name]
            for what, video, dtype in [(name, found, "float32")] if isinstance(found, Failed) else found:
                compare(run, part, what, video, dtype, alone)
