#!/usr/bin/env python3
"""Copies the small converted models and their expected logits into frozen/, for `make test`.

usage: freeze.py OUT
Each frozen/LABEL.json has the keys of a golden.json; LABEL.f32 holds the logits of input_ids.
"""
import json
import pathlib
import shutil
import sys

import numpy as np

import sources

FROZEN = sources.HERE / "frozen"
MODELS = [f"gguf/small_{arch}-{kind}.gguf" for arch in ("qwen3_moe", "qwen3_next", "qwen3_5_moe")
          for kind in ("bf16", "q8_0")]
MODELS += [f"mlx/{name}-4bit-g64" for name in ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text")]
MODELS += ["gguf/wide-Q4_K_M.gguf"]


def main():
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(FROZEN, ignore_errors=True)
    FROZEN.mkdir()
    for model in MODELS:
        label = model.split("/")[1].removesuffix(".gguf")
        source = out / model
        if source.is_dir():
            ignored = shutil.ignore_patterns("README.md")
            shutil.copytree(source, FROZEN / label, ignore=ignored)
        else:
            shutil.copyfile(source, FROZEN / source.name)
        stem = model.replace("/", "-").removesuffix(".gguf")
        expected = json.load(open(out / "expected" / f"{stem}.json"))
        first, greedy = expected["prompts"]
        vocab = expected["vocab"]
        logits = np.fromfile(out / "expected" / f"{stem}.f32", "<f4").reshape(-1, vocab)
        logits[: len(first["ids"])].tofile(FROZEN / f"{label}.f32")
        about = {
            "model": source.name,
            "input_ids": first["ids"],
            "vocab": vocab,
            "logits": f"{label}.f32: float32 little-endian [{len(first['ids'])}, vocab], "
            "transformers in float64 with the weights this file holds, rounded once",
            "greedy_prompt": greedy["ids"],
            "greedy_continuation": greedy["greedy"],
            "greedy_margin": [round(x, 6) for x in greedy["greedy_margin"]],
        }
        (FROZEN / f"{label}.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
