"""A whole latentd in a folder of its own, for tests: starts it on free ports, waits until it is ready, and proves at the
end that nothing of it is left."""
import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def find_binary(name):
    """The binary among this test's runfiles, or of the last build in the tree."""
    for folder in (pathlib.Path.cwd(), ROOT):
        for candidate in (folder / "tools" / name, folder / "bazel-bin" / "tools" / name):
            if candidate.is_file():
                return str(candidate)
    raise FileNotFoundError(f"{name}: build //tools:{name} first")


def script(case, text):
    """An executable file of this text, as long as the test case runs."""
    path = pathlib.Path(case.enterContext(tempfile.TemporaryDirectory(prefix="ld"))) / "program"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def at_most(seconds):
    """A test's bound for what is promised within so many seconds: it is promised of processors that are free, and these have
    other work too. Never less than what no machine takes for what is done at once; what is not done takes far longer."""
    return max(10.0, seconds * 2 * os.getloadavg()[0] / os.cpu_count())


def wait_until(condition, seconds, what):
    """Polls, because the other side is a process; fails with `what` at the deadline, which may be a function of what is then."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(0.02)


def descriptors(pid):
    """What a process has open, as its links in /proc name it."""
    targets = []
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:
            pass  # closed since the folder was read
    return targets


def processes(marker):
    """(pid, command line) of the live processes whose command line or environment names `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if state != "Z" and int(entry.name) != os.getpid() and (marker in command or f"LATENTD_TEST={marker}" in environment):
            found.append((int(entry.name), command))
    return found


class Daemon:
    """with Daemon(topology_text) as daemon: ...  The text may say {root} for the tree and {folder} for the daemon's own.
    flags: {"--flag": value} of latentd, over the usual ones. limits: its resource limits, {resource.RLIMIT_...: value}.
    prefix: a command line that executes it."""

    def __init__(self, topology, ready_seconds=240, environment=None, flags=None, limits=None, prefix=()):
        self.topology = topology
        self.limits = limits or {}
        self.prefix = prefix
        self.ready_seconds = ready_seconds
        self.environment = environment or {}
        self.flags = flags or {}
        self.grpc = self.http = self.process = None

    def __enter__(self):
        self.launch()
        try:
            self._wait_ready()
        except Exception:
            print(self.log()[-8000:])
            self.kill()
            raise
        return self

    def launch(self):
        self._folder = tempfile.TemporaryDirectory(prefix="ld")
        self.folder = pathlib.Path(self._folder.name)
        config = self.folder / "topology.yaml"
        config.write_text(self.topology.replace("{root}", str(ROOT)).replace("{folder}", str(self.folder)))
        self.log_path = self.folder / "latentd.log"
        environment = {**os.environ, "LATENTD_TEST": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder), **self.environment}
        flags = {"--config": config, "--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", "--ports-file": self.folder / "ports",
                 "--worker-binary": find_binary("latent-worker"), "--encoder-binary": find_binary("latent-encoder"), **self.flags}
        command = [*self.prefix, find_binary("latentd"), *(str(word) for flag in flags.items() for word in flag)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([word.replace("{folder}", str(self.folder)) for word in command], stdout=log,
                                            stderr=subprocess.STDOUT, env=environment, start_new_session=True,
                                            preexec_fn=self._set_limits if self.limits else None)

    def _set_limits(self):
        for limit, value in self.limits.items():
            resource.setrlimit(limit, (value, value))

    @classmethod
    def refused(cls, topology, seconds=120, **kwargs):
        """(exit code, what it printed) of a daemon that must end by itself within `seconds`, leaving nothing."""
        daemon = cls(topology, **kwargs)
        daemon.launch()
        try:
            code = daemon.process.wait(seconds)
            wait_until(lambda: not processes(str(daemon.folder)), at_most(1), lambda: f"no process left: {processes(str(daemon.folder))}")
            return code, daemon.log()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {seconds} s:\n{daemon.log()[-8000:]}") from None
        finally:
            daemon.clean_up()

    def clean_up(self):
        self.kill()
        for pid, _ in processes(str(self.folder)):
            os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()

    def _wait_ready(self):
        ports = self.folder / "ports"

        def there():
            if self.process.poll() is not None:
                raise RuntimeError(f"latentd ended with {self.process.returncode} while starting")
            return ports.exists() and ports.read_text().endswith("\n")

        wait_until(there, self.ready_seconds, lambda: f"latentd ready; so far it said:\n{self.log()[-8000:]}")
        values = dict(line.split("=", 1) for line in ports.read_text().split())
        self.grpc, self.http = values["grpc"], values["http"]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def workers(self):
        return [(pid, command) for pid, command in processes(str(self.folder)) if command.split(" ")[0].endswith("latent-worker")]

    def metrics(self):
        """name{labels} -> value of the samples."""
        text = urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30).read().decode()
        samples = (line.rsplit(" ", 1) for line in text.split("\n") if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def ctl(self, *arguments, timeout=240, check=True, **kwargs):
        words = [word if isinstance(word, bytes) else str(word) for word in arguments]
        result = subprocess.run([find_binary("latentctl"), "--endpoint", self.grpc, *words], timeout=timeout, capture_output=True, text=True, **kwargs)
        if check and result.returncode != 0:
            raise AssertionError(f"latentctl {arguments}: exit {result.returncode}\n{result.stdout}{result.stderr}\n{self.log()[-4000:]}")
        return result

    def signal_everything(self, number):
        """To every process, workers and encoders first, as a service manager does that does not look at who belongs to whom."""
        pids = [pid for pid, _ in processes(str(self.folder)) if pid != self.process.pid]
        for pid in [*pids, self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, seconds=60):
        """One Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def assert_nothing_left(self):
        wait_until(lambda: not processes(str(self.folder)), 20, lambda: f"no process left: {processes(str(self.folder))}")
        if self.process.returncode == 0:
            sockets = [path for path in self.folder.rglob("*") if path.is_socket()]
            assert not sockets, f"sockets left: {sockets}"

    def __exit__(self, kind, value, traceback):
        try:
            if kind is not None:
                print(self.log()[-8000:])
            if self.process.poll() is None and kind is None:
                code = self.stop()
                assert code == 0, f"latentd exited with {code} after Ctrl-C:\n{self.log()[-4000:]}"
            self.kill()
            # A test that fails outside of the `with` does not say so here.
            ended = self.process.returncode
            assert ended in (0, 1, 3, -signal.SIGKILL), f"latentd ended with {ended}:\n{self.log()[-8000:]}"
            if kind is None:
                self.assert_nothing_left()
        finally:
            self.clean_up()
