#!/usr/bin/env python3
"""Writes the seed corpus of the hub fuzz target.

usage: make_hub_corpus.py [DIR]      (default: corpus/hub next to this script)

The seeds are small and always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import json
import pathlib
import sys

COMMIT = {"id": "org/name", "sha": "0123456789abcdef" * 2 + "01234567", "private": False}


def file(path, size=10, large=True, **more):
    entry = {"type": "file", "path": path, "size": size, "oid": "ab" * 20}
    if large:
        entry["lfs"] = {"oid": "cd" * 32, "size": size, "pointerSize": 130}
    return {**entry, **more}


def seed(wanted, commit, *pages):
    return b"\0".join([wanted.encode()] + [each if isinstance(each, bytes) else
                                           json.dumps(each).encode() for each in (commit, *pages)])


def seeds():
    small = [file("config.json", large=False), file("tokenizer.json", large=False),
             file(".gitattributes", large=False), {"type": "directory", "path": "original"}]
    ggufs = [file("m-Q4_K_M.gguf"), file("m-Q8_0.gguf"), file("m-IQ2-00001-of-00002.gguf"),
             file("m-IQ2-00002-of-00002.gguf"), file("mmproj-f16.gguf")]
    return {
        "checkpoint": seed("", COMMIT, small, [file("model-00001-of-00002.safetensors"),
                                               file("model-00002-of-00002.safetensors")]),
        "original": seed("", COMMIT, small + [file("original/a.safetensors"), file("b.gguf")]),
        "gguf": seed("Q4_K_M", COMMIT, ggufs),
        "gguf_set": seed("IQ2", COMMIT, ggufs[:3], ggufs[3:]),
        "gguf_several": seed("", COMMIT, ggufs),
        "gguf_none": seed("Q5_K", COMMIT, ggufs),
        "nothing": seed("", COMMIT, []),
        "twice": seed("", COMMIT, [file("a.gguf")], [file("a.gguf")]),
        "paths": seed("", COMMIT, [file("../../etc/passwd")]),
        "absolute": seed("", COMMIT, [file("/etc/passwd")]),
        "control": seed("", COMMIT, [file("a\u001b[2J.gguf")]),
        "sizes": seed("", COMMIT, [file("a.gguf", size=-1)]),
        "huge": seed("", COMMIT, [file("a.gguf", size=1 << 62)]),
        "real_size": seed("", COMMIT, [file("a.gguf", size=1.5)]),
        "no_digest": seed("", COMMIT, [file("a.gguf", lfs={"oid": "xyz", "size": 3})]),
        "no_list": seed("", COMMIT, {"error": "not found"}),
        "no_commit": seed("", {"sha": "main"}, small),
        "no_json": seed("", b"<html>", b"[{]"),
        "empty": b"",
    }


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "hub"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
