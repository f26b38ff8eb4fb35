#!/usr/bin/env python3
"""Measures masks on a real vocabulary, for the first answer of a grammar and the second.

usage: grammar_speed.py GRAMMAR_LINES TOKENIZER.JSON

The answers are cut into tokens as the tokenizer cuts them; the masks before each are timed. 'made'
is how often a part of a mask was not there and the vocabulary was walked.
"""
import json
import subprocess
import sys

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 80},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "role": {"enum": ["admin", "editor", "viewer"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        "address": {"type": "object", "properties": {"street": {"type": "string"},
                                                     "zip": {"type": "string",
                                                             "pattern": "^[0-9]{5}$"}},
                    "required": ["street", "zip"], "additionalProperties": False},
        "note": {"type": ["string", "null"]},
    },
    "required": ["name", "age", "email", "role", "tags", "address", "note"],
    "additionalProperties": False,
}
ANSWER = {
    "name": "Ada Lovelace", "age": 36, "email": "ada@example.com", "role": "admin",
    "tags": ["mathematics", "computing", "poetry"],
    "address": {"street": "St James's Square 12", "zip": "10115"},
    "note": "She wrote the first program for a machine that was never built. " * 5,
}
FREE = {"result": {"items": [{"id": i, "title": f"Item number {i}", "done": i % 2 == 0,
                              "price": i * 1.25} for i in range(30)], "next": None}}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    cases = [("schema", PERSON, ANSWER, None), ("schema, indented", PERSON, ANSWER, 2),
             ("any object", None, FREE, None), ("any object, indented", None, FREE, 2)]
    for name, schema, answer, indent in cases:
        request = {"schema": schema and json.dumps(schema),
                   "time": json.dumps(answer, indent=indent)}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        reply = json.loads(process.stdout.readline())
        print(f"{name}: compiled in {1e3 * reply['compile_s']:.2f} ms")
        for kind, t in reply["times"].items():
            print(f"  {kind}: {t['tokens']} masks, median {t['median_ms']:.3f} ms, mean "
                  f"{t['mean_ms']:.3f}, 95 % {t['p95_ms']:.3f}, most {t['max_ms']:.3f}; "
                  f"{t['made']} made")


if __name__ == "__main__":
    main()
