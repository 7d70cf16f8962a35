"""What is wrong with a request is said at submission, by field, value and a valid one; the daemon stays up."""
import math
import pathlib
import sys
import unittest

import grpc
from google.protobuf.duration_pb2 import Duration

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api, bad_fields_of, code_of
from daemon import Daemon

INVALID = grpc.StatusCode.INVALID_ARGUMENT

# parameters of the request, words that the refusal must say
REFUSED = [
    (dict(frames=0), ["frames", "0"]),
    (dict(frames=16), ["frames", "16", "13", "17"]),
    (dict(frames=10**9), ["frames", "1000000000"]),
    (dict(width=0, height=0), ["width"]),
    (dict(width=127, height=128), ["width", "127", "112", "128"]),
    (dict(width=128, height=129), ["height", "129", "128", "144"]),
    (dict(width=10**6, height=10**6), ["1000000"]),
    (dict(steps=0), ["steps", "0"]),
    (dict(steps=10**6), ["steps", "1000000"]),
    (dict(guidance_scale=math.nan), ["guidance"]),
    (dict(guidance_scale=math.inf), ["guidance"]),
    (dict(guidance_scale=-1.0), ["guidance", "-1"]),
    (dict(fps=0.0), ["fps", "0"]),
    (dict(fps=math.nan), ["fps"]),
    (dict(fps=1e9), ["fps"]),
    (dict(fps=0.001), ["fps", "0.001", "0.01"]),
    (dict(fps=240.0, format=api.OUTPUT_FORMAT_GIF), ["fps", "240", "GIF", "100"]),
    (dict(flow_shift=0.0), ["flow_shift"]),
    (dict(flow_shift=math.nan), ["flow_shift"]),
    (dict(prompt=""), ["prompt"]),
    (dict(prompt="x" * 100_000), ["prompt", "100000"]),
    (dict(prompt="a\0b"), ["prompt", "NUL"]),
    (dict(negative_prompt="a\0b"), ["negative_prompt", "NUL"]),
    (dict(negative_prompt="x" * 100_000), ["negative_prompt", "100000"]),
    (dict(format=99), ["format", "99"]),
    (dict(format=api.OUTPUT_FORMAT_MP4, float_pixels=True), ["float_pixels"]),
]


class RefusalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(topologies.demo()))
        cls.client = cls.enterClassContext(Client(cls.daemon.grpc))

    def test_each_bad_parameter_is_named(self):
        for parameters, words in REFUSED:
            with self.subTest(str(parameters)[:80]):
                code, text = code_of(lambda: self.client.submit(**parameters))
                self.assertEqual(code, INVALID, text)
                for word in words:
                    self.assertIn(word, text)
                self.assertLess(len(text), 1000, "a refusal does not repeat the whole input")
                field = next(iter(parameters)) if (parameters.get("width"), parameters.get("height")) != (128, 129) else "height"
                field = "size" if parameters.get("width") == 10**6 else field
                field = "float_pixels" if "float_pixels" in parameters else field
                self.assertEqual(bad_fields_of(lambda: self.client.submit(**parameters)), [(field, text)])

    def test_other_bad_fields_are_named_too(self):
        jobs, parameters = self.client.jobs, api.JobParameters(prompt="x")
        calls = {
            "priority": lambda: jobs.Submit(api.SubmitRequest(parameters=parameters, priority=101), timeout=30),
            "retries": lambda: jobs.Submit(api.SubmitRequest(parameters=parameters, retries=2), timeout=30),
            "request_id": lambda: jobs.Submit(api.SubmitRequest(parameters=parameters, request_id="x" * 200), timeout=30),
            "deadline": lambda: jobs.Submit(api.SubmitRequest(parameters=parameters, deadline=Duration(seconds=-1)), timeout=30),
            "stall_timeout": lambda: jobs.Submit(api.SubmitRequest(parameters=parameters, stall_timeout=Duration(nanos=1)), timeout=30),
            "page_size": lambda: jobs.List(api.ListJobsRequest(page_size=1001), timeout=30),
            "page_token": lambda: jobs.List(api.ListJobsRequest(page_token="nonsense"), timeout=30),
            "states": lambda: jobs.List(api.ListJobsRequest(states=[77]), timeout=30),
        }
        for field, call in calls.items():
            with self.subTest(field):
                self.assertEqual(code_of(call)[0], INVALID)
                self.assertEqual([name for name, _ in bad_fields_of(call)], [field])
        self.assertEqual(bad_fields_of(lambda: self.client.get("nobody")), [], "an error that is about no field names none")

    def test_a_prompt_that_is_no_utf8(self):
        good = api.SubmitRequest(parameters=api.JobParameters(prompt="abc")).SerializeToString()
        bad = good.replace(b"abc", b"a\xffc")
        call = self.client.channel.unary_unary("/latentd.v1.Jobs/Submit", request_serializer=lambda raw: raw,
                                               response_deserializer=api.Job.FromString)
        code, text = code_of(lambda: call(bad, timeout=30))
        self.assertEqual((code, text), (INVALID, "prompt is not UTF-8: byte 0xff at offset 1; send it as UTF-8"))
        # grpcio does not even send a text that has no UTF-8; latentctl says which argument it is.
        with self.assertRaises(ValueError):
            self.client.submit(prompt="a\udcffc")
        for option, words in (("--prompt", "--prompt: byte 1 is not valid UTF-8"), ("--negative-prompt", "--negative-prompt: byte 1")):
            arguments = {"--prompt": "x", option: b"a\xffc"}
            result = self.daemon.ctl("submit", *(word for pair in arguments.items() for word in pair), check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(words, result.stderr)

    def test_unknown_jobs(self):
        for call in (self.client.get, self.client.cancel, self.client.wait, self.client.download):
            code, text = code_of(lambda: call("no-such-job"))
            self.assertEqual(code, grpc.StatusCode.NOT_FOUND)
            self.assertIn("no-such-job", text)

    def test_the_command_line_refuses_too(self):
        for arguments in (("--frames", "-1"), ("--frames", "16"), ("--size", "127x129"), ("--size", "0x0"), ("--size", "big"),
                          ("--steps", "0"), ("--guidance", "nan"), ("--seed", "-1")):
            with self.subTest(arguments):
                result = self.daemon.ctl("submit", "--prompt", "x", "-o", self.daemon.folder / "x.npy", *arguments, check=False)
                self.assertNotEqual(result.returncode, 0)
                named = "width" if arguments[0] == "--size" and "x" in arguments[1] else arguments[0].strip("-")
                self.assertIn(named, result.stderr)

    def test_it_still_works_afterwards(self):
        job = self.client.wait(self.client.submit("a red ball moves right", frames=5, width=64, height=64, steps=1).id)
        self.assertEqual(job.state, api.JOB_STATE_SUCCEEDED, job.error)


if __name__ == "__main__":
    unittest.main()
