"""latentd as a user starts it, driven through latentctl: what a host with nothing but the tarball and torch can do."""
import json
import pathlib
import tempfile
import time
import urllib.request

from gpu_bench.children import TAIL, Failed

ROOT = pathlib.Path(__file__).resolve().parents[3]
READY_SECONDS = 180
STOP_SECONDS = 30
REFUSED_CODE = 2  # of latentd: a bad topology


def find_programs(folder=None):
    """The folder of latentd and latentctl: the one that is named, else of the runfiles, the tarball or the last build."""
    candidates = [pathlib.Path(folder)] if folder else [pathlib.Path.cwd() / "tools", ROOT, ROOT / "bazel-bin" / "tools"]
    for candidate in candidates:
        if (candidate / "latentd").is_file() and (candidate / "latentctl").is_file():
            return candidate.resolve()
    raise Failed(f"no latentd in {', '.join(map(str, candidates))}: bazel build //tools:all, or name its folder with --programs")


class Refused(Failed):
    """latentd does not serve this topology."""


class JobFailed(Failed):
    def __init__(self, job):
        super().__init__(f"job {job['id']}: {job['state']}: {job.get('error', {}).get('message', 'no message')}")
        self.job = job


class Daemon:
    """with Daemon(children, programs, topology, log) as daemon: ...  topology: a text, or the path of a file."""

    def __init__(self, children, programs, topology, log):
        self.children, self.programs, self.topology, self.log = children, programs, topology, pathlib.Path(log)
        self.process = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="ld")
        self.folder = pathlib.Path(self._folder.name)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        config = self.topology
        if not isinstance(config, pathlib.Path):
            config = self.folder / "topology.yaml"
            config.write_text(self.topology)
        ports = self.folder / "ports"
        self.process = self.children.start(
            [self.programs / "latentd", "--config", config, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
             "--ports-file", ports], log=self.log, environment={"XDG_RUNTIME_DIR": str(self.folder)})
        end = time.monotonic() + READY_SECONDS
        while not self._ready(ports):
            if self.process.poll() is not None:
                kind = Refused if self.process.returncode == REFUSED_CODE else Failed
                raise kind(f"latentd ended with {self.process.returncode} while it started: {self.said()}")
            if time.monotonic() > end:
                raise Failed(f"latentd was not ready within {READY_SECONDS} s: {self.said()}")
            time.sleep(0.05)

    def _ready(self, ports):
        try:
            self.ports = dict(line.split("=", 1) for line in ports.read_text().split())
            return urllib.request.urlopen(f"http://{self.ports['http']}/readyz", timeout=5).status == 200
        except (OSError, ValueError, KeyError):
            return False

    def said(self):
        """Its last line, which tells the cause, and those before."""
        text = self.log.read_text(errors="replace")[-TAIL:].rstrip()
        return f"{text.splitlines()[-1] if text else 'it said nothing'}\n{text}"

    def __exit__(self, *unused):
        if self.process is not None:
            self.children.end(self.process, STOP_SECONDS)
        self._folder.cleanup()

    # ---- the client -----------------------------------------------------------------------------------------

    def _command(self, *arguments):
        return [self.programs / "latentctl", "--endpoint", self.ports["grpc"], *arguments]

    def ctl(self, *arguments, seconds=60):
        return self.children.output(self._command(*arguments), seconds)

    def json(self, *arguments, seconds=60):
        return json.loads(self.ctl("--json", *arguments, seconds=seconds))

    def submit(self, job, **changes):
        """The id of a job with these parameters, {"frames": 17, ...}, as options of latentctl."""
        return self.json("submit", *self._options({**job, **changes}), "--detach")["id"]

    def submit_and_follow(self, job, seconds):
        """The job when it is over, by one process: the next one can follow within 10 ms."""
        return self.json("submit", *self._options(job), "--output", self.folder / "output", seconds=seconds)

    @staticmethod
    def _options(job):
        options = []
        for name, value in job.items():
            options += [f"--{name}"] if value is True else [f"--{name}", value]
        return options

    def wait(self, job_id, seconds):
        """The job once it is over; JobFailed unless it succeeded."""
        self.children.run(self._command("watch", job_id), seconds)
        job = self.json("get", job_id)
        if job["state"] != "JOB_STATE_SUCCEEDED":
            raise JobFailed(job)
        return job

    def run(self, job, seconds, **changes):
        return self.wait(self.submit(job, **changes), seconds)

    def wait_step(self, job_id, stage, step, seconds):
        """Until the job has done so many steps of the stage."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.json("get", job_id)
            done = next((each.get("step", 0) for each in job["stages"] if each["stage"] == stage), 0)
            if done >= step:
                return
            if job["state"] not in ("JOB_STATE_QUEUED", "JOB_STATE_RUNNING"):
                raise JobFailed(job)
            time.sleep(0.02)
        raise Failed(f"job {job_id}: not at step {step} of {stage} within {seconds:g} s")

    def download(self, job_id, path, seconds=60):
        self.ctl("download", job_id, "-o", path, seconds=seconds)
        return path

    def trace(self, job_id):
        path = self.folder / "trace.json"
        self.ctl("trace", job_id, "-o", path)
        return json.loads(path.read_text())["traceEvents"]

    def group(self, name):
        return next(group for group in self.json("topology")["groups"] if group["name"] == name)

    def wait_group(self, name, epoch, seconds=120):
        """The group once all of its ranks are ready in this epoch or a later one."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            group = self.group(name)
            if int(group["epoch"]) >= epoch and all(worker["state"] in ("WORKER_STATE_READY", "WORKER_STATE_BUSY")
                                                    for worker in group["workers"]):
                return group
            time.sleep(0.1)
        raise Failed(f"group {name} was not ready in epoch {epoch} within {seconds:g} s")
