"""Shapes of qwen4_exp for families.py: four residual streams, sparse attention, n-gram tables.

Budgets of the indexer are smaller than the text, so that attention does leave blocks out, except in
the shapes that say so. The tables of the hash are derived here as transformers derives them, and
`check_hash` compares both.
"""
import array
import sys

import variants

# One of the tokens that families.py makes for the shape, so that texts end within the rows.
EOS_OF_SHAPE = {2: 12, 3: 30}
BASE = {
    "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts_per_tok": 3,
    "max_position_embeddings": 2048, "vocab_size": 320, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": 1, "dtype": "bfloat16",
    "architectures": ["Qwen4ExpForCausalLM"], "rope_theta": 1e7, "partial_rotary_factor": 0.25,
    "num_experts": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "norm_topk_prob": True, "full_attention_interval": 4, "output_gate_type": "sigmoid",
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "hc_count": 4, "hc_lowrank": 16, "ple_layer_ids": [2], "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "seed": 1234,
    "split_ngram_parts": 4, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16,
    "indexer_budget": 16, "indexer_compress_ratio": 4, "attention_bias": False,
}
LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
SHAPES = [
    ({}, "hub"),
    # No table, and a budget above the text: attention is dense.
    ({"ple_layer_ids": [], "indexer_budget": 64, "num_key_value_heads": 1, "hc_count": 2,
      "norm_topk_prob": False, "output_gate_type": None}, "stacked"),
    ({"ple_layer_ids": [3, 1], "ngram_size": 4, "heads_per_ngram": 1, "ple_embed_dim": 48,
      "ple_conv_kernel_size": 3, "indexer_compress_ratio": 2, "indexer_budget": 6,
      "hc_count": 3, "layer_types": LAYERS, "seed": 7, "split_ngram_parts": 1}, "multimodal"),
    ({"indexer_compress_ratio": 3, "indexer_budget": 12, "num_key_value_heads": 4,
      "indexer_head_dim": 24, "linear_num_value_heads": 2, "tie_word_embeddings": True,
      "num_hidden_layers": 6, "full_attention_interval": 2, "ple_layer_ids": [3],
      "heads_per_ngram": 4}, "whole"),
    # A block is one position. Every position but the best eight is left out.
    ({"indexer_compress_ratio": 1, "indexer_budget": 8, "indexer_n_heads": 3, "hc_lowrank": 5,
      "layer_types": ["indexed_attention", "linear_attention"], "num_hidden_layers": 2,
      "num_attention_heads": 8, "attention_bias": True, "ple_conv_kernel_size": 2}, "hub"),
]
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def config_of(number, tokens):
    changes, layout = SHAPES[number]
    config = {**BASE, **changes, "model_type": "qwen4_exp_text"}
    if number in EOS_OF_SHAPE:
        config["eos_token_id"] = tokens[EOS_OF_SHAPE[number]]
    if layout == "multimodal":
        config["eos_token_id"] = [config["eos_token_id"], 1]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta"),
                                 "partial_rotary_factor": config.pop("partial_rotary_factor")}
    return config


def nest(config):
    """Returns the configuration of a multimodal checkpoint with this text part."""
    return {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
            "tie_word_embeddings": config["tie_word_embeddings"], "text_config": config,
            "vision_config": {"model_type": "qwen4_exp_vision"}}


# ---- the hash -----------------------------------------------------------------------------------


def mix(value):
    value = (value + GAMMA) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def multipliers(c, index):
    half = max(1, ((1 << 63) - 1) // c["vocab_size"] // 2)
    base = c["seed"] + 10007 * index
    return [2 * (mix((base + GAMMA * (i + 1)) & MASK) % half) + 1 for i in range(c["ngram_size"])]


def primes_from(start):
    n = start
    while True:
        if n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1)):
            yield n
        n += 1


def head_sizes(c, index):
    """Returns how many rows each head has; all tables together use one sequence of primes."""
    n = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    primes = primes_from(c["ngram_vocab_size_base"])
    return [next(primes) for _ in range((index + 1) * n)][index * n:]


