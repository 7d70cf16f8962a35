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


def demo():
    return (ROOT / "configs" / "demo.yaml").read_text().replace("model: ", "model: {root}/configs/")
