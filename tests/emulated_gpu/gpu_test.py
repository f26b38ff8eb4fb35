"""Tests the flashmoe program on a machine with a GPU, which the emulator plays.

Usage: gpu_test.py PROGRAM PLAIN MODEL [TestClass...]

PROGRAM lies beside a library for GPUs; PLAIN is the same program without one. MODEL is a tiny
checkpoint: the emulator is slow.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "..", folder) for folder in ("cli", "api")]

import cli_test  # noqa: E402
from cli_test import Case  # noqa: E402
from served import Server  # noqa: E402

PROGRAM, PLAIN, MODEL = "", "", ""
N_EXPERTS = 64  # of MODEL: 16 in each of 4 layers
# A ninth to a fourth of the experts fits beside dense weights, state and scratch.
SMALL = ("--gpu", "0", "--gpu-memory", "5M")
ASK = ("-p", "hi", "-n", "3", "--greedy")


def flashmoe(*args, program=None, mebibytes=None, **environment):
    """Runs the program, with a GPU of that memory."""
    environment = {**os.environ, **environment}
    if mebibytes is not None:
        environment["FLASHMOE_EMULATED_MEMORY"] = str(mebibytes)
    return subprocess.run([program or PROGRAM, *args], stdin=subprocess.DEVNULL,
                          capture_output=True, encoding="utf-8", errors="replace",
                          env=environment, timeout=cli_test.SECONDS)


class Gpu(Case):
    def json(self, *args, **more):
        return json.loads(self.assert_works(flashmoe(*args, "--json", **more)).stdout)


class Run(Gpu):
    def test_same_bits(self):
        """The same text and logits without a GPU, with all experts on it, and with a few."""
        found = [self.json("run", MODEL, *ASK, *gpu)
                 for gpu in (("--gpu", "off"), ("--gpu", "0"), SMALL)]
        for one in found[1:]:
            for key in ("text", "tokens", "logits_hash"):
                self.assertEqual(one[key], found[0][key], key)
        off, full, small = found
        self.assertNotIn("gpu", off)
        self.assertEqual(full["gpu"]["name"], "emulated")
        self.assertEqual(full["gpu"]["n_slots"], N_EXPERTS)
        self.assertEqual(full["gpu"]["n_expert_hits"], full["n_expert_hits"])
        gpu = small["gpu"]
        self.assertLess(gpu["n_slots"], N_EXPERTS / 4)
        self.assertLess(0, gpu["n_expert_hits"])
        self.assertLess(gpu["n_expert_hits"], small["n_expert_hits"])
        self.assertGreater(gpu["n_experts_sent"] + gpu["n_experts_computed"], 0)
        self.assertEqual(gpu["budget_bytes"], 5 << 20)
        parts = sum(gpu[key] for key in ("dense_bytes", "cache_bytes", "kv_bytes", "scratch_bytes"))
        self.assertLessEqual(parts, gpu["budget_bytes"])
        self.assertGreater(parts, 0.9 * gpu["budget_bytes"])

    def test_drafts(self):
        """Drafts of the model's own block are computed and change neither the text nor a logit."""
        model = os.path.join(os.path.dirname(PROGRAM), "..", "golden", "mtp", "qwen3_next")
        ask = ("run", model, "--raw", "-p", "hi", "-n", "3", "--greedy")
        plain = self.json(*ask, "--gpu", "off")
        for gpu in (("--gpu", "0"), ("--gpu", "0", "--gpu-memory", "6M")):
            drafted = self.json(*ask, *gpu, "--draft", "2")
            self.assertIn("gpu", drafted)
            self.assertGreater(drafted["n_drafted"][0], 0)
            for key in ("text", "tokens", "logits_hash"):
                self.assertEqual(drafted[key], plain[key], key)

    def test_auto(self):
        """auto takes the GPU where the memory suffices, else it says one line."""
        self.assertIn("gpu", self.json("run", MODEL, *ASK[:3], "1", mebibytes=1024))
        few = self.assert_works(flashmoe("run", MODEL, *ASK, "-q", mebibytes=64))
        self.assertRegex(few.stderr, r"\Aflashmoe: warning: the processor computes alone: the "
                         r"model needs at least [\d.]+ MiB of the GPU's memory[^\n]+\n\Z")
        off = flashmoe("run", MODEL, *ASK, "-q", "--gpu", "off", mebibytes=64)
        self.assertEqual(few.stdout, self.assert_works(off).stdout)
        self.assertEqual(off.stderr, "")

    def test_lost(self):
        """A GPU that is lost at the start: auto goes on without it, a number is an error."""
        lost = {"FLASHMOE_EMULATED_FAILURE": "the GPU has fallen off the bus"}
        few = self.assert_works(flashmoe("run", MODEL, *ASK, "-q", **lost))
        self.assertEqual(few.stderr, "flashmoe: warning: the processor computes alone: "
                         "the GPU has fallen off the bus\n")
        off = self.assert_works(flashmoe("run", MODEL, *ASK, "-q", "--gpu", "off"))
        self.assertEqual(few.stdout, off.stdout)
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "0", **lost), 1,
                          "the GPU has fallen off the bus")

    def test_messages(self):
        """The closing line and the division of memory name the GPU."""
        result = self.assert_works(flashmoe("run", MODEL, *ASK, *SMALL, "--verbose"))
        self.assertRegex(result.stderr, r"(?m)^flashmoe: GPU emulated: [\d.]+% of expert hits in "
                         r"its memory; \d+ experts sent for one use, \d+ computed by the "
                         r"processor; \d+ moved up, \d+ down$")
        self.assertRegex(result.stderr, r"(?m)^flashmoe: GPU emulated, 5\.0 MiB: dense weights \S+ "
                         r"MiB, expert cache \S+ KiB \(\d+ slots\), KV and state ")
        self.assertIn("dense weights 0 B, expert cache", result.stderr)
        self.assertNotIn("GPU", flashmoe("run", MODEL, *ASK, "--gpu", "off", "-v").stderr)


