#!/usr/bin/env python3
"""Makes block-scaled FP8 checkpoints of nano and of a DeepSeek-V3, laid out like the Qwen and the
DeepSeek FP8 releases.

Experts and projections become float8_e4m3fn with one float32 factor per 128 x 128 block
(weight_scale_inv, which multiplies); gates, embeddings, norms, conv1d, in_proj_ba and mtp.fc stay
as they are.

usage: make_fp8.py OUT [--nano DATA]   writes OUT/fp8/nano and OUT/fp8/blocks_deepseek_v3-fp8
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

import sources

BLOCK = 128
LARGEST = torch.finfo(torch.float8_e4m3fn).max
KEPT = ("embed_tokens", "lm_head", "mlp.gate", "shared_expert_gate", "in_proj_ba")


def kept(name, value):
    module = name.removesuffix(".weight")
    return value.ndim != 2 or module == "mtp.fc" or module.endswith(KEPT)


def quantise(weight):
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / LARGEST
    codes = (blocks / scale[:, None, :, None]).reshape(padded.shape)[:rows, :cols]
    return codes.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).contiguous(), scale


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--nano", type=pathlib.Path)
    args = parser.parse_args()
    if args.nano:
        convert(sources.stage("nano", args.out, args.nano), args.out / "fp8" / "nano")
    convert(sources.stage("blocks_deepseek_v3", args.out),
            args.out / "fp8" / "blocks_deepseek_v3-fp8")


def convert(source, target):
    target.mkdir(parents=True, exist_ok=True)
    tensors, not_converted = {}, set()
    for name, value in load_file(source / "model.safetensors").items():
        if kept(name, value):
            tensors[name] = value
            not_converted.add(name.removesuffix(".weight"))
        else:
            tensors[name], tensors[name + "_scale_inv"] = quantise(value)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    for path in source.iterdir():
        if path.name.startswith(("tokenizer", "generation_config", "chat_template")):
            shutil.copyfile(path, target / path.name)
    config = json.load(open(source / "config.json"))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted(not_converted),
    }
    json.dump(config, open(target / "config.json", "w"), indent=2)
    n = sum(name.endswith("_scale_inv") for name in tensors)
    print(f"{target}: {n} tensors of {len(tensors) - n} in FP8")


if __name__ == "__main__":
    main()
