"""Packs models, interrupts packing, damages files, and examines the result.

Usage: pack_test.py PROGRAM PRELOAD TESTS [--kills N] [TestClass...]

PRELOAD is the library built from preload_writes.c, TESTS the folder tests/. With --kills N, the
tests Kill, Consume and Restart kill about N packings instead of a handful:

    tests/pack/pack_test.py build/flashmoe build/tests/pack/libpack_preload.so tests \
        --kills 50 Kill
"""
import fcntl
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys

import read_packed
from pack_case import (FAMILIES, N_KILLS, NARROW, PRELOAD, PROGRAM, TESTS, Case, Held, add_tensor,
                       digest, flashmoe, logits_hash, main)


class Formats(Case):
    def formats(self, model):
        found = json.loads(flashmoe("inspect", model, "--json").stdout)["formats"]
        return {(f["name"], f["is_expert"]) for f in found}

    def test_kept_bit_for_bit(self):
        for family in FAMILIES + NARROW:
            with self.subTest(family):
                src = TESTS / "golden" / family
                self.pack(src, self.folder / family, "--experts", "keep")
                self.assertEqual(logits_hash(self.folder / family, "--check", "on"),
                                 logits_hash(src))

    def test_default(self):
        """bf16 experts become affine4-g64. Quantised ones are kept, also when packed again."""
        for family in FAMILIES:
            with self.subTest(family):
                self.pack(TESTS / "golden" / family, self.folder / family)
                self.assertEqual(self.formats(self.folder / family),
                                 {("bf16", False), ("affine4-g64", True)})
                again = self.folder / (family + ".again")
                self.pack(self.folder / family, again)
                self.assertEqual(logits_hash(again, "--check", "on"),
                                 logits_hash(self.folder / family))
                first, second = digest(self.folder / family), digest(again)
                del first["model.json"], second["model.json"]
                self.assertEqual(first, second)

    def test_threads_change_nothing(self):
        packed = []
        for threads in (1, 2, 7):
            dst = self.folder / f"t{threads}"
            self.pack(self.golden, dst, "--threads", threads, "--dense", "affine8-g32")
            packed.append(digest(dst))
        self.assertEqual(packed[0], packed[1])
        self.assertEqual(packed[0], packed[2])

    def test_every_option(self):
        self.pack(self.golden, self.dst, "--experts", "q8_0", "--dense", "affine4-g32", "--embed",
                  "affine6-g64", "--head", "f16")
        self.assertEqual(self.formats(self.dst), {
            ("q8_0", True), ("affine4-g32", False), ("affine8-g32", False),
            ("affine6-g64", False), ("f16", False), ("bf16", False)})
        logits_hash(self.dst, "--check", "on")

    def test_lossy_twice(self):
        self.pack(self.golden, self.dst)
        again = self.folder / "again"
        done = self.pack(self.dst, again, "--experts", "affine2-g64")
        self.assertIn("loses precision a second time", done.stderr)
        self.assertIn(("affine2-g64", True), self.formats(again))

    def test_narrow_matrices_are_kept(self):
        done = self.pack(self.golden, self.dst, "--experts", "affine4-g128")
        self.assertIn("matrices keep their format", done.stderr)
        self.assertEqual(self.formats(self.dst), {("bf16", False), ("bf16", True),
                                                  ("affine4-g128", True)})
        logits_hash(self.dst, "--check", "on")

    def test_unknown(self):
        for name, words in (("affine7-g64", "there is no such format"),
                            ("q4_k", "this version reads that format only")):
            done = flashmoe("pack", self.golden, self.dst, "--experts", name)
            self.assert_fails(done, name, words, "affine4-g64", "keep")
        self.assertEqual(os.listdir(self.folder), [])

    def test_converted_models(self):
        """Files written by mlx-lm and llama.cpp: the pack gives the same logits, bit for bit."""
        frozen = TESTS / "oracle" / "frozen"
        models = sorted([*frozen.glob("**/config.json"), *frozen.glob("**/*.gguf")])
        for path in models:
            model = path.parent if path.name == "config.json" else path
            with self.subTest(str(model)):
                dst = self.folder / model.name
                self.pack(model, dst, "--experts", "keep")
                self.assertEqual(logits_hash(dst, "--check", "on"), logits_hash(model))
                shutil.rmtree(dst)


