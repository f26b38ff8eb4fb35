#!/usr/bin/env python3
"""damaged_families_test.py FLASHMOE GOLDEN: configurations of single families that must be refused,
with the file, the field and the value."""
import sys
import unittest

import damaged_model_test as damaged
from damaged_model_test import DROP


class Families(damaged.Case):
    def refuse_config(self, changes, *words, family):
        """An error about a field names config.json, too."""
        file = [f"/{damaged.CONFIG}"] if words[0].startswith("field") else []
        self.refuse(lambda c: c.fields(changes), *file, *words, family=family)

    def test_routers(self):
        """Groups, dense layers and shared experts of a sigmoid router."""
        for changes, *words in (
                ({"n_group": 3}, "field 'n_group' is 3, which does not divide the 16 experts"),
                ({"n_group": 0}, "field 'n_group' is 0"),
                ({"n_group": 16, "topk_group": 3}, "field 'n_group' is 16", "two at least"),
                ({"n_group": 2, "topk_group": 3}, "field 'topk_group' is 3"),
                ({"n_group": 8}, "field 'topk_group' is 1", "fewer than the 3 of"),
                ({"first_k_dense_replace": 4}, "field 'first_k_dense_replace' is 4", "0 to 3"),
                ({"first_k_dense_replace": -1}, "field 'first_k_dense_replace' is -1"),
                ({"first_k_dense_replace": DROP}, "field 'first_k_dense_replace' is missing"),
                ({"first_k_dense_replace": 2}, "tensor 'model.layers.1.mlp.gate_proj.weight'"),
                ({"n_shared_experts": 1 << 30}, "field 'n_shared_experts'"),
                ({"routed_scaling_factor": -1.0}, "field 'routed_scaling_factor' is -1"),
                ({"routed_scaling_factor": "2"}, "field 'routed_scaling_factor' is \"2\""),
                ({"use_qk_norm": 1}, "field 'use_qk_norm'"),
                ({"attention_bias": False}, "tensor 'model.layers.0.self_attn.k_proj.bias'"),
                ({"sliding_window": 4}, "field 'sliding_window' is 4"),
                ({"num_hidden_layers": 3}, "tensor 'model.layers.3.input_layernorm.weight' does")):
            self.refuse_config(changes, *words, family="glm4_moe")
        name = "model.layers.1.mlp.gate.e_score_correction_bias"
        self.refuse(lambda c: c.header(lambda h: h.pop(name)), f"tensor '{name}' is missing",
                    family="glm4_moe")

    def test_attention(self):
        for family, changes, *words in (
                ("olmoe", {"clip_qkv": 8.0}, "field 'clip_qkv' is 8", "null only"),
                ("olmoe", {"attention_bias": True}, "self_attn.q_proj.bias' is missing"),
                ("mixtral", {"sliding_window": 0}, "field 'sliding_window' is 0"),
                ("mixtral", {"layer_types": ["sliding_attention"] * 4}, "field 'layer_types[0]'"),
                ("qwen2_moe", {"use_sliding_window": True}, "field 'use_sliding_window' is true"),
                ("qwen2_moe", {"layer_types": ["sliding_attention"] * 4}, "'layer_types[0]'"),
                ("qwen2_moe", {"qkv_bias": False}, "self_attn.k_proj.bias' does not belong"),
                ("minimax_m2", {"rotary_dim": 17}, "field 'rotary_dim' is 17", "0 to 16"),
                ("minimax_m2", {"rotary_dim": 7}, "7 rotary dimensions"),
                ("minimax_m2", {"attn_type_list": [1, 0, 1, 1]}, "field 'attn_type_list[1]' is 0"),
                ("minimax_m2", {"scoring_func": "softmax"}, "field 'scoring_func' is"),
                ("minimax_m2", {"use_qk_norm": False}, "field 'use_qk_norm' is false"),
                ("minimax_m2", {"shared_intermediate_size": 8}, "'shared_intermediate_size' is 8")):
            self.refuse_config(changes, *words, family=family)


if __name__ == "__main__":
    damaged.PROGRAM, damaged.GOLDEN = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
