"""Restores a converted model's weights to their Hugging Face names in float32.

The value of a quantised weight is computed in float32 from the file's own bits, by gguf's and
MLX's own decoders, and the converters' transforms are undone. The result is a checkpoint that gives
what an exact engine must give for the converted file.
"""
import json
import pathlib

import numpy as np


class Renamed(dict):
    """name -> float32 array; every converted tensor must be taken exactly once."""

    def __init__(self, tensors):
        self.source = dict(tensors)

    def take(self, source, name, change=lambda x: x):
        self[name] = np.ascontiguousarray(change(self.source.pop(source)))

    def done(self):
        assert not self.source, f"left over: {sorted(self.source)[:8]}"
        return dict(self)


# Families whose norms are stored as 1 + w by the converters.
ZERO_CENTRED = ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp_text")
PLAIN_SHARED = ("glm4_moe", "deepseek_v3", "glm4_moe_lite")
SHORT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def unstack(tensors, config):
    """Splits expert tensors [E, out, in] into one tensor per expert."""
    result = {}
    is_short = config["model_type"] in ("mixtral", "minimax_m2")
    for name, value in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        if ".mlp.experts." in name:
            head, kind = name.split(".mlp.experts.")
            for long, short in SHORT.items() if is_short else ():
                kind = kind.replace(long, short)
            for e in range(value.shape[0]):
                result[f"{head}.mlp.experts.{e}.{kind}"] = value[e]
        else:
            result[name] = value
    return result


def gguf_tensors(path):
    import gguf

    path = pathlib.Path(path)
    paths = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    tensors = {}
    for part in paths:
        for t in gguf.GGUFReader(part).tensors:
            # The data already has the row-major shape; for blocks gguf restores the columns.
            value = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            tensors[t.name] = value.reshape([int(n) for n in reversed(t.shape)])
    return tensors


def zip_rows(gate, up):
    """Returns [E, 2 * rows, ...] in which rows of gate and up alternate."""
    return np.stack((gate, up), axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])


def zip_experts(out, h, take):
    """gpt-oss: gate and up in one tensor, and floats column by column; take(kind, suffix)."""
    e = h + "mlp.experts."
    weight = zip_rows(take("gate", "weight"), take("up", "weight"))
    out[e + "gate_up_proj"] = np.ascontiguousarray(weight.transpose(0, 2, 1))
    out[e + "gate_up_proj_bias"] = zip_rows(take("gate", "bias"), take("up", "bias"))
    out[e + "down_proj"] = np.ascontiguousarray(take("down", "weight").transpose(0, 2, 1))
    out[e + "down_proj_bias"] = take("down", "bias")


def gpt_oss_from_gguf(path, config):
    out = Renamed(gguf_tensors(path))
    out.take("token_embd.weight", "model.embed_tokens.weight")
    out.take("output_norm.weight", "model.norm.weight")
    out.take("output.weight", "lm_head.weight")
    for i in range(config["num_hidden_layers"]):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        out.take(b + "attn_norm.weight", h + "input_layernorm.weight")
        out.take(b + "post_attention_norm.weight", h + "post_attention_layernorm.weight")
        out.take(b + "attn_sinks.weight", h + "self_attn.sinks")
        for kind in ("weight", "bias"):
            for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                out.take(f"{b}attn_{ours}.{kind}", f"{h}self_attn.{theirs}_proj.{kind}")
            out.take(f"{b}ffn_gate_inp.{kind}", f"{h}mlp.router.{kind}")
        zip_experts(out, h, lambda x, kind: out.source.pop(f"{b}ffn_{x}_exps.{kind}"))
    return out.done()


def gpt_oss_from_mlx(folder, config):
    out = mlx_tensors(folder)
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        zip_experts(out, h, lambda x, kind: out.pop(f"{h}mlp.experts.{x}_proj.{kind}"))
    return out


