"""Gives one read of a packed model a wrong bit, one read after the other.

Usage: damaged_read_test.py PROGRAM PRELOAD MODEL...

PRELOAD is the library built from preload_reads.c. The file is whole, only what one read gives is
not: a disk or a cable does that. The run is refused, or its logits are those without the fault,
because what is computed with is what is verified.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM, PRELOAD, MODELS = sys.argv[1], sys.argv[2], sys.argv[3:]
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
SECONDS_PER_MODEL = 40  # a slow build damages a sample of the reads


def run(model, **faults):
    env = dict(os.environ, LD_PRELOAD=PRELOAD, XDG_CACHE_HOME="/dev/null/none")
    # The sanitizer's runtime is not the first library then, which it would refuse.
    env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"),
                                                 "verify_asan_link_order=0"]))
    env.update({f"FAULT_{name.upper()}": str(value) for name, value in faults.items()})
    command = [PROGRAM, "run", model, "--raw", "-p", "The cat", "-n", "2", "--greedy", "--json",
               "-q", "--no-heat", "--io", "page", "--threads", "1"]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def check(model, folder):
    """Returns how many damaged reads were refused, did not matter, and went unnoticed."""
    begin = time.monotonic()
    whole = run(model, count=folder / "count")
    if whole.returncode != 0:
        raise AssertionError(whole.stderr)
    n_reads = int((folder / "count").read_text(encoding="ascii"))
    expected = json.loads(whole.stdout)["logits_hash"]
    n_runs = max(60, int(SECONDS_PER_MODEL / (time.monotonic() - begin)))
    n_refused = n_same = 0
    unnoticed = []
    for at in range(1, n_reads + 1, max(1, n_reads // n_runs)):
        result = run(model, kind="damage", at=at)
        if result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1:
            n_refused += 1
        elif result.returncode == 0 and json.loads(result.stdout)["logits_hash"] == expected:
            n_same += 1
        else:
            unnoticed.append((at, result.returncode, result.stderr))
    return n_reads, n_refused, n_same, unnoticed


def main():
    status = 0
    for source in MODELS:
        with tempfile.TemporaryDirectory(prefix="damaged-read-") as folder:
            packed = pathlib.Path(folder) / "model.fmoe"
            subprocess.run([PROGRAM, "pack", "-q", source, packed], check=True)
            n_reads, n_refused, n_same, unnoticed = check(packed, pathlib.Path(folder))
        print(f"{source}: {n_reads} reads; of those that were damaged {n_refused} were refused, "
              f"{n_same} did not matter, {len(unnoticed)} went unnoticed", *unnoticed[:4], sep="\n")
        status |= bool(unnoticed) or n_refused == 0
    return status


if __name__ == "__main__":
    sys.exit(main())
