#!/usr/bin/env python3
"""Changes every field of config.json and compares the engine with transformers.

usage: sweep_config.py run SWEEP_ENGINE [--base NAME] [--field NAME ...] [--save FILE]
       sweep_config.py freeze FILE... [--save NAME]
       sweep_config.py check SWEEP_ENGINE [--few]

Uses each golden checkpoint, and a multimodal one made from the Qwen3.5 golden. Changes every field
that transformers or the engine reads, and every field that transformers' shared code looks up in
any configuration. Sets it to several values at each place where it may be: the root, text_config,
rope_parameters and rope_scaling. The engine must give the logits that transformers gives in
float64, or refuse the model with an error that names the field or the tensor that does not fit.

`run` needs torch and transformers. It also lists the cases that the engine runs and transformers
cannot: there is nothing to compare those with. `freeze` writes what runs have saved to sweep.json
and sweep.f32 next to this file, or to NAME.json and NAME.f32: every other case, with a sample of
its logits. `check` compares the engine with all of them and needs only the standard library. With
--few it checks, for each field in each model, one case that runs and one that is refused.
"""
import argparse
import array
import contextlib
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
SOURCE = HERE.parent.parent / "src"
REFUSED = 3  # sweep_engine's exit status
# Maximum distance, relative to the reference's largest logit minus its smallest: the rule of
# tests/golden/golden_test.c.
TOLERANCE = 1e-5
N_PREFILL, N_TOKENS = 12, 14
SAMPLE_ROWS, SAMPLE_STEP = (5, 11, 12, 13), 9
MAX_PARAMETERS = 10**7
DROP = {"__drop__": True}  # as a value, removes the field

# name: golden, layouts of variants.py
BASES = {
    "qwen3_moe": ("qwen3_moe", []),
    "qwen3_next": ("qwen3_next", []),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", []),
    "qwen3_5_moe": ("qwen3_5_moe_text", ["multimodal"]),
    "glm4_moe": ("glm4_moe", []),
    "minimax_m2": ("minimax_m2", []),
    "mixtral": ("mixtral", []),
    "olmoe": ("olmoe", []),
    "qwen2_moe": ("qwen2_moe", []),
    "gpt_oss": ("gpt_oss", []),
    "deepseek_v3": ("deepseek_v3", []),
    "glm4_moe_lite": ("glm4_moe_lite", []),
    "qwen4_exp_text": ("qwen4_exp_text", []),
    "qwen3_moe-tied": ("qwen3_moe", ["tied"]),
    "qwen3_next-tied": ("qwen3_next", ["tied"]),
    "qwen3_5_moe_text-tied": ("qwen3_5_moe_text", ["tied"]),
    "qwen3_5_moe-tied": ("qwen3_5_moe_text", ["tied", "multimodal"]),
}
ALIKE = ("glm4_moe", "minimax_m2", "mixtral", "olmoe", "qwen2_moe")
TIE = "tie_word_embeddings"

# An error about one of these may name another one.
NAMED_TOGETHER = [("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
                   "original_max_position_embeddings", "rotary_dim"),
                  ("num_experts", "num_local_experts", "n_routed_experts"),
                  ("n_group", "topk_group"),
                  ("indexer_budget", "indexer_compress_ratio"),
                  ("ple_embed_dim", "ngram_size", "heads_per_ngram")]
# Fields of a multimodal root that take every value.
ROOT_TOO = [TIE, "rope_scaling", "rope_parameters", "model_type", "quantization_config",
            "compression_config", "text_config", "is_causal", "eos_token_id"]

# ---- the cases --------------------------------------------------------------------------------

