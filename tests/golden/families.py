#!/usr/bin/env python3
"""Families in several shapes, with weights made from a seed, against transformers in float64.

usage: families.py check SWEEP_ENGINE [FAMILY...]
       families.py same_bits SAME_BITS FLASHMOE
       families.py make [FAMILY...]
       families.py write FAMILY NUMBER FOLDER

Every weight is a function of the seed, the tensor's name and its place, so a checkpoint is only its
configuration here. The first shape of a family is also a golden in a folder of its own. `make`
writes these folders, and transformers' logits of every shape to families.json: the rows ROWS, every
STEP-th logit. It needs torch and transformers, which must load every tensor and make up none.
`check` compares the engine with them, and `same_bits` checks for one hash of logits on every path
and every machine, with a window and with groups. Both need only the standard library. `write`
writes one checkpoint.
"""
import array
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import qwen4_exp
import variants

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "families.json"
N_TOKENS, ROWS, STEP = 48, (0, 7, 23, 46, 47), 5
N_PROMPT, N_GREEDY = 16, 24
TOLERANCE = 1e-5  # of the spread, as in golden_test.c
# With dense weights and experts of four bits.
PACKED_HASHES = {("deepseek_v3", 4): "ba7e40663fb4c028503ed9e4b340a2f4"}
HASHES = {("mixtral", 2): "3808046beee69077702ab2aa97b9f74d",
          ("glm4_moe", 1): "07af446ae8b7759d09ed3614fac4b29e"}

