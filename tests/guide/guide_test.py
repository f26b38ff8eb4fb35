#!/usr/bin/env python3
"""Runs every command of the pages for users, on the machine of machine.py.

usage: guide_test.py PROGRAM [TestClass...]

Blocks that need a client from a package registry are run by settings_test.py, the second tier.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import clients
import messages
import pages
from machine import Machine

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
GUIDES = pages.PAGES[1:7]  # the pages that are for users alone
SPAN = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Options of other programs that the pages name in running text.
FOREIGN = {"--model", "--memory"}


def blocks(*which):
    return [block for page in which for block in pages.blocks_of(page)]


class Static(unittest.TestCase):
    """What the pages say, without running it."""

    def test_blocks_are_known(self):
        for block in blocks(*pages.PAGES):
            with self.subTest(block.where()):
                self.assertIn(block.language, pages.LANGUAGES)
                self.assertIn(block.kind, ("", *pages.KINDS))
                if block.kind == "needs":
                    self.assertIn(block.value, clients.NAMES)
                if block.kind in ("provoke", "message", "foreign"):
                    self.assertEqual(block.language, "text")
                if not block.kind:
                    self.assertEqual(block.language, "sh", "nothing runs or checks this block")

    def test_every_fence_is_a_block(self):
        for page in pages.PAGES:
            text = (pages.ROOT / page).read_text(encoding="utf-8")
            found = pages.blocks_of(page)
            n_blocks = len(found) + sum(block.output is not None for block in found)
            with self.subTest(page):
                self.assertEqual(len(re.findall(r"^\s*```", text, re.M)), 2 * n_blocks)
                self.assertEqual(len(re.findall(r"<!-- test:", text)),
                                 sum(block.kind != "" for block in found))
                if page in GUIDES:  # indented code would be run by nothing
                    self.assertIsNone(re.search(r"(?m)^ {4}\S", pages.FENCE.sub("", text)))

    def test_each_client_has_a_block(self):
        needed = {block.value for block in blocks(*pages.PAGES) if block.kind == "needs"}
        self.assertEqual(needed, set(clients.NAMES))

    def test_options_exist(self):
        """An option that a guide names in running text is one of the program's."""
        listed = subprocess.run([PROGRAM, "help"], capture_output=True, text=True, check=True)
        names = re.findall(r"^  (\w+(?: \w+)?)  +[A-Z]", listed.stdout, re.M)
        self.assertGreater(len(names), 20)
        known = set(FOREIGN)
        for name in names:
            known.update(OPTION.findall(subprocess.run(
                [PROGRAM, "help", *name.split()], capture_output=True, text=True,
                check=True).stdout))
        for page in GUIDES:
            text = pages.FENCE.sub("", (pages.ROOT / page).read_text(encoding="utf-8"))
            for span in SPAN.findall(text):
                if span.startswith(("--", "flashmoe ")):
                    with self.subTest(page=page, span=span):
                        self.assertLessEqual(set(OPTION.findall(span)), known)

    def test_messages_exist(self):
        found = [block for block in blocks(*pages.PAGES) if block.kind == "message"]
        self.assertGreater(len(found), 4)
        for block in found:
            for line in block.text.splitlines():
                with self.subTest(block.where(), line=line):
                    self.assertTrue(messages.can_be_printed(line), "no source has this message")
        for wrong in ("flashmoe: the moon is made of cheese and needs at least 4 GiB of memory",
                      "rank 1 (b): it has not replied for 8.0 s: the process hangs"):
            self.assertFalse(messages.can_be_printed(wrong))

    def test_a_shape_without_weights_has_the_floor_of_the_table(self):
        text = (pages.ROOT / "docs/CHOOSE.md").read_text(encoding="utf-8")
        floor = re.search(r"(?m)^\| Qwen3-Coder-Next \| [\d.]+ \| ([\d.]+) \|", text).group(1)
        with tempfile.TemporaryDirectory() as folder:
            said = [subprocess.run([PROGRAM, *shlex.split(words)], cwd=folder, capture_output=True,
                                   text=True, check=True).stdout
                    for words in re.findall(r"(?m)^flashmoe (.* shape\.fmoe .*)$", text)]
        found = re.search(r"(?m)^minimum +([\d.]+) GiB", said[1]).group(1)
        self.assertAlmostEqual(float(found), float(floor), delta=0.051)

    def test_shown_json(self):
        for block in blocks(*pages.PAGES):
            if block.language == "json":
                with self.subTest(block.where()):
                    json.loads(block.text)


