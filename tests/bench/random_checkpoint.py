"""A checkpoint of a published model's sizes with random weights, for benchmarks of speed on machines without it.

    python tests/bench/random_checkpoint.py --sizes FILE              where diffusers is: writes names and shapes
    python tests/bench/random_checkpoint.py --from-sizes FILE OUT     where torch and safetensors are: writes OUT
"""
import argparse
import json
import pathlib

import torch

WEIGHTS = "diffusion_pytorch_model.safetensors"
# Wan 2.1 T2V 1.3B, as published; what is not here is the classes' default.
TRANSFORMER = {"patch_size": [1, 2, 2], "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16,
               "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 8960, "num_layers": 30,
               "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6}
SCHEDULER = {"_class_name": "UniPCMultistepScheduler", "num_train_timesteps": 1000, "prediction_type": "flow_prediction",
             "use_flow_sigmas": True, "flow_shift": 3.0, "solver_order": 2}
INDEX = {"_class_name": "WanPipeline", "scheduler": ["diffusers", "UniPCMultistepScheduler"],
         "text_encoder": [None, None], "tokenizer": [None, None],
         "transformer": ["diffusers", "WanTransformer3DModel"], "vae": ["diffusers", "AutoencoderKLWan"]}


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


def random_tensor(name, shape, dtype, device):
    """Small, and norms near one, so that activations stay finite and products cost what real ones do."""
    tensor = torch.randn(shape, device=device).mul_(0.02)
    if "norm" in name or name.endswith("gamma"):
        tensor += 1
    return tensor.to(dtype).cpu()


def write(found, out):
    from safetensors.torch import save_file
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    for component, content in found.items():
        folder = out / component
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(content["config"]))
        # As most people store them.
        dtype = torch.float32 if component == "vae" else torch.bfloat16
        save_file({name: random_tensor(name, shape, dtype, device) for name, shape in content["shapes"].items()},
                  folder / WEIGHTS)
    (out / "scheduler").mkdir()
    (out / "scheduler/scheduler_config.json").write_text(json.dumps(SCHEDULER))
    (out / "model_index.json").write_text(json.dumps(INDEX))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=pathlib.Path)
    parser.add_argument("--from-sizes", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.sizes:
        arguments.sizes.write_text(json.dumps(sizes()))
    elif arguments.from_sizes and arguments.out:
        write(json.loads(arguments.from_sizes.read_text()), arguments.out)
    else:
        parser.error("give --sizes FILE, or --from-sizes FILE and OUT")


if __name__ == "__main__":
    main()
