#!/usr/bin/env python3
"""Tests `flashmoe bench all`: medians, limits, ratios and what is left out with a program that
answers as it is told; then the real program on nano.

usage: bench_all_test.py PROGRAM MODEL [TestClass...]
"""
import ctypes
import html.parser
import json
import mmap
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

PROGRAM, MODEL = map(os.path.abspath, sys.argv[1:3])
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
GIB = 1 << 30

# Stands for flashmoe: `bench all` starts the "flashmoe" beside itself. FAKE names a folder with
# answers.json: what a command prints, one answer after the other, by the words it must have.
FAKE = """#!{python}
import json, os, sys, time
words, folder = sys.argv[1:], {folder!r}
if words == ["--version"]:
    print({version!r})
    sys.exit(0)
answers = json.load(open(os.path.join(folder, "answers.json")))
with open(os.path.join({log!r}), "a", errors="replace") as log:
    log.write({name!r} + " " + " ".join(words) + "\\n")
for i, one in enumerate(answers):
    if not all(word in words for word in one["words"]):
        continue
    path = os.path.join(folder, "count-%d" % i)
    n = int(open(path).read()) if os.path.exists(path) else 0
    open(path, "w").write(str(n + 1))
    say = one["says"][min(n, len(one["says"]) - 1)]
    if isinstance(say, str):
        sys.exit("flashmoe: " + say)
    time.sleep(say.get("sleep", 0))
    if "heat" in say:
        open(words[words.index("--heat") + 1], "w").write(say["heat"])
    print(json.dumps(say))
    sys.exit(0)
sys.exit("flashmoe: no answer to " + " ".join(words))
"""

