#!/usr/bin/env python3
"""Compares the block formats of src/quant, live, with the `gguf` package and with `ml_dtypes`.

Run by hand: pip install gguf numpy ml_dtypes
             tests/oracle/compare_gguf_blocks.py [--blocks 20000] [--seed N] [--cc CC]

Builds src/quant and quant_shim.c into a temporary shared object. Per format it prints how many
blocks it compared, bit for bit, and how many differ; exits 1 if any does. The blocks are random
bytes; their f16 scales are zeros, denormals or anything finite, of either sign. Rows to encode are
random_rows of make_gguf_golden.py and normally distributed ones. Not compared, because the oracle
is not defined there: NaN payloads, and for mxfp4 rows whose maximum is one of the last few floats
before a power of two (see mxfp4.c); their number is printed as skipped.
"""
import argparse
import ctypes
import glob
import importlib.metadata
import os
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "quant"))
import make_gguf_golden as golden  # noqa: E402

SCALE_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def build(cc, folder):
    sources = [path for path in sorted(glob.glob(os.path.join(ROOT, "src/quant/*.c")))
               if not path.endswith("_test.c")]
    library = os.path.join(folder, "quant.so")
    subprocess.run([cc, "-std=c11", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-I",
                    os.path.join(ROOT, "src"), "-o", library,
                    os.path.join(HERE, "quant_shim.c"), *sources], check=True)
    return ctypes.CDLL(library)


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def decode_mine(library, name, part0, part1, n):
    mine = np.empty(n, np.float32)
    status = library.shim_decode(name.encode(), pointer(part0), pointer(part1), pointer(mine),
                                 ctypes.c_size_t(n))
    if status != 0:
        sys.exit(f"compare: no format {name}")
    return mine


def count_different(mine, theirs, n_blocks):
    """Returns the number of blocks that differ in any bit; all NaNs are equal."""
    same = mine.view(np.uint32) == theirs.view(np.uint32)
    same |= np.isnan(mine) & np.isnan(theirs)
    return int((~same.reshape(n_blocks, -1)).any(axis=1).sum())


def compare_decode(library, name, n, rng):
    columns, size = golden.sizes(name)
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    golden.tame_halves(name, blocks)
    theirs = golden.decode(name, blocks).reshape(-1)
    return n, count_different(decode_mine(library, name, blocks, blocks, n * columns), theirs, n)


def rows_to_encode(n, rng):
    made = golden.random_rows(int(rng.integers(1 << 32)), n // 2)
    sizes = 2.0 ** rng.integers(-28, 18, (n - n // 2, 1))
    normal = rng.normal(0, 1, (n - n // 2, 32)) * sizes + rng.integers(-1, 2, (len(sizes), 1))
    return np.concatenate([made, normal.astype(np.float32), golden.edge_rows()])


def compare_encode(library, name, n, rng):
    rows = rows_to_encode(n, rng)
    n_made = len(rows)
    if name == "mxfp4":
        rows = rows[golden.in_mxfp4_range(rows) & golden.exponents_are_exact(rows)]
    theirs = golden.encode(name, rows)
    mine = np.empty_like(theirs)
    if library.shim_encode(name.encode(), pointer(rows), pointer(mine),
                           ctypes.c_size_t(rows.size)) != 0:
        sys.exit(f"compare: {name} has no encoder")
    return len(rows), int((mine != theirs).any(axis=1).sum()), n_made - len(rows)


def compare_fp8(library, scale_format, n, rng):
    codes = rng.integers(0, 256, (n, 128), dtype=np.uint8)
    dtype = SCALE_TYPES[scale_format]
    scales = rng.normal(0, 1, n) * 2.0 ** rng.integers(-20, 8, n)
    scales = (scales * rng.integers(0, 5, n).astype(bool)).astype(np.float32).astype(dtype)
    theirs = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    theirs = (theirs * scales.astype(np.float32).reshape(n, 1)).reshape(-1)
    mine = decode_mine(library, f"fp8-b128-{scale_format}", codes, scales, codes.size)
    return n, count_different(mine, theirs, n)


def main():
    parser = argparse.ArgumentParser(description="Block formats against the gguf package.")
    parser.add_argument("--blocks", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()
    print(", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("gguf", "numpy", "ml_dtypes")),
          f"seed {options.seed}", sep=", ")
    rng = np.random.default_rng(options.seed)
    total = 0

    def report(what, compared, different, skipped=0):
        nonlocal total
        total += different
        note = f", {skipped} skipped" if skipped else ""
        print(f"{what:22} {compared:6} blocks, {different} different{note}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        library = build(options.cc, folder)
        for name in sorted(golden.HALVES):
            report(f"decode {name}", *compare_decode(library, name, options.blocks, rng))
        for name in golden.ENCODED:
            report(f"encode {name}", *compare_encode(library, name, options.blocks, rng))
        for scale_format in SCALE_TYPES:
            report(f"decode fp8-b128-{scale_format}",
                   *compare_fp8(library, scale_format, options.blocks, rng))
    print(f"compare: {total} different")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
