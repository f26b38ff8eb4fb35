#!/usr/bin/env python3
"""Computes transformers' logits in float64 for the weights of converted models.

Each model is dequantised (dequantise.py) into OUT/dequantised/LABEL, a Hugging Face directory in
float32, and run by transformers. The result is what an exact engine must give for these files.

usage: reference_logits.py OUT [--nano DATA] [--llama-cpp DIR] NAME=MODEL...
NAME   a checkpoint of sources.py;  MODEL: a GGUF file, a folder of GGUF parts, an MLX or FP8
       directory, relative to OUT, or "hf" for the checkpoint itself
Writes OUT/expected/LABEL.json and LABEL.f32 (float32 [tokens of all prompts, vocabulary]).
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import torch

import sources


class Float64:
    """The models use float32 inside norms, softmax and the delta rule: gives them float64."""

    def __enter__(self):
        self.kept = torch.float32, torch.float, torch.Tensor.float
        torch.float32, torch.float, torch.Tensor.float = (
            torch.float64,
            torch.float64,
            torch.Tensor.double,
        )

    def __exit__(self, *_):
        torch.float32, torch.float, torch.Tensor.float = self.kept


def write_checkpoint(folder, source, tensors):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    tensors = dict(tensors)
    with safe_open(source / "model.safetensors", "pt") as file:  # integers are not converted
        for name in file.keys():
            if file.get_slice(name).get_dtype() == "I64":
                tensors[name] = file.get_tensor(name).numpy()
    folder.mkdir(parents=True, exist_ok=True)
    config = json.load(open(source / "config.json"))
    config["dtype"] = "float32"
    config.pop("quantization_config", None)
    config.get("text_config", {}).pop("quantization_config", None)
    json.dump(config, open(folder / "config.json", "w"), indent=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def load_model(folder):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Mxfp4Config

    options, dtype = {}, torch.float64
    config = json.load(open(folder / "config.json"))
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    if "quantization_config" in config:
        # Decoding to bfloat16 is exact.
        options, dtype = {"quantization_config": Mxfp4Config(dequantize=True)}, torch.bfloat16
    model, info = kind.from_pretrained(
        folder,
        dtype=dtype,
        **options,
        experts_implementation="eager",
        attn_implementation="eager",
        output_loading_info=True,
    )
    # The towers of images have other names in the files. Text does not depend on them.
    of_text = [k for k in info["missing_keys"] if "vision_tower" not in k and "mm_proj" not in k]
    assert not of_text and not info["mismatched_keys"], info
    assert all(k.startswith(("mtp.", "vision_tower.", "mm_proj", "model.vision_tower.",
                             "model.mm_proj")) for k in info["unexpected_keys"]), info
    return model.double().eval()


def continue_greedily(model, ids, n):
    """Returns the n most likely next tokens, past any end token, and their margin over the
    second."""
    chosen, margins = [], []
    step, cache = ids, None
    while len(chosen) < n:
        result = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        top = torch.topk(result.logits[0, -1], 2)
        chosen.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        step = chosen[-1:]
    return chosen, margins


def run(folder, prompts):
    model = load_model(folder)
    rows, cases = [], []
    with Float64(), torch.no_grad():
        for label, ids, n_greedy in prompts:
            logits = model(torch.tensor([ids])).logits[0]
            assert logits.dtype == torch.float64
            case = {"label": label, "ids": ids, "first_row": sum(len(r) for r in rows)}
            rows.append(logits.double().numpy())
            case["greedy"], case["greedy_margin"] = continue_greedily(model, ids, n_greedy)
            cases.append(case)
    return np.concatenate(rows), cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--nano", type=pathlib.Path)
    parser.add_argument("--llama-cpp", type=pathlib.Path, help="for its gguf-py")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    if args.llama_cpp:
        sys.path.insert(0, str(args.llama_cpp / "gguf-py"))
    import dequantise

    (args.out / "expected").mkdir(exist_ok=True)
    for item in args.models:
        name, _, path = item.partition("=")
        source = sources.stage(name, args.out, args.nano)
        folder, label = source, f"{name}-hf"
        if path != "hf":
            config = json.load(open(source / "config.json"))
            label = path.replace("/", "-").removesuffix(".gguf")
            folder = args.out / "dequantised" / label
            write_checkpoint(folder, source, dequantise.load(args.out / path, config))
        logits, cases = run(folder, sources.prompts(name, args.nano, args.out))
        logits.astype("<f4").tofile(args.out / "expected" / f"{label}.f32")
        about = {
            "model": path,
            "checkpoint": name,
            "logits": f"{label}.f32: float32 little-endian [{len(logits)}, {logits.shape[1]}]; "
            "transformers in float64 with the dequantised weights, rounded once",
            "vocab": logits.shape[1],
            "prompts": cases,
        }
        json.dump(about, open(args.out / "expected" / f"{label}.json", "w"), indent=1)
        print(label, logits.shape, flush=True)


if __name__ == "__main__":
    main()