INSPECT = {"container": "packed model", "architecture": "qwen3_next", "n_parameters": 10 ** 9,
           "n_layers": 4, "n_moe_layers": 4, "n_experts": 100, "n_experts_per_token": 4,
           "max_context": 4096, "dense_bytes": GIB // 4, "experts_bytes": GIB // 2,
           "state_bytes": 1000, "has_tokenizer": False, "mtp": None,
           "formats": [{"name": "affine4-g64", "is_expert": True, "n_bytes": GIB // 2}]}
SLOT = 1 << 20


def plan(slot=SLOT, **more):
    row = {"n_cache_slots": 400, "memory_kv_max_bytes": 1 << 20, "memory_program_bytes": 1 << 20,
           "memory_dense_bytes": 1 << 20, "memory_scratch_bytes": 1 << 20,
           "memory_cache_bytes": 400 * slot, "first_token_s": 0.5}
    return {"budgets": [row], "chosen": 0, "memory_read_gb_per_s": 10.0,
            "disk_read_gb_per_s": 2.0, **more}


def decode(speed, limit=40.0, logits="a" * 32, slots=400, **more):
    return {"tok_per_s": speed, "n_cache_slots": slots, "hit_rate": 0.5, "bytes_per_token": 2e6,
            "logits_hash": logits,
            "limit": {"overlapped_tok_per_s": limit, "percent": 100 * speed / limit,
                      "was_busy": False, "bound_by": "memory"}, **more}


class Page(html.parser.HTMLParser):
    """Checks that the elements of a page are closed, and collects its text."""
    VOID = {"meta", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href", "onclick"), (tag, name, value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.text += data


def n_pages(path):
    """The pages of a file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        seen = (ctypes.c_ubyte * (len(view) // mmap.PAGESIZE))()
        base = ctypes.c_char.from_buffer(view)
        rc = libc.mincore(ctypes.c_void_p(ctypes.addressof(base)), ctypes.c_size_t(len(view)), seen)
        del base
    assert rc == 0, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in seen)


def drop(path):
    """Drops a file from the page cache. Returns False where that cannot be done or seen."""
    if not sys.platform.startswith("linux"):
        return False
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return n_pages(path) == 0


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="bench-all-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)
        self.out = self.folder / "out"
        self.log = self.folder / "log"
        self.program = PROGRAM

    def make_fake(self, name, answers, version):
        folder = self.folder / name
        folder.mkdir()
        (folder / "answers.json").write_text(json.dumps(answers))
        script = folder / "flashmoe"
        script.write_text(FAKE.format(python=sys.executable, folder=str(folder), version=version,
                                      log=str(self.log), name=name))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return script

    def fake(self, *answers, inspect=None, division=None):
        """Has `bench all` run a fake instead of itself."""
        known = [{"words": ["inspect"], "says": [{**INSPECT, **(inspect or {})}]},
                 {"words": ["plan"], "says": [division or plan()]}]
        script = self.make_fake("this", [*answers, *known], "flashmoe 9.1 (fake)")
        self.program = script.parent / "bench-all"
        shutil.copy2(PROGRAM, self.program)

    def other(self, *answers):
        return self.make_fake("other", answers, "flashmoe 9.0 (fake)")

    def command(self, *args):
        return [str(self.program), "bench", "all", "MODEL" if self.program != PROGRAM else MODEL,
                *map(str, args), "--out", str(self.out)]

    def run_all(self, *args, status=0):
        env = dict(os.environ, XDG_CACHE_HOME="/dev/null/none")
        done = subprocess.run(self.command(*args), capture_output=True, encoding="utf-8", env=env,
                              stdin=subprocess.DEVNULL, timeout=SECONDS, cwd=self.folder)
        self.assertEqual(done.returncode, status, done.stderr + done.stdout)
        return done

    def result(self):
        return json.loads((self.out / "bench.json").read_text())

    def regime(self, name, found=None):
        return next(r for r in (found or self.result())["regimes"] if r["name"] == name)


class Numbers(Case):
    def test_median_spread_and_share(self):
        self.fake({"words": ["decode"], "says": [decode(10.0), decode(30.0), decode(20.0)]})
        done = self.run_all("--only", "decode", "--repeat", 3)
        one, = self.regime("decode")["cases"]
        self.assertEqual(one["value"], {"median": 20.0, "min": 10.0, "max": 30.0, "n": 3})
        self.assertEqual(one["percent"], {"median": 50.0, "min": 25.0, "max": 75.0, "n": 3})
        self.assertEqual([run["value"] for run in one["runs"]], [10.0, 30.0, 20.0])
        self.assertEqual(one["bound_by"], "memory")
        for text in (done.stdout, (self.out / "bench.md").read_text(),
                     Page((self.out / "bench.html").read_text()).text):
            self.assertIn("20.0 (10.0 to 30.0)", text)
            self.assertIn("50.0 %", text)
            self.assertIn("residency 100 %, hits 50.0 %, read 2.00 MB/token", text)
        self.assertIn("rounds       3 of 3", done.stdout)

    def test_versus_runs_in_turns(self):
        self.fake({"words": ["decode"], "says": [decode(10.0), decode(30.0), decode(20.0)]})
        other = self.other({"words": ["decode"],
                            "says": [decode(5.0), decode(10.0), decode(20.0)]})
        done = self.run_all("--only", "decode", "--repeat", 3, "--versus", other)
        found = self.result()
        one, = self.regime("decode", found)["cases"]
        self.assertEqual(one["ratio"], {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3})
        self.assertEqual(one["other"]["median"], 10.0)
        self.assertEqual(found["versus"], "flashmoe 9.0 (fake)")
        self.assertIn("2.00 (1.00 to 3.00) x", done.stdout)
        order = [line.split()[0] for line in self.log.read_text().splitlines()
                 if " decode " in line]
        self.assertEqual(order, ["this", "other", "other", "this", "this", "other"])

    def test_time_is_better_when_less(self):
        """A start of half the time is twice as fast."""
        self.fake({"words": ["run"], "says": [{"sleep": 0}]}, inspect={"has_tokenizer": True})
        other = self.other({"words": ["run"], "says": [{"sleep": 1}]})
        self.run_all("--only", "start", "--repeat", 1, "--versus", other)
        for one in self.regime("start")["cases"]:
            self.assertGreater(one["other"]["median"], 1)
            self.assertAlmostEqual(one["ratio"]["median"],
                                   one["other"]["median"] / one["value"]["median"], places=5)
            self.assertEqual(one["limit"]["median"], 0.5)

    def test_other_logits_are_a_fault(self):
        self.fake({"words": ["decode"], "says": [decode(10.0)]})
        other = self.other({"words": ["decode"], "says": [decode(10.0, logits="b" * 32)]})
        done = self.run_all("--only", "decode", "--repeat", 1, "--versus", other, status=1)
        self.assertTrue(self.regime("decode")["cases"][0]["logits_differ"])
        self.assertIn("logits", done.stderr)

    def test_above_the_limit_has_no_share(self):
        busy = decode(50.0)
        busy["limit"].update(percent=None, was_busy=True)
        self.fake({"words": ["decode"], "says": [busy]})
        done = self.run_all("--only", "decode", "--repeat", 1)
        one, = self.regime("decode")["cases"]
        self.assertEqual((one["percent"], one["n_above_limit"]), (None, 1))
        self.assertIn("above the limit in 1 of 1", done.stdout)


class LeftOut(Case):
    def test_failing_case_does_not_end_the_others(self):
        self.fake({"words": ["decode", "1", "--threads"], "says": ["the disk is gone"]},
                  {"words": ["decode"], "says": [decode(10.0)]})
        done = self.run_all("--only", "decode,threads", "--repeat", 2)
        first = self.regime("threads")["cases"]
        if not first:
            self.skipTest("this machine has one core")
        self.assertEqual(first[0]["left_out"], "the disk is gone")
        self.assertEqual(first[0]["n_runs"], 0)
        self.assertEqual(self.regime("decode")["cases"][0]["n_runs"], 2)
        self.assertIn("left out: the disk is gone", done.stderr)
        tries = [line for line in self.log.read_text().splitlines() if "--threads 1" in line]
        self.assertEqual(len(tries), 1)

    def test_budgets_fit_into_memory(self):
        """Half of the experts fit, all do not: the regimes say so, and no budget is larger."""
        self.fake({"words": ["decode"], "says": [decode(10.0, slots=200)]})
        done = self.run_all("--only", "decode,stream", "--repeat", 1, "--memory", "250M")
        self.assertIn("decode: left out: 100 % of the experts need", done.stderr)
        self.assertEqual(self.regime("decode")["cases"], [])
        cases = self.regime("stream")["cases"]
        self.assertEqual([one["x"] for one in cases], [25, 50])
        for one in cases:
            self.assertLessEqual(one["memory_budget_bytes"], 250 << 20)
            self.assertIn(f"--memory {one['memory_budget_bytes']}", one["command"])
        self.assertIn("70 % of the experts need", self.regime("stream")["left_out"])

    def test_what_is_missing_is_never_shown_as_none(self):
        """Sizes that look equal when they are rounded."""
        self.fake()
        need = (4 << 20) + 400 * (SLOT + 1) + (64 << 20)
        done = self.run_all("--only", "decode", "--memory", need - 1, status=2)
        self.assertIn("468.0 MiB of memory, 1 B more than the 468.0 MiB that may be used",
                      done.stderr)

    def test_drafts_have_budgets(self):
        """As large as the plan with drafts says, and never more than --memory."""
        self.fake({"words": ["plan", "--draft"], "says": [plan(slot=2 * SLOT)]},
                  {"words": ["draft"], "says": [{"budgets": [
                      {"resident_share": 0.5, "drafted": {"tok_per_s": {"median": 5.0}}}]}]},
                  inspect={"mtp": {"is_usable": True}})
        self.run_all("--only", "drafts", "--repeat", 1, "--memory", "700M")
        found = self.regime("drafts")
        self.assertEqual([one["x"] for one in found["cases"]], [25, 50])
        for one in found["cases"]:
            bytes_ = (4 << 20) + int(one["x"]) * 4 * (2 * SLOT + 1) + (2 << 20)
            self.assertEqual(one["memory_budget_bytes"], bytes_)
            self.assertIn(f"--budgets {bytes_} ", one["command"])
        self.assertIn("100 % of the experts need", found["left_out"])
        asked = [line for line in self.log.read_text().splitlines() if "--draft auto" in line]
        self.assertIn(f"--context {128 + 48} --prefill-chunk 64", asked[0])

    def test_reports_have_no_path(self):
        """A failing program names files; the page and the tables do not say where they lie."""
        said = "'{0}/home/m.fmoe/experts.bin', '{0}/a b/x.gguf' and {0}/c/log: gone; 5 MB/s, MODEL"
        self.fake({"words": ["prefill"], "says": [said.format(self.folder)]},
                  {"words": ["decode"], "says": [decode(10.0)]})
        command = self.command("--only", "decode,prefill", "--repeat", 1, "--routes",
                               self.folder / "c/log")
        command[command.index("MODEL")] = f"{self.folder}/home/m.fmoe"
        done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=self.folder,
                              timeout=SECONDS, check=True)
        self.assertIn(f"{self.folder}/home/m.fmoe/experts.bin", done.stderr)
        public = "'MODEL/experts.bin', 'x.gguf' and log: gone; 5 MB/s, MODEL"
        self.assertEqual(self.regime("prefill")["cases"][0]["left_out"], public)
        for name in ("bench.json", "bench.md", "bench.html"):
            text = (self.out / name).read_text()
            self.assertNotIn(str(self.folder), text, name)
            self.assertIn("x.gguf", text)

    def test_command_that_is_no_text(self):
        """A file name that is not UTF-8 does not make a case disappear."""
        self.fake({"words": ["decode"], "says": [decode(10.0)]})
        self.run_all("--only", "decode", "--repeat", 1, "--routes", os.fsdecode(b"\xff.routes"))
        one, = self.regime("decode")["cases"]
        self.assertIn("--routes \ufffd.routes", one["command"])

    def test_every_regime_says_why(self):
        self.fake(inspect={"n_experts": 0, "n_moe_layers": 0})
        done = self.run_all("--only", "stream,start,drafts,source,disks,gpu", status=2)
        for words in ("stream: left out: the model has no routed experts",
                      "start: left out: the model has no tokenizer",
                      "drafts: left out: the model has no block for multi-token prediction",
                      "source: left out: the model is packed",
                      "disks: left out: the model lies on one disk",
                      "gpu: left out: no GPU can be used", "nothing can be measured"):
            self.assertIn(words, done.stderr)

    def test_gpu_disks_and_packed_copy(self):
        """What the model and the machine have is measured; the processor is measured alone."""
        gpu = {"name": "a GPU", "budget_bytes": GIB, "dense_bytes": 1000, "cache_bytes": 5000,
               "kv_max_bytes": 200, "scratch_bytes": 300, "n_slots": 400}
        division = plan(disks=[{}, {}])
        division["budgets"][0]["gpu"] = gpu
        self.fake({"words": ["bench"], "says": [decode(10.0)]},
                  inspect={"container": "GGUF"}, division=division)
        done = self.run_all("--only", "decode,source,disks,gpu", "--list", "--packed", "P.fmoe")
        lines = done.stdout.splitlines()
        self.assertFalse(self.out.exists())
        of = {name: [line for line in lines if line.startswith(f"  {name}")] for name in
              ("all experts in memory", "GGUF", "packed", "25 % of the experts, 2 disks",
               "decode, all experts on the GPU", "decode, half of them on the GPU", "prefill, all")}
        for name, found in of.items():
            self.assertEqual(len(found), 1, name)
            self.assertEqual("--gpu off" in found[0], "on the GPU" not in name and
                             "prefill" not in name, found)
        self.assertIn("bench decode PACKED", of["packed"][0])
        self.assertIn(f"--gpu-memory {1500 + 2500}", of["decode, half of them on the GPU"][0])
        done = self.run_all("--only", "gpu", "--list", "--memory", 600 << 20)
        lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertIn(f"--memory {600 << 20}", line)

    def test_cold_files_of_all_disks(self):
        """Before a cold start no file of the model is in the page cache, on any of its disks."""
        folders = [self.folder / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
            with open(folder / "experts.bin", "wb") as file:
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
        if not drop(folders[0] / "experts.bin") or not drop(folders[1] / "experts.bin"):
            self.skipTest("this file system keeps its pages")
        for folder in folders:
            (folder / "experts.bin").read_bytes()
            self.assertGreater(n_pages(folder / "experts.bin"), 0)
        self.fake({"words": ["run"], "says": [{}]}, inspect={"has_tokenizer": True},
                  division=plan(disks=[{"folder": str(folder)} for folder in folders]))
        self.run_all("--only", "start", "--repeat", 1)
        for folder in folders:
            self.assertEqual(n_pages(folder / "experts.bin"), 0, folder)


class Ends(Case):
    def test_usage(self):
        for args, words in ((("--only", "decode,nothing"), "there is no regime 'nothing'"),
                            (("--versus", "/dev/null/x"), "--versus"),
                            (("--versus", "/bin/true"), "is not a flashmoe program"),
                            (("--versus", "/bin/echo"), "is not a flashmoe program"),
                            (("--repeat", "0"), "out of range")):
            done = self.run_all(*args, status=2)
            self.assertIn(words, done.stderr)
            self.assertFalse(self.out.exists())

    def test_versus_is_a_path(self):
        """A name without a slash is a file of this folder, not a program that PATH has."""
        self.fake({"words": ["decode"], "says": [decode(10.0)]})
        other = self.other({"words": ["decode"], "says": [decode(5.0)]})
        path = f"{other.parent}:{os.environ['PATH']}"
        with unittest.mock.patch.dict(os.environ, PATH=path):
            done = self.run_all("--only", "decode", "--repeat", 1, "--versus", "flashmoe", status=2)
            self.assertIn("--versus: 'flashmoe' cannot be started", done.stderr)
        shutil.copy2(other, self.folder / "older")
        self.run_all("--only", "decode", "--repeat", 1, "--versus", "older")
        self.assertEqual(self.regime("decode")["cases"][0]["ratio"]["median"], 2)

    def cut(self, n_begun):
        """Sends Ctrl-C when so many cases have begun."""
        with subprocess.Popen(self.command("--only", "decode", "--repeat", 3),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                              stdin=subprocess.DEVNULL, cwd=self.folder) as process:
            while (not self.log.exists() or sum(
                    " decode " in line for line in self.log.read_text().splitlines()) < n_begun):
                time.sleep(0.05)
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        return out, err

    def test_earlier_files_stay_until_something_is_measured(self):
        self.fake({"words": ["decode"], "says": [{"sleep": 600}]},
                  {"words": ["prefill"], "says": ["the disk is gone"]})
        self.out.mkdir()
        old = {name: f"old {name}" for name in ("bench.json", "bench.md", "bench.html",
                                                "bench.heat")}
        for name, text in old.items():
            (self.out / name).write_text(text)
        self.run_all("--only", "source", status=2)  # nothing can be measured
        _, err = self.cut(1)
        self.assertIn("interrupted; nothing was measured", err)
        done = self.run_all("--only", "prefill", "--repeat", 2, status=1)
        self.assertIn("Nothing was measured, so nothing is written", done.stdout)
        self.assertEqual({path.name: path.read_text() for path in self.out.iterdir()}, old)

    def test_heat_file_is_its_own(self):
        self.fake({"words": ["run"], "says": [{"heat": "made"}]}, inspect={"has_tokenizer": True})
        self.out.mkdir()
        (self.out / "bench.heat").write_text("a user's")
        self.run_all("--only", "start", "--repeat", 1)
        self.assertEqual((self.out / "bench.heat").read_text(), "a user's")
        self.assertEqual(sorted(os.listdir(self.out)),
                         ["bench.heat", "bench.html", "bench.json", "bench.md"])

    def test_refuses_a_folder_before_the_work(self):
        self.fake({"words": ["decode"], "says": [decode(10.0)]})
        (self.out / "bench.md").mkdir(parents=True)
        done = self.run_all("--only", "decode", status=1)
        self.assertIn("bench.md': it is a folder", done.stderr)
        self.assertNotIn(" decode ", self.log.read_text())

    def test_ctrl_c_keeps_what_was_measured(self):
        self.fake({"words": ["decode"], "says": [decode(10.0), {"sleep": 600}]})
        out, _ = self.cut(2)
        found = self.result()
        self.assertTrue(found["is_interrupted"])
        self.assertEqual(self.regime("decode", found)["cases"][0]["n_runs"], 1)
        self.assertIn("interrupted", out)
        self.assertIn("Interrupted", (self.out / "bench.md").read_text())

    def test_help_names_every_regime(self):
        self.fake({"words": ["bench"], "says": [decode(1.0)]})
        listed = [line.split(":")[0] for line in self.run_all("--list").stdout.splitlines()
                  if line and not line.startswith(" ")]
        text = subprocess.run([PROGRAM, "bench", "all", "--help"], capture_output=True, text=True,
                              check=True).stdout
        known = " ".join(text.split("regimes only:")[1].split("(default")[0].split())
        self.assertEqual(known.replace("- ", "-").split(", "), listed)


class Busy(Case):
    def test_other_programs_mark_a_case(self):
        """A program that computes beside the runs is noticed, and named before them."""
        if not os.path.exists("/proc/stat"):
            self.skipTest("this system does not tell")
        self.fake({"words": ["decode"], "says": [decode(10.0, sleep=2)]})
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
            try:
                done = self.run_all("--only", "decode", "--repeat", 1)
            finally:
                burner.kill()
        self.assertIn("the machine is not quiet: other programs use", done.stderr)
        found = self.result()
        self.assertIs(found["machine"]["quiet"]["is_quiet"], False)
        self.assertTrue(found["machine"]["quiet"]["processes"])
        one, = self.regime("decode", found)["cases"]
        self.assertEqual(one["n_not_quiet"], 1)
        self.assertGreater(one["runs"][0]["others_cpus"], 0.1)
        self.assertIn("busy in 1 of 1", done.stdout)
        page = Page((self.out / "bench.html").read_text()).text
        self.assertIn("The machine was not quiet", page)


class Few(Case):
    """The program itself, two regimes."""

    def test_nano(self):
        self.run_all("--quick", "--repeat", 1, "--only", "decode,stream", "--io", "direct")
        found = self.result()
        hashes = set()
        for name in ("decode", "stream"):
            for one in self.regime(name, found)["cases"]:
                self.assertEqual((one["n_runs"], one["left_out"]), (1, None))
                self.assertLessEqual(one["memory_budget_bytes"], found["usable_memory_bytes"])
                self.assertGreater(one["limit"]["median"], 0)
                hashes.add(one["runs"][0]["logits_hash"])
        self.assertEqual(len(hashes), 1)  # the same tokens at every budget


class Real(Case):
    """The program itself, and more of the regimes."""

    def test_nano(self):
        done = self.run_all("--quick", "--repeat", 1, "--only",
                            "decode,stream,prefill,prefill-stream,users,start,drafts")
        found = self.result()
        machine = found["machine"]
        self.assertGreater(machine["memory_read_bytes_per_s"]["median"], 1e8)
        self.assertGreater(machine["disk_read_bytes_per_s"]["median"], 1e6)
        self.assertGreater(machine["n_cores"], 0)
        for regime in found["regimes"]:
            for one in regime["cases"]:
                # On a busy machine the first user may be done before the last one begins.
                if regime["name"] == "users" and "at the same time" in (one["left_out"] or ""):
                    continue
                self.assertIsNone(one["left_out"], (regime["name"], done.stderr))
                self.assertEqual(one["n_runs"], 1)
                self.assertGreater(one["value"]["median"], 0)
                self.assertFalse(one["logits_differ"])
                self.assertNotIn(os.sep, one["command"])
        shares = {one["x"]: one["extras"][0]["value"]["median"]
                  for one in self.regime("stream", found)["cases"]}
        self.assertEqual(sorted(shares), [25, 70])
        for wanted, share in shares.items():
            self.assertLess(abs(share - wanted), 12, shares)
        one, = self.regime("decode", found)["cases"]
        self.assertEqual(one["extras"][0]["value"]["median"], 100)
        # Prompts have a limit: disk, memory or arithmetic.
        one, = self.regime("prefill-stream", found)["cases"]
        self.assertGreater(one["limit"]["median"], 0)
        self.assertIn(one["bound_by"], ("disk", "memory", "arithmetic"))
        self.assertGreaterEqual(Page((self.out / "bench.html").read_text()).tags.count("svg"), 9)
        self.assertEqual(sorted(os.listdir(self.out)), ["bench.html", "bench.json", "bench.md"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