SCALED = [
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8, "rope_theta": 50.0,
     "partial_rotary_factor": 0.5, "beta_fast": 2, "beta_slow": 0.5},
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 8, "rope_theta": 50.0,
     "partial_rotary_factor": 1.0, "beta_fast": 2, "beta_slow": 0.5, "truncate": False},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8,
     "rope_theta": 50.0, "attention_factor": 1.5, "mscale": 2.0, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
     "rope_theta": 50.0, "attention_factor": None, "mscale": 2.0, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0, "beta_fast": 0, "beta_slow": None,
     "truncate": None},
    {"rope_type": "yarn", "type": "linear", "factor": 1.0, "rope_theta": 50.0},
    {"rope_type": "yarn", "rope_theta": 50.0}, {"rope_type": "yarn", "factor": 0.5},
    {"rope_type": "yarn", "factor": "4"}, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": -1},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0},
    {"rope_type": "yarn", "factor": 4.0, "mscale": "x"},
    {"rope_type": "yarn", "factor": 4.0, "truncate": 2},
    {"rope_type": "linear", "factor": 4.0},
    {"type": "linear", "factor": 2},
    {"rope_type": "linear", "factor": 1.5, "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 50.0}, {"rope_type": "linear", "factor": None},
    {"rope_type": "linear", "factor": 0}, {"rope_type": "linear", "factor": 1e30},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8},
    {"rope_type": "longrope", "factor": 4.0, "short_factor": [2.0] * 16,
     "long_factor": [4.0] * 16, "original_max_position_embeddings": 8},
    {"rope_type": "proportional", "factor": 4.0},
    {"rope_type": "axial"},
    {"rope_type": "xyz"},
]
UNSCALED = [
    {}, None, DROP,
    {"rope_type": "default"}, {"type": "default"}, {"rope_type": None},
    {"rope_theta": 5000.0}, {"rope_type": "default", "rope_theta": 777.0},
    {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "default", "partial_rotary_factor": 0.75}, {"partial_rotary_factor": 1.0},
    {"rope_type": "default", "factor": 4.0}, {"factor": 4.0},
    {"rope_type": "default", "type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "type": "default", "factor": 4.0},
    {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1]},
    {"type": "mrope", "rope_theta": 1e4, "mrope_section": [1, 1, 1]},
    {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
     "rope_type": "default", "rope_theta": 1e4},
]
LAYERS = {"f": "full_attention", "l": "linear_attention", "s": "sliding_attention",
          "c": "chunked_attention"}
