#!/usr/bin/env python3
"""layouts_test.py FLASHMOE: a checkpoint gives the same logits, bit for bit, in every layout:
sharded, stacked experts, the multimodal wrapper, odd offsets, any tensor order, a wider dtype, a
tied head. variants.py writes each layout from a golden checkpoint."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = ""
FAMILIES = ["qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "glm4_moe", "minimax_m2", "mixtral",
            "olmoe", "qwen2_moe"]
EQUIVALENT = [
    ["sharded"],
    ["stacked"],
    ["stacked-weight"],
    ["odd"],
    ["shuffled"],
    ["f32"],
    ["sharded", "stacked", "odd", "shuffled"],
]


def run(model):
    command = [PROGRAM, "run", str(model), "--raw", "-p", "The cat sat on the mat.", "-n", "6"]
    done = subprocess.run([*command, "--greedy", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{model}: {done.stderr}")
    return json.loads(done.stdout)["logits_hash"]


class Layouts(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.n = 0

    def variant(self, family, layouts, *more):
        self.n += 1
        folder = pathlib.Path(self.temp.name) / str(self.n)
        flags = [flag for layout in layouts for flag in ("--layout", layout)]
        script = [sys.executable, str(HERE / "variants.py"), str(HERE / family), str(folder)]
        subprocess.run([*script, *flags, *more], check=True, stdout=subprocess.DEVNULL)
        return folder

    def test_equivalent_layouts(self):
        for family in FAMILIES:
            expected = run(HERE / family)
            for layouts in EQUIVALENT:
                with self.subTest(family=family, layouts=layouts):
                    self.assertEqual(run(self.variant(family, layouts)), expected)

    def test_multimodal_wrapper(self):
        expected = run(HERE / "qwen3_5_moe_text")
        for layouts in (["multimodal"], ["multimodal", "sharded", "stacked-weight"]):
            with self.subTest(layouts=layouts):
                self.assertEqual(run(self.variant("qwen3_5_moe_text", layouts)), expected)

    def test_tied_head(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                twin = pathlib.Path(self.temp.name) / f"{family}-twin"
                tied = self.variant(family, ["tied"], "--untied-twin", str(twin))
                self.assertEqual(run(tied), run(twin))
                self.assertNotEqual(run(tied), run(HERE / family))

    def test_half_precision(self):
        half = self.variant("qwen3_next", ["f16"])
        self.assertEqual(run(half), run(self.variant("qwen3_next", ["f16", "f32"])))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
