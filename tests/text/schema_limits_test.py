#!/usr/bin/env python3
"""Tests schemas that refer to themselves in every place, and schemas that demand too much.

usage: schema_limits_test.py GRAMMAR_LINES TOKENIZER.JSON

Each is refused with a sentence or gives answers that jsonschema finds valid, on a small stack, in
bounded time and memory. A hang ends at the test's time limit.
"""
import json
import pathlib
import re
import resource
import subprocess
import sys

import jsonschema
import schema_places

STACK_BYTES = 256 << 10
MEMORY_MIB = 400
PROGRAM, TOKENIZER = sys.argv[1:3]


class Grammar:
    """Runs grammar_lines on a small stack. With a sanitizer, frames and memory are larger."""

    def __init__(self, is_small):
        limit = STACK_BYTES if is_small else resource.RLIM_INFINITY
        self.process = subprocess.Popen(
            [PROGRAM, TOKENIZER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK,
                                                  (limit, resource.RLIM_INFINITY)))

    def ask(self, name, text):
        self.process.stdin.write(json.dumps({"schema": text, "seeds": 1, "first_seed": len(text),
                                             "tokens": 12, "bias": 20}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{name}: the program died with {self.process.wait()} on {text[:500]}")
        reply = json.loads(line)
        if reply.get("error") == "":
            sys.exit(f"{name}: refused without a sentence: {text[:500]}")
        return reply

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) >> 10


def is_valid(schema, answer):
    """Returns None if jsonschema cannot decide: it recurses without end, or refuses."""
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(answer)
    except Exception:  # noqa: BLE001 (a reference to what is no schema raises anything)
        return None


def main():
    is_small = "asan" not in PROGRAM and "__asan_init" not in subprocess.run(
        ["nm", "-D", PROGRAM], capture_output=True, text=True, check=False).stdout
    grammar = Grammar(is_small)
    counts = {"compiled": 0, "refused": 0, "answers": 0, "checked": 0}
    compiled = set()
    for keyword, schema in schema_places.references():
        reply = grammar.ask(keyword, json.dumps(schema))
        counts["refused" if "error" in reply else "compiled"] += 1
        for text in reply.get("answers", []):
            compiled.add(keyword)
            if text is None:
                continue
            counts["answers"] += 1
            if counts["answers"] % 5 == 0:
                valid = is_valid(schema, json.loads(text))
                counts["checked"] += valid is not None
                if valid is False:
                    sys.exit(f"{json.dumps(schema)} gives {text}, which does not fit it")
    for name, text in schema_places.too_much():
        grammar.ask(name, text)
    peak = grammar.peak_mib()
    print(", ".join(f"{n} {name}" for name, n in counts.items()), f"; {peak} MiB at most")
    if is_small and peak > MEMORY_MIB:
        sys.exit(f"the schemas take {peak} MiB, more than {MEMORY_MIB}")
    for keyword in ("propertyNames", "properties", "items", "anyOf", "additionalProperties"):
        if keyword not in compiled:
            sys.exit(f"no schema that refers to itself in '{keyword}' compiles")
    if counts["checked"] < 500:
        sys.exit("too few answers to mean anything")


if __name__ == "__main__":
    main()
