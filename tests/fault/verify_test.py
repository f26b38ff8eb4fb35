"""Everything read from a packed model is verified unless --check off is given.

Usage: verify_test.py PROGRAM GOLDEN [TestClass...]

GOLDEN is the folder tests/golden. Bytes of a packed model are moved, swapped and flipped; a run
must end with a line that names the expert or tensor and the file, and print no text.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, GOLDEN = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
READERS = (("--io", "direct"), ("--io", "page"), ("--io", "direct", "--reader", "uring"))


def flashmoe(*args):
    env = dict(os.environ, XDG_CACHE_HOME="/dev/null/none")
    return subprocess.run([PROGRAM, *map(str, args)], env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, encoding="utf-8", timeout=SECONDS)


def run(model, *args):
    return flashmoe("run", model, "--raw", "-p", "The cat sat", "-n", "3", "--greedy", "--json",
                    "-q", "--no-heat", *args)


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 4]))


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="verify-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)

    def done(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def pack(self, src):
        model = self.folder / "model.fmoe"
        self.done(flashmoe("pack", src, model, "-q"))
        return model

    def assert_refused(self, result, pattern):
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        warning = r"(?:flashmoe: warning: [^\n]*; the prefetched expert is dropped\n)?"
        self.assertRegex(result.stderr, rf"\A{warning}flashmoe: [^\n]*{pattern}[^\n]*\n\Z")


class Experts(Case):
    def setUp(self):
        super().setUp()
        self.model = self.pack(GOLDEN / "qwen3_next")
        self.hash = json.loads(self.done(run(self.model)))["logits_hash"]

    def assert_noticed(self, name, layer):
        for reader in READERS:
            with self.subTest(reader):
                self.assert_refused(run(self.model, *reader), rf"expert \d+ of layer {layer} is "
                                    rf"damaged: '[^']*/{name}'[^\n]*checksum")
        answer = json.loads(self.done(run(self.model, "--check", "off")))
        self.assertNotEqual(answer["logits_hash"], self.hash)

    def test_good(self):
        for reader in READERS:
            for check in ("auto", "on", "off"):
                answer = json.loads(self.done(run(self.model, *reader, "--check", check)))
                self.assertEqual(answer["logits_hash"], self.hash)

    def test_records_moved_by_one(self):
        path = self.model / "experts-001.bin"
        layer = json.loads((self.model / "model.json").read_text())["experts"][1]
        data = path.read_bytes()
        path.write_bytes(data[layer["record_bytes"]:] + data[:layer["record_bytes"]])
        self.assert_noticed(path.name, 1)

    def test_two_files_swapped(self):
        a, b = self.model / "experts-000.bin", self.model / "experts-003.bin"
        data = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(data)
        self.assert_noticed(a.name, 0)

    def test_read_ahead(self):
        """A warmed expert is damaged: it is dropped, with a warning if its read began in time."""
        heat = self.folder / "heat"
        self.done(flashmoe("run", self.model, "--raw", "-p", "x", "-n", "3", "-q", "--heat", heat))
        path = self.model / "experts-000.bin"
        size = json.loads((self.model / "model.json").read_text())["experts"][0]["record_bytes"]
        for at in range(0, path.stat().st_size, size):
            flip(path, at + size // 2)
        result = flashmoe("run", self.model, "--raw", "-p", "x", "-n", "3", "-q", "--heat", heat)
        self.assert_refused(result, r"expert \d+ of layer 0 is damaged: '[^']*/experts-000.bin'")


class Pieces(Case):
    def test_every_piece(self):
        """Experts of 6.75 MiB are read in fourteen pieces; damages a byte of each, and of the last
        page."""
        model = self.folder / "wide.fmoe"
        self.done(flashmoe("synth", "coder-next", model, "--layers", "1", "--experts", "2",
                           "--used", "1", "--hidden", "2048", "--expert-width", "2048", "--vocab",
                           "1024", "-q"))
        size = json.loads((model / "model.json").read_text())["experts"][0]["record_bytes"]
        self.assertGreater(size, 6 << 20)
        self.done(run(model))
        path = model / "experts-000.bin"
        for at in (*range(0, size, 1 << 19), size - 1):
            with self.subTest(at):
                for expert in range(2):
                    flip(path, expert * size + at)
                self.assert_refused(run(model, *READERS[at // (1 << 19) % len(READERS)]),
                                    "of layer 0 is damaged")
                for expert in range(2):
                    flip(path, expert * size + at)
        self.done(run(model))


class Dense(Case):
    def test_every_tensor(self):
        """Matrices and vectors, with each family's way of splitting them."""
        for family in ("qwen3_next", "qwen3_5_moe_text"):
            with self.subTest(family):
                model = self.pack(GOLDEN / family)
                tensors = json.loads((model / "model.json").read_text())["dense"]["tensors"]
                # One of each kind: a recurrent layer, an attention layer, and a tensor without a
                # layer.
                chosen = [t for t in tensors if "layers." not in t["name"] or
                          "layers.0." in t["name"] or "layers.3.self_attn." in t["name"]]
                self.assertGreater(len(chosen), 12)
                for t in chosen:
                    flip(model / "dense.bin", t["offset"])
                    self.assert_refused(run(model), rf"tensor '{t['name']}' is damaged: "
                                        r"'[^']*/dense.bin'[^\n]*checksum")
                    flip(model / "dense.bin", t["offset"])
                self.done(run(model))
                flip(model / "dense.bin", chosen[0]["offset"])
                self.done(run(model, "--check", "off"))
                shutil.rmtree(model)

    def test_two_tensors_swapped(self):
        model = self.pack(GOLDEN / "qwen3_moe")
        tensors = json.loads((model / "model.json").read_text())["dense"]["tensors"]
        norms = [t for t in tensors if t["name"].endswith("_layernorm.weight")]
        data = bytearray((model / "dense.bin").read_bytes())
        a, b = (slice(t["offset"], t["offset"] + 2 * t["shape"][0]) for t in norms[:2])
        data[a], data[b] = data[b], data[a]
        (model / "dense.bin").write_bytes(data)
        self.assert_refused(run(model), rf"tensor '{norms[0]['name']}' is damaged")


