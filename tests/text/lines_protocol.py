"""Sends texts and ids to tokenize_lines, many at a time."""
import array
import struct
import subprocess


def run(program, tokenizer, mode, records):
    done = subprocess.run([program, tokenizer, mode], input=b"".join(records),
                          stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} {tokenizer} {mode} failed with status {done.returncode}")
    return done.stdout


def split(data, item_bytes):
    at = 0
    while at < len(data):
        (n,) = struct.unpack_from("=I", data, at)
        at += 4
        yield data[at:at + n * item_bytes]
        at += n * item_bytes


def encode(program, tokenizer, texts, mode="encode"):
    """Returns the ids of every text, which may be str or bytes; in mode "pieces" the lengths of its
    pieces."""
    raw = (t.encode() if isinstance(t, str) else t for t in texts)
    out = run(program, tokenizer, mode, (struct.pack("=I", len(t)) + t for t in raw))
    return [array.array("i", ids).tolist() for ids in split(out, 4)]


def decode(program, tokenizer, id_lists):
    records = (struct.pack("=I", len(ids)) + array.array("i", ids).tobytes() for ids in id_lists)
    out = run(program, tokenizer, "decode", records)
    return [text.decode() for text in split(out, 1)]
