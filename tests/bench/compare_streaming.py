#!/usr/bin/env python3
"""Compares this engine with llama.cpp for a model larger than memory, in one memory cgroup.

usage: compare_streaming.py FLASHMOE LLAMA_BENCH MODEL.fmoe MODEL.gguf [--limit BYTES,...]
                            [--spare BYTES] [--threads 2] [--rounds 3] [--skip PROGRAM]

The two models have one shape and as many bits per weight, for instance
    flashmoe synth coder-next MODEL.fmoe --layers 16 --experts 512
    flashmoe synth coder-next MODEL.gguf --layers 16 --experts 512 --experts-format q4_k \
        --dense-format q4_0 --embed-format q4_0 --head-format q4_0
and compare_llama.py says how to build the peer: without GGML_CPU_REPACK, since repacked weights
must all be resident. Without --limit: a quarter and half of the packed model.

In every round and at every limit, in turns and each from a cold page cache in a new memory cgroup
of that limit, to which page cache is charged:
    fio       whole experts at random, eight at a time, past the page cache, for two seconds, where
              it is installed
    decode    ours: --stretches of 32 tokens, behind as many tokens of prompts as llama-bench has
              computed when it comes to decode, 512 at a time
    prefill   ours: three prompts of 512 tokens behind one that does not count
    llama     its own pp512 and tg32 from mmap, two each, with a readahead of 128 KB
Our budget is the limit less --spare. Printed are all rounds, and for each limit the medians with
the lowest and the highest, the ratio of the medians and the lowest and highest ratio of a round,
the share of the overlapped limit and of what fio read just before, and the group's highest use.
Needs root and llama-bench; the readahead is set back at the end.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stream"))
import cgroup  # noqa: E402

READAHEAD_KB = "128"
PROMPT, TOKENS = 512, 32
PEER_REPEAT = 2
PROMPTS_BEFORE = 1 + PEER_REPEAT # it begins with one that does not count


def readahead_of(model):
    """Returns the file with the readahead setting of the model's disk."""
    device = os.stat(model).st_dev
    at = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for disk in (at, at.parent):
        if (disk / "queue").is_dir():
            return disk / "queue" / "read_ahead_kb"
    sys.exit(f"{model}: its file system has no disk of its own; put the models on one")


def run_limited(command, limit):
    """Returns the command's JSON output, and the peak memory of its group."""
    cgroup.drop_page_cache()
    group = cgroup.open_group()
    if group is None:
        sys.exit("no memory cgroup can be made here; run this as root")
    try:
        group.limit(limit)
        environment = {**os.environ, "XDG_CACHE_HOME": "/nonexistent"}
        process = group.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment)
        most, is_over = 0, threading.Event()

        def watch():
            nonlocal most
            while not is_over.wait(0.05):
                most = max(most, group.held())
        watcher = threading.Thread(target=watch)
        watcher.start()
        out, err = process.communicate()
        is_over.set()
        watcher.join()
    finally:
        group.remove()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {process.returncode}\n{err[-2000:]}")
    return json.loads(out), most


