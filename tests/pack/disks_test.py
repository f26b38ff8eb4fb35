"""Models on several disks: pack --to, and running them when a disk is missing, swapped or fails.

Usage: disks_test.py PROGRAM PRELOAD TESTS [--kills N] [TestClass...]

There is one disk here, so each folder stands for one. PRELOAD makes writes fail, and its sibling
fault_preload makes the reads of one folder fail.
"""
import json
import os
import pathlib
import random
import shutil
import sys

import pack_case
from pack_case import N_KILLS, PRELOAD, TESTS, Case, digest, flashmoe, main

sys.path.insert(0, str(TESTS / "pack"))
import read_packed  # noqa: E402

READS = pathlib.Path(PRELOAD).parents[1] / "fault" / "libfault_preload.so"
NANO = TESTS.parent / "models" / "nano.fmoe"
# A budget of a few slots, so that experts are read again and again.
RUN = ["--raw", "-p", "The cat sat on the mat.", "-n", "12", "--greedy", "--json", "--no-heat",
       "--io", "direct"]


def run(model, *args, **faults):
    kept = pack_case.PRELOAD
    pack_case.PRELOAD = str(READS)  # the reads of a run fail, not its writes
    try:
        return flashmoe("run", model, *RUN, *args, **faults)
    finally:
        pack_case.PRELOAD = kept


class Disks(Case):
    def setUp(self):
        super().setUp()
        self.whole = self.folder / "whole.fmoe"
        self.disks = [self.folder / name for name in ("one", "two", "three")]
        for disk in self.disks:
            disk.mkdir()
        self.models = [disk / "model.fmoe" for disk in self.disks]

    def pack_to(self, n, *args, src=None, **faults):
        done = flashmoe("pack", src or self.golden, "--to", ",".join(map(str, self.models[:n])),
                        *args, **faults)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def answer(self, model, *args, **faults):
        done = run(model, *args, **faults)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.stderr = done.stderr
        return json.loads(done.stdout)

    def assert_same_answer(self, model, *args):
        mine, right = self.answer(model, *args), self.answer(self.whole, *args)
        self.assertEqual(mine["logits_hash"], right["logits_hash"])
        self.assertEqual(mine["text"], right["text"])
        return mine

    def copy_whole(self):
        self.pack(self.golden, self.whole)


