#!/usr/bin/env python3
"""Compares this engine with llama.cpp on one machine: decode and prefill.

usage: compare_llama.py FLASHMOE LLAMA_BENCH MODEL.fmoe MODEL.gguf [--threads 2] [--repeat 5]
                        [--tests decode,prefill] [--llama=FLAGS] [--env NAME=VALUE] [--json FILE]

The two models have one shape and as many bits per weight in each class of tensors, for instance
    flashmoe synth coder-next MODEL.fmoe --layers 8 --experts 64
    flashmoe synth coder-next MODEL.gguf --layers 8 --experts 64 --experts-format q4_k \
        --dense-format q4_0 --embed-format q4_0 --head-format q4_0
where every large matrix has 4.5 bits; the first lines printed say what one token reads of each.

Each of --repeat rounds measures in turns ours and theirs:
    decode    --decode-tokens tokens one by one, for both behind a context of the same length
    prefill   --prefill-tokens tokens as one prompt
A program opens the model, warms up uncounted, and is measured twice; the median of the two is the
round's figure. Everything is resident: of ours only stretches count in which every expert was in
the cache, and the comparison stops where there are none. Printed are the medians of the rounds
with the lowest and the highest, the ratio of the medians and, where `flashmoe bench` reports it,
the share of its limit it reached (of the memory's bandwidth in decode, of int8 arithmetic in
prefill) and the bandwidth.

A run during which others took more than a tenth of a processor is done again, --tries times in
all, each after waiting at most --wait seconds for a quiet machine; the least disturbed one counts.
`others` is the processors they had in the runs that count, with what a hypervisor took.

To build the peer: its source lies in the PyPI sdist of llama-cpp-python (0.3.36 was used).
    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
    tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B peer -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DGGML_CPU_REPACK=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
    ninja -C peer llama-bench
Its best form may differ between the tests: without GGML_CPU_REPACK a prompt's q4_k experts are
multiplied in tiles, 1.7 times as fast as in its repacked form; in decode the two are within noise
on one thread. So compare decode (--tests decode) with a build that leaves the option out too,
and with q4_0 experts. AMX takes the q4_0 of the rest and makes decode 1.4 times as fast.
On a processor with AMX, what gcc 12 makes of it dies of an illegal instruction at the first
`tilezero`: that compiler's _tile_loadconfig() names 8 of the 64 bytes it reads, so the stores of
the others are dropped. Write
    __asm__ volatile("" : : "r"(&tc) : "memory");
before the call in ggml/src/ggml-cpu/amx/mmq.cpp, or use clang.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

QUIET = 0.1  # processors that other processes may use during a run
COUNTED = 2  # measurements of a run, after the warm-up
# What `flashmoe bench` may report: the share of the limit of memory or of int8 arithmetic.
REPORTED = ("limit_percent", "memory_read_gb_per_s", "int8_percent", "cpu_level")


def busy_seconds():
    """Returns the work of all processors, including what a hypervisor took; None if unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, stolen = ticks
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(seconds):
    end = time.monotonic() + seconds
    before = busy_seconds()
    while before is not None and time.monotonic() < end:
        time.sleep(1)
        now = busy_seconds()
        if now - before < QUIET / 2:
            return
        before = now


def run(command, environment=None):
    """Returns the command's JSON output, and the processors that others used in the meantime."""
    begin, before, own = time.monotonic(), busy_seconds(), sum(os.times()[:4])
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
    others = None
    if before is not None:
        worked = busy_seconds() - before - (sum(os.times()[:4]) - own)
        others = max(0, worked / (time.monotonic() - begin))
    return json.loads(done.stdout), others


def run_ours(args, test):
    """Returns tok/s of each stretch that counts, and what else is known of the run."""
    result, others = run([args.flashmoe, "bench", test, args.fmoe, "--json", "--quiet",
                          "--tokens", str(args.tokens[test]), "--repeat", str(1 + COUNTED),
                          "--threads", str(args.threads), *shlex.split(args.ours)])
    rows = (result.get("stretches") or result.get("prompts"))[-COUNTED:]
    speeds = [row["tok_per_s"] for row in rows if row.get("hit_rate", 1) == 1]
    if not speeds:
        sys.exit(f"{args.fmoe}: {test} never found every expert in the cache; "
                 "give more --decode-tokens, or more memory")
    # Where the stretches that count begin on average.
    args.depth = result.get("n_prompt_tokens", 0) + args.tokens[test] * (1 + COUNTED) // 2
    result["limit_percent"] = result.get("limit", {}).get("percent")
    return speeds, others, {key: result.get(key) for key in REPORTED}


def run_theirs(args, test):
    sizes = (["-p", "0", "-n", str(args.tokens[test]), "-d", str(args.depth)] if test == "decode"
             else ["-p", str(args.tokens[test]), "-n", "0"])
    result, others = run([args.llama_bench, "-m", args.gguf, "-o", "json", "-r", str(COUNTED),
                          "-t", str(args.threads), *sizes, *shlex.split(args.llama)],
                         dict(pair.split("=", 1) for pair in args.env))
    if len(result) != 1:
        sys.exit("--llama may give one value of each flag only")
    return result[0]["samples_ts"], others, {}


PROGRAMS = {"flashmoe": run_ours, "llama.cpp": run_theirs}


