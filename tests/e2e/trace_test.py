"""What `latentctl trace` shows of a job: every rank, and the order that early dispatch promises."""
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api, code_of
from daemon import Daemon, wait_until

# A replicated producer, two ranks that share each step, and a sink that is told early that it will have an input.
TOPOLOGY = """
groups:
  - {name: text, stage: noop, threads: 1, options: {bytes: 1048576, step_ms: 1000}}
  - {name: denoise, stage: noop, threads: 1, devices: [cpu, cpu], parallel: {tp: 2}, options: {step_ms: 500}}
  - {name: decode, stage: noop, threads: 1}
edges:
  - {from: text.source, to: denoise.relay}
  - {from: denoise.relay, to: decode.sink}
defaults: {frames: 5, size: 32x32, steps: 4, guidance: 1, fps: 8}
"""
RANKS = ["text/0", "denoise/0", "denoise/1", "decode/0"]


class Trace:
    def __init__(self, text):
        self.document = json.loads(text)
        self.events = self.document["traceEvents"]
        self.processes = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}

    def spans(self, rank, name):
        """(start, end) of the rank's spans of this name, in microseconds, by start."""
        found = [(e["ts"], e["ts"] + e.get("dur", 0)) for e in self.events
                 if e["ph"] in "Xi" and self.processes[e["pid"]] == rank and e["name"] == name]
        return sorted(found)

    def arrows(self):
        """(from, to) of the ranks that each arrow joins."""
        ends = {}
        for e in self.events:
            if e["ph"] in "sf":
                ends.setdefault(e["id"], {})[e["ph"]] = self.processes[e["pid"]]
        return sorted((end["s"], end["f"]) for end in ends.values())


