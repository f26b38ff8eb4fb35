#!/usr/bin/env python3
"""Prints a table of the maximum and mean distances between the logits in OUT/results and
OUT/expected.

format  transformers with the dequantised weights from transformers with the checkpoint's
others  that engine from transformers with the dequantised weights

usage: summary.py OUT     also writes OUT/results/summary.json
"""
import json
import pathlib
import sys

import numpy as np

ENGINES = ("llama", "mlx", "mlx32")


def distance(ours, theirs):
    if not ours.exists() or not theirs.exists():
        return None
    d = np.abs(np.fromfile(ours, "<f4").astype(float) - np.fromfile(theirs, "<f4"))
    return {"max": float(d.max()), "mean": float(d.mean())}


def main():
    out = pathlib.Path(sys.argv[1])
    table = {}
    for path in sorted((out / "expected").glob("*.json")):
        about = json.load(open(path))
        if about["model"] == "hf":
            continue
        ours = path.with_suffix(".f32")
        row = {"format": distance(ours, out / "expected" / f"{about['checkpoint']}-hf.f32")}
        label = path.stem.partition("-")[2]
        for engine in ENGINES:
            if engine[:3] == "mlx" and not path.stem.startswith("mlx-"):
                continue
            if engine == "llama" and not path.stem.startswith("gguf-"):
                continue
            row[engine] = distance(out / "results" / f"{engine}-{label}.f32", ours)
        table[path.stem] = row
    json.dump(table, open(out / "results" / "summary.json", "w"), indent=1)
    columns = ("format", *ENGINES)
    print("| model |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for label, row in table.items():
        cells = [row.get(column) for column in columns]
        text = [f"{c['max']:.2g}, {c['mean']:.2g}" if c else "" for c in cells]
        print("|", " | ".join([label, *text]), "|")


if __name__ == "__main__":
    main()