class Page(unittest.TestCase):
    """Runs the blocks of a page in their order, on one machine."""
    PAGE = None

    def check(self, machine, block):
        if block.kind == "file":
            machine.write(block.value, block.text)
        elif block.kind == "provoke":
            _, output = machine.run(f"set +e\n{block.value}", block.where(), keeps=False)
            self.assertEqual(pages.missing_lines(machine.translate(block.text), output), [],
                             f"{block.where()}\n{output}")
        elif block.language == "sh" and block.kind != "needs":
            faults = machine.faults_of(block)
            if faults:
                self.fail(faults)
            return 1
        return block.kind in ("file", "provoke")

    def test_commands(self):
        if self.PAGE is None:
            self.skipTest("this class has no page")
        found = pages.blocks_of(self.PAGE)
        with Machine(PROGRAM) as machine:
            n_run = sum(self.check(machine, block) for block in found)
            n_refused = len(re.findall(r"(?m) POST \S+ 5\d\d", machine.log()))
        self.assertGreater(n_run, 0)
        self.assertEqual(n_refused, 0)
        left = [f"{block.where()} needs {block.value}" for block in found if block.kind == "needs"]
        print(f"{self.PAGE}: {n_run} of {len(found)} blocks were used"
              + (f"; guide.client.* run {', '.join(left)}" if left else ""))


class Settings(unittest.TestCase):
    """The settings of agents on the page are those of `flashmoe launch`, which `make agents` runs
    with the agents themselves."""

    def printed(self, machine, agent):
        status, output = machine.run(f"flashmoe serve --context 4096 -q; "
                                     f"flashmoe launch {agent} --print", agent)
        self.assertEqual(status, 0, output)
        return output

    def section(self, title):
        text = (pages.ROOT / "docs/CLIENTS.md").read_text(encoding="utf-8")
        return text.split(f"\n### {title}\n")[1].split("\n### ")[0]

    def test_claude(self):
        with Machine(PROGRAM) as machine:
            shown = [machine.translate(line) for line
                     in re.findall(r"^export .+$", self.section("Claude Code"), re.M)]
            lines = self.printed(machine, "claude").replace("=''", "=").splitlines()
        self.assertGreater(len(shown), 4)
        self.assertLessEqual(set(shown), set(lines))

    def test_codex(self):
        with Machine(PROGRAM) as machine:
            words = self.printed(machine, "codex")
            text = machine.translate(self.section("Codex").split("```toml\n")[1].split("```")[0])
        provider = ""
        n_settings = 0
        for line in text.splitlines():
            table = re.fullmatch(r"\[(.+)\]", line)
            provider = table[1] + "." if table else provider
            if " = " in line:
                name, value = line.split(" = ")
                self.assertIn(f"{provider}{name}={value}", words.replace("'", ""))
                n_settings += 1
        self.assertEqual(n_settings, 7)

    def test_opencode(self):
        with Machine(PROGRAM) as machine:
            output = self.printed(machine, "opencode")
            shown = json.loads(machine.translate(
                self.section("opencode").split("```json\n")[1].split("```")[0]))
        made = re.search(r"^export OPENCODE_CONFIG_CONTENT='(.*)'$", output, re.M)[1]
        self.assertEqual(shown, json.loads(made))


def add_pages():
    """Makes a class for each page: Readme, Index, Start and so on."""
    for page in pages.PAGES:
        name = "Index" if page == "docs/README.md" else pathlib.Path(page).stem.capitalize()
        globals()[name] = type(name, (Page,), {"PAGE": page, "__module__": __name__})


add_pages()

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