class Texts(Case):
    def test_listed_files_that_are_gone(self):
        """A missing template or tokenizer must not be replaced by a default."""
        src = self.folder / "src"
        shutil.copytree(GOLDEN / "qwen3_moe", src)
        (src / "chat_template.jinja").write_text("{{ messages[0].content }}")
        model = self.pack(src)
        names = [f["name"] for f in json.loads((model / "model.json").read_text())["files"]]
        used = [n for n in names if n in ("tokenizer.json", "chat_template.jinja",
                                          "generation_config.json", "tokenizer_config.json")]
        self.assertGreaterEqual(len(used), 2)
        for name in used:
            with self.subTest(name):
                text = (model / name).read_bytes()
                (model / name).unlink()
                self.assert_refused(run(model), f"{name}' is missing, but model.json names it")
                (model / name).write_bytes(text)
        self.done(run(model))


class Words(Case):
    def test_inspect(self):
        packed = self.pack(GOLDEN / "qwen3_moe")
        for model, has, words in ((packed, True, "verified when read"),
                                  (GOLDEN / "qwen3_moe", False, "none: damaged weights go ")):
            self.assertRegex(self.done(flashmoe("inspect", model)), f"\nChecksums +[^\n]*{words}")
            facts = json.loads(self.done(flashmoe("inspect", model, "--json")))
            self.assertEqual(facts["has_checksums"], has)

    def test_options(self):
        self.assert_refused(run(GOLDEN / "qwen3_moe", "--check", "on"), "no checksums to verify")
        self.assert_refused(run(GOLDEN / "qwen3_moe", "--check", "yes"), "not 'yes'")
        self.done(run(GOLDEN / "qwen3_moe", "--check", "auto"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
