"""flashmoe cluster plan and cluster probe: real ranks on this machine, and machines from a file.

Usage: plan_test.py PROGRAM GOLDEN_DIR NANO [TestClass...]

Exit status 77, skipped: mpirun or the program's module for it is not there.
"""
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import cluster_test
from cluster_test import environment
from parts_test import main


def run_words(words, **more):
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=600, env=environment(**{**root, **more}), check=False)


def flashmoe(*words, **more):
    return run_words([cluster_test.PROGRAM, *words], **more)


def machine(gb, disk=1e9, memory=2e10, latency=2e-4, link=1.25e8):
    return {"memory_bytes": int(gb * 1e9), "memory_bytes_per_s": memory, "disk_bytes_per_s": disk,
            "latency_s": latency, "link_bytes_per_s": link}


class Case(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="plan-test-")
        self.addCleanup(work.cleanup)
        self.work = work.name

    def write(self, name, text):
        path = os.path.join(self.work, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def refused(self, done, status, *words):
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        for line in done.stderr.splitlines():
            self.assertTrue(line.startswith("flashmoe: "), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class Machines(Case):
    """Plans for machines of a file: nothing is measured, and no MPI is needed."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="plan-test-")
        cls.model = os.path.join(cls.folder.name, "model")
        subprocess.run([cluster_test.PROGRAM, "synth", "30b-a3b", cls.model, "--layers", "8",
                        "--vocab", "4096", "--form", "packed", "--headers-only", "--quiet"],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def plan(self, machines, *options):
        path = self.write("machines.json", json.dumps({"machines": machines}))
        done = flashmoe("cluster", "plan", self.model, "--machines", path, "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_best_of_all_cuts(self):
        """No other cut that the program itself predicts is faster, or as fast and more even."""
        machines = [machine(1.2), machine(2.5, disk=3e8), machine(0.9, memory=8e9)]
        found = self.plan(machines)
        self.assertEqual(sum(s["n_layers"] for s in found["stages"]), 8)
        times = {}
        for cut in itertools.product(range(1, 7), repeat=3):
            if sum(cut) != 8:
                continue
            text = ",".join(map(str, cut))
            path = os.path.join(self.work, "machines.json")
            done = flashmoe("cluster", "plan", self.model, "--machines", path, "--json",
                            "--layers", text)
            if done.returncode == 0:
                other = json.loads(done.stdout)
                times[text] = (other["token_max_s"], max(s["max_s"] for s in other["stages"]))
        best = min(total for total, _ in times.values())
        self.assertLessEqual(found["token_max_s"], best * 1.0101)
        even = min(slowest for total, slowest in times.values() if total <= best * 1.009)
        self.assertLessEqual(times[found["layers"]][1], even * 1.0001)
        self.assertGreater(len(times), 5)

    def test_arithmetic(self):
        """A token takes all stages and hops; a hop is latency and the message's bytes."""
        found = self.plan([machine(1.5, latency=1e-3), machine(1.5, latency=2e-3)])
        hops = [1e-3 + found["message_bytes"] / 1.25e8, 2e-3 + found["message_bytes"] / 1.25e8]
        self.assertAlmostEqual(found["hops_s"], sum(hops), delta=1e-9)
        self.assertEqual(found["slowest_hop"], 1)
        for bound in ("min_s", "max_s"):
            stages = sum(stage[bound] for stage in found["stages"])
            self.assertAlmostEqual(found["token_" + bound], stages + sum(hops), delta=1e-9)
        # The head and one row of 2,048 floats travel.
        self.assertTrue(8192 < found["message_bytes"] < 8192 + 512, found["message_bytes"])
        slowest = max(stage["max_s"] for stage in found["stages"])
        self.assertAlmostEqual(found["pipelined_tok_per_s_min"], 1 / slowest, places=6)

    def test_memory_decides(self):
        """More memory: more hits, more tokens. A second machine helps when it adds memory."""
        small, large = self.plan([machine(1)]), self.plan([machine(4)])
        self.assertLess(small["stages"][0]["hit_rate"], large["stages"][0]["hit_rate"])
        self.assertLess(small["tok_per_s_min"], large["tok_per_s_min"])
        two = self.plan([machine(1), machine(1)])
        self.assertLess(two["fewer"][1]["max_s"], two["fewer"][0]["max_s"])
        fits = self.plan([machine(8), machine(8)])
        self.assertGreater(fits["fewer"][1]["max_s"], fits["fewer"][0]["max_s"])
        uneven = self.plan([machine(0.8), machine(3)])
        layers = [stage["n_layers"] for stage in uneven["stages"]]
        self.assertLess(layers[0], layers[1])

    def test_own_output_is_input(self):
        found = self.plan([machine(1.5), machine(2)])
        path = self.write("again.json", json.dumps(found))
        again = flashmoe("cluster", "plan", self.model, "--machines", path, "--json")
        self.assertEqual(json.loads(again.stdout), found)
        more = flashmoe("cluster", "plan", self.model, "--machines", path, "--json", "--memory",
                        "20G")
        self.assertEqual({s["share"] for s in json.loads(more.stdout)["stages"]}, {1})

    def test_64_ranks(self):
        model = os.path.join(self.work, "large")
        subprocess.run([cluster_test.PROGRAM, "synth", "30b-a3b", model, "--layers", "64",
                        "--headers-only", "--quiet"], check=True, capture_output=True)
        path = self.write("machines.json", json.dumps({"machines": [machine(4)] * 64}))
        done = flashmoe("cluster", "plan", model, "--machines", path, "--json")
        found = json.loads(done.stdout)
        self.assertEqual(found["layers"], ",".join(["1"] * 64))
        self.assertEqual(found["command"][-1], found["layers"])

    def test_refusals(self):
        def plan(text, *options, model=self.model):
            return flashmoe("cluster", "plan", model, "--machines",
                            self.write("m.json", text), *options)
        good = json.dumps({"machines": [machine(1)] * 2})
        self.refused(plan(json.dumps({"machines": [machine(0.3)]})), 1, "does not fit 1 machine",
                     "dense weights")
        self.refused(plan("{}"), 1, "m.json", "'machines' has 0 entries")
        self.refused(plan(json.dumps({"machines": [machine(1)] * 9})), 2, "9 ranks are too many")
        without = machine(1)
        del without["memory_bytes_per_s"]
        self.refused(plan(json.dumps({"machines": [machine(1), without]})), 1, "machine 1",
                     "'memory_bytes_per_s' is missing")
        self.refused(plan(json.dumps({"machines": [dict(machine(1), disk_bytes_per_s=-1)]})), 1,
                     "machine 0", "disk_bytes_per_s", "-1")
        self.refused(plan(good, "--layers", "4,5"), 2, "--layers is '4,5'", "8 layers")
        self.refused(plan(good, "--layers", "4,x"), 2, "--layers is '4,x'")
        self.refused(plan("{"), 1, "m.json")
        self.refused(plan(good, model="/nowhere"), 1, "/nowhere")
        self.refused(flashmoe("cluster", "plan", self.model, "--machines", "/nowhere.json"), 1,
                     "/nowhere.json")
        self.refused(flashmoe("cluster", "plan", "a", self.model, "--machines", "x"), 2,
                     "--machines replaces HOSTFILE")
        self.refused(flashmoe("cluster", "plan", self.model), 2, "HOSTFILE and MODEL are needed")


class Ranks(Case):
    """Real ranks on this machine."""

    def plan(self, hosts, model, *options, **more):
        path = self.write("hosts", hosts) if hosts is not None else "/nowhere/hosts"
        return flashmoe("cluster", "plan", path, model, "--quiet", *options, **more)

    def test_measured(self):
        nano = cluster_test.NANO
        done = self.plan("# three ranks here\nlocalhost slots=3\n", nano, "--json", "--threads",
                         "1", "--memory", "1G", "--mpirun", "--oversubscribe")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(len(found["machines"]), 3)
        for m in found["machines"]:
            self.assertEqual((m["memory_bytes"], m["n_threads"]), (1 << 30, 1))
            for field in ("memory_bytes_per_s", "disk_bytes_per_s", "mul_adds_per_s",
                          "link_bytes_per_s"):
                self.assertGreater(m[field], 1e6, field)
            self.assertTrue(0 < m["latency_s"] < 5 and 0 < m["message_s"] < 5, m)
        # The line that it prints works, and says which layers each rank has.
        words = found["command"]
        self.assertEqual(words[words.index("--layers") + 1], found["layers"])
        words[words.index("serve")] = "run"
        ran = run_words(words + ["-p", cluster_test.PROMPT, "-n", "4", "--temp", "0", "--json",
                                      "--quiet"])
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual([r["n_layers"] for r in json.loads(ran.stdout)["ranks"]],
                         [s["n_layers"] for s in found["stages"]])

    def test_without_mpirun(self):
        done = flashmoe("cluster", "probe", cluster_test.NANO, "--json", "--quiet", "--threads",
                        "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        machines = json.loads(done.stdout)["machines"]
        self.assertEqual(len(machines), 1)
        self.assertGreater(machines[0]["disk_bytes_per_s"], 1e6)

    def test_host_file(self):
        nano = cluster_test.NANO
        self.refused(self.plan(None, nano), 1, "the host file", "/nowhere/hosts")
        self.refused(self.plan("# nothing\n", nano), 1, "it has 0 ranks")
        self.refused(self.plan("a slots=1\nb slots=x\n", nano), 1, "line 2", "slots=x")

    def test_unreachable_host(self):
        done = self.plan("no-such-host.invalid slots=1\nlocalhost slots=1\n", cluster_test.NANO)
        self.assertEqual(done.returncode, 1)
        self.assertGreater(len(done.stderr.splitlines()), 2)  # mpirun's own words, too
        self.assertIn("flashmoe: the machines could not be measured", done.stderr)
        self.assertIn("ssh HOST true", done.stderr)

    def test_no_mpirun(self):
        done = self.plan("localhost slots=2\n", cluster_test.NANO, PATH="/nowhere")
        self.refused(done, 1, "mpirun cannot be started", "--machines")

    def test_no_module(self):
        """A build without Open MPI's headers."""
        program = os.path.join(self.work, "flashmoe")
        shutil.copy(cluster_test.PROGRAM, program)
        done = run_words([program, "cluster", "plan", self.write("hosts", "localhost slots=2"),
                               cluster_test.NANO, "--quiet", "--mpirun", "--oversubscribe"])
        self.refused(done, 1, "libflashmoe_mpi.so is not installed")

    def test_model_missing_on_one_rank(self):
        model = os.path.join(self.work, "model")
        os.symlink(cluster_test.NANO, model)
        # Rank 1 runs in a folder where the relative path leads nowhere.
        other = os.path.join(self.work, "other")
        os.mkdir(other)
        words = ["mpirun", "--oversubscribe", "-n", "1", "-wdir", self.work, cluster_test.PROGRAM,
                 "cluster", "probe", "model", "--json", ":", "-n", "1", "-wdir", other,
                 cluster_test.PROGRAM, "cluster", "probe", "model", "--json"]
        done = run_words(words)
        self.assertNotEqual(done.returncode, 0)
        lines = [line for line in done.stderr.splitlines() if line.startswith("flashmoe: ")]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], r"rank 1 \(.+\): .*'model'")
        # 'cluster plan' shows that line, and its own.
        self.refused(self.plan("localhost slots=2\n", "/nowhere/model"), 1, "/nowhere/model")


if __name__ == "__main__":
    main()
