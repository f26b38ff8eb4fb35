#!/usr/bin/env python3
"""Checks answers of a served model to random JSON schemas with the jsonschema package.

usage: schema_load.py PROGRAM MODEL [--schemas N] [--seeds K] [--first S] [--clients C]
                      [--tokens T] [--ajv DIR] [OPTION...]

Asks /v1/chat/completions of the real server for N random schemas with K seeds each, C requests at a
time, at temperature 1. Every answer that ends by itself must be JSON without a name twice that
jsonschema, formats included, finds nothing wrong with, and ajv where --ajv says where its packages
are. A schema may be refused only because no value satisfies it, which is checked against values
made for it, or because its oneOf cannot be decided. The other OPTIONs are passed to the server.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import threading
import time

from served import Server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "text"))
from grammar_test import (Instances, Maker, VALIDATOR,  # pylint: disable=wrong-import-position
                          check_with_ajv, format_checker, no_name_twice)

PROMPTS = ["Answer as JSON.", "Write a story about a robot who loves music.", "What is 12 + 30?",
           "Write a C function that adds two numbers.", "写一首关于月亮的诗。",
           "Name three colours.", "{", "今日の天気を教えてください。"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--ajv")
    return parser.parse_known_args()


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


class Asked:
    """Counts and errors, shared by threads."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.reasons = collections.Counter()
        self.faults, self.cases = [], []
        self.slowest = (0, 0)

    def fault(self, what, schema, seed):
        with self.lock:
            self.faults.append(f"{what}\n  seed {seed}, schema {json.dumps(schema)}")

    def count(self, *names):
        with self.lock:
            self.counts.update(names)

    def schema(self, number):
        """Asks for one schema with all its seeds."""
        maker = Maker(self.options.first * 1000003 + number)
        schema = maker.root()
        self.count("schemas")
        for seed in range(self.options.seeds):
            prompt = PROMPTS[(number + seed) % len(PROMPTS)]
            body = {"messages": [{"role": "user", "content": prompt}], "temperature": 1,
                    "seed": number * 1000 + seed, "max_tokens": self.options.tokens,
                    "response_format": {"type": "json_schema", "json_schema": {
                        "name": "random", "schema": schema}}}
            self.count("asked")
            begin = time.time()
            try:
                status, reply = self.server.post("/v1/chat/completions", body)
            except OSError as error:
                self.fault(f"no answer: {error}", schema, seed)
                continue
            self.slowest = max(self.slowest, (time.time() - begin, number))
            if status == 200:
                self.answered(schema, seed, reply)
            else:
                self.refused(schema, seed, status, reply, maker)

    def answered(self, schema, seed, reply):
        choice = reply["choices"][0]
        self.counts["tokens"] += reply["usage"]["completion_tokens"]
        if choice["finish_reason"] == "length":
            self.count("cut off")
            if reply["usage"]["completion_tokens"] != self.options.tokens:
                self.fault(f"cut off too early: {reply['usage']}", schema, seed)
            return
        self.count("finished")
        text = choice["message"]["content"]
        try:
            value = json.loads(text, object_pairs_hook=no_name_twice, parse_constant=no_constant)
        except (TypeError, ValueError) as error:
            self.fault(f"{choice['finish_reason']}, not JSON: {text!r}: {error}", schema, seed)
            return
        validator = VALIDATOR(schema, format_checker=format_checker())
        errors = [e.message for e in validator.iter_errors(value)]
        if errors or choice["finish_reason"] != "stop":
            self.fault(f"{choice['finish_reason']}, not valid: {text}: {errors}", schema, seed)
            return
        self.count("valid")
        with self.lock:
            self.cases.append([schema, [text]])

    def refused(self, schema, seed, status, reply, maker):
        self.count("refused")
        message = reply.get("error", {}).get("message", "")
        is_empty = "no value satisfies" in message
        if status != 400 or not (is_empty or "'oneOf'" in message):
            self.fault(f"refused with {status}: {message}", schema, seed)
            return
        with self.lock:
            self.reasons[re.sub(r"#\S*", "#/...", message)] += 1
        validator = VALIDATOR(schema, format_checker=format_checker())
        instances = Instances(schema, maker)
        for _ in range(30 if is_empty and seed == 0 else 0):
            value = instances.make([schema])
            if validator.is_valid(value):
                self.fault(f"refused though {json.dumps(value)} fits: {message}", schema, seed)
                return


def main():
    options, extra = parse_arguments()
    begin = time.time()
    with Server(options.program, options.model, "--parallel", str(options.clients),
                *extra) as server:
        asked = Asked(server, options)
        with concurrent.futures.ThreadPoolExecutor(options.clients) as crew:
            for done in [crew.submit(asked.schema, i) for i in range(options.schemas)]:
                done.result()
        if server.stop() != 0:
            asked.faults.append("the server failed:\n" + server.lines()[-2000:])
    counts = asked.counts
    print(", ".join(f"{counts[name]} {name}" for name in (
        "schemas", "asked", "refused", "cut off", "finished", "valid", "tokens")),
        f"in {time.time() - begin:.0f} s")
    print(f"  the slowest takes {asked.slowest[0]:.1f} s, schema {asked.slowest[1]}")
    for reason, n in asked.reasons.most_common():
        print(f"  refused {n}: {reason}")
    for fault in asked.faults[:10]:
        print("FAULT:", fault)
    if options.ajv:
        check_with_ajv(options.ajv, asked.cases)
        print("  ajv finds nothing wrong either")
    if counts["finished"] * 3 < counts["asked"]:
        sys.exit("too few finished answers to mean anything")
    return 1 if asked.faults else 0


if __name__ == "__main__":
    sys.exit(main())
