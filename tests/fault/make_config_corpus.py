"""Writes the seeds of fuzz_config: the golden configurations and changes to them.

Usage: make_config_corpus.py GOLDEN CORPUS

Seeds that open a model stand beside seeds that are refused at different depths.
"""

import json
import os
import sys

FAMILIES = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "glm4_moe", "minimax_m2", "mixtral",
            "olmoe", "qwen2_moe")


def nested(config):
    """Nests it as in a multimodal checkpoint."""
    return {"model_type": "qwen3_5_moe", "text_config": dict(config, model_type="qwen3_5_moe_text"),
            "tie_word_embeddings": False, "vision_config": {"depth": 2}}


def changed(config, **fields):
    """None removes the field."""
    return {k: v for k, v in {**config, **fields}.items() if v is not None}


def seeds(configs):
    moe, following, text, glm = (configs[f] for f in FAMILIES[:4])
    full = ["full_attention"]
    return {
        **configs,
        "nested": nested(text),
        "nested_bad": {"text_config": []},
        "interval": changed(following, layer_types=None, full_attention_interval=4),
        "interval_one": changed(following, layer_types=None, full_attention_interval=1),
        "tied": changed(moe, tie_word_embeddings=True),
        "not_normalised": changed(moe, norm_topk_prob=False),
        "top_1": changed(following, num_experts_per_tok=1),
        "top_16": changed(text, num_experts_per_tok=16),
        "key_heads_1": changed(following, linear_num_key_heads=1, linear_key_head_dim=64),
        "key_heads_4": changed(following, linear_num_key_heads=4, linear_key_head_dim=16),
        "no_rotation": changed(following, rope_parameters={"rope_theta": 1e4,
                                                           "partial_rotary_factor": 0.0}),
        "all_rotation": changed(following, rope_parameters={"rope_theta": 1.0,
                                                            "partial_rotary_factor": 1.0}),
        "plain_rope": changed(moe, rope_parameters=None, rope_theta=1e12, rope_scaling={}),
        "mrope": changed(text, rope_parameters={"rope_theta": 1e7, "rope_type": "mrope",
                                                "mrope_section": [1, 1, 0]}),
        "yarn": changed(moe, rope_parameters={
            "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.5,
            "truncate": False}),
        "yarn_lengths": changed(following, rope_parameters=None, rope_scaling={
            "rope_theta": 1.0000001, "type": "yarn", "factor": None, "attention_factor": 1.5,
            "partial_rotary_factor": 1.0}, original_max_position_embeddings=1),
        "linear": changed(text, rope_parameters={"rope_theta": 1e7, "rope_type": "linear",
                                                 "factor": 4}),
        "llama3": changed(moe, rope_parameters={"rope_theta": 1e6, "rope_type": "llama3"}),
        "local_experts": changed(following, num_experts=None, num_local_experts=16),
        "many_experts": changed(following, num_experts=65535),
        "many_layers": changed(following, num_hidden_layers=1024, layer_types=None),
        "five_layers": changed(following, num_hidden_layers=5,
                               layer_types=following["layer_types"] + full),
        "wide": changed(moe, hidden_size=131072, head_dim=4096, num_attention_heads=4096),
        "wide_delta": changed(following, linear_num_key_heads=4096, linear_key_head_dim=4096,
                              linear_num_value_heads=4096, linear_value_head_dim=4096),
        "long": changed(following, max_position_embeddings=1 << 24),
        "stop_tokens": changed(moe, eos_token_id=list(range(40))),
        "sparse_step": changed(moe, decoder_sparse_step=2, mlp_only_layers=[]),
        "dense_only": changed(moe, mlp_only_layers=[0, 1, 2, 3]),
        "zero_eps": changed(moe, rms_norm_eps=0),
        "no_head_dim": changed(moe, head_dim=None),
        "gelu": changed(moe, hidden_act="gelu"),
        "llama": {"model_type": "llama"},
        "groups": changed(glm, n_group=4, topk_group=2),
        "no_groups": changed(glm, n_group=16, topk_group=16),
        "predictors": changed(glm, num_hidden_layers=3),
        "window": changed(configs["mixtral"], sliding_window=1),
        "rotary_dim": changed(configs["minimax_m2"], rotary_dim=0),
        "empty": {},
    }


def main():
    golden, corpus = sys.argv[1:]
    configs = {}
    for family in FAMILIES:
        with open(os.path.join(golden, family, "config.json"), encoding="utf-8") as f:
            configs[family] = json.load(f)
    os.makedirs(corpus, exist_ok=True)
    for name, config in seeds(configs).items():
        with open(os.path.join(corpus, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(config, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
