#!/usr/bin/env python3
"""Tests packing while downloading: the bytes are those of `pack` with all files there, few source
files are on the disk at a time, and a killed process continues.

Usage: pack_test.py PROGRAM TESTS [TestClass...]
"""
import hashlib
import json
import shutil
import subprocess
import time

from pull_case import PROGRAM, TESTS, Case, main

GOLDEN = TESTS / "golden" / "qwen3_next"


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


class Packing(Case):
    SHAPE = ["tiny-next", "--form", "safetensors", "--split-size", "1M", "--layers", "6",
             "--experts", "8", "--expert-width", "256"]

    def setUp(self):
        super().setUp()
        self.source = self.folder / "name"  # as in the hub: the pack says what it was made of
        self.synth(self.source, *self.SHAPE)
        self.add("org/name", self.source)
        self.expected = self.folder / "expected.fmoe"
        self.assertEqual(self.flashmoe("pack", self.source, self.expected).returncode, 0)
        self.packed = self.models / "org/name.fmoe"
        self.hidden = self.models / "org/.pull-name.fmoe/name"

    def synth(self, folder, shape, *args):
        done = self.flashmoe("synth", shape, folder, *args)
        self.assertEqual(done.returncode, 0, done.stderr)

    def add(self, repo, folder):
        self.hub.add(repo, {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()})

    def assert_packed(self):
        self.assertEqual(digests(self.packed), digests(self.expected))
        self.assertEqual([p.name for p in (self.models / "org").iterdir()], ["name.fmoe"])
        self.assertEqual(self.flashmoe("verify", "org/name").returncode, 0)
        self.assertEqual([(m["name"], m["kind"], m["state"]) for m in self.list()],
                         [("org/name.fmoe", "packed", "complete")])

    def weights_here(self):
        """Bytes that the source files take on the disk."""
        return sum(p.stat().st_blocks * 512 for p in self.hidden.glob("**/*.safetensors*"))

    def kill_at(self, at_bytes):
        before = self.hub.sent_bytes
        process = subprocess.Popen([PROGRAM, "pull", "org/name", "--pack"],
                                   env=self.environment(), stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None and self.hub.sent_bytes - before < at_bytes:
            time.sleep(0.001)
        process.kill()
        return process.wait()

    def kill(self, times):
        total = sum(p.stat().st_size for p in self.source.glob("*.safetensors"))
        self.hub.bytes_per_second = 3_000_000
        n_killed = sum(self.kill_at(100_000 + (i * 37 % 10) * total // times // 10) == -9
                       for i in range(times))
        self.assertGreater(n_killed, times // 2)
        self.assertFalse(self.packed.exists())
        self.assertEqual({m["state"] for m in self.list()}, {"packing"})
        self.assert_fails(self.flashmoe("inspect", "org/name"), "flashmoe pull org/name --pack")
        self.hub.bytes_per_second = None
        self.pull("org/name", "--pack")
        self.assert_packed()


class Pack(Packing):
    def test_same_bytes(self):
        n_bytes = sum(p.stat().st_size for p in self.source.glob("*.safetensors"))
        most = [0]

        def look(request):
            if request.server.role == "files":
                most[0] = max(most[0], self.weights_here())
            return False
        self.hub.faults.append(look)
        done = self.pull("org/name", "--pack")
        self.assertIn("verified", done.stderr)
        self.assert_packed()
        self.assertGreater(len(list(self.source.glob("*.safetensors"))), 8)
        self.assertLess(most[0], n_bytes / 2)
        # Every file is fetched once; its header a second time.
        self.assertLess(self.hub.sent_bytes, 1.2 * n_bytes)
        self.assertIn("nothing was downloaded", self.pull("org/name", "--pack").stderr)
        done = self.flashmoe("run", "org/name", "-p", "a", "-n", "1", "--raw")
        self.assertIn(done.returncode, (0, 1), done.stderr)  # a synthetic model has no tokenizer

    def test_a_pack_that_is_there(self):
        """It is reported as a new one is, and is not taken for another model's."""
        there = self.folder / "there.fmoe"
        first = json.loads(self.pull("org/name", "--pack", "--to", there, "--json").stdout)
        again = json.loads(self.pull("org/name", "--pack", "--to", there, "--json").stdout)
        self.assertEqual(again.keys(), first.keys())
        self.assertEqual(again["packed"], str(there))
        self.assertEqual(self.pull("org/name", "--pack", "--to", there, "-q").stderr, "")
        done = self.pull("org/name", "--pack", "--to", there, "--experts", "q8_0")
        self.assertIn("keeps the formats", done.stderr)
        self.add("org/other", self.source)
        self.assert_fails(self.pull("org/other", "--pack", "--to", there, status=2), str(there),
                          "org/other", status=2)

    def test_formats_need_pack(self):
        self.assert_fails(self.pull("org/name", "--experts", "keep", status=2), "--experts",
                          "--pack", status=2)

    def test_killed(self):
        self.kill(3)


class PackFaults(Packing):
    def test_one_file(self):
        """A checkpoint of one file, with its tokenizer."""
        self.add("org/tiny", GOLDEN)
        there = self.folder / "there.fmoe"
        self.pull("org/tiny", "--pack", "--to", there, "--experts", "keep")
        self.assertEqual(self.flashmoe("verify", there).returncode, 0)
        self.assertFalse(list(self.folder.glob(".pull-*")))
        hashes = [subprocess.run([PROGRAM, "run", model, "-p", "hello", "-n", "8", "--greedy",
                                  "--json"], env=self.environment(), stdin=subprocess.DEVNULL,
                                 capture_output=True, check=True).stdout
                  .split(b'"logits_hash": "')[1][:16] for model in (GOLDEN, there)]
        self.assertEqual(*hashes)

    def test_a_changed_model(self):
        """Other content than that which was begun with is not continued with."""
        self.hub.bytes_per_second = 2_000_000
        self.kill_at(4_000_000)
        self.hub.bytes_per_second = None
        shard = sorted(self.source.glob("*.safetensors"))[-1]
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        self.hub.add("org/name", {shard.name: bytes(data)})
        done = self.assert_fails(self.pull("org/name", "--pack", status=2), "begun with",
                                 f"'{self.packed}.partial'", f"'{self.hidden}'", status=2)
        self.assertNotIn("--restart", done.stderr)  # pull has none
        self.assertEqual(self.flashmoe("rm", "org/name.fmoe").returncode, 0)
        self.assertFalse((self.models / "org").exists())
        self.pull("org/name", "--pack")

    def test_no_version(self):
        """A file of which neither digest nor ETag is known may be another one now."""
        self.synth(self.folder / "m.gguf", "tiny-qwen3", "--form", "gguf")
        data = bytearray((self.folder / "m.gguf").read_bytes())
        self.hub.plain_files["/m.gguf"] = bytes(data)
        self.hub.has_etags = False
        there = self.folder / "there.fmoe"
        pull = [f"{self.hub.files_url}/m.gguf", "--pack", "--to", there]
        broken = lambda r: not r.headers["Range"].startswith("bytes=0-0") and \
            (self.folder / "there.fmoe.partial/plan.json").exists() and not r.send(500)
        self.hub.faults.append(broken)
        self.pull(*pull, "--retries", "0", status=1)
        self.hub.faults.clear()
        data[-1] ^= 1
        self.hub.plain_files["/m.gguf"] = bytes(data)
        partial, source = f"{there}.partial", self.folder / ".pull-there.fmoe/m.gguf"
        self.assert_fails(self.pull(*pull, status=2), "no version", partial, str(source), status=2)
        shutil.rmtree(partial)
        shutil.rmtree(source)
        self.pull(*pull)
        self.assertEqual(self.flashmoe("verify", there).returncode, 0)

    def test_no_ranges(self):
        self.hub.has_ranges = False
        self.assert_fails(self.pull("org/name", "--pack", "--retries", "0", status=1), "ranges",
                          "without --pack")

    def test_wrong_bytes(self):
        def wrong(request):
            data = self.hub.by_digest.get(request.name[1:])
            if request.server.role != "files" or request.headers.get("Range", "").endswith("-7"):
                return False
            spoiled = bytearray(data)
            spoiled[-1] ^= 1
            request.send_file(bytes(spoiled))
            return True
        self.hub.faults.append(wrong)
        self.assert_fails(self.pull("org/name", "--pack", status=1), "wrong bytes")
        self.assertFalse(self.packed.exists())
        self.hub.faults.clear()
        self.pull("org/name", "--pack")
        self.assert_packed()

    def test_cut_connections(self):
        self.hub.cut_after = 1_500_000
        self.pull("org/name", "--pack")
        self.assert_packed()

    def test_damaged_result(self):
        """A finished layer that was damaged since is packed again, from a file fetched again."""
        self.hub.bytes_per_second = 2_000_000
        layer = self.models / "org/name.fmoe.partial/experts-000.bin"
        process = subprocess.Popen([PROGRAM, "pull", "org/name", "--pack"],
                                   env=self.environment(), stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while not layer.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        process.kill()
        process.wait()
        with layer.open("r+b") as file:
            file.write(b"damage")
        self.hub.bytes_per_second = None
        self.pull("org/name", "--pack")
        self.assert_packed()


class PackKilled40(Packing):
    def test_killed(self):
        self.kill(40)


class PackGguf(Packing):
    def test_split(self):
        folder = self.folder / "gguf"
        folder.mkdir()
        self.synth(folder / "name.gguf", "tiny-qwen3", "--form", "gguf", "--split-size", "1M")
        self.add("org/gguf", folder)
        there = self.folder / "there.fmoe"
        self.pull("org/gguf", "--pack", "--to", there)
        expected = self.folder / "gguf.fmoe"
        first = min(folder.iterdir())
        self.assertEqual(self.flashmoe("pack", first, expected).returncode, 0)
        self.assertEqual(digests(there), digests(expected))

    def test_one_of_two(self):
        """The pack belongs to the GGUF that it was made of, and to its name."""
        for name in ("Q4_K_M", "Q8_0"):
            self.synth(self.folder / f"m-{name}.gguf", "tiny-qwen3", "--form", "gguf")
            self.hub.add("org/m", {f"m-{name}.gguf":
                                   (self.folder / f"m-{name}.gguf").read_bytes()})
        there = self.models / "org/m.fmoe"
        self.pull("org/m:Q4_K_M", "--pack")
        self.assertIn("nothing was downloaded", self.pull("org/m:q4_k_m", "--pack").stderr)
        self.assert_fails(self.pull("org/m:Q8_0", "--pack", status=2), str(there), "--to",
                          status=2)
        for name in ("org/m:Q4_K_M", "org/m:m-Q4_K_M.gguf", "org/m"):
            self.assertEqual(self.flashmoe("inspect", name).returncode, 0, name)
        self.assert_fails(self.flashmoe("inspect", "org/m:Q8_0"), "no model that was pulled")
        self.assert_fails(self.flashmoe("rm", "org/m:Q8_0"), "org/m:Q8_0", status=2)
        self.assertEqual(self.flashmoe("rm", "org/m:Q4_K_M").returncode, 0)
        self.assertFalse((self.models / "org").exists())


if __name__ == "__main__":
    main()