class Layout(Case):
    """The pack matches docs/PACKED.md."""

    def test_by_the_document(self):
        self.pack(self.golden, self.dst, "--dense", "affine8-g32", "--head", "q8_0")
        model = read_packed.read(self.dst)
        self.assertEqual(model["provenance"],
                         {"source": "qwen3_next", "kind": "Hugging Face directory"})

    def test_an_expert(self):
        sys.path.insert(0, str(TESTS / "golden"))
        import variants
        _, tensors = variants.read_checkpoint(self.golden)
        name = "model.layers.1.mlp.experts.5.up_proj.weight"
        for args in (["--experts", "keep"], []):
            dst = self.folder / f"m{len(args)}"
            self.pack(self.golden, dst, *args)
            layer = read_packed.read(dst)["experts"][1]
            got = read_packed.matrix(dst, layer, 5, "up")
            want = variants.to_f32(tensors[name])
            want = memoryview(getattr(want, "data", want)).cast("f").tolist()
            self.assertEqual(len(got), len(want))
            for i in range(0, len(want), 64):
                step = 0 if args else (max(want[i:i + 64]) - min(want[i:i + 64])) / 15
                for a, b in zip(got[i:i + 64], want[i:i + 64]):
                    self.assertLessEqual(abs(a - b), step)


class Verify(Case):
    def setUp(self):
        super().setUp()
        self.pack(self.golden, self.dst)

    def verify(self):
        return flashmoe("verify", self.dst, "--json")

    def test_good(self):
        done = self.verify()
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["n_bad"], report["is_good"], report["n_experts"]), (0, True, 64))
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)

    def test_a_flipped_bit(self):
        """Flips a bit anywhere. `verify` and a run with --check on name it, unless the run does not
        read it."""
        model = json.loads((self.dst / "model.json").read_text())
        record = model["experts"][0]["record_bytes"]
        tensors = model["dense"]["tensors"]
        good, rng, n_refused = logits_hash(self.dst), random.Random(7), 0
        for path in sorted(self.dst.iterdir()):
            size = path.stat().st_size
            for at in {0, size - 1, *(rng.randrange(size) for _ in range(6))}:
                with self.subTest(path.name, at=at):
                    bit = 1 << rng.randrange(8)
                    self.flip(path, at, bit)
                    done = self.verify()
                    run = flashmoe("run", self.dst, "--check", "on", "--raw", "-p",
                                   "The cat sat on the mat.", "-n", "6", "--greedy", "--json")
                    self.flip(path, at, bit)
                    self.assertEqual(done.returncode, 1)
                    if path.name == "model.json":
                        self.assertIn("model.json: the checksum", done.stderr)
                        what = "model.json"
                    else:
                        bad = json.loads(done.stdout)["bad"]
                        self.assertEqual(len(bad), 1)
                        what = bad[0]["what"]
                    if path.name.startswith("experts-"):
                        self.assertEqual(what, f"expert {at // record} of layer "
                                               f"{int(path.stem[8:])}")
                    elif path.name == "dense.bin":
                        name = [t["name"] for t in tensors if t["offset"] <= at][-1]
                        self.assertEqual(what, f"tensor '{name}'")
                    if path.name.startswith("experts-") and run.returncode == 0:
                        self.assertEqual(json.loads(run.stdout)["logits_hash"], good)
                        continue
                    self.assertEqual(run.returncode, 1)
                    self.assertIn(what, run.stderr)
                    n_refused += 1
        self.assertGreater(n_refused, 20)

    def test_all_are_listed(self):
        record = json.loads((self.dst / "model.json").read_text())["experts"][0]["record_bytes"]
        for layer, expert in ((3, 15), (0, 2), (0, 0)):
            self.flip(self.dst / f"experts-{layer:03}.bin", expert * record + 77)
        done = flashmoe("verify", self.dst)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([line.split(" does")[0] for line in done.stdout.splitlines()[:3]],
                         ["BAD  expert 0 of layer 0", "BAD  expert 2 of layer 0",
                          "BAD  expert 15 of layer 3"])
        self.assertIn("3 bad", done.stdout)

    def test_sizes_and_names(self):
        path = self.dst / "experts-002.bin"
        with open(path, "ab") as f:
            f.write(b"x")
        self.assert_fails(self.verify(), "experts-002.bin", "bytes, but model.json says")
        path.unlink()
        self.assert_fails(self.verify(), "experts-002.bin", "is missing")

    def test_other_files(self):
        (self.dst / "notes.txt").write_text("mine")
        report = json.loads(self.verify().stdout)
        self.assertEqual((report["extra"], report["n_bad"]), (["notes.txt"], 0))
        (self.dst / "tokenizer.json").unlink()
        done = self.verify()
        self.assertEqual(json.loads(done.stdout)["bad"][0]["what"], "tokenizer.json")
        self.assertEqual(done.returncode, 1)
        self.assert_fails(flashmoe("run", self.dst, "--check", "on", "-p", "x"), "tokenizer.json")

    def test_not_packed(self):
        self.assert_fails(flashmoe("verify", self.golden), "has no checksums", status=2)
        self.assert_fails(flashmoe("verify", self.folder / "none"), "No such file")


