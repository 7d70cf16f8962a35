"""Topologies of the runs: text encoder, denoiser and decoder of one model, on chosen devices."""
import dataclasses

# Of a denoiser, by number of ranks: what they are called here, `parallel`, and options of the stage.
RING_OPTIONS = {"ring, exchange": "ring_attention: exchange", "ring, all-gather": "ring_attention: all_gather"}


@dataclasses.dataclass(frozen=True)
class Spread:
    """How a group is spread over its devices."""
    name: str
    parallel: str = ""
    options: str = ""
    keys: str = ""  # more of the group's
    guided: bool = False  # makes sense only with guidance


def spreads(ranks):
    """The ways to spread a denoiser over so many ranks."""
    ulysses = f"ulysses: {ranks}"
    found = [Spread(f"ulysses {ranks}", ulysses), Spread(f"ulysses {ranks}, c10d", ulysses, keys="ulysses_transport: c10d")]
    found += [Spread(name.replace("ring", f"ring {ranks}"), f"ring: {ranks}", options) for name, options in RING_OPTIONS.items()]
    cfg = Spread("cfg 2", "cfg: 2", guided=True) if ranks == 2 else \
        Spread(f"cfg 2 x ulysses {ranks // 2}", f"cfg: 2, ulysses: {ranks // 2}", guided=True)
    return [*found, cfg, Spread(f"tp {ranks}", f"tp: {ranks}"), Spread(f"pp {ranks}", f"pp: {ranks}")]


ONE = Spread("one rank")


def rank_counts(devices):
    """2, 4, 8, ... as far as the devices go."""
    counts = [2]
    while 2 * counts[-1] <= len(devices):
        counts.append(2 * counts[-1])
    return counts


def is_gpu(device):
    return device.startswith("cuda")


def share(devices):
    """Whether ranks on these devices have to take turns."""
    return len(set(devices)) < len(devices)


def group(name, stage, devices, dtype, spread=ONE, threads=0):
    keys = [f"name: {name}", f"stage: {stage}", "devices: [{}]".format(", ".join(f'"{device}"' for device in devices)),
            f"dtype: {dtype}"]
    keys += [f"threads: {threads}"] if threads else []
    keys += [f"parallel: {{{spread.parallel}}}"] if spread.parallel else []
    keys += [f"options: {{{spread.options}}}"] if spread.options else []
    keys += [spread.keys] if spread.keys else []
    return "  - {" + ", ".join(keys) + "}"


def pipeline(model, text, denoise, decode, dtype="bfloat16", spread=ONE, decode_spread=ONE, threads=0):
    """text, denoise, decode: the devices of each group's ranks."""
    return "\n".join([
        f"model: {model}", "groups:",
        group("text", "wan.text_encoder", text, dtype, threads=threads),
        group("denoise", "wan.denoiser", denoise, dtype, spread, threads),
        group("decode", "wan.vae_decoder", decode, dtype, decode_spread, threads),
        "edges:",
        "  - {from: text.encode, to: denoise.denoise}",
        "  - {from: denoise.denoise, to: decode.decode}",
        "defaults: {frames: 17, size: 128x128, steps: 16, guidance: 2.5, fps: 8}",
        "restart: {backoff_min: 100ms, backoff_max: 2s}", ""])
