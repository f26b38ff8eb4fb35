#!/usr/bin/env python3
"""Converts the goldens and nano to MLX directories with mlx-lm's own converter, on the CPU.

usage: convert_mlx.py OUT [--nano DATA] [--only NAME]
OUT   gets hf/NAME (the staged checkpoints), released/NAME (with the configuration keys and, for
      Qwen3.5, the tensor names of the released checkpoints, as mlx-lm wants them) and mlx/NAME-KIND
DATA  a folder with nano-hf.tar.xz.* and nano_golden.json
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import mlx.core as mx
from mlx_lm.convert import convert

import sources

AFFINE = {"4bit-g64": (4, 64), "4bit-g32": (4, 32)}
NANO = {
    "4bit-g64": (4, 64),
    "4bit-g32": (4, 32),
    "4bit-g128": (4, 128),
    "8bit-g64": (8, 64),
    "8bit-g32": (8, 32),
    "6bit-g64": (6, 64),
    "5bit-g64": (5, 64),
    "3bit-g64": (3, 64),
    "2bit-g64": (2, 64),
    "2bit-g32": (2, 32),
}


def release(name, folder, out):
    """Returns the staged checkpoint with the keys of released checkpoints."""
    target = out / "released" / name
    if target.exists():
        return target
    if sources.BASE.get(name, name) == "qwen3_5_moe_text":
        script = [sys.executable, sources.GOLDEN / "variants.py", folder, target]
        subprocess.run([*script, "--layout", "multimodal"], check=True)
    else:
        shutil.copytree(folder, target)
    config = json.load(open(target / "config.json"))
    text = config.get("text_config", config)
    config["torch_dtype"] = "bfloat16"
    if "num_local_experts" in text:
        text["num_experts"] = text["num_local_experts"]
    if "rope_parameters" in text:
        text["rope_theta"] = text["rope_parameters"]["rope_theta"]
        if text["model_type"] == "glm4_moe":
            text["partial_rotary_factor"] = text["rope_parameters"]["partial_rotary_factor"]
            text["rope_scaling"] = None
    text.setdefault("full_attention_interval", 4)
    json.dump(config, open(target / "config.json", "w"), indent=2)
    return target


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--nano", type=pathlib.Path)
    parser.add_argument("--only")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    for name in sources.GOLDENS + (["nano"] if args.nano else []):
        if args.only not in (None, name):
            continue
        folder = str(release(name, sources.stage(name, args.out, args.nano), args.out))
        mlx = args.out / "mlx"
        mlx.mkdir(exist_ok=True)

        def make(kind, **options):
            if not (mlx / f"{name}-{kind}").exists():
                convert(folder, str(mlx / f"{name}-{kind}"), **options)

        make("bf16")
        if name.startswith("gpt_oss"):
            make("mxfp4", quantize=True, q_bits=4, q_group_size=32, q_mode="mxfp4")
            make("4bit-g32", quantize=True, q_bits=4, q_group_size=32)
            continue
        for kind, (bits, group) in (NANO if name == "nano" else AFFINE).items():
            make(kind, quantize=True, q_bits=bits, q_group_size=group)
        if name == "nano":
            for recipe in ("mixed_4_6", "mixed_2_6"):
                make(recipe, quantize=True, q_bits=4, q_group_size=64, quant_predicate=recipe)


if __name__ == "__main__":
    main()