class Refusals(Gpu):
    def test_wrong_options(self):
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "1"), 1, "there is no GPU 1",
                          "--gpu off")
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "x"), 1,
                          "'x' is no GPU: expected off, auto or a number from 0 on (--gpu)")
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "off", "--gpu-memory", "1G"), 1,
                          "memory of a GPU is given (--gpu-memory), but none is used (--gpu off)")

    def test_too_little_memory(self):
        """The parts of the message add up to what it says is needed."""
        result = flashmoe("run", MODEL, *ASK, "--gpu", "0", "--gpu-memory", "1M")
        self.assert_fails(result, 1, "and the budget is 1.0 MiB: ", "(--gpu-memory)", "(--gpu off)")
        numbers = [float(text) for text in re.findall(r"([\d.]+) MiB", result.stderr)]
        self.assertAlmostEqual(numbers[0], sum(numbers[2:]), delta=0.3)
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "0", mebibytes=64), 1,
                          "the model needs at least", "of the GPU's memory")

    def test_more_than_is_free(self):
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "0", "--gpu-memory", "2G",
                                   mebibytes=1024), 1, "a budget of 2.00 GiB",
                          "1.00 GiB of it is free")

    def test_streams_and_tables(self):
        """A family whose residual has several streams, and whose table is read from the disk."""
        model = os.path.join(os.path.dirname(MODEL), "qwen4_exp_text")
        alone = self.json("run", model, *ASK, "--gpu", "off")
        for gpu in ("0", "auto"):
            found = self.json("run", model, *ASK, "--gpu", gpu)
            self.assertEqual(found["logits_hash"], alone["logits_hash"])
        self.assert_works(flashmoe("plan", model, "--gpu", "0"))

    def test_without_library(self):
        self.assert_fails(flashmoe("run", MODEL, *ASK, "--gpu", "0", program=PLAIN), 1,
                          "libflashmoe_cuda.so is not installed", "--gpu off")
        said = [flashmoe("run", MODEL, *ASK, "-q", "--gpu", gpu, program=PLAIN)
                for gpu in ("auto", "off")]
        for one in said:
            self.assertEqual(self.assert_works(one).stderr, "")
        self.assertEqual(said[0].stdout, said[1].stdout)


