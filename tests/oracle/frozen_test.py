#!/usr/bin/env python3
"""Compares the frozen files with transformers' logits for exactly their weights.

usage: frozen_test.py LOGITS_TEST FLASHMOE

Every logit is within 1e-5 of the spread of the logits, and every greedy continuation is the same.
Quantised models are packed to f32 first, since products with codes round activations
(docs/decisions/0004); FP8 has no codes and is compared both ways. Standard library only.
"""
import pathlib
import subprocess
import sys
import tempfile

FROZEN = pathlib.Path(__file__).resolve().parent / "frozen"
TOLERANCE = "1e-5"  # relative to the largest logit minus the smallest
AS_F32 = ["--experts", "f32", "--dense", "f32", "--embed", "f32", "--head", "f32"]


def agrees(logits_test, flashmoe, expected):
    source = expected.with_suffix(".gguf")
    if not source.exists():
        source = expected.parent / expected.stem
    has_floats = source.stem.endswith("-bf16") and "mxfp4" not in source.stem
    if has_floats or source.stem.endswith("-fp8"):
        done = subprocess.run([logits_test, TOLERANCE, source, expected])
        if has_floats or done.returncode != 0:
            return done.returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        packed = pathlib.Path(folder) / f"{expected.stem}.fmoe"
        subprocess.run([flashmoe, "pack", "--quiet", source, packed, *AS_F32], check=True)
        return subprocess.run([logits_test, TOLERANCE, packed, expected]).returncode == 0


def main():
    frozen = sorted(FROZEN.glob("*.json"))
    failed = [f.stem for f in frozen if not agrees(sys.argv[1], sys.argv[2], f)]
    print(f"{len(frozen) - len(failed)} passed, {len(failed)} failed", *failed)
    return bool(failed) or not frozen


if __name__ == "__main__":
    sys.exit(main())