def from_gguf(path, config):
    arch = config["model_type"]
    if arch == "gpt_oss":
        return gpt_oss_from_gguf(path, config)
    n_layers = config["num_hidden_layers"]
    out = Renamed(gguf_tensors(path))
    plus_1 = arch in ZERO_CENTRED
    norm = (lambda x: x - 1) if plus_1 else (lambda x: x)
    out.take("token_embd.weight", "model.embed_tokens.weight")
    if arch == "qwen4_exp_text":
        gguf_streams(out, config, norm)
    else:
        out.take("output_norm.weight", "model.norm.weight", norm)
    if "output.weight" in out.source:
        out.take("output.weight", "lm_head.weight")
    for i in range(n_layers):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        second = "post_attention_norm" if plus_1 or arch == "glm4_moe" else "ffn_norm"
        if arch != "qwen4_exp_text":
            out.take(b + "attn_norm.weight", h + "input_layernorm.weight", norm)
            out.take(b + second + ".weight", h + "post_attention_layernorm.weight", norm)
        if b + "ssm_a" in out.source:
            gguf_linear_attention(out, b, h, config)
        elif b + "attn_kv_a_mqa.weight" in out.source:
            gguf_latent_attention(out, b, h)
        else:
            gguf_attention(out, b, h, config, norm)
        gguf_mlp(out, b, h, arch)
    # An MTP block comes after the trunk; the logits do not depend on it.
    for name in [n for n in out.source if n.startswith(f"blk.{n_layers}.")]:
        del out.source[name]
    return unstack(out.done(), config)


def gguf_streams(out, config, norm):
    """What qwen4_exp has beside the layers of Qwen3.5: gates of streams, tables, the index."""
    def gate(ours, theirs):
        out.take(f"{ours}_norm.weight", f"{theirs}.hc_norm.weight", norm)
        for x in ("down", "up"):
            out.take(f"{ours}_{x}.weight", f"{theirs}.input_mix_weight_{x}.weight")

    gate("output_hc", "model.hyper_connection_mixer")
    for i in range(config["num_hidden_layers"]):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        for ours, theirs in (("attn", "attn"), ("ffn", "mlp")):
            gate(f"{b}hc_{ours}", f"{h}{theirs}_hyper_connection")
            out.take(f"{b}hc_{ours}_inject.weight",
                     f"{h}{theirs}_hyper_connection.block_inject_weight.weight")
        if b + "indexer.q_proj.weight" in out.source:
            x = h + "self_attn.indexer."
            out[x + "index_qk_proj.weight"] = np.concatenate(
                [out.source.pop(f"{b}indexer.{kind}_proj.weight") for kind in "qk"])
            for kind in "qk":
                out.take(f"{b}indexer.{kind}_norm.weight", f"{x}{kind}_layernorm.weight", norm)
        if b + "ple_key.weight" not in out.source:
            continue
        out.take(b + "ple_key.weight", h + "ple.key_proj.weight")
        out.take(b + "ple_value.weight", h + "ple.value_proj.weight")
        for x in ("key", "query", "conv"):
            out.take(f"{b}ple_norm_{x}.weight", f"{h}ple.norm_{x}.weight", norm)
        out.take(b + "ple_conv1d.weight", h + "ple.conv1d.weight", lambda x: x[:, None])
        table = np.split(out.source.pop("per_layer_token_embd.weight"), config["split_ngram_parts"])
        for part, rows in enumerate(table):
            out[f"{h}ple.ple_embedding.ngram_embedding.shard_{part}.weight"] = rows


def join_heads(keys, values):
    """Returns kv_b_proj of latent attention from what converters make of it: [heads, rank, plain]
    and [heads, value, rank]."""
    both = np.concatenate((np.swapaxes(keys, 1, 2), values), axis=1)
    return both.reshape(-1, both.shape[2])


def gguf_latent_attention(out, b, h):
    a = h + "self_attn."
    for ours, theirs in (("q", "q_proj"), ("q_a", "q_a_proj"), ("q_a_norm", "q_a_layernorm"),
                         ("q_b", "q_b_proj"), ("kv_a_mqa", "kv_a_proj_with_mqa"),
                         ("kv_a_norm", "kv_a_layernorm"), ("output", "o_proj")):
        if f"{b}attn_{ours}.weight" in out.source:
            out.take(f"{b}attn_{ours}.weight", f"{a}{theirs}.weight")
    out[a + "kv_b_proj.weight"] = join_heads(out.source.pop(b + "attn_k_b.weight"),
                                             out.source.pop(b + "attn_v_b.weight"))


