#!/usr/bin/env python3
"""A table of the distances in OUT/results, and of the formats' own error from OUT/expected.

usage: summary.py OUT     also writes OUT/results/summary.json
"""
import json
import pathlib
import sys

import numpy as np


def format_errors(out):
    """How far the dequantised weights move transformers' logits from the checkpoint's."""
    for path in sorted((out / "expected").glob("*.json")):
        name = json.load(open(path))["checkpoint"]
        original = out / "expected" / f"{name}-hf.f32"
        if path.stem.endswith("-hf") or not original.exists():
            continue
        ours, theirs = (np.fromfile(p, "<f4") for p in (path.with_suffix(".f32"), original))
        d = np.abs(ours.astype(float) - theirs)
        yield path.stem, {"max": float(d.max()), "mean": float(d.mean())}


def main():
    out = pathlib.Path(sys.argv[1])
    table = {label: {"format": error} for label, error in format_errors(out)}
    for path in sorted((out / "results").glob("*-*.json")):
        about = json.load(open(path))
        label = about["model"].replace("/", "-").removesuffix(".gguf")
        row = table.setdefault(label, {})
        row[about["engine"]] = about["from_dequantised"]
        row[about["engine"] + "_from_original"] = about["from_original"]
        row[about["engine"] + "_greedy"] = about["greedy_like_dequantised"]
    json.dump(table, open(out / "results" / "summary.json", "w"), indent=1)
    columns = ("format", "llama", "mlx", "mlx32", "llama_from_original", "mlx_from_original")
    print("| model |", " | ".join(f"{c}: max, mean" for c in columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for label, row in table.items():
        cells = [row.get(c) for c in columns]
        text = [f"{c['max']:.2g}, {c['mean']:.2g}" if c else "" for c in cells]
        print("|", " | ".join([label, *text]), "|")


if __name__ == "__main__":
    main()
