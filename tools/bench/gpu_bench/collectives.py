"""What NCCL itself takes through torch for what Ulysses and tensor parallelism exchange: the floor of their figures."""
import json
import pathlib
import sys
import tempfile

from gpu_bench.children import TAIL, Failed

# What two H200 took elsewhere (baselines.md), ms: all-to-all alone and with the copy that packs it.
ELSEWHERE = {
    "all-to-all, 12 heads, sequence 32,760": [0.160, 0.266],
    "all-to-all, 40 heads, sequence 32,760": [0.399, 0.598],
    "all-to-all, 40 heads, sequence 75,600": [0.783, 1.229],
    "all-reduce, 4 KiB": [0.085],
    "all-reduce, 128 MiB": [0.576],
}
REPRODUCED = 0.25  # of the figure from elsewhere
SECONDS = 150


def is_reproduced(here, elsewhere):
    return all(abs(mine - theirs) <= REPRODUCED * theirs for mine, theirs in zip(here, elsewhere, strict=True))


def measure(run):
    devices = run.devices[:2]
    program = pathlib.Path(__file__).resolve().with_name("collectives_rank.py")
    logs = [run.log(f"collectives {rank}") for rank in range(len(devices))]
    with tempfile.TemporaryDirectory(prefix="ld") as folder:
        command = [sys.executable, program, "--meet", f"{folder}/meet", "--ranks", len(devices), *(["--tiny"] if run.tiny else [])]
        ranks = [run.children.start([*command, "--rank", rank, "--device", device], log=logs[rank])
                 for rank, device in enumerate(devices)]
        codes = [run.children.wait(process, SECONDS, "collectives") for process in ranks]
    said = logs[0].read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if any(codes) or not lines:
        raise Failed(f"collectives: exit {codes}, see {logs[0].name}\n{said[-TAIL:]}")
    return json.loads(lines[0])


def milliseconds(times):
    return " / ".join(f"{time:.3f}" for time in times)


def collectives(run):
    if run.on_gpus and not run.apart:
        run.report.check("collectives", "NCCL through torch", None, "NCCL refuses two ranks on one GPU")
        return
    found = measure(run)
    if not run.on_gpus:  # nothing to compare with
        run.table("collectives", "Collectives of two ranks through torch, p50 in ms", ["what", "here"],
                  [[name, milliseconds(here)] for name, here in found.items()], figures=found)
        return
    rows = [[name, milliseconds(here), milliseconds(ELSEWHERE[name]), "yes" if is_reproduced(here, ELSEWHERE[name]) else "no"]
            for name, here in found.items()]
    void = [row[0] for row in rows if row[-1] == "no"]
    notes = ["All-to-all of bfloat16, 10 after the other: alone / with the copy that packs it. 4 KiB: one at a time. "
             "Elsewhere: two other H200, NCCL 2.28.9."]
    if void:
        notes.append(f"Not reproduced, so void on this machine (off by more than {REPRODUCED:.0%}): {'; '.join(void)}.")
    run.table("collectives", "Collectives of two ranks through torch, p50 in ms",
              ["what", "here", "elsewhere", "reproduced"], rows, notes, figures=found)
