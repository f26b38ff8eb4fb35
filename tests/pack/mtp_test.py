#!/usr/bin/env python3
"""A block for multi-token prediction in files: packed, left out, damaged.

usage: mtp_test.py FLASHMOE TESTS MODEL DRAFT_BITS

MODEL is the golden qwen3_next with such a block (tests/golden/mtp.py). Whatever becomes of the
block, text and logits stay as they are. DRAFT_BITS is tests/stream/draft_bits.c over stages.
Standard library only.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest


class Mtp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.dir, True)
        cls.packed, cls.without = cls.dir / "with.fmoe", cls.dir / "without.fmoe"
        for source, target in ((model, cls.packed), (root / "golden/qwen3_next", cls.without)):
            subprocess.run([flashmoe, "pack", "--quiet", source, target], check=True)
            subprocess.run([flashmoe, "verify", "--quiet", target], check=True)

    def run_model(self, path, draft, *options):
        done = subprocess.run([flashmoe, "run", path, "-p", "abc", "--temp", "1", "--seed", "5",
                               "-n", "60", "--json", "--no-heat", "--draft", draft, *options],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def expect(self, path, draft, has_drafts, *options):
        plain, found = (self.run_model(path, d, *options) for d in ("off", draft))
        for key in ("text", "tokens", "logits_hash"):
            self.assertEqual(found[key], plain[key])
        self.assertEqual(found["n_drafted"][0] > 0, has_drafts)
        return plain

    def test_directory_and_packed_model(self):
        self.expect(model, "3", True)
        plain = self.expect(self.packed, "3", True)
        self.expect(self.packed, "mtp", True)
        self.expect(self.packed, "lookup", False)
        self.assertEqual(plain["logits_hash"],
                         self.run_model(self.without, "off")["logits_hash"])

    def test_stages_of_a_packed_model(self):
        subprocess.run([draft_bits, self.packed, "mtp"], check=True, cwd=self.dir,
                       env={"CUT_STAGES": "3"}, capture_output=True)

    def test_smallest_budget(self):
        done = subprocess.run([flashmoe, "run", self.packed, "-p", "abc", "--memory", "1M",
                               "--draft", "3"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("in each of 5 layers", done.stderr)  # the block's is one of them

    def test_packed_again(self):
        again = self.dir / "again.fmoe"
        subprocess.run([flashmoe, "pack", "--quiet", self.packed, again], check=True)
        for file in sorted(self.packed.iterdir()):
            if file.name != "model.json":  # which names the source
                self.assertEqual(file.read_bytes(), (again / file.name).read_bytes(), file.name)

    def test_inspect_leaves_it_out(self):
        info = [json.loads(subprocess.run([flashmoe, "inspect", "--json", path], check=True,
                                          capture_output=True, text=True).stdout)
                for path in (self.packed, self.without)]
        for key in ("n_layers", "n_moe_layers", "n_parameters", "dense_bytes", "kv_position_bytes",
                    "experts_bytes"):
            self.assertEqual(info[0].get(key), info[1].get(key), key)

    def test_model_without_a_block(self):
        self.expect(self.without, "3", False)
        done = subprocess.run([flashmoe, "run", self.without, "-p", "abc", "--draft", "mtp"],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(self.without), done.stderr)
        self.assertIn("no block for multi-token prediction", done.stderr)

    def test_damaged_experts_concern_nobody(self):
        damaged = self.dir / "damaged.fmoe"
        shutil.copytree(self.packed, damaged)
        file = damaged / "experts-004.bin"
        file.write_bytes(bytes(b ^ 1 for b in file.read_bytes()))
        self.expect(damaged, "3", False)
        verify = subprocess.run([flashmoe, "verify", "--quiet", damaged], capture_output=True)
        self.assertNotEqual(verify.returncode, 0)

    def test_larger_experts_are_not_used(self):
        mixed = self.dir / "mixed"
        subprocess.run([sys.executable, root / "golden/variants.py", root / "golden/qwen3_next",
                        mixed, "--layout", "mtp"], check=True)
        widen_block(mixed / "model.safetensors")
        self.expect(mixed, "3", False)


def widen_block(path):
    """Stores the experts of the block as F32."""
    sys.path.insert(0, str(root / "golden"))
    import variants

    tensors = {}
    variants.read_file(path, tensors)
    for name, t in tensors.items():
        if name.startswith("mtp.layers.0.mlp.experts."):
            tensors[name] = variants.to_f32(t)
    variants.write_file(path, tensors, None, ())


if __name__ == "__main__":
    flashmoe, root, model = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    draft_bits = sys.argv[4]
    unittest.main(argv=sys.argv[:1])
