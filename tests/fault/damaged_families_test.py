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

    def test_streams(self):
        """Streams, the index of sparse attention, and tables of n-grams."""
        table = "model.layers.1.ple.ple_embedding."
        for changes, *words in (
                ({"hc_count": 1}, "field 'hc_count' is 1"),
                ({"hc_count": 17}, "field 'hc_count' is 17", "2 to 16"),
                ({"hc_count": 3}, "hyper_connection_mixer.hc_norm.weight' has shape [256]"),
                ({"hc_lowrank": 0}, "field 'hc_lowrank' is 0"),
                ({"indexer_n_heads": DROP}, "field 'indexer_n_heads' is missing"),
                ({"indexer_head_dim": DROP}, "field 'indexer_head_dim' is missing"),
                ({"indexer_kv_heads": 2}, "field 'indexer_kv_heads' is 2"),
                ({"indexer_head_dim": 4}, "field 'indexer_head_dim' is 4", "8 dimensions that"),
                ({"indexer_compress_ratio": 0}, "field 'indexer_compress_ratio' is 0"),
                ({"indexer_budget": 18}, "field 'indexer_budget' is 18", "no multiple of"),
                ({"indexer_budget": 1 << 20}, "field 'indexer_budget' is 1048576"),
                ({"output_gate_type": "tanh"}, "field 'output_gate_type' is \"tanh\""),
                ({"layer_types": ["sliding_attention"] * 4}, "field 'layer_types[0]'"),
                ({"ple_layer_ids": 2}, "field 'ple_layer_ids' is not a list"),
                ({"ple_layer_ids": [0]}, "field 'ple_layer_ids[0]' is no layer from 1 to 4"),
                ({"ple_layer_ids": [2, 5]}, "field 'ple_layer_ids[1]' is no layer from 1 to 4"),
                ({"ple_layer_ids": [4]}, "field 'ple_layer_ids' names layer 4", "linear_attention"),
                ({"ple_layer_ids": [1]}, "tensor 'model.layers.0.ple."),
                ({"ple_layer_ids": []}, "tensor 'model.layers.1.ple."),
                ({"ngram_size": 1}, "field 'ngram_size' is 1"),
                ({"ngram_size": 9}, "field 'ngram_size' is 9", "2 to 8"),
                ({"heads_per_ngram": 33}, "field 'heads_per_ngram' is 33", "1 to 32"),
                ({"ple_embed_dim": 66}, "field 'ple_embed_dim' is 66", "4 heads"),
                ({"ple_conv_kernel_size": 17}, "field 'ple_conv_kernel_size' is 17"),
                ({"ngram_vocab_size_base": 0}, "field 'ngram_vocab_size_base' is 0"),
                ({"split_ngram_parts": 0}, "field 'split_ngram_parts' is 0"),
                ({"split_ngram_parts": 7}, "cannot be divided into the 7 equal parts"),
                ({"split_ngram_parts": 5}, f"tensor '{table}ngram_embedding.shard_0.weight'"),
                ({"split_ngram_parts": 3}, f"tensor '{table}ngram_embedding.shard_0.weight'"),
                ({"ngram_vocab_size_base": 60}, f"number 0 of tensor '{table}ngram_heads_vocab"),
                ({"seed": 5}, f"number 0 of tensor '{table}layer_multipliers' is"),
                ({"seed": -1}, "field 'seed' is -1"),
                ({"eos_token_id": None}, "field 'eos_token_id' has no token below 320"),
                ({"eos_token_id": 320}, "field 'eos_token_id' has no token below 320")):
            self.refuse_config(changes, *words, family="qwen4_exp_text")
        name = table + "ngram_embedding.shard_2.weight"
        self.refuse(lambda c: c.header(lambda h: h.pop(name)), f"tensor '{name}' is missing",
                    family="qwen4_exp_text")


if __name__ == "__main__":
    damaged.PROGRAM, damaged.GOLDEN = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
