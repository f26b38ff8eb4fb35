#!/usr/bin/env python3
"""Writes the tokenizer of the tiny test checkpoints: 320 ids. Python's standard library only.

usage: make_tiny_tokenizer.py [OUTPUT.json]     (default: tests/golden/tiny_tokenizer.json)

Ids: 0 <|endoftext|>, 1 <|im_end|> (end of a turn), 2 <|im_start|>, 3..258 the bytes in order,
259..319 merges of common English pairs.
"""
import json
import pathlib
import sys

SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# "_" stands for a space before a word.
MERGES = """
h e|_ t|_t he|i n|e r|a n|r e|o n|_ a|_ s|_ w|_ c|_ b|_ o|_ f|n d|e s|a t|o r|e n|i s|o u
_ h|_ m|_ p|_ d|e d|in g|a l|_ an|_an d|_o f|_t o|a r|i t|_ in|_ l|l e|_ n|_w a|_wa s|a s
i c|o m|v e|l l|_ he|_ y|_y ou|_ re|s t|_ is|_ e|_f or|c h|r o|_ on|l y|t h|_t h|_th at
""".strip().replace("\n", "|").split("|")


def byte_alphabet():
    """Returns the character of every byte: itself if printable, otherwise from U+0100 upwards."""
    extra = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            yield chr(byte)
        else:
            yield chr(extra)
            extra += 1


def apply_merges(merges, text):
    parts = list(text)
    while True:
        pairs = [(merges.index([a, b]), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                 if [a, b] in merges]
        if not pairs:
            return parts
        i = min(pairs)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


def make_document(n_merges):
    """Returns the tokenizer with the first n_merges merges."""
    alphabet = list(byte_alphabet())
    space = alphabet[ord(" ")]
    merges = [m.replace("_", space).split(" ") for m in MERGES][:n_merges]
    tokens = SPECIAL + alphabet + [a + b for a, b in merges]
    for a, b in merges:
        assert a in tokens and b in tokens, (a, b)
        assert apply_merges(merges, a + b) == [a + b], (a, b, apply_merges(merges, a + b))
    assert len(tokens) == len(set(tokens))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for i, text in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "Isolated",
             "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                    "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: i for i, text in enumerate(tokens)},
                  "merges": merges},
    }


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "golden" / "tiny_tokenizer.json"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    document = make_document(len(MERGES))
    n_ids = len(document["model"]["vocab"])
    assert n_ids == 320, n_ids
    out.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{out.name}: {n_ids} ids, {len(MERGES)} merges")


if __name__ == "__main__":
    main()
