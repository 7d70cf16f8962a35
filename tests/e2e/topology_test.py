"""Topologies and surroundings that cannot work: refused by name, with what would be valid, before anything is left behind."""
import concurrent.futures
import copy
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from daemon import Daemon, at_most, find_binary, script, wait_until

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


# What only the worker program and the checkpoint know; the same to --check and to the start.
def changed(old, new, text=None):
    text = topologies.noop() if text is None else text
    assert old in text, old
    return text.replace(old, new, 1)


DEMO = topologies.demo().replace("{root}", str(ROOT))


def sharded(edge, key, *words, denoise="", decode=""):
    """The demo with a shard dimension on a line of its own in an edge; `denoise` and `decode` are `parallel:` of two ranks."""
    text = DEMO
    for stage, degrees in (("wan.denoiser", denoise), ("wan.vae_decoder", decode)):
        if degrees:
            text = changed(f"stage: {stage}", f"stage: {stage}, devices: [cpu, cpu], parallel: {{{degrees}}}", text)
    to = ("denoise.denoise", "decode.decode")[edge]
    text = changed(f"to: {to}", f"to: {to},\n     {key}", text)
    return text, text[:text.index(key)].count("\n") + 1, [f"edges[{edge}].{key.split(':')[0]}: got ", "leave the key out", *words]


REFUSED_BY_STAGES = [
    (changed("options: {}", "options: {bytez: 5}"), 3, ["groups[0].options.bytez", "first (noop)", "bytez", "bytes_per_frame"]),
    (changed("options: {}", "options: {\n    bytes: many, leaves: 0}"), 4, ["groups[0].options.bytes", "first", "many", "an integer from 1"]),
    (changed("stage: noop", "stage: nop"), 3, ["groups[0].stage", "first", "nop", "wan.denoiser"]),
    (changed("first.source", "first.sauce"), 7, ["edges[0].from", "first", "sauce", "source"]),
    (changed("last.sink", "last.relay"), 8, ["edges[1].to", "last (noop)", "relay", '"payload"', "{from: last.relay, to: GROUP.METHOD}", "frames"]),
    (topologies.noop(sink="input_keys: latents"), 8, ["last", "latents", "payload"]),
    (changed("stage: noop", "stage: wan.denoiser"), 3, ["groups[0].model", "first (wan.denoiser)", "diffusers directory"]),
    (changed("stage: noop", "stage: wan.vae_decoder, model: /proc"), 3, ["groups[0].model", "/proc/model_index.json"]),
    (changed("stage: wan.denoiser", "stage: wan.denoiser, devices: [cpu, cpu, cpu], parallel: {ulysses: 3}", DEMO),
     DEMO[:DEMO.index("wan.denoiser")].count("\n") + 1, ["groups[1].parallel.ulysses", "denoise (wan.denoiser)", "ulysses = 3", "8"]),
    (changed("stage: wan.text_encoder", "stage: wan.text_encoder, devices: [cpu, cpu], parallel: {tp: 2}", DEMO),
     DEMO[:DEMO.index("wan.text_encoder")].count("\n") + 1, ["groups[0].parallel.tp", "text (wan.text_encoder)", "expected 1"]),
    (changed("stage: noop", "stage: noop, devices: [cpu, cpu], parallel: {cfg: 2}, communication: nccl"), 3,
     ["groups[0].communication", "'nccl'", "on the CPU", "gloo or auto"]),
    (changed("frames: 17", "frames: 16", DEMO), DEMO[:DEMO.index("frames: 17")].count("\n") + 1, ["defaults.frames", "16", "13 or 17"]),
    (changed("size: 128x128", "size: 120x128", DEMO), DEMO[:DEMO.index("size: 128x128")].count("\n") + 1, ["defaults.size", "120", "112 or 128"]),
    sharded(0, "consumer_shard_dim: 1", "got 1", "denoise.denoise takes no slices", "reads whole", denoise="ring: 2"),
    sharded(0, "producer_shard_dim: 0", "got 0", "text.encode returns no slices", "rank 0 publishes"),
    sharded(1, "producer_shard_dim: 2", "got 2", "denoise.denoise returns no slices", "rank 0 publishes", denoise="tp: 2"),
    sharded(1, "consumer_shard_dim: 4", "got 4", "decode.decode takes slices along dimension 3 alone", denoise="cfg: 2", decode="spatial: 2"),
    sharded(1, "consumer_shard_dim: 3", "got 3", "decode.decode takes no slices"),
    sharded(1, "consumer_shard_dim: 3", "got 3", "denoise.denoise returns videos in token layout", denoise="ring: 2", decode="spatial: 2"),
    sharded(1, "producer_shard_dim: 3", "got 3", "denoise.denoise returns videos in token layout", denoise="ring: 2"),
]


class TopologyTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ld")))

    def latentd(self, *arguments, text=None, environment=None, folder=None):
        folder = folder or self.folder
        path = folder / "t.yaml"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        arguments = [str(path) if argument == "FILE" else argument for argument in arguments]
        return subprocess.run([find_binary("latentd"), *arguments], capture_output=True, text=True, timeout=180,
                              env={**os.environ, "XDG_RUNTIME_DIR": str(folder), **(environment or {})})

    def test_each_bad_file_is_refused_with_its_line(self):
        cases = [(*refused, arguments) for refused in REFUSED + REFUSED_BY_STAGES
                 for arguments in (("--config", "FILE", "--check"), ("--config", "FILE"))]
        folders = [self.folder / str(index) for index in range(len(cases))]
        for folder in folders:
            folder.mkdir()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda case, folder: self.latentd(*case[3], text=case[0], folder=folder), cases, folders))
        for (text, line, words, arguments), folder, result in zip(cases, folders, results):
            with self.subTest(text[:100], arguments=arguments):
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertTrue(result.stderr.startswith(f"latentd: {folder}/t.yaml:{line}: "), result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)
                self.assertLess(len(result.stderr), 1000)

    def test_all_groups_are_told_at_once(self):
        text = changed("stage: noop", "stage: nop").replace("name: last, stage: noop", "name: last, stage: nap")
        result = self.latentd("--config", "FILE", "--check", text=text)
        self.assertEqual(result.returncode, 2)
        self.assertEqual([line.split(": ")[-4] for line in result.stderr.splitlines()], ["groups[0].stage", "groups[2].stage"], result.stderr)

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
        printed["groups"] = [copy.deepcopy(printed["groups"][0]) | {"name": name, "stage": "noop"} for name in "ab"]
        printed["edges"][0].update({"from": "a.source", "to": "b.sink"})
        result = self.latentd("--config", "FILE", "--check", "--json", text=yaml.safe_dump(printed))
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.latentd("--config", "FILE", "--check", "--json", text=TWO + "edges: [{from: a.source, to: b.sink}]\n")
        plans = [json.loads(text) for text in (result.stdout, plain.stdout)]
        for plan in plans:
            del plan["process_bytes"]  # as measured, page by page
        self.assertEqual(*plans)

    def test_a_good_file_is_shown(self):
        result = self.latentd("--config", "FILE", "--check", text=topologies.noop())
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("first", "middle.relay", "shm", "float32", "frames 5, size 32x32", "shutdown_grace 10s"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("note:", result.stdout)

    def test_what_jobs_must_say_is_noted_all_at_once(self):
        text = topologies.noop().replace("defaults: {frames: 5, size: 32x32, steps: 4, guidance: 1, fps: 8}", "")
        result = self.latentd("--config", "FILE", "--check", text=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("note: jobs must say frames, width, height, steps, guidance_scale, fps", result.stdout)

    def test_what_has_no_effect_is_noted_with_its_line_and_what_it_takes(self):
        for text, key, why in (
            (changed("stage: wan.denoiser", "stage: wan.denoiser, options: {ring_attention: all_gather}", DEMO),
             "ring_attention", "without parallel.ring above 1"),
            (changed("stage: wan.denoiser", "stage: wan.denoiser, devices: [cpu, cpu], parallel: {cfg: 2}, options: {guidance_batching: separate}",
                     DEMO), "guidance_batching", "with parallel.cfg above 1"),
            (changed("stage: wan.vae_decoder", "stage: wan.vae_decoder, options: {tile_overlap: 32}", DEMO),
             "tile_overlap", "without options.tile_height"),
            (changed("stage: wan.vae_decoder", "stage: wan.vae_decoder, communication: gloo", DEMO),
             "communication", "on a group of one rank, which has nobody to talk to"),
            (changed("frames_max: 65", "frames_max: 100000", DEMO), "frames_max", "above what the model takes, "),
        ):
            with self.subTest(key):
                result = self.latentd("--config", "FILE", "--check", text=text)
                self.assertEqual(result.returncode, 0, result.stderr)
                notes = [line for line in result.stdout.splitlines() if line.startswith("note: ")]
                self.assertEqual(len(notes), 1, result.stdout)
                line = text[:text.index(key)].count("\n") + 1
                self.assertTrue(notes[0].startswith(f"note: {self.folder}/t.yaml:{line}: "), notes)
                self.assertIn(f"{key}: has no effect {why}", notes[0])

    def test_weights_in_memory_follow_the_dtype(self):
        def plan(dtype):
            text = topologies.demo().replace("{root}", str(ROOT)).replace("stage: wan.denoiser", f"stage: wan.denoiser, dtype: {dtype}")
            result = self.latentd("--config", "FILE", "--check", "--json", text=text)
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)

        whole, half = plan("float32"), plan("bfloat16")
        groups = [next(group for group in shown["groups"] if group["name"] == "denoise") for shown in (whole, half)]
        self.assertEqual(groups[0]["weight_file_bytes"], groups[1]["weight_file_bytes"])
        ratio = groups[1]["weight_bytes_per_rank"] / groups[0]["weight_bytes_per_rank"]
        self.assertTrue(0.5 <= ratio < 0.6, f"but for the float32 islands it is half: {ratio}")
        self.assertGreater(whole["process_bytes"], 50 << 20)
        self.assertEqual((whole["limits"]["frame_step"], whole["limits"]["size_multiple"]), (4, 16))

    def test_a_check_is_quick(self):
        start = time.monotonic()
        self.latentd("--config", "FILE", "--check", text=topologies.demo().replace("{root}", str(ROOT)))
        self.assertLess(time.monotonic() - start, at_most(10), "one process for all groups, and no weight is read")


class ProgramTest(unittest.TestCase):
    def test_each_program_tells_its_version_and_its_exit_codes(self):
        for name in ("latentd", "latent-worker", "latentctl", "latent-encoder"):
            with self.subTest(name):
                said = {flag: subprocess.run([find_binary(name), flag], capture_output=True, text=True, timeout=120) for flag in ("--version", "--help")}
                self.assertEqual({(result.returncode, result.stderr) for result in said.values()}, {(0, "")})
                self.assertRegex(said["--version"].stdout, rf"^{name} \d+\.\d+\.\d+")
                self.assertRegex(said["--help"].stdout, r"Exit codes:\s+0 ")


class SurroundingsTest(unittest.TestCase):
    def refused(self, topology, *words, code=1, **kwargs):
        got, text = Daemon.refused(topology, **kwargs)
        self.assertEqual(got, code, text)
        for word in words:
            self.assertIn(word, text[text.rindex("latentd: "):], text)

    def test_results_that_cannot_be_written_are_an_error(self):
        for name, arguments, code in (("latentctl", ["completion", "bash"], 7), ("latentctl", ["--help"], 7), ("latentd", ["--print-schema"], 1),
                                      ("latent-worker", ["--describe"], 1)):
            with self.subTest([name, *arguments]), open("/dev/full", "w") as full:
                result = subprocess.run([find_binary(name), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(f"{name}: writing to the standard output", result.stderr)

    def test_another_program_as_worker(self):
        hangs = script(self, "#!/bin/sh\nexec sleep 1000\n")
        for program, words in (("/bin/false", ["exit code 1"]), (find_binary("latent-encoder"), ["exit code", "--preflight"]),
                               ("/bin/true", ["no answer", "version"]), (hangs, ["deadlines.load", "1 s"]),
                               (script(self, "no program\n"), ["Exec format error"])):
            with self.subTest(program):
                # The others answer, some time.
                load = "1s" if program == hangs else "1m"
                self.refused(topologies.noop(extra=f"deadlines: {{load: {load}}}"), program, *words, flags={"--worker-binary": program})

    def test_interrupted_while_the_topology_is_checked(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            # No shell: some unblock all signals.
            program = script(self, f"#!{sys.executable}\nimport os, pathlib, time\n"
                                   'pathlib.Path(os.environ["LATENTD_TEST"], "checking").touch()\ntime.sleep(1000)\n')
            daemon = Daemon(topologies.noop(), flags={"--worker-binary": program})
            daemon.launch()
            try:
                wait_until((daemon.folder / "checking").exists, 60, "the check is under way")
                daemon.signal_everything(number)
                self.assertEqual(daemon.process.wait(60), 0, daemon.log())
                daemon.assert_nothing_left()
            finally:
                daemon.clean_up()

    def test_a_program_that_fails_after_its_check(self):
        # It answers for the topology, and then cannot start.
        program = script(self, f'#!/bin/sh\n[ "$1" = --preflight ] && exec {find_binary("latent-worker")} "$@"\necho no luck; exit 5\n')
        self.refused(topologies.noop(), "rank 0 (noop)", "died while starting: exit code 5", "no luck", flags={"--worker-binary": program})

    def test_too_little_memory_to_start_is_explained(self):
        self.refused(topologies.noop(groups="memory_max: 100MiB, "), "memory_max", "100MiB", "768MiB", code=2)

    def test_what_has_no_effect_is_in_the_log(self):
        with Daemon(topologies.noop(relay="bytes: 5")) as daemon:
            self.assertIn("groups[1].options.bytes: has no effect without method source", daemon.log())

    def test_json_logs_are_json_to_the_last_line(self):
        code, text = Daemon.refused(topologies.noop(source="fail_load: true", extra="log: {format: json}"))
        self.assertEqual(code, 1, text)
        with Daemon(topologies.noop(extra="log: {format: json}")) as daemon:
            self.assertEqual(daemon.stop(), 0)
            text += daemon.log()
        messages = [json.loads(line)["message"] for line in text.splitlines()]
        for word in ("ready: gRPC on", "fail_load is true", "shutting down"):
            self.assertTrue(any(word in message for message in messages), word)

    def test_the_ports_file_is_there_while_it_serves(self):
        with Daemon(topologies.noop()) as daemon:
            ports = daemon.folder / "ports"
            config = urllib.request.urlopen(f"http://{daemon.http}/config", timeout=30).read().decode()
            self.assertIn(f"API {daemon.grpc}, HTTP {daemon.http}", config)
            self.assertIn("frames 5, size 32x32", config)
            self.assertEqual(daemon.stop(), 0)
            self.assertFalse(ports.exists())
            # What a killed daemon left is gone before the next one is ready, also if it never is.
            ports.write_text("grpc=127.0.0.1:1\n")
            self.refused(topologies.noop(source="fail_load: true"), "fail_load", flags={"--ports-file": ports})
            self.assertFalse(ports.exists())

    def test_counters_start_at_zero(self):
        with Daemon(topologies.noop()) as daemon:
            samples = daemon.metrics()
        for name in ('jobs_total{result="failed"}', 'jobs_rejected_total{reason="not_ready"}', "jobs_retried_total",
                     'worker_restarts_total{group="middle",reason="signal"}', 'stage_failures_total{reason="UNAVAILABLE",stage="last"}',
                     'stage_seconds_count{stage="first"}', 'handoffs_total{edge="first.source->middle.relay"}',
                     'slots_discarded_total{edge="first.source->middle.relay",reason="cancelled"}', 'encoder_failures_total{reason="INTERNAL"}',
                     'grpc_requests_total{method="Submit",result="OK"}'):
            self.assertEqual(samples.get("latentd_" + name), 0, [sample for sample in samples if sample.startswith("latentd_" + name[:10])])
        self.assertGreater(samples['latentd_device_memory_bytes{device="cpu",kind="resident"}'], 3 * (50 << 20))

    def test_a_ports_file_that_cannot_be_written(self):
        self.refused(topologies.noop(), "/proc/ports", flags={"--ports-file": "/proc/ports"})
        self.refused(topologies.noop(), "/dev", flags={"--ports-file": "/dev"})
        for flag in ("--worker-binary", "--encoder-binary"):
            self.refused(topologies.noop(), "/proc/version is not an executable", flag, code=2, flags={flag: "/proc/version"})

    def test_a_runtime_folder_that_cannot_be(self):
        self.refused(topologies.noop(extra="runtime_dir: /proc"), "/proc")
        self.refused(topologies.noop(extra="spool: {dir: /proc/spool}"), "topology.yaml:11: spool.dir: ", "/proc/spool")
        self.refused(topologies.noop(extra="spool: {dir: /dev/null}"), "/dev/null")

    def test_a_device_that_is_not_here(self):
        text = topologies.noop(groups="devices: [\"cuda:199\"], ")
        # A file for another machine may be checked, with a note; it is not started, and no worker is.
        with tempfile.TemporaryDirectory(prefix="ld") as folder:
            path = pathlib.Path(folder) / "topology.yaml"
            path.write_text(text)
            checked = subprocess.run([find_binary("latentd"), "--config", path, "--check", "--worker-binary", find_binary("latent-worker")],
                                     capture_output=True, text=True, timeout=180)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertRegex(checked.stdout, r"note: \S*topology\.yaml:3: groups\[0\]\.devices: group first is on cuda:199, and this machine has ")
        start = time.monotonic()
        self.refused(text, "topology.yaml:3: groups[0].devices: group first is on cuda:199, and this machine has ",
                     "topology.yaml:5: groups[2].devices: ", "run it where there is one", code=2)
        self.assertLess(time.monotonic() - start, at_most(30))

    def test_a_limit_below_the_models_default_is_named_with_both_values(self):
        defaults = re.search("^defaults: .*", DEMO, re.M).group()
        self.refused(re.sub("(?m)^limits: .*", "limits: {frames_max: 33}", DEMO.replace(defaults, "")), "limits.frames_max: '33' is below "
                     "the model's default frames, 81; give defaults.frames within it, or raise it to 81", code=2)

    def test_a_sink_without_an_edge(self):
        self.refused(ONE, "groups[0]", 'needs "payload": no edge leads to it', code=2)

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