class Reports(Gpu):
    def check_limit(self, limit):
        """1 / max of the four times, each of which is bytes over a measured speed."""
        times = {name: limit[f"t_{name}_s"] for name in ("gpu", "link", "ram", "io")}
        for name, amount, speed in (("gpu", "gpu_bytes", "gpu"), ("link", "link_bytes", "link"),
                                    ("ram", "memory_bytes", "memory")):
            self.assertAlmostEqual(times[name] * limit[f"{speed}_bytes_per_s"], limit[amount],
                                   delta=1)
        longest = max(times, key=times.get)
        self.assertEqual(limit["bound_by"], {"io": "disk", "ram": "memory"}.get(longest, longest))
        self.assertAlmostEqual(limit["overlapped_tok_per_s"] * times[longest], 1, places=6)
        self.assertAlmostEqual(limit["serial_tok_per_s"] * sum(times.values()), 1, places=6)
        dense = limit["expert_bytes"] + limit["dense_bytes"] + limit["kv_bytes"]
        self.assertAlmostEqual(limit["gpu_bytes"] + limit["host_expert_bytes"],
                               dense + limit["link_bytes"], delta=1)

    def test_stats(self):
        found = self.json("run", MODEL, *ASK, *SMALL, "--stats")
        self.check_limit(found["stats"]["limit"])
        text = flashmoe("run", MODEL, *ASK, *SMALL, "--stats").stderr
        self.assertRegex(text, r"(?m)limit: .* ms of the GPU's memory \(.*\), \S+ ms of the link "
                         r"to it \(.*\), \S+ ms of memory \(.*\) and \S+ ms of disk \(.*\) per ")

    def test_decode(self):
        args = ("bench", "decode", MODEL, *SMALL, "--tokens", "2", "--repeat", "1", "-q")
        found = self.json(*args)
        self.check_limit(found["limit"])
        self.assertEqual(found["gpu"]["name"], "emulated")
        self.assertGreater(found["gpu_memory_gb_per_s"], 0)
        self.assertGreater(found["gpu_send_gb_per_s"], 0)
        out = self.assert_works(flashmoe(*args)).stdout
        for line in ("GPU          emulated, 5.0 MiB: ", "GPU copies   ", "GPU work     "):
            self.assertIn("\n" + line, out)

    def test_prefill(self):
        """The processor's speed is not what a GPU is compared with."""
        found = self.json("bench", "prefill", MODEL, *SMALL, "--tokens", "4", "--repeat", "1", "-q")
        self.assertIs(found["int8_percent"], None)
        self.assertIn("gpu", found)