COMMON = {
    "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts_per_tok": 3, "max_position_embeddings": 2048,
    "vocab_size": 320, "tie_word_embeddings": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "bos_token_id": None, "eos_token_id": 1, "dtype": "bfloat16",
}
# Latent attention.
LATENT = {
    "attention_bias": False, "intermediate_size": 96, "kv_lora_rank": 32,
    "moe_intermediate_size": 32, "n_group": 1, "n_routed_experts": 16, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
    "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "rms_norm_eps": 1e-6,
}
# YaRN with the factors of scores that only latent attention has.
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
# The fields that public checkpoints have.
BASE = {
    "olmoe": {
        **COMMON, "architectures": ["OlmoeForCausalLM"], "attention_bias": False,
        "clip_qkv": None, "intermediate_size": 32, "norm_topk_prob": False, "num_experts": 16,
    },
    "mixtral": {
        **COMMON, "architectures": ["MixtralForCausalLM"], "head_dim": 16,
        "intermediate_size": 32, "num_local_experts": 16, "num_experts_per_tok": 2,
        "rope_theta": 1e6, "sliding_window": None,
    },
    "qwen2_moe": {
        **COMMON, "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1,
        "intermediate_size": 96, "max_window_layers": 4, "mlp_only_layers": [1],
        "moe_intermediate_size": 32, "norm_topk_prob": False, "num_experts": 16,
        "qkv_bias": True, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "shared_expert_intermediate_size": 64, "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "glm4_moe": {
        **COMMON, "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True,
        "first_k_dense_replace": 1, "head_dim": 16, "intermediate_size": 96,
        "moe_intermediate_size": 32, "n_group": 1, "n_routed_experts": 16, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None, "rope_theta": 1e6, "routed_scaling_factor": 2.5, "topk_group": 1,
        "use_qk_norm": True,
    },
    "deepseek_v3": {
        **COMMON, **LATENT, "architectures": ["DeepseekV3ForCausalLM"],
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
    },
    "glm4_moe_lite": {
        **COMMON, **LATENT, "architectures": ["Glm4MoeLiteForCausalLM"],
        "first_k_dense_replace": 1, "qk_nope_head_dim": 24, "v_head_dim": 32,
        "rope_theta": 1e6, "routed_scaling_factor": 1.8, "topk_group": 1,
    },
    "minimax_m2": {
        **COMMON, "architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1, 1, 1, 1],
        "head_dim": 16, "intermediate_size": 32, "num_attention_heads": 6,
        "num_local_experts": 16, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-6,
        "rope_theta": 5e6, "rotary_dim": 8, "scoring_func": "sigmoid",
        "shared_intermediate_size": 0, "use_qk_norm": True, "use_routing_bias": True,
    },
}
# family: [(changes of the fields above, layout of the names)]. Seeds count from 1.
SHAPES = {
    "olmoe": [
        ({}, "hub"),
        ({"num_attention_heads": 2, "num_key_value_heads": 1, "norm_topk_prob": True,
          "num_experts": 12, "num_experts_per_tok": 5, "rope_theta": 500.0}, "stacked"),
        ({"num_key_value_heads": None, "attention_bias": True, "num_hidden_layers": 2}, "hub"),
        ({"tie_word_embeddings": True, "num_key_value_heads": 4, "num_experts": 5}, "hub"),
    ],
    "mixtral": [
        ({}, "hub"),
        ({"head_dim": None, "num_key_value_heads": 1, "num_local_experts": 5}, "stacked"),
        ({"sliding_window": 7, "head_dim": 8, "num_attention_heads": 6}, "hub"),
        ({"tie_word_embeddings": True, "num_key_value_heads": 4, "num_hidden_layers": 2,
          "num_experts_per_tok": 1, "rms_norm_eps": 1e-3}, "short"),
    ],
    "qwen2_moe": [
        ({}, "hub"),
        ({"num_attention_heads": 2, "num_key_value_heads": 1, "mlp_only_layers": [],
          "norm_topk_prob": True, "num_experts": 12}, "stacked"),
        ({"qkv_bias": False, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 24},
         "hub"),
        ({"tie_word_embeddings": True, "num_key_value_heads": 4, "mlp_only_layers": [0, 2]},
         "hub"),
    ],
    "glm4_moe": [
        ({}, "hub"),
        ({"n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 5,
          "use_qk_norm": False, "first_k_dense_replace": 0, "n_shared_experts": 2}, "stacked"),
        ({"attention_bias": False, "head_dim": 32, "partial_rotary_factor": 0.25,
          "num_key_value_heads": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
         "predicts"),
        ({"tie_word_embeddings": True, "first_k_dense_replace": 2, "num_key_value_heads": 4,
          "n_group": 2, "topk_group": 1}, "hub"),
    ],
    "deepseek_v3": [
        ({}, "hub"),
        ({"rope_scaling": YARN, "q_lora_rank": None, "qk_nope_head_dim": 32, "v_head_dim": 24,
          "n_group": 1, "topk_group": 1}, "hub"),
        ({"rope_interleave": False, "attention_bias": True, "num_attention_heads": 6,
          "num_key_value_heads": 6, "qk_rope_head_dim": 16, "n_group": 1, "topk_group": 1},
         "predicts"),
        ({"rope_scaling": {**YARN, "mscale": 0.7}, "rms_norm_eps": 1e-3, "n_shared_experts": 2,
          "first_k_dense_replace": 3, "norm_topk_prob": False, "tie_word_embeddings": True},
         "stacked"),
        # Nothing is as wide as the row that is kept.
        ({"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 64,
          "n_routed_experts": 64, "moe_intermediate_size": 128}, "hub"),
    ],
    "glm4_moe_lite": [
        ({}, "hub"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "q_lora_rank": None},
         "stacked"),
        ({"n_group": 4, "topk_group": 2, "kv_lora_rank": 16, "num_attention_heads": 2,
          "num_key_value_heads": 2}, "predicts"),
    ],
    "minimax_m2": [
        ({}, "hub"),
        ({"rotary_dim": 32, "head_dim": 32, "num_attention_heads": 4, "num_local_experts": 12,
          "num_experts_per_tok": 5}, "stacked"),
        ({"rotary_dim": 12, "num_key_value_heads": 1, "num_hidden_layers": 2}, "short"),
        ({"tie_word_embeddings": True, "num_key_value_heads": 6, "num_experts_per_tok": 1}, "hub"),
    ],
    "qwen4_exp_text": qwen4_exp.SHAPES,
}

# ---- checkpoints --------------------------------------------------------------------------------


def config_of(family, number):
    """Returns the configuration as public checkpoints have it, or the first as transformers 5
    writes it: with rope_parameters."""
    if family == "qwen4_exp_text":
        return qwen4_exp.config_of(number, tokens_of(number))
    config = {**BASE[family], **SHAPES[family][number][0], "model_type": family}
    if number == 0:
        rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
        if "partial_rotary_factor" in config:
            rope["partial_rotary_factor"] = config.pop("partial_rotary_factor")
        config["rope_parameters"] = rope
        config.pop("rope_scaling", None)
    return config


