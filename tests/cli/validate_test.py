"""Tests flashmoe validate: what it reports, what it notices, how it ends.

Usage: validate_test.py PROGRAM PRELOAD TESTS [TestClass...]

PRELOAD is the library built from tests/fault/preload_reads.c, TESTS the folder tests. The model is
nano, or a tiny checkpoint of tests/golden. PRELOAD is "none" where no library can be preloaded.
"""
import html.parser
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM, PRELOAD = os.path.abspath(sys.argv[1]), sys.argv[2]
TESTS = pathlib.Path(sys.argv[3]).resolve()
NANO = TESTS.parent / "models" / "nano.fmoe"
TINY = TESTS / "golden" / "qwen3_next"
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
# The least that still compares two budgets.
SHORT = ("--quick", "--budgets", "floor,all", "--tokens", "4", "--long", "4", "--cycles", "3",
         "--lookahead", "off")


class Page(html.parser.HTMLParser):
    """Collects what a page consists of, and checks that its elements are closed."""
    VOID = {"meta", "br"}
    DRAWN = {"line", "circle", "path", "rect"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.text += data


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="validate-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)
        self.work = self.folder / "work"
        self.work.mkdir()

    def start(self, *args, env=None, **how):
        env = dict(os.environ, XDG_CACHE_HOME="/dev/null/none", **(env or {}))
        return subprocess.Popen([PROGRAM, "validate", *map(str, args)], env=env, cwd=self.work,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, encoding="utf-8", **how)

    def validate(self, *args, env=None):
        with self.start(*args, env=env) as process:
            out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def report(self, *args, status=0, **how):
        """Runs it with --json; returns the report and what was said."""
        result = self.validate(*args, "--json", "--out", self.work / "r", **how)
        self.assertEqual(result.returncode, status, result.stderr + result.stdout)
        found = json.loads(result.stdout)
        self.assertEqual(found, json.loads((self.work / "r.json").read_text(encoding="utf-8")))
        self.assertEqual(found["is_good"], status == 0)
        return found, result.stderr

    def copy_nano(self):
        model = self.folder / "nano.fmoe"
        shutil.copytree(NANO, model)
        return model

    def assert_refused(self, args, status, *words):
        result = self.validate(*args)
        self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
        self.assertEqual(os.listdir(self.work), [])
        for word in words:
            self.assertIn(word, result.stderr)


class Quick(Case):
    def check_answer(self, one, opens):
        self.assertIs(one["is_same"], True)
        self.assertEqual(one["open_s"] is not None, opens)
        self.assertEqual(one["decode"]["n_tokens"], 8)
        for part in ("prompt", "decode"):
            self.assertGreater(one[part]["seconds"], 0)
            self.assertGreater(one[part]["n_hits"] + one[part]["n_misses"], 0)

    def check_budgets(self, found):
        budgets = found["budgets"]
        sizes = [one["memory_budget_bytes"] for one in budgets]
        self.assertEqual(len(sizes), 3)
        self.assertEqual(sizes, sorted(sizes))
        self.assertLess(budgets[0]["resident_share"], 0.5)
        self.assertEqual(budgets[-1]["resident_share"], 1)
        names = [one["name"] for one in found["prompts"]]
        self.assertEqual(len(set(names)), 4)
        for one in budgets:
            self.assertEqual([answer["prompt"] for answer in one["answers"]], names)
            for answer in one["answers"]:
                self.check_answer(answer["fresh"], True)
                self.check_answer(answer["switched"], False)
            for after in ("fresh", "switched"):
                self.assertGreater(one[after]["decode"]["tok_per_s"], 0)
                self.assertIn("percent", one[after]["limit"])
        reads = [one["switched"]["decode"]["bytes_read"] for one in budgets]
        self.assertGreater(reads[0], 2 * reads[-1])

    def check_rest(self, found):
        self.assertEqual(found["files"]["n_bad"], 0)
        self.assertTrue(found["files"]["has_checksums"])
        self.assertEqual(found["long_answer"]["n_tokens"], 64)
        self.assertIs(found["long_answer"]["is_same"], True)
        self.assertEqual(len(found["long_answer"]["runs"][0]["tok_per_s_by_part"]), 20)
        self.assertEqual(len(found["resets"]["resident_bytes"]), 6)
        self.assertIs(found["resets"]["is_same"], True)
        self.assertEqual(len(found["layers"]), 9)  # and the head
        self.assertGreater(sum(one["compute_ms"] for one in found["layers"]), 0)
        self.assertIn("--quick", found["memory"]["pressure_note"])
        self.assertGreaterEqual(len(found["cannot_see"]), 3)
        for one in found["prompts"]:
            self.assertRegex(one["logits_hash"], r"^[0-9a-f]{32}$")
            self.assertEqual(one["token_hashes"][-1], one["logits_hash"])
            self.assertEqual(len(set(one["layer_hashes"])), 9)  # the prompt and 8 tokens
            for step in one["layer_hashes"]:
                self.assertEqual(len(set(re.findall(".{8}", step))), 9)  # 8 layers
            self.assertGreater(len(one["text"]), 3)

    def check_page(self, text, found):
        page = Page(text)
        self.assertNotIn("script", page.tags)
        self.assertFalse([value for name, value in page.attributes if name in ("src", "href")])
        self.assertNotIn("@import", text)
        self.assertNotIn("url(", text)
        self.assertGreaterEqual(page.tags.count("svg"), 8)
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertIn("width=device-width", text)
        self.assertIn("Passed", page.text)
        for one in found["prompts"]:
            self.assertIn(one["name"], page.text)
            self.assertIn(one["logits_hash"], page.text)
        self.assertLess(len(text), 200000)

    def test_quick(self):
        found, said = self.report("nano", "--quick")
        self.check_budgets(found)
        self.check_rest(found)
        self.check_page((self.work / "r.html").read_text(encoding="utf-8"), found)
        self.assertEqual(sorted(os.listdir(self.work)), ["r.html", "r.json"])
        self.assertRegex(said, r"(?m)^flashmoe: validate: 4 prompts at .*; \d+% done, ETA ")

    def test_the_smallest_budget_holds_the_long_answer(self):
        """Its keys and values grow into the expert cache, which has few experts to give."""
        found, _ = self.report("nano", "--quick", "--budgets", "floor,all", "--tokens", "2",
                               "--cycles", "3", "--long", "1000")
        self.assertEqual(found["long_answer"]["n_tokens"], 1000)
        self.assertIs(found["long_answer"]["is_same"], True)


class Swapped(Case):
    """Two experts of a layer change places."""

    def swap_in_pack(self, model, layer):
        size = json.loads((model / "model.json").read_text())["experts"][layer]["record_bytes"]
        path = model / f"experts-{layer:03}.bin"
        data = path.read_bytes()
        path.write_bytes(data[size:2 * size] + data[:size] + data[2 * size:])

    def test_in_a_packed_model(self):
        model = self.copy_nano()
        self.swap_in_pack(model, 5)
        found, said = self.report(model, *SHORT, status=1)
        self.assertEqual({one["layer"] for one in found["failures"]}, {5})
        self.assertEqual(len(found["failures"]), 2)
        self.assertRegex(said, r"validate: FAILED: expert 0 of layer 5 .*experts-005\.bin")
        page = Page((self.work / "r.html").read_text(encoding="utf-8"))
        self.assertIn("expert 0 of layer 5", page.text)
        self.assertIn("Failed", page.text)


class Against(Case):
    """The same, in a checkpoint that is then packed: the checksums are those of the wrong bytes."""

    def swap_in_checkpoint(self, layer):
        """Returns a checkpoint in which two experts have each other's weights."""
        model = self.folder / "swapped"
        shutil.copytree(TINY, model)
        path = model / "model.safetensors"
        data = bytearray(path.read_bytes())
        head_bytes = struct.unpack("<Q", data[:8])[0]
        head = json.loads(data[8:8 + head_bytes])
        begin = 8 + head_bytes
        names = [name for name in head if f"layers.{layer}." in name and ".experts.0." in name]
        self.assertTrue(names)
        for name in names:
            a, b = (head[each]["data_offsets"] for each in
                    (name, name.replace(".experts.0.", ".experts.1.")))
            first = data[begin + a[0]:begin + a[1]]
            data[begin + a[0]:begin + a[1]] = data[begin + b[0]:begin + b[1]]
            data[begin + b[0]:begin + b[1]] = first
        path.write_bytes(data)
        return model

    def pack(self, source, name):
        packed = self.folder / name
        subprocess.run([PROGRAM, "pack", "-q", source, packed], check=True)
        return packed

    def test_with_new_checksums(self):
        """No run on the wrong file alone can know. Another report does, and names the layer."""
        found, _ = self.report(self.pack(TINY, "a.fmoe"), *SHORT)
        earlier = self.folder / "earlier.json"
        earlier.write_text(json.dumps(found), encoding="utf-8")
        wrong = self.pack(self.swap_in_checkpoint(2), "b.fmoe")
        alone, _ = self.report(wrong, *SHORT)
        self.assertTrue(any("--against" in one for one in alone["cannot_see"]))
        found, said = self.report(wrong, *SHORT, "--against", earlier, status=1)
        self.assertEqual({one["layer"] for one in found["failures"]}, {2})
        self.assertRegex(said, r"FAILED: prompt '.*': token \d+ differs from the report '.*'; "
                               r"layer 2 is the first that differs")
        self.assertEqual(found["against"]["n_compared"], 4)
        found, _ = self.report(self.folder / "a.fmoe", *SHORT, "--against", earlier)
        self.assertEqual(found["against"]["n_compared"], 4)


class AgainstEdited(Case):
    """A report that says too little, or is of another model, compares nothing and must not pass."""

    def against(self, report, model=TINY, more=()):
        path = self.folder / "edited.json"
        path.write_text(json.dumps(report), encoding="utf-8")
        return self.validate(model, *SHORT, *more, "--against", path, "--out", self.work / "again")

    def assert_unfit(self, report, *words, model=TINY, more=()):
        result = self.against(report, model, more)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("FAILED", result.stderr)
        self.assertFalse((self.work / "again.json").exists())
        for word in ("edited.json", *words):
            self.assertIn(word, result.stderr)

    def test_edited(self):
        found, _ = self.report(TINY, *SHORT)
        self.assert_unfit(found, "another model", "n_layers", "nano.fmoe", model=NANO)
        for field, value in (("architecture", "other"), ("n_parameters", 12345)):
            other = json.loads(json.dumps(found))
            other["model"][field] = value
            self.assert_unfit(other, "another model", field, str(value))
        other = json.loads(json.dumps(found))
        hashes = other["prompts"][1]["layer_hashes"]
        hashes[2] = hashes[2][:-8]
        self.assert_unfit(other, "layer_hashes", "entry 2", other["prompts"][1]["name"])
        bare = self.folder / "bare"  # its prompts are other tokens
        shutil.copytree(TINY, bare)
        (bare / "tokenizer.json").unlink()
        self.assert_unfit(found, "tokenizer", found["prompts"][0]["name"], model=bare)

    def test_other_options(self):
        """Options that change the numbers: the difference is none of the model."""
        found, _ = self.report(TINY, *SHORT)
        for args, words in ((("--routes", "gen"), ("--routes", "'not given'", "generated")),
                            (("--experts-per-token", "1"), ("--experts-per-token", "1 of")),
                            (("--kv", "f32"), ("--kv", "'f16'", "'f32'"))):
            with self.subTest(args):
                self.assert_unfit(found, "other options", *words, more=args)
                other, _ = self.report(TINY, *SHORT, *args)
                self.assert_unfit(other, "other options", *words)
                again = self.against(other, more=args)
                self.assertEqual(again.returncode, 0, again.stderr)
                (self.work / "again.json").unlink()
        del found["model"]["kv"]  # as reports were before
        self.assertEqual(self.against(found).returncode, 0)
        (self.work / "again.json").unlink()
        self.assert_unfit(found, "--kv", more=("--kv", "f32"))

    def test_one_hash(self):
        found, _ = self.report(TINY, *SHORT)
        first = found["prompts"][0]["layer_hashes"][0]
        found["prompts"][0]["layer_hashes"][0] = ("1" if first[0] == "0" else "0") + first[1:]
        result = self.against(found)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("the embedding is the first that differs", result.stderr)
        self.assertEqual(result.stderr.count("FAILED"), 1)


class ReadPath(Case):
    """What is read a second time has a wrong bit: only small budgets read experts again."""

    def faulty(self, text):
        path = self.folder / "ranges"
        path.write_text(text, encoding="ascii")
        return {"LD_PRELOAD": PRELOAD, "FAULT_RANGE": str(path)}

    def test_wrong_at_one_budget(self):
        env = self.faulty("AGAIN experts-003\n")
        found, said = self.report(NANO, *SHORT, "--check", "off", "--io", "direct", status=1,
                                  env=env)
        first = found["failures"][0]
        self.assertEqual(first["layer"], 3)
        self.assertEqual(first["memory_budget_bytes"], found["budgets"][0]["memory_budget_bytes"])
        self.assertIn(first["prompt"], [one["name"] for one in found["prompts"]])
        self.assertIn(first["token"], range(1, 6))
        self.assertRegex(said, rf"FAILED: at [\d.]+ MiB, prompt '{first['prompt']}'[^:]*: token "
                               rf"{first['token']} differs from the one at [\d.]+ MiB; layer 3 is "
                               r"the first that differs at position \d+, where it uses the experts")
        answers = [one["is_same"] for budget in found["budgets"] for pair in budget["answers"]
                   for one in (pair["fresh"], pair["switched"]) if one]
        self.assertIn(False, answers)
        self.assertTrue(all(pair["fresh"]["is_same"] for pair in found["budgets"][-1]["answers"]))

    def test_refused_with_checksums(self):
        env = self.faulty("AGAIN experts-003\n")
        found, said = self.report(NANO, *SHORT, "--io", "direct", status=1, env=env)
        self.assertEqual(found["failures"][0]["layer"], 3)
        self.assertRegex(said, r"FAILED: at [\d.]+ MiB, prompt '.*': expert \d+ of layer 3 is "
                               "damaged")

    def test_right(self):
        self.report(NANO, *SHORT, "--check", "off", "--io", "direct", env=self.faulty(""))


class Ends(Case):
    def test_interrupted(self):
        with self.start("nano") as process:
            for line in process.stderr:
                if "prompts at" in line:
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, out), (130, ""), err)
        self.assertIn("interrupted; no report was written", err)
        self.assertEqual(os.listdir(self.work), [])

    def test_unwritable(self):
        (self.folder / "file").write_text("x", encoding="ascii")
        self.assert_refused(("nano", "--out", "none/r"), 1, "--out", "none/r.html")
        self.assert_refused(("nano", "--out", self.folder / "file" / "r"), 2, "--out",
                            "file/r.html")
        for out in ("", "here/"):
            self.assert_refused(("nano", "--out", out), 2, "--out")

    def test_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "wb") as full:
            process = subprocess.run([PROGRAM, "validate", "nano", *SHORT, "--json", "-q"],
                                     cwd=self.work, stdin=subprocess.DEVNULL, stdout=full,
                                     stderr=subprocess.PIPE, check=False, timeout=SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(sorted(os.listdir(self.work)), ["nano-validate.html",
                                                         "nano-validate.json"])

    def test_wrong_options(self):
        for args, words in (
                (("--budgets", "much"), ("--budgets", "much")),
                (("--heat", "h"), ("--heat", "cold starts")),
                (("--cache-bias", "0.5"), ("--cache-bias", "budgets")),
                (("--tokens", "0"), ("--tokens",)),
                (("--tokens", "4096"), ("--tokens 4096", "positions")),
                (("--cycles", "2"), ("--cycles",)),
                (("--pressure", "1G", "--no-pressure"), ("pressure",)),
                (("--pressure", "lots"), ("--pressure",)),
                (("--quicker",), ("--quicker", "--quick"))):
            with self.subTest(args):
                self.assert_refused(("nano", *args), 2, *words)
        self.assert_refused(("no-such-model",), 1, "no-such-model")

    def test_wrong_report(self):
        path = self.folder / "other.json"
        self.assert_refused(("nano", "--against", path), 1, "other.json")
        for text, word in (("{", "end of file"), ("[]", "not a report"),
                           ('{"report": 3}', "report"),
                           ('{"report": "flashmoe validate"}', "no answers"),
                           ('{"report": "flashmoe validate", "n_tokens": 7, "prompts": [1]}',
                            "--tokens 7"), ("", "--against"),
                           ('{"report": "flashmoe validate", "prompts": [1]}', "n_tokens")):
            with self.subTest(text):
                path.write_text(text, encoding="utf-8")
                self.assert_refused(("nano", "--against", path), 2, "other.json", word)

    def test_report_without_hashes(self):
        path = self.folder / "other.json"
        good = {"name": "English prose", "token_hashes": ["0" * 32] * 2,
                "layer_hashes": ["0" * 16] * 2}
        for change, words in (
                ({"name": None}, ("name",)),
                ({"name": "Unknown"}, ("name", "prompts")),
                ({"token_hashes": None}, ("token_hashes", "0 entries instead of 2")),
                ({"token_hashes": ["0" * 32] * 3}, ("token_hashes", "3 entries")),
                ({"token_hashes": ["0" * 32, ""]}, ("token_hashes", "entry 1")),
                ({"token_hashes": ["0" * 32, 7]}, ("token_hashes", "entry 1")),
                ({"layer_hashes": []}, ("layer_hashes", "0 entries instead of 2")),
                ({"layer_hashes": ["0" * 16, "0" * 7]}, ("layer_hashes", "entry 1")),
                ({"layer_hashes": ["0" * 16, "z" * 16]}, ("layer_hashes", "entry 1"))):
            with self.subTest(change):
                path.write_text(json.dumps({"report": "flashmoe validate", "n_tokens": 1,
                                            "model": "x", "prompts": [dict(good, **change)]}),
                                encoding="utf-8")
                self.assert_refused(("nano", "--tokens", 1, "--against", path), 2, "other.json",
                                    *words)


class Pressure(Case):
    def test_another_process(self):
        found, _ = self.report("nano", *SHORT, "--pressure", "64M")
        pressure = found["memory"]["pressure"]
        self.assertIs(pressure["during"]["is_same"], True)
        self.assertTrue(0 < pressure["during"]["held_bytes"] <= 64 << 20, pressure)
        self.assertLessEqual(pressure["max_held_bytes"], 64 << 20)
        self.assertEqual(pressure["n_kills"], 0)
        self.assertIn("took up to", found["memory"]["pressure_note"])

        self.assertGreater(pressure["during"]["min_free_bytes"], 0)
        self.assertIsNone(found["memory"]["cliff_bytes"])

    def test_other_process_is_killed(self):
        """It is meant to be the first that the system kills: the model has not failed."""
        if PRELOAD == "none":
            self.skipTest("no library can be preloaded")
        found, _ = self.report("nano", *SHORT, "--pressure", "64M",
                               env={"LD_PRELOAD": PRELOAD, "FAULT_CHILD": "kill"})
        self.assertIsNone(found["memory"]["pressure"])
        self.assertRegex(found["memory"]["pressure_note"], "^Stopped: the other process.* killed")


if __name__ == "__main__":
    chosen = sys.argv[4:]
    unittest.main(argv=[sys.argv[0], *chosen], verbosity=2)
