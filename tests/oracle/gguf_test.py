#!/usr/bin/env python3
"""Holds the frozen GGUF files to transformers' logits for exactly their weights.

usage: gguf_test.py LOGITS_TEST

Block formats are decoded to float32, so every logit of every file is within 1e-4 and every greedy
continuation is the same (docs/decisions/0004). Standard library only.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

FROZEN = pathlib.Path(__file__).resolve().parent / "frozen"
TOLERANCE = "1e-4"


def prompts(golden):
    """The rows of the greedy prompt are the first ones of input_ids, which begins with it."""
    whole, start = golden["input_ids"], golden["greedy_prompt"]
    if whole[:len(start)] != start:
        sys.exit("greedy_prompt is not how input_ids begins")
    return [{"label": "input_ids", "ids": whole, "first_row": 0, "greedy": [],
             "greedy_margin": []},
            {"label": "greedy_prompt", "ids": start, "first_row": 0,
             "greedy": golden["greedy_continuation"], "greedy_margin": golden["greedy_margin"]}]


def check(program, model, folder):
    golden = json.loads(model.with_suffix(".json").read_text())
    expected = folder / f"{model.stem}.json"
    expected.write_text(json.dumps({"vocab": golden["vocab"], "prompts": prompts(golden)}))
    shutil.copyfile(model.with_suffix(".f32"), expected.with_suffix(".f32"))
    done = subprocess.run([program, TOLERANCE, model, expected], check=False)
    return done.returncode != 0


def main():
    models = sorted(FROZEN.glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        failed = [m.name for m in models if check(sys.argv[1], m, pathlib.Path(folder))]
    print(f"{len(models) - len(failed)} passed, {len(failed)} failed", *failed)
    return bool(failed) or not models


if __name__ == "__main__":
    sys.exit(main())
