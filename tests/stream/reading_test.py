"""reading_test.py PROGRAM MODEL: how experts are read, and what is kept of it between runs, changes
no bit of the answer."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = MODEL = None
SECONDS = 120


def flashmoe(*args, env=None):
    return subprocess.run([PROGRAM, "run", MODEL, "--json", *args], stdin=subprocess.DEVNULL,
                          capture_output=True, encoding="utf-8", timeout=SECONDS, env=env)


class Reading(unittest.TestCase):
    def run_json(self, *args, env=None):
        result = flashmoe(*args, env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_how_experts_are_read_changes_no_bit(self):
        hashes = set()
        for more in (("--io", "page"), ("--io", "direct", "--reader", "uring"),
                     ("--policy", "lru", "--read-depth", "1"), ("--no-heat",)):
            answer = self.run_json("-p", "Once", "-n", "8", "--greedy", *more)
            hashes.add(answer["logits_hash"])
            self.assertIn(answer["io"], ("direct", "page"))
        self.assertEqual(len(hashes), 1)

    def test_unknown_words(self):
        for option, value in (("--io", "mmap"), ("--reader", "aio"), ("--policy", "fifo")):
            result = flashmoe("-p", "x", option, value)
            self.assertNotEqual(result.returncode, 0)
            self.assertRegex(result.stderr, rf"\Aflashmoe: [^\n]*'{value}'[^\n]*\n\Z")

    def test_heat_file(self):
        """Written at the end, used by the next start, ignored with a line when it is damaged."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "heat")
            more = ("-p", "Once", "-n", "8", "--greedy", "--heat", path)
            first = self.run_json(*more)
            self.assertEqual(first["n_warmed"], 0)
            with open(path, "rb") as file:
                heat = file.read()
            second = self.run_json(*more)
            self.assertGreater(second["n_warmed"] + second["n_expert_late"], 0)
            self.assertEqual(first["logits_hash"], second["logits_hash"])
            for damaged in (heat[:-1], heat + b"x", b"y" + heat[1:], heat[:-1] + b"z", b""):
                with open(path, "wb") as file:
                    file.write(damaged)
                result = flashmoe("-v", *more)
                self.assertIn("heat file", result.stderr)
                answer = json.loads(result.stdout)
                self.assertEqual(answer["n_warmed"], 0)
                self.assertEqual(first["logits_hash"], answer["logits_hash"])

    def test_heat_has_a_place_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, XDG_CACHE_HOME=folder)
            self.run_json("-p", "Once", "-n", "4", "--no-heat", env=env)
            self.assertEqual(os.listdir(folder), [])
            self.run_json("-p", "Once", "-n", "4", env=env)
            self.assertEqual(len(os.listdir(os.path.join(folder, "flashmoe"))), 1)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