VALUES = {
    "rope_parameters": SCALED + UNSCALED,
    "rope_scaling": SCALED + UNSCALED,
    "rope_theta": [DROP, None, 10000.0, 5000, 1e7, 1, "x"],
    "partial_rotary_factor": [DROP, None, 0.25, 0.5, 1.0, 0.75, 0.0, 0.3, 1.5],
    "hidden_act": [DROP, None, "gelu", "swish", "relu", "gelu_pytorch_tanh", "silu"],
    "layer_types": [DROP, None, []] + [[LAYERS[c] for c in word] for word in
                                       ("ffff", "llll", "lllf", "fffl", "ssss", "fsfs", "cccc",
                                        "lll", "lllff")],
    "mlp_only_layers": [DROP, None, [], [0], [1], [1, 2], [3], [7], [-1]],
    "decoder_sparse_step": [DROP, None, 0, 1, 2, 4, 9],
    "full_attention_interval": [DROP, None, 1, 2, 4, 3],
    "per_layer_config": [None, {}, {"1": {"num_experts_per_tok": 2}},
                         {"0": {"sliding_window": 4}}, [{}, {}, {}, {}]],
    "num_experts": [DROP, None, 0, 8, 16, 32], "num_local_experts": [DROP, None, 0, 8, 16, 32],
    "head_dim": [DROP, None, 16, 32, 64, 128],
    "model_type": [DROP, None, "qwen3_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text",
                   "qwen2_moe", "qwen3_5", "qwen3_vl_moe", "llama"],
    "quantization_config": [None, {}, {"quant_method": "gptq", "bits": 4},
                            {"quant_method": "awq", "bits": 4},
                            {"quant_method": "compressed-tensors"},
                            {"quant_method": "bitsandbytes", "load_in_8bit": True},
                            {"load_in_4bit": True}, {"quant_method": "mxfp4"},
                            {"quant_method": "torchao"}, {"quant_method": "xyz"}],
    "compression_config": [{"quant_method": "compressed-tensors"}],
    "text_config": [{}, None, {"hidden_size": 64}, {"num_experts_per_tok": 2}],
    "dtype": [DROP, None, "float32", "float16"], "torch_dtype": ["bfloat16", "float32"],
    "transformers_weights": [None, "model.safetensors", "other.safetensors", 2],
    "is_causal": [True, False, None], "is_decoder": [True, False],
    "sliding_window": [DROP, None, 4, 0, 4096], "attention_chunk_size": [None, 4, 16, 0],
    "use_sliding_window": [DROP, True, False], "max_window_layers": [0, 2, 28],
    "num_kv_shared_layers": [0, 1, 2], "attn_output_gate": [True, False],
    "attention_bias": [DROP, True, False, None], "norm_topk_prob": [DROP, True, False, None],
    "rms_norm_eps": [DROP, None, 1e-3, 1e-5, 0.0, 1, "x"],
    "num_key_value_heads": [DROP, None, 1, 2, 4],
    "num_experts_per_tok": [DROP, None, 1, 2, 8, 16, 17, 0],
    "n_routed_experts": [DROP, None, 0, 8, 16, 32], "clip_qkv": [DROP, None, 0.5],
    "qkv_bias": [DROP, None, True, False], "use_qk_norm": [DROP, None, True, False],
    "n_group": [DROP, None, 0, 1, 2, 3, 16], "topk_group": [DROP, None, 0, 1, 2],
    "first_k_dense_replace": [DROP, None, 0, 1, 2, 4, 9],
    "n_shared_experts": [DROP, None, 0, 1, 2],
    "routed_scaling_factor": [DROP, None, 1.0, 0.5, -1.0, "x"],
    "rotary_dim": [DROP, None, 0, 4, 6, 16, 7, 32],
    "attn_type_list": [DROP, None, [1, 1, 1, 1], [1, 0, 1, 1]],
    "scoring_func": [DROP, None, "softmax", "sigmoid"],
    "qk_norm_type": [DROP, "per_layer", "per_head"],
    "eos_token_id": [DROP, None, 0, [1, 2], 5], "pad_token_id": [DROP, None, 0, 7, 5000],
    "ple_layer_ids": [DROP, None, [], [2], [1], [2, 2], [4], [0], 2],
    "output_gate_type": [DROP, None, "silu", "sigmoid", "swish", "tanh"],
    TIE: [DROP, None, True, False, 0, 1, "x"],
}
# Fields that checkpoints have but that no code here or in the classes names.
GENERIC = ["rope_scaling", "rope_theta", "partial_rotary_factor", "head_dim", "num_experts",
           "num_local_experts", "layer_types", "mlp_only_layers", "decoder_sparse_step",
           "full_attention_interval", "per_layer_config", "model_type", "quantization_config",
           "compression_config", "text_config", "torch_dtype", "is_causal", "is_decoder",
           "sliding_window", "attention_chunk_size", "use_sliding_window", "max_window_layers",
           "attn_output_gate", "norm_topk_prob", "scoring_func", "routed_scaling_factor",
           "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "moe_layer_freq",
           "logit_scale", "final_logit_softcapping", "attn_logit_softcapping",
           "query_pre_attn_scalar", "attention_multiplier", "residual_multiplier",
           "embedding_multiplier", "logits_scaling",
           "qk_norm", "use_qk_norm", "qk_layernorm", "clip_qkv", "mlp_bias", "moe_router_bias",
           "no_rope_layers", "rope_local_base_freq", "original_max_position_embeddings",
           "mtp_num_hidden_layers", "mamba_ssm_dtype", "output_gate_type", "rope_interleave",
           "attention_sink_size", "num_nextn_predict_layers", "shared_expert_gate"]
PLAIN = [True, 2]  # for fields without a known meaning


