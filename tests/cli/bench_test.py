"""Tests measurements with changing topics: bench switch, bench stream, and recordings.

Usage: bench_test.py PROGRAM MODEL [TestClass...]

MODEL is a tiny checkpoint. What must be read from the disk is measured on nano, with budgets that
follow from what the program says it needs at least: one built with a sanitizer is larger.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import cli_test
from cli_test import Case, flashmoe

LABEL = "the text is meaningless, speed only"
# Guesses depend on the clock; misses should not.
STEADY = ("--lookahead", "off", "--quiet")


def min_bytes(*args):
    """Returns the minimum budget of a command, from its own message."""
    said = flashmoe(*args, "--memory", "1M").stderr
    return int(float(re.search(r"needs at least ([\d.]+) MiB", said)[1]) * (1 << 20))


def mean(values):
    return sum(values) / len(values)


class Switch(Case):
    def switch(self, *args):
        return json.loads(self.assert_works(flashmoe("bench", "switch", *args, "--json")).stdout)

    @classmethod
    def setUpClass(cls):
        cls.floor = min_bytes("bench", "switch", "nano", "--tokens", "64")
        cls.small = ("--memory", str(cls.floor + (16 << 20)))

    def check_tokens(self, found, n):
        tokens = found["tokens"]
        self.assertEqual([one["token"] for one in tokens], [*range(-n, 0), *range(1, n + 1)])
        for key in ("ms", "misses", "bytes"):
            values = [one[key] for one in tokens]
            self.assertAlmostEqual(found["before"][key], mean(values[n - 32:n]), places=3)
            self.assertAlmostEqual(found["steady"][key], mean(values[-32:]), places=3)
        worst = max(tokens[n:n + 32], key=lambda one: one["ms"])
        self.assertEqual(found["worst"], worst)

    def check_back(self, found, n):
        """Finds the first window of eight tokens whose misses are within 10 % of the steady
        state."""
        misses = [one["misses"] for one in found["tokens"][n:]]
        near = [i for i in range(n - 7)
                if mean(misses[i:i + 8]) <= 1.1 * found["steady"]["misses"] + 0.5]
        self.assertEqual(found["tokens_until_misses"], near[0])

    def test_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "switch.csv")
            found = self.switch("nano", "--tokens", "64", *self.small, *STEADY, "--csv", path)
            self.assertEqual(os.listdir(folder), ["switch.csv"])
            with open(path, encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.check_tokens(found, 64)
        self.check_back(found, 64)
        self.assertEqual(found["switch"], "C code to Chinese verse")
        self.assertIs(found["routes"], None)
        if "FLASHMOE_SANITIZED" not in os.environ: # a sanitizer adds to the resident memory
            self.assertLessEqual(found["memory_bytes"], found["memory_budget_bytes"] * 1.02)
        # The new topic comes with its prompt; a few tokens later everything is as before.
        self.assertGreater(found["prompt"]["n_tokens"], 8)
        self.assertGreater(found["prompt"]["misses"], 4 * found["before"]["misses"])
        self.assertGreater(found["extra"]["misses"], 0.5 * found["prompt"]["misses"])
        self.assertGreater(found["before"]["misses"], 1)
        self.assertLess(found["steady"]["misses"], 2 * found["before"]["misses"])
        self.assertIsInstance(found["tokens_until_misses"], int)
        rows = [{key: float(value) for key, value in row.items()} for row in rows]
        prompt = rows.pop(64)
        self.assertEqual((prompt["token"], prompt["misses"]), (0, found["prompt"]["misses"]))
        for row, token in zip(rows, found["tokens"], strict=True):
            self.assertEqual({**row, "ms": 0}, {**token, "ms": 0})

    def test_same_text_at_every_budget(self):
        floor = self.switch("nano", "--tokens", "64", "--memory", str(self.floor + (2 << 20)))
        all_of_it = self.switch("nano", "--tokens", "64")
        self.assertEqual(floor["logits_hash"], all_of_it["logits_hash"])
        self.assertGreater(floor["steady"]["misses"], all_of_it["steady"]["misses"] + 8)

    def test_generated(self):
        found = self.switch("nano", "--routes", "gen:seed=7", "--tokens", "64", *self.small,
                            *STEADY)
        self.check_tokens(found, 64)
        self.check_back(found, 64)
        self.assertIs(found["prompt"], None)
        self.assertIn("seed=7", found["routes"])
        self.assertIn(LABEL, found["routes"])
        misses = [one["misses"] for one in found["tokens"]]
        self.assertGreater(mean(misses[64:68]), 2 * found["before"]["misses"])  # no token later
        self.assertLess(found["steady"]["misses"], mean(misses[64:68]) / 2)
        self.assertTrue(0 < found["tokens_until_misses"] < 64)

    def test_text(self):
        out = self.assert_works(flashmoe("bench", "switch", "nano", "--tokens", "72",
                                         *self.small, *STEADY)).stdout
        row = r"(?m)^%s {2,}%s( +[\d.]+){3}$"
        for title, tokens in (("before", "-32 to -1"), ("prompt", "0"), ("after", "1"), ("", "8"),
                              ("", "9 to 16"), ("", "33 to 64"), ("", "65 to 72"),
                              ("steady", "41 to 72")):
            self.assertRegex(out, row % (title, tokens))
        for word in ("A token needs 64 experts", "worst token  ", "times the mean before",
                     "\nextra        ", " MB, ", "including the prompt", "the model's own"):
            self.assertIn(word, out)
        self.assertRegex(out, r"(?m)^steady +time (after \d+|not within 72) tokens?, misses ")

    def test_no_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(cli_test.MODEL, model)
            os.remove(os.path.join(model, "tokenizer.json"))
            result = self.assert_works(flashmoe("bench", "switch", model, "--tokens", "64"))
        self.assertIn("one generated topic to the next", result.stdout)
        self.assertIn(LABEL, result.stdout)
        self.assertIn(LABEL, result.stderr)

    def test_refused(self):
        switch = ("bench", "switch", cli_test.MODEL)
        self.assert_fails(flashmoe(*switch, "--routes", "gen:topic=9"), 2, "'gen:topic=9'")
        self.assert_fails(flashmoe(*switch, "--routes", "x.csv"), 2, "x.csv", "gen:KEY=VALUE")
        self.assert_fails(flashmoe(*switch, "--tokens", "63"), 2, "63")
        self.assert_fails(flashmoe(*switch, "--csv", "/no/such/folder/x"), 1, "--csv", "/no/such")

    def test_interrupted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.csv")
            process = subprocess.Popen([cli_test.PROGRAM, "bench", "switch", "nano", "--tokens",
                                        "1800", *self.small, "--csv", path],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while not os.path.exists(path + ".part"):  # created at the start
                self.assertIsNone(process.poll())
                time.sleep(0.005)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=1800)
            self.assertEqual((process.returncode, out), (130, b""))
            self.assertEqual(err, b"flashmoe: interrupted; no result\n")
            self.assertEqual(os.listdir(folder), [])


class Stream(Case):
    def test_nano(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "a&b<c>\udcff\x01.fmoe")  # a name that XML cannot contain
            nano = json.loads(flashmoe("inspect", "nano", "--json").stdout)["model"]
            os.symlink(os.path.abspath(nano), model)
            path = os.path.join(folder, "plot.svg")
            found = json.loads(self.assert_works(flashmoe(
                "bench", "stream", model, "--tokens", "90", "--budgets", "all,floor,70%,floor",
                "--svg", path, *STEADY, "--json")).stdout)
            svg = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual((found["n_tokens"], found["n_topic_tokens"]), (90, 15))
        self.assertEqual(len(found["topics"]), 6)
        self.assertIs(found["routes"], None)
        self.check_points(found)
        self.check_plot(svg, found)
        self.assertIn("a&b<c>??.fmoe", "".join(svg.itertext()))

    def check_points(self, found):
        points = found["budgets"]
        self.assertEqual(len(points), 3)  # sorted, and without duplicates
        self.assertEqual(found["disk_bytes_per_s"]["n_measured"], 4)
        for speeds in (found["disk_bytes_per_s"], found["memory_bytes_per_s"]):
            self.assertTrue(0 < speeds["min"] <= speeds["mean"] <= speeds["max"])
        budgets = [point["memory_budget_bytes"] for point in points]
        self.assertEqual(budgets, sorted(set(budgets)))
        floor, all_of_it = points[0], points[1]
        self.assertLess(floor["resident_share"], 0.25)
        self.assertEqual(all_of_it["resident_share"], 1)
        self.assertIs(found["logits_depend_on_budget"], False)
        for point in points:
            self.assertGreaterEqual(point["n_shrinks"], 0)
            self.assertGreaterEqual(point["n_grows"], 0)
            if point["memory_bytes"] is not None:
                self.assertLessEqual(point["memory_bytes"], point["memory_budget_bytes"] * 1.02)
            for name in ("cold", "warm"):
                one = point[name]
                limit = one["limit"]
                self.assertGreater(one["tok_per_s"], 0)
                self.assertAlmostEqual(limit["miss_bytes"], one["bytes_per_token"], places=3)
                percent = one["tok_per_s"] / limit["overlapped_tok_per_s"] * 100
                self.assertIs(limit["was_busy"], percent > 105)
                if limit["was_busy"]:
                    self.assertIs(limit["percent"], None)
                else:
                    self.assertAlmostEqual(percent, limit["percent"], places=2)
                self.assertIn(limit["bound_by"], ("disk", "memory"))
        self.assertLess(floor["warm"]["hit_rate"], 0.7)
        self.assertGreater(all_of_it["warm"]["hit_rate"], 0.95)
        self.assertGreater(all_of_it["warm"]["hit_rate"], all_of_it["cold"]["hit_rate"])
        self.assertGreater(floor["warm"]["bytes_per_token"],
                           10 * all_of_it["warm"]["bytes_per_token"])

    def check_plot(self, svg, found):
        space = "{http://www.w3.org/2000/svg}"
        self.assertEqual(svg.tag, space + "svg")
        is_large = found["budgets"][-1]["memory_budget_bytes"] >= 1 << 30
        texts = [text.text for text in svg.iter(space + "text")]
        tips = [title.text for title in svg.iter(space + "title")]
        self.assertIn("prefers-color-scheme: dark", svg.find(space + "style").text)
        for point in found["budgets"]:
            size = point["memory_budget_bytes"] / (1 << (30 if is_large else 20))
            name = f"{size:.2f} GiB" if is_large else f"{size:.1f} MiB"
            for one in ("cold", "warm"):
                n_known = 3 if point[one]["limit"]["was_busy"] else 4 # then no share is drawn
                self.assertEqual(sum(tip.startswith(f"{one}, {name}: ") for tip in tips),
                                 n_known)
            speed = [tip for tip in tips if tip.startswith(f"warm, {name}: ")
                     and tip.endswith("tokens per second")]
            self.assertEqual(speed, [f"warm, {name}: {point['warm']['tok_per_s']:.4g} "
                                     "tokens per second"])
        for word in ("cold", "warm", "Routes: the model's own"):
            self.assertIn(word, texts)
        paths = [path.get("class") for path in svg.iter(space + "path")]
        self.assertEqual(sorted(paths), 4 * ["dashed"] + ["dotted"] + 4 * ["solid"])
        width, height = float(svg.get("width")), float(svg.get("height"))
        for circle in svg.iter(space + "circle"):
            self.assertTrue(0 < float(circle.get("cx")) < width)
            self.assertTrue(0 < float(circle.get("cy")) < height)

    def test_generated(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plot.svg")
            result = self.assert_works(flashmoe("bench", "stream", cli_test.MODEL, "--routes",
                                                "gen", "--tokens", "12", "--budgets", "floor,all",
                                                "--svg", path))
            with open(path, encoding="utf-8") as file:
                self.assertIn("meaningless", file.read())
        self.assertEqual(result.stderr.count(LABEL), 1)
        self.assertRegex(result.stdout, f"(?m)^routes .*topic=2,topics=6.*{LABEL}$")
        number = r" +[\d.]+"
        row = number * 3 + r" +(?:disk|memory)" + number + r" +([\d.]+|busy)$"
        self.assertEqual(len(re.findall(r"(?m)^ +[\d.]+ MiB +[\d.]+ +cold" + row, result.stdout)),
                         2)
        self.assertEqual(len(re.findall(r"(?m)^ +warm" + row, result.stdout)), 2)
        shares = re.findall(r"(?m)^.* (?:cold|warm)" + row, result.stdout)
        self.assertTrue(all(share == "busy" or float(share) <= 105 for share in shares), shares)
        self.assertEqual("busy" in shares, "busy         above the limit" in result.stdout)
        self.assertRegex(result.stdout, r"(?m)^disk read .* to .*, measured 3 times; experts of ")
        self.assertIn("the logits are identical at every budget", result.stdout)

    def test_recording(self):
        trace = os.path.join(os.path.dirname(cli_test.MODEL), "..", "fuzz", "corpus", "routes",
                             "two-turns.csv")
        out = self.assert_works(flashmoe("bench", "stream", cli_test.MODEL, "--routes", trace,
                                         "--tokens", "12", "--budgets", "all")).stdout
        self.assertIn("topics       from the routes", out)
        self.assertIn("two-turns.csv", out)

    def test_refused(self):
        stream = ("bench", "stream", cli_test.MODEL)
        for text in ("", "1G,", "1G,large", ",1G", "9" * 70, ",".join(["all"] * 17)):
            result = flashmoe(*stream, "--budgets", text)
            self.assert_fails(result, 2, "--budgets")
        self.assert_fails(flashmoe(*stream, "--budgets", "all", "--memory", "1G"), 2, "--memory")
        self.assert_fails(flashmoe(*stream, "--heat", "x"), 2, "--heat", "cold")
        self.assert_fails(flashmoe(*stream, "--svg", "/no/such/folder/x"), 1, "--svg")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.svg")
            result = flashmoe(*stream, "--budgets", "all,1M", "--svg", path)
            self.assert_fails(result, 1, "needs at least", "the budget is 1.0 MiB")
            self.assertEqual(os.listdir(folder), [])


class Predicted(Case):
    """Lookahead finds as many of generated experts as the routes say, and none without that."""

    def decode(self, routes):
        args = ("bench", "decode", "nano", "--tokens", "24", "--repeat", "2")
        if not hasattr(self, "floor"):
            self.floor = min_bytes(*args)
        found = json.loads(self.assert_works(flashmoe(
            *args, "--routes", routes, "--memory", str(self.floor + (8 << 20)), "--lookahead",
            "on", "--json")).stdout)
        return [share for share in found["recall"] if share is not None]

    def test_recall(self):
        self.assertEqual(self.decode("gen"), [])
        for recall in (1, 0.5):
            shares = self.decode(f"gen:recall={recall}")
            self.assertGreater(len(shares), 3)
            self.assertAlmostEqual(mean(shares), recall, delta=0.08)


class Recordings(Case):
    """`bench replay` and `bench routes` read what `--trace` writes."""

    def replay(self, path):
        found = json.loads(self.assert_works(flashmoe("bench", "replay", path, "--json")).stdout)
        self.assertEqual((found["n_layers"], found["n_experts"], found["n_used"]), (8, 64, 8))
        for point in found["points"]:
            hits = point["hits"]
            best = hits["belady"]
            self.assertTrue(all(0 <= value <= best + 1e-9 for value in hits.values()
                                if value is not None))
        self.assertGreater(found["points"][-1]["hits"]["lcp"], found["points"][0]["hits"]["lcp"])
        return found

    def test_run(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.csv")
            answer = json.loads(self.assert_works(flashmoe(
                "run", "nano", "-p", "Write a story about a robot who loves music.", "-n", "48",
                "--greedy", "--trace", path, "--json")).stdout)
            found = self.replay(path)
            self.assertEqual((found["n_warm"], found["n_tokens"]),
                             (answer["n_prompt_tokens"], answer["n_tokens"] - 1))
            table = self.assert_works(flashmoe("bench", "routes", path)).stdout
            self.assertIn("these routes", table)

    def test_switch(self):
        """A recording of a topic change: two conversations in one file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "switch.csv")
            args = ("bench", "switch", "nano", "--tokens", "64", "--json")
            plain = json.loads(self.assert_works(flashmoe(*args)).stdout)
            traced = json.loads(self.assert_works(flashmoe(*args, "--trace", path)).stdout)
            self.assertEqual(plain["logits_hash"], traced["logits_hash"])
            found = self.replay(path)
            prompt = traced["prompt"]["n_tokens"]
            self.assertEqual(found["n_tokens"], 2 * 64 + prompt)
            with open(path, encoding="utf-8") as file:
                turns = {line.split(",")[0] for line in file if line[0].isdigit()}
            self.assertEqual(turns, {"0", "1"})


