"""Tests how the tokens of an answer are chosen and where it stops: penalties, bias, stop strings,
schemas; and which part of its prompt is not computed again.

Usage: answer_test.py PROGRAM MODEL [TestClass...]

MODEL is a tiny checkpoint with a tokenizer.
"""

import json
import math
import os
import re
import sys
import tempfile
import unittest

import cli_test
from cli_test import Case, flashmoe


def run(*args):
    return flashmoe("run", cli_test.MODEL, "-p", "Hi", *args)


class Sampling(Case):
    def test_flags(self):
        answer = self.run_json("-p", "Hi", "-n", "1", "--temp", "1", "--top-k", "0", "--top-p", "1",
                               "--min-p", "0", "--typical-p", "0.9", "--repeat-penalty", "1.1",
                               "--presence-penalty", "-0.5", "--frequency-penalty", "0.25",
                               "--repeat-window", "64", "--logit-bias", "5=1.5,7=-inf",
                               "--logit-bias=9=-2")
        self.assertEqual(answer["sampling"],
                         {**cli_test.Run.SAMPLING, "temperature": 1, "typical_p": 0.9,
                          "repetition_penalty": 1.1, "presence_penalty": -0.5,
                          "frequency_penalty": 0.25, "penalty_window": 64,
                          "logit_bias": [[5, 1.5], [7, "-inf"], [9, -2]]})

    def test_bias_and_penalties(self):
        args = ("-p", "Hi", "-n", "6", "--greedy")
        first = self.run_json(*args)["tokens"]
        other = self.run_json(*args, "--logit-bias", f"{first[0]}=-inf")["tokens"]
        self.assertNotEqual(other[0], first[0])
        self.assertEqual(self.run_json(*args, "--logit-bias", "7=1000")["tokens"], [7] * 6)
        tokens = self.run_json(*args, "--logit-bias", "7=1000", "--presence-penalty", "100",
                               "--repeat-window", "1")["tokens"]
        self.assertEqual(tokens, [7] * 6)  # 900 more than any other
        tokens = self.run_json(*args, "--presence-penalty", "100")["tokens"]
        self.assertEqual(len(tokens), len(set(tokens)))

    def test_bias_that_leaves_no_token(self):
        every = ",".join(f"{i}=-inf" for i in range(320))
        self.assert_fails(run("-q", "--logit-bias", every), 1, "'logit_bias' forbids every token")

    def test_logprobs(self):
        answer = self.run_json("-p", "Hi", "-n", "5", "--greedy", "--logprobs", "3")
        self.assertEqual([each["id"] for each in answer["logprobs"]], answer["tokens"])
        for each in answer["logprobs"]:
            self.assertEqual(len(each["top"]), 3)
            self.assertEqual({key: each[key] for key in each if key != "top"}, each["top"][0])
            values = [top["logprob"] for top in each["top"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLess(sum(map(math.exp, values)), 1.0001)
        result = self.assert_works(run("-n", "5", "--greedy", "--logprobs", "0"))
        shown = [line for line in result.stderr.splitlines() if re.match(r" +\d+  -?\d", line)]
        self.assertEqual(len(shown), len(answer["tokens"]))

    def test_lists(self):
        for value in ("", "5", "5=", "=1", "5=x", "5=1,", "5=nan", "5=inf", "-5=1", "5=1;6=2"):
            self.assert_fails(run(f"--logit-bias={value}"), 1, "--logit-bias")
        self.assert_fails(run("--logit-bias", "9999999=1"), 1, "token 9999999")
        self.assert_fails(run("--stop", ""), 1, "--stop")
        self.assert_fails(run("--stop", "x" * 4097), 1, "--stop: a stop string has 4097 bytes")
        self.assert_fails(run(*["--stop", "x"] * 17), 2,
                          "--stop: given more than 16 times")


class Stop(Case):
    ARGS = ("-n", "100", "--temp", "10", "--top-k", "0", "--top-p", "1", "--min-p", "0")

    def test_stop_strings(self):
        args = next(args for args in ((*self.ARGS, "--seed", str(seed)) for seed in range(100))
                    if self.run_json("-p", "Hi", *args)["stop_reason"] == "length")
        answer = self.run_json("-p", "Hi", *args)
        text = answer["text"]
        at = next(i for i in range(2, len(text) - 3) if text.find(text[i:i + 3]) == i and
                  "\ufffd" not in text[i:i + 3])
        stop = text[at:at + 3]
        found = self.run_json("-p", "Hi", *args, "--stop", "nowhere at all", "--stop", stop)
        self.assertEqual((found["stop_reason"], found["stop_string"]), ("stop", stop))
        self.assertEqual(found["text"], text[:at])
        n = found["n_tokens"]
        self.assertEqual(found["tokens"], answer["tokens"][:n])
        self.assertLess(n, 100)
        none = self.run_json("-p", "Hi", *args, "--stop", "nowhere at all")
        self.assertEqual((none["text"], none["stop_string"]), (text, None))
        result = run(*args, "--stop", stop)
        self.assertIn("(stop string)", self.assert_works(result).stderr)
        self.assertEqual(result.stdout.rstrip("\n"), text[:at].rstrip("\n"))


class Prefix(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.rules = os.path.join(folder.name, "rules.txt")
        self.snapshots = ("--snapshots", os.path.join(folder.name, "snapshots"))
        with open(self.rules, "w", encoding="utf-8") as file:
            file.write("Answer as a careful teller of stories would. " * 8 + "\n\n")

    def test_system_file(self):
        with open(self.rules, encoding="utf-8") as file:
            text = file.read().rstrip("\n")
        args = ("-p", "Hi", "-n", "4", "--greedy")
        given = self.run_json(*args, "--system", text)
        read = self.run_json(*args, "--system-file", self.rules)
        self.assertEqual(read["logits_hash"], given["logits_hash"])
        self.assertNotEqual(self.run_json(*args)["logits_hash"], given["logits_hash"])

    def test_snapshots(self):
        for prompt in "Hi", "Hi", "What is the Moon?":
            args = ("-p", prompt, "-n", "4", "--greedy", "--system-file", self.rules)
            alone, kept = self.run_json(*args), self.run_json(*args, *self.snapshots)
            for key in "tokens", "text", "logits_hash", "n_prompt_tokens":
                self.assertEqual(kept[key], alone[key])
            if prompt != "Hi":
                self.assertGreater(kept["n_prompt_reused"], 100)
                self.assertLess(kept["n_prompt_tokens"] - kept["n_prompt_reused"], 40)
        again = run("-n", "1", "--system-file", self.rules, *self.snapshots)
        self.assertRegex(self.assert_works(again).stderr,
                         r"prompt \d+ tokens, \d+ from a snapshot,")

    def test_refusals(self):
        for option in ("--system-file", self.rules), ("--system", "x"):
            self.assert_fails(run("--raw", *option), 2, option[0], "--raw")
        self.assert_fails(run("--system", "x", "--system-file", self.rules), 2, "--system-file")
        self.assert_fails(run(*self.snapshots, "--routes", "gen"), 2, "--snapshots", "--routes")
        self.assert_fails(run("--system-file", "missing.txt"), 1, "missing.txt")
        with open(self.rules, "wb") as file:
            file.write(b"a\0b")
        self.assert_fails(run("--system-file", self.rules), 1, "rules.txt", "zero byte")


class Form(Case):
    """--json-schema and --json-object; tests/text/grammar_test.py tests what they enforce."""
    ARGS = ("-p", "Hi", "-n", "200", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def schema(self, schema):
        path = os.path.join(self.folder.name, "schema.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(schema, f)
        return path

    def test_schema(self):
        path = self.schema({"type": "array", "minItems": 3, "maxItems": 3, "items": {
            "enum": ["yes", "no", 12.5, None]}})
        seen = set()
        for seed in range(5):
            answer = self.run_json(*self.ARGS, "--seed", str(seed), "--json-schema", path)
            value = json.loads(answer["text"])
            self.assertEqual((answer["stop_reason"], len(value)), ("stop", 3))
            seen.update(value)
            self.assertLessEqual(seen, {"yes", "no", 12.5, None})
        self.assertGreater(len(seen), 1)

    def test_object(self):
        for seed in range(3):
            answer = self.run_json(*self.ARGS, "--seed", str(seed), "--json-object")
            self.assertEqual(answer["text"][:1], "{")
            if answer["stop_reason"] == "stop":
                self.assertIsInstance(json.loads(answer["text"]), dict)

    def test_faults(self):
        bad = self.schema({"properties": {"a": {"not": {}}}})
        self.assert_fails(run("--json-schema", bad), 1, "'not' at #/properties/a")
        self.assert_fails(run("--json-schema", "/no/such/file"), 1, "/no/such/file")
        self.assert_fails(run("--json-schema", bad, "--json-object"), 2, "cannot be used together")


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
