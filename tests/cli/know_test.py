"""Tests what the program reports about its own speed: limit, miss curve, profile, plan.

Usage: know_test.py PROGRAM MODEL [TestClass...]

MODEL is a tiny checkpoint with a tokenizer; where experts must be read, nano is used.
"""

import csv
import json
import os
import re
import sys
import tempfile
import unittest

import cli_test
from cli_test import Case, flashmoe

SMALL = ("nano", "--memory", "64M")
THREE = ("--tokens", "3", "--repeat", "3")


def info_of(model):
    return json.loads(flashmoe("inspect", model, "--json").stdout)


class Limit(Case):
    def check(self, limit, info, position):
        """The figures are consistent with each other and with inspect."""
        kv = info["kv_position_bytes"] * position + 2 * info["state_bytes"]
        memory = info["expert_token_bytes"] + info["dense_token_bytes"] + kv
        memory += 2 * limit["miss_bytes"]
        self.assertAlmostEqual(limit["kv_bytes"] / kv, 1, places=8)
        self.assertAlmostEqual(limit["memory_bytes"] / memory, 1, places=8)
        ram = memory / limit["memory_bytes_per_s"]
        io = limit["miss_bytes"] / limit["disk_bytes_per_s"] if limit["miss_bytes"] > 0 else 0
        self.assertAlmostEqual(limit["t_ram_s"] / ram, 1, places=6)
        self.assertAlmostEqual(limit["t_io_s"], io, places=9)
        fma = limit["mul_adds"] / limit["mul_adds_per_s"]
        self.assertAlmostEqual(limit["t_fma_s"] / fma, 1, places=6)
        longest = max(io, ram, fma)
        self.assertEqual(limit["bound_by"], {io: "disk", fma: "arithmetic", ram: "memory"}[longest])
        self.assertAlmostEqual(limit["overlapped_tok_per_s"] * longest, 1, places=6)
        self.assertAlmostEqual(limit["serial_tok_per_s"] * (io + max(ram, fma)), 1, places=6)
        percent = 100 * limit["tok_per_s"] / limit["overlapped_tok_per_s"]
        self.assertIs(limit["was_busy"], percent > 105)
        if limit["was_busy"]:
            self.assertIs(limit["percent"], None)
        else:
            self.assertAlmostEqual(limit["percent"] / percent, 1, places=6)
            self.assertAlmostEqual(limit["memory_percent"] / (100 * ram * limit["tok_per_s"]), 1,
                                   places=6)

    def check_bench(self, found, info):
        """The printed speed is the one that the share of the limit refers to."""
        self.assertEqual(found["limit"]["tok_per_s"], found["tok_per_s"])
        speeds = sorted(one["tok_per_s"] for one in found["stretches"])
        self.assertEqual(found["tok_per_s"], speeds[1])
        self.check(found["limit"], info, found["n_context_tokens"] + 4)

    def test_resident(self):
        found = json.loads(self.assert_works(
            flashmoe("bench", "decode", cli_test.MODEL, *THREE, "--json")).stdout)
        self.assertEqual(found["limit"]["miss_bytes"], 0)
        self.assertIs(found["limit"]["disk_bytes_per_s"], None)
        self.assertAlmostEqual(found["limit"]["memory_bytes_per_s"] * 1e-9,
                               found["memory_read_gb_per_s"], places=6)
        self.check_bench(found, info_of(cli_test.MODEL))

    def test_context(self):
        """A long context is not computed, and counts in bytes and in multiply-adds."""
        args = ("bench", "decode", cli_test.MODEL, *THREE, "--json")
        short = json.loads(self.assert_works(flashmoe(*args)).stdout)
        found = json.loads(self.assert_works(flashmoe(*args, "--context", "600")).stdout)
        self.assertEqual((short["n_context_tokens"], short["n_prompt_tokens"]), (16, 16))
        self.assertEqual((found["n_context_tokens"], found["n_prompt_tokens"]), (600, 256))
        self.check_bench(found, info_of(cli_test.MODEL))
        self.assertAlmostEqual(found["limit"]["mul_adds"] / short["limit"]["mul_adds"], 604 / 20)
        self.assertNotEqual(found["logits_hash"], short["logits_hash"])

    def test_read(self):
        args = ("bench", "decode", *SMALL, *THREE, "--lookahead", "off")
        found = json.loads(self.assert_works(flashmoe(*args, "--json")).stdout)
        self.assertIs(found["is_resident"], False)
        self.assertGreater(found["bytes_per_token"], 0)
        self.assertAlmostEqual(found["limit"]["miss_bytes"] / found["bytes_per_token"], 1,
                               places=8)
        self.assertGreater(found["limit"]["disk_bytes_per_s"], 0)
        self.check_bench(found, info_of("nano"))
        out = self.assert_works(flashmoe(*args)).stdout
        speed = float(re.search(r"(?m)^speed +([\d.]+) tok/s median, ", out)[1])
        percent, why, limit = re.search(
            r"(?m)^limit +(?:([\d.]+)% of |no share: (.*); )([\d.]+) tok/s, "
            r"bound by (?:the disk|memory): ", out).groups()
        reached = 100 * speed / float(limit)
        if percent is None:
            self.assertGreater(reached, 104.9)
            self.assertIn(f"{speed:.2f} tok/s are above the limit (the machine was busy", why)
        else:
            self.assertAlmostEqual(float(percent), reached,
                                   delta=0.06 + float(percent) * 0.01 / speed)
        self.assertRegex(out, r"(?m)^disk read +[\d.]+ .B/s, .* experts of .* measured after$")


