"""Tests the disk operations of packing call by call, and folders that someone else prepared.

Usage: order_test.py PROGRAM PRELOAD TESTS [TestClass...], as pack_test.py
"""
import os
import shutil
import subprocess

from pack_case import Case, Held, digest, flashmoe, main, shard_by_layer

SYNTH = ["synth", "tiny-qwen3"]


class Order(Case):
    """After a power failure only what was synced is left. So a file gets its name after its bytes
    are synced, and a source is removed after the name is synced."""

    def assert_synced_before_named(self, calls, is_meant):
        """Every renamed file was synced after its last write."""
        n_named = 0
        for at, (name, path, _) in enumerate(calls):
            if name != "rename" or not is_meant(path):
                continue
            before = [call for call, of, _ in calls[:at] if of == path and call != "unlink"]
            self.assertEqual(before[-1:], ["fsync"], f"{path}: {before}")
            n_named += 1
        return n_named

    def assert_folder_synced_after(self, calls, is_meant):
        """Every name is durable before the next one is given."""
        for at, (name, path, to) in enumerate(calls):
            if name != "rename" or not is_meant(path):
                continue
            folder = os.path.dirname(to)
            rest = [(call, of) for call, of, _ in calls[at + 1:] if call in ("rename", "fsync")]
            follows = rest[:rest.index(("fsync", folder)) + 1] if ("fsync", folder) in rest else []
            self.assertTrue(follows, f"{folder} is never synced after {to}")
            own = [of for call, of in follows if call == "rename" and os.path.dirname(of) == folder]
            self.assertEqual(own, [], f"{folder} is not synced after {to}")

    def test_pack(self):
        calls = self.trace_calls("pack", self.golden, self.dst, "--threads", "1")

        def is_file(path):
            return ".partial/" in path
        # plan.json, two texts or more, five files of weights with their checksums, model.json
        self.assertGreater(self.assert_synced_before_named(calls, is_file), 13)
        self.assert_folder_synced_after(calls, lambda path: True)
        names = [os.path.basename(to) for name, _, to in calls if name == "rename"]
        self.assertEqual((names[0], names[-2:]), ("plan.json", ["model.json", self.dst.name]))

    def test_consume(self):
        """A source file is removed only after its packed parts and its header are on disk."""
        src = self.folder / "b" / "src"
        shard_by_layer(self.golden, src)
        calls = self.trace_calls("pack", src, self.dst, "--consume", "--yes", "--threads", "1")
        self.assertGreater(self.assert_synced_before_named(calls, lambda p: ".partial/" in p), 18)
        for layer in range(4):
            name = f"model-{layer}.safetensors"
            gone = calls.index(["unlink", str(src / name), ""])
            done = [call[0] for call in calls].index("rename")
            for to, folder in ((self.partial / f"experts-{layer:03}.bin", self.partial),
                               (self.partial / "source" / name, self.partial / "source")):
                done = next(i for i, call in enumerate(calls) if call[2] == str(to))
                synced = [i for i, call in enumerate(calls[:gone])
                          if i > done and call[:2] == ["fsync", str(folder)]]
                self.assertTrue(done < gone and synced, f"{name}: {to}")
            self.assertEqual(calls[gone + 1][:2], ["fsync", str(src)])

    def test_synth(self):
        for name in ("m.fmoe", "m.gguf", "m"):
            calls = self.trace_calls(*SYNTH, self.folder / name)
            written = {path for name, path, _ in calls if name == "pwrite"}
            self.assertTrue(written)
            for path in written:
                own = [name for name, of, _ in calls if of == path and name != "rename"]
                self.assertEqual(own[-1], "fsync", path)
            self.assertLess(max(i for i, call in enumerate(calls) if call[0] == "pwrite"),
                            min(i for i, call in enumerate(calls) if call[0] == "rename"))