def gguf_attention(out, b, h, config, norm):
    def pairs_apart(x):
        """Reorders the rows of each head from neighbours that are rotated together to halves."""
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return np.swapaxes(x.reshape(-1, dim // 2, 2, x.shape[1]), 1, 2).reshape(x.shape)

    for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
        is_paired = config["model_type"] == "mixtral" and ours in "qk"
        out.take(f"{b}attn_{ours}.weight", f"{h}self_attn.{theirs}_proj.weight",
                 pairs_apart if is_paired else lambda x: x)
        if f"{b}attn_{ours}.bias" in out.source:
            out.take(f"{b}attn_{ours}.bias", f"{h}self_attn.{theirs}_proj.bias")
    for x in ("q_norm", "k_norm"):
        if f"{b}attn_{x}.weight" in out.source:
            out.take(f"{b}attn_{x}.weight", f"{h}self_attn.{x}.weight", norm)


def gguf_mlp(out, b, h, arch):
    if b + "ffn_gate_inp.weight" not in out.source:
        for x in ("gate", "up", "down"):
            out.take(f"{b}ffn_{x}.weight", f"{h}mlp.{x}_proj.weight")
        return
    out.take(b + "ffn_gate_inp.weight", h + "mlp.gate.weight")
    if b + "exp_probs_b.bias" in out.source:
        gate = "gate." if arch in PLAIN_SHARED else ""
        out.take(b + "exp_probs_b.bias", f"{h}mlp.{gate}e_score_correction_bias")
    shared = "shared_experts" if arch in PLAIN_SHARED else "shared_expert"
    fused = out.source.pop(b + "ffn_gate_up_exps.weight", None)
    if fused is not None:
        n = fused.shape[1] // 2
        out.source[b + "ffn_gate_exps.weight"] = fused[:, :n]
        out.source[b + "ffn_up_exps.weight"] = fused[:, n:]
    for x in ("gate", "up", "down"):
        out.take(f"{b}ffn_{x}_exps.weight", f"{h}mlp.experts.{x}_proj.weight")
        if f"{b}ffn_{x}_shexp.weight" in out.source:
            out.take(f"{b}ffn_{x}_shexp.weight", f"{h}mlp.{shared}.{x}_proj.weight")
    if b + "ffn_gate_inp_shexp.weight" in out.source:
        name = h + "mlp.shared_expert_gate.weight"
        out.take(b + "ffn_gate_inp_shexp.weight", name, lambda x: x.reshape(1, -1))


def gguf_linear_attention(out, b, h, config):
    nk, nv = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    r = nv // nk
    a = h + "linear_attn."
    tiled = config["model_type"] != "qwen3_next"

    def heads(x, axis, width):
        """Reorders value heads along one axis, from tiled (j * nk + kh) to grouped (kh * r + j)."""
        if not tiled or nk == nv:
            return x
        shape = x.shape
        x = x.reshape(*shape[:axis], r, nk, width, *shape[axis + 1 :])
        return np.swapaxes(x, axis, axis + 1).reshape(shape)

    def value_rows(x):
        return np.concatenate([x[: 2 * nk * dk], heads(x[2 * nk * dk :], 0, dv)])

    # -exp(A_log) was rounded to float32; float64 keeps its logarithm from being rounded again.
    out.take(b + "ssm_a", a + "A_log", lambda x: np.log(-heads(x.astype(np.float64), 0, 1)))
    out.take(b + "ssm_dt.bias", a + "dt_bias", lambda x: heads(x, 0, 1))
    out.take(b + "ssm_norm.weight", a + "norm.weight")
    out.take(b + "ssm_conv1d.weight", a + "conv1d.weight", lambda x: value_rows(x)[:, None])
    out.take(b + "ssm_out.weight", a + "out_proj.weight", lambda x: heads(x, 1, dv))
    if tiled:
        out.take(b + "attn_qkv.weight", a + "in_proj_qkv.weight", value_rows)
        out.take(b + "attn_gate.weight", a + "in_proj_z.weight", lambda x: heads(x, 0, dv))
        out.take(b + "ssm_beta.weight", a + "in_proj_b.weight", lambda x: heads(x, 0, 1))
        out.take(b + "ssm_alpha.weight", a + "in_proj_a.weight", lambda x: heads(x, 0, 1))
        return
    out.take(b + "ssm_ba.weight", a + "in_proj_ba.weight")
    qkv, z = out.source.pop(b + "attn_qkv.weight"), out.source.pop(b + "attn_gate.weight")
    width = qkv.shape[1]
    q, k, v = np.split(qkv, [nk * dk, 2 * nk * dk])
    parts = [x.reshape(nk, -1, width) for x in (q, k, v, z)]
    out[a + "in_proj_qkvz.weight"] = np.concatenate(parts, axis=1).reshape(-1, width)


def mlx_tensors(folder):
    import mlx.core as mx

    quantization = json.load(open(pathlib.Path(folder) / "config.json")).get("quantization", {})
    loaded = {}
    for part in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        loaded.update(mx.load(str(part)))
    tensors = {}
    with mx.stream(mx.cpu):
        for name, value in loaded.items():
            module, _, suffix = name.rpartition(".")
            if suffix in ("scales", "biases") and module + ".weight" in loaded:
                continue
            if suffix == "weight" and module + ".scales" in loaded:
                own = quantization.get(module, quantization)
                if module + ".biases" not in loaded:  # powers of two: exact in bfloat16
                    tensors[name] = np.array(mx.dequantize(
                        value, loaded[module + ".scales"], group_size=own["group_size"],
                        bits=own["bits"], mode=own.get("mode", "mxfp4")).astype(mx.float32))
                    continue
                # In float32: MLX's own result would be rounded to the scales' bfloat16.
                value = mx.dequantize(
                    value,
                    loaded[module + ".scales"].astype(mx.float32),
                    loaded[module + ".biases"].astype(mx.float32),
                    group_size=own["group_size"],
                    bits=own["bits"],
                )
            tensors[name] = np.array(value.astype(mx.float32))
    return tensors


def from_mlx(folder, config):
    if config["model_type"] == "gpt_oss":
        return gpt_oss_from_mlx(folder, config)
    plus_1 = config["model_type"] in ZERO_CENTRED
    result = {}
    for name, value in mlx_tensors(folder).items():
        name = name.removeprefix("language_model.")
        if plus_1 and name.endswith("norm.weight") and "linear_attn" not in name:
            value = value - 1
        if name.endswith("conv1d.weight"):
            value = value.reshape(value.shape[0], 1, -1)
        result[name.replace(".switch_mlp.", ".experts.")] = value
    for name in [name for name in result if name.endswith("embed_q.weight")]:
        head = name.removesuffix("embed_q.weight")
        result[head + "kv_b_proj.weight"] = join_heads(result.pop(name),
                                                       result.pop(head + "unembed_out.weight"))
    return unstack(result, config)


def from_fp8(folder, config):
    import torch
    from safetensors.torch import load_file

    block = config["quantization_config"]["weight_block_size"]
    loaded = load_file(pathlib.Path(folder) / "model.safetensors")
    result = {}
    for name, value in loaded.items():
        if name.endswith("_scale_inv") or name.startswith("mtp."):
            continue
        value = value.to(torch.float32)
        scale = loaded.get(name + "_scale_inv")
        if scale is not None:
            rows, cols = value.shape
            scale = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            value = value * scale[:rows, :cols]
        result[name] = value.numpy()
    return result


def from_packed(folder):
    """compressed-tensors, by its own code."""
    from safetensors.torch import load_file
    import make_int4

    loaded = load_file(pathlib.Path(folder) / "model.safetensors")
    result = {}
    for name, value in loaded.items():
        module, _, suffix = name.rpartition(".")
        if suffix == "weight_packed":
            parts = {k: loaded[f"{module}.{k}"]
                     for k in ("weight_packed", "weight_scale", "weight_shape")}
            result[module + ".weight"] = make_int4.unpack(parts).numpy()
        elif suffix not in ("weight_scale", "weight_shape"):
            result[name] = value.float().numpy()
    return result


def load(path, config):
    path = pathlib.Path(path)
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        return from_gguf(path, config)
    own = json.load(open(path / "config.json"))
    method = own.get("text_config", own).get("quantization_config", {}).get("quant_method")
    if method == "fp8":
        return from_fp8(path, own)
    if method == "compressed-tensors":
        return from_packed(path)
    return from_mlx(path, config)