def disk_speed(model, expert_bytes):
    """Returns how fast fio reads the expert files, in bytes per second; None without fio."""
    if shutil.which("fio") is None:
        return None
    files = ":".join(str(p) for p in sorted(pathlib.Path(model).glob("experts-*.bin")))
    done = subprocess.run(
        ["fio", "--name=experts", f"--filename={files}", "--rw=randread", f"--bs={expert_bytes}",
         "--iodepth=8", "--ioengine=io_uring", "--direct=1", "--runtime=2", "--time_based",
         "--readonly", "--output-format=json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]["read"]["bw_bytes"]


def ours(args, limit, test, tokens, repeat):
    result, most = run_limited(
        [args.flashmoe, "bench", test, args.fmoe, "--json", "--quiet", "--memory",
         str(limit - args.spare), "--threads", str(args.threads), "--tokens", str(tokens),
         "--repeat", str(repeat), "--prefill-chunk", str(PROMPT), "--no-heat", "--lookahead", "on",
         "--io", "direct",
         *(["--prompt", str(PROMPTS_BEFORE * PROMPT)] if test == "decode" else [])], limit)
    return result, most


def theirs(args, limit):
    result, _ = run_limited([args.llama_bench, "-m", args.gguf, "-t", str(args.threads), "-p",
                             str(PROMPT), "-n", str(TOKENS), "-r", str(PEER_REPEAT), "-o",
                             "json"], limit)
    return {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in result}


def measure(args, limit):
    """Measures one round at one limit."""
    row = {"fio_bytes_per_s": disk_speed(args.fmoe, args.expert_bytes)}
    decode, most = ours(args, limit, "decode", TOKENS, args.stretches)
    prefill, max_prefill = ours(args, limit, "prefill", PROMPT, 3)
    row |= {"decode": decode["tok_per_s"], "prefill": prefill["tok_per_s"],
            "read_bytes_per_s": decode["bytes_per_token"] * decode["tok_per_s"],
            "limit_percent": decode["limit"]["percent"], "bound_by": decode["limit"]["bound_by"],
            "hit_rate": decode["hit_rate"], "held_bytes": max(most, max_prefill)}
    if args.skip != "llama.cpp":
        row |= {"llama_" + test: speed for test, speed in theirs(args, limit).items()}
    return row


def show(values, form):
    low, high = format(min(values), form), format(max(values), form)
    return f"{statistics.median(values):{form}} ({low} to {high})"


def print_limit(args, limit, rows):
    def column(name):
        return [row[name] for row in rows]
    print(f"\nlimit {limit / 1e9:.2f} GB, budget {(limit - args.spare) / 1e9:.2f} GB, "
          f"{args.threads} threads, medians of {len(rows)} rounds")
    for test in ("decode", "prefill"):
        line = f"  {test:8} {show(column(test), '.1f')} tok/s"
        if "llama_decode" in rows[0]:
            peer = column("llama_" + test)
            ratio = statistics.median(column(test)) / statistics.median(peer)
            ratios = [a / b for a, b in zip(column(test), peer)]
            line += (f", llama.cpp {show(peer, '.2f')}: {ratio:.2f} times "
                     f"({min(ratios):.2f} to {max(ratios):.2f})")
        print(line)
    reads = f"{show([r / 1e9 for r in column('read_bytes_per_s')], '.2f')} GB/s in decode"
    if None not in column("fio_bytes_per_s"):
        shares = [100 * row["read_bytes_per_s"] / row["fio_bytes_per_s"] for row in rows]
        reads += f", {show(shares, '.0f')} % of fio"
    shares = [percent for percent in column("limit_percent") if percent is not None]
    share = f"{show(shares, '.0f')} % of" if shares else "faster than"
    print(f"  reads    {reads}; {share} the overlapped limit, "
          f"bound by {' or '.join(sorted(set(column('bound_by'))))}")
    print(f"  memory   at most {max(column('held_bytes')) / 1e9:.2f} GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("flashmoe")
    parser.add_argument("llama_bench")
    parser.add_argument("fmoe")
    parser.add_argument("gguf")
    parser.add_argument("--limit", help="bytes, separated by commas")
    parser.add_argument("--spare", type=int, default=50_000_000,
                        help="what the limit has beyond our budget")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stretches", type=int, default=6)
    parser.add_argument("--skip", choices=["llama.cpp"], help="measure the other alone")
    args = parser.parse_args()
    cgroup.need_root()
    n_bytes = sum(p.stat().st_size for p in pathlib.Path(args.fmoe).iterdir())
    limits = ([int(word) for word in args.limit.split(",")] if args.limit
              else [n_bytes // 4, n_bytes // 2])
    shape = json.loads(subprocess.run([args.flashmoe, "inspect", args.fmoe, "--json"], check=True,
                                      capture_output=True, text=True).stdout)
    args.expert_bytes = shape["expert_bytes"]
    rows = {limit: [] for limit in limits}
    readahead = readahead_of(args.gguf)
    before = readahead.read_text()
    readahead.write_text(READAHEAD_KB)
    try:
        for i in range(args.rounds):
            for limit in limits:
                rows[limit].append(measure(args, limit))
                print(f"round {i + 1}, limit {limit}: " +
                      json.dumps(rows[limit][-1]), file=sys.stderr, flush=True)
    finally:
        readahead.write_text(before)
    for limit in limits:
        print_limit(args, limit, rows[limit])


if __name__ == "__main__":
    main()
