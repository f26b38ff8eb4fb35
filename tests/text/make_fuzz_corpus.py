#!/usr/bin/env python3
"""Writes the seed corpus of the tokenizer fuzz target. Python's standard library only.

usage: make_fuzz_corpus.py [DIR]      (default: tests/fuzz/corpus/tokenizer)

Inputs added by hand, such as a fixed finding, stay.
"""
import json
import pathlib
import sys

import make_tiny_tokenizer

QWEN35_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def added(ids_and_texts, **fields):
    return [{"id": i, "content": text, "normalized": False, "special": False, **fields}
            for i, text in ids_and_texts]


def base():
    return make_tiny_tokenizer.make_document(6)


def seeds():
    """Yields (name, document): good ones, then one for every kind of refusal."""
    yield "good_qwen2", base()
    d = base()
    d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN35_REGEX
    d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
    yield "good_qwen35_text_merges", d
    d = base()
    d["normalizer"] = None
    d["post_processor"] = d["decoder"]
    yield "good_no_normalizer", d
    d = base()
    d["added_tokens"] = added([(300, "<a>"), (301, "<a"), (302, "<"), (303, "\u00f1\u4f60"),
                               (4000, "e\u0301")])
    yield "good_nested_added", d
    d = base()
    d["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]}
    d["added_tokens"] = []
    yield "good_sequence", d
    changes = {
        "type": ("model", "type", "WordPiece"), "dropout": ("model", "dropout", 0.5),
        "unk": ("model", "unk_token", "x"), "fallback": ("model", "byte_fallback", True),
        "vocab": ("model", "vocab", []), "merges": ("model", "merges", {}),
        "decoder": ("decoder", "type", "Fuse"), "pre": ("pre_tokenizer", "pretokenizers", [1, 2]),
        "normalizer": ("normalizer", "type", "Sequence"),
    }
    for name, (part, field, value) in changes.items():
        d = base()
        d[part][field] = value
        yield f"bad_{name}", d
    for name, merge in (("unknown", ["q", "z"]), ("twice", ["h", "e"]), ("one", ["h"]),
                        ("text", "h  e"), ("empty", ["", "he"]), ("number", 3)):
        d = base()
        d["model"]["merges"].append(merge)
        yield f"bad_merge_{name}", d
    for name, tokens in (("id", added([(-1, "x")])), ("far", added([(1 << 40, "x")])),
                         ("taken", added([(5, "<x>")])),
                         ("strip", added([(400, "x")], lstrip=True)),
                         ("list", 7), ("item", [7]), ("long", added([(400, "x" * 600)]))):
        d = base()
        d["added_tokens"] = tokens
        yield f"bad_added_{name}", d
    d = base()
    del d["model"]["vocab"]["q"]
    yield "bad_byte_missing", d
    d = base()
    d["model"]["vocab"]["q"] = d["model"]["vocab"]["z"]
    yield "bad_id_twice", d


def main():
    here = pathlib.Path(__file__).resolve().parent
    default = here.parent / "fuzz" / "corpus" / "tokenizer"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    out.mkdir(parents=True, exist_ok=True)
    n = 0
    for name, document in seeds():
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        (out / f"{name}.json").write_text(text, encoding="utf-8")
        n += 1
    print(f"{n} seeds")


if __name__ == "__main__":
    main()