def attention(c, layer):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    kv = c["num_key_value_heads"] or heads
    dim = c.get("head_dim") or hidden // heads
    family, at = c["model_type"], layer + "self_attn."
    for name, rows, cols in (("q_proj", heads * dim, hidden), ("k_proj", kv * dim, hidden),
                             ("v_proj", kv * dim, hidden), ("o_proj", hidden, heads * dim)):
        yield f"{at}{name}.weight", [rows, cols], "matrix"
        biased = c.get("qkv_bias", c.get("attention_bias", False))
        if biased and (name != "o_proj" or family == "olmoe"):
            yield f"{at}{name}.bias", [rows], "small"
    if family in ("olmoe", "minimax_m2"):
        yield at + "q_norm.weight", [heads * dim], "norm"
        yield at + "k_norm.weight", [kv * dim], "norm"
    elif family == "glm4_moe" and c["use_qk_norm"]:
        yield at + "q_norm.weight", [dim], "norm"
        yield at + "k_norm.weight", [dim], "norm"


def latent_attention(c, layer):
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    plain, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    at, short = layer + "self_attn.", c["q_lora_rank"]
    if short is None:
        yield at + "q_proj.weight", [heads * (plain + rope), hidden], "matrix"
    else:
        yield at + "q_a_proj.weight", [short, hidden], "matrix"
        yield at + "q_a_layernorm.weight", [short], "norm"
        yield at + "q_b_proj.weight", [heads * (plain + rope), short], "matrix"
    yield at + "kv_a_proj_with_mqa.weight", [rank + rope, hidden], "matrix"
    yield at + "kv_a_layernorm.weight", [rank], "norm"
    yield at + "kv_b_proj.weight", [heads * (plain + value), rank], "matrix"
    yield at + "o_proj.weight", [hidden, heads * value], "matrix"
    if c["attention_bias"]:
        if short is not None:
            yield at + "q_a_proj.bias", [short], "small"
        yield at + "kv_a_proj_with_mqa.bias", [rank + rope], "small"
        yield at + "o_proj.bias", [hidden], "small"


