#!/usr/bin/env python3
"""Writes the seed corpus of the fuzz target for model.json.

usage: make_packed_corpus.py [DIR]      (default: corpus/ next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import copy
import json
import pathlib
import sys

SUM = "0123456789abcdef" * 2


def tensor(name, format_name, shape, offset):
    return {"name": name, "format": format_name, "shape": shape, "offset": offset, "xxh3_128": SUM}


def layer(number, n_experts=2, formats=("bf16",) * 3, record=4096, rows=8, cols=8):
    entry = {"layer": number, "file": f"experts-{number:03}.bin",
             "prefix": f"model.layers.{number}.mlp.", "n_experts": n_experts,
             "record_bytes": record}
    for name, format_name in zip(("gate", "up", "down"), formats):
        entry[name] = {"format": format_name, "rows": rows, "cols": cols}
    return {**entry, "xxh3_128": [SUM] * n_experts}


def model(tensors=(), layers=(), dense_bytes=0, files=(), version=1):
    return {"format": "flashmoe-packed", "version": version,
            "provenance": {"source": "m", "kind": "GGUF"}, "config": {"model_type": "qwen3_moe"},
            "conventions": {"final_norms": False, "final_decay": True,
                            "tiled_value_heads": False},
            "files": list(files),
            "dense": {"file": "dense.bin", "bytes": dense_bytes, "tensors": list(tensors)},
            "experts": list(layers), "self": SUM}


def interleaved(rows=16, count=16, format_name="affine4-g32"):
    one = layer(0, 2, (format_name,) * 3, 4096, rows, 32)
    one["up"]["interleaved"] = count
    return model((), [one], 0, (), 2)


def good_seeds():
    norm = tensor("model.norm.weight", "f32", [32], 0)
    head = tensor("lm_head.weight", "affine4-g32", [4, 32], 128)
    whole = model([norm, head], [layer(0), layer(2, 3, ("affine4-g32", "q8_0", "q4_k"), 4096, 2,
                                                 256)], 320,
                  [{"name": "tokenizer.json", "bytes": 7, "xxh3_128": SUM}])
    return {
        "empty": model(),
        "whole": whole,
        "fp8": model([tensor("w", "fp8-b128-f32", [3, 256], 0)], (), 832),
        "dims": model([tensor("conv", "bf16", [4, 1, 2, 1], 0)], (), 64),
        "no-conventions": {k: v for k, v in whole.items() if k != "conventions"},
        "interleaved": interleaved(),
        "interleaved-version-1": {**interleaved(), "version": 1},
        "extra-fields": {**whole, "note": [1, None, {"a": 1.5}]},
    }


def bad_seeds():
    good = good_seeds()["whole"]
    seeds = {}

    def change(name, path, value):
        bad = copy.deepcopy(good)
        at = bad
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        seeds["bad-" + name] = bad

    change("format", ["format"], "other")
    change("version", ["version"], 3)
    change("config", ["config"], [])
    change("tensors", ["dense", "tensors"], 7)
    change("name", ["dense", "tensors", 0, "name"], None)
    change("twice", ["dense", "tensors", 1, "name"], "model.norm.weight")
    change("offset", ["dense", "tensors", 1, "offset"], 64)
    change("shape", ["dense", "tensors", 1, "shape"], [4, 33])
    change("shape-huge", ["dense", "tensors", 1, "shape"], [1 << 62, 1 << 62, 32])
    change("shape-zero", ["dense", "tensors", 0, "shape"], [0])
    change("shape-deep", ["dense", "tensors", 0, "shape"], [1] * 9)
    change("number-format", ["dense", "tensors", 0, "format"], "f33")
    change("dense-bytes", ["dense", "bytes"], 321)
    change("sum", ["dense", "tensors", 0, "xxh3_128"], "xyz")
    change("layer-order", ["experts", 1, "layer"], 0)
    change("experts-none", ["experts", 0, "n_experts"], 0)
    change("experts-many", ["experts", 0, "n_experts"], 65535)
    change("record", ["experts", 0, "record_bytes"], 8192)
    change("rows", ["experts", 0, "gate", "rows"], 1 << 40)
    change("cols", ["experts", 1, "gate", "cols"], 33)
    change("prefix", ["experts", 0, "prefix"], 5)
    change("sums", ["experts", 0, "xxh3_128"], [SUM])
    change("file-name", ["files", 0, "name"], "../tokenizer.json")
    change("file-bytes", ["files", 0, "bytes"], -1)
    seeds["bad-interleaved-rows"] = interleaved(rows=24)
    seeds["bad-interleaved-count"] = interleaved(count=8)
    seeds["bad-interleaved-format"] = interleaved(format_name="q8_0")
    return seeds


def main():
    base = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).resolve().parent / "corpus")
    folder = base / "packed"
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {**good_seeds(), **bad_seeds()}
    for name, value in seeds.items():
        (folder / name).write_text(json.dumps(value, separators=(",", ":")))
    print(f"{len(seeds)} seeds in {folder}")


if __name__ == "__main__":
    main()
