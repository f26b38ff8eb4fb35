#!/usr/bin/env python3
"""Compares the engine with transformers' results for the trained nano checkpoint.

usage: nano_test.py --data DIR --unpack-to DIR [--short] [--model PATH] [--bits N...]
                    {greedy,budgets,nll,packed,same-bits} PROGRAM

greedy     the twelve greedy answers of nano_golden.json, token by token
budgets    the program long_run: the same answers, and one of 20 tokens, at five budgets from the
           smallest allowed to one that holds everything
nll        nats per token of the eight held-out domains, within 0.002 of transformers in bf16
packed     the same with the experts packed to affine groups of --bits (4, 3 and 2 unless given),
           against transformers with experts of those bits: within 0.01 at 4, 0.02 below
same-bits  the program same_bits on nano, with the one hash that every machine must give

With --short, for the first tier of tests and for sanitizers: one window of 64 tokens per domain,
held to what an optimised build gives with keys and values in f32, and fewer combinations of threads
and chunks.

--model: the same weights in another form, such as a GGUF file in bf16.

Exit status 77 (skipped) when DIR has no nano checkpoint.
"""
import argparse
import fcntl
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

NLL_TOLERANCE = 0.002
PACKED_TOLERANCE = {4: 0.01, 3: 0.02, 2: 0.02}
SHORT_NLL = {
    "en_story": 0.655814,
    "en_prose": 1.994825,
    "code_python": 1.898717,
    "code_c": 2.294712,
    "zh": 3.161777,
    "ja": 4.193773,
    "math": 0.389702,
    "chat": 0.386206,
}
SHORT_TOLERANCE = 2e-6
LOGITS_HASH = "3e7cfb19656a149019d6d579cd992b6d"


class Joined:
    """Reads the parts of a split file as one stream."""

    def __init__(self, paths):
        self.paths = list(paths)
        self.file = open(self.paths.pop(0), "rb")

    def read(self, n):
        data = self.file.read(n)
        while not data and self.paths:
            self.file.close()
            self.file = open(self.paths.pop(0), "rb")
            data = self.file.read(n)
        return data


def unpack(data, folder):
    """Returns the Hugging Face directory, unpacked once per build; tests may run concurrently."""
    parts = sorted(data.glob("nano-hf.tar.xz.*"))
    if not parts:
        print(f"skipped: {data} has no nano-hf.tar.xz.*")
        sys.exit(77)
    with open(folder / "nano.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "nano.unpacked"
        if not done.exists():
            with tarfile.open(fileobj=Joined(parts), mode="r|xz") as archive:
                archive.extractall(folder)
            done.touch()
    return folder / "hf"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
    return done.stdout


def greedy(program, model, original, golden):
    stop = set(json.load(open(original / "generation_config.json"))["eos_token_id"])
    n_failed = 0
    for case in golden["prompts"]:
        want = case["greedy"]
        answer = json.loads(run([program, "run", str(model), "-p", case["prompt"], "--greedy",
                                 "-n", str(len(want)), "--json"]))
        got = answer["tokens"]
        ended = answer["stop_reason"] == ("stop" if want[-1] in stop else "length")
        same = got == want and ended and answer["n_prompt_tokens"] == len(case["ids"])
        n_equal = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
        print(f"{'ok' if same else 'FAILED':6} {case['name']}: {n_equal} of {len(want)} tokens")
        n_failed += not same
    print(f"{len(golden['prompts']) - n_failed} passed, {n_failed} failed")
    return n_failed


def budgets(program, model, golden):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for case in golden["prompts"]:
            for ids in case["ids"], case["greedy"]:
                print(len(ids), *ids, file=file)
        file.flush()
        print(run([program, "budgets", str(model), "20", file.name]))


def nll(program, model, references, heldout, windows, tolerance):
    n_failed = 0
    for domain, want in references.items():
        result = json.loads(run([program, "eval", "nll", str(model),
                                 str(heldout / f"{domain}.jsonl"), *windows, "--json"]))
        got = result["nats_per_token"]
        same = abs(got - want) <= tolerance
        print(f"{'ok' if same else 'FAILED':6} {domain}: {got:.6f}, expected {want:.6f}, "
              f"difference {got - want:+.6f}")
        n_failed += not same
    print(f"{len(references) - n_failed} passed, {n_failed} failed")
    return n_failed


def packed(program, original, folder, golden, heldout, bits):
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model = pathlib.Path(scratch) / f"nano-{bits}.fmoe"
        run([program, "pack", "--quiet", str(original), str(model), "--experts",
             f"affine{bits}-g64"])
        return nll(program, model, golden[f"nll_affine{bits}_g64_experts"], heldout,
                   ["--windows", "8"], PACKED_TOLERANCE[bits])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--unpack-to", type=pathlib.Path, required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--bits", type=int, action="append", choices=sorted(PACKED_TOLERANCE))
    parser.add_argument("test", choices=["greedy", "budgets", "nll", "packed", "same-bits"])
    parser.add_argument("program")
    args = parser.parse_args()
    original = unpack(args.data, args.unpack_to)
    model = args.model or original
    golden = json.load(open(args.data / "nano_golden.json"))
    if args.test == "greedy":
        sys.exit(greedy(args.program, model, original, golden) > 0)
    if args.test == "budgets":
        return budgets(args.program, model, golden)
    if args.test == "packed":
        terms = args.unpack_to, golden, args.data / "heldout"
        sys.exit(sum(packed(args.program, original, *terms, bits)
                     for bits in args.bits or [4, 3, 2]) > 0)
    if args.test == "nll":
        if args.short:
            terms = SHORT_NLL, args.data / "heldout", ["--windows", "1", "--window", "64", "--kv",
                                                       "f32"]
            sys.exit(nll(args.program, model, *terms, SHORT_TOLERANCE) > 0)
        terms = golden["nll_bf16"], args.data / "heldout", ["--windows", "8"]
        sys.exit(nll(args.program, model, *terms, NLL_TOLERANCE) > 0)
    print(run([args.program, str(model), LOGITS_HASH, "5" if args.short else "1"]))


if __name__ == "__main__":
    main()
