#!/usr/bin/env python3
"""Measures the first token of a cold start and the time that the disk needs for its bytes.

usage: first_token.py FLASHMOE MODEL.fmoe [--memory BYTES] [--rounds 5]

In every round, each but the last from a cold page cache:
    computed  `flashmoe plan` measures the disk and divides what a first token needs by it: the
              dense weights, and the experts that one token uses
    fresh     a process reads as many bytes of the model in the same way, eight pieces of half a
              MiB at a time past the page cache, into memory that it never used before, as a
              program that starts must: the system clears pages first
    measured  `flashmoe run` with a prompt of one token and no heat file, from its start until the
              first byte of text is there
    again     the same once more, with the page cache as it is then
Prints the rounds and the medians. Needs root for a cold page cache.
"""
import argparse
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stream"))
import cgroup  # noqa: E402

PIECE = 512 << 10
DEPTH = 8


def computed(args):
    done = subprocess.run([args.flashmoe, "plan", args.model, "--memory", args.memory, "--json",
                           "--quiet"], check=True, capture_output=True, text=True)
    plan = json.loads(done.stdout)
    return plan["budgets"][plan["chosen"]]["first_token_s"], plan["disk_read_gb_per_s"]


def pieces_of(model, n_bytes):
    """Returns (file, offset) of that many bytes: the dense file first, then the expert files."""
    for path in sorted(pathlib.Path(model).glob("*.bin")):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for at in range(0, path.stat().st_size // PIECE * PIECE, PIECE):
            if n_bytes <= 0:
                return
            yield fd, at
            n_bytes -= PIECE


def fresh(args, n_bytes):
    pieces = list(pieces_of(args.model, n_bytes))
    memory = mmap.mmap(-1, len(pieces) * PIECE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)

    def read(i):
        fd, at = pieces[i]
        if os.preadv(fd, [view[i * PIECE:(i + 1) * PIECE]], at) != PIECE:
            raise OSError("a short read")
    begin = time.perf_counter()
    with ThreadPoolExecutor(DEPTH) as threads:
        list(threads.map(read, range(len(pieces))))
    seconds = time.perf_counter() - begin
    for fd in {fd for fd, _ in pieces}:
        os.close(fd)
    view.release()
    return seconds


def measured(args):
    begin = time.perf_counter()
    run = subprocess.Popen([args.flashmoe, "run", args.model, "-p", "x", "-n", "1", "--raw",
                            "--no-heat", "--io", "direct", "--memory", args.memory, "--quiet"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = os.read(run.stdout.fileno(), 1)
    seconds = time.perf_counter() - begin
    run.communicate()
    if run.returncode != 0 or not first:
        sys.exit(f"{args.flashmoe} run: status {run.returncode}")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("flashmoe")
    parser.add_argument("model")
    parser.add_argument("--memory", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cgroup.need_root()
    shape = json.loads(subprocess.run([args.flashmoe, "inspect", args.model, "--json"], check=True,
                                      capture_output=True, text=True).stdout)
    n_bytes = shape["dense_bytes"] + shape["expert_token_bytes"]
    print(f"{n_bytes / 1e6:.0f} MB: {shape['dense_bytes'] / 1e6:.0f} MB of dense weights and "
          f"{shape['expert_token_bytes'] / 1e6:.0f} MB of a token's experts")
    rows = []
    for i in range(args.rounds):
        row = []
        for what in (lambda: computed(args)[0], lambda: fresh(args, n_bytes),
                     lambda: measured(args)):
            cgroup.drop_page_cache()
            row.append(what())
        row.append(measured(args))
        rows.append(row)
        print(f"round {i + 1}: computed {row[0]:.2f} s, fresh memory {row[1]:.2f} s, "
              f"measured {row[2]:.2f} s, again {row[3]:.2f} s", flush=True)
    medians = [statistics.median(column) for column in zip(*rows)]
    print(f"medians: computed {medians[0]:.2f} s, fresh memory {medians[1]:.2f} s, measured "
          f"{medians[2]:.2f} s: {medians[2] / medians[0]:.2f} and {medians[2] / medians[1]:.2f} "
          f"times; again {medians[3]:.2f} s")


if __name__ == "__main__":
    main()
