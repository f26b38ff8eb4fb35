#!/usr/bin/env python3
"""Rewrites a Hugging Face checkpoint into another layout of the same model.

usage: variants.py SRC_DIR DST_DIR --layout NAME [--layout NAME ...]
                   [--untied-twin TWIN_DIR] [--seed N]

Layouts that keep every weight, so the logits must stay the same bits:
  sharded         three shards and model.safetensors.index.json; neighbours in name order, such as
                  the three matrices of one expert, lie in different shards
  stacked         experts merged to mlp.experts.gate_up_proj [E, 2I, H], gate rows first, and
                  mlp.experts.down_proj [E, H, I]; also below block_sparse_moe
  stacked-weight  experts merged to mlp.experts.{gate,up}_proj.weight [E, I, H] and
                  mlp.experts.down_proj.weight [E, H, I]
  multimodal      qwen3_5_moe_text as the text part of qwen3_5_moe: config in text_config, tensors
                  under model.language_model., some model.visual.* and mtp.* tensors of random
                  content; experts are stacked unless stacked-weight is given
  odd             the tensor data begins at an odd offset of the file
  shuffled        header entries and tensor data each in a random order
  f32             every float tensor widened to F32
  mtp             a block for multi-token prediction, of which no logits depend: the last layer with
                  full attention with its rows in reverse order, and what joins it to the model of
                  random content

Layouts that change the model, comparable only with each other:
  tied            no lm_head, tie_word_embeddings true; --untied-twin also writes the same model,
                  in the same other layouts, with an lm_head that equals the embedding
  f16             every float tensor rounded to F16; compare with f16 and f32 together, which
                  stores the rounded values as F32

Any layouts may be combined, except stacked with stacked-weight. Weight files that DST_DIR already
holds are removed; generation_config.json and the tokenizer's files are copied.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import struct
import sys

LAYOUTS = ("sharded", "stacked", "stacked-weight", "multimodal", "odd", "shuffled", "tied", "f32",
           "f16", "mtp")
N_SHARDS = 3
INDEX = "model.safetensors.index.json"
COPIED = ("generation_config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json",
          "added_tokens.json", "chat_template*")
EXPERT = re.compile(r"(.*\.(?:mlp|block_sparse_moe)\.experts)\.(\d+)\."
                    r"(gate_proj|up_proj|down_proj|w1|w3|w2)\.weight")
KINDS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down",
         "w2": "down"}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data


# ---- files ----------------------------------------------------------------------------------


def read_file(path, tensors):
    raw = path.read_bytes()
    n = struct.unpack_from("<Q", raw)[0]
    for name, info in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        if name in tensors:
            raise ValueError(f"{path}: tensor '{name}' is in two files")
        begin, end = info["data_offsets"]
        tensors[name] = Tensor(info["dtype"], info["shape"], raw[8 + n + begin:8 + n + end])


def read_checkpoint(folder):
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        read_file(path, tensors)
    if not tensors:
        raise ValueError(f"{folder} has no *.safetensors")
    return config, tensors


def write_file(path, tensors, rng, layouts):
    names = sorted(tensors)
    if "shuffled" in layouts:
        rng.shuffle(names)
    header, at = {}, 0
    for name in names:
        t = tensors[name]
        header[name] = {"dtype": t.dtype, "shape": t.shape,
                        "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    order = list(header)
    if "shuffled" in layouts:
        rng.shuffle(order)
    text = json.dumps({"__metadata__": {"format": "pt"}, **{name: header[name] for name in order}},
                      separators=(",", ":")).encode()
    if "odd" in layouts:
        text += b" " * (1 - len(text) % 2)
    else:
        text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in names:
            f.write(tensors[name].data)


def write_checkpoint(src, dst, config, tensors, layouts, seed):
    if dst.exists() and dst.samefile(src):
        raise ValueError("SRC_DIR and the directory to write are the same")
    dst.mkdir(parents=True, exist_ok=True)
    for stale in [*dst.glob("*.safetensors"), dst / INDEX]:
        stale.unlink(missing_ok=True)
    rng = random.Random(seed)
    if "sharded" in layouts:
        weight_map = {}
        shards = [f"model-{i + 1:05}-of-{N_SHARDS:05}.safetensors" for i in range(N_SHARDS)]
        for i, shard in enumerate(shards):
            part = {name: tensors[name] for name in sorted(tensors)[i::N_SHARDS]}
            write_file(dst / shard, part, rng, layouts)
            weight_map.update(dict.fromkeys(part, shard))
        index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())},
                 "weight_map": dict(sorted(weight_map.items()))}
        (dst / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    else:
        write_file(dst / "model.safetensors", tensors, rng, layouts)
    (dst / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in COPIED:
        for path in src.glob(pattern):
            shutil.copyfile(path, dst / path.name)


# ---- layouts --------------------------------------------------------------------------------


def to_f32(t):
    if t.dtype == "BF16":
        data = bytearray(2 * len(t.data))
        data[2::4], data[3::4] = t.data[0::2], t.data[1::2]
        return Tensor("F32", t.shape, bytes(data))
    if t.dtype == "F16":
        n = len(t.data) // 2
        return Tensor("F32", t.shape, struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", t.data)))
    return t


def to_f16(t):
    if t.dtype not in ("BF16", "F32"):
        return t
    wide = to_f32(t).data
    n = len(wide) // 4
    return Tensor("F16", t.shape, struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", wide)))


def concat(parts, shape):
    if len({(p.dtype, tuple(p.shape)) for p in parts}) > 1:
        raise ValueError("experts of one layer differ in dtype or shape")
    return Tensor(parts[0].dtype, shape, b"".join(p.data for p in parts))


def stack_experts(tensors, with_weight):
    groups, rest = {}, {}
    for name, t in tensors.items():
        m = EXPERT.fullmatch(name)
        if m:
            groups.setdefault(m[1], {}).setdefault(KINDS[m[3]], {})[int(m[2])] = t
        else:
            rest[name] = t
    if not groups:
        raise ValueError("no tensors named ...mlp.experts.N.gate_proj.weight or the like to stack")
    for base, kinds in groups.items():
        n = len(kinds["gate"])
        if any(sorted(kinds[k]) != list(range(n)) for k in ("gate", "up", "down")):
            raise ValueError(f"{base}: the experts are not numbered 0 to {n - 1}")
        gate, up, down = ([kinds[k][e] for e in range(n)] for k in ("gate", "up", "down"))
        inner, hidden = gate[0].shape
        if with_weight:
            rest[f"{base}.gate_proj.weight"] = concat(gate, [n, inner, hidden])
            rest[f"{base}.up_proj.weight"] = concat(up, [n, inner, hidden])
            rest[f"{base}.down_proj.weight"] = concat(down, [n, hidden, inner])
        else:
            pairs = [t for pair in zip(gate, up) for t in pair]
            rest[f"{base}.gate_up_proj"] = concat(pairs, [n, 2 * inner, hidden])
            rest[f"{base}.down_proj"] = concat(down, [n, hidden, inner])
    return rest


def make_multimodal(config, tensors, rng):
    if config.get("model_type") != "qwen3_5_moe_text":
        raise ValueError("multimodal needs model_type qwen3_5_moe_text, this is "
                         f"{config.get('model_type')!r}")
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    hidden = text["hidden_size"]
    outer = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 3,
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64,
                          "model_type": "qwen3_5_moe", "num_heads": 2, "out_hidden_size": hidden,
                          "patch_size": 16},
        "vision_start_token_id": 4,
    }
    renamed = {re.sub(r"^model\.", "model.language_model.", name): t
               for name, t in tensors.items()}
    extras = {
        "model.visual.blocks.0.attn.qkv.weight": [96, 32],
        "model.visual.blocks.0.attn.qkv.bias": [96],
        "model.visual.patch_embed.proj.weight": [32, 3, 2, 16, 16],
        "model.visual.merger.norm.weight": [32],
        "mtp.fc.weight": [hidden, 2 * hidden],
        "mtp.norm.weight": [hidden],
        "mtp.pre_fc_norm_embedding.weight": [hidden],
        "mtp.pre_fc_norm_hidden.weight": [hidden],
    }
    for name, shape in extras.items():
        n = 1
        for d in shape:
            n *= d
        renamed.setdefault(name, Tensor("BF16", shape, rng.randbytes(2 * n)))
    return outer, renamed


def reverse_rows(t):
    row = len(t.data) // t.shape[0]
    rows = [t.data[i:i + row] for i in range(0, len(t.data), row)]
    return Tensor(t.dtype, t.shape, b"".join(reversed(rows)))


def random_bf16(rng, shape, scale):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    wide = struct.pack(f"<{n}f", *(rng.gauss(0, scale) for _ in range(n)))
    data = bytearray(2 * n)
    data[0::2], data[1::2] = wide[2::4], wide[3::4]
    return Tensor("BF16", shape, bytes(data))


def add_mtp(config, tensors, rng):
    """Adds a block below "mtp."."""
    hidden = config["hidden_size"]
    full = max(int(name.split(".")[2]) for name in tensors if ".self_attn.q_proj." in name)
    prefix = f"model.layers.{full}."
    block = {f"mtp.layers.0.{name[len(prefix):]}": reverse_rows(t)
             for name, t in tensors.items() if name.startswith(prefix)}
    block["mtp.fc.weight"] = random_bf16(rng, [hidden, 2 * hidden], hidden ** -0.5)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        block[f"mtp.{name}.weight"] = random_bf16(rng, [hidden], 0.2)
    return {**tensors, **block}


def transform(config, tensors, layouts, seed):
    if "mtp" in layouts:
        tensors = add_mtp(config, tensors, random.Random(seed))
    if "stacked-weight" in layouts:
        tensors = stack_experts(tensors, True)
    elif "stacked" in layouts or "multimodal" in layouts:
        tensors = stack_experts(tensors, False)
    if "f16" in layouts:
        tensors = {name: to_f16(t) for name, t in tensors.items()}
        config = {**config, "dtype": "float16"}
    if "f32" in layouts:
        tensors = {name: to_f32(t) for name, t in tensors.items()}
        config = {**config, "dtype": "float32"}
    if "multimodal" in layouts:
        config, tensors = make_multimodal(config, tensors, random.Random(seed))
    return config, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", metavar="SRC_DIR", type=pathlib.Path)
    parser.add_argument("dst", metavar="DST_DIR", type=pathlib.Path)
    parser.add_argument("--layout", action="append", choices=LAYOUTS, required=True)
    parser.add_argument("--untied-twin", metavar="TWIN_DIR", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    layouts = set(args.layout)
    if {"stacked", "stacked-weight"} <= layouts:
        parser.error("stacked and stacked-weight exclude each other")
    if args.untied_twin and "tied" not in layouts:
        parser.error("--untied-twin needs --layout tied")
    try:
        config, tensors = read_checkpoint(args.src)
        if "tied" in layouts:
            if args.untied_twin:
                twin = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
                untied = transform({**config, "tie_word_embeddings": False}, twin, layouts,
                                   args.seed)
                write_checkpoint(args.src, args.untied_twin, *untied, layouts, args.seed)
            tensors = {name: t for name, t in tensors.items() if name != "lm_head.weight"}
            config = {**config, "tie_word_embeddings": True}
        changed = transform(config, tensors, layouts, args.seed)
        write_checkpoint(args.src, args.dst, *changed, layouts, args.seed)
    except (OSError, ValueError, KeyError, OverflowError) as why:
        sys.exit(f"{args.src}: {why}")


if __name__ == "__main__":
    main()
