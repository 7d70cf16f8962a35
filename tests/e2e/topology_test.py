"""Topologies and surroundings that cannot work: refused by name, with what would be valid, before anything is left behind."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from daemon import Daemon, find_binary

ONE = "groups:\n  - {name: a, stage: noop, method: sink}\n"
TWO = "groups: [{name: a, stage: noop}, {name: b, stage: noop}]\n"

# file, line that is named, words that the refusal must say
REFUSED = [
    (ONE + "bogus: 3\n", 3, ["bogus", "unknown key", "'3'", "listen", "restart"]),
    (ONE + "deadlines: {lod: 5s}\n", 3, ["deadlines.lod", "did you mean 'load'", "stall"]),
    (ONE + "deadlines: {load: 5}\n", 3, ["deadlines.load", "'5'", "ms, s, m, h, d"]),
    (ONE + "deadlines:\n  load: 2m\n  stall: -1s\n", 5, ["deadlines.stall", "-1s", "100ms"]),
    (ONE + "queue: {length_max: 0}\n", 3, ["queue.length_max", "'0'", "1 to 100000"]),
    (ONE + "queue: {length_max: 99999999999999999999}\n", 3, ["queue.length_max", "1 to 100000"]),
    (ONE + "queue: [1]\n", 3, ["queue", "mapping"]),
    (ONE + "spool: {bytes_max: 1 elephant}\n", 3, ["spool.bytes_max", "1 elephant", "64MiB"]),
    (ONE + "log: {level: loud}\n", 3, ["log.level", "loud", "trace, debug, info, warn, error"]),
    (ONE + "listen: nowhere\n", 3, ["listen", "nowhere", "127.0.0.1:7411"]),
    (ONE + "http: 127.0.0.1:65536\n", 3, ["http", "65536"]),
    (ONE + "defaults: {size: 12by12}\n", 3, ["defaults.size", "12by12", "128x128"]),
    (ONE + "defaults: {guidance: .nan}\n", 3, ["defaults.guidance", "nan"]),
    (ONE + "groups: []\n", 3, ["groups", "twice", "line 1"]),
    (ONE + "defaults: {fps: 8, fps: 9}\n", 3, ["fps", "twice"]),
    ("groups: []\n", 1, ["groups", "1 to 64"]),
    ("edges: []\n", 1, ["groups"]),
    ("groups: [{stage: noop}]\n", 1, ["groups[0].name"]),
    ("groups: [{name: a}]\n", 1, ["groups[0].stage"]),
    ("groups: [{name: A b, stage: noop, method: sink}]\n", 1, ["groups[0].name", "A b", "lower-case"]),
    ("groups: [{name: a, stage: noop}, {name: a, stage: noop}]\n", 1, ["groups[1].name", "'a'", "groups[0]"]),
    ("groups:\n  - {name: a, stage: noop, method: sink, devices: [tpu]}\n", 2, ["groups[0].devices", "tpu", "cuda:0"]),
    ("groups:\n  - {name: a, stage: noop, method: sink, devices: [cpu, cpu], parallel: {tp: 3}}\n", 2, ["parallel", "3 ranks", "lists 2"]),
    ("groups:\n  - {name: a, stage: noop, method: sink, dtype: float8}\n", 2, ["groups[0].dtype", "float8", "bfloat16"]),
    ("groups:\n  - {name: a, stage: noop, method: sink, model: nowhere}\n", 2, ["groups[0].model", "nowhere", "folder"]),
    (TWO + "edges: [{from: a.source, to: c.sink}]\n", 2, ["edges[0].to", "'c'", "'b'"]),
    (TWO + "edges: [{from: a, to: b.sink}]\n", 2, ["edges[0].from", "'a'"]),
    (TWO + "edges: [{from: a.source, to: b.sink, slots: 17}]\n", 2, ["edges[0].slots", "17", "1 to 16"]),
    (TWO + "edges: [{from: a.relay, to: b.relay}, {from: b.relay, to: a.relay}]\n", 2, ["circle", "a -> b -> a"]),
    (TWO + "edges: [{from: a.source, to: a.sink}]\n", 2, ["edges", "a"]),
    ("groups: [\n", 2, ["YAML"]),
    ("- 1\n", 1, ["mapping"]),
    ("", 1, ["empty", "--print-schema"]),
    ("a: &a [*a]\n", 1, []),
    ("&a [&b [&c [" + "*a," * 10 + "]]]\n", 1, []),
    ("groups: " + "[" * 100_000 + "\n", 2, ["YAML"]),
    (ONE + "x: \0\n", 3, ["control character"]),
]


class TopologyTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ld")))

    def latentd(self, *arguments, text=None, environment=None):
        path = self.folder / "t.yaml"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        arguments = [str(path) if argument == "FILE" else argument for argument in arguments]
        return subprocess.run([find_binary("latentd"), *arguments], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder), **(environment or {})})

    def test_each_bad_file_is_refused_with_its_line(self):
        for text, line, words in REFUSED:
            for arguments in (("--config", "FILE", "--check"), ("--config", "FILE")):
                with self.subTest(text[:100], arguments=arguments):
                    result = self.latentd(*arguments, text=text)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertEqual(result.stdout, "")
                    self.assertTrue(result.stderr.startswith(f"latentd: {self.folder}/t.yaml:{line}: "), result.stderr)
                    for word in words:
                        self.assertIn(word, result.stderr)
                    self.assertLess(len(result.stderr), 1000)

    def test_no_topology_at_all(self):
        for path in (self.folder / "none.yaml", self.folder, "/dev/null", "/proc/self/mem"):
            result = self.latentd("--config", str(path), "--check")
            self.assertEqual(result.returncode, 2, path)
            self.assertIn(str(path), result.stderr)
        noise = self.latentd("--config", "FILE", "--check", text=bytes(range(256)) * 20)
        self.assertEqual(noise.returncode, 2)
        self.assertIn("UTF-8", noise.stderr)

    def test_the_printed_schema_is_a_topology_of_defaults(self):
        schema = self.latentd("--print-schema")
        self.assertEqual(schema.returncode, 0)
        printed = yaml.safe_load(schema.stdout)
        self.assertEqual((printed["queue"]["length_max"], printed["edges"][0]["slots"]), (64, 2))
        # What is required has no default.
        printed["groups"][0].update(name="a", stage="noop", method="sink")
        del printed["edges"]
        result = self.latentd("--config", "FILE", "--check", "--json", text=yaml.safe_dump(printed))
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.latentd("--config", "FILE", "--check", "--json", text=ONE)
        self.assertEqual(json.loads(result.stdout), json.loads(plain.stdout))

    def test_a_good_file_is_shown(self):
        result = self.latentd("--config", "FILE", "--check", text=topologies.noop())
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("first", "middle.relay", "shm", "float32"):
            self.assertIn(word, result.stdout)


class SurroundingsTest(unittest.TestCase):
    def refused(self, topology, *words, code=1, **kwargs):
        got, text = Daemon.refused(topology, **kwargs)
        self.assertEqual(got, code, text)
        for word in words:
            self.assertIn(word, text[text.rindex("latentd: "):], text)

    def test_what_only_the_stage_knows(self):
        for source, words in (("bytez: 5", ["first", "bytez", "bytes"]), ("bytes: many", ["first", "bytes", "many", "integer"])):
            self.refused(topologies.noop(source=source), *words)
        self.refused(topologies.noop().replace("stage: noop", "stage: nop", 1), "first", "nop", "noop", "wan.denoiser")
        self.refused(topologies.noop().replace("first.source", "first.sauce"), "first", "sauce", "source")
        self.refused(topologies.noop().replace("last.sink", "last.relay"), "last", "relay", "frames")
        self.refused(topologies.noop(sink="input_keys: latents"), "last", "latents", "payload")

    def test_another_program_as_worker(self):
        for program, words in (("/bin/false", ["exit code 1"]), (find_binary("latent-encoder"), ["exit code 2", "--lifeline-fd"]),
                               (self.script("#!/bin/sh\nexec sleep 1000\n"), ["first", "deadlines.load", "1 s"]),
                               (self.script("no program\n"), ["first", "Exec format error"])):
            with self.subTest(program):
                self.refused(topologies.noop(extra="deadlines: {load: 1s}"), "rank 0 (noop)", *words, flags={"--worker-binary": program})
        for flag in ("--worker-binary", "--encoder-binary"):
            self.refused(topologies.noop(), "/proc/version is not an executable", flag, code=2, flags={flag: "/proc/version"})

    def script(self, text):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ld")))
        path = folder / "program"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def test_a_runtime_folder_that_cannot_be(self):
        self.refused(topologies.noop(extra="runtime_dir: /proc"), "/proc")
        self.refused(topologies.noop(extra="spool: {dir: /proc/spool}"), "/proc/spool")
        self.refused(topologies.noop(extra="spool: {dir: /dev/null}"), "/dev/null")

    def test_a_runtime_folder_whose_sockets_have_too_long_names(self):
        with tempfile.TemporaryDirectory(prefix="ld") as folder:
            deep = pathlib.Path(folder) / ("d" * 90)
            deep.mkdir()
            self.refused(topologies.noop(extra=f"runtime_dir: {deep}"), "runtime_dir", str(deep), "/tmp", code=2)
            self.assertEqual(list(deep.iterdir()), [])

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for flag in ("--listen", "--http"):
                self.refused(topologies.noop(), str(port), str(os.getpid()), flags={flag: f"127.0.0.1:{port}"})
        self.refused(topologies.noop(), "192.0.2.1", flags={"--listen": "192.0.2.1:0"})


if __name__ == "__main__":
    unittest.main()
