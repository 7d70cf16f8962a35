"""NVIDIA's Multi-Process Service for a part of a run: its processes use a GPU side by side instead of taking turns."""
import pathlib
import shutil
import tempfile
import time

from gpu_bench.children import Failed

CONTROL = "nvidia-cuda-mps-control"
START_SECONDS, END_SECONDS = 20, 30


def is_there():
    return shutil.which(CONTROL) is not None


class Mps:
    """with Mps(children) as environment: what is started with that environment is served, and nothing else."""

    def __init__(self, children):
        self.children = children

    def __enter__(self):
        if not is_there():
            raise Failed(f"{CONTROL} is not there: it comes with NVIDIA's driver")
        self._folder = tempfile.TemporaryDirectory(prefix="mps")
        self._environment = {name: self._folder.name for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
        # In the foreground, as a child: its end is ours to see to.
        self._control = self.children.start([CONTROL, "-f"], log=pathlib.Path(self._folder.name) / "output",
                                            environment=self._environment)
        try:
            self._tell("get_server_list", START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self._environment

    def _tell(self, command, seconds):
        """Once it listens."""
        end = time.monotonic() + seconds
        while True:
            code, output, errors = self.children.run(["sh", "-c", f"echo {command} | {CONTROL}"], seconds,
                                                     environment=self._environment)
            if code == 0:
                return
            if self._control.poll() is not None or time.monotonic() > end:
                raise Failed(f"{CONTROL} {command}: exit {code}\n{output}{errors}")
            time.sleep(0.1)

    def __exit__(self, *unused):
        try:
            if self._control.poll() is None:
                self._tell("quit", END_SECONDS)
        finally:
            self.children.end(self._control, START_SECONDS)
            self._folder.cleanup()
