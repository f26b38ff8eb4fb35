#!/usr/bin/env python3
"""Tests the nano model of the repository: complete, small enough, and the default of `flashmoe
run`.

usage: bundled_test.py FLASHMOE NANO
"""
import json
import pathlib
import subprocess
import sys
import unittest

FLASHMOE, NANO = sys.argv[1], pathlib.Path(sys.argv[2])
MAX_BYTES = 70_000_000
PROMPT = "Write a story about a robot who loves music."
# Greedy; the same on every machine.
STORY = (
    "This is the story of Pixel, a funny robot who lived in a quiet village. In the middle of the "
    "village stood an old stone well. More than anything in the world, Pixel loved music. She "
    "could hear a tune in the wind and a beat in every step. A small green light blinked")


def run(*words):
    done = subprocess.run([FLASHMOE, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Bundled(unittest.TestCase):
    def test_is_small_enough(self):
        self.assertLessEqual(sum(f.stat().st_size for f in NANO.iterdir()), MAX_BYTES)

    def test_every_checksum_holds(self):
        run("verify", "--quiet", str(NANO))

    def test_formats(self):
        model = json.loads(run("inspect", "--json"))
        formats = {(f["is_expert"], f["name"]) for f in model["formats"]}
        self.assertEqual(model["container"], "packed model")
        self.assertIn((True, "affine4-g64"), formats)
        self.assertIn((False, "affine8-g64"), formats)
        self.assertEqual({name for is_expert, name in formats if is_expert}, {"affine4-g64"})

    def test_card_names_licences(self):
        card = (NANO / "README.md").read_text()
        for word in ("CC-BY-SA", "Project Gutenberg", "Aozora", "MDN", "WordNet", "GSM8K"):
            self.assertIn(word.lower(), card.lower())

    def test_tells_a_story(self):
        answer = json.loads(run("run", "-p", PROMPT, "--greedy", "-n", "60", "--json"))
        self.assertEqual(answer["text"], STORY)

    def test_drafts_it(self):
        answer = json.loads(run("run", "-p", PROMPT, "--greedy", "-n", "60", "--draft", "1",
                                "--json"))
        self.assertEqual(answer["text"], STORY)
        self.assertGreater(answer["n_drafts_accepted"][0], 0.8 * answer["n_drafted"][0])
        self.assertLess(answer["n_decode_passes"], 40)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
