#!/usr/bin/env python3
"""Writes the seed corpus of the GGUF fuzz target.

usage: make_gguf_corpus.py [DIR]      (default: corpus/ next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "format"))
import gguf_writer as w  # noqa: E402

COMMON = {"embedding_length": w.u32(32), "attention.head_count": w.u32(4),
          "attention.head_count_kv": w.u32(2), "attention.key_length": w.u32(8),
          "expert_count": w.u32(4), "expert_used_count": w.u32(2),
          "expert_feed_forward_length": w.u32(64)}
HYBRID = {"ssm.conv_kernel": w.u32(4), "ssm.state_size": w.u32(8), "ssm.group_count": w.u32(2),
          "ssm.time_step_rank": w.u32(4), "ssm.inner_size": w.u32(32),
          "rope.dimension_count": w.u32(2), "expert_shared_feed_forward_length": w.u32(96)}
TOKENIZER = {"tokenizer.ggml.model": w.text("gpt2"), "tokenizer.ggml.pre": w.text("qwen2"),
             "tokenizer.ggml.tokens": w.array(w.TEXT, ["a", "b", "ab", "<|im_end|>", "<x>", "[P]"]),
             "tokenizer.ggml.token_type": w.array(w.I32, [1, 1, 1, 3, 4, 5]),
             "tokenizer.ggml.merges": w.array(w.TEXT, ["a b"]),
             "tokenizer.ggml.eos_token_id": w.u32(3),
             "tokenizer.chat_template": w.text("{{ \"x\" }}\n")}
EMBEDDING = ("token_embd.weight", (32, 8), 8)


def model(architecture, n_blocks, tensors=(), **extra):
    keys = {"block_count": w.u32(n_blocks), **COMMON}
    keys.update(HYBRID if architecture != "qwen3moe" else {})
    keys.update({key.replace("__", "."): value for key, value in extra.items()})
    values = {"general.architecture": w.text(architecture)}
    values.update({f"{architecture}.{key}": value for key, value in keys.items()})
    return values, [EMBEDDING, *tensors]


def tensors(prefix, names):
    return [(f"blk.{prefix}.{name}", dims, 0) for name, dims in names]


def placed(values, infos, **options):
    """Returns only the headers: the fuzz target pretends that the data exists."""
    return w.make(values, [(name, dims, kind, None) for name, dims, kind in infos],
                  with_data=False, **options)


def good_seeds():
    kinds = {"u8": w.u8(1), "u16": w.u16(2), "u64": w.u64(3), "i64": w.i64(-1), "f32": w.f32(.5),
             "f64": w.f64(.5), "bool": w.boolean(True), "text": w.text("x"),
             "list": w.array(w.TEXT, ["a", ""]), "nested": w.array(w.LIST, [(w.U8, [1, 2])]),
             "empty": w.array(w.LIST, [])}
    formats = [(f"t{kind}", (256, 1), kind) for kind in w.BLOCKS]
    attention = (("attn_qkv.weight", (32, 64)), ("attn_norm.weight", (32,)),
                 ("ffn_gate_inp_shexp.weight", (32,)), ("ffn_gate_exps.weight", (32, 64, 4)))
    recurrent = (("attn_qkv.weight", (32, 64)), ("ssm_a", (4,)), ("ssm_dt.bias", (4,)))
    nextn = (("nextn.eh_proj.weight", (64, 32)), ("attn_q.weight", (32, 64)))
    seeds = {
        "empty": w.make({}, []),
        "version-2": w.make({}, [], version=2),
        "every-value": w.make(kinds, []),
        "every-format": placed({}, formats),
        "alignment-64": placed({"general.alignment": w.u32(64)}, formats[:3], alignment=64),
        "scalar": placed({}, [("s", (), 0)]),
        "data": w.make({}, [("w", (3, 2), 0, None)]),
        "split": placed({"split.no": w.u16(0), "split.count": w.u16(2),
                         "split.tensors.count": w.i32(1)}, [EMBEDDING]),
        "plain": placed(*model("qwen3moe", 1, tensors(0, attention))),
        "next": placed(*model("qwen3next", 4, tensors(0, recurrent) + tensors(3, attention[1:]))),
        "qwen35": placed(*model("qwen35moe", 3, tensors(0, recurrent) + tensors(1, attention[1:])
                                + tensors(2, nextn), nextn_predict_layers=w.u32(1),
                                full_attention_interval=w.u32(2))),
        "layer-list": placed(*model("qwen3next", 2, attention__recurrent_layers=w.array(
            w.BOOL, [True, False]))),
        "per-layer": placed(*model("qwen3moe", 2, attention__head_count_kv=w.array(
            w.U32, [2, 2]))),
        "yarn": placed(*model("qwen3moe", 1, rope__scaling__type=w.text("yarn"),
                              rope__scaling__factor=w.f32(4),
                              rope__scaling__original_context_length=w.u32(32),
                              rope__scaling__attn_factor=w.f32(0.5),
                              rope__scaling__yarn_beta_fast=w.f32(16),
                              rope__scaling__yarn_beta_slow=w.f32(2))),
    }
    values, infos = model("qwen3moe", 1)
    seeds["tokenizer"] = placed({**values, **TOKENIZER, "general.sampling.temp": w.f32(.7),
                                 "general.sampling.top_k": w.i32(20)}, infos)
    seeds["tied"] = placed(values, infos)
    seeds["untied"] = placed(values, [*infos, ("output.weight", (32, 8), 0)])
    return seeds


def bad_seeds():
    values, infos = model("qwen3moe", 1)
    return {
        "bad-empty-file": b"",
        "bad-short": b"GGUF\3\0\0\0",
        "bad-lfs": b"version https://git-lfs.github.com/spec/v1\n",
        "bad-big-endian": b"GGUF\0\0\0\3" + bytes(16),
        "bad-counts": b"GGUF\3\0\0\0" + b"\xff" * 16,
        "bad-string": w.make({}, [])[:16] + struct.pack("<QQ", 1, 1 << 60),
        "bad-nested": w.make({"k": w.array(w.LIST, [(w.LIST, [(w.LIST, [(w.LIST, [(w.LIST, [])])])])
                                                    ])}, []),
        "bad-twice": placed({}, [("w", (1,), 0), ("w", (1,), 0)]),
        "bad-block": placed({}, [("w", (33,), 8)]),
        "bad-architecture": placed({"general.architecture": w.text("llama")}, [EMBEDDING]),
        "bad-longrope": placed(*model("qwen3moe", 1, rope__scaling__type=w.text("longrope"),
                                      rope__scaling__factor=w.f32(4))),
        "bad-pre": placed({**values, **TOKENIZER, "tokenizer.ggml.pre": w.text("gpt-2")}, infos),
        "bad-fused": placed(*model("qwen3moe", 1, tensors(0, (("attn_qkv.weight", (32, 65)),)))),
    }


def main():
    base = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "corpus")
    folder = base / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {**good_seeds(), **bad_seeds()}
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
    print(f"{len(seeds)} seeds in {folder}, {sum(map(len, seeds.values()))} bytes")


if __name__ == "__main__":
    main()
