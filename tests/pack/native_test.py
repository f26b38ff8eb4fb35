#!/usr/bin/env python3
"""Packs checkpoints whose weights have a native format of few bits, and compares.

usage: native_test.py FLASHMOE TESTS

By default packing keeps MXFP4, INT4 and FP8 bit for bit: the bytes are those of the checkpoint, the
logits have the hash that they have from the directory, `verify` accepts the result and finds a
changed byte, and `pack --consume` writes the same files. Kimi-K2.5's wrapper around a text model
changes no bit of it. Standard library only.
"""
import filecmp
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import read_packed
from zipped_test import tensors

KIMI, DEEPSEEK, GPT_OSS = "kimi_k2-int4", "blocks_deepseek_v3-fp8", "gpt_oss_mxfp4"
FORMATS = {KIMI: {("int4-g32", "experts"), ("bf16", "dense")},
           DEEPSEEK: {("fp8-b128-f32", "experts"), ("fp8-b128-f32", "dense"), ("bf16", "dense")},
           GPT_OSS: {("mxfp4-g32", "experts"), ("bf16", "dense")}}


def write_tensors(path, found):
    """Writes name -> (dtype, shape, bytes)."""
    header, at = {}, 0
    for name, (dtype, shape, data) in found.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(data for _, _, data in found.values()))


def dtypes(folder):
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return {name: t["dtype"] for name, t in header.items() if name != "__metadata__"}


