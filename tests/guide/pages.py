"""Reads the pages for users: their fenced blocks, and what the comment above a block says about it.

A comment `<!-- test: WORDS -->` on the line above a fence tells the tests how to use the block:

    needs NAME       it needs the client NAME of a package registry: settings_test.py runs it
    file PATH        it is the content of that file, which is written before the next block
    provoke COMMAND  the program prints this text when that command runs, other numbers aside
    message          the program can print this, says its source; a test cannot easily provoke it
    foreign          another program prints this, or this one does on another machine
    shown            it is only shown: the page says why. JSON must still be JSON

Every other block in `sh` or `python` is run. A `text` block that follows one in `sh` is its output:
each line must be printed, `...` stands for anything, and numbers may differ.
"""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The pages whose commands are run, in the order in which a new user meets them.
PAGES = ("README.md", "docs/README.md", "docs/START.md", "docs/CHOOSE.md", "docs/CLIENTS.md",
         "docs/TROUBLESHOOTING.md", "docs/FAQ.md", "docs/PULL.md", "docs/USAGE.md")
RUN = ("sh", "python")
LANGUAGES = (*RUN, "text", "json", "toml", "yaml")
KINDS = ("needs", "file", "provoke", "message", "foreign", "shown")
FENCE = re.compile(r"^(?:<!-- test: ([^\n]+?) -->\n)?```([^\n]*)\n(.*?)^```$", re.M | re.S)


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    kind: str = ""
    value: str = ""
    output: "Block" = None  # of a block in sh

    def where(self):
        return f"{self.page}:{self.line}"


def blocks_of(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        kind, _, value = (match[1] or "").partition(" ")
        line = text.count("\n", 0, match.start(2)) + 1
        block = Block(page, line, match[2], match[3], kind, value.strip())
        is_output = block.language == "text" and not kind and found and \
            found[-1].language == "sh" and found[-1].output is None
        if is_output:
            found[-1].output = block
        else:
            found.append(block)
    return found


def pattern_of(line):
    """Returns a regular expression for a line of output."""
    parts = re.split(r"(\.\.\.|\d[\d.,]*)", line.strip())
    return re.compile("".join(".*" if part == "..." else r"\d[\d.,]*" if i % 2 else re.escape(part)
                              for i, part in enumerate(parts)))


def missing_lines(expected, output):
    """Returns the lines that were not printed."""
    return [line for line in expected.splitlines() if line.strip()
            and not pattern_of(line).search(output)]