class Prepared(Case):
    """Links and files that packing did not create: nothing they point to is read into the pack,
    changed or removed."""

    def setUp(self):
        super().setUp()
        self.victim = self.folder / "victim"
        self.victim.mkdir()
        for name in ("precious.txt", "model.safetensors", "plan.json", "dense.bin.tmp"):
            (self.victim / name).write_text(f"my {name}\n")
        self.before = digest(self.victim)
        copy = self.folder / "copy" / self.golden.name  # a copy that --consume may remove
        shutil.copytree(self.golden, copy)
        self.golden = copy
        self.addCleanup(lambda: self.assertEqual(digest(self.victim), self.before))

    def stop(self, on):
        shutil.rmtree(self.dst, ignore_errors=True)
        shutil.rmtree(self.partial, ignore_errors=True)
        done = flashmoe("pack", self.golden, self.dst, kind="kill", on=on)
        self.assertEqual(done.returncode, -9)

    def refused(self, word, *args):
        done = flashmoe("pack", self.golden, self.dst, *args)
        self.assert_fails(done, word)
        self.assertEqual(digest(self.victim), self.before)
        return done

    def test_a_link_for_the_headers(self):
        """DST/source and DST.partial/source."""
        for on, folder in (("unlink:model.fmoe/", self.dst), ("pwrite:experts-001", self.partial)):
            for args in ([], ["--consume", "--yes"], ["--restart"]):
                with self.subTest(folder.name, args=args):
                    self.stop(on)
                    (folder / "source").symlink_to(self.victim)
                    kept = digest(self.golden)
                    named = folder == self.dst and args == ["--restart"]
                    self.refused("exists already" if named else "source' is a link", *args)
                    self.assertEqual(digest(self.golden), kept)
                    (folder / "source").unlink()
        self.pack(self.golden, self.dst)

    def test_a_link_for_the_folder(self):
        for args in ([], ["--restart"]):
            self.partial.symlink_to(self.victim)
            self.refused("model.fmoe.partial' is a link", *args)
            self.partial.unlink()
            self.stop("unlink:model.fmoe/")  # with its final name, and something left to clean up
            os.rename(self.dst, self.folder / "elsewhere")
            kept = digest(self.folder / "elsewhere")
            self.dst.symlink_to(self.folder / "elsewhere")
            self.refused("exists already" if args else "model.fmoe' is a link", *args)
            self.assertEqual(digest(self.folder / "elsewhere"), kept)
            self.dst.unlink()
            shutil.rmtree(self.folder / "elsewhere")

    def test_links_for_files(self):
        """For every file that packing would open, create or remove."""
        for name in ("plan.json.tmp", "dense.bin.tmp", "experts-003.bin.tmp", "model.json.tmp",
                     "experts-003.bin", "experts-003.bin.sums", "tokenizer.json.tmp", "plan.json"):
            for args in ([], ["--restart"]):
                with self.subTest(name, args=args):
                    self.stop("pwrite:experts-001")
                    (self.partial / name).unlink(missing_ok=True)
                    (self.partial / name).symlink_to(self.victim / "precious.txt")
                    self.refused(f"{name}' is a link", *args)
                    self.assertTrue((self.partial / name).is_symlink())

    def test_a_link_in_an_empty_folder(self):
        self.partial.mkdir()
        (self.partial / "plan.json.tmp").symlink_to(self.victim / "precious.txt")
        self.refused("plan.json.tmp' is a link")

    def test_what_is_no_header(self):
        """A real folder `source` that holds someone else's files."""
        for on, folder, args in (("unlink:model.fmoe/", self.dst, []),
                                 ("pwrite:experts-001", self.partial, ["--restart"])):
            self.stop(on)
            (folder / "source").mkdir()
            shutil.copy2(self.victim / "model.safetensors", folder / "source")
            self.assert_fails(flashmoe("pack", self.golden, self.dst, *args), "source")
            self.assertEqual((folder / "source" / "model.safetensors").read_text(),
                             "my model.safetensors\n")
            shutil.rmtree(folder)

    def test_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give files away")
        self.stop("pwrite:experts-001")
        os.chown(self.partial, 12345, 12345)
        kept = digest(self.partial)
        for args in ([], ["--restart"], ["--consume", "--yes"]):
            self.refused("belongs to user 12345", *args)
            self.assertEqual(digest(self.partial), kept)
        os.chown(self.partial, 0, 0)
        os.chown(self.partial / "dense.bin", 12345, 12345)
        self.refused("dense.bin' belongs to another user")

    def test_swapped_meanwhile(self):
        """The file that gets a name is the one that was written."""
        with Held(self.folder, "fsync:plan.json.tmp", "pack", self.golden, self.dst,
                  stderr=subprocess.PIPE, encoding="utf-8") as held:
            tmp = self.partial / "plan.json.tmp"
            shutil.copyfile(tmp, self.folder / "other")
            os.replace(self.folder / "other", tmp)
            errors = held.finish()
        self.assertEqual(held.process.returncode, 1)
        self.assertIn("plan.json.tmp' was replaced by another file", errors)
        self.assertFalse((self.partial / "plan.json").exists())

    def consume_held(self, src, at):
        return Held(self.folder, "unlink:/b/src/model-", "pack", src, self.dst, "--consume",
                    "--yes", at=at, stderr=subprocess.PIPE, encoding="utf-8")

    def test_headers_swapped_meanwhile(self):
        src = self.folder / "b" / "src"
        shard_by_layer(self.golden, src)
        with self.consume_held(src, 2) as held:
            os.rename(self.partial / "source", self.folder / "taken")
            (self.partial / "source").symlink_to(self.victim)
            errors = held.finish()
        self.assertEqual(held.process.returncode, 1)
        self.assertIn("source' is a link", errors)
        self.assertEqual(len(list(src.glob("*.safetensors"))), 3)

    def test_source_swapped_meanwhile(self):
        """Another folder has taken the source's name. Nothing in it was packed, so nothing is
        removed."""
        src = self.folder / "b" / "src"
        shard_by_layer(self.golden, src)
        other = self.folder / "other"
        shutil.copytree(src, other)
        kept = digest(other)
        with Held(self.folder, "pwrite:dense.bin.tmp", "pack", src, self.dst, "--consume", "--yes",
                  stderr=subprocess.PIPE, encoding="utf-8") as held:
            os.rename(src, self.folder / "b" / "mine")
            src.symlink_to(other)
            errors = held.finish()
        self.assertEqual(held.process.returncode, 0, errors)
        self.assertEqual(errors.count("was changed while it was packed: left in place"), 5)
        self.assertEqual(digest(other), kept)
        self.assertEqual(digest(self.folder / "b" / "mine"), kept)

    def test_synth(self):
        """Tests the temporary folder, the temporary file, and a file in the folder."""
        dst = self.folder / "m.fmoe"
        aside = self.folder / "m.fmoe.synth-partial"
        aside.symlink_to(self.victim)
        done = flashmoe(*SYNTH, dst)
        self.assert_fails(done, "m.fmoe.synth-partial' is a link", status=2)
        aside.unlink()
        aside.mkdir()
        (aside / "dense.bin").symlink_to(self.victim / "precious.txt")
        done = flashmoe(*SYNTH, dst)
        self.assertEqual(done.returncode, 0, done.stderr)  # the link itself was a leftover
        one = self.folder / "m.gguf.synth-partial"
        one.symlink_to(self.victim / "precious.txt")
        done = flashmoe(*SYNTH, self.folder / "m.gguf")
        self.assert_fails(done, "m.gguf.synth-partial' is in the way: it is a link", status=2)
        self.assertTrue(one.is_symlink())


if __name__ == "__main__":
    main()
