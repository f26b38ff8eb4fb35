#!/usr/bin/env python3
"""Packs experts whose rows lie zipped or transposed, and reads them back without the engine.

usage: zipped_test.py FLASHMOE TESTS

The codes and scales of MXFP4 stay bit for bit; gate and up are taken apart. Floats that
transformers stores column by column become rows. `pack --consume` gives the same bytes. Standard
library only.
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


def tensors(folder):
    """Returns name -> (shape, bytes)."""
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {name: (t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def rows_of(shape, data, expert):
    """Cuts one expert's part of a stacked tensor into rows of its second dimension."""
    size = len(data) // shape[0]
    mine, step = data[expert * size:(expert + 1) * size], size // shape[1]
    return [mine[i * step:(i + 1) * step] for i in range(shape[1])]


def columns_of(shape, data, expert):
    """The same for bf16 that is stored column by column: one row for each of the last dimension."""
    rows = rows_of(shape, data, expert)
    return [b"".join(row[2 * c:2 * c + 2] for row in rows) for c in range(shape[2])]


class Zipped(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir, True)

    def pack(self, source, name, *options):
        subprocess.run([flashmoe, "pack", "--quiet", source, self.dir / name, *options],
                       check=True)
        subprocess.run([flashmoe, "verify", "--quiet", self.dir / name], check=True)
        return self.dir / name

    def test_mxfp4_stays_bit_for_bit(self):
        source = root / "oracle" / "frozen" / "gpt_oss_mxfp4"
        model = self.pack(source, "a.fmoe")
        found, stored = tensors(source), read_packed.read(model)
        for layer in stored["experts"]:
            prefix = f"model.layers.{layer['layer']}.mlp.experts."
            for e in range(layer["n_experts"]):
                for part, kind in enumerate(("_blocks", "_scales")):
                    both = rows_of(*found[f"{prefix}gate_up_proj{kind}"], e)
                    down = rows_of(*found[f"{prefix}down_proj{kind}"], e)
                    for name, rows in (("gate", both[0::2]), ("up", both[1::2]), ("down", down)):
                        self.assertEqual(layer[name]["format"], "mxfp4-g32")
                        packed = read_packed.matrix(model, layer, e, name)[part]
                        self.assertEqual(packed, b"".join(rows), f"{prefix}{e} {name}{kind}")

    def test_floats_are_transposed(self):
        source = root / "golden" / "gpt_oss_odd"  # rows that are no multiple of sixteen
        model = self.pack(source, "b.fmoe", "--experts", "keep")
        found, stored = tensors(source), read_packed.read(model)
        layer = stored["experts"][1]
        for e in (0, layer["n_experts"] - 1):
            both = columns_of(*found["model.layers.1.mlp.experts.gate_up_proj"], e)
            down = columns_of(*found["model.layers.1.mlp.experts.down_proj"], e)
            for name, rows in (("gate", both[0::2]), ("up", both[1::2]), ("down", down)):
                values = read_packed.matrix(model, layer, e, name)
                raw = b"".join(struct.pack("<f", x)[2:] for x in values)
                self.assertEqual(raw, b"".join(rows), f"expert {e} {name}")

    def test_consuming_gives_the_same_bytes(self):
        source = root / "oracle" / "frozen" / "gpt_oss_mxfp4"
        whole = self.pack(source, "whole.fmoe")
        copy = self.dir / "copy"
        shutil.copytree(source, copy)
        eaten = self.pack(copy, "eaten.fmoe", "--consume", "--yes")
        for file in sorted(whole.glob("*.bin")):
            self.assertTrue(filecmp.cmp(file, eaten / file.name, False), file.name)
        self.assertFalse((copy / "model.safetensors").exists())


if __name__ == "__main__":
    flashmoe, root = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0]])