class Replay(Gpu):
    def test_counts(self):
        """bench replay of a recording counts the hits in both tiers, and the moves, of the run."""
        needed = flashmoe("run", MODEL, *ASK, *SMALL, "--memory", "1M").stderr
        mebibytes = float(re.search(r"needs at least ([\d.]+) MiB of memory", needed).group(1))
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.csv")
            run = self.json("run", MODEL, "-p", "hi", "-n", "24", "--temp", "1", "--seed", "3",
                            "--raw", *SMALL, "--memory", f"{mebibytes + 0.4:.1f}M", "--no-heat",
                            "--lookahead", "off", "--prefill-chunk", "1", "--trace", trace)
            with open(trace, encoding="utf-8") as file: # the prompt counts, too
                lines = file.read().replace("\n0,0,", "\n0,1,")
            with open(trace, "w", encoding="utf-8") as file:
                file.write(lines)
            gpu = run["gpu"]
            slots = [gpu["n_slots"], run["n_cache_slots"] - gpu["n_slots"]]
            self.assertLess(sum(slots), N_EXPERTS) # or nothing would be dropped
            shares = "+".join(f"{100 * (n + 0.5) / N_EXPERTS:.6f}" for n in slots)
            found = self.json("bench", "replay", trace, "--tiers", shares)
        point = found["points"][0]
        self.assertEqual([point["n_above"], point["n_below"]], slots)
        n_uses = run["n_expert_hits"] + run["n_expert_misses"]
        down = point["moves"]["down"]
        self.assertGreater(gpu["n_experts_moved_up"], 0)
        for name, amount, want in (
                ("hits_above", n_uses, gpu["n_expert_hits"]),
                ("hits_below", n_uses, run["n_expert_hits"] - gpu["n_expert_hits"]),
                ("moved_up_per_token", found["n_tokens"], gpu["n_experts_moved_up"]),
                ("moved_down_per_token", found["n_tokens"], gpu["n_experts_moved_down"])):
            self.assertAlmostEqual(down[name] * amount, want, places=3, msg=name)


class Plan(Gpu):
    def test_division(self):
        """The plan is what run then does, and a smaller budget of memory leaves the GPU's alone."""
        found = self.json("plan", MODEL, *SMALL, "-q")
        row = found["budgets"][found["chosen"]]
        gpu = self.json("run", MODEL, *ASK, *SMALL)["gpu"]
        for key in ("name", "budget_bytes", "dense_bytes", "cache_bytes", "scratch_bytes",
                    "n_slots"):
            self.assertEqual(row["gpu"][key], gpu[key], key)
        self.assertEqual(row["memory_dense_bytes"], 0)
        self.assertGreater(row["gpu"]["hit_rate"], 0)
        self.assertLess(row["gpu"]["hit_rate"], row["hit_rate"])
        self.assertEqual(len({one["gpu"]["n_slots"] for one in found["budgets"]}), 1)
        self.assertTrue(all(0 < one["share"] <= 1 for one in found["budgets"]))
        Reports.check_limit(self, row["limit"])

    def test_smallest(self):
        """The smallest budget of memory beside the GPU works."""
        result = flashmoe("plan", MODEL, *SMALL, "--memory", "1M")
        least = re.search(r"the smallest budget that works here is --memory (\d+)M", result.stderr)
        self.assert_works(flashmoe("run", MODEL, *ASK, *SMALL, "--memory", least[1] + "M"))

    def test_text(self):
        out = self.assert_works(flashmoe("plan", MODEL, *SMALL, "-q")).stdout
        self.assertRegex(out, r"(?m)^GPU          emulated, 5\.0 MiB of its memory$")
        self.assertRegex(out, rf"(?m)^  expert cache +\S+ KiB  \d+ of {N_EXPERTS} experts, [\d.]+% "
                         "of those used$")
        self.assertRegex(out, r"(?m)^GPU copies   ")

    def test_no_gpu(self):
        """One warning where the memory is too small, an error where the GPU was asked for."""
        result = self.assert_works(flashmoe("plan", MODEL, "-q", mebibytes=64))
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("warning: the processor computes alone", result.stderr)
        self.assertNotIn("GPU", result.stdout)
        result = flashmoe("plan", MODEL, "--gpu", "0", "--gpu-memory", "1M", "-q")
        self.assert_fails(result, 1, "of the GPU's memory and the budget is 1.0 MiB")
        self.assertNotIn("--memory", result.stderr)


