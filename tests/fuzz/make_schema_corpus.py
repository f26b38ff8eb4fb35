#!/usr/bin/env python3
"""Writes corpus/schema: random schemas from tests/text/grammar_test.py, and schemas that it
refuses.

usage: make_schema_corpus.py
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "text"))
import grammar_test  # noqa: E402 (found through the line above)


def main():
    folder = HERE / "corpus" / "schema"
    folder.mkdir(parents=True, exist_ok=True)
    texts = [schema for schema, _, _ in grammar_test.REFUSED]
    texts += [json.dumps(grammar_test.Maker(seed).root(), ensure_ascii=seed % 2 == 0)
              for seed in range(200)]
    texts = [text for text in texts if len(text.encode()) < 1500][:120]
    for i, text in enumerate(texts):
        (folder / f"{i:03}").write_bytes(bytes([i, 7]) + text.encode())


if __name__ == "__main__":
    main()
