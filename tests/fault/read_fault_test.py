"""Makes the reads of the flashmoe program fail, one after the other.

Usage: read_fault_test.py PROGRAM PRELOAD MODEL [TestClass...]

PRELOAD is the library built from preload_reads.c. Whatever happens to a read, the text is the text
of the run without faults, or a beginning of it followed by one line on standard error.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = PRELOAD = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
N_TOKENS = 24
# Time for all runs with one kind of fault. A slow build (a sanitizer's) fails a sample of the
# reads.
SECONDS_PER_KIND = 12

EXPERT_FAULT = (r"\Aflashmoe: cannot read expert \d+ of layer \d+: '[^']*/model\.safetensors'"
                r"[^\n]* at byte \d+[^\n]*\n\Z")
LOAD_FAULT = (r"\Aflashmoe: [^\n]*'[^'\n]*/[a-z_]+\.(?:json|safetensors)'[^\n]* at byte \d+"
              r"[^\n]*\n\Z")


def run(*args, io="direct", cache_home=None, **faults):
    env = dict(os.environ, LD_PRELOAD=PRELOAD)
    if cache_home is not None:
        env["XDG_CACHE_HOME"] = cache_home
    # The sanitizer's runtime is not the first library then, which it would refuse.
    env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"),
                                                 "verify_asan_link_order=0"]))
    env.update({f"FAULT_{name.upper()}": str(value) for name, value in faults.items()})
    # A prompt of one token needs few experts, so that the answer has many left to read. What --io
    # auto measures at the first start would count as reads.
    command = [PROGRAM, "run", MODEL, "-p", "h", "--raw", "--greedy", "-q", "--no-heat", "--io",
               io, *args]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def count_reads(n_tokens):
    """Returns the text of a run without faults and the number of its reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "count")
        result = run("-n", str(n_tokens), count=path)
        if result.returncode != 0:
            raise AssertionError(result.stderr.decode())
        with open(path, encoding="ascii") as f:
            return result.stdout, int(f.read())


class Reads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.n_before_the_answer = count_reads(0)[1]
        begin = time.monotonic()
        cls.text, cls.n_reads = count_reads(N_TOKENS)
        cls.n_runs = max(30, int(SECONDS_PER_KIND / (time.monotonic() - begin)))

    def check(self, result, pattern):
        """Accepts success with the whole text, or a beginning of it and one message."""
        if result.returncode == 0:
            self.assertEqual((result.stdout, result.stderr), (self.text, b""))
            return
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertTrue(self.text.startswith(result.stdout), result.stdout)
        self.assertLess(len(result.stdout), len(self.text))
        self.assertRegex(result.stderr.decode(), pattern)

    def test_there_is_something_to_fail(self):
        self.assertGreater(len(self.text), N_TOKENS // 2)
        self.assertGreater(self.n_before_the_answer, 20)
        self.assertGreater(self.n_reads, self.n_before_the_answer + 20)

    def test_every_read(self):
        """The Nth read fails, for N from 1 until the run succeeds."""
        step = -(-self.n_reads // self.n_runs)
        for kind, why in (("eio", "Input/output error"), ("zero", "ends early")):
            n_failed = 0
            for n in [*range(1, 12), *range(12, self.n_reads + 2 * step + 1, step)]:
                with self.subTest(kind=kind, n=n):
                    result = run("-n", str(N_TOKENS), kind=kind, at=n)
                    self.check(result, f"{EXPERT_FAULT}|{LOAD_FAULT}")
                    if result.returncode != 0:
                        self.assertIn(why, result.stderr.decode())
                        n_failed += 1
                    last = result.returncode
            self.assertEqual(last, 0)
            self.assertGreater(n_failed, 20)

    def test_in_the_middle_of_the_answer(self):
        """The message names layer, expert, file and offset; no text comes after the fault."""
        longest = b""
        n_points = min(12, self.n_runs // 6)
        for n in range(self.n_before_the_answer + 1, self.n_reads,
                       (self.n_reads - self.n_before_the_answer) // n_points):
            for kind in ("eio", "zero"):
                for span in (1, 5, 0):
                    with self.subTest(kind=kind, n=n, span=span):
                        result = run("-n", str(N_TOKENS), kind=kind, at=n, span=span)
                        self.assertEqual(result.returncode, 1)
                        self.check(result, EXPERT_FAULT)
                        longest = max(longest, result.stdout, key=len)
        self.assertGreater(len(longest), 0)

    def test_json_prints_nothing_after_a_fault(self):
        for n in (1, self.n_before_the_answer // 2, self.n_before_the_answer + 3):
            result = run("-n", str(N_TOKENS), "--json", kind="eio", at=n)
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertRegex(result.stderr.decode(), f"{EXPERT_FAULT}|{LOAD_FAULT}")

    def test_interrupted_and_short_reads(self):
        """They are continued: the same text, the same bits."""
        def bits(**faults):
            result = run("-n", str(N_TOKENS), "--json", **faults)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            answer = json.loads(result.stdout)
            return [answer[key] for key in ("text", "tokens", "logits_hash", "bytes_read")]
        expected = bits()
        for kind in ("short", "eintr", "storm"):
            with self.subTest(kind):
                self.assertEqual(bits(kind=kind, span=0), expected)

    def test_slow_disk(self):
        """--io auto measures a slow disk only once, and keeps the result."""
        with tempfile.TemporaryDirectory() as folder:
            result = run("-n", str(N_TOKENS), io="auto", cache_home=folder, kind="slow", span=0)
            self.assertEqual((result.returncode, result.stdout), (0, self.text))
            folder = os.path.join(folder, "flashmoe")
            name, = os.listdir(folder)
            with open(os.path.join(folder, name), encoding="ascii") as file:
                facts = dict(line.split() for line in file.read().splitlines()[1:])
            self.assertEqual([int(facts[io]) > 0 for io in ("direct", "page")].count(True), 1)


if __name__ == "__main__":
    PROGRAM, PRELOAD, MODEL = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
