#!/usr/bin/env python3
"""Computes the pieces of layers with transformers, in float64.

usage: pieces.py OUT.json

Needs torch and transformers; tested with 2.15.0 and 5.22.2. Inputs and weights come from a
generator that pieces_test.c has too, so the file holds only shapes, seeds and results. Routers of
some families round to float32 in transformers; cases in which that would change a choice are
refused.
"""
import json
import sys

import torch
from transformers import AutoConfig
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.gpt_oss import modeling_gpt_oss as oss
from transformers.models.minimax_m2 import modeling_minimax_m2 as minimax
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.olmoe import modeling_olmoe as olmoe

MARGIN = 1e-5


class Values:
    """Floats in (-scale, scale), each exact in float32."""

    def __init__(self, seed):
        self.state = seed

    def take(self, *shape, scale=1.0):
        n = 1
        for d in shape:
            n *= d
        out = []
        for _ in range(n):
            self.state = (self.state * 1664525 + 1013904223) & 0xffffffff
            out.append(((self.state >> 8) / 8388608.0 - 1.0) * scale)
        return torch.tensor(out, dtype=torch.float64).reshape(shape)


def rounded(x):
    return [float(f"{v:.9g}") for v in x.double().flatten().tolist()]


def check_margin(choice, k):
    best = choice.sort(dim=-1, descending=True).values
    assert (best[:, k - 1] - best[:, k]).min() > MARGIN, "another seed: a choice is too close"


