#!/usr/bin/env python3
"""Makes the goldens of gpt-oss: tiny random checkpoints, saved by transformers, with its results.

usage: gpt_oss.py DIR [NAME...]
Writes DIR/NAME for every shape below, or those named. make_exact.py adds golden_exact.f32.

Every shape has a seed of its own. The texts are longer than the length before YaRN's scaling; some
windows are shorter than the text and one is longer. gpt_oss_mxfp4 (for tests/oracle) has its
experts as the released checkpoints do, in blocks and scales. Its logits are those of the values
that these stand for, which transformers decodes. Needs `pip install torch transformers numpy`.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

N_GREEDY = 40
COMMON = {
    "vocab_size": 320,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
    "num_hidden_layers": 3,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}
# What a shape changes; "text" is the number of tokens.
SHAPES = {
    # Two query heads to one of keys; a window shorter than the text.
    "gpt_oss": {
        "seed": 11, "text": 96, "hidden_size": 64, "intermediate_size": 64,
        "num_local_experts": 10, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 16,
    },
    # All query heads share the keys; a window longer than the text; a tight clamp; full first.
    "gpt_oss_shared": {
        "seed": 12, "text": 64, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 96,
        "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 128,
        "swiglu_limit": 0.5, "swiglu_alpha": 1.25, "num_hidden_layers": 2,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    # Keys for every head; a window of five; rows that are no multiple of sixteen; one expert.
    "gpt_oss_odd": {
        "seed": 13, "text": 64, "hidden_size": 40, "intermediate_size": 24, "vocab_size": 96,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 24, "sliding_window": 5,
        "num_local_experts": 5, "num_experts_per_tok": 1,
    },
    "gpt_oss_mxfp4": {
        "seed": 14, "text": 48, "hidden_size": 64, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16,
        "num_hidden_layers": 2, "num_local_experts": 12, "num_experts_per_tok": 2,
    },
}


def make_model(shape):
    shape = dict(shape)
    seed, n = shape.pop("seed"), shape.pop("text")
    torch.manual_seed(seed)
    config = transformers.GptOssConfig(rope_parameters=dict(YARN), **{**COMMON, **shape})
    model = transformers.GptOssForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.copy_(1 + 0.2 * torch.randn(p.shape))
            elif "bias" in name or name.endswith("sinks"):
                p.copy_(0.5 * torch.randn(p.shape))
            elif "embed" in name or "lm_head" in name:
                p.copy_(0.5 * torch.randn(p.shape))
            else:  # the experts' are transposed
                n_inputs = p.shape[-2 if "experts" in name else -1]
                p.copy_(torch.randn(p.shape) * (1.2 / n_inputs**0.5))
    ids = torch.randint(2, config.vocab_size, (n,)).tolist()
    return model.to(torch.bfloat16), ids


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_mxfp4(weight):
    """[..., columns] as blocks [..., columns / 32, 16] and scales [..., columns / 32]: the nearest
    code to a power of two that keeps the largest number below 8."""
    x = weight.double().reshape(*weight.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(x.abs().amax(-1))) - 2
    scaled = x / 2.0 ** exponent[..., None]
    codes = (scaled.abs()[..., None] - FP4.double()).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, (exponent + 127).to(torch.uint8)


def quantise(folder):
    """Puts the experts into blocks and scales, row by row, as in the released checkpoints."""
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = to_mxfp4(tensors.pop(name).transpose(1, 2))
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.load(open(folder / "config.json"))
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"],
    }
    json.dump(config, open(folder / "config.json", "w"), indent=2)


def load(folder, dtype):
    options = {}
    if "quantization_config" in json.load(open(folder / "config.json")):
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, experts_implementation="eager", attn_implementation="eager",
        **options)
    return model.to(dtype).eval()


def write_results(folder, ids):
    model = load(folder, torch.float32)
    with torch.no_grad():
        result = model(torch.tensor([ids]), output_hidden_states=True)
        prompt, chosen, cache = ids[:24], [], None
        step = prompt
        while len(chosen) < N_GREEDY:
            out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            chosen.append(int(out.logits[0, -1].argmax()))
            step = chosen[-1:]
    logits = result.logits[0].numpy().astype("<f4")
    logits.tofile(folder / "golden_logits.f32")
    torch.cat(result.hidden_states).numpy().astype("<f4").tofile(folder / "golden_hidden.f32")
    n = len(ids)
    golden = {
        "architecture": "gpt_oss", "transformers": transformers.__version__,
        "torch": torch.__version__, "input_ids": ids, "vocab": logits.shape[1],
        "logits": f"golden_logits.f32: float32 little-endian [{n}, vocab], one forward",
        "hidden": f"golden_hidden.f32: float32 [layers+1, {n}, hidden]; entry 0 the embeddings, "
        "entry i the residual stream after layer i-1, the last after the final norm",
        "n_hidden": len(result.hidden_states), "greedy_prompt": prompt,
        "greedy_continuation": chosen,
    }
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def make(name, folder):
    """Makes a golden in a new folder."""
    model, ids = make_model(SHAPES[name])
    model.save_pretrained(folder)
    if name.endswith("mxfp4"):
        quantise(folder)
    write_results(folder, ids)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or SHAPES:
        folder = pathlib.Path(sys.argv[1]) / name
        shutil.rmtree(folder, ignore_errors=True)
        make(name, folder)
        if SHAPES[name].get("vocab_size", 320) == 320:
            (folder / "tokenizer.json").symlink_to("../tiny_tokenizer.json")
        print(name, sum(p.stat().st_size for p in folder.iterdir() if p.is_file()), "bytes")


if __name__ == "__main__":
    main()