def table_rows(c, index):
    by = c["make_ngram_vocab_size_divisible_by"]
    return -(-sum(head_sizes(c, index)) // by) * by


def check_hash(c):
    """Compares with transformers; the files' tables would replace its own."""
    from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
    for index in range(len(c["ple_layer_ids"])):
        made = theirs._build_layer_multipliers(c["vocab_size"], c["ngram_size"], index, c["seed"])
        n = len(head_sizes(c, index))
        sizes = [theirs._find_nth_prime_after(c["ngram_vocab_size_base"] - 1, index * n + i + 1)
                 for i in range(n)]
        if made.tolist() != multipliers(c, index) or sizes != head_sizes(c, index):
            sys.exit(f"the tables of the hash differ: {c}")


# ---- tensors ------------------------------------------------------------------------------------


def residual(c, at, combines):
    wide, low = c["hc_count"] * c["hidden_size"], c["hc_lowrank"]
    yield at + "hc_norm.weight", [wide], "offset"
    yield at + "input_mix_weight_down.weight", [low, wide], "matrix"
    yield at + "input_mix_weight_up.weight", [wide, low], "matrix"
    if combines:
        yield at + "block_inject_weight.weight", [c["hc_count"], wide], "matrix"


def ngrams(c, at, index, layout):
    hidden, wide, dim = c["hidden_size"], c["hc_count"] * c["hidden_size"], c["ple_embed_dim"]
    heads = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    yield at + "key_proj.weight", [wide, dim], "matrix"
    yield at + "value_proj.weight", [hidden, dim], "matrix"
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield f"{at}{name}.weight", [wide], "offset"
    yield at + "conv1d.weight", [wide, 1, c["ple_conv_kernel_size"]], "matrix"
    table, n = at + "ple_embedding.ngram_embedding.", table_rows(c, index)
    if layout == "whole":
        yield table + "weight", [n, dim // heads], "embedding"
    else:
        parts = c["split_ngram_parts"]
        for i in range(parts):
            yield f"{table}shard_{i}.weight", [n // parts, dim // heads], "embedding"
    sizes = head_sizes(c, index)
    at += "ple_embedding."
    yield at + "layer_multipliers", multipliers(c, index), "integers"
    yield at + "ngram_heads_vocab_sizes", sizes, "integers"
    yield at + "ngram_heads_offsets", [sum(sizes[:i]) for i in range(heads)], "integers"


def delta_net(c, at):
    hidden, k, v = (c["hidden_size"], c["linear_num_key_heads"] * c["linear_key_head_dim"],
                    c["linear_num_value_heads"] * c["linear_value_head_dim"])
    yield at + "in_proj_qkv.weight", [2 * k + v, hidden], "matrix"
    yield at + "in_proj_z.weight", [v, hidden], "matrix"
    for name in ("in_proj_b", "in_proj_a"):
        yield f"{at}{name}.weight", [c["linear_num_value_heads"], hidden], "matrix"
    yield at + "conv1d.weight", [2 * k + v, 1, c["linear_conv_kernel_dim"]], "matrix"
    yield at + "A_log", [c["linear_num_value_heads"]], "norm"
    yield at + "dt_bias", [c["linear_num_value_heads"]], "norm"
    yield at + "norm.weight", [c["linear_value_head_dim"]], "norm"
    yield at + "out_proj.weight", [hidden, v], "matrix"


def attention(c, at):
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    dim, index = c["head_dim"], c["indexer_head_dim"]
    for name, rows, cols in (("q_proj", 2 * heads * dim, hidden), ("k_proj", kv * dim, hidden),
                             ("v_proj", kv * dim, hidden), ("o_proj", hidden, heads * dim)):
        yield f"{at}{name}.weight", [rows, cols], "matrix"
        if c["attention_bias"]:
            yield f"{at}{name}.bias", [rows], "small"
    yield at + "q_norm.weight", [dim], "offset"
    yield at + "k_norm.weight", [dim], "offset"
    rows = (c["indexer_n_heads"] + 1) * index
    yield at + "indexer.index_qk_proj.weight", [rows, hidden], "matrix"
    yield at + "indexer.q_layernorm.weight", [index], "offset"
    yield at + "indexer.k_layernorm.weight", [index], "offset"


def is_linear(c, layer):
    if "layer_types" in c:
        return c["layer_types"][layer] == "linear_attention"
    return (layer + 1) % c["full_attention_interval"] != 0


def experts(c, at, layout, block):
    hidden, n, inner = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    yield at + "gate.weight", [n, hidden], "router"
    yield from block(at + "shared_expert.", hidden, c["shared_expert_intermediate_size"])
    yield at + "shared_expert_gate.weight", [1, hidden], "matrix"
    if layout in ("stacked", "multimodal"):
        yield at + "experts.gate_up_proj", [n, 2 * inner, hidden], "matrix"
        yield at + "experts.down_proj", [n, hidden, inner], "matrix"
        return
    for e in range(n):
        yield from block(f"{at}experts.{e}.", hidden, inner)


def tensors_of(c, layout, block):
    """Yields (name, shape, kind of values), or the integers themselves in place of the shape."""
    model = "model.language_model." if layout == "multimodal" else "model."
    yield model + "embed_tokens.weight", [c["vocab_size"], c["hidden_size"]], "embedding"
    tables = sorted(set(c["ple_layer_ids"]))
    for i in range(c["num_hidden_layers"]):
        at = f"{model}layers.{i}."
        if is_linear(c, i):
            yield from delta_net(c, at + "linear_attn.")
        else:
            yield from attention(c, at + "self_attn.")
        yield from experts(c, at + "mlp.", layout, block)
        if i + 1 in tables:
            yield from ngrams(c, at + "ple.", tables.index(i + 1), layout)
        yield from residual(c, at + "attn_hyper_connection.", True)
        yield from residual(c, at + "mlp_hyper_connection.", True)
    yield from residual(c, model + "hyper_connection_mixer.", False)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", [c["vocab_size"], c["hidden_size"]], "matrix"


def integers(numbers):
    data = array.array("q", numbers)
    if sys.byteorder == "big":
        data.byteswap()
    return variants.Tensor("I64", [len(numbers)], data.tobytes())
