"""reading_test.py PROGRAM MODEL: neither how experts are read nor what is kept between runs changes
a bit of the answer."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = MODEL = None
SECONDS = 1800  # ends what hangs; no test needs a fast machine


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
        """Matrices of 2.25 MiB at unaligned offsets of a GGUF, and records whose bytes are
        verified."""
        with tempfile.TemporaryDirectory() as folder:
            gguf, packed = os.path.join(folder, "w.gguf"), os.path.join(folder, "w.fmoe")
            for command in (["synth", "coder-next", gguf, "--layers", "2", "--experts", "4",
                             "--used", "2", "--hidden", "2048", "--expert-width", "2048",
                             "--vocab", "1024", "--experts-format", "q4_0", "-q"],
                            ["pack", gguf, packed, "-q"]):
                subprocess.run([PROGRAM, *command], check=True, timeout=SECONDS)
            hashes = set()
            for model, more in ((gguf, ()), (gguf, ("--reader", "uring")), (gguf, ("--io", "page")),
                                (packed, ("--check", "on")), (packed, ("--reader", "uring"))):
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
        """Written at the end and used by the next start. Ignored with a log line if it is damaged
        or belongs to another model."""
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
            other = heat[:16] + bytes(reversed(heat[16:24])) + heat[24:] # the model's identity
            self.assertNotEqual(other, heat)
            for damaged in (heat[:-1], heat + b"x", b"y" + heat[1:], heat[:-1] + b"z", b"", other):
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
            self.run_json("-p", "Once", "-n", "4", "--no-heat", "--io", "direct", env=env)
            self.assertEqual(os.listdir(folder), [])
            self.run_json("-p", "Once", "-n", "4", "--io", "direct", env=env)
            self.assertEqual([name.rsplit(".")[-1] for name in
                              os.listdir(os.path.join(folder, "flashmoe"))], ["heat"])

    def test_io_is_measured_once(self):
        """Saved for the next start, used there, and measured again if the file is damaged."""
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, XDG_CACHE_HOME=folder)
            more = ("-p", "Once", "-n", "4", "--greedy", "--no-heat")
            first = self.run_json(*more, env=env)
            names = os.listdir(os.path.join(folder, "flashmoe"))
            self.assertEqual([name.rsplit(".")[-1] for name in names], ["io"])
            path = os.path.join(folder, "flashmoe", names[0])
            with open(path, encoding="ascii") as file:
                kept = file.read()
            facts = dict(line.split() for line in kept.splitlines()[1:])
            self.assertEqual(set(facts), {"model", "device", "bytes", "direct", "page"})
            is_direct = int(facts["direct"]) > 0
            self.assertTrue(is_direct or int(facts["page"]) > 0)
            for direct, page, io in ((100, 121, "page"), (100, 119, "direct")):
                text = kept[:kept.index("direct")] + f"direct {direct}\npage {page}\n"
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
                answer = self.run_json(*more, env=env)
                self.assertEqual(answer["io"], io if is_direct else "page")
                self.assertEqual(answer["logits_hash"], first["logits_hash"])
                with open(path, encoding="ascii") as file:
                    self.assertEqual(file.read(), text)
            with open(path, "w", encoding="ascii") as file:
                file.write(kept[:kept.index("direct")] + "direct 100\npage 121\n")
            self.assert_planned_through_the_page_cache(env)
            for damaged in (kept[:-1], kept + "x", "", kept.replace("io 1", "io 2"),
                            kept.replace(facts["model"], "0" * 16), "\0" + kept, kept * 20,
                            kept.replace("device ", "device 1"), kept[:kept.index("page")]):
                with open(path, "w", encoding="ascii") as file:
                    file.write(damaged)
                result = flashmoe("-v", *more, env=env)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("ignored", result.stderr)
                self.assertEqual(json.loads(result.stdout)["logits_hash"], first["logits_hash"])
                with open(path, encoding="ascii") as file:
                    self.assertNotEqual(file.read(), damaged)

    def assert_planned_through_the_page_cache(self, env):
        result = subprocess.run([PROGRAM, "plan", MODEL, "-q"], env=env, capture_output=True,
                                encoding="utf-8", timeout=SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, "\ndisk read [^\n]* page, measured now")

    def test_doctor_measures_io(self):
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, XDG_CACHE_HOME=folder)
            result = subprocess.run([PROGRAM, "doctor", MODEL, "--quick", "--json", "-q"], env=env,
                                    capture_output=True, encoding="utf-8", timeout=SECONDS)
            self.assertEqual(result.returncode, 0, result.stderr)
            found = json.loads(result.stdout)
            self.assertIn(found["io_auto"], ("direct", "page"))
            # None means that the file system cannot read directly, or the disk is too slow to
            # continue.
            speeds = [found[f"io_{io}_gb_per_s"] for io in ("direct", "page")]
            self.assertGreater(max(speed or 0 for speed in speeds), 0)
            self.assertEqual(len(os.listdir(os.path.join(folder, "flashmoe"))), 1)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
