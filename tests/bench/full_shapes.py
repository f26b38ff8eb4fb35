#!/usr/bin/env python3
"""Plans large models whole, and runs them in 8 GiB with fewer layers.

usage: full_shapes.py FLASHMOE FOLDER TRACES [SHAPE...]

FOLDER needs about 20 GB; each model is removed before the next one is written. TRACES is a folder
with recordings of routes: gptoss.route.csv and qwen.route.csv. Prints a line for each shape: what
`plan` says of the whole model for 8 GiB, and of the run the speed, its share of the limit, and the
largest resident memory beside the budget.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUDGET = 8 << 30
# shape: layers of the run, recording
SHAPES = {"gpt-oss-120b": (8, "gptoss"), "glm-4.5-air": (14, "qwen"), "deepseek-v3": (5, "qwen")}
N_TOKENS = 48


def output_of(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


def plan(program, folder, shape):
    """Returns the smallest budget of the whole model, and the predicted speed or None."""
    path = pathlib.Path(folder) / "whole.fmoe"
    subprocess.run([program, "synth", shape, path, "--headers-only", "-q"], check=True)
    done = output_of(program, "plan", path, "--memory", "8G", "--disk-speed", "5",
                     "--memory-speed", "60", "--context", "4096", "--json", "-q")
    shutil.rmtree(path)
    if done.returncode != 0:
        return done.stderr.rstrip().rsplit("--memory ", 1)[1], None
    found = json.loads(done.stdout)
    limit = found["budgets"][found["chosen"]]["limit"]
    return f"{found['min_bytes'] >> 20}M", limit["overlapped_tok_per_s"]


def run(program, folder, shape, traces):
    """Returns the size of the model, what `bench decode` says, and the largest resident memory."""
    layers, trace = SHAPES[shape]
    path = pathlib.Path(folder) / "few.fmoe"
    subprocess.run([program, "synth", shape, path, "--layers", str(layers), "-q"], check=True)
    try:
        n_bytes = sum(file.stat().st_size for file in path.iterdir())
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen(
                [program, "bench", "decode", path, "--memory", str(BUDGET), "--routes",
                 f"{traces}/{trace}.route.csv", "--tokens", str(N_TOKENS), "--repeat", "1",
                 "--gpu", "off", "--json", "-q"], stdout=out)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0:
                raise SystemExit(f"{shape}: bench decode failed")
            out.seek(0)
            return n_bytes, json.load(out), usage.ru_maxrss << 10
    finally:
        shutil.rmtree(path)


def main():
    program, parent, traces = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        for shape in sys.argv[4:] or SHAPES:
            least, whole = plan(program, folder, shape)
            predicted = "needs more" if whole is None else f"{whole:.2f} tok/s"
            n_bytes, found, resident = run(program, folder, shape, traces)
            limit = found["limit"]
            share = "no share" if limit["percent"] is None else f"{limit['percent']:.1f} %"
            print(f"{shape}: whole, 8 GiB: {predicted}, smallest budget {least}; "
                  f"{SHAPES[shape][0]} layers, {n_bytes / 1e9:.1f} GB: "
                  f"{found['tok_per_s']:.2f} tok/s, {share} of the limit ({limit['bound_by']}), "
                  f"hits {100 * found['hit_rate']:.1f} %, resident {resident / 2 ** 30:.3f} of "
                  f"{BUDGET / 2 ** 30:.0f} GiB", flush=True)
            if resident > BUDGET:
                sys.exit(f"{shape}: {resident} bytes are more than the budget")


if __name__ == "__main__":
    main()