class Native(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir, True)

    def flashmoe(self, *args):
        done = subprocess.run([FLASHMOE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def pack(self, source, name, *options):
        self.flashmoe("pack", "--quiet", source, self.dir / name, *options)
        self.flashmoe("verify", "--quiet", self.dir / name)
        return self.dir / name

    def logits_hash(self, model):
        done = self.flashmoe("run", model, "--raw", "-p", "The cat sat on the mat.", "-n", "6",
                             "--greedy", "--json")
        return json.loads(done.stdout)["logits_hash"]

    def check_verify_notices(self, model, file):
        data = bytearray((model / file).read_bytes())
        data[len(data) // 3] ^= 16
        (model / file).write_bytes(data)
        done = subprocess.run([FLASHMOE, "verify", "--quiet", model], stdout=subprocess.PIPE,
                              encoding="utf-8")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(file, done.stdout)

    def test_every_native_format(self):
        for label, formats in FORMATS.items():
            with self.subTest(label):
                source = FROZEN / label
                model = self.pack(source, f"{label}.fmoe")
                self.assertEqual(self.logits_hash(model), self.logits_hash(source))
                shown = json.loads(self.flashmoe("inspect", "--json", model).stdout)
                kept = {(f["name"], "experts" if f["is_expert"] else "dense")
                        for f in shown["formats"]}
                self.assertLessEqual(formats, kept)
                copy = self.dir / "copy"
                shutil.copytree(source, copy)
                eaten = self.pack(copy, f"{label}.eaten.fmoe", "--consume", "--yes")
                self.assertFalse((copy / "model.safetensors").exists())
                shutil.rmtree(copy)
                for file in sorted(model.glob("*.bin")):
                    self.assertTrue(filecmp.cmp(file, eaten / file.name, False), file.name)
                self.check_verify_notices(model, "dense.bin")
                self.check_verify_notices(eaten, sorted(p.name for p in eaten.glob("experts*"))[0])

    def check_experts(self, label, suffixes):
        source = FROZEN / label
        model = self.pack(source, "m.fmoe")
        found, stored = tensors(source), read_packed.read(model)
        for layer in stored["experts"]:
            for e in range(layer["n_experts"]):
                for name in ("gate", "up", "down"):
                    prefix = f"model.layers.{layer['layer']}.mlp.experts.{e}.{name}_proj."
                    packed = read_packed.matrix(model, layer, e, name)
                    for part, suffix in zip(packed, suffixes, strict=True):
                        self.assertEqual(part, found[prefix + suffix][1], prefix + suffix)
        return source, model, found, stored

    def test_int4_stays_bit_for_bit(self):
        self.check_experts(KIMI, ("weight_packed", "weight_scale"))

    def test_fp8_stays_bit_for_bit(self):
        _, model, found, stored = self.check_experts(DEEPSEEK, ("weight", "weight_scale_inv"))
        dense = (model / "dense.bin").read_bytes()
        n = 0
        for t in stored["dense"]["tensors"]:
            if t["format"] != "fp8-b128-f32":
                continue
            rows = 1
            for size in t["shape"][:-1]:
                rows *= size
            placed, _ = read_packed.place(t["format"], rows, t["shape"][-1], t["offset"])
            for (at, size), suffix in zip(placed, ("", "_scale_inv"), strict=True):
                self.assertEqual(dense[at:at + size], found[t["name"] + suffix][1], t["name"])
            n += "kv_b_proj" in t["name"]
        self.assertEqual(n, 2)

    def test_inspect_counts_tensors(self):
        """Heads that are cut out of a tensor are no tensors. What a tensor becomes in two formats
        counts in both."""
        def counts(label):
            shown = json.loads(self.flashmoe("inspect", "--json", FROZEN / label).stdout)
            return {(f["name"], bool(f["is_expert"])): f["n_tensors"] for f in shown["formats"]}

        names = list(tensors(FROZEN / KIMI))
        experts = sum(".mlp.experts." in name for name in names)
        self.assertEqual(counts(KIMI), {("bf16", False): len(names) - experts,
                                        ("int4-g32", True): experts // 3})
        found = counts(DEEPSEEK)
        self.assertEqual(found["f32", False], 2)  # keys' parts of kv_b_proj, turned
        self.assertEqual(found["fp8-g128-f32", False], 2)  # its values' parts, cut inside blocks
        kinds = dtypes(FROZEN / DEEPSEEK)
        n_fp8 = sum(kind == "F8_E4M3" and ".mlp.experts." not in name
                    for name, kind in kinds.items())
        self.assertLessEqual(n_fp8 - 2, found["fp8-b128-f32", False])
        self.assertLessEqual(found["fp8-b128-f32", False], n_fp8)

    def wrap(self, source):
        """Writes the model below Kimi-K2.5's wrapper."""
        folder, kinds = self.dir / "wrapped", dtypes(source)
        folder.mkdir()
        found = {f"language_model.{name}": (kinds[name], *t) for name, t in tensors(source).items()}
        for name in ("vision_tower.patch_embed.proj.weight", "mm_projector.proj.0.weight"):
            found[name] = ("BF16", [2, 2], bytes(8))
        write_tensors(folder / "model.safetensors", found)
        shutil.copy(source / "tokenizer.json", folder)
        config = json.loads((source / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({
            "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
            "text_config": config, "tie_word_embeddings": False,
            "vision_config": {"model_type": "kimi_k25_vision"}}))
        return folder

    def test_wrapper_of_kimi(self):
        source = FROZEN / KIMI
        wrapped = self.wrap(source)
        done = self.flashmoe("inspect", wrapped)
        self.assertIn("2 tensors (vision", done.stdout)
        for prefix in ("vision_tower.", "mm_projector."):
            self.assertIn(f"below '{prefix}' are not used: this version reads text only",
                          done.stderr)
        model = self.pack(wrapped, "wrapped.fmoe")
        expected = self.logits_hash(source)
        self.assertEqual(self.logits_hash(wrapped), expected)
        self.assertEqual(self.logits_hash(model), expected)
        config = json.loads((wrapped / "config.json").read_text())
        del config["text_config"]["model_type"]  # transformers takes it for deepseek_v3
        (wrapped / "config.json").write_text(json.dumps(config))
        self.assertEqual(self.logits_hash(wrapped), expected)


if __name__ == "__main__":
    FLASHMOE, FROZEN = sys.argv[1], pathlib.Path(sys.argv[2]) / "oracle" / "frozen"
    unittest.main(argv=[sys.argv[0]])
