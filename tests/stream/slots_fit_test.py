"""slots_fit_test.py FLASHMOE: the slots of the expert cache fit into --memory when every one of
them holds an expert, with a model whose slots take most of the budget.

The budget includes a margin for what the program allocates later, so a few slots too many would go
unnoticed. A fifth too many must be noticed: the test checks that its own slack is smaller than
that.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
MIB = 1 << 20
N_LAYERS, N_EXPERTS = 3, 128
SHAPE = ("coder-next", "--layers", str(N_LAYERS), "--experts", str(N_EXPERTS), "--used", "4",
         "--hidden", "1024", "--expert-width", "384", "--vocab", "4096", "-q")
# The routers of random weights choose evenly, so a prompt uses all experts.
RUN = ("--raw", "--greedy", "-n", "20", "--context", "512", "--no-heat", "--io", "direct", "--json",
       "-q", "-p", "Once upon a time there was a robot who loved music. " * 6)


class SlotsFit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=".")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "synth.fmoe")
        subprocess.run([PROGRAM, "synth", *SHAPE, cls.model], check=True)
        info = subprocess.run([PROGRAM, "inspect", cls.model, "--json"], check=True,
                              stdout=subprocess.PIPE).stdout
        cls.expert_bytes = json.loads(info)["expert_bytes"]

    def check(self, budget, *options):
        done = subprocess.run([PROGRAM, "run", self.model, "--memory", str(budget), *RUN, *options],
                              stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        slots = found["n_cache_slots"] * self.expert_bytes
        print(f"budget {budget / MIB:.0f} MiB {' '.join(options)}: {found['n_cache_slots']} slots "
              f"of {self.expert_bytes} bytes are {slots / MIB:.1f} MiB, resident "
              f"{found['memory_bytes'] / MIB:.1f} MiB, {found['bytes_read'] / MIB:.0f} MiB read")
        self.assertEqual(found["memory_budget_bytes"], budget)
        self.assertGreater(slots, 0.6 * budget) # they are most of it,
        self.assertLess(found["n_cache_slots"], N_LAYERS * N_EXPERTS) # not all experts have one,
        self.assertGreater(found["bytes_read"], 1.2 * slots) # and all were filled
        self.assertLessEqual(found["memory_bytes"], budget)
        self.assertLess(budget - found["memory_bytes"], 0.2 * slots) # a fifth more would show

    def test_fixed(self):
        self.check(192 * MIB, "--elastic", "off")

    def test_elastic(self):
        self.check(176 * MIB, "--elastic", "on")


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
