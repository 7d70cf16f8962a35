"""Child processes that cannot outlive their deadline, nor this program."""
import os
import signal
import subprocess
import threading

TAIL = 2000  # of a child's output, in a failure's text
GRACE_SECONDS = 10  # for a child to end what it started itself


class Failed(Exception):
    """A part cannot go on. The text says what was tried and what came of it."""


class Children:
    """Runs programs, each in a session of its own, and ends those that still run when it is left. Thread: any."""

    def __init__(self):
        self._lock = threading.Lock()
        self._running = set()
        self._closed = False

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            self.end(process, GRACE_SECONDS)

    def start(self, command, log=None, environment=None, **kwargs):
        """log: a path for both outputs."""
        if log is not None:
            kwargs = {"stdout": open(log, "wb"), "stderr": subprocess.STDOUT, **kwargs}
        try:
            with self._lock:
                if self._closed:
                    raise Failed("the run is being ended")
                process = subprocess.Popen([str(word) for word in command], env={**os.environ, **(environment or {})},
                                           stdin=subprocess.DEVNULL, start_new_session=True, **kwargs)
                self._running.add(process)
        except OSError as error:
            raise Failed(f"{command[0]} does not start: {error}") from None
        finally:
            if log is not None:
                kwargs["stdout"].close()
        return process

    def end(self, process, seconds):
        """SIGTERM, and SIGKILL to the whole session after `seconds`; the exit code."""
        if process.poll() is None and seconds > 0:
            process.terminate()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        with self._lock:
            self._running.discard(process)
        return process.returncode

    def wait(self, process, seconds, what):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end(process, GRACE_SECONDS)
            raise Failed(f"{what}: not over within {seconds:g} s") from None
        return self.end(process, 0)

    def run(self, command, seconds, **kwargs):
        """(exit code, standard output, standard error) of a program that ends by itself."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end(process, GRACE_SECONDS)
            raise Failed(f"{' '.join(map(str, command))}: not over within {seconds:g} s") from None
        finally:
            self.end(process, 0)
            for pipe in (process.stdout, process.stderr):
                pipe.close()
        return process.returncode, output, errors

    def output(self, command, seconds, **kwargs):
        """Standard output of a program that must succeed."""
        code, output, errors = self.run(command, seconds, **kwargs)
        if code != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit {code}\n{(output + errors)[-TAIL:]}")
        return output
