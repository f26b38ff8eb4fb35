"""Ranks that have only their own part of a model, as pack --layers makes it.

Usage: parts_test.py PROGRAM GOLDEN_DIR NANO [TestClass...]

Exit status 77, skipped: mpirun or the program's module for it is not there.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import cluster_test
from cluster_test import answer, mpirun, run


class Parts(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="parts-test-")
        self.addCleanup(work.cleanup)
        self.work = work.name

    def part(self, src, layers):
        dst = os.path.join(self.work, f"{os.path.basename(src)}-{layers}")
        subprocess.run([cluster_test.PROGRAM, "pack", src, dst, "--layers", layers, "--quiet"],
                       check=True)
        return dst

    def words(self, parts, *options):
        """mpirun's words for one rank per part."""
        words = mpirun(1)
        for i, part in enumerate(parts):
            words += [":", "-n", "1"] if i > 0 else []
            words += [cluster_test.PROGRAM, "run", part, "-p", cluster_test.PROMPT, "--temp", "0",
                      "-n", "12", "--json", "--threads", "1", "--quiet", *options]
        return words

    def hash_of(self, parts, *options):
        done = run(*self.words(parts, *options))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["logits_hash"]

    def test_same_hash(self):
        nano = cluster_test.NANO
        parts = [self.part(nano, "0-2"), self.part(nano, "3-5"), self.part(nano, "6-7")]
        expected = answer(nano, 0)["logits_hash"]
        self.assertEqual(self.hash_of(parts, "--layers", "3,3,2"), expected)
        # Some of the ranks may have the whole model; drafts need only the first part.
        self.assertEqual(self.hash_of([parts[0], nano, parts[2]], "--layers", "3,3,2", "--draft",
                                      "4"), expected)

    def test_same_model_from_a_checkpoint(self):
        """Parts that were made apart from each other have the same checksums."""
        golden = cluster_test.golden("qwen3_next")
        whole = os.path.join(self.work, "whole")
        subprocess.run([cluster_test.PROGRAM, "pack", golden, whole, "--quiet"], check=True)
        parts = [self.part(golden, "0-1"), self.part(golden, "2-3")]
        self.assertEqual(self.hash_of(parts, "--layers", "2,2"), answer(whole, 0)["logits_hash"])

    def refused(self, parts, text, *options):
        done = run(*self.words(parts, *options))
        lines = [line for line in done.stderr.splitlines() if line.startswith("flashmoe: ")]
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], text)

    def test_other_cut(self):
        nano = cluster_test.NANO
        parts = [self.part(nano, "0-2"), self.part(nano, "3-7")]
        self.refused(parts, r"'experts-003\.bin' is missing: .* has the experts of layers 0-2, 8",
                     "--layers", "4,4")
        self.refused(parts, r"rank 1 \(.+\): 'experts-002\.bin' is missing: .* layers 3-7",
                     "--layers", "2,6")

    def test_part_of_another_model(self):
        golden = cluster_test.golden("qwen3_next")
        other = os.path.join(self.work, "other")
        subprocess.run([cluster_test.PROGRAM, "pack", golden, other, "--experts", "affine8-g64",
                        "--layers", "2-3", "--quiet"], check=True)
        self.refused([self.part(golden, "0-1"), other], r"rank 1 \(.+\) has another model than "
                     "rank 0: its checksums or configuration differ", "--layers", "2,2")


def main():
    cluster_test.PROGRAM, cluster_test.GOLDEN, cluster_test.NANO = map(os.path.abspath,
                                                                       sys.argv[1:4])
    module = os.path.join(os.path.dirname(cluster_test.PROGRAM), "libflashmoe_mpi.so")
    if shutil.which("mpirun") is None or not os.path.exists(module):
        print("skipped: Open MPI is not there (Debian: libopenmpi-dev openmpi-bin)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)


if __name__ == "__main__":
    main()
