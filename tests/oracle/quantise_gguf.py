#!/usr/bin/env python3
"""Quantises nano and wide with llama.cpp's own quantiser, through llama-cpp-python's bindings.

A tensor whose rows are not a multiple of the format's blocks gets another format, so nano's files
are mixed. Formats that need an importance matrix get one of ones.

usage: quantise_gguf.py LLAMA_CPP OUT     OUT/gguf/NAME-bf16.gguf -> OUT/gguf/NAME-FORMAT.gguf
"""
import ctypes
import pathlib
import sys

import llama_cpp
import numpy as np

NANO = "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4_MOE".split()
WIDE = NANO + "Q3_K_L Q4_K_S IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_M IQ3_XXS IQ3_S TQ1_0 TQ2_0".split()
# If the mixture of a name would use a second format, writes one pure file of each.
PURE = "Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_M IQ3_XXS IQ3_S".split()
PURE += ["IQ4_XS"]


def ones(path):
    """Returns an importance matrix: a pointer to records up to one without a name, and what it
    borrows."""
    import gguf

    kept, records = [], []
    for tensor in gguf.GGUFReader(path).tensors:
        if len(tensor.shape) > 1:
            n = int(tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1))
            data = np.ones(n, np.float32)
            pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            kept.append(data)
            records.append(llama_cpp.llama_model_imatrix_data(tensor.name.encode(), pointer, n))
    records.append(llama_cpp.llama_model_imatrix_data())
    array = (llama_cpp.llama_model_imatrix_data * len(records))(*records)
    return array, kept


def quantise(source, target, kind, pure=False):
    if target.exists():
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + kind)
    params.nthread = 2
    params.pure = pure
    if kind[:3] in ("IQ1", "IQ2", "IQ3"):
        array, kept = ones(source)
        params.imatrix = ctypes.cast(array, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    code = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    if code != 0:
        target.unlink(missing_ok=True)
    print(target.name, "made" if code == 0 else "FAILED", flush=True)


def main():
    sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "gguf-py"))
    gguf = pathlib.Path(sys.argv[2]) / "gguf"
    for name, kinds in (("wide", WIDE), ("nano", NANO)):
        source = gguf / f"{name}-bf16.gguf"
        if not source.exists():
            continue
        for kind in kinds:
            quantise(source, gguf / f"{name}-{kind}.gguf", kind)
    for kind in PURE:
        quantise(gguf / "wide-bf16.gguf", gguf / f"wide-pure-{kind}.gguf", kind, pure=True)


if __name__ == "__main__":
    main()