class Split(Disks):
    def test_bytes_and_answers(self):
        """Every record is cut in whole pages, by the shares; the bits are those of one folder."""
        self.copy_whole()
        for shares, n in (("1,1", 2), ("3,1", 2), ("1,1,2", 3)):
            with self.subTest(shares):
                self.pack_to(n, "--shares", shares)
                model = json.loads((self.models[0] / "model.json").read_text())
                self.assertEqual(model["version"], 3)
                weights = [int(x) for x in shares.split(",")]
                for layer in model["experts"]:
                    pages = layer["record_bytes"] // 4096
                    for part, weight in zip(layer["parts"], weights):
                        self.assertLessEqual(
                            abs(part / 4096 - pages * weight / sum(weights)), 1.5)
                read_packed.read(self.models[0])
                self.assertEqual(flashmoe("verify", self.models[0]).returncode, 0)
                stats = self.assert_same_answer(self.models[0])
                sums = [sum(layer["parts"][i] for layer in model["experts"]) for i in range(n)]
                for i, disk in enumerate(stats["disks"]):
                    self.assertEqual(disk["folder"], str(self.models[i]))
                    self.assertAlmostEqual(
                        disk["bytes_read"] / sum(d["bytes_read"] for d in stats["disks"]),
                        sums[i] / sum(sums), delta=0.01)
                for place in self.models[:n]:
                    self.assertFalse(place.with_name("model.fmoe.partial").exists())
                    shutil.rmtree(place)

    def test_measured_shares(self):
        """Without --shares the disks are measured. Nothing of that is left behind."""
        self.copy_whole()
        self.pack_to(2)
        self.assert_same_answer(self.models[0])
        names = {path.name for disk in self.disks for path in disk.rglob("*")}
        self.assertFalse([name for name in names if name.endswith((".tmp", ".sums", "plan.json"))])

    def test_a_disk_gets_the_name_of_the_source(self):
        done = flashmoe("pack", NANO, "--to", f"{self.disks[0]},{self.disks[1]}", "--shares", "1,1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.disks[1] / "nano.fmoe" / "experts-000.bin").exists())
        self.whole = NANO
        stats = self.assert_same_answer(self.disks[0] / "nano.fmoe", "--reader", "uring")
        self.assertEqual(len(stats["disks"]), 2)

    def test_packing_it_again_makes_one_folder(self):
        self.copy_whole()
        self.pack_to(3, "--shares", "1,2,1")
        self.pack(self.models[0], self.dst)
        mine, right = digest(self.dst), digest(self.whole)
        for name in set(right) - {"model.json"}:
            self.assertEqual(mine[name], right[name], name)
        self.assertNotIn("disks.json", mine)

    def test_a_missing_disk(self):
        self.pack_to(2, "--shares", "1,1")
        self.models[1].rename(self.folder / "elsewhere")
        for command in ("run", "verify", "plan"):
            done = flashmoe(command, self.models[0], *(["-p", "x"] if command == "run" else []))
            self.assert_fails(done, "split over 2 folders", f"'{self.models[1]}' cannot be used",
                              "disks.json", "is its disk missing")
        # It is mounted elsewhere: the new path is written into the file, here a relative one.
        path = self.models[0] / "disks.json"
        disks = json.loads(path.read_text())
        disks["folders"][1] = "../../elsewhere"
        path.write_text(json.dumps(disks))
        self.copy_whole()
        self.assert_same_answer(self.models[0])
        done = flashmoe("run", self.folder / "elsewhere", "-p", "x")
        self.assert_fails(done, "has only part 2 of each expert", f"open '{self.models[0]}'")
        path.unlink()
        self.assert_fails(flashmoe("run", self.models[0], "-p", "x"), "disks.json' is missing")

    def test_a_swapped_disk(self):
        self.pack_to(3, "--shares", "1,1,1")
        self.models[1].rename(self.folder / "x")
        self.models[2].rename(self.models[1])
        (self.folder / "x").rename(self.models[2])
        done = flashmoe("run", self.models[0], "-p", "x")
        self.assert_fails(done, f"'{self.models[1]}' is not part 2 of the 3 parts")
        for model in self.models:
            shutil.rmtree(model)
        self.pack_to(2, "--shares", "1,1")
        (self.models[1] / "model.json").write_bytes((NANO / "model.json").read_bytes())
        done = flashmoe("run", self.models[0], "-p", "x")
        self.assert_fails(done, f"'{self.models[1]}' holds another model than "
                          f"'{self.models[0]}'", "swapped")

    def test_a_disk_fails_while_running(self):
        self.pack_to(2, "--shares", "1,1")
        ranges = self.folder / "ranges"
        ranges.write_text(f"LOSE {self.models[1]}/experts\n")
        done = run(self.models[0], range=ranges)
        self.assert_fails(done, "cannot read expert", f"'{self.models[1]}/experts-",
                          "Input/output error")

    def test_damage(self):
        self.pack_to(2, "--shares", "1,1")
        path = self.models[1] / "experts-001.bin"
        data = bytearray(path.read_bytes())
        for at in range(100, len(data), 4096):
            data[at] ^= 1
        path.write_bytes(data)
        done = flashmoe("verify", self.models[0])
        self.assertEqual(done.returncode, 1)
        self.assertIn("of layer 1", done.stdout)
        self.assertIn("and its parts in the other folders", done.stdout)
        self.assert_fails(run(self.models[0]), "is damaged", "checksum")
        path.write_bytes(data[:-4096])
        self.assert_fails(run(self.models[0]), f"{path}: the file has", "truncated")

    def test_hostile_lists(self):
        self.pack_to(2, "--shares", "1,1")
        path = self.models[0] / "disks.json"
        good = json.loads(path.read_text())
        for field, value, words in (("format", "x", ["'format'"]), ("version", 2, ["'version'"]),
                                    ("layout", "raid", ["'layout'", "split", "mirror"]),
                                    ("layout", "mirror", ["belongs to another model"]),
                                    ("here", 2, ["'here'"]), ("here", -1, ["'here'"]),
                                    ("folders", [], ["2 to 8 folders"]),
                                    ("folders", ["a"] * 9, ["2 to 8 folders"]),
                                    ("folders", ["a"] * 3, ["belongs to another model"]),
                                    ("folders", [".", ""], ["paths of folders"]),
                                    ("folders", [".", 7], ["paths of folders"]),
                                    ("folders", [".", "/dev"], ["'/dev' has no model.json"]),
                                    ("folders", [".", "."], ["is not part 2"])):
            with self.subTest(field=field, value=value):
                path.write_text(json.dumps({**good, field: value}))
                self.assert_fails(flashmoe("run", self.models[0], "-p", "x"), *words)
        path.write_text("[")
        self.assert_fails(flashmoe("run", self.models[0], "-p", "x"), "disks.json")

    def test_refusals(self):
        to = ",".join(map(str, self.models[:2]))
        for args, words, status in (
                (["--to", to, self.dst], ["DST or --to"], 2),
                ([], ["DST is missing"], 2),
                ([self.dst, "--mirror"], ["need --to"], 2),
                (["--to", str(self.models[0]), "--mirror"], ["at least two folders"], 1),
                (["--to", f"{self.models[0]},{self.models[0]}/"], ["named twice"], 1),
                (["--to", to + ","], ["empty"], 2),
                (["--to", to, "--shares", "1"], ["one number for each of the 2"], 2),
                (["--to", to, "--shares", "1,2,3"], ["one number for each of the 2"], 2),
                (["--to", to, "--shares", "1,x"], ["one number for each of the 2"], 2),
                (["--to", to, "--shares", "0,1"], ["share of folder 1 is 0"], 1),
                (["--to", to, "--shares", "nan,1"], ["share of folder 1"], 1),
                (["--to", f"{self.models[0]},{self.folder}/none/x"], ["does not exist"], 1),
                (["--to", ",".join(f"{self.folder}/{i}" for i in range(9))], ["more than 8"], 2)):
            with self.subTest(args):
                self.assert_fails(flashmoe("pack", self.golden, *args), *words, status=status)
        self.assertEqual([path for disk in self.disks for path in disk.iterdir()], [])
        self.models[1].mkdir()
        done = flashmoe("pack", self.golden, "--to", to, "--shares", "1,1")
        self.assert_fails(done, f"'{self.models[1]}' exists already")
        self.models[1].rmdir()
        foreign = self.disks[1] / "model.fmoe.partial"
        foreign.mkdir()
        (foreign / "mine").write_text("x")
        done = flashmoe("pack", self.golden, "--to", to, "--shares", "1,1")
        self.assert_fails(done, "holds 'mine' and no plan.json")
        done = flashmoe("pack", self.golden, "--to", to, "--shares", "1,1", "--restart")
        self.assert_fails(done, "holds 'mine' and no plan.json")
        self.assertEqual((foreign / "mine").read_text(), "x")


class Mirror(Disks):
    def setUp(self):
        super().setUp()
        self.copy_whole()
        self.pack_to(2, "--mirror")

    def test_bytes_and_answers(self):
        """Each folder is a whole model, and both are read."""
        for model in self.models[:2]:
            mine, right = digest(model), digest(self.whole)
            self.assertEqual(set(mine) - set(right), {"disks.json"})
            for name in right:
                self.assertEqual(mine[name], right[name], name)
            stats = self.assert_same_answer(model)
            self.assertEqual([disk["folder"] for disk in stats["disks"]],
                             [str(model), str(self.models[1 - self.models.index(model)])])
            for disk in stats["disks"]:
                self.assertGreater(disk["bytes_read"], 0)
                self.assertTrue(disk["is_mirrored"])
            self.assertEqual(flashmoe("verify", model).returncode, 0)

    def test_a_missing_disk(self):
        for i in (0, 1):
            kept = self.folder / "kept"
            self.models[i].rename(kept)
            stats = self.assert_same_answer(self.models[1 - i])
            self.assertTrue(stats["disks"][1]["is_lost"])
            done = run(self.models[1 - i])
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(f"the mirror '{self.models[i]}' is not used", lines[0])
            kept.rename(self.models[i])

    def test_a_swapped_disk(self):
        shutil.rmtree(self.models[1])
        shutil.copytree(NANO, self.models[1])
        self.assert_same_answer(self.models[0])
        done = run(self.models[0])
        self.assertIn("holds another model", done.stderr)

    def test_a_disk_fails_while_running(self):
        """Whichever it is, the answer is the same, and there is one line about it."""
        right = self.answer(self.whole)
        for i in (0, 1):
            ranges = self.folder / "ranges"
            ranges.write_text(f"LOSE {self.models[i]}/experts\n")
            done = run(self.models[0], range=ranges)
            self.assertEqual(done.returncode, 0, done.stderr)
            mine = json.loads(done.stdout)
            self.assertEqual(mine["logits_hash"], right["logits_hash"])
            self.assertTrue(mine["disks"][i]["is_lost"])
            self.assertFalse(mine["disks"][1 - i]["is_lost"])
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(f"'{self.models[i]}' cannot be read any more: Input/output error",
                          done.stderr)
            self.assertIn(f"mirror '{self.models[1 - i]}'", done.stderr)
        ranges.write_text("".join(f"LOSE {model}/experts\n" for model in self.models[:2]))
        self.assert_fails(run(self.models[0], range=ranges), "cannot read expert",
                          "Input/output error")

    def test_damaged_copies(self):
        """An expert that is damaged in one folder is taken from the other one."""
        right = self.answer(self.whole)
        for i in (0, 1):
            for path in sorted(self.models[i].glob("experts-*.bin")):
                data = bytearray(path.read_bytes())
                for at in range(50, len(data), 4096):
                    data[at] ^= 1
                path.write_bytes(data)
            done = run(self.models[0])
            if i == 0:
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["logits_hash"], right["logits_hash"])
                self.assertIn("is damaged; the one in", done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for model in self.models[:2]: # each of them reads the copies of all
                    verified = flashmoe("verify", model)
                    self.assertEqual(verified.returncode, 1)
                    self.assertIn(f"{self.models[0]}/experts-", verified.stdout + verified.stderr)
                    self.assertNotIn(f"{self.models[1]}/experts-",
                                     verified.stdout + verified.stderr)
            else:
                self.assert_fails(done, "is damaged", "checksum")


    def test_other_files_are_verified(self):
        """Every folder has to work alone: dense.bin and the tokenizer of each are looked at."""
        n = json.loads(flashmoe("verify", self.models[0], "--json").stdout)["n_tensors"]
        for name, at in (("dense.bin", 5000), ("tokenizer.json", 50)):
            path = self.models[1] / name
            right = path.read_bytes()
            path.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1:])
            for model in self.models[:2]:
                done = flashmoe("verify", model)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(str(path), done.stdout)
                self.assertEqual(done.stdout.count("BAD"), 1)
                self.assertIn(f" {n} dense tensors", done.stdout)
            path.write_bytes(right)
        (self.models[1] / "dense.bin").unlink()
        done = flashmoe("verify", self.models[0])
        self.assertEqual(done.stdout.count("cannot be read"), n)
        shutil.rmtree(self.models[1])
        done = flashmoe("verify", self.models[0])
        self.assertEqual((done.returncode, done.stdout.count("BAD")), (1, 1))
        self.assertIn(f"the mirror cannot be used: '{self.models[1]}'", done.stdout)


