#!/usr/bin/env python3
"""Compares the pages with the tree: links resolve, the map in ARCHITECTURE.md matches the tree, and
refusals have the words of their messages.

Usage: docs_test.py [TestClass...]
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import lint  # pylint: disable=wrong-import-position

MAP = ROOT / "docs/ARCHITECTURE.md"
MAP_LINES = 250
PICTURE_BYTES = 200_000
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# A file of the tree in code quotes, such as `engine/forward.c` or `tests/bench/pool_speed.c`. Names
# with a placeholder (`cmd_NAME.c`, `lanes_<isa>.h`) are not files.
FILE = re.compile(r"`([a-z_]+(?:/[a-z0-9_]+)+\.(?:c|h|py|sh|mjs|md|cmake))`")
PLACES = ("", "src", "docs")


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")),
            *sorted((ROOT / "tests").rglob("*.md"))]


def text_of(page):
    return page.read_text(encoding="utf-8")


def anchors(page):
    """Returns the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Links(unittest.TestCase):
    def test_links_resolve(self):
        n_links = 0
        for page in pages():
            for link in LINK.findall(FENCE.sub("", text_of(page))):
                if re.match(r"[a-z]+:", link):
                    continue
                n_links += 1
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(page=str(page.relative_to(ROOT)), link=link):
                    self.assertTrue(target.exists(), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target))
        self.assertGreater(n_links, 50)

    def test_files_exist(self):
        for page in (ROOT / "README.md", MAP, ROOT / "docs/BENCHMARKS.md", ROOT / "docs/USAGE.md"):
            for name in FILE.findall(text_of(page)):
                with self.subTest(page=page.name, file=name):
                    self.assertTrue(any((ROOT / place / name).exists() for place in PLACES))

    def test_pictures_are_small(self):
        for picture in (ROOT / "docs/images").iterdir():
            with self.subTest(picture.name):
                self.assertLess(picture.stat().st_size, PICTURE_BYTES)


class Messages(unittest.TestCase):
    """A page that names a refusal has the words of its message, so that a search finds both."""

    def test_schemas_that_allow_nothing(self):
        said = re.findall(r'"[^"]*\bno (?:value|object) (\w+)',
                          "".join(map(text_of, sorted((ROOT / "src/grammar").glob("*.c")))))
        self.assertEqual(set(said), {"satisfies"})
        schema = re.findall(r"\bno value (\w+)", text_of(ROOT / "docs/SCHEMA.md"))
        self.assertGreaterEqual(schema.count("satisfies"), 2)
        for page in pages():
            found = re.findall(r"\bno (?:value|object) (\w+)", text_of(page))
            with self.subTest(page=str(page.relative_to(ROOT))):
                self.assertLessEqual(set(found), {"satisfies", "can"})


class Map(unittest.TestCase):
    """docs/ARCHITECTURE.md."""

    def test_is_short(self):
        self.assertLessEqual(len(text_of(MAP).splitlines()), MAP_LINES)

    def test_ranks_are_those_of_lint(self):
        rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", text_of(MAP), re.M)
        self.assertEqual({folder: int(rank) for rank, folder in rows}, lint.RANKS)
        self.assertEqual(len(rows), len(lint.RANKS))

    def test_has_every_test_folder(self):
        folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
        section = text_of(MAP).split("\n## Tests\n")[1]
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.M)
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        self.assertEqual(sorted(named), sorted(folders - {"__pycache__"}))


if __name__ == "__main__":
    unittest.main()
