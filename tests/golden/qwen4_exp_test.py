#!/usr/bin/env python3
"""Tests what only qwen4_exp has: a table of n-grams that stays on the disk, and sparse attention.

usage: qwen4_exp_test.py FLASHMOE SWEEP_ENGINE GOLDEN

GOLDEN is the golden of qwen4_exp_text. SWEEP_ENGINE writes the logits of every token.
"""
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import families
import variants

FLASHMOE, ENGINE, GOLDEN = "", "", pathlib.Path()
FROZEN = pathlib.Path(__file__).parents[1] / "oracle/frozen/small_qwen4_exp-q8_0.gguf"
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding."
N_TABLE_BYTES = 240 * 16 * 2


def run(*args, status=0):
    done = subprocess.run([FLASHMOE, *map(str, args)], capture_output=True, encoding="utf-8",
                          errors="replace")
    if done.returncode != status:
        raise AssertionError(f"{args}: status {done.returncode}: {done.stderr}")
    return done


def logits(folder, tokens=None):
    tokens = tokens or families.tokens_of(0)
    done = subprocess.run([ENGINE, folder, *map(str, tokens)], capture_output=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return done.stdout


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = pathlib.Path(scratch.name)

    def copy(self, name="copy"):
        return pathlib.Path(shutil.copytree(GOLDEN, self.top / name))

    def change(self, folder, **fields):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
        return folder


class Table(Case):
    def test_it_stays_on_the_disk(self):
        found = json.loads(run("inspect", GOLDEN, "--json").stdout)
        self.assertEqual(found["table_bytes"], N_TABLE_BYTES)
        config, tensors = variants.read_checkpoint(GOLDEN)
        n_bytes = sum(len(t.data) for t in tensors.values())
        n_weights = sum(len(t.data) // 2 for t in tensors.values() if t.dtype == "BF16")
        self.assertEqual(found["n_parameters"], n_weights)
        self.assertLess(found["dense_bytes"] + found["experts_bytes"], n_bytes * 1.2)
        self.assertIn("tables of n-grams, on disk", run("inspect", GOLDEN).stdout)
        self.assertEqual(config["ple_layer_ids"], [2])

    def test_layouts_have_the_same_bits(self):
        """One tensor or four shards, in one file or in three, with and without the integers."""
        config, tensors = variants.read_checkpoint(GOLDEN)
        expected = logits(GOLDEN)
        shards = [tensors.pop(f"{TABLE}shard_{i}.weight") for i in range(4)]
        tensors[TABLE + "weight"] = variants.Tensor("BF16", [240, 16],
                                                    b"".join(s.data for s in shards))
        whole = self.top / "whole"
        variants.write_checkpoint(GOLDEN, whole, config, tensors, ("sharded", "shuffled"), 1)
        self.assertEqual(logits(whole), expected)
        without = {name: t for name, t in tensors.items() if t.dtype != "I64"}
        variants.write_checkpoint(GOLDEN, self.top / "bare", config, without, (), 1)
        self.assertEqual(logits(self.top / "bare"), expected)

    def test_all_rows_count(self):
        """Another table gives other logits from the second token on, which has a first bigram."""
        config, tensors = variants.read_checkpoint(GOLDEN)
        for i in range(4):
            data = tensors[f"{TABLE}shard_{i}.weight"].data
            tensors[f"{TABLE}shard_{i}.weight"].data = data[32:] + data[:32]
        variants.write_checkpoint(GOLDEN, self.top / "other", config, tensors, (), 1)
        self.assertNotEqual(logits(self.top / "other"), logits(GOLDEN))

    def test_mixed_types_are_refused(self):
        config, tensors = variants.read_checkpoint(GOLDEN)
        name = TABLE + "shard_1.weight"
        tensors[name] = variants.to_f32(tensors[name])
        variants.write_checkpoint(GOLDEN, self.top / "mixed", config, tensors, (), 1)
        self.assertIn(f"'{name}' has type f32, but the shard before it has bf16",
                      run("inspect", self.top / "mixed", status=1).stderr)


def e4m3(code):
    """The value of an FP8 code that is no NaN."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 128 else size


class Fp8(Case):
    """Tables as FP8 checkpoints have them: codes in shards, and one scale for all."""

    def tables(self, scale):
        """A table of random codes, and the same numbers in float32."""
        config, tensors = variants.read_checkpoint(GOLDEN)
        rng = random.Random(1)
        scale = struct.unpack("<f", struct.pack("<f", scale))[0]
        codes, floats = dict(tensors), dict(tensors)
        for i in range(4):
            name = f"{TABLE}shard_{i}.weight"
            raw = bytes(rng.choice([c for c in range(256) if c & 127 != 127])
                        for _ in range(60 * 16))
            codes[name] = variants.Tensor("F8_E4M3", [60, 16], raw)
            floats[name] = variants.Tensor("F32", [60, 16], struct.pack(
                f"<{len(raw)}f", *(e4m3(c) * scale for c in raw)))
        codes[TABLE + "weight_scale"] = variants.Tensor("F32", [1], struct.pack("<f", scale))
        return config, codes, floats

    def write(self, name, config, tensors):
        variants.write_checkpoint(GOLDEN, self.top / name, config, tensors, (), 1)
        return self.top / name

    def test_the_same_bits(self):
        """A product of a code and the scale is rounded once, wherever it is made."""
        for scale in (2.0 ** -9, 0.0001993179321289):
            config, codes, floats = self.tables(scale)
            expected = logits(self.write("floats", config, floats))
            source = self.write("codes", config, codes)
            self.assertEqual(logits(source), expected)
            self.assertNotEqual(expected, logits(GOLDEN))
            found = json.loads(run("inspect", source, "--json").stdout)
            self.assertEqual(found["table_bytes"], N_TABLE_BYTES // 2)
            packed = self.top / f"{scale}.fmoe"
            run("pack", source, packed, "-q", "--experts", "keep")
            run("verify", packed)
            self.assertEqual(logits(packed), expected)
            consumed = self.top / f"{scale}-consumed.fmoe"
            run("pack", source, consumed, "-q", "--experts", "keep", "--consume", "--yes")
            self.assertEqual(logits(consumed), expected)

    def test_scale_in_bf16(self):
        config, codes, floats = self.tables(2.0 ** -9)
        codes[TABLE + "weight_scale"] = variants.Tensor("BF16", [1], b"\x00\x3b")
        self.assertEqual(logits(self.write("codes", config, codes)),
                         logits(self.write("floats", config, floats)))

    def test_refused(self):
        config, codes, _ = self.tables(1.0)
        name = TABLE + "weight_scale"
        scale = codes.pop(name)
        self.assertIn("shard_0.weight' is F8_E4M3 without",
                      run("inspect", self.write("none", config, codes), status=1).stderr)
        for case, tensor, said in (
                ("two", variants.Tensor("F32", [2], bytes(8)), "shard_0.weight' is F8_E4M3"),
                ("kind", variants.Tensor("I32", [1], bytes(4)), f"'{name}' has dtype I32"),
                ("zero", variants.Tensor("F32", [1], bytes(4)), f"'{name}' is 0, which is no"),
                ("nan", variants.Tensor("F32", [1], b"\0\0\xc0\x7f"), f"'{name}' is nan")):
            refused = run("inspect", self.write(case, config, {**codes, name: tensor}), status=1)
            self.assertIn(said, refused.stderr)
        other = "model.layers.1.ple.value_proj.weight"
        shape = codes[other].shape
        codes[other] = variants.Tensor("F8_E4M3", shape, bytes(shape[0] * shape[1]))
        codes[other + "_scale"] = scale
        refused = run("inspect", self.write("matrix", config, {**codes, name: scale}), status=1)
        self.assertIn(f"'{other}' is FP8 with one scale for all of it", refused.stderr)


class Packed(Case):
    def pack(self, source, *args):
        packed = self.top / "packed.fmoe"
        run("pack", source, packed, "-q", "--experts", "keep", *args)
        return packed

    def test_the_same_bits(self):
        packed = self.pack(GOLDEN)
        run("verify", packed)
        self.assertEqual(logits(packed), logits(GOLDEN))
        found = json.loads(run("inspect", packed, "--json").stdout)
        self.assertEqual(found["table_bytes"], N_TABLE_BYTES)
        again = self.top / "again.fmoe"
        run("pack", packed, again, "-q", "--experts", "keep")
        self.assertEqual(logits(again), logits(GOLDEN))

    def test_verify_finds_a_damaged_row(self):
        packed = self.pack(GOLDEN)
        model = json.loads((packed / "model.json").read_text())
        shard = next(t for t in model["dense"]["tensors"] if t["name"].endswith("shard_3.weight"))
        with open(packed / "dense.bin", "r+b") as f:
            f.seek(shard["offset"] + 40)
            f.write(b"\x55\xaa")
        done = run("verify", packed, status=1)
        self.assertIn(TABLE + "shard_3.weight", done.stdout + done.stderr)

    def test_consume(self):
        source = self.copy()
        expected = logits(GOLDEN)
        packed = self.pack(source, "--consume", "--yes")
        self.assertFalse((source / "model.safetensors").exists())
        self.assertEqual(logits(packed), expected)

    def test_dense_formats_leave_the_table(self):
        packed = self.pack(GOLDEN, "--dense", "affine8-g32")
        found = json.loads(run("inspect", packed, "--json").stdout)
        self.assertEqual(found["table_bytes"], N_TABLE_BYTES)
        self.assertNotEqual(logits(packed), logits(GOLDEN))


class Gguf(Case):
    """llama.cpp's converter writes the numbers of the hash, not what they follow from."""

    FACTORS = (25912437101140037, 21043097849633001, 26491075874708125)
    OFFSETS, SIZES = (0, 53, 112, 173), (53, 59, 61, 67)

    def changed(self, old, new):
        """A copy of the file in which one list of numbers is another."""
        data = FROZEN.read_bytes()
        found = struct.pack(f"<{len(old)}Q", *old)
        self.assertEqual(data.count(found), 1)
        path = self.top / "changed.gguf"
        path.write_bytes(data.replace(found, struct.pack(f"<{len(new)}Q", *new)))
        return path

    def test_the_numbers_count(self):
        expected = logits(FROZEN)
        self.assertNotEqual(logits(self.changed(self.FACTORS, (3, 5, 7))), expected)
        self.assertNotEqual(logits(self.changed(self.SIZES, (53, 59, 61, 1))), expected)

    def test_refused(self):
        """No factor overflows a product, and no row lies outside of the table."""
        for old, new, said in (
                (self.FACTORS, (1 << 62, 1, 1), "number 0 of 'multipliers'"),
                (self.FACTORS, (1, 1 << 63, 1), "number 1 of 'multipliers'"),
                (self.SIZES, (53, 59, 0, 67), "number 2 of 'sizes' of the hash of n-grams is 0"),
                (self.SIZES, (53, 59, 61, 1 << 40), "number 3 of 'sizes'"),
                (self.SIZES, (53, 59, 61, 68), "has shape [240, 16], expected [241, 16]"),
                (self.OFFSETS, (0, 53, 112, 1 << 63), "number 3 of 'offsets'"),
                (self.OFFSETS, (0, 53, 112, 174), "has shape [240, 16], expected [241, 16]")):
            self.assertIn(said, run("inspect", self.changed(old, new), status=1).stderr)

    def test_packed(self):
        packed = self.top / "packed.fmoe"
        run("pack", FROZEN, packed, "-q", "--experts", "keep")
        run("verify", packed)
        self.assertEqual(logits(packed), logits(FROZEN))


class Attention(Case):
    def test_few_blocks_are_all_seen(self):
        """As many blocks as there are, or more, are dense attention; fewer are not."""
        n = families.N_TOKENS
        dense = logits(self.change(self.copy("dense"), indexer_budget=1 << 16))
        self.assertEqual(logits(self.change(self.copy("enough"), indexer_budget=n)), dense)
        fewer = logits(self.change(self.copy("fewer"), indexer_budget=n - 4))
        self.assertNotEqual(fewer, dense)
        row = len(dense) // n
        self.assertEqual(fewer[:row * (n - 1)], dense[:row * (n - 1)])

    def test_more_than_a_block_of_attention(self):
        """Rows that see nothing of whole blocks of 256 positions: prompt and token agree."""
        folder = self.change(self.copy(), indexer_budget=8)
        done = [json.loads(run("run", folder, "-p", "x" * 700, "-n", "4", "--greedy", "--json",
                               "--raw", "--prefill-chunk", chunk).stdout) for chunk in (1, 64, 512)]
        self.assertEqual(len({d["logits_hash"] for d in done}), 1)


if __name__ == "__main__":
    FLASHMOE, ENGINE, GOLDEN = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
