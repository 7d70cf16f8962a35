"""Videos that latentctl wrote as .npy with --float, without numpy."""
import ast
import math
import struct


def load(path):
    """frames x height x width x 3 in [0, 1]."""
    import torch  # here, so that --help needs none
    data = bytearray(path.read_bytes())
    if data[:6] != b"\x93NUMPY" or data[6] != 1:
        raise ValueError(f"{path} is no .npy of version 1")
    length = struct.unpack_from("<H", data, 8)[0]
    header = ast.literal_eval(data[10:10 + length].decode())
    if header["descr"] != "<f4" or header["fortran_order"]:
        raise ValueError(f"{path} has {header}, expected float32 in C order")
    return torch.frombuffer(data, dtype=torch.float32, offset=10 + length).reshape(header["shape"])


def worst(one, other):
    return (one - other).abs().max().item() if one.shape == other.shape else math.inf


def rms(one, other):
    return (one - other).square().mean().sqrt().item() if one.shape == other.shape else math.inf
