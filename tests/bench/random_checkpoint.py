"""A checkpoint of a published model's sizes with random weights, for benchmarks of speed on machines without it.

    python tests/bench/random_checkpoint.py --sizes FILE              where diffusers is: writes names and shapes
    python tests/bench/random_checkpoint.py --from-sizes FILE OUT     where torch is: writes OUT

wan21_t2v_1_3b.json beside this is such a FILE. --tokenizer DIR adds a tokenizer and a text encoder of one small layer that
puts out what the transformer takes: enough for jobs of a whole daemon, whose speed is the transformer's and the VAE's.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import struct

import torch

WEIGHTS, TEXT_WEIGHTS = "diffusion_pytorch_model.safetensors", "model.safetensors"
# Wan 2.1 T2V 1.3B, as published; what is not here is the classes' default.
TRANSFORMER = {"patch_size": [1, 2, 2], "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16,
               "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 8960, "num_layers": 30,
               "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6}
SCHEDULER = {"_class_name": "UniPCMultistepScheduler", "num_train_timesteps": 1000, "prediction_type": "flow_prediction",
             "use_flow_sigmas": True, "flow_shift": 3.0, "solver_order": 2}
INDEX = {"_class_name": "WanPipeline", "scheduler": ["diffusers", "UniPCMultistepScheduler"],
         "text_encoder": [None, None], "tokenizer": [None, None],
         "transformer": ["diffusers", "WanTransformer3DModel"], "vae": ["diffusers", "AutoencoderKLWan"]}
TEXT_INDEX = {"text_encoder": ["transformers", "UMT5EncoderModel"], "tokenizer": ["transformers", "T5TokenizerFast"]}
# In the header of safetensors.
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def sizes():
    import diffusers
    found = {}
    with torch.device("meta"):
        models = {"transformer": diffusers.WanTransformer3DModel(**TRANSFORMER), "vae": diffusers.AutoencoderKLWan()}
    for name, model in models.items():
        config = {key: value for key, value in model.config.items() if not key.startswith("_")}
        found[name] = {"config": {"_class_name": type(model).__name__, **config},
                       "shapes": {key: list(tensor.shape) for key, tensor in model.state_dict().items()}}
    return found


def as_text(found):
    """JSON with a tensor a line."""
    return re.sub(r'(?<=[{,])(?="[^"]+":\[\d+[],])', "\n", json.dumps(found, separators=(",", ":"))) + "\n"


def random_tensor(name, shape, dtype, device):
    """Small, and norms near one, so that activations stay finite and products cost what real ones do."""
    tensor = torch.randn(shape, device=device).mul_(0.02)
    if "norm" in name or name.endswith("gamma"):
        tensor += 1
    return tensor.to(dtype)


def text_encoder(width, vocabulary):
    """A UMT5 encoder of one layer, by its published names."""
    config = {"model_type": "umt5", "vocab_size": vocabulary, "d_model": width, "d_kv": 64, "d_ff": 1024, "num_layers": 1,
              "num_heads": 8, "feed_forward_proj": "gated-gelu"}
    inner, block = config["d_kv"] * config["num_heads"], "encoder.block.0.layer"
    shapes = {"shared.weight": [vocabulary, width], "encoder.final_layer_norm.weight": [width],
              f"{block}.0.layer_norm.weight": [width], f"{block}.1.layer_norm.weight": [width],
              f"{block}.0.SelfAttention.relative_attention_bias.weight": [32, config["num_heads"]],
              f"{block}.0.SelfAttention.o.weight": [width, inner],
              **{f"{block}.0.SelfAttention.{name}.weight": [inner, width] for name in "qkv"},
              **{f"{block}.1.DenseReluDense.{name}.weight": [config["d_ff"], width] for name in ("wi_0", "wi_1")},
              f"{block}.1.DenseReluDense.wo.weight": [width, config["d_ff"]]}
    return {"config": config, "shapes": shapes}


def save(shapes, dtype, path, device):
    """safetensors: the length of a JSON header, the header, and the tensors one after the other."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, start + end)  # a file that torch must grow loses its first byte
    data = torch.from_file(str(path), shared=True, size=start + end, dtype=torch.uint8)[start:]
    for name, shape in shapes.items():
        start, end = header[name]["data_offsets"]
        data[start:end].view(dtype).view(shape).copy_(random_tensor(name, shape, dtype, device))


def write(found, out, tokenizer=None):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    if tokenizer is not None:
        vocabulary = json.loads((tokenizer.parent / "text_encoder/config.json").read_text())["vocab_size"]
        found = {**found, "text_encoder": text_encoder(found["transformer"]["config"]["text_dim"], vocabulary)}
        shutil.copytree(tokenizer, out / "tokenizer")
    for component, content in found.items():
        folder = out / component
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(content["config"]))
        # As most people store them.
        dtype = torch.float32 if component == "vae" else torch.bfloat16
        save(content["shapes"], dtype, folder / (TEXT_WEIGHTS if component == "text_encoder" else WEIGHTS), device)
    (out / "scheduler").mkdir()
    (out / "scheduler/scheduler_config.json").write_text(json.dumps(SCHEDULER))
    (out / "model_index.json").write_text(json.dumps({**INDEX, **(TEXT_INDEX if tokenizer else {})}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=pathlib.Path)
    parser.add_argument("--from-sizes", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="of a whole model, whose text encoder tells the vocabulary")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.sizes:
        arguments.sizes.write_text(as_text(sizes()))
    elif arguments.from_sizes and arguments.out:
        write(json.loads(arguments.from_sizes.read_text()), arguments.out, arguments.tokenizer)
    else:
        parser.error("give --sizes FILE, or --from-sizes FILE and OUT")


if __name__ == "__main__":
    main()
