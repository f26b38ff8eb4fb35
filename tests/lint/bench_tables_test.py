#!/usr/bin/env python3
"""Tests that the tables of docs/BENCHMARKS.md are those of docs/benchmarks, and that
tools/bench_tables.py notices when they are not.

Usage: bench_tables_test.py [TestClass...]
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/bench_tables.py"
SPREAD = {"median": 20.0, "min": 10.0, "max": 123.4, "n": 3}
RESULT = {
    "report": "flashmoe bench all", "version": "flashmoe 1", "date": "2026-01-02", "versus": None,
    "is_quick": False, "n_rounds": 3,
    "model": {"name": "m", "container": "GGUF", "architecture": "a", "n_layers": 2,
              "n_experts": 8, "formats": "q4_k", "dense_bytes": 2 ** 30, "experts_bytes": 2 ** 31,
              "routes": None},
    "machine": {"processor": "P", "architecture": "x", "n_cores": 2, "cpu_level": "avx2",
                "memory_bytes": 2 ** 33, "gpu": None, "memory_read_bytes_per_s": None,
                "disk_read_bytes_per_s": {"median": 2e9, "min": 1e9, "max": 3e9, "n": 3},
                "quiet": {"is_quiet": False, "others_cpus": 0.5, "stolen_cpus": 0.25,
                          "load": 1.5}},
    "regimes": [
        {"name": "decode", "title": "Decode", "unit": "tok/s", "left_out": None, "cases": [
            {"label": "all", "value": SPREAD, "limit": SPREAD, "percent": SPREAD, "ratio": None,
             "bound_by": "memory", "n_runs": 3, "n_not_quiet": 2, "n_above_limit": 0,
             "extras": [{"name": "hits", "unit": "%", "value": SPREAD}]}]},
        {"name": "gpu", "title": "GPU", "unit": "tok/s", "left_out": "there is none", "cases": []},
    ],
}
ROW = ("| Decode | all | 20.0 (10.0 to 123) tok/s | 20.0, memory | 20.0 % | hits 20.0 %; busy in "
       "2 of 3 |")
PAGE = "# Page\n\nBy hand.\n\n<!-- bench all: r.json -->\n<!-- end of r.json -->\n\nMore.\n"


FOLDER = re.compile(r"(^|[\s'\"=(:,])(~|\.\.?)?/\w")  # the begin of a path


def strings(value):
    """Yields every text of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def tool(what, root):
    return subprocess.run([sys.executable, TOOL, what, "--root", root], capture_output=True,
                          text=True, check=False)


class Tree(unittest.TestCase):
    def test_page_has_the_figures_of_the_files(self):
        done = tool("check", ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(list((ROOT / "docs/benchmarks").glob("*.json")))

    def test_results_name_no_folder(self):
        for path in (ROOT / "docs/benchmarks").glob("*.json"):
            found = json.loads(path.read_text())
            for text in strings(found):
                self.assertFalse(FOLDER.search(text), f"{path.name}: {text}")
            for regime in found["regimes"]:
                for one in regime["cases"]:
                    self.assertNotIn("/", one["command"], path.name)

    def test_folders_are_found(self):
        for text in ("/home/a", "cannot read '/ssd/x'", "a=/b", "'../x' is gone", "see ~/x"):
            self.assertTrue(FOLDER.search(text), text)
        for text in ("tok/s", "kworker/0:1", "5 MB/s, or a / b", "MODEL/experts.bin"):
            self.assertFalse(FOLDER.search(text), text)
        self.assertEqual(list(strings({"a": ["b", {"c": "d"}], "e": 1})), ["b", "d"])


class Tool(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="bench-tables-")
        self.addCleanup(temp.cleanup)
        self.root = pathlib.Path(temp.name)
        (self.root / "docs/benchmarks").mkdir(parents=True)
        self.page = self.root / "docs/BENCHMARKS.md"
        self.file = self.root / "docs/benchmarks/r.json"
        self.file.write_text(json.dumps(RESULT))
        self.page.write_text(PAGE)
        done = tool("write", self.root)
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_refused(self, *words):
        done = tool("check", self.root)
        self.assertEqual(done.returncode, 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_writes_what_the_file_has(self):
        text = self.page.read_text()
        self.assertIn(ROW, text)
        self.assertIn("The machine was not quiet before the first run: others used 0.50", text)
        self.assertIn("disk at 2.0 GB/s (1.0 to 3.0)", text)
        self.assertIn("Left out: gpu (there is none).", text)
        self.assertTrue(text.startswith("# Page\n\nBy hand.\n"))
        self.assertTrue(text.endswith("\n\nMore.\n"))
        self.assertEqual(tool("check", self.root).returncode, 0)

    def test_quiet_is_not_assumed(self):
        changed = json.loads(json.dumps(RESULT))
        changed["machine"]["quiet"] = {"is_quiet": None, "others_cpus": None, "stolen_cpus": None,
                                       "load": None}
        self.file.write_text(json.dumps(changed))
        self.assertEqual(tool("write", self.root).returncode, 0)
        self.assertIn("It is not known whether the machine was quiet.", self.page.read_text())

    def test_notices_another_figure(self):
        self.page.write_text(self.page.read_text().replace("(10.0 to 123)", "(11.0 to 123)"))
        self.assert_refused("line", "tools/bench_tables.py write")

    def test_notices_another_file(self):
        changed = json.loads(json.dumps(RESULT))
        changed["regimes"][0]["cases"][0]["value"]["median"] = 21.0
        self.file.write_text(json.dumps(changed))
        self.assert_refused("line")

    def test_notices_what_is_missing(self):
        shutil.copy(self.file, self.file.with_name("more.json"))
        self.assert_refused("no table of more.json")
        self.file.with_name("more.json").unlink()
        self.file.rename(self.file.with_name("x.json"))
        self.assert_refused("r.json")

    def test_takes_single_regimes(self):
        self.page.write_text(PAGE.replace("r.json -->\n<!-- e", "r.json gpu -->\n<!-- e", 1))
        self.assertEqual(tool("write", self.root).returncode, 0)
        self.assertNotIn("Decode", self.page.read_text())
        self.page.write_text(PAGE.replace("r.json -->\n<!-- e", "r.json cpu -->\n<!-- e", 1))
        self.assert_refused("no regime cpu")

    def test_refuses_other_files(self):
        self.file.write_text("{}")
        self.assert_refused("is no result of 'flashmoe bench all'")


if __name__ == "__main__":
    unittest.main()
