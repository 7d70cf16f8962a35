"""Checkpoints that are damaged, incomplete or not for us: the daemon does not start, and says which file, tensor or key."""
import json
import pathlib
import struct
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import topologies
from client import Client, api
from daemon import Daemon

MODEL = ROOT / "configs" / "moving-shapes"
LOAD_SECONDS = 20
TEXT, DENOISE, DECODE = ("text", "wan.text_encoder", "encode"), ("denoise", "wan.denoiser", "denoise"), ("decode", "wan.vae_decoder", "decode")
TEXT_WEIGHTS = "text_encoder/model.safetensors"
SHARD = "transformer/diffusion_pytorch_model-00002-of-00002.safetensors"
SHARD_INDEX = "transformer/diffusion_pytorch_model.safetensors.index.json"
VAE_WEIGHTS = "vae/diffusion_pytorch_model.safetensors"


def copy_of_the_model(folder):
    """What is damaged is replaced, never written to, so that links do."""
    for path in MODEL.rglob("*"):
        target = folder / path.relative_to(MODEL)
        if path.is_dir():
            target.mkdir()
        else:
            target.symlink_to(path.resolve())


def replace(path, content):
    path.unlink()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name, keep):
    def damage(model):
        content = (model / name).read_bytes()
        replace(model / name, content[:keep(len(content))])
    return damage


def remove(name):
    return lambda model: (model / name).unlink()


def write(name, content):
    return lambda model: replace(model / name, content)


def edit_json(name, **changes):
    """None removes a key."""
    def damage(model):
        content = json.loads((model / name).read_text()) | changes
        replace(model / name, json.dumps({key: value for key, value in content.items() if value is not None}))
    return damage


def edit_header(name, change):
    """change(header, data) edits the tensors' entries and returns the data that follows."""
    def damage(model):
        content = (model / name).read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + size])
        data = change(header, content[8 + size:])
        text = json.dumps(header).encode()
        replace(model / name, struct.pack("<Q", len(text)) + text + data)
    return damage


def some_tensor(header):
    return next(name for name in sorted(header) if name != "__metadata__" and len(header[name]["shape"]) == 2)


def reshape(header, data):
    entry = header[some_tensor(header)]
    rows, columns = entry["shape"]
    entry["shape"] = [rows * columns, 1]
    return data


def other_dtype(dtype):
    def change(header, data):
        header[some_tensor(header)]["dtype"] = dtype
        return data
    return change


def rename(header, data):
    name = next(name for name in sorted(header) if name.startswith("decoder.") and name.endswith(".weight"))
    header["no.such.weight"] = header.pop(name)
    return data


def add(header, data):
    header["one.too.many"] = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
    return data + bytes(8)


def overlap(header, data):
    entry = header[some_tensor(header)]
    begin, end = entry["data_offsets"]
    entry["data_offsets"] = [begin + 2, end + 2]
    return data


