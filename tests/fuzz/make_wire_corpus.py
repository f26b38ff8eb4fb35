#!/usr/bin/env python3
"""Writes the seed corpus of the fuzz target for the messages between ranks.

usage: make_wire_corpus.py [DIR]      (default: corpus/ next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import pathlib
import struct
import sys

MAGIC = 0x31474D46
RUN, ASK, QUIT = 1, 2, 3
CLEAR, COPY_STATE, COPY_KV, REPEAT, FREE, REACH, ACCEPT = range(1, 8)
NOTHING, NEW, ASK_REACH, STATS, EXPERTS, MEMORY, IDENTITY, SAVE, LOAD, DROP, TIDY = range(1, 12)
LEFT, HIDDEN, ROUTES, FIRST, LAST = 1, 4, 8, 16, 32
SEQUENCE_MARKS = 8
OTHER, RANK_0 = b"\x00", b"\x80"


def message(kind, ops=(), segments=(), tokens=(), question=b"", results=b"", n_rows=0, number=1,
            flags=0):
    """A message without its rows: the target fills them up with zeros."""
    head = struct.pack("<IIQIIIIIIIIII", MAGIC, kind, number, len(ops), len(segments),
                       len(tokens), len(question), len(results), n_rows, flags, 2**32 - 1, 0, 0)
    body = b"".join(struct.pack("<5I", *op) for op in ops)
    body += b"".join(struct.pack("<8I", *segment) for segment in segments)
    body += struct.pack(f"<{len(tokens)}i", *tokens) + question
    whole = head + body
    whole += b"\0" * (-len(whole) % 8) + results
    return struct.pack("<H", len(whole)) + whole


def ask(kind, a=0, b=0, c=0, more=b""):
    return message(ASK, question=struct.pack("<4IQ", kind, a, b, len(more), c) + more)


def segment(sequence, position, n_tokens, flags=FIRST | LAST, n_drafts=0, slot=0, mark=(0, 0)):
    return (sequence, position, n_tokens, n_drafts, slot, *mark, flags)


def run(*segments, ops=(), flags=0, results=b"", number=1):
    n_tokens = sum(s[2] for s in segments)
    n_rows = sum(s[2] for s in segments if s[-1] & LEFT == 0)
    return message(RUN, ops, segments, [3 + i for i in range(n_tokens)], b"", results, n_rows,
                   number, flags)


def part(kind, tokens, marks, path):
    request = struct.pack("<QQII", 1, 2, len(marks), 0)
    request += struct.pack(f"<{SEQUENCE_MARKS}I", *marks, *(0,) * (SEQUENCE_MARKS - len(marks)))
    ids = struct.pack(f"<{len(tokens)}i", *tokens) if kind == LOAD else b""
    return ask(kind, 0, len(tokens), 0, request + ids + path + b"\0")


def result(kind, rank, code, data):
    return struct.pack("<IIiI", kind, rank, code, len(data)) + data + b"\0" * (-len(data) % 8)


def seeds():
    new = ask(NEW, 0) + ask(ASK_REACH, 0, 256)
    two = new + ask(NEW, 1) + ask(ASK_REACH, 1, 256)
    fault = result(1, 1, -2, struct.pack("<Iii", 0, 2, 3) + b"cannot be read")
    answer = result(2, 1, 0, b"")
    came = message(ASK, question=struct.pack("<4IQ", NEW, 0, 0, 0, 0), results=answer)
    reached = message(ASK, question=struct.pack("<4IQ", ASK_REACH, 0, 256, 0, 0), results=answer,
                      number=2)
    return {
        "nothing": OTHER,
        "quit": OTHER + message(QUIT),
        "stats": OTHER + ask(STATS) + ask(IDENTITY) + ask(EXPERTS, 2) + ask(MEMORY, 1, 0, 1 << 27),
        "prompt": OTHER + new + run(segment(0, 0, 5), ops=[(CLEAR, 0, 0, 0, 0)]),
        "decode": OTHER + new + run(segment(0, 0, 3)) + run(segment(0, 3, 1)),
        "mark": OTHER + new + run(segment(0, 0, 8, mark=(4, 1))),
        "batch": OTHER + two + run(segment(0, 0, 2), segment(1, 0, 3)),
        "left": OTHER + two + run(segment(0, 0, 2, LEFT), segment(1, 0, 1)),
        "observed": OTHER + new + run(segment(0, 0, 2, FIRST | HIDDEN | ROUTES), flags=1),
        "copies": OTHER + two + run(segment(0, 0, 4)) + run(
            segment(1, 4, 1), ops=[(COPY_STATE, 1, 0, 0, 0), (COPY_KV, 1, 0, 4, 0)]),
        "repeat": OTHER + new + run(segment(0, 0, 4)) + run(
            segment(0, 8, 1), ops=[(REPEAT, 0, 4, 8, 0)]),
        "free": OTHER + new + run(segment(0, 0, 1), ops=[(FREE, 0, 0, 0, 0)]),
        "reach": OTHER + new + run(segment(0, 0, 1), ops=[(REACH, 0, 256, 0, 0)]),
        "accept": OTHER + new + run(segment(0, 0, 1), ops=[(ACCEPT, 0, 0, 0, 0)]),
        "save": OTHER + new + run(segment(0, 0, 4)) + part(SAVE, (3, 4, 5, 6), (0,), b"a.fmsnap"),
        "load": OTHER + new + part(LOAD, (3, 4, 5, 6), (0,), b"a.fmsnap"),
        "drop": OTHER + ask(DROP, more=b"a.fmsnap\0") + ask(TIDY, more=b"folder\0"),
        "bad-sequence": OTHER + run(segment(7, 0, 1)),
        "bad-position": OTHER + new + run(segment(0, 250, 9)),
        "bad-slot": OTHER + new + run(segment(0, 0, 1, slot=9)),
        "bad-magic": OTHER + b"\x40\x00" + b"x" * 64,
        "bad-result": OTHER + run(results=b"\1" * 16),
        "first-nothing": RANK_0,
        "first-refused": RANK_0 + message(ASK, results=result(2, 1, -1, b"no room")),
        "first-pass": RANK_0 + came + reached + run(segment(0, 0, 3), number=3),
        "first-fault": RANK_0 + came + reached + run(segment(0, 0, 3, LEFT), results=fault,
                                                     number=3),
        "first-other": RANK_0 + came + reached + run(segment(0, 0, 1), number=3),
    }


def main():
    own = pathlib.Path(__file__).parent / "corpus"
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else own) / "wire"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
