"""Finds out whether the program can print a message: the format strings of its sources."""
import functools
import re

from pages import ROOT

STRING = r'"(?:[^"\\\n]|\\.)*"'
# Adjacent strings, with macros between them.
STRINGS = re.compile(rf"(?:{STRING}|\b[A-Z][A-Z0-9_]+\b)(?:\s+(?:{STRING}|\b[A-Z][A-Z0-9_]+\b))*")
PIECE = re.compile(rf"{STRING}|\b[A-Z][A-Z0-9_]+\b")
MACRO = re.compile(rf"^#define (\w+) ({STRING})\s*$", re.M)
CONVERSION = re.compile(r"%(?:%|[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|j|t)?[a-zA-Z])")
MIN_LITERAL = 12  # characters that a format must have of its own
PREFIX = re.compile(r"^flashmoe: (?:warning: |note: )?")


def plain(literal):
    return literal[1:-1].replace('\\"', '"').replace("\\n", "").replace("\\'", "'") \
        .replace("\\\\", "\\")


class Format:
    """A format string, and what it prints as a regular expression."""

    def __init__(self, text):
        pieces = CONVERSION.split(text)
        self.literal_chars = sum(map(len, pieces))
        self.longest = max(pieces, key=len)
        self.pattern = ".*".join(map(re.escape, pieces))

    def prints(self, line):
        return self.longest in line and re.fullmatch(self.pattern, line) is not None


@functools.cache
def formats():
    sources = [path.read_text(encoding="utf-8") for folder in ("src", "apps")
               for path in sorted((ROOT / folder).rglob("*.[ch]"))
               if not path.name.endswith("_test.c")]
    macros = dict(found for source in sources for found in MACRO.findall(source))
    found = set()
    for source in sources:
        for strings in STRINGS.findall(source):
            parts = PIECE.findall(strings)
            if any(part[0] == '"' for part in parts):
                found.add("".join(plain(part) if part[0] == '"' else
                                  plain(macros[part]) if part in macros else "%s"
                                  for part in parts))
    return found


@functools.cache
def whole():
    """Formats that say enough to be a message."""
    return [made for made in map(Format, sorted(formats())) if made.literal_chars >= MIN_LITERAL]


@functools.cache
def before():
    """Formats that only say where: what follows their colon is another message."""
    return [Format(text.removesuffix(": %s")) for text in sorted(formats())
            if text.endswith(": %s") and len(text) > len("x: %s")]


def is_one(line):
    return any(made.prints(line) for made in whole())


def can_be_printed(line):
    """A message is what one format prints, perhaps behind a format that says where or what for."""
    line = PREFIX.sub("", line.strip())
    if any(made.prints(line) for made in whole() if not made.pattern.endswith(": .*")):
        return True
    cuts = [at for at in re.finditer(r"[:;] ", line)]
    return any(is_one(line[at.end():]) and (is_one(line[:at.start()]) or
                                            any(made.prints(line[:at.start()])
                                                for made in before()))
               for at in cuts)
