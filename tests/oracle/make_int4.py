#!/usr/bin/env python3
"""Packs the experts of a Kimi checkpoint as INT4, with compressed-tensors' own code.

Laid out like the Kimi-K2-Thinking and Kimi-K2.5 releases: groups of 32 columns, symmetric, a
bfloat16 scale each; everything else stays as it is.

usage: make_int4.py OUT     writes OUT/int4/kimi_k2-int4 and OUT/int4/kimi_k25-int4
"""
import json
import pathlib
import shutil
import sys

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

import sources

GROUP = 32
WEIGHTS = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": GROUP,
           "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
           "symmetric": True, "type": "int"}
CONFIG = {
    "config_groups": {"group_0": {"input_activations": None, "output_activations": None,
                                  "targets": ["Linear"], "weights": WEIGHTS}},
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
SCHEME = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**WEIGHTS))


def pack(weight):
    """Returns weight_packed, weight_scale and weight_shape."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), SCHEME.weights)
    return PackedQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": scale.to(torch.bfloat16)}, SCHEME)


def unpack(parts):
    """Returns the weight in float32, so that the product of a code and a scale is exact."""
    parts = {**parts, "weight_scale": parts["weight_scale"].float()}
    return PackedQuantizationCompressor.decompress(parts, SCHEME)["weight"]


def convert(name, out, shape_dtype):
    source = sources.stage(name, out)
    target = out / "int4" / f"{name}-int4"
    target.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for key, value in load_file(source / "model.safetensors").items():
        if ".mlp.experts." not in key:
            tensors[key] = value
            continue
        parts = pack(value)
        parts["weight_shape"] = parts["weight_shape"].to(shape_dtype)
        tensors.update({key.removesuffix("weight") + k: v for k, v in parts.items()})
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    for path in source.iterdir():
        if path.name.startswith(("tokenizer", "generation_config")):
            shutil.copyfile(path, target / path.name)
    config = json.load(open(source / "config.json"))
    text = config.get("text_config", config)
    text["model_type"] = "kimi_k2"
    text["quantization_config"] = CONFIG
    json.dump(config, open(target / "config.json", "w"), indent=2)
    print(target, sum(k.endswith("weight_packed") for k in tensors), "tensors in INT4")


def main():
    out = pathlib.Path(sys.argv[1])
    convert("kimi_k2", out, torch.int32)
    convert("kimi_k25", out, torch.int64)


if __name__ == "__main__":
    main()
