"""What every part of a run is given, and several things at once."""
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import time
import traceback

from gpu_bench import topology
from gpu_bench.children import Children, Failed
from gpu_bench.daemon import ROOT, Daemon
from gpu_bench.report import Report

CORES_PER_DAEMON = 4  # three to five workers, which are busy only while they load
DAEMONS_MAX = 6       # of a GPU that they share: contexts take turns

SMALL_MODEL = ROOT / "configs" / "moving-shapes"


def unexpected():
    """Of the exception that is being handled: it in one line, and where it comes from."""
    text = traceback.format_exc().rstrip()
    return f"{text.splitlines()[-1]}\n{text}"


@dataclasses.dataclass
class Run:
    children: Children
    programs: pathlib.Path
    devices: list          # of the ranks, in order; at least two, equal where they share one
    out: pathlib.Path
    report: Report
    quick: bool
    tiny: bool
    model: pathlib.Path    # whose speed is measured; None: random weights are made

    @property
    def on_gpus(self):
        return all(map(topology.is_gpu, self.devices))

    @property
    def apart(self):
        """Whether each rank has a GPU of its own."""
        return self.on_gpus and not topology.share(self.devices)

    @property
    def void(self):
        """Why figures of this run say nothing about the speed of several GPUs; empty where they do."""
        if not self.on_gpus:
            return "ranks share the CPU"
        if not self.apart:
            return "ranks share a GPU"
        return "--tiny" if self.tiny else ""

    def table(self, part, title, head, rows, notes=(), **figures):
        """As Report.table(); what is void is said in the title, which goes wherever the figures go."""
        void = f" (void: {self.void})" if self.void else ""
        self.report.table(part, title + void, head, rows, notes, void=self.void, **figures)

    @property
    def one_device(self):
        """Two ranks on the first device, which two that are apart are compared with."""
        return [self.devices[0]] * 2

    def daemon(self, name, text):
        return Daemon(self.children, self.programs, text, self.log(name))

    def log(self, name):
        """Where what a child of this name says is kept."""
        folder = self.out / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".log")

    def visible_devices(self, devices):
        """The environment of a program that takes the first GPUs that it sees: these."""
        wanted = [int(device.split(":")[1]) for device in devices]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [seen.split(",")[index] if seen else str(index) for index in dict.fromkeys(wanted)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names)}

    def side_by_side(self, tasks):
        """{name: function} -> {name: result or Failed}; for what is not timed."""
        width = max(1, min(DAEMONS_MAX, (os.cpu_count() or 1) // CORES_PER_DAEMON))
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            futures = {name: pool.submit(self._one, name, task) for name, task in tasks.items()}
            return {name: future.result() for name, future in futures.items()}

    def _one(self, name, task):
        self.report.say(f"  {name} ...")
        started = time.monotonic()
        try:
            return task()
        except Failed as failure:
            return failure
        except Exception:  # whatever it is, the other tasks go on
            return Failed(unexpected())
        finally:
            self.report.say(f"  {name}: {time.monotonic() - started:.0f} s")
