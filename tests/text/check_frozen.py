#!/usr/bin/env python3
"""Compares tokenize_lines with frozen results of the official `tokenizers` package.

usage: check_frozen.py TOKENIZE_LINES qwen2|qwen35|FAMILY [--gguf]

FAMILY is one of families.py. With --gguf the tokenizer is read from a GGUF file made of the same
vocabulary. The samples are written by compare_tokenizers.py --freeze. Python's standard library
only.
"""
import json
import pathlib
import sys
import tempfile

import families
import lines_protocol

HERE = pathlib.Path(__file__).resolve().parent


def compare(what, inputs, want, got):
    bad = [i for i in range(len(want)) if i >= len(got) or want[i] != got[i]]
    for i in bad[:5]:
        print(f"{what} of {ascii(inputs[i])}:\n  official {ascii(want[i])}\n"
              f"  ours     {ascii(got[i]) if i < len(got) else 'nothing'}")
    return len(bad)


def as_gguf(tokenizer, pre, folder):
    sys.path.insert(0, str(HERE.parent / "format"))
    import gguf_writer
    document = json.loads(tokenizer.read_text(encoding="utf-8"))
    path = pathlib.Path(folder) / "tokenizer.gguf"
    values = (gguf_writer.spaced_values(document) if document["model"]["byte_fallback"] else
              gguf_writer.tokenizer_values(document, pre))
    path.write_bytes(gguf_writer.make(values, []))
    return path


def check(program, name, tokenizer):
    samples = json.loads((HERE / f"frozen_{name}_samples.json").read_text(encoding="utf-8"))
    n_bad = n_all = 0
    for mode in ("encode", "plain", "pieces"):
        chosen = samples["encode" if mode == "pieces" else mode]
        if mode == "pieces" and chosen[0][2] is None:
            continue
        texts = [sample[0] for sample in chosen]
        want = [sample[2 if mode == "pieces" else 1] for sample in chosen]
        source = name if mode == "pieces" else tokenizer
        n_bad += compare(mode, texts, want, lines_protocol.encode(program, source, texts, mode))
        n_all += len(texts)
    lists = [ids for ids, _ in samples["decode"]]
    want = [text for _, text in samples["decode"]]
    n_bad += compare("decode", lists, want, lines_protocol.decode(program, tokenizer, lists))
    n_all += len(lists)
    print(f"{name}: {n_all} samples, {n_bad} different from {samples['official']}")
    return 1 if n_bad > 0 or n_all == 0 else 0


def main():
    program, name = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = HERE / f"frozen_{name}_tokenizer.json"
        if not tokenizer.exists():
            tokenizer = families.write(name, pathlib.Path(folder))
        if sys.argv[3:] == ["--gguf"]:
            tokenizer = as_gguf(tokenizer, name, folder)
        return check(program, name, tokenizer)


if __name__ == "__main__":
    sys.exit(main())