def values_of(field, base):
    if field in VALUES:
        return VALUES[field]
    if isinstance(base, bool):
        return [not base, DROP]
    if isinstance(base, int):
        return [base + 1, max(base // 2, 1), DROP]
    if isinstance(base, float):
        return [base * 2 + 0.1, 0.0, DROP]
    return PLAIN


def engine_fields():
    """Returns names in quotes in the files that read a configuration."""
    files = [path for path in (SOURCE / "arch").glob("*.c")
             if not path.stem.endswith(("_gguf", "_test"))]
    found = set()
    for path in [*files, SOURCE / "model/config.c", SOURCE / "model/model.c"]:
        found |= set(re.findall(r'"([a-z][a-z_0-9]+)"', path.read_text()))
    return found


def shared_fields():
    """Returns what transformers' shared code looks up in a configuration of any class."""
    import transformers
    root = pathlib.Path(transformers.__file__).parent
    found = set()
    for path in ("masking_utils.py", "cache_utils.py", "modeling_utils.py",
                 "configuration_utils.py", "modeling_rope_utils.py", "integrations/moe.py",
                 "integrations/sdpa_attention.py",
                 "utils/generic.py", "models/auto/auto_factory.py", "core_model_loading.py"):
        text = (root / path).read_text() if (root / path).exists() else ""
        found |= set(re.findall(r'getattr\(\s*(?:self\.)?\w*config\w*,\s*"(\w+)"', text))
        found |= set(re.findall(r'(?:self\.|[^\w.])config\.(\w+)(?![\w(])', text))
    return {name for name in found if not name.startswith("_")}


def class_fields(model_type):
    import dataclasses
    from transformers import CONFIG_MAPPING
    return {f.name for f in dataclasses.fields(CONFIG_MAPPING[model_type])}


def text_of(config):
    return config.get("text_config", config)


def places_of(field, config):
    """Returns paths of the objects that may contain the field."""
    places = [[]]
    if "text_config" in config and field != "text_config":
        places = [["text_config"], []]
    if field in ("rope_theta", "partial_rotary_factor"):
        places += [places[0] + ["rope_parameters"], places[0] + ["rope_scaling"]]
    return places


def change(config, place, field, value):
    changed = copy.deepcopy(config)
    holder = changed
    for key in place:
        holder = holder.setdefault(key, {})
    if value == DROP:
        holder.pop(field, None)
    else:
        holder[field] = copy.deepcopy(value)
    return changed


def pairs_of(config):
    """Returns fields that are in two places at once."""
    text = text_of(config)
    prefix = ["text_config"] if text is not config else []
    full = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    bare = {"rope_type": "default"}
    yield "rope_scaling", [(prefix, "rope_parameters", dict(full, rope_theta=1e5)),
                           (prefix, "rope_scaling", full)]
    yield "rope_scaling", [(prefix, "rope_parameters", full), (prefix, "rope_scaling", bare)]
    yield "rope_scaling", [(prefix, "rope_scaling", bare), (prefix, "rope_theta", 300.0),
                           (prefix, "partial_rotary_factor", 0.5)]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    for parameters in (DROP, full, yarn, dict(yarn, rope_theta=300.0)):
        yield "rope_scaling", [(prefix, "rope_parameters", parameters),
                               (prefix, "rope_scaling", dict(yarn, rope_theta=300.0))]
        yield "rope_scaling", [(prefix, "rope_parameters", parameters), (prefix, "rope_scaling",
                               yarn), (prefix, "rope_theta", 300.0)]
        yield "rope_scaling", [(prefix, "rope_parameters", parameters), (prefix, "rope_scaling",
                               full)]
    for length in (16, 4, None, 0):
        yield "rope_parameters", [(prefix, "rope_parameters", dict(yarn, rope_theta=300.0)),
                                  (prefix, "original_max_position_embeddings", length)]
    for length in (16, DROP, None, 4):
        yield "rope_parameters", [
            (prefix, "rope_parameters", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 300.0}),
            (prefix, "max_position_embeddings", length)]
    if prefix:
        yield "rope_parameters", [([], "rope_parameters", dict(yarn, rope_theta=300.0)),
                                  (prefix, "rope_parameters", dict(yarn, rope_theta=300.0))]
    yield "rope_theta", [(prefix, "rope_parameters", DROP), (prefix, "rope_theta", 300.0),
                         (prefix, "partial_rotary_factor", DROP)]
    yield "rope_theta", [(prefix, "rope_parameters", None), (prefix, "rope_theta", 300.0),
                         (prefix, "partial_rotary_factor", 0.5)]
    yield "partial_rotary_factor", [(prefix, "rope_parameters", bare),
                                    (prefix, "rope_theta", 300.0),
                                    (prefix, "partial_rotary_factor", DROP)]
    for both in ((16, 8), (8, 16), (16, None), (None, 16), (16, DROP), (DROP, 16)):
        yield "num_experts", [(prefix, "num_experts", both[0]),
                              (prefix, "num_local_experts", both[1])]
    for n_groups, n_chosen in ((4, 2), (4, 1), (8, 2), (2, 2), (2, 3), (8, 1), (5, 1)):
        yield "n_group", [(prefix, "n_group", n_groups), (prefix, "topk_group", n_chosen)]
    yield "rotary_dim", [(prefix, "rope_parameters", DROP), (prefix, "rope_theta", 300.0),
                         (prefix, "rotary_dim", 8)]
    yield "rotary_dim", [(prefix, "rope_parameters", DROP), (prefix, "rope_theta", 300.0),
                         (prefix, "rotary_dim", 8), (prefix, "partial_rotary_factor", 0.25)]
    for interval in (1, 2, 4):
        yield "full_attention_interval", [(prefix, "layer_types", DROP),
                                          (prefix, "full_attention_interval", interval)]
        yield "full_attention_interval", [(prefix, "layer_types", None),
                                          (prefix, "full_attention_interval", interval)]
    yield "sliding_window", [(prefix, "use_sliding_window", True), (prefix, "sliding_window", 4)]
    yield "sliding_window", [(prefix, "sliding_window", 4), (prefix, "layer_types",
                                                             ["sliding_attention"] * 4)]
    if prefix:
        for outer in (True, False, None, DROP):
            for inner in (True, False, None, DROP):
                yield TIE, [([], TIE, outer), (prefix, TIE, inner)]
        for field, value in (("rms_norm_eps", 0.1), ("num_experts_per_tok", 1),
                             ("rope_parameters", full), ("layer_types", [LAYERS["l"]] * 4)):
            yield field, [([], field, value)]
            yield field, [([], field, value), (prefix, field, DROP)]


def cases_of(name, config, fields):
    """Yields (field, [(place, key, value)...]) without repetition."""
    seen = set()

    def fresh(changes):
        key = json.dumps(changes)
        is_new = key not in seen
        seen.add(key)
        return is_new

    is_tied = name.endswith("-tied")
    for field in [TIE] if is_tied else sorted(fields):
        for place in places_of(field, config):
            values = values_of(field, text_of(config).get(field))
            if place == [] and "text_config" in config and field not in ROOT_TOO:
                values = values[:1]  # the root's fields are not fields of the language model
            for value in values:
                changes = [(place, field, value)]
                if fresh(changes):
                    yield field, changes
    for field, changes in pairs_of(config):
        if (field == TIE or not is_tied) and fresh(changes):
            yield field, changes


# ---- both sides -------------------------------------------------------------------------------


@contextlib.contextmanager
def checkpoints():
    """Makes a folder with all base checkpoints."""
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        for name, (golden, layouts) in BASES.items():
            if layouts:
                flags = [word for layout in layouts for word in ("--layout", layout)]
                subprocess.run([sys.executable, GOLDEN / "variants.py", GOLDEN / golden,
                                top / name, *flags], check=True, stdout=subprocess.DEVNULL)
            else:
                (top / name).mkdir()
                for file in ("config.json", "model.safetensors"):
                    (top / name / file).symlink_to(GOLDEN / golden / file)
        yield top


def tokens_of(name):
    golden = json.loads((GOLDEN / BASES[name][0] / "golden.json").read_text())
    return golden["input_ids"][:N_TOKENS]


def write_case(top, name, config):
    folder = top / "case"
    folder.mkdir(exist_ok=True)
    weights = folder / "model.safetensors"
    weights.unlink(missing_ok=True)
    weights.symlink_to((top / name / "model.safetensors").resolve())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def apply(config, changes):
    for place, key, value in changes:
        config = change(config, place, key, value)
    return config


def engine(program, folder, tokens):
    """Returns (logits as an array, None) or (None, error)."""
    done = subprocess.run([program, folder, *map(str, tokens)], capture_output=True)
    if done.returncode == REFUSED:
        return None, done.stderr.decode().strip()
    if done.returncode != 0:
        raise SystemExit(f"sweep_engine failed: {done.stderr.decode()}")
    return array.array("f", done.stdout), None


def names_fault(error, field, changes):
    """Returns whether the error names a changed field, the field that decides, or the tensor that
    does not fit."""
    words = {field} | {key for _, key, _ in changes}
    for names in NAMED_TOGETHER:
        words |= set(names) if words & set(names) else set()
    for _, _, value in changes:
        words |= set(value) if isinstance(value, dict) else set()
    if "tensor '" in error or (field in ("model_type", "text_config") and "field '" in error):
        return True
    return any(re.search(rf"\b{re.escape(word)}\b", error) for word in words)


def sample_of(logits, vocabulary):
    return [logits[row * vocabulary + i] for row in SAMPLE_ROWS
            for i in range(0, vocabulary, SAMPLE_STEP)]


def describe(name, changes):
    where = ", ".join(".".join(place + [key]) + " = " + ("(none)" if value == DROP else
                                                         json.dumps(value))
                      for place, key, value in changes)
    return f"{name}: {where}"


def distance(found, expected):
    worst = 0.0
    for a, b in zip(found, expected):
        d = abs(a - b)
        worst = d if not d <= worst else worst  # a NaN is worse than any number
    return worst


# ---- transformers -----------------------------------------------------------------------------


def reference(folder, tokens):
    """Returns transformers' logits in float64, [n, vocabulary]: a prefill, then token by token."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    config = json.loads((folder / "config.json").read_text())
    kind = AutoModelForCausalLM
    if "ForConditionalGeneration" in str(config.get("architectures")):
        kind = AutoModelForImageTextToText
    text = AutoConfig.from_pretrained(folder).get_text_config()
    n_experts = getattr(text, "num_experts", None) or text.num_local_experts
    inner = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    size = text.vocab_size + text.num_hidden_layers * n_experts * inner
    if size * text.hidden_size > MAX_PARAMETERS:  # a default replaced a field
        raise ValueError(f"{size * text.hidden_size:.2g} parameters")
    model, loading = kind.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager", attn_implementation="eager",
        output_loading_info=True)
    missing = [key for key in loading["missing_keys"] if "visual" not in key]
    if missing:
        raise ValueError(f"transformers makes up {sorted(missing)[:3]}")
    left = [key for key in loading["unexpected_keys"]
            if not re.match(r"(model\.visual|mtp)\b", key)]
    model.eval()
    kept = torch.float32, torch.Tensor.float
    # The models use float32 inside norms, softmax and the delta rule: give them float64.
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        with torch.no_grad():
            out = model(torch.tensor([tokens[:N_PREFILL]]), use_cache=True)
            rows = [out.logits[0]]
            for token in tokens[N_PREFILL:]:
                out = model(torch.tensor([[token]]), past_key_values=out.past_key_values,
                            use_cache=True)
                rows.append(out.logits[0])
    finally:
        torch.float32, torch.Tensor.float = kept
    logits = torch.cat(rows)
    if not torch.isfinite(logits).all():
        raise ValueError("not finite")
    return logits, left


def quieten():
    import logging
    import warnings
    import torch
    import transformers
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


class Sweep:
    def __init__(self, program):
        self.program = program
        self.saved = []
        self.counts = {"same": 0, "refused": 0, "no reference": 0, "WRONG": 0, "UNCLEAR": 0}

    def case(self, top, name, config, field, changes):
        folder = write_case(top, name, apply(config, changes))
        found, error = engine(self.program, folder, tokens_of(name))
        title = describe(name, changes)
        if error is not None:
            kind = "refused" if names_fault(error, field, changes) else "UNCLEAR"
            print(f"{kind:12} {title}: {error.replace(str(folder), '')}", flush=True)
            return self.count(kind, [name, field, changes, None, 0])
        try:
            rows, left = reference(folder, tokens_of(name))
        except Exception as why:  # whatever the error, there is nothing to compare with
            text = f"{type(why).__name__}: {why}".splitlines()[0][:120]
            print(f"no reference {title}: {text}", flush=True)
            return self.count("no reference", None)
        spread = float(rows.max() - rows.min())
        off = distance(found, rows.flatten().tolist()) / spread
        is_same = len(found) == rows.numel() and off <= TOLERANCE and not left
        kind = "same" if is_same else "WRONG"
        print(f"{kind:12} {title}: {off:.1e} of {spread:.3g}{' ' + str(left) if left else ''}",
              flush=True)
        sample = sample_of(rows.flatten().tolist(), rows.shape[1])
        return self.count(kind, [name, field, changes, sample, round(spread, 4)])

    def count(self, kind, case):
        self.counts[kind] += 1
        if kind in ("same", "refused"):
            self.saved.append(case)


def run(args):
    quieten()
    sweep = Sweep(os.path.abspath(args.paths[0]))
    with checkpoints() as top:
        for name in args.base or BASES:
            config = json.loads((top / name / "config.json").read_text())
            fields = class_fields(config["model_type"]) | set(config) | set(text_of(config))
            fields |= class_fields(text_of(config)["model_type"])
            fields |= engine_fields() | shared_fields() | set(GENERIC)
            if args.field:
                fields &= set(args.field)
            for field, changes in cases_of(name, config, fields):
                if not args.field or field in args.field:
                    sweep.case(top, name, config, field, changes)
    print(", ".join(f"{n} {kind}" for kind, n in sweep.counts.items()))
    if args.save:
        pathlib.Path(args.save).write_text(json.dumps(sweep.saved))
    return sweep.counts["WRONG"] + sweep.counts["UNCLEAR"] > 0


# ---- what is frozen ---------------------------------------------------------------------------


def freeze(args):
    """Cases with the same logits share a sample."""
    lines, samples, known = [], array.array("f"), {}
    for path in args.paths:
        for name, field, changes, sample, spread in json.loads(pathlib.Path(path).read_text()):
            at = None
            if sample is not None:
                key = tuple(round(x, 7) for x in sample)
                if key not in known:
                    known[key] = len(known)
                    samples.extend(sample)
                at = known[key]
            lines.append(json.dumps([name, field, changes, at, spread], separators=(",", ":")))
    name = args.save or "sweep"
    (HERE / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    if sys.byteorder == "big":
        samples.byteswap()
    (HERE / f"{name}.f32").write_bytes(samples.tobytes())
    print(f"{len(lines)} cases, {len(known)} different logits")
    return 0


def few_of(cases):
    """Returns the first case of each field in each model that runs, and the first that is
    refused. Of models that share their code with others, only the first that runs with each set of
    logits."""
    kinds = {}
    for case in cases:
        name, field, _, at, _ = case[0]
        runs_with = field if at is None or name not in ALIKE else at
        kinds.setdefault((name, runs_with, at is None), case)
    return list(kinds.values())


def frozen():
    """Returns all frozen cases, each with the samples of its file."""
    found = []
    for path in sorted(HERE.glob("sweep*.json")):
        samples = array.array("f", path.with_suffix(".f32").read_bytes())
        if sys.byteorder == "big":
            samples.byteswap()
        found += [(case, samples) for case in json.loads(path.read_text())]
    return found


def check(args):
    program = os.path.abspath(args.paths[0])
    cases = few_of(frozen()) if args.few else frozen()
    failed = []
    with checkpoints() as top:
        configs = {name: json.loads((top / name / "config.json").read_text()) for name in BASES}
        for (name, field, changes, at, spread), samples in cases:
            folder = write_case(top, name, apply(configs[name], changes))
            found, error = engine(program, folder, tokens_of(name))
            vocabulary = text_of(configs[name])["vocab_size"]
            n = len(SAMPLE_ROWS) * len(range(0, vocabulary, SAMPLE_STEP))
            if at is None:
                fault = "runs, and must be refused" if error is None else (
                    None if names_fault(error, field, changes) else f"names no field: {error}")
            elif error is not None:
                fault = error
            else:
                off = distance(sample_of(found, vocabulary), samples[at * n:(at + 1) * n])
                fault = None if off <= TOLERANCE * spread else f"off by {off:.2e} of {spread:g}"
            if fault:
                failed.append(describe(name, changes))
                print(f"{failed[-1]}: {fault}")
    print(f"{len(cases) - len(failed)} of {len(cases)} cases as frozen")
    return bool(failed) or not cases


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "freeze", "check"))
    parser.add_argument("paths", metavar="SWEEP_ENGINE|FILE", nargs="+")
    parser.add_argument("--base", action="append", choices=BASES)
    parser.add_argument("--field", action="append")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--few", action="store_true")
    args = parser.parse_args()
    return {"run": run, "freeze": freeze, "check": check}[args.action](args)


if __name__ == "__main__":
    sys.exit(main())