class TraceTest(unittest.TestCase):
    def trace(self, daemon, job):
        path = daemon.folder / "t.json"
        daemon.ctl("trace", job, "-o", path)
        return Trace(path.read_text())

    def finished_trace(self, daemon, job):
        """With the last acknowledgement, which may come after the job's end."""
        def whole():
            trace = self.trace(daemon, job)
            return trace if all(trace.spans(rank, "acknowledged") for rank in ("text/0", "denoise/0")) else None
        return wait_until(whole, 60, "acknowledgements of both edges")

    def test_commands_are_there_before_the_tensors_and_every_rank_appears(self):
        with Daemon(TOPOLOGY) as daemon, Client(daemon.grpc) as client:
            job = client.wait(client.submit().id)
            self.assertEqual(job.state, api.JOB_STATE_SUCCEEDED, job.error)
            trace = self.finished_trace(daemon, job.id)
            self.assertEqual(sorted(trace.processes.values()), sorted(["latentd", *RANKS]))
            self.assertEqual(trace.document["otherData"], {"job": job.id, "dropped_spans": 0})
            self.check_inside(trace)
            self.check_hand_off(trace, "text/0", ["denoise/0", "denoise/1"])
            self.check_hand_off(trace, "denoise/0", ["decode/0"])
            self.assertEqual(trace.arrows(), [("denoise/0", "decode/0"), ("text/0", "denoise/0"), ("text/0", "denoise/1")])

    def check_inside(self, trace):
        ((queued, admitted),) = trace.spans("latentd", "queued")
        sent = trace.spans("latentd", "command sent, answer received")
        self.assertEqual(len(sent), len(RANKS))
        self.assertLessEqual(queued, admitted)
        self.assertTrue(all(admitted <= start for start, _ in sent), (admitted, sent))
        for rank in RANKS:
            (command,), (stage,) = trace.spans(rank, "command"), trace.spans(rank, "stage")
            # Its command was sent before it came, and its answer received after it was given.
            self.assertTrue(any(start <= command[0] and command[1] <= end for start, end in sent), (rank, command, sent))
            steps = [span for name in {e["name"] for e in trace.events} if name.startswith("step ")
                     for span in trace.spans(rank, name)]
            self.assertTrue(steps, rank)
            for start, end in [stage, *steps]:
                self.assertTrue(command[0] <= start <= end <= command[1], (rank, command, start, end))

    def check_hand_off(self, trace, producer, consumers):
        (publish,), (acknowledged,) = trace.spans(producer, "publish"), trace.spans(producer, "acknowledged")
        for start, end in trace.spans(producer, "staging copy"):
            self.assertTrue(publish[0] <= start <= end <= publish[1])
        self.assertTrue(trace.spans(producer, "staging copy"))
        for consumer in consumers:
            (command,), (wait,) = trace.spans(consumer, "command"), trace.spans(consumer, "wait for the artifact")
            (copy,), (acknowledge,) = trace.spans(consumer, "target copy"), trace.spans(consumer, "acknowledge")
            self.assertLess(command[0], publish[0], "the consumer's command comes before the tensor")
            self.assertLess(publish[0], copy[1])
            self.assertLessEqual(wait[1], copy[0])
            self.assertLessEqual(copy[1], acknowledge[0])
            self.assertLess(acknowledge[0], acknowledged[0])

    def test_a_job_that_runs_or_failed_has_what_was_answered(self):
        with Daemon(topologies.noop(relay="step_ms: 100, steps: 100")) as daemon, Client(daemon.grpc) as client:
            job = client.submit()
            client.watch_until(job.id, lambda job: len(job.stages) > 1 and job.stages[1].step > 0)
            trace = self.trace(daemon, job.id)
            self.assertEqual(len(trace.spans("first/0", "command")), 1)
            self.assertEqual(trace.spans("middle/0", "command"), [])
            self.assertEqual(len(trace.spans("latentd", "command sent, answer received")), 3)
            client.cancel(job.id)
            self.assertEqual(client.wait(job.id).state, api.JOB_STATE_CANCELLED)
            for rank in ("first/0", "middle/0", "last/0"):
                self.assertEqual(len(self.trace(daemon, job.id).spans(rank, "command")), 1, rank)

    def test_no_figure_of_a_job_comes_after_its_end(self):
        topology = topologies.noop(source="bytes: 65536", extra="deadlines: {heartbeat: 1m, heartbeat_miss: 10m}")
        with Daemon(topology) as daemon, Client(daemon.grpc) as client:
            for done in range(1, 31):
                job = client.wait(client.submit().id)
                self.assertEqual(job.state, api.JOB_STATE_SUCCEEDED, job.error)
                self.assertEqual([transfer.edge for transfer in job.transfers], ["first.source->middle.relay", "middle.relay->last.sink"])
                edges = client.admin.GetEdges(api.GetEdgesRequest(), timeout=30).edges
                self.assertEqual([(edge.handoffs, edge.bytes, edge.slots_in_use, edge.consumers[0].bytes) for edge in edges],
                                 [(done, done * 65536, 0, done * 65536)] * 2)
                metrics = daemon.metrics()
                for edge in edges:
                    self.assertEqual(metrics[f'latentd_handoff_seconds_count{{edge="{edge.name}"}}'], done)
                    self.assertEqual(metrics[f'latentd_edge_read_bytes_total{{edge="{edge.name}",rank="0"}}'], done * 65536)
                    self.assertEqual(metrics[f'latentd_slots_in_use{{edge="{edge.name}"}}'], 0)

    def test_bounds_are_kept_and_told_and_zero_keeps_nothing(self):
        with Daemon(topologies.noop(relay="steps: 100", extra="trace: {spans_max: 8}")) as daemon, Client(daemon.grpc) as client:
            job = client.wait(client.submit().id)
            self.assertGreater(self.trace(daemon, job.id).document["otherData"]["dropped_spans"], 90)
        with Daemon(topologies.noop(extra="trace: {spans_max: 0}")) as daemon, Client(daemon.grpc) as client:
            job = client.wait(client.submit().id)
            result = daemon.ctl("trace", job.id, check=False)
            self.assertEqual(result.returncode, 6, result.stderr)
            self.assertIn("trace.spans_max", result.stderr)


if __name__ == "__main__":
    unittest.main()