def measure(args, name, test):
    """Returns the least disturbed of a few runs."""
    runs = []
    for _ in range(args.tries):
        wait_until_quiet(args.wait)
        speeds, others, more = PROGRAMS[name](args, test)
        runs.append({"tok_per_s": statistics.median(speeds), "others": others, **more})
        if others is None or others <= QUIET:
            return runs[-1]
        print(f"  {name} {test}: {runs[-1]['tok_per_s']:.2f} tok/s, but others had {others:.2f} "
              "processors", file=sys.stderr, flush=True)
    return min(runs, key=lambda row: row["others"])


def measure_all(args, tests):
    rows = {test: {name: [] for name in PROGRAMS} for test in tests}
    for i in range(args.repeat):
        for test in tests:
            for name in PROGRAMS:
                row = measure(args, name, test)
                rows[test][name].append(row)
                print(f"round {i + 1} of {args.repeat}: {test} {name} {row['tok_per_s']:.2f} tok/s",
                      file=sys.stderr, flush=True)
    return rows


def median_of(rows, key):
    """Returns None unless every row has it."""
    values = [row.get(key) for row in rows]
    return None if None in values else statistics.median(values)


def summarise(rows):
    speeds = [row["tok_per_s"] for row in rows]
    others = [row["others"] for row in rows]
    return {"tok_per_s": statistics.median(speeds), "tok_per_s_min": min(speeds),
            "tok_per_s_max": max(speeds), "others_max": None if None in others else max(others),
            "cpu_level": rows[0].get("cpu_level"),
            **{key: median_of(rows, key) for key in REPORTED if key != "cpu_level"}}


def print_table(summary, ratios):
    def text(value, form):
        return "-" if value is None else format(value, form)
    print(f"{'test':8} {'program':10} {'tok/s':>8} {'lowest':>8} {'highest':>8} {'ratio':>6} "
          f"{'of limit':>9} {'GB/s':>7} {'others':>7}")
    for test, programs in summary.items():
        for name, row in programs.items():
            limit = row["int8_percent" if test == "prefill" else "limit_percent"]
            ratio = f"{ratios[test]:.2f}" if name == "flashmoe" else ""
            print(f"{test:8} {name:10} {row['tok_per_s']:8.2f} {row['tok_per_s_min']:8.2f} "
                  f"{row['tok_per_s_max']:8.2f} {ratio:>6} "
                  f"{text(limit and limit / 100, '.1%'):>9} "
                  f"{text(row['memory_read_gb_per_s'], '.1f'):>7} "
                  f"{text(row['others_max'], '.2f'):>7}")
    others = [row["others_max"] for programs in summary.values() for row in programs.values()]
    if None not in others and max(others) > QUIET:
        print(f"Others had up to {max(others):.2f} processors: these are not the figures of a "
              "quiet machine, and threads that wait for each other suffer most.")


def token_bytes(args, model):
    result, _ = run([args.flashmoe, "inspect", model, "--json"])
    keys = ("expert_token_bytes", "dense_token_bytes", "n_parameters", "architecture")
    row = {key: result[key] for key in keys}
    print(f"{model}: one token reads {row['expert_token_bytes']:,} bytes of experts and "
          f"{row['dense_token_bytes']:,} of the rest")
    return row


def find_tests(args):
    """Returns the requested tests that this build of flashmoe has."""
    tests = []
    for test in args.tests.split(","):
        if test not in args.tokens:
            sys.exit(f"--tests: there is no '{test}'; there is {' and '.join(args.tokens)}")
        probe = subprocess.run([args.flashmoe, "bench", test, "--help"], capture_output=True,
                               check=False)
        if probe.returncode == 0:
            tests.append(test)
        else:
            print(f"note: this flashmoe has no 'bench {test}'", file=sys.stderr)
    if not tests:
        sys.exit("there is nothing to measure")
    return tests


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("flashmoe")
    parser.add_argument("llama_bench")
    parser.add_argument("fmoe")
    parser.add_argument("gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--tests", default="decode,prefill")
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--ours", default="", help="more options of flashmoe bench, as one word")
    parser.add_argument("--llama", default="", help="more flags of llama-bench, as one word")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for llama-bench")
    parser.add_argument("--wait", type=float, default=120, help="seconds at most, before a run")
    parser.add_argument("--tries", type=int, default=3, help="runs until one is undisturbed")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    args = parser.parse_args()
    args.tokens = {"decode": args.decode_tokens, "prefill": args.prefill_tokens}
    models = {model: token_bytes(args, model) for model in (args.fmoe, args.gguf)}
    tests = find_tests(args)
    rows = measure_all(args, tests)
    summary = {test: {name: summarise(rows[test][name]) for name in PROGRAMS} for test in tests}
    ratios = {test: summary[test]["flashmoe"]["tok_per_s"] / summary[test]["llama.cpp"]["tok_per_s"]
              for test in tests}
    print(f"{args.threads} threads, medians of {args.repeat} rounds; decode of "
          f"{args.decode_tokens} tokens, prefill of {args.prefill_tokens}:")
    print_table(summary, ratios)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"threads": args.threads, "repeat": args.repeat, "tokens": args.tokens,
                       "llama_flags": args.llama, "models": models, "summary": summary,
                       "ratio": ratios, "rounds": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
