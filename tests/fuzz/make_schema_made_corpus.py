#!/usr/bin/env python3
"""Writes corpus/schema_made: random bytes from which fuzz_schema_made makes schemas.

usage: make_schema_made_corpus.py
"""
import pathlib
import random


def main():
    folder = pathlib.Path(__file__).resolve().parent / "corpus" / "schema_made"
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(60):
        draw = random.Random(i)
        n = draw.choice([20, 60, 150, 400])
        (folder / f"{i:03}").write_bytes(bytes(draw.randrange(256) for _ in range(n)))


if __name__ == "__main__":
    main()
