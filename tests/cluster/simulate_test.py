"""The simulation of many ranks (tests/bench/cluster_simulate.py) against what follows by hand.

Usage: simulate_test.py [TestClass...]
"""
import contextlib
import io
import os
import sys
import tempfile
import unittest
from xml.etree import ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import cluster_cores  # pylint: disable=wrong-import-position
import cluster_simulate  # pylint: disable=wrong-import-position
from cluster_simulate import Stage, even_cut, predict, simulate  # pylint: disable=C0413


class Simulation(unittest.TestCase):
    def test_one_answer_takes_all_stages_and_hops(self):
        stages = [Stage(0.010), Stage(0.020), Stage(0.005)]
        hops = [(0.001, 0.0002), (0.002, 0.0), (0.0, 0.0005)]
        self.assertAlmostEqual(simulate(stages, hops, 1), 1 / (0.035 + 0.0037), places=6)
        self.assertAlmostEqual(simulate(stages[:1], hops, 1), 100, places=6)

    def test_many_answers_are_bound_by_the_slowest_stage(self):
        stages = [Stage(0.010), Stage(0.020), Stage(0.005)]
        for latency in (0.0, 0.001):
            hops = [(latency, 0.0)] * 3
            self.assertAlmostEqual(simulate(stages, hops, 6), 50, delta=0.5)
        # Two answers cannot fill three stages with long ways between them.
        self.assertLess(simulate(stages, [(0.02, 0.0)] * 3, 2), 25)

    def test_a_slow_link_bounds_them_too(self):
        stages = [Stage(0.001)] * 2
        self.assertAlmostEqual(simulate(stages, [(0.0, 0.010), (0.0, 0.0)], 8), 100, delta=1)

    def test_misses_vary_and_have_the_right_mean(self):
        stage = Stage(0.010, 0.040, n_uses=200, hit_rate=0.9)
        self.assertAlmostEqual(simulate([stage], [], 1, n_tokens=20000), 20, delta=0.1)
        varying = simulate([stage] * 4, [(0, 0)] * 4, 4, n_tokens=4000)
        self.assertTrue(20 * 0.6 < varying < 20 * 0.97, varying)  # stages wait for each other

    def test_prediction(self):
        times = [0.01, 0.01, 0.02, 0.02, 0.005]  # the head is the last one
        self.assertAlmostEqual(predict(times, [2, 2], 0.001, 1), 1 / 0.067, places=6)
        self.assertAlmostEqual(predict(times, [2, 2], 0.0, 8), 25, delta=0.3)
        self.assertEqual(even_cut(61, 4), [15, 15, 15, 16])

    def kept(self):
        """A file of cluster_cores.py: two ranks, four layers of 10 ms and a head of 5. A pass takes
        a tenth more than its layers."""
        def step(name, **more):
            return {"name": name, "took_s": 1, **more}
        times = [0.01, 0.01, 0.01, 0.01, 0.005]
        return {"ranks": 2, "cores": 1, "cut": [2, 2], "steps": [
            step("layers, alone", rows=1, pass_s=0.0495, layers_s=times),
            step("layers, one row beside others", rows=1, pass_s=0.1485,
                 layers_s=[3 * s for s in times]),
            step("layers, in a group beside others", rows=4, pass_s=0.099,
                 layers_s=[2 * s for s in times]),
            step("hops", hop_s=0.001),
            step("one rank, one answer", tok_per_s=20.0),
            step("2 ranks, one answer", tok_per_s=20.0, hop_s=0.002),
            step("2 ranks, 8 sequences", tok_per_s=80.0),
            step("2 ranks, 2 sequences", tok_per_s=30.0),
            step("one rank, one answer", tok_per_s=1.0)]} # its round has ended early

    def test_calibration_from_a_file(self):
        found = cluster_simulate.pairs_from(self.kept())
        self.assertEqual(found["hop in an answer, ms"], [(2.0, 2.0)])
        for what, expected in (("1 rank, measured again", 1 / 0.0495), ("2 ranks", 1 / 0.0535)):
            (predicted, measured), = found[what]
            self.assertAlmostEqual(predicted, expected, places=6)
            self.assertEqual(measured, 20)
        (predicted, _), = found["2 ranks, 8 sequences in 2 groups"]
        self.assertAlmostEqual(predicted, 4 / 0.055, delta=3)
        (predicted, _), = found["2 ranks, 2 sequences"]
        self.assertAlmostEqual(predicted, 1 / 0.0825, delta=0.5)

    def test_calibration_from_another_file(self):
        for name in ("layers, alone", "one rank, prompt"):
            with self.assertRaises(SystemExit):
                cluster_simulate.pairs_from(dict(self.kept(), steps=[{"name": name}]))

    def test_calibration_from_a_file_that_ended_early(self):
        kept = self.kept()
        for n in range(len(kept["steps"])):
            early = cluster_simulate.pairs_from(dict(kept, steps=kept["steps"][:n]))
            self.assertEqual("2 ranks" in early, n > 5)
            self.assertEqual("1 rank, measured again" in early, n > 5)
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                cluster_simulate.print_pairs(early)
            self.assertEqual("hop of 2 ranks, ms: 1.000" in shown.getvalue(), n > 3)

    def test_cores(self):
        self.assertEqual(cluster_cores.best_cut([1] * 8 + [0.1], 4), [2, 2, 2, 2])
        self.assertEqual(cluster_cores.best_cut([1] * 6 + [2], 2), [2, 4])
        for needed, expected in ((8, [0, 4, 1, 5, 2, 6, 3, 7]), (5, [0, 4, 1, 5, 2, 6, 3, 7]),
                                 (4, [0, 1, 2, 3])):
            self.assertEqual(cluster_cores.in_order([0, 1, 2, 3, 4, 5, 6, 7], 4, needed), expected)
        self.assertEqual(cluster_cores.in_order([0, 1, 2, 3], 1, 4), [0, 1, 2, 3])
        self.assertEqual(cluster_cores.in_order([0, 1, 2, 3], 1, 2), [0, 2])
        self.assertEqual(cluster_cores.in_order([0, 1, 2, 3], None, 2), [0, 1, 2, 3])
        # Four groups of two read dense weights of 10 four times, and 2 - 1/4 of 4 experts of 1.
        model = {"n_layers": 1, "n_experts": 4, "n_experts_per_token": 1, "expert_bytes": 1,
                 "dense_token_bytes": 10}
        one, several = cluster_cores.bytes_of_step({"ranks": 4, "model": model})
        self.assertAlmostEqual(one, 10 + 4 * (1 - 0.75 ** 8))
        self.assertAlmostEqual(several, 4 * (10 + 1.75))

    def test_plot(self):
        rows = [{"model": model, "network": network, "ranks": n, "one": 1.0 * n, "many": 3.0 * n}
                for model in ("a", "b") for network in cluster_simulate.NETWORKS
                for n in (1, 8, 64)]
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, "plot.svg")
            cluster_simulate.draw(rows, path)
            root = ElementTree.parse(path).getroot()
        lines = [e for e in root.iter() if e.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2 * 2 * len(cluster_simulate.NETWORKS))
        self.assertIn("simulat", "".join(root.itertext()))


if __name__ == "__main__":
    unittest.main()
