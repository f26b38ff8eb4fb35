"""Packing a part of a model: pack --layers.

Usage: layers_test.py PROGRAM PRELOAD TESTS [--kills N] [TestClass...]
"""
import json
import random
import shutil

from pack_case import N_KILLS, TESTS, Case, digest, flashmoe, logits_hash, main, shard_by_layer

NANO = TESTS.parent / "models" / "nano.fmoe"


def experts_of(folder):
    return sorted(path.name for path in folder.glob("experts-*.bin"))


def description(folder):
    """model.json without what a part and a copy may say differently."""
    text = json.loads((folder / "model.json").read_text())
    for entry in text["experts"]:
        entry.pop("elsewhere", None)
    del text["self"], text["provenance"]
    return text


class Layers(Case):
    """The golden has four layers with experts."""

    def setUp(self):
        super().setUp()
        self.whole = self.folder / "whole.fmoe"
        self.pack(self.golden, self.whole)

    def assert_is_part(self, part, layers):
        """Checks that the part has the bytes of the whole pack, and the checksums of all of it."""
        names = [f"experts-{layer:03}.bin" for layer in layers]
        self.assertEqual(experts_of(part), names)
        whole, mine = digest(self.whole), digest(part)
        others = {name for name in whole if name.startswith("experts-")} - set(names)
        self.assertEqual(set(mine), set(whole) - others)
        for name in set(mine) - {"model.json"}:
            self.assertEqual(mine[name], whole[name], name)
        self.assertEqual(description(part), description(self.whole))
        done = flashmoe("verify", part)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("part of a model", done.stdout)

    def test_from_a_checkpoint(self):
        for text, layers in (("0-1", [0, 1]), ("2-3", [2, 3]), ("3,0", [0, 3]), ("1,1-2", [1, 2])):
            with self.subTest(text):
                dst = self.folder / f"part-{text}.fmoe"
                done = self.pack(self.golden, dst, "--layers", text)
                self.assertIn("it has the experts of 2 layers, and other machines need those of "
                              "the other 2", done.stderr)
                self.assert_is_part(dst, layers)

    def test_all_layers_are_the_whole_model(self):
        self.pack(self.golden, self.dst, "--layers", "0-3")
        self.assertEqual(digest(self.dst), digest(self.whole))

    def test_from_a_packed_model(self):
        """The other layers are not read: only what is needed is copied, also from a part."""
        half, quarter = self.folder / "half.fmoe", self.folder / "quarter.fmoe"
        (self.whole / "experts-000.bin").rename(self.folder / "kept")
        done = flashmoe("pack", self.whole, half, "--layers", "1-2")
        self.assert_fails(done, "'experts-000.bin' is missing")  # nothing says that it may be
        (self.folder / "kept").rename(self.whole / "experts-000.bin")
        self.pack(self.whole, half, "--layers", "1-2")
        self.assert_is_part(half, [1, 2])
        self.pack(half, quarter, "--layers", "2")
        self.assert_is_part(quarter, [2])
        done = flashmoe("pack", half, self.dst, "--layers", "2-3")
        self.assert_fails(done, "'experts-003.bin' is missing", "is part of a model", "--layers")
        done = flashmoe("pack", half, self.dst, "--layers", "2", "--experts", "affine8-g64")
        self.assert_fails(done, "is missing", "--experts keep")
        self.assertFalse(self.partial.exists())

    def test_from_gguf(self):
        gguf, other = self.folder / "m.gguf", self.folder / "other.fmoe"
        done = flashmoe("synth", "tiny-qwen3", gguf, "--form", "gguf")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.pack(gguf, other)
        self.whole = other
        self.pack(gguf, self.dst, "--layers", "1")
        self.assert_is_part(self.dst, [1])

    def test_block_that_drafts(self):
        """It belongs to the head, which the rank of layer 0 has."""
        for text, has_it in (("0-3", True), ("4-7", False)):
            dst = self.folder / f"nano-{text}.fmoe"
            self.pack(NANO, dst, "--layers", text)
            self.assertEqual((dst / "experts-008.bin").exists(), has_it)
            self.assertEqual(len(experts_of(dst)), 4 + has_it)

    def test_what_is_said_of_a_part(self):
        self.pack(self.golden, self.dst, "--layers", "0,2-3")
        shown = flashmoe("inspect", self.dst)
        self.assertRegex(shown.stdout, r"(?m)^Part +the experts of layers 0, 2-3; ")
        self.assertEqual(json.loads(flashmoe("inspect", self.dst, "--json").stdout)["layers_here"],
                         "0, 2-3")
        self.assertIsNone(
            json.loads(flashmoe("inspect", self.whole, "--json").stdout)["layers_here"])
        plan = flashmoe("plan", self.dst, "--quiet")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertRegex(plan.stdout, r"(?m)^part +only the experts of layers 0, 2-3 are here")
        found = json.loads(flashmoe("verify", self.dst, "--json").stdout)
        self.assertEqual((found["layers_here"], found["n_experts"]), ("0, 2-3", 3 * 16))

    def test_run_needs_the_other_layers(self):
        self.pack(self.golden, self.dst, "--layers", "0-2")
        done = flashmoe("run", self.dst, "--raw", "-p", "a", "-n", "1")
        self.assert_fails(done, "'experts-003.bin' is missing", "part of a model", "layers 0-2",
                          "Copy the file")
        shutil.copy(self.whole / "experts-003.bin", self.dst)
        self.assertEqual(logits_hash(self.dst), logits_hash(self.whole))
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)

    def test_damage(self):
        """Files that the part should have are missed; a damaged one is found."""
        self.pack(self.golden, self.dst, "--layers", "1-2")
        path = self.dst / "experts-002.bin"
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)
        done = flashmoe("verify", self.dst)
        self.assertEqual(done.returncode, 1)
        self.assertIn("expert 0 of layer 2", done.stdout)
        path.unlink()
        done = flashmoe("verify", self.dst)
        self.assert_fails(done, "'experts-002.bin' is missing")

    def test_refusals(self):
        for text, words in (("4", ["has the layers 0 to 3"]), ("2-1", ["ends before it begins"]),
                            ("x", ["cannot be read"]), ("1-", ["cannot be read"]),
                            ("-1", ["cannot be read"]), ("1,", ["cannot be read"]),
                            ("0-5000", ["no model has"]), ("1;2", ["cannot be read"])):
            with self.subTest(text):
                done = flashmoe("pack", self.golden, self.dst, f"--layers={text}")
                self.assert_fails(done, "layers", *words)
                self.assertFalse(self.dst.exists() or self.partial.exists())


