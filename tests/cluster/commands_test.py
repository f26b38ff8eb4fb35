"""Commands on several ranks give what they give on one, and ranks of another version are refused.

Usage: commands_test.py PROGRAM GOLDEN_DIR NANO [TestClass...]

Exit status 77, skipped: mpirun or the program's module for it is not there.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import cluster_test
from cluster_test import PROMPT, environment, mpirun, run

LINES = "Hello there\nWhat is a river?\n/quit\n"


class Commands(unittest.TestCase):
    def test_chat(self):
        words = [cluster_test.PROGRAM, "chat", cluster_test.NANO, "--temp", "0", "-n", "12",
                 "--threads", "1", "--no-heat"]
        told = []
        for start in ([], mpirun(3)):
            done = subprocess.run([*start, *words], input=LINES, capture_output=True, text=True,
                                  timeout=120, env=environment(), check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            told.append(done.stdout)
        self.assertGreater(len(told[0].split()), 8, told)
        self.assertEqual(told[0], told[1])

    def test_eval(self):
        with tempfile.TemporaryDirectory() as work:
            text = os.path.join(work, "text")
            with open(text, "w", encoding="utf-8") as f:
                f.write((PROMPT + "\n") * 5)
            words = [cluster_test.PROGRAM, "eval", "nll", cluster_test.NANO, text, "--json",
                     "--threads", "1", "--no-heat"]
            told = []
            for start in ([], mpirun(2)):
                done = run(*start, *words)
                self.assertEqual(done.returncode, 0, done.stderr)
                found = json.loads(done.stdout)
                told.append({name: found[name] for name in ("nats_per_token", "n_tokens")})
            self.assertEqual(told[0], told[1])


class Versions(unittest.TestCase):
    def test_another_version(self):
        own = run(cluster_test.PROGRAM, "--version").stdout.split()[-1]
        words = ("run", cluster_test.NANO, "-p", "a", "-n", "2", "--quiet")
        done = run(*mpirun(1), cluster_test.PROGRAM, *words, ":", "-n", "1",
                   os.path.join(os.path.dirname(cluster_test.PROGRAM), "other_version"))
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        # Both ranks refuse. When the first has ended, mpirun ends the other one, perhaps before
        # its line is written.
        own = re.escape(own)
        self.assertRegex(done.stderr,
                         rf"flashmoe: rank 1 \(.+\) runs flashmoe 9\.9\.9, and this rank runs {own}"
                         rf"|other_version: rank 0 \(.+\) runs flashmoe {own}, and this rank runs "
                         r"9\.9\.9")

    def test_silent(self):
        """A rank that hangs before it has said what it is: the job ends, and the reason is told."""
        begin = time.monotonic()
        done = run(*mpirun(1), cluster_test.PROGRAM, "run", cluster_test.NANO, "-p", "a",
                   "--rank-timeout", "2", ":", "-n", "1",
                   os.path.join(os.path.dirname(cluster_test.PROGRAM), "other_version"), "hangs")
        self.assertLess(time.monotonic() - begin, 50) # after a minute it would end anyway
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"rank 1 \(unknown\): it has not answered for 2\.\d s")


if __name__ == "__main__":
    cluster_test.PROGRAM, cluster_test.GOLDEN, cluster_test.NANO = sys.argv[1:4]
    module = os.path.join(os.path.dirname(sys.argv[1]), "libflashmoe_mpi.so")
    if shutil.which("mpirun") is None or not os.path.exists(module):
        print("skipped: Open MPI is not there (Debian: libopenmpi-dev openmpi-bin)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
