#!/usr/bin/env python3
"""Generates src/text/unicode_tables.inc and src/text/nfc_tables.inc.

usage: gen_unicode.py [OUTPUT_DIRECTORY]      (default: src/text beside this script)

Needs the PyPI package `tokenizers`, which is the reference: token ids must equal its ids, so its
character tables count, not those of the newest Unicode version. Every code point goes through
the package: the classes through its regular expressions, decompositions, compositions and
canonical ordering through its normalizers. Where Python's unicodedata is used as a guess, the
guess is verified against the package and the script stops if it is wrong.
"""
import itertools
import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CLASSES = [("UNICODE_L", r"\p{L}", 1), ("UNICODE_M", r"\p{M}", 2), ("UNICODE_N", r"\p{N}", 4),
           ("UNICODE_SPACE", r"\s", 8), ("UNICODE_UPPER", r"[\p{Lu}\p{Lt}]", 32),
           ("UNICODE_LOWER", r"\p{Ll}", 64), ("UNICODE_PS", r"[\p{P}\p{S}]", 128),
           ("UNICODE_HAN", r"\p{Han}", 256)]
NFC_ACTIVE = 16
BLOCK = 128
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)
JAMO_FOLLOWERS = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]

nfc = normalizers.NFC().normalize_str
nfd = normalizers.NFD().normalize_str


def check(condition, message):
    if not condition:
        sys.exit(f"gen_unicode.py: {message}")


def class_bits():
    """The class bits of every code point, by removing what the expression matches."""
    text = "".join(map(chr, CODE_POINTS))
    bits = [0] * 0x110000
    for _, pattern, bit in CLASSES:
        split = pre_tokenizers.Split(Regex(pattern), "removed")
        at = 0
        for _, (begin, end) in split.pre_tokenize_str(text) + [("", (len(text), len(text)))]:
            for i in range(at, begin):
                bits[CODE_POINTS[i]] |= bit
            at = end
    return bits


