#!/usr/bin/env python3
"""Writes gguf_blocks.bin: blocks decoded and rows encoded by the `gguf` package, and FP8 codes
decoded by `ml_dtypes`; the oracles for legacy.c, kquants.c, iquants.c, ternary.c, mxfp4.c and
fp8.c.

Run by hand: pip install gguf numpy ml_dtypes; tests/quant/make_gguf_golden.py [FILE]

Layout, little-endian, records until the end of the file. Each starts with u32 tag, char name[16].
  tag 1, decode: u32 block, block_bytes, n_halves, half_at[2], n_shown, n_many; u64 seed, checksum;
    u8 blocks[n_shown * block_bytes]; f32 decoded[n_shown * block]
  tag 2, encode: u32 block, block_bytes, n_shown, n_many; u64 seed, checksum;
    f32 rows[n_shown * block]; u8 blocks[n_shown * block_bytes]
  tag 3, fp8: u32 scale_bytes, n_scales; u8 scales[n_scales * scale_bytes];
    f32 decoded[n_scales * 256], codes 0..255 for each scale
half_at is where an f16 scale stands; with SCATTERED, where the first of four u16 stands whose upper
nibbles are its nibbles, the lowest first.
The shown blocks are there to be looked at. The checksum is that of n_many blocks or rows made from
the seed by random_blocks and random_rows, which the C test repeats.
"""
import importlib.metadata
import struct
import sys

import gguf
import numpy as np

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
N_SHOWN, N_MANY = 16, 4096
SCATTERED = 1 << 31

