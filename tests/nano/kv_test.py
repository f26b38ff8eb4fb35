"""kv_test.py PROGRAM NANO HELDOUT [FORMAT...]: what keys and values in fewer bits cost on nano's
eight held-out texts, 8 windows of 512 tokens of each. rot8, the default, must be within 0.002 nats
per token of f16 on every one; other formats are only printed. Skipped (77) without the texts."""

import json
import pathlib
import subprocess
import sys

TEXTS = "en_story en_prose code_python code_c zh ja math chat".split()
TOLERANCE = 0.002


def main():
    program, model, heldout = sys.argv[1:4]
    if not pathlib.Path(heldout).is_dir():
        print(f"skipped: there is no {heldout}")
        sys.exit(77)
    status = 0
    for kv in sys.argv[4:] or ["rot8"]:
        costs = []
        for text in TEXTS:
            done = subprocess.run([program, "eval", "nll", model, f"{heldout}/{text}.jsonl",
                                   "--windows", "8", "--kv", kv, "-q", "--json"],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)
            costs.append(json.loads(done.stdout)["cost_nats_per_token"])
            is_far = kv == "rot8" and abs(costs[-1]) > TOLERANCE
            status |= is_far
            print(f"{kv} {text} {costs[-1]:+.5f}{' TOO FAR' if is_far else ''}")
        print(f"{kv} mean {sum(costs) / len(costs):+.5f}", flush=True)
    sys.exit(status)


main()