class Doctor(Gpu):
    def test_gpu(self):
        found = self.json("doctor", "--quick", mebibytes=512)
        self.assertEqual([(one["name"], one["memory_bytes"]) for one in found["gpus"]],
                         [("emulated", 512 << 20)])
        self.assertLessEqual(found["gpus"][0]["memory_free_bytes"], 512 << 20)
        self.assertGreater(found["gpus"][0]["memory_gb_per_s"], 0)
        self.assertIs(found["no_gpu"], None)
        out = self.assert_works(flashmoe("doctor", "--quick", mebibytes=512)).stdout
        self.assertRegex(out, r"(?m)^GPU 0        emulated, 512\.0 MiB of memory, \S+ MiB free$")

    def test_none(self):
        found = self.json("doctor", "--quick", program=PLAIN)
        self.assertEqual(found["gpus"], [])
        self.assertIn("is not installed", found["no_gpu"])
        out = self.assert_works(flashmoe("doctor", "--quick", program=PLAIN)).stdout
        self.assertRegex(out, r"(?m)^GPU          none: libflashmoe_cuda\.so is not installed")


class ServerReports(Gpu):
    def seen(self, *options):
        """Returns stats, map and metrics after an answer; the map is one of that time."""
        with Server(PROGRAM, MODEL, *options) as server:
            server.get("/experts")  # asks for new ones
            server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
            server.get("/experts")
            server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
            experts = server.get("/experts")
            metrics = server.request("GET", "/metrics")[2].decode()
            return server.get("/stats"), experts, metrics

    def test_others_need_memory(self):
        """When other programs take the GPU's memory, slots are given up, and no bit changes."""
        with tempfile.TemporaryDirectory() as folder:
            others = os.path.join(folder, "others")
            environment = {"FLASHMOE_EMULATED_MEMORY": "1024", "FLASHMOE_EMULATED_OTHERS": others}
            ask = {"prompt": "hi", "max_tokens": 4, "temperature": 0}
            options = ("--gpu", "0", "--gpu-memory", "8M")
            with Server(PROGRAM, MODEL, *options, **environment) as server:
                text = server.post("/v1/completions", ask)[1]["choices"][0]["text"]
                before = server.get("/stats")["gpu"]["n_slots"]
                with open(others, "w", encoding="ascii") as file:
                    file.write(str(1024 << 20))
                for _ in range(200):
                    now = server.post("/v1/completions", ask)[1]["choices"][0]["text"]
                    self.assertEqual(now, text)
                    stats = server.get("/stats")["gpu"]
                    if stats["n_slots"] < before / 2:
                        break
                self.assertLess(stats["n_slots"], before / 2)
                self.assertLess(stats["budget_bytes"], 8 << 20)

    @staticmethod
    def bits(rows):
        return bin(int("1" + "".join(rows), 16))[3:]

    def test_gpu(self):
        stats, experts, metrics = self.seen("--gpu", "0", "--gpu-memory", "8M")
        self.assertEqual(stats["gpu"]["name"], "emulated")
        for name in ("memory_budget_bytes", "slots", "expert_hits_total", "experts_sent_total",
                     "experts_computed_total", "experts_moved_up_total"):
            self.assertRegex(metrics, rf"(?m)^flashmoe_gpu_{name} \d")
        self.assertIn(f"\nflashmoe_gpu_slots {stats['gpu']['n_slots']}\n", metrics)
        here, gpu = self.bits(experts["resident"]), self.bits(experts["gpu"])
        self.assertTrue(all(h == "1" for h, g in zip(here, gpu) if g == "1"))
        self.assertLess(0, gpu.count("1"))
        self.assertLessEqual(gpu.count("1"), stats["gpu"]["n_slots"])
        self.assertLess(gpu.count("1"), here.count("1"))

    def test_none(self):
        stats, experts, metrics = self.seen("--gpu", "off")
        self.assertNotIn("gpu", stats)
        self.assertNotIn("gpu", experts)
        self.assertNotIn("_gpu_", metrics)


if __name__ == "__main__":
    PROGRAM, PLAIN, MODEL = (os.path.abspath(path) for path in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=1)
