#!/usr/bin/env python3
"""Writes the seed corpus of the routes fuzz target.

usage: make_routes_corpus.py [DIR]      (default: corpus/routes next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import pathlib
import sys

COLUMNS = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
LABELS = ("# routes: replayed (/a n_layer=0 n_expert=1 n_expert_used=99999.csv) - speed only\n"
          "# approximate: 2 of 4 experts per token\n")


def trace(rows, layers=4, experts=8, used=2, first="# route_trace v1", columns=COLUMNS, end="\n"):
    head = [first, f"# model=/a b/n_layer=9.gguf arch=x n_layer={layers} n_expert={experts} "
            f"n_expert_used={used}", "# layer=0 expert_bytes=1 dense_bytes=2", columns]
    return end.join(head + [",".join(map(str, row)) for row in rows]) + end


def row(turn, phase, step, layer, slot, expert, weight="0.5", residency=0, size=0):
    return turn, phase, step, layer, slot, expert, weight, residency, size


def tokens(turn, phase, steps, layers, seed):
    return [row(turn, phase, step, layer, slot, (seed + 3 * step + layer + 5 * slot) % 8,
                f"{0.7 - slot / 4:.9g}") for step in steps for layer in layers for slot in (0, 1)]


def raw(n_tokens, last=0):
    """Returns 8 of 64 experts in 8 layers. `last` is added to the last one."""
    ids = [(t + layer + 9 * i) % 64 for t in range(n_tokens) for layer in range(8)
           for i in range(8)]
    return "".join(map(chr, ids[:-1] + [ids[-1] + last]))


def seeds():
    one = [row(0, 0, 0, 0, 0, 1)]
    return {
        "one.csv": trace(one),
        "two-turns.csv": trace(tokens(0, 0, range(5), (0, 1, 3), 1) +
                               tokens(0, 1, range(5, 12), (0, 1, 3), 1) +
                               tokens(1, 0, range(3), (0, 1, 3), 4)),
        "gaps.csv": trace(tokens(0, 0, (3, 9), (0,), 1) + tokens(0, 1, (11,), (2,), 1)),
        "crlf.csv": trace(tokens(0, 1, range(3), (0,), 2), end="\r\n"),
        "exponent.csv": trace([row(0, 1, 7, 3, 1, 7, "1.5e-05", 1, 4336640)]),
        "far-apart.csv": trace([row(0, 0, 0, 0, 0, 1), row(0, 0, 16777215, 0, 1, 2)]),
        "late-turn.csv": trace(one + [row(4000000000, 0, 0, 0, 0, 1)]),
        "no-end.csv": trace(one)[:-1],
        "labels.csv": trace(one, columns=LABELS + COLUMNS),
        "bad-empty.csv": "",
        "bad-first.csv": trace(one, first="# route_trace v2"),
        "bad-columns.csv": trace(one, columns="turn,phase"),
        "bad-no-sizes.csv": f"# route_trace v1\n{COLUMNS}\n0,0,0,0,0,1,1,0,0\n",
        "bad-no-rows.csv": trace([]),
        "bad-used.csv": trace(one, used=9),
        "bad-huge.csv": trace(one, experts=70000),
        "bad-turn.csv": trace([row(-1, 0, 0, 0, 0, 1)]),
        "bad-phase.csv": trace([row(0, 2, 0, 0, 0, 1)]),
        "bad-step.csv": trace([row(0, 0, 99999999, 0, 0, 1)]),
        "bad-layer.csv": trace([row(0, 0, 0, 4, 0, 1)]),
        "bad-slot.csv": trace([row(0, 0, 0, 0, 2, 1)]),
        "bad-expert.csv": trace([row(0, 0, 0, 0, 0, 8)]),
        "bad-weight.csv": trace([row(0, 0, 0, 0, 0, 1, "nan")]),
        "bad-short.csv": trace(["0", "0"]),
        "bad-long.csv": trace([(*one[0], 7)]),
        "bad-slot-twice.csv": trace(one + [row(0, 0, 0, 0, 0, 2)]),
        "bad-expert-twice.csv": trace(one + [row(0, 0, 0, 0, 1, 1)]),
        "raw.u8": raw(3),
        "bad-raw-expert.u8": raw(2, 64),
        "bad-raw-expert-twice.u8": raw(2, 55),
        "bad-raw-bytes.u8": raw(2)[1:],
        "gen": "gen",
        "gen-all": "gen:hot=6,alpha=1.25,delta=2,beta=0.5,drift=1.5,topic=7,seed=4294967295,"
                   "recall=0.7",
        "gen-share": "gen:hot=33.5%",
        "gen-zero": "gen:hot=0,alpha=0,delta=0,beta=0,drift=0,topic=0,seed=0",
        "gen-most": "gen:hot=65535,alpha=4,delta=20,beta=8,drift=100,topic=1,topics=65535",
        "bad-gen-key": "gen:colour=1",
        "bad-gen-value": "gen:alpha=1e3",
        "bad-gen-empty": "gen:",
        "bad-gen-comma": "gen:alpha=1,",
    }


def main():
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "routes"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in seeds().items():
        (folder / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