# name: where in the block the f16 scales stand
HALVES = {
    "iq1_m": [SCATTERED | 48], "iq1_s": [0], "iq2_s": [0], "iq2_xs": [0], "iq2_xxs": [0],
    "iq3_s": [0], "iq3_xxs": [0], "iq4_nl": [0], "iq4_xs": [0], "mxfp4": [], "q2_k": [80, 82],
    "q3_k": [108], "q4_0": [0], "q4_1": [0, 2], "q4_k": [0, 2], "q5_0": [0], "q5_1": [0, 2],
    "q5_k": [0, 2], "q6_k": [208], "q8_0": [0], "tq1_0": [52], "tq2_0": [64],
}
ENCODED = ("mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def qtype(name):
    return gguf.GGMLQuantizationType[name.upper()]


def sizes(name):
    """(columns, bytes) of one block."""
    return gguf.GGML_QUANT_SIZES[qtype(name)]


def decode(name, blocks):
    with np.errstate(over="ignore"):
        return gguf.quants.dequantize(blocks, qtype(name))


def encode(name, rows):
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return gguf.quants.quantize(rows, qtype(name))


def finalise(z):
    """The output function of splitmix64."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_words(seed, n):
    """Word k is splitmix64's k-th output."""
    return finalise(np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * GOLDEN_RATIO)


def get_half(blocks, at):
    if at < SCATTERED:
        return blocks[:, at].astype(np.uint16) | blocks[:, at + 1].astype(np.uint16) << 8
    upper = at - SCATTERED + 1
    return sum((blocks[:, upper + 2 * k] >> 4).astype(np.uint16) << 4 * k for k in range(4))


def set_half(blocks, at, half):
    if at < SCATTERED:
        blocks[:, at], blocks[:, at + 1] = half & 255, half >> 8
        return
    upper = at - SCATTERED + 1
    for k in range(4):
        blocks[:, upper + 2 * k] = blocks[:, upper + 2 * k] & 15 | (half >> 4 * k & 15) << 4


def tame_halves(name, blocks):
    """Half k of block b: by (b >> 3k) % 8 a signed zero, a denormal, or anything finite."""
    b = np.arange(len(blocks))
    for k, at in enumerate(HALVES[name]):
        half = get_half(blocks, at)
        half = np.where((half & 0x7C00) == 0x7C00, half & 0xBFFF, half)
        case = (b >> 3 * k) % 8
        half = np.where(case == 0, half & 0x8000, np.where(case == 1, half & 0x83FF, half))
        set_half(blocks, at, half)


def random_blocks(name, seed, n):
    """The bytes are those of the words, lowest first; then the halves are tamed."""
    size = sizes(name)[1]
    words = random_words(seed, (n * size + 7) // 8).astype("<u8")
    blocks = np.frombuffer(words.tobytes(), np.uint8)[:n * size].reshape(n, size).copy()
    tame_halves(name, blocks)
    return blocks


def random_rows(seed, n, n_columns=32):
    """Word w of a column gives v, the row r a power of two; every product is exact. By r % 4 v is
    24 bits around zero, a few steps around zero (many ties), of many sizes, or positive."""
    w = random_words(seed, n * n_columns).reshape(n, n_columns)
    r = np.arange(n).reshape(n, 1)
    v = (w >> np.uint64(40)).astype(np.int64) - (1 << 23)
    few = ((w >> np.uint64(59)).astype(np.int64) - 16) << 18
    sized = v * 0.5 ** (w & np.uint64(15)).astype(np.float64)
    v = np.choose(r % 4, [v, few, sized, v + (1 << 23) + 1])
    return np.ldexp(v, r // 4 % 44 - 48).astype(np.float32)


def edge_rows():
    """Rows a quantiser may stumble over. None has a block scale d > 0 whose 1/d overflows, or a
    mixture of signed zeros as its minimum: numpy's answer there depends on the processor."""
    rows = np.zeros((20, 32), np.float32)
    rows[1] = -0.0
    rows[2, 7] = 1
    rows[3, 7] = -1
    rows[4, 3], rows[4, 9] = 5, -5
    rows[5, 3], rows[5, 9] = -5, 5
    rows[6] = 2.5
    rows[7] = -2.5
    rows[8] = np.arange(32) - 16
    rows[9] = np.arange(32) / 2 - 8
    rows[10] = (np.arange(32) - 16) * 127 / 32
    rows[11] = np.arange(32)
    rows[12, ::2] = 1e-45  # d is zero
    rows[13] = (np.arange(32) - 16) * 1e-30
    rows[14] = (np.arange(32) - 16) * 2.0**-24
    rows[15] = (np.arange(32) - 16) * 1e6  # d is infinite as f16
    rows[16] = (np.arange(32) - 16) * 1e36
    rows[17] = 7 * 2.0 ** -np.arange(32)
    rows[18] = 1 + np.arange(32) * 2.0**-23
    rows[19] = np.where(np.arange(32) % 2, 3.5, -3.5)
    return rows


def checksum(words):
    """Of bytes or 32-bit words: the sum of finalise(word << 32 | index), modulo 2^64."""
    words = words.reshape(-1).astype(np.uint64)
    mixed = finalise(words << np.uint64(32) | np.arange(len(words), dtype=np.uint64))
    return int(mixed.sum(dtype=np.uint64))


def exponents_are_exact(rows):
    """floor(log2(max)) in f32, as the package computes an exponent, is too large where max is the
    last few floats before a power of two; ours is the exponent. Such rows are not compared."""
    most = np.abs(rows).max(axis=1)
    with np.errstate(divide="ignore"):
        return (most == 0) | (np.floor(np.log2(most)) == np.frexp(most)[1] - 1)


def in_mxfp4_range(rows):
    """Below 2^-125 the package's exponent wraps around; ours stays zero."""
    most = np.abs(rows).max(axis=1)
    return (most == 0) | (most >= 2.0**-125)


def head(tag, name, *numbers):
    return struct.pack(f"<I16s{len(numbers)}I", tag, name.encode(), *numbers)


def decode_record(name, seed):
    columns, size = sizes(name)
    halves = (HALVES[name] + [0, 0])[:2]
    many = random_blocks(name, seed, N_MANY)
    decoded = decode(name, many).astype("<f4")
    assert np.isfinite(decoded).all() or name == "mxfp4"
    return (head(1, name, columns, size, len(HALVES[name]), *halves, N_SHOWN, N_MANY)
            + struct.pack("<2Q", seed, checksum(decoded.view("<u4")))
            + many[:N_SHOWN].tobytes() + decoded[:N_SHOWN].tobytes())


def encode_record(name, seed):
    columns, size = sizes(name)
    rows, many = edge_rows(), random_rows(seed, N_MANY)
    if name == "mxfp4":
        rows = rows[in_mxfp4_range(rows)]
        assert exponents_are_exact(rows).all() and exponents_are_exact(many).all()
    return (head(2, name, columns, size, len(rows), N_MANY)
            + struct.pack("<2Q", seed, checksum(encode(name, many)))
            + rows.astype("<f4").tobytes() + encode(name, rows).tobytes())


def fp8_record(scale_format):
    import ml_dtypes
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[scale_format]
    scales = np.array([1, -0.0123, 1.7e-7, 0], np.float32).astype(dtype)
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    decoded = codes.reshape(1, 256) * scales.astype(np.float32).reshape(-1, 1)
    return (head(3, f"fp8-b128-{scale_format}", scales.itemsize, len(scales)) + scales.tobytes()
            + decoded.astype("<f4").tobytes())


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/quant/gguf_blocks.bin"
    with open(path, "wb") as out:
        for i, name in enumerate(sorted(HALVES)):
            out.write(decode_record(name, 1000 + i))
        for i, name in enumerate(ENCODED):
            out.write(encode_record(name, 2000 + i))
        for scale_format in ("bf16", "f16", "f32"):
            out.write(fp8_record(scale_format))
        print(f"{path}: {out.tell()} bytes,", ", ".join(
            f"{p} {importlib.metadata.version(p)}" for p in ("gguf", "numpy", "ml_dtypes")))


if __name__ == "__main__":
    main()
