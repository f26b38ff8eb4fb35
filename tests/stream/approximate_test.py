"""approximate_test.py PROGRAM GOLDENS NANO [PART...]: the lossy switches are off by default, do
what they say, and are named in every output."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = GOLDENS = NANO = None
SECONDS = 1800  # ends what hangs; no test needs a fast machine
FAMILIES = ("qwen3_next", "qwen3_moe", "qwen3_5_moe_text")
RUN = ("-p", "Once upon a time", "-n", "24", "--greedy", "--no-heat")
FEWER = "approximate: 1 of 4 experts per token"


def flashmoe(*args):
    return subprocess.run([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, encoding="utf-8", timeout=SECONDS)


def config_of(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return config, config.get("text_config", config)


class Case(unittest.TestCase):
    def works(self, *args):
        result = flashmoe(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def answer(self, model, *args):
        return json.loads(self.works("run", model, *RUN, "--json", *args).stdout)


class Switches(Case):
    def test_all_experts_are_exact(self):
        for family in FAMILIES:
            model = GOLDENS / family
            used = config_of(model)[1]["num_experts_per_tok"]
            plain = self.answer(model)
            self.assertIsNone(plain["approximate"])
            for more in (("--experts-per-token", used), ("--cache-bias", 0)):
                same = self.answer(model, *more)
                self.assertIsNone(same["approximate"])
                self.assertEqual(same["logits_hash"], plain["logits_hash"])

    def test_fewer_experts_are_those_of_a_smaller_k(self):
        """The bits are those of a model whose configuration has the smaller k."""
        for family in FAMILIES:
            with self.subTest(family), tempfile.TemporaryDirectory() as folder:
                small = os.path.join(folder, family)
                shutil.copytree(GOLDENS / family, small)
                config, text = config_of(small)
                used = text["num_experts_per_tok"]
                text["num_experts_per_tok"] = used - 1
                (pathlib.Path(small) / "config.json").write_text(json.dumps(config))
                expected = self.answer(small)
                self.assertIsNone(expected["approximate"])
                fewer = self.answer(GOLDENS / family, "--experts-per-token", used - 1)
                self.assertEqual(fewer["approximate"],
                                 f"approximate: {used - 1} of {used} experts per token")
                self.assertEqual(fewer["logits_hash"], expected["logits_hash"])
                self.assertNotEqual(fewer["logits_hash"],
                                    self.answer(GOLDENS / family)["logits_hash"])

    def test_bias_reads_less(self):
        small = ("--memory", "48M", "--context", "256", "--prefill-chunk", "16")
        exact = self.answer(NANO, *small)
        plain = self.answer(NANO, "--cache-bias", "0.3", *small)
        self.assertEqual(plain["approximate"],
                         "approximate: experts in memory preferred (cache bias 0.3)")
        self.assertLess(plain["bytes_read"], exact["bytes_read"])
        self.assertNotEqual(plain["logits_hash"], exact["logits_hash"])

    def test_keys_and_values_in_fewer_bits(self):
        """Checks the label, and the bytes of a head's vector, which has 64 dimensions here."""
        model = GOLDENS / "qwen3_next"
        plain, hashes = self.answer(model), set()
        positions = {}
        for kv in ("f16", "f32"):
            self.assertIsNone(self.answer(model, "--kv", kv)["approximate"])
        for kv, bits in (("rot8", 8), ("rot4", 4), ("rot3", 3), ("rot2", 2)):
            found = self.answer(model, "--kv", kv)
            self.assertEqual(found["approximate"],
                             f"approximate: keys and values in {bits} bits ({kv})")
            hashes.add(found["logits_hash"])
        self.assertEqual(len(hashes - {plain["logits_hash"]}), 4)
        for kv in ("f16", "f32", "rot8", "rot4", "rot3", "rot2"):
            info = json.loads(self.works("inspect", model, "--kv", kv, "--json").stdout)
            positions[kv] = info["kv_position_bytes"]
        vector = {"f32": 256, "f16": 128, "rot8": 66, "rot4": 34, "rot3": 26, "rot2": 18}
        vectors = (positions["f32"] - positions["f16"]) / 128
        self.assertEqual(vectors % 2, 0)
        for kv, bytes_each in vector.items():
            self.assertEqual(positions["f32"] - positions[kv], vectors * (256 - bytes_each), kv)
        both = self.answer(model, "--kv", "rot4", "--experts-per-token", "1")
        self.assertEqual(both["approximate"], FEWER + "; keys and values in 4 bits (rot4)")

    def test_refusals(self):
        model = GOLDENS / "qwen3_next"
        used = config_of(model)[1]["num_experts_per_tok"]
        for option, value, words in (
                ("--experts-per-token", used + 1, (f"{used + 1} experts", f"1 to {used}")),
                ("--experts-per-token", 0, ("--experts-per-token",)),
                ("--experts-per-token", "x", ("--experts-per-token",)),
                ("--cache-bias", -0.1, ("--cache-bias", "0 to 1")),
                ("--cache-bias", 1.1, ("--cache-bias", "0 to 1")),
                ("--cache-bias", "nan", ("--cache-bias",)),
                ("--kv", "q4_0", ("'q4_0'", "f16, f32, rot8, rot4, rot3, rot2"))):
            with self.subTest(option=option, value=value):
                result = flashmoe("run", model, *RUN, option, value)
                self.assertNotEqual(result.returncode, 0)
                self.assertRegex(result.stderr, r"\Aflashmoe: [^\n]*\n\Z")
                for word in words:
                    self.assertIn(word, result.stderr)
        result = flashmoe("run", model, *RUN, "--cache-bias", "0.1", "--routes", "gen")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("routes", result.stderr)

    def test_eval_shows_the_cost(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text.txt")
            trace = os.path.join(folder, "trace.csv")
            with open(path, "w", encoding="utf-8") as file:
                file.write("Once upon a time there was a robot who loved music. " * 20)
            evaluate = ("eval", "nll", NANO, path, "--window", "32", "--windows", "4", "-q")
            exact = json.loads(self.works(*evaluate, "--json").stdout)
            self.assertIsNone(exact["approximate"])
            self.assertNotIn("exact_nats_per_token", exact)
            for used, more in ((2, ("--experts-per-token", "2")), (8, ("--kv", "rot2")),
                               (8, ("--cache-bias", "0.5", "--memory", "48M",
                                    "--prefill-chunk", "16"))):
                found = json.loads(self.works(*evaluate, "--json", "--trace", trace, *more).stdout)
                self.assertIn("approximate: ", found["approximate"])
                self.assertEqual(found["exact_nats_per_token"], exact["nats_per_token"])
                self.assertNotEqual(found["cost_nats_per_token"], 0)
                self.assertAlmostEqual(found["nats_per_token"] - found["exact_nats_per_token"],
                                       found["cost_nats_per_token"])
                text = self.works(*evaluate, *more).stdout
                self.assertIn(found["approximate"], text)
                self.assertIn("the cost is ", text)
                with open(trace, encoding="utf-8") as file: # only the approximate evaluation
                    self.assertEqual(sum("," in line for line in file) - 1, 4 * 32 * 8 * used)

    def test_needles(self):
        """An approximate run seeks the needles twice and reports the exact result, too."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("Once upon a time there was a robot who loved music. " * 40)
            seek = ("eval", "needle", NANO, path, "--context", "256", "--depths", "3",
                    "--needles", "4", "-q")
            exact = json.loads(self.works(*seek, "--json").stdout)
            self.assertIsNone(exact["approximate"])
            self.assertNotIn("exact", exact)
            self.assertEqual(exact["n_needles"], 12)
            self.assertEqual([d["depth"] for d in exact["depths"]], [0, 0.5, 1])
            self.assertEqual(sum(d["hits"] for d in exact["depths"]), exact["n_hits"])
            found = json.loads(self.works(*seek, "--json", "--kv", "rot2").stdout)
            self.assertEqual(found["approximate"], "approximate: keys and values in 2 bits (rot2)")
            for key in ("n_hits", "answer_nats_per_token", "n_answer_tokens", "depths"):
                self.assertEqual(found["exact"][key], exact[key])
            self.assertNotEqual(found["answer_nats_per_token"], exact["answer_nats_per_token"])
            self.assertLessEqual(found["n_same_answer_tokens"], found["n_answer_tokens"])
            text = self.works(*seek, "--kv", "rot2").stdout
            self.assertIn(found["approximate"], text)
            self.assertIn(f"exact {exact['n_hits']} of 12", text)
            result = flashmoe("eval", "needle", NANO, path, "--context", "4096")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("a context of 4096 needs as many", result.stderr)


class Labels(Case):
    def read(self, folder, name):
        return (pathlib.Path(folder) / name).read_text(encoding="utf-8")

    def test_label_is_in_every_output(self):
        model, fewer = GOLDENS / "qwen3_next", ("--experts-per-token", "1")
        self.assertEqual(self.works("run", model, *RUN, *fewer).stderr.count(FEWER), 2)
        self.assertIn(FEWER, self.works("run", model, *RUN, "-q", *fewer).stderr)
        self.assertNotIn("approximate", self.works("run", model, *RUN, "-v").stderr)
        more = (model, "--tokens", "2", "--repeat", "1", "-q", *fewer)
        self.assertIn(FEWER, self.works("bench", "prefill", *more).stdout)
        found = json.loads(self.works("bench", "decode", *more, "--json").stdout)
        self.assertEqual(found["approximate"], FEWER)
        for command in (("plan",), ("bench", "switch", "--tokens", "64"),
                        ("bench", "stream", "--tokens", "12", "--budgets", "all")):
            more = (*command, model, "-q", *fewer)
            self.assertIn(f"\n{FEWER}\n", self.works(*more).stdout)
            self.assertEqual(json.loads(self.works(*more, "--json").stdout)["approximate"], FEWER)

    def test_label_is_in_every_file(self):
        """Files with replaced routes also have the label of the routes."""
        model, fewer = GOLDENS / "qwen3_next", ("--experts-per-token", "1", "-q")
        gen = ("--routes", "gen:seed=7")
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: os.path.join(folder, name)
            self.works("run", model, *RUN, *fewer, *gen, "--trace", at("t.csv"), "--profile",
                       at("p.csv"))
            self.works("run", model, *RUN, *fewer, *gen, "--profile", at("p.json"))
            self.works("bench", "switch", model, "--tokens", "64", *fewer, *gen, "--csv",
                       at("s.csv"), "--trace", at("st.csv"))
            self.works("bench", "stream", model, "--tokens", "12", "--budgets", "all", *fewer,
                       *gen, "--svg", at("s.svg"))
            for name in ("t.csv", "p.csv", "s.csv", "st.csv"):
                lines = self.read(folder, name).splitlines()
                self.assertEqual(lines.count(f"# {FEWER}"), 1, name)
                routes = [line for line in lines if line.startswith("# routes: generated (")]
                self.assertEqual(["speed only" in line for line in routes], [True], name)
            profile = json.loads(self.read(folder, "p.json"))
            self.assertEqual(profile["approximate"], FEWER)
            self.assertIn("speed only", profile["routes"])
            self.assertGreater(len(profile["rows"]), 0)
            self.assertIn(f">{FEWER}</text>", self.read(folder, "s.svg"))
            self.assertIn("speed only", self.read(folder, "s.svg"))
            for name in ("t.csv", "st.csv"): # it still begins like a recording
                found = json.loads(self.works("bench", "replay", at(name), "--json").stdout)
                self.assertEqual(found["n_used"], 1)
            self.works("run", model, *RUN, "-q", "--trace", at("t.csv"), "--profile", at("p.csv"))
            for name in ("t.csv", "p.csv"): # no label
                self.assertNotIn("approximate", self.read(folder, name))
                self.assertNotIn("# routes", self.read(folder, name))

    def test_stream_says_that_the_budget_counts(self):
        stream = ("bench", "stream", NANO, "--tokens", "36", "--budgets", "floor,all", "-q")
        bias = ("--cache-bias", "0.5")
        text = self.works(*stream, *bias).stdout
        self.assertIn("the logits depend on the budget (approximate)", text)
        self.assertNotIn("identical at every budget", text)
        found = json.loads(self.works(*stream, *bias, "--json").stdout)
        self.assertIs(found["logits_depend_on_budget"], True)


if __name__ == "__main__":
    PROGRAM, GOLDENS, NANO = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
