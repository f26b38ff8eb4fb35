#!/usr/bin/env python3
"""Writes the seed corpus of the safetensors fuzz target.

usage: make_corpus.py [DIR]      (default: corpus/ next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""

import json
import pathlib
import struct
import sys


def entry(dtype, shape, begin, end, **extra):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **extra}


def framed(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(
        header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def good_seeds():
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2,
             "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8,
             "F64": 8, "C64": 8}
    every, at = {}, 0
    for dtype, size in sizes.items():
        every[dtype.lower()] = entry(dtype, [2], at, at + 2 * size)
        at += 2 * size
    shuffled = {"c": entry("U8", [3], 7, 10), "a": entry("U8", [3], 0, 3),
                "b": entry("U8", [4], 3, 7)}
    return {
        "empty-header": framed({}),
        "metadata-only": framed({"__metadata__": {"format": "pt"}}),
        "one": framed({"w": entry("BF16", [2, 3], 0, 12)}, bytes(12)),
        "one-no-data": framed({"w": entry("BF16", [2, 3], 0, 12)}),
        "every-dtype": framed(every),
        "shuffled": framed(shuffled, bytes(10)),
        "hole": framed({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 9, 10)}, bytes(10)),
        "scalar": framed({"s": entry("F32", [], 0, 4)}, bytes(4)),
        "no-elements": framed({"z": entry("F32", [4, 0, 2], 0, 0)}),
        "eight-dims": framed({"d": entry("U8", [1] * 8, 0, 1)}, bytes(1)),
        "extra-keys": framed({"w": entry("U8", [1], 0, 1, note={"a": [1, None, True, 1.5]})}),
        "odd-padding": framed(b'{"w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}    '),
        "escapes": framed('{"w\\u00e9\\n\u4e2d":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}'
                          .encode()),
        "expert-names": framed({f"model.layers.0.mlp.experts.{e}.up_proj.weight":
                                entry("F16", [1, 2], 4 * e, 4 * e + 4) for e in range(4)}),
    }


def bad_seeds():
    one = {"w": entry("U8", [4], 0, 4)}
    return {
        "bad-empty-file": b"",
        "bad-short-file": b"\x02\0\0\0",
        "bad-length-zero": framed({}, length=0),
        "bad-length-long": framed(one, length=1 << 20),
        "bad-length-max": framed(one, length=(1 << 64) - 1),
        "bad-length-cuts": framed(one, length=10),
        "bad-lfs-pointer": b"version https://git-lfs\noid sha256:0\nsize 1\n",
        "bad-array-root": framed(b"[1,2]"),
        "bad-entry": framed({"w": 7}),
        "bad-dtype": framed({"w": entry("F7", [1], 0, 1)}),
        "bad-dtype-narrow": framed({"w": entry("F4", [2], 0, 1)}),
        "bad-shape-negative": framed({"w": entry("U8", [-1], 0, 1)}),
        "bad-shape-real": framed({"w": entry("U8", [1.5], 0, 1)}),
        "bad-shape-overflow": framed({"w": entry("F64", [1 << 62, 1 << 62], 0, 1)}),
        "bad-shape-huge": framed({"w": entry("U8", [1 << 70], 0, 1)}),
        "bad-offsets-order": framed({"w": entry("U8", [1], 2, 1)}),
        "bad-offsets-beyond": framed({"w": entry("U8", [1 << 41], 0, 1 << 41)}),
        "bad-offsets-three": framed(b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}'),
        "bad-bytes": framed({"w": entry("F32", [3], 0, 11)}),
        "bad-overlap": framed({"a": entry("U8", [8], 0, 8), "b": entry("U8", [4], 7, 11)}),
        "bad-duplicate": framed(b'{"w":{"dtype":"U8"},"w":{"dtype":"U8"}}'),
        "bad-metadata": framed({"__metadata__": {"n": 1}}),
        "bad-utf8": framed(b'{"\xff\xfe":1}'),
        "bad-depth": framed(b'{"w":' + b"[" * 64 + b"]" * 64 + b"}"),
    }


def main():
    base = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).resolve().parent / "corpus")
    folder = base / "safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {**good_seeds(), **bad_seeds()}
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
    print(f"{len(seeds)} seeds in {folder}")


if __name__ == "__main__":
    main()
