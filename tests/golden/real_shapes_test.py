#!/usr/bin/env python3
"""real_shapes_test.py FLASHMOE: opens checkpoints with the true shapes of public models, tensor by
tensor, as sparse files whose data is never read, and checks the resulting parameter counts and
sizes. It also shows that the code has no constants of particular models."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import families

PROGRAM = ""

ATTENTION = dict(hidden_act="silu", attention_bias=False, rms_norm_eps=1e-6,
                 tie_word_embeddings=False)
LINEAR = dict(linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
              linear_conv_kernel_dim=4, full_attention_interval=4, head_dim=256,
              num_key_value_heads=2, max_position_embeddings=262144)


def qwen3(layers, hidden, heads, intermediate):
    return dict(ATTENTION, model_type="qwen3_moe", num_hidden_layers=layers, hidden_size=hidden,
                num_attention_heads=heads, num_key_value_heads=4, head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=intermediate, vocab_size=151936,
                norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_theta=1e6,
                max_position_embeddings=40960)


def qwen3_5(layers, hidden, heads, experts, top_k, intermediate, value_heads):
    text = dict(ATTENTION, **LINEAR, model_type="qwen3_5_moe_text", num_hidden_layers=layers,
                hidden_size=hidden, num_attention_heads=heads, num_experts=experts,
                num_experts_per_tok=top_k, moe_intermediate_size=intermediate,
                shared_expert_intermediate_size=intermediate, linear_num_value_heads=value_heads,
                vocab_size=248320,
                rope_parameters=dict(rope_theta=1e7, partial_rotary_factor=0.25,
                                     mrope_section=[11, 11, 10], rope_type="default"))
    return dict(model_type="qwen3_5_moe", text_config=text, vision_config={})


NEXT = dict(ATTENTION, **LINEAR, model_type="qwen3_next", num_hidden_layers=48, hidden_size=2048,
            num_attention_heads=16, num_experts=512, num_experts_per_tok=10,
            moe_intermediate_size=512, shared_expert_intermediate_size=512,
            linear_num_value_heads=32, vocab_size=151936, rope_theta=1e7, norm_topk_prob=True,
            partial_rotary_factor=0.25, decoder_sparse_step=1)

# Billions of parameters of the text model, as published, and the recurrent state in bytes.
MODELS = {
    "Qwen3-30B-A3B": (qwen3(48, 2048, 32, 768), 30.53, 0),
    "Qwen3-235B-A22B": (qwen3(94, 4096, 64, 1536), 235.09, 0),
    "Qwen3-Next-80B-A3B": (NEXT, 79.67, 75497472 + 4 * 884736),
    "Qwen3.5-35B-A3B": (qwen3_5(40, 2048, 16, 256, 8, 512, 32), 34.66, 62914560 + 4 * 737280),
    "Qwen3.5-122B-A10B": (qwen3_5(48, 3072, 32, 256, 8, 1024, 64), 122.11,
                          150994944 + 4 * 1327104),
    "Qwen3.5-397B-A17B": (qwen3_5(60, 4096, 32, 512, 10, 1024, 64), 396.35,
                          188743680 + 4 * 1658880),
}


def other(family, **fields):
    return {**families.BASE[family], "model_type": family, "rope_scaling": None, **fields}


def glm(layers, hidden, dense, experts, inner, first, scale, has_norms):
    return other("glm4_moe", num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=96,
                 num_key_value_heads=8, head_dim=128, intermediate_size=dense,
                 n_routed_experts=experts, num_experts_per_tok=8, moe_intermediate_size=inner,
                 first_k_dense_replace=first, routed_scaling_factor=scale, use_qk_norm=has_norms,
                 vocab_size=151552, max_position_embeddings=131072)


# Of families.py, with the layers for multi-token prediction that GLM's checkpoints have.
OTHERS = {
    "OLMoE-1B-7B": (other("olmoe", num_hidden_layers=16, hidden_size=2048, num_attention_heads=16,
                          num_key_value_heads=16, num_experts=64, num_experts_per_tok=8,
                          intermediate_size=1024, vocab_size=50304), "hub", 6.92),
    "Mixtral-8x7B": (other("mixtral", num_hidden_layers=32, hidden_size=4096, head_dim=None,
                           num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
                           intermediate_size=14336, vocab_size=32000), "hub", 46.70),
    "Qwen1.5-MoE-A2.7B": (other("qwen2_moe", num_hidden_layers=24, hidden_size=2048,
                                num_attention_heads=16, num_key_value_heads=16, num_experts=60,
                                num_experts_per_tok=4, moe_intermediate_size=1408,
                                intermediate_size=5632, shared_expert_intermediate_size=5632,
                                mlp_only_layers=[], vocab_size=151936), "hub", 14.32),
    "Qwen2-57B-A14B": (other("qwen2_moe", num_hidden_layers=28, hidden_size=3584,
                             num_attention_heads=28, num_key_value_heads=4, num_experts=64,
                             num_experts_per_tok=8, moe_intermediate_size=2560,
                             intermediate_size=18944, shared_expert_intermediate_size=20480,
                             mlp_only_layers=[], vocab_size=151936), "hub", 57.41),
    "GLM-4.5-Air": (glm(46, 4096, 10944, 128, 1408, 1, 1.0, False), "predicts", 106.85),
    "GLM-4.5": (glm(92, 5120, 12288, 160, 1536, 3, 2.5, True), "predicts", 352.80),
    "MiniMax-M2": (other("minimax_m2", num_hidden_layers=62, hidden_size=3072, head_dim=128,
                         num_attention_heads=48, num_key_value_heads=8, num_local_experts=256,
                         num_experts_per_tok=8, intermediate_size=1536, rotary_dim=64,
                         attn_type_list=[1] * 62, sliding_window=None, vocab_size=200064), "hub",
                   228.69),
}


def mixer(config, layer):
    hidden, heads, dim = (config[k] for k in ("hidden_size", "num_attention_heads", "head_dim"))
    is_next = config["model_type"] != "qwen3_moe"
    if not is_next or (layer + 1) % config["full_attention_interval"] == 0:
        kv = config["num_key_value_heads"] * dim
        return {"self_attn.q_proj.weight": [heads * dim * (2 if is_next else 1), hidden],
                "self_attn.k_proj.weight": [kv, hidden], "self_attn.v_proj.weight": [kv, hidden],
                "self_attn.o_proj.weight": [hidden, heads * dim],
                "self_attn.q_norm.weight": [dim], "self_attn.k_norm.weight": [dim]}
    n_values = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = n_values * config["linear_value_head_dim"]
    kernel = config["linear_conv_kernel_dim"]
    found = {"conv1d.weight": [2 * keys + values, 1, kernel], "A_log": [n_values],
             "dt_bias": [n_values], "norm.weight": [config["linear_value_head_dim"]],
             "out_proj.weight": [hidden, values]}
    if config["model_type"] == "qwen3_next":
        found["in_proj_qkvz.weight"] = [2 * keys + 2 * values, hidden]
        found["in_proj_ba.weight"] = [2 * n_values, hidden]
    else:
        found["in_proj_qkv.weight"] = [2 * keys + values, hidden]
        found["in_proj_z.weight"] = [values, hidden]
        found["in_proj_a.weight"] = found["in_proj_b.weight"] = [n_values, hidden]
    return {f"linear_attn.{name}": shape for name, shape in found.items()}


def feed_forward(config):
    hidden, wide = config["hidden_size"], config["moe_intermediate_size"]
    n = config["num_experts"]
    found = {"gate.weight": [n, hidden]}
    if config["model_type"] == "qwen3_5_moe_text":
        found["experts.gate_up_proj"] = [n, 2 * wide, hidden]
        found["experts.down_proj"] = [n, hidden, wide]
    else:
        for e in range(n):
            found[f"experts.{e}.gate_proj.weight"] = [wide, hidden]
            found[f"experts.{e}.up_proj.weight"] = [wide, hidden]
            found[f"experts.{e}.down_proj.weight"] = [hidden, wide]
    shared = config.get("shared_expert_intermediate_size")
    if shared:
        found["shared_expert.gate_proj.weight"] = [shared, hidden]
        found["shared_expert.up_proj.weight"] = [shared, hidden]
        found["shared_expert.down_proj.weight"] = [hidden, shared]
        found["shared_expert_gate.weight"] = [1, hidden]
    return {f"mlp.{name}": shape for name, shape in found.items()}


def tensors(config):
    text = config.get("text_config", config)
    prefix = "model.language_model." if "text_config" in config else "model."
    hidden, vocabulary = text["hidden_size"], text["vocab_size"]
    found = {f"{prefix}embed_tokens.weight": [vocabulary, hidden],
             f"{prefix}norm.weight": [hidden], "lm_head.weight": [vocabulary, hidden]}
    if "text_config" in config:
        found["model.visual.patch_embed.proj.weight"] = [16, 16]
    for layer in range(text["num_hidden_layers"]):
        parts = {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
                 **mixer(text, layer), **feed_forward(text)}
        found.update({f"{prefix}layers.{layer}.{k}": shape for k, shape in parts.items()})
    return found


def write_sparse(folder, config, shapes):
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


class RealShapes(unittest.TestCase):
    def inspect(self, folder):
        done = subprocess.run([PROGRAM, "inspect", folder, "--json"], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_other_families(self):
        for name, (config, layout, billions) in OTHERS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                shapes = {key: shape for key, shape, _ in families.tensors_of(config, layout)}
                write_sparse(pathlib.Path(folder), config, shapes)
                found = self.inspect(folder)
                inner = config.get("moe_intermediate_size", config["intermediate_size"])
                self.assertAlmostEqual(found["n_parameters"] / 1e9, billions, delta=0.01)
                self.assertEqual(found["expert_bytes"], 6 * config["hidden_size"] * inner)
                self.assertEqual(found["n_layers"], config["num_hidden_layers"])

    def test_public_models(self):
        for name, (config, billions, state_bytes) in MODELS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                write_sparse(pathlib.Path(folder), config, tensors(config))
                found = self.inspect(folder)
                text = config.get("text_config", config)
                self.assertAlmostEqual(found["n_parameters"] / 1e9, billions, delta=0.01)
                self.assertEqual(found["state_bytes"], state_bytes)
                self.assertEqual(found["expert_bytes"],
                                 6 * text["hidden_size"] * text["moe_intermediate_size"])
                self.assertEqual(found["n_layers"], text["num_hidden_layers"])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
