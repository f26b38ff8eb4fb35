#!/usr/bin/env python3
"""Tests models with rope scaling through the program: the maximum context, inspect, packed models.

Usage: rope_test.py PROGRAM MODEL

MODEL is a tiny checkpoint with a tokenizer. tests/golden/rope_scaling.py looks at the logits.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = MODEL = ""
SECONDS = 1800
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 4.0}
MAX_CONTEXT = 1 << 24  # the limit for any model


def flashmoe(*args):
    return subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True,
                          encoding="utf-8", timeout=SECONDS)


class Scaled(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def stage(self, name, n_positions, rope):
        """Copies MODEL with another configuration."""
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        for file in os.listdir(MODEL):
            if file != "config.json":
                os.symlink(os.path.realpath(os.path.join(MODEL, file)), os.path.join(path, file))
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["max_position_embeddings"] = n_positions
        config["rope_parameters"].update(rope)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        return path

    def works(self, *args):
        result = flashmoe(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def inspect(self, path):
        found = json.loads(self.works("inspect", path, "--json"))
        return found["max_context"], found["rope_scaling"]

    def hash_of(self, path):
        found = json.loads(self.works("run", path, "-p", "the moon " * 20, "-n", "8", "--greedy",
                                      "--raw", "--json"))
        self.assertGreater(found["n_prompt_tokens"], 2 * 32)
        return found["logits_hash"]

    def test_longest_context(self):
        """Factor times the original length, or what the configuration says if that is larger."""
        for i, (n_positions, rope, expected) in enumerate((
                (40, {}, 40), (40, YARN, 128), (2048, YARN, 2048),
                (40, {"rope_type": "yarn", "factor": 2.5}, 100), (40, LINEAR, 160),
                (41, {**LINEAR, "factor": 1.5}, 61),
                (2048, {**LINEAR, "factor": 1e6}, MAX_CONTEXT))):
            path = self.stage(str(i), n_positions, rope)
            self.assertEqual(self.inspect(path)[0], expected, (n_positions, rope))
            refused = flashmoe("run", path, "-p", "Hi", "--context", str(expected + 1))
            self.assertNotEqual(refused.returncode, 0)
            if expected < MAX_CONTEXT:
                self.assertIn(f"supports at most {expected}: lower", refused.stderr)
                self.assertIn("rope_scaling", refused.stderr)
        full = json.loads(self.works("run", self.stage("full", 40, YARN), "-p", "the moon " * 20,
                                     "--context", "128", "-n", "4", "--raw", "--json"))
        self.assertGreater(full["n_prompt_tokens"], 40)

    def test_inspect(self):
        plain = self.stage("plain", 40, {})
        self.assertEqual(self.inspect(plain), (40, None))
        self.assertNotIn("Rope", self.works("inspect", plain))
        yarn = self.stage("yarn", 40, {**YARN, "attention_factor": 1.25})
        self.assertEqual(self.inspect(yarn)[1], {"type": "yarn", "factor": 4.0,
                                                 "original_context": 32, "attention_factor": 1.25})
        text = self.works("inspect", yarn)
        self.assertIn("Context       up to 128 positions\n"
                      "Rope scaling  yarn: 32 positions times 4\n", text)
        linear = self.stage("linear", 40, LINEAR)
        self.assertIn("Rope scaling  linear: 40 positions times 4\n",
                      self.works("inspect", linear))

    def test_packed(self):
        hashes = {self.hash_of(self.stage("plain", 2048, {}))}
        for name, rope in (("yarn", YARN), ("linear", LINEAR)):
            path, packed = self.stage(name, 40, rope), os.path.join(self.folder, name + ".fmoe")
            self.works("pack", "--quiet", "--experts", "keep", path, packed)
            self.assertEqual(self.inspect(packed), self.inspect(path))
            self.assertEqual(self.hash_of(packed), self.hash_of(path))
            hashes.add(self.hash_of(path))
        self.assertEqual(len(hashes), 3)


if __name__ == "__main__":
    PROGRAM, MODEL = os.path.abspath(sys.argv[1]), sys.argv[2]
    unittest.main(argv=sys.argv[:1])