def block(prefix, hidden, inner, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    yield f"{prefix}{gate}.weight", [inner, hidden], "matrix"
    yield f"{prefix}{up}.weight", [inner, hidden], "matrix"
    yield f"{prefix}{down}.weight", [hidden, inner], "matrix"


def is_dense(c, layer):
    if c["model_type"] in ("glm4_moe", "deepseek_v3"):
        return layer < c["first_k_dense_replace"]
    if c["model_type"] == "glm4_moe_lite":
        return c["mlp_layer_types"][layer] == "dense" if "mlp_layer_types" in c else layer == 0
    if c["model_type"] == "qwen2_moe":
        return layer in c["mlp_only_layers"] or (layer + 1) % c["decoder_sparse_step"] != 0
    return False


def experts(c, layer, layout):
    hidden, family = c["hidden_size"], c["model_type"]
    n = c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"]
    inner = c.get("moe_intermediate_size", c["intermediate_size"])
    is_short = family in ("mixtral", "minimax_m2")
    at = layer + ("block_sparse_moe." if is_short and layout != "short" else "mlp.")
    yield at + "gate.weight", [n, hidden], "router"
    if family in ("glm4_moe", "deepseek_v3", "glm4_moe_lite"):
        yield at + "gate.e_score_correction_bias", [n], "small"
        if c["n_shared_experts"] > 0:
            yield from block(at + "shared_experts.", hidden, inner * c["n_shared_experts"])
    elif family == "minimax_m2":
        yield at + "e_score_correction_bias", [n], "small"
    elif family == "qwen2_moe":
        yield from block(at + "shared_expert.", hidden, c["shared_expert_intermediate_size"])
        yield at + "shared_expert_gate.weight", [1, hidden], "matrix"
    if layout == "stacked":
        yield at + "experts.gate_up_proj", [n, 2 * inner, hidden], "matrix"
        yield at + "experts.down_proj", [n, hidden, inner], "matrix"
        return
    names = ("w1", "w3", "w2") if is_short else ("gate_proj", "up_proj", "down_proj")
    for e in range(n):
        yield from block(f"{at}experts.{e}.", hidden, inner, names)


def tensors_of(c, layout):
    """Yields (name, shape, kind of values) under the names of public checkpoints."""
    if c["model_type"] == "qwen4_exp_text":
        yield from qwen4_exp.tensors_of(c, layout, block)
        return
    hidden, n_layers = c["hidden_size"], c["num_hidden_layers"]
    yield "model.embed_tokens.weight", [c["vocab_size"], hidden], "embedding"
    for i in range(n_layers + (layout == "predicts")):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [hidden], "norm"
        yield layer + "post_attention_layernorm.weight", [hidden], "norm"
        yield from (latent_attention if "kv_lora_rank" in c else attention)(c, layer)
        if is_dense(c, i):
            yield from block(layer + "mlp.", hidden, c["intermediate_size"])
        else:
            yield from experts(c, layer, layout)
        if i == n_layers:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                yield f"{layer}{name}.weight", [hidden], "norm"
            yield layer + "eh_proj.weight", [hidden, 2 * hidden], "matrix"
    yield "model.norm.weight", [hidden], "norm"
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", [c["vocab_size"], hidden], "matrix"


def bfloat16(x):
    bits = array.array("I", array.array("f", [x]).tobytes())[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def values(seed, name, shape, kind):
    """Returns one of 256 numbers for each place, spread evenly around a centre."""
    if kind == "integers":
        return qwen4_exp.integers(shape)
    n = 1
    for d in shape:
        n *= d
    width = {"embedding": 1.7, "norm": 0.3, "small": 0.3, "offset": 0.3,
             "router": 3 / shape[-1] ** 0.5}.get(kind, 1.7 / shape[-1] ** 0.5)
    centre = 1 if kind == "norm" else 0
    table = [bfloat16(centre + width * (b - 127.5) / 127.5) for b in range(256)]
    data = array.array("H", [table[b] for b in random.Random(f"{seed}/{name}").randbytes(n)])
    if sys.byteorder == "big":
        data.byteswap()
    return variants.Tensor("BF16", shape, data.tobytes())


def write(family, number, folder):
    config, layout = config_of(family, number), SHAPES[family][number][1]
    tensors = {name: values(number + 1, name, shape, kind)
               for name, shape, kind in tensors_of(config, layout)}
    folder.mkdir(parents=True, exist_ok=True)
    variants.write_file(folder / "model.safetensors", tensors, None, ())
    if layout == "multimodal":
        config = qwen4_exp.nest(config)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tokens_of(number):
    return list(random.Random(f"tokens {number}").randbytes(N_TOKENS))


def sample(logits, vocabulary):
    return array.array("f", [logits[row * vocabulary + i] for row in ROWS
                             for i in range(0, vocabulary, STEP)])


# ---- transformers -------------------------------------------------------------------------------


class Float64:
    """The models use float32 inside norms, softmax and routers: gives them float64."""

    def __enter__(self):
        import torch
        self.kept = torch.float32, torch.float, torch.Tensor.float
        torch.float32, torch.float, torch.Tensor.float = (torch.float64, torch.float64,
                                                          torch.Tensor.double)

    def __exit__(self, *_):
        import torch
        torch.float32, torch.float, torch.Tensor.float = self.kept


def load(folder, dtype):
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager", attn_implementation="eager",
        output_loading_info=True)
    n = model.config.num_hidden_layers
    left = [key for key in info["unexpected_keys"] if not key.startswith(f"model.layers.{n}.")]
    if info["missing_keys"] or info["mismatched_keys"] or left:
        sys.exit(f"{folder}: {info}")
    return model.eval()


def exact_logits(folder, tokens):
    import torch
    model = load(folder, torch.float64)
    if model.config.model_type == "qwen4_exp_text":
        qwen4_exp.check_hash(model.config.to_dict())
    with Float64(), torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def make_golden(family, tokens):
    """Writes the folder that golden_test and the other tests use."""
    import torch
    import transformers
    folder = HERE / family
    write(family, 0, folder)
    link = folder / "tokenizer.json"
    link.unlink(missing_ok=True)
    link.symlink_to("../tiny_tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}) + "\n")
    exact = exact_logits(folder, tokens)
    model = load(folder, torch.float32)
    chosen = list(tokens[:N_PROMPT])
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True)
        while len(chosen) < N_PROMPT + N_GREEDY:
            chosen.append(int(model(torch.tensor([chosen])).logits[0, -1].argmax()))
    states = torch.cat([state[0].flatten() for state in out.hidden_states])
    for name, data in (("golden_exact", exact), ("golden_logits", out.logits[0]),
                       ("golden_hidden", states)):
        data.float().numpy().astype("<f4").tofile(folder / f"{name}.f32")
    about = {"architecture": family, "transformers": transformers.__version__,
             "torch": torch.__version__, "input_ids": tokens, "vocab": exact.shape[1],
             "n_hidden": len(out.hidden_states),
             "row_floats": out.hidden_states[0].shape[-1], "greedy_prompt": tokens[:N_PROMPT],
             "greedy_continuation": chosen[N_PROMPT:]}
    (folder / "golden.json").write_text(json.dumps(about) + "\n")


def make(families):
    found = json.loads(EXPECTED.read_text()) if families else {}
    for family in families or SHAPES:
        make_golden(family, tokens_of(0))
        found[family] = []
        for number in range(len(SHAPES[family])):
            with tempfile.TemporaryDirectory() as top:
                write(family, number, pathlib.Path(top))
                rows = exact_logits(pathlib.Path(top), tokens_of(number))
            kept = sample(rows.flatten().tolist(), rows.shape[1])
            found[family].append({"spread": round(float(rows.max() - rows.min()), 4),
                                  "logits": [float(f"{x:.7g}") for x in kept]})
            print(f"{family} {number}: spread {found[family][-1]['spread']}", flush=True)
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, cases)) + "]"
             for name, cases in found.items()]
    EXPECTED.write_text("{" + ",\n".join(lines) + "}\n")