class Stats(Case):
    def run_json(self, *args):
        return json.loads(self.assert_works(flashmoe("run", *args, "--no-heat", "--json")).stdout)

    def test_curve_is_that_of_the_replay(self):
        """The predicted hit rates of other caches are right within points."""
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "t.csv")
            found = self.run_json(*SMALL, "-p", "Write a story about a fox.", "-n", "120",
                                  "--greedy", "--stats", "--trace", trace, "--lookahead",
                                  "off")["stats"]
            replay = json.loads(self.assert_works(
                flashmoe("bench", "replay", trace, "--residency", "12.5,25,50,75,100",
                         "--json")).stdout)
        self.assertEqual(len(found["miss_curve"]), 5)
        # The replay has read the whole prompt token by token; the run has swept through it.
        for point, real in zip(found["miss_curve"], replay["points"]):
            self.assertAlmostEqual(point["share"], real["share"], delta=0.02)
            self.assertAlmostEqual(point["hit_rate"], real["hits"]["lcp"], delta=0.06)
        self.assertAlmostEqual(found["cache"]["hit_rate"], found["cache_hit_rate_of_curve"],
                               delta=0.06)
        self.assertGreater(found["one_more_gib"]["hit_rate"], found["cache"]["hit_rate"])
        self.assertEqual(found["one_more_gib"]["share"], 1)

    def test_text(self):
        result = self.assert_works(flashmoe("run", *SMALL, "-p", "hi", "-n", "12", "--stats",
                                            "--no-heat"))
        self.assertRegex(result.stderr, r"(?m)^flashmoe: limit: (?:[\d.]+% of |no share: [\d.]+ "
                                        r"tok/s are above the limit .*; )[\d.]+ tok/s, bound by ")
        self.assertRegex(result.stderr, r"(?m)^flashmoe: miss curve: .* 100%: [\d.]+%$")
        self.assertRegex(result.stderr, r"(?m)^flashmoe: \+1 GiB: cache [\d.]+% -> 100.0% of "
                                        r"experts, hit rate [\d.]+% -> [\d.]+%, limit [\d.]+ -> "
                                        r"[\d.]+ tok/s$")

    def test_nothing_to_know(self):
        result = self.assert_works(flashmoe("run", cli_test.MODEL, "-p", "hi", "-n", "1",
                                            "--stats"))
        self.assertIn("no token was decoded", result.stderr)
        found = self.run_json(cli_test.MODEL, "-p", "hi", "-n", "6", "--stats")["stats"]
        self.assertEqual(found["limit"]["bound_by"], "memory")
        self.assertNotIn("stats", self.run_json(cli_test.MODEL, "-p", "hi", "-n", "2"))


