"""Small tokenizers of all families, made of the committed vocabulary frozen_qwen2_tokenizer.json.

Only the settings are a family's own: expressions, normalizer, prefix, added tokens. check_frozen.py
and compare_tokenizers.py --freeze use them.
"""
import base64
import json
import pathlib

import make_tiny_tokenizer
import vocabularies

HERE = pathlib.Path(__file__).resolve().parent
O200K_REGEX = "|".join((
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
DEEPSEEK_REGEXES = (
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
SPACE = "\u2581"
# By the name of the pattern in GGUF; mixtral is "llama" there.
FAMILIES = ("gpt-4o", "deepseek-v3", "glm4", "olmo", "mixtral", "mixtral-first", "kimi")


def splits(*regexes):
    split = [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
              "invert": False} for regex in regexes]
    return {"type": "Sequence", "pretokenizers": [*split, vocabularies.BYTE_LEVEL]}


def base():
    document = json.loads((HERE / "frozen_qwen2_tokenizer.json").read_text(encoding="utf-8"))
    document["normalizer"] = None
    return document


def byte_level(regexes, **fields):
    document = base() | {"pre_tokenizer": splits(*regexes)}
    document["model"] |= fields
    return document


def add_tokens(document, texts, **fields):
    n = max(t["id"] for t in document["added_tokens"]) + 1
    document["added_tokens"] += [vocabularies.added_token(n + i, text, **fields)
                                 for i, text in enumerate(texts)]
    return document


def deepseek():
    """Added tokens in normalised text, with a normalizer that does nothing."""
    document = byte_level(DEEPSEEK_REGEXES) | {
        "normalizer": {"type": "Sequence", "normalizers": []}}
    return add_tokens(document, ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"],
                      special=False, normalized=True)


def olmo():
    """ByteLevel's own expression; runs of spaces are added tokens in normalised text."""
    document = base() | {"normalizer": {"type": "NFC"},
                         "pre_tokenizer": vocabularies.BYTE_LEVEL | {"use_regex": True}}
    return add_tokens(document, [" " * n for n in range(2, 9)] + ["|||IP_ADDRESS|||"],
                      special=False, normalized=True)


def spaced_merges():
    """Returns the merges whose parts are text, with U+2581 for a space."""
    letters = {c: bytes([i]) for i, c in enumerate(make_tiny_tokenizer.byte_alphabet())}
    for merge in base()["model"]["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        try:
            yield [b"".join(letters[c] for c in part).decode().replace(" ", SPACE)
                   for part in parts]
        except UnicodeDecodeError:
            pass


def mixtral(prepends=True):
    known = {SPACE, *map(chr, range(0x21, 0x7F)), *"éüñ中的"}
    merges = []
    for left, right in spaced_merges():
        if left in known and right in known:
            merges.append([left, right])
            known.add(left + right)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tokens += sorted(known, key=lambda t: (len(t) > 1, t))
    normalizers = [{"type": "Prepend", "prepend": SPACE},
                   {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    document = vocabularies.document_of(
        tokens, merges, byte_fallback=True, unk_token="<unk>",
        added_tokens=[vocabularies.added_token(i, tokens[i]) for i in range(3)],
        decoder={"type": "Sequence", "decoders": decoders})
    if prepends:
        document["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    else:
        document["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE,
                                     "prepend_scheme": "first", "split": False}
    return document


def write_kimi(folder):
    """Writes Kimi's two files with the same tokens."""
    letters = {c: i for i, c in enumerate(make_tiny_tokenizer.byte_alphabet())}
    model = base()["model"]
    tokens = [bytes(letters[c] for c in text)
              for text, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    n = len(tokens)
    names = {n: ("[BOS]", True), n + 1: ("[EOS]", True), n + 2: ("<|im_end|>", True),
             n + 5: ("<think>", False), n + 6: ("</think>", False)}
    vocabularies.write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": {str(i): {"content": text, "special": special}
                                 for i, (text, special) in names.items()}})
    path = folder / "tiktoken.model"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)))
    return path


def write(name, folder):
    """Writes the files of a family; returns the path that tokenize_lines opens."""
    if name == "kimi":
        return write_kimi(folder)
    documents = {
        "gpt-4o": lambda: byte_level([O200K_REGEX], ignore_merges=True),
        "glm4": lambda: byte_level([vocabularies.LLAMA3_REGEX], ignore_merges=True),
        "deepseek-v3": deepseek, "olmo": olmo, "mixtral": mixtral,
        "mixtral-first": lambda: mixtral(False),
    }
    return vocabularies.write_json(folder / "tokenizer.json", documents[name]())
