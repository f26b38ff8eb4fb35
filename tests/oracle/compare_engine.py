#!/usr/bin/env python3
"""Compares the engine with transformers for every converted model below OUT (see README.md here).

usage: compare_engine.py BUILD OUT [WORDS...]

BUILD is the build folder. BUILD/tests/oracle/logits_test runs the model of each
OUT/expected/LABEL.json. Every logit must be within 1e-5 of the logits' spread of transformers in
float64 with the same weights, and the greedy continuation must be the same. Formats whose kernels
round activations to 8 bits (MLX's affine groups) are run twice: packed to f32, which rounds
nothing, with that tolerance; and unchanged, within half the format's own error or a twentieth of
the logits' size. Models in formats that the engine does not read are listed. With WORDS, only
labels that contain one of them are run. Exit status 1 if one differs.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

TOLERANCE = "1e-5"  # relative to the largest logit minus the smallest
AS_F32 = ["--experts", "f32", "--dense", "f32", "--embed", "f32", "--head", "f32"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def is_rounded(program, model):
    status, text = run(program, "inspect", model, "--json")
    if status != 0:
        return None, text.strip()
    return any(f["name"].startswith(("affine", "mxfp4")) for f in json.loads(text)["formats"]), ""


def largest(text):
    return " | ".join(line.strip() for line in text.splitlines() if "tokens:" in line)


def compare(build, out, label):
    """Returns None if the engine does not read the format, otherwise whether it agrees."""
    program, logits_test = build / "flashmoe", build / "tests" / "oracle" / "logits_test"
    expected = out / "expected" / f"{label}.json"
    described = json.load(open(expected))
    model = out / described["model"]
    rounded, why = is_rounded(program, model)
    if rounded is None:
        print(f"NOT READ {label}: {why}")
        return None
    if not rounded:
        status, text = run(logits_test, TOLERANCE, model, expected)
        print(f"{'ok' if status == 0 else 'FAILED':8} {label}: {largest(text) or text}", flush=True)
        return status == 0
    with tempfile.TemporaryDirectory() as folder:
        packed = pathlib.Path(folder) / "f32.fmoe"
        status, text = run(program, "pack", "--quiet", model, packed, *AS_F32)
        if status == 0:
            status, text = run(logits_test, TOLERANCE, packed, expected)
        shutil.rmtree(packed, ignore_errors=True)
    print(f"{'ok' if status == 0 else 'FAILED':8} {label} as f32: {largest(text) or text}")
    original = out / "expected" / f"{described['checkpoint']}-hf.json"
    rounded_status, text = run(logits_test, original, model, expected)
    print(f"{'ok' if rounded_status == 0 else 'FAILED':8} {label}: {largest(text) or text}",
          flush=True)
    return status == 0 and rounded_status == 0


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    labels = sorted(path.stem for path in (out / "expected").glob("*.json"))
    if sys.argv[3:]:
        labels = [label for label in labels if any(word in label for word in sys.argv[3:])]
    results = [compare(build, out, label) for label in labels]
    print(f"{results.count(True)} agree, {results.count(False)} differ, "
          f"{results.count(None)} not read")
    sys.exit(results.count(False) > 0 or results.count(True) == 0)


if __name__ == "__main__":
    main()
