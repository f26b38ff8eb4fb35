#!/usr/bin/env python3
"""Compares how well the model families stream: the share of the limit that each one's shape reaches
with a quarter of its experts in memory, beside that of Coder-Next's shape.

usage: family_streaming.py FLASHMOE FOLDER [--shapes NAME,...] [--bytes 3e9] [--rounds 3]
                           [--routes gen]

Every shape has the widths and the number of experts of the real model and so many layers that its
experts take about --bytes. The models are made in FOLDER and removed again; it needs room for two.
In every round the reference and the shape decode in turns, each in a new process that reads past
the page cache. `flashmoe help bench decode` defines the limit; the speeds of disk and memory in it
are measured in the same run. Printed are the medians with the lowest and the highest, what binds,
and the ratio of the medians. "busy" counts runs in which other programs slowed the measurement of
memory: their shares mean little.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

REFERENCE = "coder-next"
SHAPES = ("gpt-oss-20b,gpt-oss-120b,glm-4.5-air,glm-4.5,glm-4.7-flash,deepseek-v3,kimi-k2,"
          "minimax-m2,olmoe-1b-7b,mixtral-8x7b,qwen1.5-moe-a2.7b,57b-a14b,30b-a3b,35b-a3b")


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Model:
    """A synthetic model with a budget for a quarter of its experts. A context manager."""

    def __init__(self, args, shape):
        self.args, self.shape = args, shape
        self.path = args.folder / f"{shape}.fmoe"

    def synth(self, layers, *more):
        return run([self.args.flashmoe, "synth", self.shape, self.path, "--layers", layers,
                    "--json", "--quiet", *more])

    def __enter__(self):
        """Takes so many layers that the experts have the size asked for. The first ones may have
        none, so two sizes tell what a layer adds."""
        few, many = (self.synth(n, "--dry-run")["experts_bytes"] for n in (4, 8))
        layer = (many - few) // 4
        self.layers = max(4, 4 + round((self.args.bytes - few) / layer))
        made = self.synth(self.layers)
        plan = run([self.args.flashmoe, "plan", self.path, "--gpu", "off", "--json"])
        whole = next(row for row in plan["budgets"] if row["what"] == "every expert fits")
        quarter = whole["memory_budget_bytes"] - made["experts_bytes"] * 3 // 4
        self.budget = max(plan["min_bytes"], quarter)
        return self

    def __exit__(self, *why):
        shutil.rmtree(self.path)

    def decode(self):
        result = run([self.args.flashmoe, "bench", "decode", self.path, "--memory", self.budget,
                      "--routes", self.args.routes, "--no-heat", "--io", "direct",
                      "--gpu", "off", "--tokens", 16, "--repeat", 5, "--json"])
        limit = result["limit"]
        return {"percent": 100 * limit["tok_per_s"] / limit["overlapped_tok_per_s"],
                "was_busy": limit["was_busy"], "bound_by": limit["bound_by"],
                "hit_rate": result["hit_rate"]}


def spread(values):
    return f"{statistics.median(values):5.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flashmoe", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--bytes", type=float, default=3e9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--routes", default="gen")
    args = parser.parse_args()
    print(f"shape              layers  share of the limit, %       {REFERENCE}'s               "
          "ratio  bound by  hits  busy")
    with Model(args, REFERENCE) as reference:
        for shape in args.shapes.split(","):
            with Model(args, shape) as model:
                seen, beside = [], []
                for _ in range(args.rounds):
                    beside.append(reference.decode())
                    seen.append(model.decode())
            own = [run["percent"] for run in seen]
            others = [run["percent"] for run in beside]
            ratio = statistics.median(own) / statistics.median(others)
            print(f"{shape:18} {model.layers:6}  {spread(own):26}  {spread(others):26}"
                  f"  {ratio:5.2f}  {seen[-1]['bound_by']:8}  {seen[-1]['hit_rate']:.2f}"
                  f"  {sum(run['was_busy'] for run in seen + beside):4}", flush=True)


if __name__ == "__main__":
    main()