# what is broken, the group that must say so, the damage, words of the refusal
DAMAGES = [
    ("weights cut in the data", TEXT, cut(TEXT_WEIGHTS, lambda size: size - 1), [TEXT_WEIGHTS, "damaged or incomplete"]),
    ("weights cut in the header", DECODE, cut(VAE_WEIGHTS, lambda size: 1000), [VAE_WEIGHTS, "header length", "1000 bytes"]),
    ("weights cut to nothing", DECODE, cut(VAE_WEIGHTS, lambda size: 0), [VAE_WEIGHTS, "0 bytes are too few"]),
    ("a header length of 2^63", TEXT, write(TEXT_WEIGHTS, struct.pack("<Q", 1 << 63) + b"{}" * 50), [TEXT_WEIGHTS, str(1 << 63)]),
    ("a header that is no JSON", DENOISE, write(SHARD, struct.pack("<Q", 8) + b"\xff" * 80), [SHARD, "not valid JSON"]),
    ("a pickle by that name", DECODE, write(VAE_WEIGHTS, b"\x80\x04\x95" + bytes(4000)), [VAE_WEIGHTS, "damaged"]),
    ("an unreadable dtype", TEXT, edit_header(TEXT_WEIGHTS, other_dtype("F8_E4M3")), [TEXT_WEIGHTS, "F8_E4M3", "BF16"]),
    ("integers for weights", DENOISE, edit_header(SHARD, other_dtype("I32")), [SHARD, "tensor"]),
    ("a misshapen tensor", DENOISE, edit_header(SHARD, reshape), [SHARD, "has shape", ", 1]", "its configuration asks for"]),
    ("a tensor by another name", DECODE, edit_header(VAE_WEIGHTS, rename), ["vae", "is missing"]),
    ("a tensor too many", TEXT, edit_header(TEXT_WEIGHTS, add), [TEXT_WEIGHTS, "one.too.many"]),
    ("overlapping tensors", TEXT, edit_header(TEXT_WEIGHTS, overlap), [TEXT_WEIGHTS, "tensor"]),
    ("a missing shard", DENOISE, remove(SHARD), [SHARD, SHARD_INDEX, "No such file"]),
    ("a shard index that points elsewhere", DENOISE, edit_json(SHARD_INDEX, weight_map={"x": "../../text_encoder/model.safetensors"}),
     [SHARD_INDEX, "file name without folders"]),
    ("no weights", TEXT, remove(TEXT_WEIGHTS), ["text_encoder", "no weights", "model.safetensors"]),
    ("bad JSON", DENOISE, write("transformer/config.json", '{"num_layers": 8,'), ["transformer/config.json", "not valid JSON"]),
    ("a configuration of the wrong type", DENOISE, edit_json("transformer/config.json", num_layers="eight"), ["transformer/config.json", "num_layers", "eight"]),
    ("a configuration of another size", DENOISE, edit_json("transformer/config.json", num_layers=9), ["blocks.8.", "is missing"]),
    ("a configuration of an absurd size", DENOISE, edit_json("transformer/config.json", num_layers=10**12), ["num_layers"]),
    ("a configuration without a key", DECODE, edit_json("vae/config.json", z_dim=None, latents_mean=[]), ["vae/config.json"]),
    ("a missing configuration", DECODE, remove("vae/config.json"), ["vae/config.json", "No such file"]),
    ("a missing model index", DENOISE, remove("model_index.json"), ["model_index.json", "No such file"]),
    ("a missing tokenizer", TEXT, remove("tokenizer/spiece.model"), ["tokenizer", "spiece.model"]),
    ("a damaged tokenizer", TEXT, write("tokenizer/spiece.model", b"\xff" * 5000), ["tokenizer/spiece.model"]),
    ("a scheduler that is not served", DENOISE, edit_json("scheduler/scheduler_config.json", _class_name="DDIMScheduler"),
     ["scheduler/scheduler_config.json", "DDIMScheduler", "UniPCMultistepScheduler"]),
    ("a timestep per token", DENOISE, edit_json("model_index.json", expand_timesteps=True), ["model_index.json", "expand_timesteps"]),
    ("two transformers", DENOISE, edit_json("model_index.json", transformer_2=["diffusers", "WanTransformer3DModel"]), ["model_index.json", "transformer_2"]),
    ("image conditioning by its pipeline", DENOISE, edit_json("model_index.json", _class_name="WanImageToVideoPipeline"),
     ["model_index.json", "_class_name", "WanImageToVideoPipeline"]),
    ("image conditioning by its encoder", DENOISE, edit_json("model_index.json", image_encoder=["transformers", "CLIPVisionModel"]),
     ["model_index.json", "image_encoder"]),
    ("image conditioning by its layers", DENOISE, edit_json("transformer/config.json", image_dim=1280), ["transformer/config.json", "image_dim", "1280"]),
    ("another text encoder", TEXT, edit_json("text_encoder/config.json", model_type="t5"), ["text_encoder/config.json", "t5"]),
]


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ld")))

    def refused(self, topology, words):
        """A damaged checkpoint is a bad `model` key: refused with its line, before any worker is started."""
        start = time.monotonic()
        code, text = Daemon.refused(topology, seconds=LOAD_SECONDS + 10)
        self.assertLess(time.monotonic() - start, LOAD_SECONDS, "no refusal waits for a deadline")
        self.assertEqual(code, 2, text)
        last = text[text.rindex("latentd: "):]
        self.assertRegex(last, r"^latentd: .*/topology.yaml:\d+: (groups\[\d\]\.)?model: ")
        for word in words:
            self.assertIn(word, last, text)
        self.assertNotIn("SIG", last)
        self.assertLess(len(last), 2000)

    def test_each_damage_is_named(self):
        for index, (name, (group, stage, method), damage, words) in enumerate(DAMAGES):
            with self.subTest(name):
                model = self.folder / str(index)
                model.mkdir()
                copy_of_the_model(model)
                damage(model)
                # The damaged group alone, which is quicker.
                topology = (f"groups: [{{name: {group}, stage: {stage}, method: {method}, model: {model}}}]\n"
                            f"deadlines: {{load: {LOAD_SECONDS}s}}\n")
                self.refused(topology, [group, *words])

    def test_one_damaged_part_ends_the_whole(self):
        copy_of_the_model(self.folder)
        cut(VAE_WEIGHTS, lambda size: size // 2)(self.folder)
        self.refused(topologies.demo().replace("{root}/configs/moving-shapes", str(self.folder)), ["decode", VAE_WEIGHTS])

    def test_the_copy_alone_is_served(self):
        copy_of_the_model(self.folder)
        topology = topologies.demo().replace("{root}/configs/moving-shapes", str(self.folder))
        with Daemon(topology) as daemon, Client(daemon.grpc) as client:
            job = client.wait(client.submit("a red ball moves right", frames=5, width=64, height=64, steps=1).id)
            self.assertEqual(job.state, api.JOB_STATE_SUCCEEDED, job.error)


if __name__ == "__main__":
    unittest.main()
