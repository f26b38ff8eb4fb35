#!/usr/bin/env python3
"""Writes the seed corpora of the fuzz targets tokenizer, tiktoken and pretok. Python's standard
library only.

usage: make_fuzz_corpus.py [DIR]      (default: tests/fuzz/corpus)

Inputs added by hand, such as a fixed finding, stay.
"""
import itertools
import json
import pathlib
import sys

import families
import make_tiny_tokenizer
import vocabularies

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


def spaced(prepends, **fields):
    """The smallest tokenizer in the style of SentencePiece."""
    d = families.mixtral(prepends)
    tokens = [t for t in d["model"]["vocab"] if len(t) < 2 or t.startswith("<")]
    merges = [["h", "e"], [families.SPACE, "t"], [families.SPACE + "t", "he"], ["i", "n"]]
    tokens += [a + b for a, b in merges]
    d["model"] |= {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges} | fields
    d["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return d


def family_seeds():
    for name, pre in (("gpt_oss", families.splits(families.O200K_REGEX)),
                      ("glm", families.splits(vocabularies.LLAMA3_REGEX)),
                      ("kimi", families.splits(vocabularies.KIMI_REGEX)),
                      ("deepseek", families.splits(*families.DEEPSEEK_REGEXES)),
                      ("olmo", vocabularies.BYTE_LEVEL | {"use_regex": True})):
        d = base() | {"pre_tokenizer": pre}
        d["model"]["ignore_merges"] = name == "gpt_oss"
        if name in ("olmo", "deepseek"):
            d["added_tokens"] += added([(330, "   "), (331, "<s>")], normalized=True)
        if name != "olmo":
            d["normalizer"] = None
        yield f"good_{name}", d
    yield "good_spaced", spaced(True)
    yield "good_spaced_first", spaced(False)
    yield "bad_spaced_ignore", spaced(True, ignore_merges=True)
    d = spaced(False)
    d["pre_tokenizer"] |= {"prepend_scheme": "always", "split": True}
    d["added_tokens"] += added([(500, "<t>")], normalized=True)
    yield "good_spaced_split", d
    d = spaced(True)
    d["model"]["merges"] += [["<0x41>", families.SPACE]]
    d["model"]["vocab"] |= {"<0x41>" + families.SPACE: 400}
    yield "good_spaced_byte_merge", d
    d = spaced(True)
    d["post_processor"]["special_tokens"]["<s>"]["ids"] = [1, 99999]
    yield "bad_prefix", d


TIKTOKEN = {
    "good": b"YWE= 256\nYWFh 257\nIGE= 258\n+",
    "good_config": b"YWE= 256\n+\0" + json.dumps({
        "tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
            "257": {"content": "[BOS]", "special": True}, "260": {"content": "<think>"}}}).encode(),
    "bad_rank": b"YWE= 300\n+", "bad_base64": b"Y_E= 256\n+", "bad_line": b"YWE=256\n+",
    "bad_twice": b"YWE= 256\nYWE= 257\n+", "bad_bytes": b"YQ== 0\n", "empty": b"",
    "bad_class": b'+\0{"tokenizer_class": "X"}',
    "bad_id": b'+\0{"added_tokens_decoder": {"5": {"content": "x"}}}',
}
TEXTS = {
    "words": "Hello HTTPServer's iPhone we'LL ABC\u0301d \u02b0A \u01c5x",
    "marks": "\u0301A !\u0301B",
    "numbers": "1234567 \u2167\u00bd\u3007 12a", "spaces": "  a \n\n \t x  \r\n  ",
    "han": "\u4f60\u597dabc\u3005\u2e80A\u30a0\u30ab\u30fb\u3099\u3042",
    "other": "a\x01\x02b\x03 \u200b\u00ad!!//\n/ #inc 's'S'\u017f ~\U0001f600\ufe0f",
}


def write_more(out):
    for target, files in (("tiktoken", TIKTOKEN),
                          ("pretok", {name: text.encode() for name, text in TEXTS.items()})):
        (out / target).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / target / name).write_bytes(data)


def main():
    here = pathlib.Path(__file__).resolve().parent
    default = here.parent / "fuzz" / "corpus"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    write_more(root)
    out = root / "tokenizer"
    out.mkdir(parents=True, exist_ok=True)
    n = 0
    for name, document in itertools.chain(seeds(), family_seeds()):
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        (out / f"{name}.json").write_text(text, encoding="utf-8")
        n += 1
    print(f"{n} seeds")


if __name__ == "__main__":
    main()
