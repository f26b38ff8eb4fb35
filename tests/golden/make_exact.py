#!/usr/bin/env python3
"""Writes golden_exact.f32 next to a golden.json: transformers' logits computed in float64.

golden_logits.f32 holds transformers' float32 results, which have rounding errors of their own. This
file shows how large these are. Needs `pip install torch transformers numpy`.

usage: make_exact.py DIR...
"""
import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def logits(folder, dtype):
    ids = json.load(open(f"{folder}/golden.json"))["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager", attn_implementation="eager"
    ).eval()
    kept = torch.float32, torch.Tensor.float
    if dtype == torch.float64:
        # The models use float32 inside norms, softmax and the delta rule: give them float64.
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    with torch.no_grad():
        result = model(torch.tensor([ids])).logits[0]
    torch.float32, torch.Tensor.float = kept
    assert result.dtype == dtype
    return result.double().numpy()


for folder in sys.argv[1:]:
    exact = logits(folder, torch.float64)
    exact.astype("<f4").tofile(f"{folder}/golden_exact.f32")
    golden = np.fromfile(f"{folder}/golden_logits.f32", dtype="<f4").reshape(exact.shape)
    here = logits(folder, torch.float32)
    print(
        f"{folder}: float32 golden against float64: {abs(golden - exact).max():.2e}; "
        f"float32 on this machine against float64: {abs(here - exact).max():.2e}, "
        f"against the golden: {abs(here - golden).max():.2e}"
    )