class Refusals(Case):
    def break_off(self, *args):
        """Leaves a DST.partial with some finished files."""
        done = flashmoe("pack", self.golden, self.dst, *args, kind="kill", at=25)
        self.assertEqual(done.returncode, -9)
        self.assertTrue(self.partial.exists())

    def test_destination_exists(self):
        self.dst.mkdir()
        self.assert_fails(flashmoe("pack", self.golden, self.dst), "exists already")

    def test_no_such_folder(self):
        self.assert_fails(flashmoe("pack", self.golden, self.folder / "no" / "m.fmoe"), "no")

    def test_other_formats(self):
        self.break_off("--experts", "keep")
        before = digest(self.partial)
        self.assert_fails(flashmoe("pack", self.golden, self.dst), "--experts", '"keep"',
                          "--restart")
        self.assertEqual(digest(self.partial), before)
        self.pack(self.golden, self.dst, "--restart")
        other = self.folder / "other.fmoe"
        self.pack(self.golden, other)
        self.assertEqual(digest(self.dst), digest(other))

    def test_other_source(self):
        self.break_off()
        done = flashmoe("pack", TESTS / "golden" / "qwen3_moe", self.dst)
        self.assert_fails(done, "model.safetensors", "--restart")

    def test_changed_source(self):
        src = self.folder / "src"
        shutil.copytree(self.golden, src)
        done = flashmoe("pack", src, self.dst, kind="kill", at=25)
        self.assertEqual(done.returncode, -9)
        os.utime(src / "model.safetensors")
        done = flashmoe("pack", src, self.dst)
        self.assert_fails(done, "model.safetensors", "changed since")
        self.assertNotIn(" bytes", done.stderr)
        add_tensor(src, "mtp.fc.weight")
        self.assert_fails(flashmoe("pack", src, self.dst), "bytes; it has", "changed since")

    def test_other_encoder(self):
        """A version that packs the same bytes may continue."""
        self.break_off()
        path = self.partial / "plan.json"
        plan = json.loads(path.read_text())
        self.assertEqual(sorted(plan), ["encoder", "files", "formats", "version"])
        path.write_text(json.dumps(dict(plan, encoder=plan["encoder"] + 1)))
        self.assert_fails(flashmoe("pack", self.golden, self.dst), "other bytes", "--restart")
        path.write_text(json.dumps(plan))
        self.pack(self.golden, self.dst)

    def test_not_ours(self):
        """A folder that has the name of a partial pack but is not one is left alone."""
        self.partial.mkdir()
        for name in ("notes.txt", "experts-000.bin.tmp"):
            (self.partial / name).write_text("mine")
            for args in ([], ["--restart"]):
                self.assert_fails(flashmoe("pack", self.golden, self.dst, *args), name,
                                  "no packing has created it")
            self.assertEqual(os.listdir(self.partial), [name])
            (self.partial / name).unlink()
        (self.partial / "plan.json.tmp").write_text("{")
        self.pack(self.golden, self.dst)

    def test_a_link_to_nowhere(self):
        self.dst.symlink_to("nowhere")
        self.assert_fails(flashmoe("pack", self.golden, self.dst), "exists already")
        self.assertEqual(os.listdir(self.folder), [self.dst.name])

    def test_one_tensor_two_formats(self):
        """A tied head is the embedding, so both need the same format."""
        src = self.folder / "src"
        subprocess.run([sys.executable, TESTS / "golden" / "variants.py", self.golden, src,
                        "--layout", "tied"], check=True, stdout=subprocess.DEVNULL)
        done = flashmoe("pack", src, self.dst, "--embed", "q8_0", "--head", "f16")
        self.assert_fails(done, "'q8_0'", "'f16'", "tied")
        self.pack(src, self.dst, "--embed", "q8_0", "--head", "q8_0")

    def test_a_damaged_pack(self):
        """Packing a damaged pack again does not give it good checksums."""
        good = self.folder / "good.fmoe"
        self.pack(self.golden, good)
        model = json.loads((good / "model.json").read_text())
        record = model["experts"][2]["record_bytes"]
        tensor = model["dense"]["tensors"][3]
        for name, at, what in (("experts-002.bin", 3 * record + 5, "expert 3 of layer 2"),
                               ("experts-002.bin", 4 * record - 1, "expert 3 of layer 2"),
                               ("dense.bin", tensor["offset"], f"tensor '{tensor['name']}'")):
            for args in ([], ["--experts", "f16", "--dense", "f32"]):
                with self.subTest(what, args=args):
                    self.flip(good / name, at)
                    done = flashmoe("pack", good, self.dst, *args)
                    self.flip(good / name, at)
                    self.assert_fails(done, what, "damaged", name)
                    self.assertFalse(self.dst.exists())
                    shutil.rmtree(self.partial)
        self.pack(good, self.dst)

    def test_space(self):
        done = flashmoe("pack", self.golden, self.dst, free=1 << 20)
        self.assert_fails(done, "not enough space", "--consume", "GB are free")
        self.assertFalse(self.dst.exists() or self.partial.exists())
        self.pack(self.golden, self.dst, free=1 << 30)

    def test_consume_must_be_confirmed(self):
        src = self.folder / "src"
        shutil.copytree(self.golden, src)
        before = digest(src)
        self.assert_fails(flashmoe("pack", src, self.dst, "--consume"), "--yes", status=2)
        inside = flashmoe("pack", src, src / "m.fmoe", "--consume", "--yes")
        self.assert_fails(inside, "lies inside the source")
        self.pack(src, self.dst)
        packed = flashmoe("pack", self.dst, self.folder / "again", "--consume", "--yes")
        self.assert_fails(packed, "is packed already")
        shutil.rmtree(src / "m.fmoe.partial", ignore_errors=True)
        self.assertEqual(digest(src), before)

    def test_consume_asks(self):
        src = self.folder / "src"
        shutil.copytree(self.golden, src)
        add_tensor(src, "mtp.fc.weight")
        for answer, status in ((b"\n", 1), (b"n\n", 1), (b"y\n", 0)):
            done = self.ask("pack", src, self.dst, "--consume", answer=answer)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("--consume permanently removes 1 file (", done.stderr)
            self.assertIn("experts: bf16 becomes affine4-g64", done.stderr.split("[y/N]")[0])
            self.assertIn("1 tensor will not be in the pack", done.stderr.split("[y/N]")[0])
            self.assertEqual((src / "model.safetensors").exists(), status == 1)
            self.assertFalse(self.partial.exists())
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)

    def test_consume_refuses_links(self):
        src = self.folder / "src"
        shutil.copytree(self.golden, src)
        (src / "model.safetensors").rename(self.folder / "blob")
        (src / "model.safetensors").symlink_to("../blob")
        self.assert_fails(flashmoe("pack", src, self.dst, "--consume", "--yes"), "is a link")
        self.pack(src, self.dst)

    def test_two_at_a_time(self):
        self.partial.mkdir()
        lock = os.open(self.partial, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assert_fails(flashmoe("pack", self.golden, self.dst), "another process")
        finally:
            os.close(lock)


class Kill(Case):
    """Packing that is killed at any moment and started again gives the same bytes."""

    def finish(self, src, *args):
        """Starts it again until it is done."""
        done = flashmoe("pack", src, self.dst, *args)
        if done.returncode != 0:
            self.assertIn("exists already", done.stderr)  # it was killed after the rename
        self.assertFalse(self.partial.exists())

    def test_at_every_kind_of_call(self):
        reference = self.folder / "reference.fmoe"
        n_calls = self.count_calls(self.golden, reference)
        expected = digest(reference)
        self.assertGreater(n_calls, 60)
        step = max(1, n_calls // N_KILLS)
        n_killed = 0
        for at in range(1 + random.Random(3).randrange(step), n_calls + 1, step):
            with self.subTest(at=at):
                done = flashmoe("pack", self.golden, self.dst, kind="kill", at=at)
                n_killed += done.returncode == -9
                self.assertTrue(self.dst.exists() or
                                flashmoe("inspect", self.dst).returncode == 1)
                # Kill it once more on the way.
                flashmoe("pack", self.golden, self.dst, kind="kill", at=at // 2 + 1)
                self.finish(self.golden)
                self.assertEqual(digest(self.dst), expected)
                shutil.rmtree(self.dst)
        self.assertGreater(n_killed, N_KILLS // 2)
        print(f"{n_killed} kills at calls, {n_calls} calls in a whole packing")

    def test_damaged_meanwhile(self):
        """Files that an earlier run has finished are read again, and written again if damaged."""
        reference = self.folder / "reference.fmoe"
        self.pack(self.golden, reference)
        for name, args in (("experts-000.bin", ["--consume", "--yes"]), ("dense.bin", [])):
            with self.subTest(name):
                src = self.folder / "copy" / self.golden.name
                shutil.copytree(self.golden, src)
                done = flashmoe("pack", src, self.dst, kind="kill", on="rename:experts-002.bin.tmp")
                self.assertEqual(done.returncode, -9)
                for at in (100, 5000, 9000):
                    self.flip(self.partial / name, at)
                done = self.pack(src, self.dst, *args)
                self.assertIn(f"{name}' has changed since an earlier run wrote it", done.stderr)
                self.assertEqual(flashmoe("verify", self.dst).returncode, 0)
                self.assertEqual(digest(self.dst), digest(reference))
                shutil.rmtree(self.dst)
                shutil.rmtree(src)

    def test_whole_but_for_its_name(self):
        """The source is no longer needed, and other formats are refused."""
        src = self.folder / "src"
        shutil.copytree(self.golden, src)
        self.pack(src, self.folder / "reference.fmoe")
        # Between the renames of model.json and of the pack, the folder is synced once.
        done = flashmoe("pack", src, self.dst, kind="kill", on="rename:model.json.tmp")
        self.assertEqual(done.returncode, -9)
        os.rename(self.partial / "model.json.tmp", self.partial / "model.json")
        shutil.rmtree(src)
        self.assert_fails(flashmoe("pack", src, self.dst, "--experts", "keep"), "--experts")
        self.finish(src)
        self.assertEqual(digest(self.dst), digest(self.folder / "reference.fmoe"))

    def test_from_outside(self):
        """Kills packing while one thread waits at a certain file, wherever the others are."""
        reference = self.folder / "reference.fmoe"
        self.pack(self.golden, reference)
        moments = ["pwrite:plan.json", "fsync:plan.json", "pwrite:dense.bin", "fsync:dense.bin",
                   "rename:dense.bin.sums", "pwrite:experts-001", "fsync:experts-001",
                   "rename:experts-001.bin.tmp", "fsync:experts-003", "pwrite:model.json",
                   "rename:model.json", "unlink:dense.bin.sums"]
        for on in moments:
            with self.subTest(on):
                with Held(self.folder, on, "pack", self.golden, self.dst, "-q",
                          stderr=subprocess.DEVNULL) as held:
                    held.process.kill()
                    self.assertEqual(held.process.wait(), -9)
                self.finish(self.golden)
                self.assertEqual(digest(self.dst), digest(reference))
                shutil.rmtree(self.dst)


class Progress(Case):
    """The output during packing, and Ctrl-C. Every call is slowed down to leave time for it."""

    def start(self, **files):
        env = dict(os.environ, LD_PRELOAD=PRELOAD, FAULT_KIND="slow", FAULT_SPAN="0",
                   ASAN_OPTIONS="verify_asan_link_order=0")
        return subprocess.Popen([PROGRAM, "pack", str(self.golden), str(self.dst)], env=env,
                                stdin=subprocess.DEVNULL, **files)

    def test_the_bar(self):
        master, slave = pty.openpty()
        process = self.start(stdout=slave, stderr=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(master)
        self.assertEqual(process.wait(), 0)
        self.assertRegex(shown.decode(), r"packing (?:dense part|layer \d of 4) \[[#-]{4,24}\] "
                                         r"+\d+%  .* of .*  [\d.]+ [kM]?B/s  "
                                         r"ETA (?:\d+ min )?\d+ s")
        self.assertIn("verified", shown.decode())

    def test_interrupt(self):
        with Held(self.folder, "pwrite:experts-000.bin.tmp", "pack", self.golden, self.dst,
                  stderr=subprocess.PIPE) as held:
            held.process.send_signal(signal.SIGINT)
            errors = held.finish().decode()
        self.assertEqual(held.process.returncode, 130, errors)
        self.assertEqual(errors, "flashmoe: stopped; run the same command again to continue\n")
        self.assertEqual(list(self.partial.glob("*.tmp")), [])
        self.pack(self.golden, self.dst)
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)


class Faults(Case):
    def test_every_write(self):
        """The Nth call fails. There is an error message and nothing that looks like a model, and
        packing can continue."""
        reference = self.folder / "reference.fmoe"
        n_calls = self.count_calls(self.golden, reference)
        expected = digest(reference)
        for kind, why in (("enospc", "disk is full|No space left"), ("eio", "Input/output error")):
            n_failed = 0
            for at in range(1, n_calls + 1, max(1, n_calls // 40)):
                with self.subTest(kind=kind, at=at):
                    done = flashmoe("pack", self.golden, self.dst, kind=kind, at=at)
                    if done.returncode != 0:
                        self.assertRegex(done.stderr, rf"\Aflashmoe: [^\n]*(?:{why})[^\n]*\n\Z")
                        n_failed += 1
                        if not self.dst.exists() or (self.dst / "plan.json").exists():
                            self.pack(self.golden, self.dst)
                    self.assertEqual(digest(self.dst), expected)
                    shutil.rmtree(self.dst)
            self.assertGreater(n_failed, 20)

    def test_reads(self):
        """Reads of the source and of written files fail: the message names tensor or expert, file
        and byte."""
        reference = self.folder / "reference.fmoe"
        self.pack(self.golden, reference)
        n_failed = 0
        for at in range(8, 400, 17):
            with self.subTest(at=at):
                done = flashmoe("pack", self.golden, self.dst, read=at)
                if done.returncode != 0:
                    n_failed += 1
                    self.assertRegex(done.stderr, r"\Aflashmoe: [^\n]*'[^\n]*/[a-z0-9_.-]+'[^\n]* "
                                                  r"at byte \d+: Input/output error\n\Z")
                    self.pack(self.golden, self.dst)
                self.assertEqual(digest(self.dst), digest(reference))
                shutil.rmtree(self.dst)
        self.assertGreater(n_failed, 8)

    def test_the_folder_is_synced(self):
        """The existence of DST.partial must survive a power failure."""
        done = flashmoe("pack", self.golden, self.dst, kind="eio",
                        on=f"fsync:{self.folder}")
        self.assert_fails(done, f"cannot sync '{self.folder}'")

    def test_interrupted_and_short_writes(self):
        reference = self.folder / "reference.fmoe"
        self.pack(self.golden, reference)
        for kind in ("short", "eintr"):
            with self.subTest(kind):
                self.pack(self.golden, self.dst, kind=kind, span=0)
                self.assertEqual(digest(self.dst), digest(reference))
                shutil.rmtree(self.dst)

    def test_what_is_read_back_differs(self):
        for at in (1, 9, 20):
            with self.subTest(at=at):
                done = flashmoe("pack", self.golden, self.dst, flip=at)
                self.assert_fails(done, "not what was written")
                self.assertFalse(self.dst.exists())
        self.pack(self.golden, self.dst)
        self.assertEqual(flashmoe("verify", self.dst).returncode, 0)


class FullDisk(Case):
    def test_a_small_disk(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", str(disk)],
                               capture_output=True)
        if mount.returncode != 0:
            print("skipped: no file system can be mounted here")
            os._exit(77)
        self.addCleanup(subprocess.run, ["umount", str(disk)])
        dst = disk / "m.fmoe"
        args = ["pack", self.golden, dst, "--experts", "keep"]
        self.assert_fails(flashmoe(*args), "not enough space")
        # Another process takes the space after it was checked.
        self.assert_fails(flashmoe(*args, free=1 << 30), "the disk is full", "m.fmoe.partial",
                          "start the same command again")
        self.assertFalse(dst.exists())
        self.assert_fails(flashmoe("inspect", disk / "m.fmoe.partial"), "neither")
        subprocess.run(["mount", "-o", "remount,size=30M", str(disk)], check=True)
        self.pack(self.golden, dst, "--experts", "keep")
        self.pack(self.golden, self.dst, "--experts", "keep")
        self.assertEqual(digest(dst), digest(self.dst))


if __name__ == "__main__":
    main()