class Profile(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def rows(self, name, *args):
        path = os.path.join(self.folder, name)
        out = self.assert_works(flashmoe(*args, "--profile", path, "--json")).stdout
        self.assertEqual(os.listdir(self.folder), [name])
        with open(path, encoding="ascii") as file:
            if name.endswith(".json"):
                profile = json.load(file)
                rows = profile.pop("rows")
                self.assertEqual(profile, {"routes": None, "approximate": None})
            else:
                rows = [{key: int(value) for key, value in row.items()}
                        for row in csv.DictReader(file)]
        os.unlink(path)
        return json.loads(out), rows

    def test_run(self):
        args = ("run", *SMALL, "-p", "Write a story.", "-n", "9", "--greedy", "--no-heat",
                "--lookahead", "off")
        plain = json.loads(self.assert_works(flashmoe(*args, "--json")).stdout)
        found, rows = self.rows("p.csv", *args)
        self.assertEqual(found["logits_hash"], plain["logits_hash"])
        n_layers = info_of("nano")["n_layers"]
        self.assertEqual([row["layer"] for row in rows],
                         list(range(n_layers + 1)) * (len(rows) // (n_layers + 1)))
        n_tokens = sum(row["n_tokens"] for row in rows if row["layer"] == 0)
        self.assertEqual(n_tokens, found["n_prompt_tokens"] + 8)
        self.assertEqual(rows[-1]["position"], found["n_prompt_tokens"] + 7)
        self.assertEqual(rows[-1]["evaluation"], len(rows) // (n_layers + 1))
        for key, column in (("n_expert_hits", "hits"), ("n_expert_misses", "misses"),
                            ("bytes_read", "bytes_read")):
            self.assertEqual(sum(row[column] for row in rows), found[key])
        for row in rows:
            self.assertGreater(row["compute_ns"], 0)
            self.assertEqual(row["misses"] > 0, row["read_ns"] > 0)
            self.assertEqual(row["layer"] < n_layers, row["mix_ns"] > 0)
            if row["misses"] > 0: # reads end before the last expert is computed
                self.assertLess(row["read_ns"], row["wait_ns"] + row["compute_ns"])

    def test_bench(self):
        small = ("--tokens", "5", "--repeat", "2")
        n_layers = info_of(cli_test.MODEL)["n_layers"]
        _, rows = self.rows("p.json", "bench", "decode", cli_test.MODEL, *small)
        self.assertEqual(len(rows), 10 * (n_layers + 1)) # without the warm-up
        self.assertEqual({row["n_tokens"] for row in rows}, {1})
        _, rows = self.rows("p.csv", "bench", "prefill", cli_test.MODEL, *small)
        self.assertEqual(sum(row["n_tokens"] for row in rows if row["layer"] == 0), 10)

    def test_faults(self):
        gone = os.path.join(self.folder, "no", "p.csv")
        for command in (("run", cli_test.MODEL, "-p", "hi"), ("bench", "decode", cli_test.MODEL)):
            self.assert_fails(flashmoe(*command, "--profile", gone), 1, "--profile", gone)
        path = os.path.join(self.folder, "p.csv")
        result = flashmoe("run", cli_test.MODEL, "-p", "hi", "-n", "4", "-q", "--profile", path,
                          max_file_bytes=100)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"flashmoe: --profile: cannot write '{path}': ", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])


class Plan(Case):
    def plan(self, *args):
        return json.loads(self.assert_works(flashmoe("plan", *args, "--json")).stdout)

    def test_mtp(self):
        """The block for multi-token prediction: shown, and counted by plan when it drafts."""
        out = self.assert_works(flashmoe("inspect", "nano")).stdout
        self.assertRegex(out, r"Prediction +1 layer that drafts .*--draft auto or mtp")
        self.assertNotIn("Not used", out)
        info = json.loads(self.assert_works(flashmoe("inspect", "nano", "--json")).stdout)
        mtp = info["mtp"]
        self.assertEqual((mtp["n_layers"], mtp["is_usable"], info["n_layers"]), (1, True, 8))
        self.assertEqual(mtp["experts_bytes"], info["experts_bytes"] // 8)
        dense = [self.plan("nano", "--draft", which, "--memory", "100M", "--disk-speed", "1",
                           "--memory-speed", "10")["budgets"][0]["memory_dense_bytes"]
                 for which in ("off", "lookup", "auto", "mtp")]
        self.assertEqual(dense, [info["dense_bytes"]] * 2 +
                         [info["dense_bytes"] + mtp["dense_bytes"]] * 2)
        info = json.loads(self.assert_works(flashmoe("inspect", cli_test.MODEL, "--json")).stdout)
        self.assertIsNone(info["mtp"])

    def test_is_what_run_does(self):
        """The budget is divided as run divides it."""
        found = self.plan(*SMALL, "--context", "256")
        row = found["budgets"][found["chosen"]]
        self.assertEqual(row["what"], "--memory")
        self.assertEqual(row["memory_budget_bytes"], 64 << 20)
        run = json.loads(self.assert_works(
            flashmoe("run", *SMALL, "--context", "256", "-p", "hi", "-n", "1", "--no-heat",
                     "--json")).stdout)
        self.assertEqual(row["n_context"], 256)
        self.assertEqual(row["prefill_chunk"], run["prefill_chunk"])
        self.assertAlmostEqual(row["n_cache_slots"], run["n_cache_slots"], delta=20)
        parts = sum(row[f"memory_{part}_bytes"]
                    for part in ("program", "dense", "cache", "kv", "scratch"))
        self.assertLessEqual(parts, row["memory_budget_bytes"])

    def test_options_are_those_of_run(self):
        few = self.plan(*SMALL, "--experts-per-token", "2", "--elastic", "off", "--pin")
        info, label = info_of("nano"), "approximate: 2 of 8 experts per token"
        self.assertEqual(few["approximate"], label)
        self.assertEqual(few["budgets"][0]["limit"]["expert_bytes"],
                         info["expert_token_bytes"] / 4)
        exact = self.plan(*SMALL)
        self.assertIs(exact["approximate"], None)
        self.assertLess(few["min_bytes"], exact["min_bytes"])
        self.assertIn(f"\n{label}\n", self.assert_works(
            flashmoe("plan", *SMALL, "--experts-per-token", "2")).stdout)
        self.assert_fails(flashmoe("plan", *SMALL, "--elastic", "maybe"), 1, "'maybe'")

    def test_path_of_routes(self):
        """Any name that a file can have."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a\udcff.csv")
            self.assert_works(flashmoe("run", *SMALL, "-p", "hi", "-n", "4", "--no-heat", "--trace",
                                       path))
            self.assertIn("a\ufffd.csv", self.plan(*SMALL, "--routes", path)["routes"])

    def test_rows(self):
        found = self.plan(*SMALL)
        info = info_of("nano")
        rows = found["budgets"]
        self.assertEqual([row["memory_budget_bytes"] for row in rows],
                         sorted(row["memory_budget_bytes"] for row in rows))
        for key in ("share", "hit_rate"):
            self.assertEqual([row[key] for row in rows], sorted(row[key] for row in rows))
        self.assertEqual(rows[0]["what"], "the smallest that works")
        self.assertEqual((rows[-1]["what"], rows[-1]["share"]), ("every expert fits", 1))
        for row in rows:
            self.assertEqual(row["n_cache_slots"], round(row["share"] * found["n_experts"]))
            self.assertAlmostEqual(row["limit"]["miss_bytes"],
                                   (1 - row["hit_rate"]) * info["expert_token_bytes"], places=2)
            self.assertLessEqual(row["limit"]["serial_tok_per_s"],
                                 row["limit"]["overlapped_tok_per_s"])
            cold = (info["dense_bytes"] + info["expert_token_bytes"]) / 1e9
            self.assertGreaterEqual(row["first_token_s"], cold / found["disk_read_gb_per_s"] * 0.99)

    def test_hits_are_those_of_the_replay(self):
        found = self.plan(*SMALL, "--policy", "lru", "--routes", "gen:seed=7")
        row = found["budgets"][found["chosen"]]
        info = info_of("nano")
        replay = json.loads(self.assert_works(flashmoe(
            "bench", "replay", "gen:seed=7", "--residency", str(100 * row["share"]), "--layers",
            str(info["n_moe_layers"]), "--experts", str(info["n_experts"]), "--used",
            str(info["n_experts_per_token"]), "--tokens", "256", "--json")).stdout)
        self.assertAlmostEqual(row["hit_rate"], replay["points"][0]["late_hits"]["lru"], places=6)

    def test_too_small(self):
        """The smallest budget that it names works; a little less does not."""
        result = flashmoe("plan", "nano", "--memory", "8M")
        self.assert_fails(result, 1, "the model needs at least", "dense weights", "the budget is 8")
        least = re.search(r"the smallest budget that works here is --memory (\d+)M", result.stderr)
        self.assert_works(flashmoe("run", "nano", "--memory", least[1] + "M", "-p", "hi", "-n", "2",
                                   "--no-heat"))
        self.assert_fails(flashmoe("run", "nano", "--memory", f"{int(least[1]) - 6}M", "-p", "hi",
                                   "--no-heat", "-q"), 1, "the model needs at least")

    def test_text(self):
        out = self.assert_works(flashmoe("plan", *SMALL)).stdout
        for word in ("memory read ", "disk read ", "routing      gen: ", "budget       64.0 MiB\n",
                     "every expert fits", "the smallest that works", "--memory <-"):
            self.assertIn(word, out)

    def test_another_machine(self):
        """Speeds that are given are used, nothing is measured, and no memory is too much."""
        speeds = ("--disk-speed", "2", "--memory-speed", "50")
        rows = [self.plan("nano", "--memory", "900T", *speeds, "--threads", "4")
                for _ in range(2)]
        self.assertEqual(rows[0]["disk_read_gb_per_s"], 2)
        self.assertEqual(rows[0]["memory_read_gb_per_s"], 50)
        limits = [row["budgets"][-1]["limit"] for row in rows]
        self.assertEqual(*limits)
        self.assertAlmostEqual(limits[0]["t_ram_s"], limits[0]["memory_bytes"] / 50e9)
        least = rows[0]["budgets"][0]["limit"]
        self.assertAlmostEqual(least["t_io_s"], least["miss_bytes"] / 2e9)
        self.assertEqual(rows[0]["budgets"][-1]["memory_budget_bytes"], 900 << 40)
        out = self.assert_works(flashmoe("plan", *SMALL, *speeds)).stdout
        self.assertIn("\nmemory read  50.0 GB/s, as given\ndisk read    2.0 GB/s, as given\n", out)
        self.assertNotIn("measured", out)
        self.assert_fails(flashmoe("plan", *SMALL, *speeds[:2]), 2, "--memory-speed")
        self.assert_fails(flashmoe("plan", *SMALL, *speeds[2:]), 2, "--disk-speed")
        self.assert_fails(flashmoe("plan", "nano", *speeds), 2, "need --memory")

    def test_faults(self):
        self.assert_fails(flashmoe("plan", "nano", "--policy", "best"), 1, "'best'")
        self.assert_fails(flashmoe("plan", "nano", "--routes", "gen:what=1"), 1, "what")
        self.assert_fails(flashmoe("plan", "no/such"), 1, "no/such")


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
