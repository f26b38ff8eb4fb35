#!/usr/bin/env python3
"""Compares the logits of llama.cpp and mlx-lm for the converted models with transformers.

usage: oracle_logits.py OUT {llama,mlx} [--nano DATA] [--only NAME]
Reads OUT/gguf/NAME-KIND.gguf or OUT/mlx/NAME-KIND/ and writes OUT/results/ENGINE-NAME-KIND.json
and .f32 (float32 [tokens of all prompts, vocabulary]). The JSON has the greedy continuations and
the largest and mean distance of the logits from transformers' (OUT/expected) with the original
and with the dequantised weights.

llama.cpp keeps its cache in float32 here. It rounds activations to 8 bits for quantised weights
and to bfloat16 for bfloat16 ones. mlx-lm is run as it comes (bfloat16) and, as mlx32, in float32.
Its CPU code has no bfloat16 product for unquantised experts.
"""
import argparse
import json
import pathlib

import numpy as np

import sources


class Llama:
    def __init__(self, path):
        import llama_cpp

        path = sorted(path.glob("*.gguf"))[0] if path.is_dir() else path
        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=512,
            n_batch=512,
            n_ubatch=512,
            n_threads=2,
            n_threads_batch=2,
            logits_all=True,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )

    def start(self, ids):
        self.model.reset()
        self.model._ctx.kv_cache_clear()
        return self.step(ids)

    def step(self, ids):
        before = self.model.n_tokens
        self.model.eval(ids)
        return self.model.scores[before : self.model.n_tokens].copy()


class Mlx:
    def __init__(self, path, float32=False):
        import mlx.core as mx
        from mlx_lm.utils import load_model

        mx.set_default_device(mx.cpu)
        self.mx = mx
        self.model, _ = load_model(path)
        if float32:
            self.model.set_dtype(mx.float32)

    def start(self, ids):
        from mlx_lm.models.cache import make_prompt_cache

        self.cache = make_prompt_cache(self.model)
        return self.step(ids)

    def step(self, ids):
        logits = self.model(self.mx.array([ids]), cache=self.cache)[0]
        return np.array(logits.astype(self.mx.float32))


def run(model, prompts):
    rows, cases = [], []
    for label, ids, n_greedy in prompts:
        rows.append(model.start(ids))
        greedy, last = [], rows[-1][-1]
        while len(greedy) < n_greedy:
            greedy.append(int(last.argmax()))
            last = model.step(greedy[-1:])[-1]
        cases.append({"label": label, "ids": ids, "greedy": greedy})
    return np.concatenate(rows), cases


def distance(logits, path):
    if not path.exists():
        return None
    other = np.fromfile(path, "<f4").reshape(logits.shape)
    d = np.abs(logits.astype(np.float64) - other)
    same = (logits.argmax(1) == other.argmax(1)).mean()
    return {"max": float(d.max()), "mean": float(d.mean()), "same_first_choice": float(same)}


def agreement(cases, path):
    """Returns how many tokens of each continuation agree before the first difference."""
    if not path.exists():
        return None
    counts = []
    for ours, theirs in zip(cases, json.load(open(path))["prompts"]):
        pairs = list(zip(ours["greedy"], theirs["greedy"]))
        n = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        counts.append(f"{n}/{len(pairs)}")
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("engine", choices=["llama", "mlx"])
    parser.add_argument("--nano", type=pathlib.Path)
    parser.add_argument("--only")
    args = parser.parse_args()
    results, expected = args.out / "results", args.out / "expected"
    results.mkdir(exist_ok=True)
    folder = args.out / {"llama": "gguf", "mlx": "mlx"}[args.engine]
    for path in sorted(folder.iterdir()):
        names = (n for n in sources.GOLDENS + ["nano"] if path.name.startswith(n + "-"))
        name = max(names, key=len)
        if args.only not in (None, name) or (name == "nano" and not args.nano):
            continue
        kinds = ["llama"] if args.engine == "llama" else ["mlx", "mlx32"]
        if args.engine == "mlx" and path.name.endswith("-bf16"):
            kinds = ["mlx32"]
        for kind in kinds:
            model = Llama(path) if kind == "llama" else Mlx(path, kind == "mlx32")
            logits, cases = run(model, sources.prompts(name, args.nano))
            label = f"{kind}-{path.name.removesuffix('.gguf')}"
            stem = f"{folder.name}-{path.name.removesuffix('.gguf')}"
            logits.astype("<f4").tofile(results / f"{label}.f32")
            about = {
                "engine": kind,
                "model": f"{folder.name}/{path.name}",
                "from_original": distance(logits, expected / f"{name}-hf.f32"),
                "from_dequantised": distance(logits, expected / f"{stem}.f32"),
                "greedy_like_dequantised": agreement(cases, expected / f"{stem}.json"),
                "prompts": cases,
            }
            json.dump(about, open(results / f"{label}.json", "w"), indent=1)
            print(label, about["from_original"], about["from_dequantised"], flush=True)


if __name__ == "__main__":
    main()