def decompositions():
    """Full canonical decompositions, without the Hangul syllables, which are computed."""
    table = {}
    for c in CODE_POINTS:
        text = nfd(chr(c))
        if c in HANGUL:
            i = c - 0xAC00
            want = [0x1100 + i // 588, 0x1161 + i % 588 // 28] + [0x11A7 + i % 28] * (i % 28 > 0)
            check([*map(ord, text)] == want, f"U+{c:04X} is not decomposed as Hangul")
        elif text != chr(c):
            table[c] = [*map(ord, text)]
    return table


def combining_classes(table):
    """Canonical combining classes as the package orders them."""
    ccc = {}
    for c in CODE_POINTS:
        if c in table:
            continue
        a = chr(c)
        if nfd(a + "\u0334") == "\u0334" + a or nfd("\u0345" + a) == a + "\u0345":
            ccc[c] = unicodedata.combining(a)
            check(ccc[c] > 0, f"U+{c:04X} is reordered, but unicodedata has no class for it")
    sample = {}
    for c, value in ccc.items():
        sample.setdefault(value, c)
    for (a, x), (y, b) in itertools.product(ccc.items(), sample.items()):
        for first, second in ((a, b), (b, a)):
            text = chr(first) + chr(second)
            want = text[::-1] if ccc[first] > ccc[second] else text
            check(nfd(text) == want, f"order of U+{first:04X} U+{second:04X} ({x}, {y})")
    return ccc


def compositions(table):
    """Pairs that compose, as {(first, second): composite}."""
    pairs = {}
    for c in table:
        if nfc(nfd(chr(c))) != chr(c):
            continue
        pair = tuple(int(x, 16) for x in unicodedata.decomposition(chr(c)).split())
        check(len(pair) == 2, f"U+{c:04X} composes from {pair}")
        check(nfc("".join(map(chr, pair))) == chr(c), f"U+{c:04X} does not compose from {pair}")
        pairs[pair] = c
    firsts = {a for a, _ in pairs}
    seconds = {b for _, b in pairs}
    for a, b in itertools.product(firsts, seconds):
        composed = nfc(chr(a) + chr(b)) == chr(pairs.get((a, b), 0x110000 - 1))
        check(composed == ((a, b) in pairs), f"composition of U+{a:04X} U+{b:04X}")
    check(nfc("\uac00\u11a7") == "\uac00\u11a7", "U+11A7 composes")
    return pairs


def mark_active(bits, table, ccc, pairs):
    """Sets NFC_ACTIVE on everything before which a segment cannot begin."""
    active = set(ccc) | {b for _, b in pairs} | set(JAMO_FOLLOWERS)
    active |= {c for c in CODE_POINTS if nfc(chr(c)) != chr(c)}
    for c in active:
        bits[c] |= NFC_ACTIVE
    for c, text in table.items():
        check(c in active or text[0] not in active, f"U+{c:04X} begins with U+{text[0]:04X}")


def rows(items, indent="    ", width=99):
    """Comma-separated items in lines of at most `width` columns."""
    line = indent
    for item in items:
        if len(line) + len(item) + 1 > width:
            yield line.rstrip() + "\n"
            line = indent
        line += item + ", "
    yield line.rstrip() + "\n"


def array(head, items):
    return f"static const {head} = {{\n" + "".join(rows(items)) + "};\n"


def banner(what):
    return (f"/* {what}\n * Generated by tools/gen_unicode.py from the PyPI package tokenizers "
            f"{tokenizers.__version__}; do not edit. */\n")


def write_classes(path, bits):
    blocks, index = {}, []
    for at in range(0, 0x110000, BLOCK):
        index.append(blocks.setdefault(tuple(bits[at:at + BLOCK]), len(blocks)))
    names = ", ".join(f"{bit} {pattern}" for _, pattern, bit in CLASSES)
    text = banner("Class bits of every code point as a two-stage table:\n"
                  f" * {names},\n * {NFC_ACTIVE} active in NFC.")
    text += f"#define UNICODE_BLOCK {BLOCK}\n\n"
    text += array(f"uint16_t unicode_block_of[{len(index)}]", map(str, index))
    flat = [str(x) for block in blocks for x in block]
    text += "\n" + array(f"uint16_t unicode_bits_of[{len(flat)}]", flat)
    path.write_text(text)
    return len(blocks)


def write_nfc(path, table, ccc, pairs):
    pool, entries = [], []
    for c in sorted(table):
        entries.append(f"{{{c}, {len(pool)}, {len(table[c])}}}")
        pool += table[c]
    ranges = []
    for c in sorted(ccc):
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == ccc[c]:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, ccc[c]])
    text = banner("Canonical decompositions (full, without Hangul), combining classes, "
                  "compositions.")
    text += array(f"uint32_t decomposed[{len(pool)}]", map(str, pool))
    text += "\n" + array(f"struct decomposition decompositions[{len(entries)}]", entries)
    text += "\n" + array(f"struct class_range class_ranges[{len(ranges)}]",
                         (f"{{{a}, {b}, {x}}}" for a, b, x in ranges))
    text += "\n" + array(f"struct composition compositions[{len(pairs)}]",
                         (f"{{{a}, {b}, {pairs[a, b]}}}" for a, b in sorted(pairs)))
    path.write_text(text)


def main():
    here = pathlib.Path(__file__).resolve().parent
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "src" / "text"
    bits = class_bits()
    table = decompositions()
    ccc = combining_classes(table)
    pairs = compositions(table)
    mark_active(bits, table, ccc, pairs)
    n_blocks = write_classes(out / "unicode_tables.inc", bits)
    write_nfc(out / "nfc_tables.inc", table, ccc, pairs)
    print(f"tokenizers {tokenizers.__version__}: {n_blocks} class blocks, {len(table)} "
          f"decompositions, {len(ccc)} combining marks, {len(pairs)} compositions")


if __name__ == "__main__":
    main()