class LayersResumed(Case):
    def setUp(self):
        super().setUp()
        self.reference = self.folder / "reference.fmoe"
        self.pack(self.golden, self.reference, "--layers", "1-2")

    def test_killed(self):
        n_calls = self.count_calls(self.golden, self.folder / "c.fmoe", "--layers", "1-2")
        step = max(1, n_calls // N_KILLS)
        n_killed = 0
        for at in range(1 + random.Random(7).randrange(step), n_calls + 1, step):
            with self.subTest(at=at):
                done = flashmoe("pack", self.golden, self.dst, "--layers", "1-2", kind="kill",
                                at=at)
                n_killed += done.returncode == -9
                done = flashmoe("pack", self.golden, self.dst, "--layers", "1-2")
                if done.returncode != 0:
                    self.assertIn("exists already", done.stderr)
                self.assertEqual(digest(self.dst), digest(self.reference))
                shutil.rmtree(self.dst)
        self.assertGreater(n_killed, N_KILLS // 2)

    def test_checksums_are_not_made_twice(self):
        """What was done for layers that are not written is kept, too."""
        done = flashmoe("pack", self.golden, self.dst, "--layers", "2-3", kind="kill",
                        on="rename:experts-002.bin.tmp")
        self.assertEqual(done.returncode, -9)
        self.assertTrue((self.partial / "experts-001.bin.sums").exists())
        self.assertFalse((self.partial / "experts-001.bin").exists())
        before = (self.partial / "experts-001.bin.sums").stat().st_mtime_ns
        done = flashmoe("pack", self.golden, self.dst, "--layers", "2-3", kind="kill",
                        on="rename:experts-003.bin.tmp")
        self.assertEqual(done.returncode, -9)
        self.assertEqual((self.partial / "experts-001.bin.sums").stat().st_mtime_ns, before)
        self.pack(self.golden, self.dst, "--layers", "2-3")
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)

    def test_other_layers(self):
        done = flashmoe("pack", self.golden, self.dst, "--layers", "1-2", kind="kill",
                        on="rename:experts-001.bin.tmp")
        self.assertEqual(done.returncode, -9)
        for args in ([], ["--layers", "1-3"]):
            done = flashmoe("pack", self.golden, self.dst, *args)
            self.assert_fails(done, 'was begun with --layers "1-2"')
        self.pack(self.golden, self.dst, "--layers", "2,1")
        self.assertEqual(digest(self.dst), digest(self.reference))

    def test_consume(self):
        """Source files with experts of other layers stay."""
        src = self.folder / "b" / "src"
        shard_by_layer(self.golden, src)
        done = self.pack(src, self.dst, "--layers", "1-2", "--consume", "--yes")
        self.assertIn("3 source files removed", done.stderr)
        self.assertIn("was kept: layers that are not packed may need it", done.stderr)
        self.assertEqual(sorted(path.name for path in src.glob("*.safetensors")),
                         ["model-0.safetensors", "model-3.safetensors"])
        mine, whole = digest(self.dst), digest(self.reference)
        self.assertEqual({n: mine[n] for n in mine if n.endswith(".bin")},
                         {n: whole[n] for n in whole if n.endswith(".bin")})


if __name__ == "__main__":
    main()
