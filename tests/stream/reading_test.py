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


def flashmoe(*args, env=None, model=None):
    return subprocess.run([PROGRAM, "run", model or MODEL, "--json", *args], env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                          timeout=SECONDS)


class Reading(unittest.TestCase):
    def run_json(self, *args, env=None, model=None):
        result = flashmoe(*args, env=env, model=model)
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

    def test_experts_that_are_read_in_pieces(self):
        """Matrices of 2.25 MiB at odd places of a GGUF, and records whose bytes are checked."""
        with tempfile.TemporaryDirectory() as folder:
            gguf, packed = os.path.join(folder, "w.gguf"), os.path.join(folder, "w.fmoe")
            for command in (["synth", "coder-next", gguf, "--layers", "2", "--experts", "4",
                             "--used", "2", "--hidden", "2048", "--expert-width", "2048",
                             "--vocab", "1024", "--experts-format", "q4_0", "-q"],
                            ["pack", gguf, packed, "-q"]):
                subprocess.run([PROGRAM, *command], check=True, timeout=SECONDS)
            hashes = set()
            for model, more in ((gguf, ()), (gguf, ("--reader", "uring")), (gguf, ("--io", "page")),
                                (packed, ("--check",)), (packed, ("--reader", "uring", "--check"))):
                answer = self.run_json("-p", "hi", "--raw", "-n", "3", "--greedy", "--no-heat",
                                       *more, model=model)
                hashes.add(answer["logits_hash"])
            self.assertEqual(len(hashes), 1)

    def test_unknown_words(self):
        for option, value in (("--io", "mmap"), ("--reader", "aio"), ("--policy", "fifo"),
                              ("--elastic", "maybe")):
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
