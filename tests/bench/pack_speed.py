#!/usr/bin/env python3
"""Measures how fast packing is compared with `cp` of the same bytes in the same run.

usage: pack_speed.py PROGRAM CHECKPOINT SCRATCH_DIR [--repeat 3]

CHECKPOINT is a Hugging Face directory with floats, say of
    flashmoe synth 30b-a3b CHECKPOINT --layers 15
and SCRATCH_DIR lies on the same disk with room for another one. Each round measures, with the page
cache dropped before (when that is permitted):
    cp      the shards to another directory; and the time until `sync` has returned too
    keep    flashmoe pack --experts keep: the same bytes, synced and read back
    quant   flashmoe pack: experts to affine4-g64, synced and read back
Prints GB/s of the checkpoint's bytes, the share of cp's speed, the processors it had and those it
wanted (threads that ran or were ready to: on a machine with other work the second tells whether it
is compute-bound), and peak memory; medians at the end.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        print("note: the page cache cannot be dropped", file=sys.stderr)


def ready_ns(pid, seen):
    """Adds up what each thread has run and has waited for a processor."""
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran, waited = path.read_text().split()[:2]
            seen[path.parent.name] = int(ran) + int(waited)
        except (OSError, ValueError):
            pass


def run(command):
    """Returns seconds, processors it had and wanted, and peak resident MiB."""
    begin, seen = time.monotonic(), {}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    pid = 0
    while pid == 0:
        ready_ns(process.pid, seen)
        time.sleep(0.05)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    had = (usage.ru_utime + usage.ru_stime) / seconds
    return seconds, had, sum(seen.values()) * 1e-9 / seconds, usage.ru_maxrss / 1024


def show(name, row, cp):
    speed, had, wanted, peak = row
    print(f"{name:8} {speed:6.3f} GB/s  {100 * speed / cp:5.1f}% of cp  processors: {had:4.2f} had,"
          f" {wanted:4.2f} wanted  peak {peak:6.1f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("scratch", type=pathlib.Path)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    shards = sorted(str(p) for p in args.checkpoint.glob("*.safetensors"))
    gb = sum(os.path.getsize(p) for p in shards) / 1e9
    args.scratch.mkdir(parents=True, exist_ok=True)
    copy, packed = args.scratch / "copy", args.scratch / "packed.fmoe"
    print(f"{len(shards)} shards, {gb:.2f} GB; load {os.getloadavg()[0]:.1f}")
    results = {"cp": [], "cp+sync": [], "keep": [], "quant": []}
    for _ in range(args.repeat):
        copy.mkdir()
        drop_caches()
        begin = time.monotonic()
        seconds, *more = run(["cp", *shards, str(copy)])
        os.sync()
        results["cp"].append((gb / seconds, *more))
        results["cp+sync"].append((gb / (time.monotonic() - begin), *more))
        shutil.rmtree(copy)
        for name, options in (("keep", ["--experts", "keep"]), ("quant", [])):
            drop_caches()
            seconds, *more = run([args.program, "pack", str(args.checkpoint), str(packed), "-q",
                                  *options])
            results[name].append((gb / seconds, *more))
            shutil.rmtree(packed)
        for name, rows in results.items():
            show(name, rows[-1], results["cp"][-1][0])
    cp = statistics.median(row[0] for row in results["cp"])
    print(f"medians of {args.repeat}, load {os.getloadavg()[0]:.1f}:")
    for name, rows in results.items():
        show(name, [statistics.median(column) for column in zip(*rows)], cp)


if __name__ == "__main__":
    main()