class MirrorTables(Disks):
    """Tables of n-grams, which stay on the disk, in two folders."""

    def setUp(self):
        super().setUp()
        self.golden = TESTS / "golden" / "qwen4_exp_text"
        self.copy_whole()
        self.pack_to(2, "--mirror")

    def test_both_are_read(self):
        self.assert_same_answer(self.models[0])
        ranges = self.folder / "ranges"
        ranges.write_text(f"LOSE {self.models[1]}/dense\n")
        done = run(self.models[0], range=ranges)
        self.assertIn(f"the n-gram tables in '{self.models[1]}' cannot be read any more: "
                      "Input/output error", done.stderr)  # so they are read there, too

    def lose_tables(self, ranges, folders):
        """Only the tables: the rest of dense.bin is read when the model opens."""
        model = json.loads((self.models[0] / "model.json").read_text())
        tensors = model["dense"]["tensors"]
        ends = [each["offset"] for each in tensors[1:]] + [model["dense"]["bytes"]]
        tables = [(each["offset"], end) for each, end in zip(tensors, ends)
                  if ".ngram_embedding." in each["name"]]
        self.assertGreater(len(tables), 0)
        ranges.write_text("".join(f"LOSE {self.models[i]}/dense {begin} {end}\n"
                                  for i in folders for begin, end in tables))

    def test_a_disk_fails_while_running(self):
        right = self.answer(self.whole)
        ranges = self.folder / "ranges"
        for i in (0, 1):
            self.lose_tables(ranges, [i])
            done = run(self.models[0], range=ranges)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["logits_hash"], right["logits_hash"])
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(f"Going on with the mirror '{self.models[1 - i]}'", done.stderr)
        self.lose_tables(ranges, [0, 1])
        self.assert_fails(run(self.models[0], range=ranges), "of the n-gram table",
                          "Input/output error")

    def test_a_copy_of_another_size(self):
        right = self.answer(self.whole)
        with open(self.models[1] / "dense.bin", "ab") as file:
            file.write(b"x")
        done = run(self.models[0])
        self.assertEqual(json.loads(done.stdout)["logits_hash"], right["logits_hash"])
        self.assertIn("are not used", done.stderr)


