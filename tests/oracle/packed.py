"""The weights of a packed model as a Hugging Face checkpoint, read by docs/PACKED.md alone.

usage: packed.py MODEL.fmoe FOLDER

Writes model.safetensors, config.json and the tokenizer into FOLDER. A value is scale * code + bias
in float64, which is exact: scales and biases are bf16, codes have at most 8 bits. tests/pack's
read_packed.py checks the files first. Knows bf16, f32 and the affine formats with bf16 scales.
"""
import json
import pathlib
import re
import shutil
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "pack"))
import read_packed


def bf16(raw):
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def by_rows(raw, rows, unit):
    """The part of an interleaved matrix row by row: unit u of sixteen rows lies side by side."""
    units = np.frombuffer(raw, np.uint8).reshape(rows // 16, -1, 16, unit)
    return units.transpose(0, 2, 1, 3).tobytes()


def codes_of(raw, rows, cols, bits):
    """A row is one stream of numbers, least significant bit first."""
    stream = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(rows, -1), axis=1,
                           bitorder="little")
    return stream.reshape(rows, cols, bits) @ (1 << np.arange(bits)).astype(np.float64)


def values(format_name, rows, cols, data, at, is_interleaved=False):
    """The numbers of a matrix that is placed at `at`: [rows, cols] in float64."""
    placed, _ = read_packed.place(format_name, rows, cols, at)
    parts = [data[begin:begin + size] for begin, size in placed]
    if is_interleaved:
        parts = [by_rows(raw, rows, 4 if i == 0 else 2) for i, raw in enumerate(parts)]
    if format_name == "f32":
        return np.frombuffer(parts[0], "<f4").astype(np.float64).reshape(rows, cols)
    if format_name == "bf16":
        return bf16(parts[0]).reshape(rows, cols)
    bits, group = map(int, re.fullmatch(r"affine(\d)-g(\d+)", format_name).groups())
    codes = codes_of(parts[0], rows, cols, bits).reshape(rows, cols // group, group)
    scales, biases = (bf16(part).reshape(rows, cols // group, 1) for part in parts[1:])
    return (scales * codes + biases).reshape(rows, cols)


def dense_tensors(folder, model):
    data = (folder / "dense.bin").read_bytes()
    for t in model["dense"]["tensors"]:
        rows = int(np.prod(t["shape"][:-1], initial=1))
        found = values(t["format"], rows, t["shape"][-1], data, t["offset"])
        yield t["name"], found.reshape(t["shape"])


def expert_tensors(folder, layer):
    data = (folder / layer["file"]).read_bytes()
    for e in range(layer["n_experts"]):
        at = 0
        record = data[e * layer["record_bytes"]:(e + 1) * layer["record_bytes"]]
        for name in ("gate", "up", "down"):
            m = layer[name]
            found = values(m["format"], m["rows"], m["cols"], record, at, "interleaved" in m)
            at = read_packed.place(m["format"], m["rows"], m["cols"], at)[1]
            yield f"{layer['prefix']}experts.{e}.{name}_proj.weight", found


def tensors(folder):
    """All weights by their Hugging Face names, and the config."""
    folder = pathlib.Path(folder)
    model = read_packed.read(folder)
    assert not any(model["conventions"].values()), model["conventions"]
    found = dict(dense_tensors(folder, model))
    for layer in model["experts"]:
        found |= expert_tensors(folder, layer)
    return found, model["config"]


def group_of(folder):
    """The number of columns in a group, which is the same in all matrices with codes, and every
    matrix of the model's layers has codes: else an error."""
    model = json.loads((pathlib.Path(folder) / "model.json").read_text())
    names = {t["format"] for t in model["dense"]["tensors"]
             if len(t["shape"]) == 2 and min(t["shape"]) > 1 or t["format"].startswith("affine")}
    names |= {layer[name]["format"] for layer in model["experts"]
              for name in ("gate", "up", "down")}
    (group,) = {re.fullmatch(r"affine\d-g(\d+)", name)[1] for name in names}
    return int(group)


def round_inputs(group):
    """Has torch's linear() round what it multiplies, as the engine's definition of products with
    codes does: per group to 8 bits, scale = max|x| / 127, to the nearest, ties to even."""
    import torch

    linear = torch.nn.functional.linear

    def rounding(x, weight, bias=None):
        groups = x.reshape(*x.shape[:-1], -1, group)
        scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-300) / 127
        return linear(((groups / scale).round() * scale).reshape(x.shape), weight, bias)

    torch.nn.functional.linear = rounding


def restore(folder, out):
    """Writes the checkpoint. Returns its folder."""
    from safetensors.numpy import save_file

    folder, out = pathlib.Path(folder), pathlib.Path(out)
    found, config = tensors(folder)
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in found.items()},
              out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    shutil.copy(folder / "tokenizer.json", out / "tokenizer.json")
    return out


if __name__ == "__main__":
    restore(*sys.argv[1:])
