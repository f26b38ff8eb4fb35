"""Packs with --consume, interrupts, starts again: no source is removed before its pack is safe.

Usage: consume_test.py PROGRAM PRELOAD TESTS [--kills N] [TestClass...], as pack_test.py
"""
import json
import os
import random
import shutil
import subprocess

from pack_case import (N_KILLS, TESTS, Case, Held, digest, flashmoe, logits_hash, main,
                       shard_by_layer)


# The calls that remove a source file, and their order: files with the dense part are read first,
# but the layers' files contain some of it too.
REMOVAL = "unlink:/b/src/model-"
IN_ORDER = ["model-none.safetensors", *(f"model-{layer}.safetensors" for layer in range(4))]


class Shards(Case):
    def setUp(self):
        super().setUp()
        shard_by_layer(self.golden, self.folder / "a" / "src")
        self.src = self.folder / "a" / "src"
        self.reference = self.folder / "reference.fmoe"
        self.pack(self.src, self.reference)

    def copy(self):
        src = self.folder / "b" / "src"
        shutil.rmtree(src.parent, ignore_errors=True)
        shutil.copytree(self.src, src)
        return src


class Consume(Shards):
    def test_whole(self):
        src = self.copy()
        done = self.pack(src, self.dst, "--consume", "--yes")
        self.assertIn("source files removed", done.stderr)
        self.assertEqual(digest(self.dst), digest(self.reference))
        self.assertEqual(sorted(os.listdir(src)),
                         ["config.json", "generation_config.json", "model.safetensors.index.json",
                          "tokenizer.json"])

    def test_needs_little_space(self):
        """Needs less space than the size of the pack, and this smaller figure is the one that is
        checked."""
        src = self.copy()
        size = sum(path.stat().st_size for path in self.reference.iterdir())
        keep = ["--experts", "keep"]
        plain = json.loads(self.pack(src, self.folder / "x", *keep, "--json").stdout)
        self.assertGreater(plain["need_bytes"], size)
        done = flashmoe("pack", src, self.dst, *keep, free=plain["need_bytes"] - 4096)
        self.assert_fails(done, "not enough space")
        mine = json.loads(self.pack(src, self.dst, *keep, "--consume", "--yes", "--json",
                                    free=plain["need_bytes"] - 4096).stdout)
        self.assertLess(mine["need_bytes"], plain["need_bytes"] - (1 << 20))
        self.assertEqual(digest(self.dst), digest(self.folder / "x"))

    def test_killed(self):
        n_calls = self.count_calls(self.copy(), self.folder / "c.fmoe", "--consume", "--yes")
        step = max(1, n_calls // N_KILLS)
        n_spares = 0
        for at in range(1 + random.Random(5).randrange(step), n_calls + 1, step):
            with self.subTest(at=at):
                src = self.copy()
                flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", at=at)
                n_spares += (self.partial / "source").exists()
                done = flashmoe("pack", src, self.dst, "--consume", "--yes")
                if done.returncode != 0:
                    self.assertIn("exists already", done.stderr)
                self.assertEqual(digest(self.dst), digest(self.reference))
                self.assertEqual(list(src.glob("*.safetensors")), [])
                shutil.rmtree(self.dst)
        print(f"{n_spares} kills when source files were gone")

    def test_killed_when_files_are_gone(self):
        """Kills packing before each removal of a source file, and right after it."""
        for on, at in ((REMOVAL, 1), (REMOVAL, 2), (REMOVAL, 5), ("fsync:/b/src", 1),
                       ("fsync:/b/src", 4)):
            with self.subTest(on, at=at):
                src = self.copy()
                done = flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", on=on,
                                at=at)
                self.assertEqual(done.returncode, -9)
                gone = 5 - len(list(src.glob("*.safetensors")))
                self.assertEqual(gone, at - (on == REMOVAL))
                self.pack(src, self.dst, "--consume", "--yes")
                self.assertEqual(digest(self.dst), digest(self.reference))
                self.assertEqual(list(src.glob("*.safetensors")), [])
                shutil.rmtree(self.dst)

    def test_gguf(self):
        """One file with everything including the tokenizer: alone, in a folder, and in a folder
        whose safetensors files are packed instead. Kills at every moment near the end, when the
        file is already removed."""
        frozen = TESTS / "oracle" / "frozen" / "small_qwen3_next-q8_0.gguf"
        folder = self.folder / "c" / "m"
        for kind in ("file", "folder", "beside"):
            reference = self.folder / f"{kind}.fmoe"

            def copy(kind=kind):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(self.dst, ignore_errors=True)
                if kind == "beside":
                    shutil.copytree(self.golden, folder)
                else:
                    folder.mkdir(parents=True)
                shutil.copy2(frozen, folder / "model.gguf")
                return folder / "model.gguf" if kind == "file" else folder
            src = copy()
            of = logits_hash(frozen) if kind != "beside" else None
            n_calls = self.count_calls(src, reference, "--consume", "--yes")
            self.assertEqual((folder / "model.gguf").exists(), kind == "beside")
            self.assertFalse((folder / "model.safetensors").exists())
            self.assertEqual(logits_hash(reference, "--check", "on"), of or logits_hash(reference))
            last = 25 if kind != "file" else 5
            for at in [n_calls // 2, *range(n_calls - last, n_calls + 1)]:
                with self.subTest(at=at, kind=kind):
                    copy()
                    flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", at=at)
                    done = flashmoe("pack", src, self.dst, "--consume", "--yes")
                    if done.returncode != 0:
                        self.assertIn("exists already", done.stderr)
                    self.assertEqual(digest(self.dst), digest(reference))

    def stop_with_spares(self, n_gone):
        """Kills a packing when this many source files are gone, in the order of the layers."""
        src = self.copy()
        shutil.rmtree(self.partial, ignore_errors=True)
        done = flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", on=REMOVAL,
                        at=n_gone + 1)
        self.assertEqual(done.returncode, -9)
        self.assertEqual(sorted({*self.src.glob("*.safetensors")} -
                                {self.src / path.name for path in src.iterdir()}),
                         sorted([self.src / name for name in IN_ORDER[:n_gone]]))
        return src

    def test_a_finished_file_is_damaged(self):
        """The contents of a removed file cannot be recreated. This is reported, and nothing is made
        up."""
        for kind in ("gone", "flipped"):
            src = self.stop_with_spares(2)
            before = digest(src)
            if kind == "gone":
                (self.partial / "experts-000.bin").unlink()
            else:
                self.flip(self.partial / "experts-000.bin", 4321)
            done = flashmoe("pack", src, self.dst, "--consume", "--yes")
            self.assert_fails(done, "experts-000.bin", "cannot be written again", "was removed")
            self.assertEqual(digest(src), before)

    def test_coarse_times(self):
        """A spare's time is ignored, and the spare is no longer than its header."""
        src = self.stop_with_spares(3)
        for spare in (self.partial / "source").iterdir():
            os.utime(spare, (1, 1))
            self.assertLess(spare.stat().st_size,
                            (self.src / spare.name).stat().st_size // 4)
        self.pack(src, self.dst, "--consume", "--yes")
        self.assertEqual(digest(self.dst), digest(self.reference))

    def hold(self, src):
        """Starts a packing that waits before it writes the first byte of a weight."""
        return Held(self.folder, "pwrite:dense.bin.tmp", "pack", src, self.dst, "--consume",
                    "--yes", stderr=subprocess.PIPE, encoding="utf-8")

    def test_replaced_meanwhile(self):
        """A file that has taken the name of a source file is not the file that was packed."""
        src = self.copy()
        (self.folder / "new").write_text("mine")
        with self.hold(src) as held:
            os.replace(self.folder / "new", src / "model-3.safetensors")
            errors = held.finish()
        self.assertEqual(held.process.returncode, 0, errors)
        self.assertIn("model-3.safetensors' was changed while it was packed: left in place", errors)
        self.assertEqual((src / "model-3.safetensors").read_text(), "mine")
        self.assertIn("4 source files removed", errors)
        self.assertEqual(digest(self.dst), digest(self.reference))

    def test_changed_meanwhile(self):
        src = self.copy()
        with self.hold(src) as held:
            with open(src / "model-3.safetensors", "ab") as f:
                f.write(b"more")
            errors = held.finish()
        self.assertEqual(held.process.returncode, 1, errors)
        self.assertIn("model-3.safetensors' was changed while it was packed: left in place", errors)
        self.assertTrue((src / "model-3.safetensors").exists())
        self.assertFalse(self.dst.exists())

    def test_cannot_be_removed(self):
        """Spares of files that still exist are not used."""
        for args in (["--restart"], []):
            src = self.copy()
            done = flashmoe("pack", src, self.dst, "--consume", "--yes", kind="eio", on=REMOVAL)
            self.assert_fails(done, "cannot remove", "model-", "go on without it")
            self.assertTrue(any((self.partial / "source").iterdir()))
            self.assertEqual(digest(src), digest(self.src))
            self.pack(src, self.dst, *args)
            self.assertEqual(digest(self.dst), digest(self.reference))
            shutil.rmtree(self.dst)

    def test_a_later_one_cannot_be_removed(self):
        """Only the files before the one that cannot be removed are gone. The same command
        continues."""
        for at in (2, 5):
            src = self.copy()
            done = flashmoe("pack", src, self.dst, "--consume", "--yes", kind="eio", on=REMOVAL,
                            at=at)
            self.assert_fails(done, "cannot remove", IN_ORDER[at - 1], "go on without it")
            self.assertEqual(sorted(path.name for path in src.glob("*.safetensors")),
                             sorted(IN_ORDER[at - 1:]))
            self.assert_fails(flashmoe("pack", src, self.dst, "--restart"), "not restarted")
            self.pack(src, self.dst, "--consume", "--yes")
            self.assertEqual(digest(self.dst), digest(self.reference))
            shutil.rmtree(self.dst)


class Restart(Shards):
    def test_at_every_moment(self):
        """--restart leaves either the source or a pack, whenever packing was killed before."""
        n_calls = self.count_calls(self.copy(), self.folder / "c.fmoe", "--consume", "--yes")
        step = max(1, n_calls // 4 // N_KILLS)
        moments = {*range(1, n_calls + 1, step), *range(n_calls - 30, n_calls + 1, min(step, 2))}
        n_refused = 0
        for at in sorted(moments):
            with self.subTest(at=at):
                src = self.copy()
                shutil.rmtree(self.dst, ignore_errors=True)
                shutil.rmtree(self.partial, ignore_errors=True)
                flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", at=at)
                done = flashmoe("pack", src, self.dst, "--restart")
                if done.returncode != 0:
                    n_refused += 1
                    self.assertRegex(done.stderr, "not restarted|is complete|exists already")
                    flashmoe("pack", src, self.dst)
                self.assertEqual(digest(self.dst), digest(self.reference))
        self.assertGreater(n_refused, len(moments) // 8)
        print(f"{len(moments)} moments of {n_calls}, {n_refused} refused")

    def test_killed_while_it_discards(self):
        """A half-removed folder is still recognised as ours."""
        for at in range(1, 12):
            with self.subTest(at=at):
                shutil.rmtree(self.partial, ignore_errors=True)
                flashmoe("pack", self.src, self.dst, kind="kill", at=60)
                flashmoe("pack", self.src, self.dst, "--restart", kind="kill", at=at)
                self.pack(self.src, self.dst)
                self.assertEqual(digest(self.dst), digest(self.reference))
                shutil.rmtree(self.dst)

    def test_asks(self):
        """The question is asked even if only --restart can continue."""
        src = self.copy()
        flashmoe("pack", src, self.dst, "--experts", "keep", kind="kill", at=40)
        done = self.ask("pack", src, self.dst, "--consume", "--restart", answer=b"n\n")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("--consume permanently removes 5 files", done.stderr)
        self.assertTrue((self.partial / "plan.json").exists())
        done = self.ask("pack", src, self.dst, "--consume", "--restart", answer=b"y\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(digest(self.dst), digest(self.reference))

    def test_asks_for_nothing_that_is_refused(self):
        src = self.copy()
        flashmoe("pack", src, self.dst, "--consume", "--yes", kind="kill", on=REMOVAL, at=3)
        done = self.ask("pack", src, self.dst, "--consume", "--restart", answer=b"y\n")
        self.assert_fails(done, "not restarted")


class Whole(Shards):
    """The pack is complete except for its name, or packing's own files still exist as well."""

    def stop(self, src, named=False):
        """Kills a packing between model.json and the rename, or right after that."""
        shutil.rmtree(self.dst, ignore_errors=True)
        shutil.rmtree(self.partial, ignore_errors=True)
        on = "unlink:model.fmoe/" if named else "rename:model.fmoe.partial"
        done = flashmoe("pack", src, self.dst, kind="kill", on=on,
                        at=1 if named else self.last_rename)
        self.assertEqual(done.returncode, -9)
        where = self.dst if named else self.partial
        self.assertTrue((where / "model.json").exists() and (where / "plan.json").exists())

    def setUp(self):
        super().setUp()
        calls = self.trace_calls("pack", self.copy(), self.dst)
        # Removes the names in DST.partial, then the folder itself.
        self.last_rename = sum(name == "rename" and "model.fmoe.partial" in path
                               for name, path, _ in calls)

    def test_another_source(self):
        """A source with any other name is refused."""
        other = self.folder / "other" / "src"
        shutil.copytree(TESTS / "golden" / "qwen3_moe", self.folder / "qwen3_moe")
        shard_by_layer(TESTS / "golden" / "qwen3_moe", other)
        for named in (False, True):
            src = self.copy()
            self.stop(src, named=named)
            for wrong in (self.folder / "qwen3_moe", other):
                done = flashmoe("pack", wrong, self.dst)
                self.assert_fails(done, "exists already" if named else "finish it with")
                self.assertEqual((self.dst.exists(), self.partial.exists()), (named, not named))
            done = self.pack(src, self.dst)
            self.assertIn("complete: an earlier run", done.stderr)
            self.assertNotIn(", verified", done.stderr)
            self.assertEqual(digest(self.dst), digest(self.reference))

    def test_restart_is_refused(self):
        src = self.copy()
        self.stop(src)
        self.assert_fails(flashmoe("pack", src, self.dst, "--restart"), "is complete",
                          "without --restart")
        self.stop(src, named=True)
        self.assert_fails(flashmoe("pack", src, self.dst, "--restart"), "exists already")

    def test_how_long(self):
        src = self.copy()
        size = sum(path.stat().st_size for path in self.reference.iterdir() if
                   path.name != "model.json")
        self.stop(src)
        done = json.loads(self.pack(src, self.dst, "--json").stdout)
        self.assertEqual((done["packed_bytes"], done["found_bytes"]), (size, size))


class ReadOnly(Shards):
    def test_source(self):
        src = self.copy()
        mount = subprocess.run(["mount", "--bind", "-o", "ro", str(src), str(src)],
                               capture_output=True)
        if mount.returncode != 0:
            print("skipped: no file system can be mounted here")
            os._exit(77)
        self.addCleanup(subprocess.run, ["umount", str(src)])
        done = flashmoe("pack", src, self.dst, "--consume", "--yes")
        self.assert_fails(done, "read-only", "go on without --consume")
        self.assertFalse((self.partial / "source").exists())
        self.pack(src, self.dst)


if __name__ == "__main__":
    main()
