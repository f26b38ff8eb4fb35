#!/usr/bin/env python3
"""Converts the goldens and nano to GGUF with llama.cpp's own convert_hf_to_gguf.py.

The converter identifies a pre-tokenizer by the hash of its effect on a text. The tiny vocabularies
give hashes that it does not know, so this driver answers for it. The tensor code is unchanged.

usage: convert_gguf.py LLAMA_CPP OUT [--nano DATA] [--only NAME]
LLAMA_CPP  a llama.cpp source tree
OUT        gets hf/NAME (the staged checkpoints) and gguf/NAME-TYPE.gguf
DATA       a folder with nano-hf.tar.xz.* and nano_golden.json
"""
import argparse
import json
import pathlib
import runpy
import sys

import sources

TYPES = ("f32", "bf16", "q8_0", "f16")


def convert(llama_cpp, folder, outfile, options):
    """Runs the converter's main in this process."""
    if outfile.exists() or outfile.with_name(f"{outfile.stem}-00001-of-00002.gguf").exists():
        return
    outfile.parent.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    sys.path.insert(0, str(llama_cpp))
    import conversion.base
    import conversion.glm
    import conversion.qwen

    model_type = json.load(open(folder / "config.json"))["model_type"]
    pre = "qwen35" if model_type == "qwen3_5_moe_text" else "qwen2"
    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    # The tiny vocabulary has none of GLM's special tokens.
    conversion.base.TextModel._set_vocab_glm = conversion.base.TextModel._set_vocab_gpt2
    # It looks for "full_attention", which checkpoints write and transformers 5.22 renames.
    load = conversion.base.ModelBase.load_hparams

    def load_hparams(*args):
        config = load(*args)
        if config.get("model_type") == "qwen4_exp_text":
            config["layer_types"] = [kind.replace("indexed", "full")
                                     for kind in config["layer_types"]]
        return config

    conversion.base.ModelBase.load_hparams = staticmethod(load_hparams)
    # The switch --no-mtp sets this on the class and nothing unsets it.
    for cls in [*vars(conversion.qwen).values(), *vars(conversion.glm).values()]:
        if isinstance(cls, type) and "no_mtp" in vars(cls) and vars(cls)["no_mtp"] is True:
            del cls.no_mtp
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(outfile), *options]
    runpy.run_path(str(llama_cpp / "convert_hf_to_gguf.py"), run_name="__main__")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--nano", type=pathlib.Path)
    parser.add_argument("--only")
    args = parser.parse_args()
    for name in sources.GOLDENS + (["nano"] if args.nano else []):
        # GGUF has no names for the dense layer of qwen3_moe: the converter refuses it.
        if name == "qwen3_moe" or args.only not in (None, name):
            continue
        folder = sources.stage(name, args.out, args.nano)
        # Checkpoints of these families without MTP tensors must declare that they have none.
        has_switch = any(word in name for word in ("qwen3_next", "qwen3_5", "wide", "glm4"))
        no_mtp = ["--no-mtp"] if has_switch and not name.startswith("ahead") else []
        gguf = args.out / "gguf"
        for kind in TYPES:
            options = ["--outtype", kind, *no_mtp]
            convert(args.llama_cpp, folder, gguf / f"{name}-{kind}.gguf", options)
        if name == "nano":
            options = ["--outtype", "bf16", "--split-max-size", "50M"]
            convert(args.llama_cpp, folder, gguf / "nano-split-bf16" / "nano.gguf", options)
            options = ["--outtype", "q8_0", "--split-max-tensors", "40", "--no-tensor-first-split"]
            convert(args.llama_cpp, folder, gguf / "nano-split-q8_0" / "nano.gguf", options)
        elif name == "qwen3_5_moe_text":
            options = ["--outtype", "q8_0", "--fuse-gate-up-exps", *no_mtp]
            convert(args.llama_cpp, folder, gguf / f"{name}-fused-q8_0.gguf", options)


if __name__ == "__main__":
    main()