class Draft(Case):
    def draft(self, *args):
        return json.loads(self.assert_works(flashmoe("bench", "draft", *args, "--json")).stdout)

    def test_text(self):
        """Both sides of a pair write the same text; the command itself compares all logits."""
        found = self.draft("nano", "--tokens", "24", "--repeat", "2", "--budgets", "half,all",
                           "--draft", "3", *STEADY)
        self.assertFalse(found["is_simulated"])
        self.assertIsNone(found["acceptance"])
        for point in found["budgets"]:
            self.assertEqual(len(point["topics"]), 8)
            self.check_side(point["plain"], 8 * 2 * 24)
            self.check_side(point["drafted"], 8 * 2 * 24)
            self.assertEqual(point["plain"]["tokens_per_pass"], 1)
        self.assertEqual(found["budgets"][1]["resident_share"], 1)

    def check_side(self, side, n_tokens):
        passes = sum(rows["n_passes"] for rows in side["passes"])
        self.assertAlmostEqual(side["tokens_per_pass"], n_tokens / passes)
        self.assertLessEqual(side["tok_per_s"]["min"], side["tok_per_s"]["median"])

    def test_simulated(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plot.svg")
            args = ("nano", "--acceptance", "100,50", "--routes", "gen", "--draft", "2",
                    "--tokens", "96", "--repeat", "2", "--budgets", "all", *STEADY)
            found = self.draft(*args, "--svg", path)
            point = found["budgets"][0]
            self.assertTrue(found["is_simulated"])
            self.assertIn("simulated", found["drafts"])
            drafted, accepted = point["n_drafted"], point["n_drafts_accepted"]
            self.assertEqual(drafted[0], accepted[0]) # always right
            self.assertTrue(0.25 * drafted[1] < accepted[1] < 0.75 * drafted[1])
            self.assertEqual(drafted[2], 0)
            self.assertGreater(point["drafted"]["tokens_per_pass"], 2)
            text = xml.etree.ElementTree.parse(path).getroot().itertext()
            self.assertIn("simulated", " ".join(text))
            table = self.assert_works(flashmoe("bench", "draft", *args)).stdout
            self.assertIn("simulated", table)
            self.assertIn(LABEL, table)

    def test_refused(self):
        for text in ("101", "90,", "x", ",".join(["50"] * 9), "-1"):
            self.assert_fails(flashmoe("bench", "draft", "nano", "--acceptance", text), 2,
                              "--acceptance")
        self.assert_fails(flashmoe("bench", "draft", "nano", "--draft", "off"), 2, "--draft")
        self.assert_fails(flashmoe("bench", "draft", "nano", "--budgets", "most"), 2, "--budgets")


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