class Speeds(Disks):
    """Measuring disks takes a while."""

    def test_speeds_are_shown(self):
        self.copy_whole()
        self.pack_to(2, "--mirror")
        for command in ("plan", "doctor"):
            args = ["--quick"] if command == "doctor" else []
            shown = flashmoe(command, self.models[0], "--quiet", *args)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            for model in self.models[:2]:
                self.assertRegex(shown.stdout, rf"(?m)^  mirror +[0-9.]+ [kMG]?B/s, {model}$")
            disks = json.loads(flashmoe(command, self.models[0], "--quiet", "--json",
                                        *args).stdout)["disks"]
            self.assertEqual([disk["folder"] for disk in disks], list(map(str, self.models[:2])))
            self.assertTrue(all(disk["read_gb_per_s"] > 0 for disk in disks))
        done = flashmoe("run", self.models[0], "--raw", "-p", "a", "-n", "4", "--greedy", "--stats")
        for model in self.models[:2]:
            self.assertRegex(done.stderr, rf"disk {model}: .* of experts .*B/s while it was busy")


class Killed(Disks):
    """A packing that is killed at any call, and continued, ends with the same bytes."""

    def check(self, *args):
        self.pack_to(2, *args)
        right = [digest(model) for model in self.models[:2]]
        to = ",".join(map(str, self.models[:2]))
        for model in self.models[:2]:
            shutil.rmtree(model)
        n_calls = self.count_calls_of("pack", self.golden, "--to", to, *args)
        for model in self.models[:2]:
            shutil.rmtree(model)
        step = max(1, n_calls // N_KILLS)
        n_killed = 0
        places = list(range(1 + random.Random(3).randrange(step), n_calls + 1, step))
        for at in places + list(range(n_calls - 12, n_calls + 1, 3)):
            with self.subTest(at=at):
                done = flashmoe("pack", self.golden, "--to", to, *args, kind="kill", at=at)
                n_killed += done.returncode == -9
                done = flashmoe("pack", self.golden, "--to", to, *args)
                if done.returncode != 0:
                    self.assertIn("exists already", done.stderr)
                self.assertEqual([digest(model) for model in self.models[:2]], right)
                for disk in self.disks[:2]:
                    self.assertEqual([path.name for path in disk.iterdir()], ["model.fmoe"])
                    shutil.rmtree(disk / "model.fmoe")
        self.assertGreater(n_killed, N_KILLS // 2)

    def count_calls_of(self, *args):
        path = self.folder / "count"
        done = flashmoe(*args, count=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(path.read_text())

    def test_split(self):
        self.check("--shares", "2,1")

    def test_mirror(self):
        self.check("--mirror")

    def test_measured_shares_are_kept(self):
        """What was measured once is used when the packing continues."""
        to = ",".join(map(str, self.models[:2]))
        done = flashmoe("pack", self.golden, "--to", to, kind="kill",
                        on="rename:experts-002.bin.tmp")
        self.assertEqual(done.returncode, -9)
        sizes = {path: path.stat().st_size for path in
                 self.disks[1].glob("model.fmoe.partial/experts-00[01].bin")}
        self.assertEqual(len(sizes), 2)
        done = flashmoe("pack", self.golden, "--to", to)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resumed", done.stderr)
        for path, size in sizes.items():
            self.assertEqual((self.models[1] / path.name).stat().st_size, size)

    def test_other_folders(self):
        to = ",".join(map(str, self.models[:2]))
        args = ["--shares", "1,1"]
        done = flashmoe("pack", self.golden, "--to", to, *args, kind="kill",
                        on="rename:experts-001.bin.tmp")
        self.assertEqual(done.returncode, -9)
        done = flashmoe("pack", self.golden, "--to", to, "--mirror")
        self.assert_fails(done, "was begun with --to")
        done = flashmoe("pack", self.golden, self.models[0])
        self.assert_fails(done, "was begun with --to")
        done = flashmoe("pack", self.golden, "--to", f"{self.models[2]},{self.models[1]}", *args)
        self.assert_fails(done, "belongs to another packing")
        self.pack_to(2, *args, "--restart")
        self.assertEqual(flashmoe("verify", self.models[0]).returncode, 0)


if __name__ == "__main__":
    os.environ.setdefault("XDG_CACHE_HOME", "/nonexistent")
    main()
