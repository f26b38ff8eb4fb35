#!/usr/bin/env python3
"""Tests GGUF files through the program: which are opened, and which are refused with which
sentence.

usage: gguf_test.py FLASHMOE

The model is a qwen3moe of two blocks whose weights are all zero.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import gguf_writer as w

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = None
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, INNER, VOCABULARY = 32, 4, 2, 8, 4, 32, 320


def tokenizer():
    document = json.loads((HERE.parent / "golden" / "tiny_tokenizer.json").read_text("utf-8"))
    return w.tokenizer_values(document, "qwen2")


def metadata(**extra):
    """Returns a qwen3moe of two blocks; `extra` replaces keys below the architecture, None
    removes."""
    values = {"block_count": w.u32(2), "embedding_length": w.u32(HIDDEN),
              "context_length": w.u32(128), "attention.head_count": w.u32(HEADS),
              "attention.head_count_kv": w.u32(KV_HEADS), "attention.key_length": w.u32(HEAD_DIM),
              "attention.value_length": w.u32(HEAD_DIM), "rope.freq_base": w.f32(1e6),
              "attention.layer_norm_rms_epsilon": w.f32(1e-6), "expert_count": w.u32(EXPERTS),
              "expert_used_count": w.u32(2), "expert_feed_forward_length": w.u32(INNER)}
    values.update({key.replace("__", "."): value for key, value in extra.items()})
    named = {f"qwen3moe.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": w.text("qwen3moe"), **named, **tokenizer()}


def tensors(kind=0):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = [("token_embd.weight", (HIDDEN, VOCABULARY), kind), ("output_norm.weight", (HIDDEN,), 0)]
    for i in range(2):
        out += [(f"blk.{i}.{name}.weight", dims, type_) for name, dims, type_ in (
            ("attn_norm", (HIDDEN,), 0), ("ffn_norm", (HIDDEN,), 0),
            ("attn_q", (HIDDEN, q), kind), ("attn_k", (HIDDEN, kv), kind),
            ("attn_v", (HIDDEN, kv), kind), ("attn_output", (q, HIDDEN), kind),
            ("attn_q_norm", (HEAD_DIM,), 0), ("attn_k_norm", (HEAD_DIM,), 0),
            ("ffn_gate_inp", (HIDDEN, EXPERTS), 0),
            ("ffn_gate_exps", (HIDDEN, INNER, EXPERTS), kind),
            ("ffn_up_exps", (HIDDEN, INNER, EXPERTS), kind),
            ("ffn_down_exps", (INNER, HIDDEN, EXPERTS), kind))]
    return [(name, dims, type_, None) for name, dims, type_ in out]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def run_program(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                              timeout=1800)
        self.assertIn(done.returncode, range(0, 8), done.stderr)
        return done


class Gguf(Case):
    def opens(self, path):
        done = self.run_program("inspect", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refuses(self, path, *parts):
        done = self.run_program("inspect", path)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def refuses_keys(self, *parts, **extra):
        self.refuses(self.write("m.gguf", w.make(metadata(**extra), tensors())), "m.gguf", *parts)

    def test_runs(self):
        for kind in (0, 1, 30):
            path = self.write("m.gguf", w.make(metadata(), tensors(kind)))
            done = self.run_program("run", path, "-p", "the moon", "-n", "3", "--greedy", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(json.loads(done.stdout)["tokens"])

    def test_without_tokenizer(self):
        values = {k: v for k, v in metadata().items() if not k.startswith("tokenizer.")}
        path = self.write("m.gguf", w.make(values, tensors()))
        self.opens(path)
        done = self.run_program("run", path, "-p", "x", "-n", "1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("tokenizer", done.stderr)

    def test_types_that_are_not_read(self):
        path = self.write("m.gguf", w.make(metadata(), [
            *tensors()[1:], ("token_embd.weight", (HIDDEN, VOCABULARY), 24,
                             bytes(HIDDEN * VOCABULARY))]))
        self.refuses(path, "m.gguf", "model.embed_tokens.weight", "I8")

    def test_unknown_tensor(self):
        extra = ("blk.0.attn_q.bias", (HEADS * HEAD_DIM,), 0, None)
        self.refuses(self.write("m.gguf", w.make(metadata(), [*tensors(), extra])),
                     "blk.0.attn_q.bias")
        beyond = ("blk.2.attn_norm.weight", (HIDDEN,), 0, None)
        path = self.write("m.gguf", w.make(metadata(), [*tensors(), beyond]))
        self.refuses(path, "blk.2.attn_norm.weight")
        path = self.write("m.gguf", w.make(metadata(block_count=w.u32(3),
                                                    nextn_predict_layers=w.u32(1)),
                                           [*tensors(), beyond]))
        self.opens(path)

    def test_two_names_for_one(self):
        extra = ("blk.0.post_attention_norm.weight", (HIDDEN,), 0, None)
        path = self.write("m.gguf", w.make(metadata(), [*tensors(), extra]))
        self.refuses(path, "model.layers.0.post_attention_layernorm.weight", "twice")

    def test_refused_models(self):
        values = {**metadata(), "general.architecture": w.text("gemma3")}
        self.refuses(self.write("m.gguf", w.make(values, tensors())), "m.gguf: key "
                     "'general.architecture' is \"gemma3\"", "qwen35moe, qwen3moe, qwen3next")
        values = {key.replace("qwen3moe.", "llama."): value for key, value in metadata().items()
                  if "expert" not in key}
        values["general.architecture"] = w.text("llama")
        values["llama.feed_forward_length"] = w.u32(64)
        self.refuses(self.write("m.gguf", w.make(values, tensors())),
                     "key 'llama.expert_count' is missing or 0: this is a dense model")
        values = {**metadata(), "general.type": w.text("adapter")}
        self.refuses(self.write("m.gguf", w.make(values, tensors())), "'general.type'", "adapter")
        self.refuses(self.write("m.gguf", w.make(tokenizer(), tensors())),
                     "'general.architecture' is missing")
        self.refuses(self.write("m.gguf", w.make(metadata(), [])), "token_embd.weight")
        self.refuses(self.write("m.gguf", w.make(metadata(), tensors()[:1])), "is missing")

    def test_refused_keys(self):
        self.refuses_keys("'qwen3moe.block_count' is missing", block_count=None)
        self.refuses_keys("'qwen3moe.block_count' is 0", block_count=w.u32(0))
        self.refuses_keys("'qwen3moe.block_count' is \"2\"", block_count=w.text("2"))
        self.refuses_keys("'qwen3moe.expert_count' is -4", expert_count=w.i32(-4))
        for kind in ("linear", "yarn", "longrope", "dynamic"):
            self.refuses_keys(f"rope.scaling.type' is \"{kind}\"",
                              rope__scaling__type=w.text(kind))
        self.refuses_keys("rope.scaling.type' is \"longrope\"", rope__scaling__factor=w.f32(1),
                          rope__scaling__type=w.text("longrope"))
        self.refuses_keys("rope.scaling.yarn_attn_factor' is 2",
                          rope__scaling__yarn_attn_factor=w.f32(2))
        self.refuses_keys("rope.scaling.attn_factor' is 2", rope__scaling__factor=w.f32(4),
                          rope__scaling__attn_factor=w.f32(2))
        self.refuses_keys("'qwen3moe.rope.scaling.low_freq_factor' is unknown",
                          rope__scaling__low_freq_factor=w.f32(1))
        self.refuses_keys("'qwen3moe.rope.dimension_count' is 4", "key_length is 8",
                          rope__dimension_count=w.u32(4))
        self.refuses_keys("expert_gating_func' is 2", expert_gating_func=w.u32(2))
        self.refuses_keys("expert_weights_scale' is 2.5", expert_weights_scale=w.f32(2.5))
        self.refuses_keys("expert_group_count' is 8", expert_group_count=w.u32(8))
        self.refuses_keys("sliding_window' is 64", attention__sliding_window=w.u32(64))
        self.refuses_keys("value_length is 16", attention__value_length=w.u32(16))
        self.refuses_keys("attention.causal' is false", attention__causal=w.boolean(False))
        self.refuses_keys("head_count_kv' is a list of 2",
                          attention__head_count_kv=w.array(w.U32, [2, 4]))
        self.refuses_keys("layer_norm_rms_epsilon' is nan",
                          attention__layer_norm_rms_epsilon=w.f32(float("nan")))

    def test_refused_rope_tensors(self):
        for name in ("rope_freqs.weight", "rope_factors_long.weight",
                     "rope_factors_short.weight"):
            extra = (name, (HEAD_DIM // 2,), 0, None)
            self.refuses(self.write("m.gguf", w.make(metadata(), [*tensors(), extra])), name)

    def test_neutral_keys(self):
        path = self.write("m.gguf", w.make(metadata(
            rope__scaling__type=w.text("yarn"), rope__scaling__factor=w.f32(1),
            rope__scaling__original_context_length=w.u32(64),
            rope__scaling__yarn_attn_factor=w.f32(1), rope__dimension_count=w.u32(HEAD_DIM),
            expert_gating_func=w.u32(1), expert_weights_scale=w.f32(1),
            expert_group_count=w.u32(1), attention__head_count_kv=w.array(w.U32, [2, 2])),
            tensors()))
        self.opens(path)

    def scaling(self, **keys):
        path = self.write("m.gguf", w.make(metadata(context_length=w.u32(128), **{
            "rope__scaling__" + key: value for key, value in keys.items()}), tensors()))
        found = self.opens(path)
        return found["max_context"], found["rope_scaling"]

    def test_rope_scaling(self):
        """As llama.cpp reads the keys: a factor alone is linear, YaRN's own factor is
        0.1 ln(factor) + 1."""
        own = 0.1 * math.log(4) + 1
        linear = {"type": "linear", "factor": 4.0, "original_context": 128,
                  "attention_factor": 1.0}
        yarn = {**linear, "type": "yarn", "original_context": 32, "attention_factor": own}

        def same(found, n_positions, expected):
            self.assertEqual(found[0], n_positions)
            self.assertAlmostEqual(found[1].pop("attention_factor"), expected["attention_factor"])
            self.assertEqual(found[1], {k: v for k, v in expected.items()
                                        if k != "attention_factor"})

        self.assertEqual(self.scaling(), (128, None))
        self.assertEqual(self.scaling(type=w.text("none"), factor=w.f32(4)), (128, None))
        same(self.scaling(factor=w.f32(4)), 512, linear)
        same(self.scaling(type=w.text("linear"), factor=w.f32(4)), 512, linear)
        four = {"type": w.text("yarn"), "factor": w.f32(4)}
        same(self.scaling(**four), 512, {**yarn, "original_context": 128})
        short = {**four, "original_context_length": w.u32(32)}
        same(self.scaling(**short), 128, yarn)
        same(self.scaling(**{**short, "factor": w.f32(8)}), 256,
             {**yarn, "factor": 8.0, "attention_factor": 0.1 * math.log(8) + 1})
        same(self.scaling(**short, yarn_ext_factor=w.f32(1), yarn_attn_factor=w.f32(1),
                          yarn_beta_fast=w.f32(16), yarn_beta_slow=w.f32(2)), 128, yarn)
        same(self.scaling(**short, attn_factor=w.f32(0.5), yarn_attn_factor=w.f32(3)), 128,
             {**yarn, "attention_factor": 1.5 * own})
        path = self.write("m.gguf", w.make(metadata(context_length=w.u32(128),
                                                    rope__scale_linear=w.f32(2)), tensors()))
        self.assertEqual(self.opens(path)["rope_scaling"]["factor"], 2)

    def test_refused_rope_scaling(self):
        sound = {"type": w.text("yarn"), "factor": w.f32(4),
                 "original_context_length": w.u32(32)}
        for key, value, shown in (
                ("factor", w.f32(0.5), "0.5"), ("factor", w.f32(-4), "-4"),
                ("factor", w.f32(float("nan")), "nan"), ("factor", w.f32(1e9), "1e+09"),
                ("original_context_length", w.u32(0), "0"), ("yarn_ext_factor", w.f32(0.5), "0.5"),
                ("yarn_log_multiplier", w.f32(0.1), "0.1"), ("yarn_attn_factor", w.f32(0), "0"),
                ("attn_factor", w.f32(-1), "-1"), ("yarn_beta_fast", w.f32(0), "0"),
                ("yarn_beta_slow", w.f32(-1), "-1"), ("type", w.text("YARN"), '"YARN"')):
            self.refuses_keys(f"'qwen3moe.rope.scaling.{key}' is {shown}", **{
                "rope__scaling__" + k: v for k, v in {**sound, key: value}.items()})
        self.refuses_keys("beta_fast is 0.5", **{
            "rope__scaling__" + k: v for k, v in {**sound, "yarn_beta_fast": w.f32(0.5)}.items()})

    def test_refused_tokenizers(self):
        for key, value, parts in (
                ("model", w.text("bert"), ("'tokenizer.ggml.model' is \"bert\"", "gpt2", "llama")),
                ("model", w.text("llama"), ("'tokenizer.ggml.scores' is not a list",)),
                ("pre", w.text("default"), ("'tokenizer.ggml.pre' is \"default\"", "qwen35")),
                ("pre", None, ("'tokenizer.ggml.pre' is missing",)),
                ("tokens", w.u32(1), ("'tokenizer.ggml.tokens'", "list")),
                ("tokens", w.array(w.TEXT, [b"\xc3"]), ("token 0 is not UTF-8",)),
                ("token_type", None, ("'tokenizer.ggml.token_type' is missing",)),
                ("token_type", w.array(w.I32, [1, 1]), ("tokenizer.ggml.token_type", "per token")),
                ("token_type", w.array(w.I32, [6] * 400), ("token 0 has type 6",)),
                ("merges", None, ("'tokenizer.ggml.merges' is missing",)),
                ("merges", w.array(w.TEXT, ["a b c"]), ("merges[0]",))):
            values = metadata()
            values["tokenizer.ggml." + key] = value
            values = {k: v for k, v in values.items() if v is not None}
            self.refuses(self.write("m.gguf", w.make(values, tensors())), "m.gguf", *parts)

    def test_damaged_files(self):
        data = w.make(metadata(), tensors())
        self.refuses(self.write("m.gguf", data[:-1000]), "m.gguf", "1000 bytes are missing")
        self.refuses(self.write("m.gguf", data[:700]), "m.gguf", "truncated")
        self.refuses(self.write("m.gguf", b""), "m.gguf: the file has 0 bytes, but a GGUF")
        self.refuses(self.write("m.gguf", b"version https://git-lfs.github.com/spec/v1\n"),
                     "Git LFS pointer")
        self.refuses(self.write("m.gguf", b"GGUF\0\0\0\3" + data[8:]), "big-endian")
        self.refuses(self.write("m.gguf", b"GGUF\1" + data[5:]), "GGUF version 1")
        self.refuses(self.write("m.gguf", b"PK\3\4" + data[4:]), "not a GGUF file")

    def split(self, n, stem="part", **keys):
        """Writes the model in n files, with all metadata in the first."""
        everything = tensors()
        paths = []
        for i in range(n):
            values = {"split.no": w.u16(i), "split.count": w.u16(n),
                      "split.tensors.count": w.i32(len(everything))}
            values.update({k.replace("__", "."): v for k, v in keys.items()} if i == 1 else {})
            data = w.make({**(metadata() if i == 0 else {}), **values}, everything[i::n])
            paths.append(self.write(f"{stem}-{i + 1:05}-of-{n:05}.gguf", data))
        return paths

    def test_split_sets(self):
        whole = self.opens(self.write("whole.gguf", w.make(metadata(), tensors())))
        os.remove(self.folder / "whole.gguf")
        paths = self.split(3)
        for path in (*paths, self.folder):
            found = self.opens(path)
            self.assertEqual({**found, "model": 0}, {**whole, "model": 0})
        self.write("mmproj-model.gguf", b"not looked at")
        self.opens(self.folder)
        self.write("other.gguf", b"not looked at")
        self.refuses(self.folder, "several models", "give the path")
        os.remove(paths[1])
        self.refuses(paths[0], "part-00002-of-00003.gguf", "missing")

    def test_wrong_split_sets(self):
        self.refuses(self.split(3, split__no=w.u16(2))[0], "part-00002-of-00003.gguf",
                     "'split.no' is 2")
        self.refuses(self.split(3, split__count=w.u16(4))[0], "part-00002-of-00003.gguf",
                     "'split.count' is 4")
        self.refuses(self.split(3, split__tensors__count=w.i32(9))[0],
                     "'split.tensors.count' is 9", f"contain {len(tensors())} tensors")
        path = self.folder / "renamed.gguf"
        os.rename(self.split(2)[0], path)
        self.refuses(path, "'split.count' is 2", "NAME-00001-of-00002.gguf")
        self.refuses(self.write("x-00003-of-00002.gguf", b""), "part 3 of 2")
        self.refuses(self.write("x-00001-of-99999.gguf", b""), "part 1 of 99999")


def rows(tensor):
    """Returns the rows of a matrix, each as bytes."""
    dims, _, data = tensor
    size = len(data) // dims[1]
    return [data[i:i + size] for i in range(0, len(data), size)]


def matrix(like, parts):
    dims, kind, _ = like
    return (dims[0], len(parts)), kind, b"".join(parts)


class Variants(Case):
    """One model in the forms of different converters gives one result."""

    def result(self, tensors_, values, **options):
        path = self.write("m.gguf", w.make(values, [
            (name, dims, kind, data) for name, (dims, kind, data) in tensors_.items()], **options))
        done = self.run_program("run", path, "-p", "the moon", "-n", "24", "--greedy", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = self.write("text.jsonl", b'{"text": "the moon rose over the quiet sea, and so on"}')
        nll = self.run_program("eval", "nll", path, text, "--window", "16", "--json")
        self.assertEqual(nll.returncode, 0, nll.stderr)
        return json.loads(done.stdout)["tokens"], json.loads(nll.stdout)["nats_per_token"]

    def open_frozen(self, name):
        path = HERE.parent / "oracle" / "frozen" / f"{name}.gguf"
        return w.Reader(path.read_bytes())

    def fuse_attention(self, model):
        out = dict(model.tensors)
        for name in model.tensors:
            if name.endswith(".attn_q.weight"):
                prefix = name.removesuffix("attn_q.weight")
                q, k, v = (out.pop(f"{prefix}attn_{x}.weight") for x in "qkv")
                out[f"{prefix}attn_qkv.weight"] = matrix(q, rows(q) + rows(k) + rows(v))
        self.assertNotEqual(out.keys(), model.tensors.keys())
        return out

    def test_fused_attention(self):
        for name in ("small_qwen3_moe-q8_0", "small_qwen3_next-q8_0", "small_qwen3_5_moe-q8_0"):
            model = self.open_frozen(name)
            want = self.result(model.tensors, model.values)
            self.assertEqual(self.result(self.fuse_attention(model), model.values), want)

    def test_fused_recurrent(self):
        """ssm_in of early Qwen3-Next files: grouped by key head, as Hugging Face has it."""
        model = self.open_frozen("small_qwen3_next-bf16")
        heads, key = model.number("ssm.group_count"), model.number("ssm.state_size")
        value = model.number("ssm.inner_size") // heads
        out = dict(model.tensors)
        for name in model.tensors:
            if not name.endswith(".attn_gate.weight"):
                continue
            prefix = name.removesuffix("attn_gate.weight")
            gate, fused = out.pop(name), out.pop(f"{prefix}attn_qkv.weight")
            z, qkv, parts = rows(gate), rows(fused), []
            for h in range(heads):
                v = 2 * heads * key + h * value
                parts += qkv[h * key:(h + 1) * key] + qkv[(heads + h) * key:(heads + h + 1) * key]
                parts += qkv[v:v + value] + z[h * value:(h + 1) * value]
            out[f"{prefix}ssm_in.weight"] = matrix(fused, parts)
        self.assertNotEqual(out.keys(), model.tensors.keys())
        self.assertEqual(self.result(out, model.values),
                         self.result(model.tensors, model.values))

    def test_forms_of_the_file(self):
        model = self.open_frozen("small_qwen3_5_moe-q8_0")
        want = self.result(model.tensors, model.values)
        self.assertEqual(self.result(model.tensors, model.values, version=2), want)
        aligned = {**model.values, "general.alignment": w.u32(128)}
        self.assertEqual(self.result(model.tensors, aligned, alignment=128), want)
        other = {name: (dims[:1], kind, data) if "gate_inp_shexp" in name else (dims, kind, data)
                 for name, (dims, kind, data) in reversed(model.tensors.items())}
        self.assertEqual(self.result(other, model.values), want)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
