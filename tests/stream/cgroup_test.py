"""cgroup_test.py FLASHMOE: the memory of a run, as its cgroup accounts for it, resident memory and
page cache together, stays within 2 % of --memory from start to end. This also holds if the run
measures its disk first and then reads through the page cache. The model is three times as large.

Forced to read through the page cache, the same run exceeds the budget. So the samples do show the
page cache. In a cgroup with a limit and without --memory, the program fits itself into the limit
and is not killed.

Exit status 77 (skipped) if no memory cgroup can be made: that needs root, and either version 1 or
version 2 with the memory controller.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from cgroup import open_group

PROGRAM = None
MIB = 1 << 20
BUDGET = 104 * MIB
SHAPE = ("coder-next", "--layers", "4", "--experts", "84", "--used", "4", "--hidden", "1024",
         "--expert-width", "512", "--vocab", "4096", "-q")
RUN = ("--raw", "--greedy", "-n", "120", "--context", "900", "--no-heat", "--routes", "gen",
       "--json", "-q")
PROMPT = "Once upon a time there was a robot who loved music. " * 10


def sampled(group, command, env):
    """Returns status, output and messages of the command, its maximum memory, and the number of
    samples."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = group.start(command, stdout=out, stderr=err, env=env)
        most, n = 0, 0
        while process.poll() is None:
            most, n = max(most, group.held()), n + 1
            time.sleep(0.01)
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read(), err.read(), most, n


def forget(folder):
    """Drops the folder's pages. Pages already in memory stay charged to whoever read them."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Bounded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=".")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "synth.fmoe")
        cls.prompt = os.path.join(cls.folder.name, "prompt.txt")
        subprocess.run([PROGRAM, "synth", *SHAPE, cls.model], check=True)
        with open(cls.prompt, "w", encoding="ascii") as file:
            file.write(PROMPT)

    def run_in_group(self, *args, limit=0, cache_home=None):
        forget(self.folder.name)
        group = open_group()
        try:
            if limit > 0:
                group.limit(limit)
            command = [PROGRAM, "run", self.model, "-f", self.prompt, *RUN, *map(str, args)]
            env = dict(os.environ, XDG_CACHE_HOME=os.path.abspath(cache_home or
                                                                  self.folder.name))
            status, out, err, most, n = sampled(group, command, env)
            n_killed = group.n_killed()
        finally:
            group.remove()
        self.assertEqual((status, n_killed), (0, 0), err)
        answer = json.loads(out)
        self.assertGreater(n, 20)
        self.assertEqual(answer["n_tokens"], 120)
        print(f"{' '.join(map(str, args))} limit {limit / MIB:.0f}: at most {most / MIB:.1f} MiB "
              f"in {n} samples, resident {answer['memory_bytes'] / MIB:.1f}, budget "
              f"{answer['memory_budget_bytes'] / MIB:.1f}, {answer['bytes_read'] / MIB:.0f} read, "
              f"{answer['io']}, hash {answer['logits_hash']}")
        return most, answer

    def test_within_the_budget(self):
        most, answer = self.run_in_group("--memory", BUDGET, "--io", "direct")
        if answer["io"] != "direct":
            self.skipTest("this file system cannot be read past the page cache")
        self.assertGreater(answer["bytes_read"], 2 * BUDGET)
        self.assertLessEqual(most, BUDGET * 1.02)
        self.assertGreater(most, BUDGET * 0.5)
        paged, same = self.run_in_group("--memory", BUDGET, "--io", "page")
        self.assertGreater(paged, BUDGET * 1.02) # the check above can fail
        self.assertEqual(same["logits_hash"], answer["logits_hash"])

    def test_auto_within_the_budget(self):
        """On the first start, which measures, and when page was measured to be faster."""
        with tempfile.TemporaryDirectory(dir=".") as home:
            first, answer = self.run_in_group("--memory", BUDGET, cache_home=home)
            kept, = pathlib.Path(home, "flashmoe").glob("*.io")
            facts = kept.read_text()
            kept.write_text(facts[:facts.index("direct")] + "direct 100\npage 1000\n")
            paged, same = self.run_in_group("--memory", BUDGET, cache_home=home)
        self.assertEqual(same["io"], "page")
        self.assertEqual(same["logits_hash"], answer["logits_hash"])
        self.assertGreater(same["bytes_read"], 2 * BUDGET)
        self.assertLessEqual(first, BUDGET * 1.02)
        self.assertLessEqual(paged, BUDGET * 1.02)

    def test_inside_a_limit(self):
        limit = 128 * MIB
        most, answer = self.run_in_group(limit=limit)
        self.assertLessEqual(answer["memory_budget_bytes"], limit)
        self.assertLessEqual(most, limit)

    def test_above_the_limit(self):
        """Every command refuses a budget for which the cgroup would kill the program."""
        limit = 128 * MIB
        for args in (("run", self.model, "-p", "Hi"), ("serve", self.model, "--port", "0"),
                     ("plan", self.model), ("bench", "decode", self.model)):
            group = open_group()
            try:
                group.limit(limit)
                process = group.start([PROGRAM, *args, "--memory", "129M"], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                text, _ = process.communicate(timeout=1800)
            finally:
                group.remove()
            self.assertNotEqual(process.returncode, 0, args)
            for part in ("129.0 MiB", "128.0 MiB limit", "held by others", "--memory", "memory."):
                self.assertIn(part, text, args)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    possible = open_group()
    if possible is None:
        print("skipped: no memory cgroup can be made here")
        sys.exit(77)
    possible.remove()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
