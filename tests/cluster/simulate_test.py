"""The simulation of many ranks (tests/bench/cluster_simulate.py) against what follows by hand.

Usage: simulate_test.py [TestClass...]
"""
import os
import sys
import tempfile
import unittest
from xml.etree import ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
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
