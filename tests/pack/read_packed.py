"""Reads a packed model as docs/PACKED.md describes it, without any code of the project.

usage: read_packed.py MODEL.fmoe

Checks every offset and size against the rules of the document, and every checksum if the PyPI
package `xxhash` is installed. `matrix(...)` shows how to read one expert's weights.
"""
import json
import pathlib
import re
import struct
import sys

try:
    import xxhash
except ImportError:
    xxhash = None


def parts_of(format_name, rows, cols):
    """Returns the size of each part of a matrix, section "Formats" of PACKED.md."""
    plain = {"f32": 4, "f16": 2, "bf16": 2}
    blocks = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
              "q8_0": (32, 34), "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144),
              "q5_k": (256, 176), "q6_k": (256, 210), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
              "iq1_m": (256, 56), "iq1_s": (256, 50), "iq2_s": (256, 82), "iq2_xs": (256, 74),
              "iq2_xxs": (256, 66), "iq3_s": (256, 110), "iq3_xxs": (256, 98),
              "tq1_0": (256, 54), "tq2_0": (256, 66), "mxfp4": (32, 17)}
    if format_name == "mxfp4-g32":
        return [rows * cols // 2, rows * (cols // 32)]
    if format_name in ("int4-g32", "int4-g32-f16"):
        return [rows * cols // 2, rows * (cols // 32) * 2]
    fp8 = re.fullmatch(r"fp8-b128-(f32|bf16|f16)", format_name)
    if fp8:
        return [rows * cols, -(-rows // 128) * (cols // 128) * plain[fp8[1]]]
    affine = re.fullmatch(r"affine(\d)-g(\d+)(-f16)?", format_name)
    if affine:
        bits, group = int(affine[1]), int(affine[2])
        scales = rows * (cols // group) * 2
        return [rows * cols * bits // 8, scales, scales]
    if format_name in blocks:
        block, size = blocks[format_name]
        return [rows * (cols // block) * size]
    return [rows * cols * plain[format_name]]


def place(format_name, rows, cols, at):
    """Returns offset and size of each part from `at` on, and the end."""
    placed = []
    for size in parts_of(format_name, rows, cols):
        at = -(-at // 64) * 64
        placed.append((at, size))
        at += size
    return placed, at


def check(what, data, expected):
    if xxhash and xxhash.xxh3_128(data).hexdigest() != expected:
        raise ValueError(f"{what} does not have its checksum")


def folders_of(folder):
    """Returns the folders that have parts of the experts, section "disks.json"."""
    path = folder / "disks.json"
    disks = json.loads(path.read_text()) if path.exists() else {"layout": "mirror"}
    if disks["layout"] == "mirror":
        return [folder]
    return [folder if i == disks["here"] else folder / name
            for i, name in enumerate(disks["folders"])]


def records(folder, layer):
    """Returns all records of a layer, put together from the parts in each folder."""
    sizes = layer.get("parts", [layer["record_bytes"]])
    folders = folders_of(folder)
    if len(folders) != len(sizes) or sum(sizes) != layer["record_bytes"] or \
            any(size % 4096 for size in sizes):
        raise ValueError(f"layer {layer['layer']}: parts {sizes} in {len(folders)} folders")
    data = [(place / layer["file"]).read_bytes() for place in folders]
    for part, size in zip(data, sizes):
        if len(part) != size * layer["n_experts"]:
            raise ValueError(f"{layer['file']}: {len(part)} bytes")
    return b"".join(part[e * size:(e + 1) * size] for e in range(layer["n_experts"])
                    for part, size in zip(data, sizes))


def read_layer(folder, layer):
    at, matrices = 0, {}
    for name in ("gate", "up", "down"):
        m = layer[name]
        matrices[name], at = place(m["format"], m["rows"], m["cols"], at)
    record = -(-at // 4096) * 4096
    if record != layer["record_bytes"]:
        raise ValueError(f"layer {layer['layer']}: a record has {record} bytes")
    data = records(folder, layer)
    for e, expected in enumerate(layer["xxh3_128"]):
        check(f"expert {e} of layer {layer['layer']}", data[e * record:(e + 1) * record], expected)
    return matrices, record


def by_rows(raw, rows, unit):
    """Returns a part of an interleaved matrix, section "Interleaved rows", row by row."""
    size, result = len(raw) // rows, b""
    for r in range(rows):
        block = raw[r // 16 * 16 * size:(r // 16 + 1) * 16 * size]
        result += b"".join(block[at:at + unit]
                           for at in range(r % 16 * unit, len(block), 16 * unit))
    return result


def matrix(folder, layer, expert, name):
    """Returns the floats of one matrix of one expert, for bf16 and affine with bf16 scales; codes
    and scales of mxfp4-g32, int4-g32 and fp8."""
    placed, record = read_layer(folder, layer)
    m = layer[name]
    data = records(folder, layer)[expert * record:(expert + 1) * record]
    part = [data[at:at + size] for at, size in placed[name]]
    if "interleaved" in m:
        unit = 1 if m["format"] == "mxfp4-g32" else 2
        part = [by_rows(raw, m["rows"], 4 if i == 0 else unit) for i, raw in enumerate(part)]
    if m["format"].startswith(("mxfp4-g32", "int4-g32", "fp8-")):
        return part
    bf16 = lambda raw: [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0]
                        for i in range(0, len(raw), 2)]
    if m["format"] == "bf16":
        return bf16(part[0])
    bits, group = map(int, re.fullmatch(r"affine(\d)-g(\d+)", m["format"]).groups())
    codes = int.from_bytes(part[0], "little")
    scales, biases = bf16(part[1]), bf16(part[2])
    return [scales[i // group] * (codes >> bits * i & (1 << bits) - 1) + biases[i // group]
            for i in range(m["rows"] * m["cols"])]


def read(folder):
    folder = pathlib.Path(folder)
    text = (folder / "model.json").read_bytes()
    model = json.loads(text)
    seal = b',\n "self": "%s"\n}\n' % model["self"].encode()
    if not text.endswith(seal):
        raise ValueError("model.json does not end with its seal")
    check("model.json", text[:-len(seal)], model["self"])
    if model["format"] != "flashmoe-packed" or model["version"] not in (1, 2, 3):
        raise ValueError("not a pack of version 1 to 3")
    interleaved = any("interleaved" in layer[name] for layer in model["experts"]
                      for name in ("gate", "up", "down"))
    is_split = any("parts" in layer for layer in model["experts"])
    if model["version"] != (3 if is_split else 2 if interleaved else 1):
        raise ValueError(f"version {model['version']}, interleaved: {interleaved}")
    dense, at = (folder / "dense.bin").read_bytes(), 0
    for t in model["dense"]["tensors"]:
        rows = 1
        for dim in t["shape"][:-1]:
            rows *= dim
        end = place(t["format"], rows, t["shape"][-1], at)[1]
        end = -(-end // 64) * 64
        if t["offset"] != at:
            raise ValueError(f"{t['name']}: offset {t['offset']}, not {at}")
        check(t["name"], dense[at:end], t["xxh3_128"])
        at = end
    if at != len(dense) or at != model["dense"]["bytes"]:
        raise ValueError(f"dense.bin has {len(dense)} bytes, not {at}")
    for layer in model["experts"]:
        read_layer(folder, layer)
    for file in model["files"]:
        data = (folder / file["name"]).read_bytes()
        check(file["name"], data, file["xxh3_128"])
        if len(data) != file["bytes"]:
            raise ValueError(f"{file['name']}: {len(data)} bytes")
    return model


if __name__ == "__main__":
    read(sys.argv[1])
    print("good" if xxhash else "good; without the package xxhash no checksum was looked at")
