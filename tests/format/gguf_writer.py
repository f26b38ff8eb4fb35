"""A small writer of GGUF files for tests: standard library only.

A value is (type, payload); the functions u32, f32, text, ... make them. A tensor is
(name, dims in ggml's order, type number, bytes or None for zeros of the right size).
"""
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, LIST, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
         I64: "q", F64: "d"}
# type number: (values per block, bytes per block)
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
          20: (32, 18), 23: (256, 136), 30: (1, 2), 39: (32, 17)}


def packed_text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def packed(kind, value):
    if kind == TEXT:
        return packed_text(value)
    if kind == LIST:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(packed(inner, i) for i in items)
    return struct.pack("<" + CODES[kind], value)


def scalar(kind):
    return lambda value: (kind, value)


u8, u16, u32, u64, i32, i64 = (scalar(k) for k in (U8, U16, U32, U64, I32, I64))
f32, f64, boolean, text = (scalar(k) for k in (F32, F64, BOOL, TEXT))


def array(kind, items):
    return (LIST, (kind, items))


def tensor_bytes(dims, kind):
    block, size = BLOCKS[kind]
    count = 1
    for dim in dims:
        count *= dim
    return count // block * size


def make(values, tensors, alignment=32, version=3, with_data=True):
    """Returns the bytes of a file. `values` maps keys to values."""
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(values))]
    for key, (kind, value) in values.items():
        out += [packed_text(key), struct.pack("<I", kind), packed(kind, value)]
    at, data = 0, []
    for name, dims, kind, content in tensors:
        content = bytes(tensor_bytes(dims, kind)) if content is None else content
        content += bytes(-len(content) % alignment)
        out += [packed_text(name), struct.pack(f"<I{len(dims)}Q", len(dims), *dims),
                struct.pack("<IQ", kind, at)]
        at += len(content)
        data.append(content)
    header = b"".join(out)
    header += bytes(-len(header) % alignment)
    return header + b"".join(data) if with_data else header


def tokenizer_values(document, pre):
    """Returns tokenizer.ggml.* of a tokenizer.json with a byte-level BPE."""
    tokens, types = {}, {}
    for content, number in document["model"]["vocab"].items():
        tokens[number], types[number] = content, 1
    for token in document["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    ids = range(max(tokens) + 1)
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    return {
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text(pre),
        "tokenizer.ggml.tokens": array(TEXT, [tokens.get(i, f"[PAD{i}]") for i in ids]),
        "tokenizer.ggml.token_type": array(I32, [types.get(i, 5) for i in ids]),
        "tokenizer.ggml.merges": array(TEXT, merges),
    }


def spaced_values(document):
    """Returns tokenizer.ggml.* of a tokenizer.json in the style of SentencePiece, whose merges are
    in the order in which their results rank."""
    vocabulary = document["model"]["vocab"]
    added = {t["id"]: 3 if t["special"] else 4 for t in document["added_tokens"]}
    scores = {a + b: -float(rank + 1) for rank, (a, b) in
              reversed(list(enumerate(document["model"]["merges"])))}
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [added.get(i, 6 if t.startswith("<0x") and len(t) == 6 else 1)
             for i, t in enumerate(tokens)]
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": array(TEXT, tokens),
        "tokenizer.ggml.token_type": array(I32, types),
        "tokenizer.ggml.scores": array(F32, [scores.get(t, 0.0) for t in tokens]),
    }


class Reader:
    """Reads the values and tensors of a file, as make() takes them."""

    def __init__(self, data):
        self.data, self.at = data, 8
        n_tensors, n_values = self.take("<QQ")
        self.values = {}
        for _ in range(n_values):
            key = self.take_text().decode()
            (kind,) = self.take("<I")
            self.values[key] = (kind, self.take_value(kind))
        infos = []
        for _ in range(n_tensors):
            name = self.take_text().decode()
            (n_dims,) = self.take("<I")
            infos.append((name, self.take(f"<{n_dims}Q"), *self.take("<IQ")))
        alignment = self.values.get("general.alignment", (U32, 32))[1]
        begin = self.at + -self.at % alignment
        self.tensors = {
            name: (dims, kind, data[begin + at:begin + at + tensor_bytes(dims, kind)])
            for name, dims, kind, at in infos}

    def take(self, form):
        out = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return out

    def take_text(self):
        (n,) = self.take("<Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def take_value(self, kind):
        if kind == TEXT:
            return self.take_text()
        if kind == LIST:
            inner, n = self.take("<IQ")
            return inner, [self.take_value(inner) for _ in range(n)]
        return self.take("<" + CODES[kind])[0]

    def number(self, key):
        """Returns a value below the architecture."""
        return self.values[self.values["general.architecture"][1].decode() + "." + key][1]