def router(name, seed, module, shape, bias=None, correction=None):
    """shape: the fields of struct router. The weight of the module is the identity, so its input is
    the logits."""
    n_rows, n_experts, k = 24, shape["n_experts"], shape["k"]
    values = Values(seed)
    logits = values.take(n_rows, n_experts, scale=4)
    module.double()
    with torch.no_grad():
        module.weight.copy_(torch.eye(n_experts))
        if bias:
            module.bias.copy_(values.take(n_experts))
        args = []
        if correction:
            shift = values.take(n_experts, scale=0.5)
            if correction == "argument":
                args = [shift]
            else:
                module.e_score_correction_bias = shift
        _, weights, ids = module(logits, *args)
        score = logits + module.bias if bias else logits
        score = score.softmax(-1) if shape["score"] == "softmax" else score.sigmoid()
        choice = score + shift if correction else score
        if shape.get("n_groups", 1) > 1:
            groups = choice.view(n_rows, shape["n_groups"], -1).topk(2).values.sum(-1)
            check_margin(groups, shape["n_groups_chosen"])
            kept = torch.zeros_like(groups).scatter_(
                1, groups.topk(shape["n_groups_chosen"]).indices, 1)
            choice = choice.masked_fill(
                kept.repeat_interleave(n_experts // shape["n_groups"], 1) == 0, -1e9)
        check_margin(choice, k)
    order = ids.argsort(-1)
    return {"kind": "router", "name": name, "seed": seed, "n_rows": n_rows,
            "has_bias": bool(bias), "has_correction": bool(correction), **shape,
            "ids": ids.gather(1, order).flatten().tolist(),
            "weights": rounded(weights.gather(1, order))}


def routers():
    config = AutoConfig.for_model("olmoe", num_experts=20, num_experts_per_tok=5, hidden_size=20,
                                  norm_topk_prob=False)
    shape = {"score": "softmax", "n_experts": 20, "k": 5, "renormalises": False}
    yield router("olmoe", 1, olmoe.OlmoeTopKRouter(config), shape)
    config.norm_topk_prob = True
    yield router("olmoe renormalised", 2, olmoe.OlmoeTopKRouter(config),
                 {**shape, "renormalises": True})
    config = AutoConfig.for_model("deepseek_v2", num_experts=16, num_experts_per_tok=4,
                                  n_routed_experts=16, hidden_size=16, topk_method="greedy",
                                  routed_scaling_factor=3.0, num_attention_heads=4)
    yield router("deepseek_v2", 9, deepseek_v2.DeepseekV2TopkRouter(config),
                 {"score": "softmax", "n_experts": 16, "k": 4, "renormalises": False,
                  "scale": 3.0})
    config = AutoConfig.for_model("mixtral", num_local_experts=8, num_experts_per_tok=2,
                                  hidden_size=8)
    yield router("mixtral", 3, mixtral.MixtralTopKRouter(config),
                 {"score": "softmax", "n_experts": 8, "k": 2, "renormalises": True})
    config = AutoConfig.for_model("gpt_oss", num_local_experts=32, num_experts_per_tok=4,
                                  hidden_size=32)
    yield router("gpt_oss", 4, oss.GptOssTopKRouter(config),
                 {"score": "softmax", "n_experts": 32, "k": 4, "renormalises": True}, bias=True)
    for seed, renormalises, scale in ((5, True, 1.0), (6, False, 2.5)):
        config = AutoConfig.for_model("glm4_moe", n_routed_experts=40, num_experts_per_tok=6,
                                      hidden_size=40, n_group=1, topk_group=1,
                                      norm_topk_prob=renormalises, routed_scaling_factor=scale)
        yield router(f"glm4_moe {scale}", seed, glm.Glm4MoeTopkRouter(config),
                     {"score": "sigmoid", "n_experts": 40, "k": 6, "n_groups": 1,
                      "n_groups_chosen": 1, "renormalises": renormalises, "scale": scale},
                     correction="buffer")
    config = AutoConfig.for_model("deepseek_v3", n_routed_experts=64, num_experts_per_tok=8,
                                  hidden_size=64, n_group=8, topk_group=4, norm_topk_prob=True,
                                  routed_scaling_factor=2.5)
    yield router("deepseek_v3", 7, deepseek.DeepseekV3TopkRouter(config),
                 {"score": "sigmoid", "n_experts": 64, "k": 8, "n_groups": 8,
                  "n_groups_chosen": 4, "renormalises": True, "scale": 2.5}, correction="buffer")
    config = AutoConfig.for_model("minimax_m2", num_local_experts=32, num_experts_per_tok=8,
                                  hidden_size=32)
    yield router("minimax_m2", 8, minimax.MiniMaxM2TopKRouter(config),
                 {"score": "sigmoid", "n_experts": 32, "k": 8, "renormalises": True},
                 correction="argument")


def gpt_oss_block():
    """Router and experts, with every bias and the clamped activation."""
    seed, n, hidden, width, n_experts, k = 20, 12, 48, 40, 6, 3
    config = AutoConfig.for_model("gpt_oss", num_local_experts=n_experts, num_experts_per_tok=k,
                                  hidden_size=hidden, intermediate_size=width)
    block, values = oss.GptOssMLP(config).double(), Values(seed)
    with torch.no_grad():
        x = values.take(n, hidden, scale=2)
        block.router.weight.copy_(values.take(n_experts, hidden))
        block.router.bias.copy_(values.take(n_experts))
        experts = block.experts
        # transformers interleaves the rows of gate and up.
        experts.gate_up_proj[..., ::2] = values.take(n_experts, width, hidden).transpose(1, 2)
        experts.gate_up_proj[..., 1::2] = values.take(n_experts, width, hidden).transpose(1, 2)
        experts.down_proj.copy_(values.take(n_experts, hidden, width).transpose(1, 2))
        experts.gate_up_proj_bias[..., ::2] = values.take(n_experts, width, scale=4)
        experts.gate_up_proj_bias[..., 1::2] = values.take(n_experts, width, scale=4)
        experts.down_proj_bias.copy_(values.take(n_experts, hidden, scale=4))
        check_margin(block.router(x)[0], k)
        gate_up = x @ experts.gate_up_proj[0] + experts.gate_up_proj_bias[0]
        assert (gate_up[:, ::2] > 7).any() and (gate_up[:, 1::2] < -7).any()
        out = block(x[None])[0][0]
    return {"kind": "experts", "name": "gpt_oss", "seed": seed, "n_rows": n, "hidden": hidden,
            "intermediate": width, "n_experts": n_experts, "k": k,
            "alpha": float(experts.alpha), "limit": float(experts.limit), "out": rounded(out)}


def gelu_block():
    seed, n, hidden, width = 21, 6, 32, 48
    config = AutoConfig.for_model("gemma2", hidden_size=hidden, intermediate_size=width,
                                  hidden_activation="gelu_pytorch_tanh")
    block, values = gemma2.Gemma2MLP(config).double(), Values(seed)
    with torch.no_grad():
        x = values.take(n, hidden)
        for part in (block.gate_proj, block.up_proj, block.down_proj):
            part.weight.copy_(values.take(*part.weight.shape))
        out = block(x)
    return {"kind": "dense", "name": "gemma2", "seed": seed, "n_rows": n, "hidden": hidden,
            "intermediate": width, "out": rounded(out)}


def causal_mask(n, window):
    row, column = torch.arange(n)[:, None], torch.arange(n)[None]
    seen = column <= row
    if window:
        seen &= column > row - window
    return torch.zeros(n, n, dtype=torch.float64).masked_fill(~seen, -1e300)[None, None]


def attention(name, seed, module, rotary, config, rows, n, window, has_bias, has_sinks, norms):
    values = Values(seed)
    hidden = config.hidden_size
    module = module.double()
    with torch.no_grad():
        x = values.take(n, hidden)
        parts = (module.q_proj, module.k_proj, module.v_proj, module.o_proj)
        for part in parts:
            part.weight.copy_(values.take(*part.weight.shape, scale=0.5))
        for part in parts if has_bias else ():
            part.bias.copy_(values.take(*part.bias.shape))
        if has_sinks:
            module.sinks.copy_(values.take(config.num_attention_heads, scale=4))
        if norms == "all":
            for norm in (module.q_norm, module.k_norm):
                norm.weight.copy_(values.take(*norm.weight.shape))
        cos, sin = rotary(x[None], torch.arange(n)[None])
        out = module(x[None], (cos.double(), sin.double()), causal_mask(n, window))[0][0]
    return {"kind": "attention", "name": name, "seed": seed, "n_rows": n, "hidden": hidden,
            "n_heads": config.num_attention_heads, "n_kv_heads": config.num_key_value_heads,
            "head_dim": parts[1].weight.shape[0] // config.num_key_value_heads,
            "rotary_dim": 2 * rotary.inv_freq.numel(),
            "theta": config.rope_parameters["rope_theta"], "eps": config.rms_norm_eps,
            "window": window, "has_bias": has_bias, "has_sinks": has_sinks, "norms": norms,
            "rows": rows, "out": rounded(out[rows])}


def attentions():
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    # The window begins inside a block of 256 positions, at its edge and after it; at the end it
    # covers the second and the third block, without the first.
    rows = [0, 1, 98, 99, 100, 101, 254, 255, 256, 257, 300, 354, 355, 356, 511, 512, 530, 559]
    for seed, window in ((30, 100), (31, 0)):
        config = AutoConfig.for_model(
            "gpt_oss", hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
            sliding_window=window or 100, rope_parameters=rope, attention_bias=True)
        config._attn_implementation = "eager"
        yield attention(f"gpt_oss window {window}", seed,
                        oss.GptOssAttention(config, 0 if window else 1),
                        oss.GptOssRotaryEmbedding(config), config, rows, 560, window, True, True,
                        "none")
    config = AutoConfig.for_model("olmoe", hidden_size=64, num_attention_heads=4,
                                  num_key_value_heads=2, rope_parameters=rope)
    config._attn_implementation = "eager"
    yield attention("olmoe", 32, olmoe.OlmoeAttention(config, 0),
                    olmoe.OlmoeRotaryEmbedding(config), config, [0, 1, 7, 19], 20, 0, False, False,
                    "all")
    config = AutoConfig.for_model("minimax_m2", hidden_size=48, num_attention_heads=6,
                                  num_key_value_heads=2, head_dim=16,
                                  rope_parameters={**rope, "partial_rotary_factor": 0.5})
    config._attn_implementation = "eager"
    yield attention("minimax_m2", 33, minimax.MiniMaxM2Attention(config, 0),
                    minimax.MiniMaxM2RotaryEmbedding(config), config, [0, 1, 7, 19], 20, 0, False,
                    False, "all")


def main():
    torch.manual_seed(0)
    cases = [*routers(), gpt_oss_block(), gelu_block(), *attentions()]
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
