"""Topologies of the tests: three groups of the model-free noop stage, and the demo."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def noop(source="", relay="", sink="", extra="", groups=""):
    """source -> relay -> sink; each argument is the inside of that group's `options: {}`, `extra` further top-level keys,
    `groups` further keys of every group, such as "memory_max: 1GiB, "."""
    return f"""
groups:
  - {{name: first, stage: noop, threads: 1, {groups}options: {{{source}}}}}
  - {{name: middle, stage: noop, threads: 1, {groups}options: {{{relay}}}}}
  - {{name: last, stage: noop, threads: 1, {groups}options: {{{sink}}}}}
edges:
  - {{from: first.source, to: middle.relay}}
  - {{from: middle.relay, to: last.sink}}
defaults: {{frames: 5, size: 32x32, steps: 4, guidance: 1, fps: 8}}
restart: {{backoff_min: 50ms, backoff_max: 1s}}
{extra}
"""


def ranks(count, parallel, device="cpu"):
    """Keys of a group with so many ranks on one device."""
    return f"devices: [{', '.join([device] * count)}], parallel: {{{parallel}}}"


def demo(text_encoder="", denoiser="", vae_decoder=""):
    """The demo; each argument is further keys of that stage's group, such as ranks(2, "cfg: 2")."""
    topology = (ROOT / "configs" / "demo.yaml").read_text().replace("model: ", "model: {root}/configs/")
    for stage, keys in (("text_encoder", text_encoder), ("denoiser", denoiser), ("vae_decoder", vae_decoder)):
        plain = f"stage: wan.{stage}"
        assert topology.count(plain) == 1, topology
        topology = topology.replace(plain, f"{plain}, {keys}" if keys else plain)
    return topology