# ---- this engine --------------------------------------------------------------------------------


def check(program, families):
    expected = json.loads(EXPECTED.read_text())
    n_passed = n_failed = 0
    for family in families or SHAPES:
        for number, case in enumerate(expected[family]):
            with tempfile.TemporaryDirectory() as top:
                write(family, number, pathlib.Path(top))
                done = subprocess.run([program, top, *map(str, tokens_of(number))],
                                      capture_output=True)
            fault = done.stderr.decode().strip()
            if done.returncode == 0:
                logits = array.array("f", done.stdout)
                pairs = zip(sample(logits, len(logits) // N_TOKENS), case["logits"], strict=True)
                off = max(abs(a - b) for a, b in pairs) / case["spread"]
                fault = "" if off <= TOLERANCE else f"off by {off:.1e} of the spread"
            n_passed, n_failed = n_passed + (not fault), n_failed + bool(fault)
            print(f"{family} {number}: {fault or 'same'}")
        n_failed += len(expected[family]) != len(SHAPES[family])
    print(f"{n_passed} passed, {n_failed} failed")
    return n_failed > 0 or n_passed == 0


def same_bits(program, flashmoe):
    failed = False
    for (family, number), expected in PACKED_HASHES.items():
        with tempfile.TemporaryDirectory() as top:
            write(family, number, pathlib.Path(top) / "source")
            packed = top + "/packed.fmoe"
            subprocess.run([flashmoe, "pack", top + "/source", packed, "-q", "--dense",
                            "affine4-g64", "--experts", "affine4-g32"], check=True)
            failed |= subprocess.run([program, packed, expected, "3"]).returncode != 0
    for (family, number), expected in HASHES.items():
        with tempfile.TemporaryDirectory() as top:
            write(family, number, pathlib.Path(top))
            failed |= subprocess.run([program, top, expected, "3"]).returncode != 0
    return failed


if __name__ == "__main__":
    action, rest = sys.argv[1:2], sys.argv[2:]
    if action == ["check"]:
        sys.exit(check(rest[0], rest[1:]))
    if action == ["same_bits"]:
        sys.exit(same_bits(*rest))
    if action == ["write"]:
        sys.exit(write(rest[0], int(rest[1]), pathlib.Path(rest[2])))
    if action == ["make"]:
        sys.exit(make(rest))
    sys.exit(__doc__)
