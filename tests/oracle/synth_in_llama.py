#!/usr/bin/env python3
"""synth_in_llama.py FLASHMOE [FOLDER]: llama.cpp runs what `flashmoe synth` writes as GGUF.

Needs PyPI llama-cpp-python. Writes to FOLDER (default: a temporary one) every tiny shape whole,
split and in every format, and coder-next with fewer layers, about 2 GB. Deletes each when done.
Compares FLASHMOE's greedy tokens with llama.cpp's. They may differ only where llama.cpp's own
logits of both tokens are nearly equal.
"""
import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import llama_cpp
import numpy

PROMPT = "Tell me about the sea."
N_TOKENS = 8
FORMATS = ("f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs iq2_xxs "
           "iq3_xxs mxfp4").split()
SHAPES = ("tiny-qwen3", "tiny-next", "tiny-qwen3.5")


def silent(level, text, data):
    if level >= 4:
        sys.stderr.write(text.decode(errors="replace"))


def in_llama(path):
    """Returns greedy tokens, only those that represent text, and the logits they were chosen by."""
    model = llama_cpp.Llama(str(path), n_ctx=256, n_threads=2, verbose=False)
    ids = model.tokenize(PROMPT.encode(), add_bos=False, special=False)
    assert ids == list(PROMPT.encode()), ids
    found, rows, n = [], [], model.n_vocab()
    for _ in range(N_TOKENS):
        model.eval(ids)
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), (n,))
        assert numpy.isfinite(logits).all(), path
        rows.append(logits[:259].copy())
        ids = [int(rows[-1].argmax())]
        found += ids
    model.close()
    return found, rows


def in_flashmoe(program, path):
    done = subprocess.run([program, "run", path, "--raw", "-p", PROMPT, "-n", str(N_TOKENS),
                           "--greedy", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["tokens"]


def check(program, folder, shape, *more):
    target = folder / "x.gguf"
    begin = time.monotonic()
    subprocess.run([program, "synth", shape, target, "-q", *more], check=True)
    files = sorted(folder.glob("x*.gguf"))
    seconds, size = time.monotonic() - begin, sum(f.stat().st_size for f in files)
    theirs, rows = in_llama(files[0])
    ours = in_flashmoe(program, files[0])
    spread, verdict = float(rows[0].std()), "agrees"
    assert 0.01 < spread < 100, spread
    for i, (a, b) in enumerate(zip(theirs, ours)):
        if a != b: # from here on the texts differ
            gap = float(rows[i][a] - rows[i][b]) / spread
            verdict = f"parts at token {i}, {gap:.3f} deviations apart"
            assert gap < 0.2, (theirs, ours, gap)
            break
    print(f"{shape} {' '.join(more)}: {size / 1e6:.1f} MB in {seconds:.1f} s, llama.cpp {theirs}, "
          f"deviation of logits {spread:.3f}, flashmoe {verdict}", flush=True)
    for file in files:
        file.unlink()


def main():
    program = sys.argv[1]
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(silent)
    llama_cpp.llama_log_set(callback, None)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as temp:
        folder = pathlib.Path(temp)
        for shape in SHAPES:
            check(program, folder, shape)
            check(program, folder, shape, "--split-size", "1M")
        for name in FORMATS:
            check(program, folder, "tiny-next", "--experts-format", name, "--dense-format", name)
        check(program, folder, "coder-next", "--layers", "4", "--experts", "256")


if __name__ == "__main__":
    main()
