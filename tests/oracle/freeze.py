#!/usr/bin/env python3
"""Copies the small converted models and their expected logits into frozen/, for `make test`.

usage: freeze.py OUT [WORDS...]
With WORDS, only models whose names contain one of them are replaced or added.
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
MODELS += [f"gguf/small_{name}-bf16.gguf" for name in sources.ATTENTION]
MODELS += [f"mlx/small_{name}-4bit-g32" for name in sources.ATTENTION]
MODELS += ["gguf/small_mixtral-q8_0.gguf", "gguf/ahead_glm4_moe-bf16.gguf"]
MODELS += ["gguf/yarn_deepseek_v3-bf16.gguf", "mlx/yarn_deepseek_v3-4bit-g32"]
MODELS += ["gguf/ahead_glm4_moe_lite-bf16.gguf", "mlx/ahead_glm4_moe_lite-4bit-g32"]
MODELS += ["gguf/small_qwen4_exp-bf16.gguf", "gguf/small_qwen4_exp-q8_0.gguf"]
MODELS += ["hf/gpt_oss_mxfp4", "gguf/gpt_oss_mxfp4-bf16.gguf"]
MODELS += ["mlx/gpt_oss_mxfp4-mxfp4", "mlx/gpt_oss_mxfp4-4bit-g32"]
MODELS += ["int4/kimi_k2-int4", "fp8/blocks_deepseek_v3-fp8"]


def main():
    out = pathlib.Path(sys.argv[1])
    words = sys.argv[2:]
    if not words:
        shutil.rmtree(FROZEN, ignore_errors=True)
    FROZEN.mkdir(exist_ok=True)
    for model in [m for m in MODELS if not words or any(word in m for word in words)]:
        label = model.split("/")[1].removesuffix(".gguf")
        source = out / model
        if source.is_dir():
            ignored = shutil.ignore_patterns("README.md")
            shutil.rmtree(FROZEN / label, ignore_errors=True)
            shutil.copytree(source, FROZEN / label, ignore=ignored)
        else:
            shutil.copyfile(source, FROZEN / source.name)
        stem = f"{label}-hf" if model.startswith("hf/") else model.replace("/", "-")
        stem = stem.removesuffix(".gguf")
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
