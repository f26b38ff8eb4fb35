#!/usr/bin/env python3
"""Writes affine_mlx.bin: rows quantised by MLX itself, the oracle for src/quant/affine.c.

Needs `pip install "mlx[cpu]" numpy`. Layout, little-endian, for every record:
  u32 bits, group, is_f16, n_columns; f32 row[n]; codes[n*bits/8]; u16 scales[n/group];
  u16 biases[n/group]; f32 decoded[n]
"""
import struct
import sys

import mlx.core as mx
import numpy as np

N = 256
rng = np.random.default_rng(7)


def row(kind):
    if kind == 0:
        return rng.normal(0, 0.02, N)
    if kind == 1:
        return np.abs(rng.normal(0, 1, N)) + 0.5
    return np.where(rng.random(N) < 0.9, 0.0, -rng.random(N) * 3)


with open(sys.argv[1] if len(sys.argv) > 1 else "tests/quant/affine_mlx.bin", "wb") as out:
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for is_f16 in (0, 1):
                kind = rng.integers(0, 3)
                dtype = mx.float16 if is_f16 else mx.bfloat16
                w = mx.array(row(kind).astype(np.float32)).reshape(1, N).astype(dtype)
                codes, scales, biases = mx.quantize(w, group, bits)
                back = mx.dequantize(codes, scales, biases, group, bits).astype(mx.float32)
                out.write(struct.pack("<4I", bits, group, is_f16, N))
                out.write(np.array(w.astype(mx.float32), dtype="<f4").tobytes())
                out.write(np.array(codes, dtype="<u4").tobytes())
                for a in (scales, biases):
                    out.write(np.array(a.view(mx.uint16), dtype="<u2").tobytes())
                out.write(np.array(back, dtype="<f4").tobytes())
