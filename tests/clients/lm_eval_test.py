#!/usr/bin/env python3
"""PyPI's lm-eval-harness (local-completions) on nano gives what `flashmoe eval nll` gives.

usage: lm_eval_test.py PROGRAM NANO [--cache DIR]

The exit status is 77 when the package cannot be installed.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from packages import HERE, python_of

sys.path.insert(0, str(HERE.parent / "api"))
from served import Server # pylint: disable=wrong-import-position

# The first token of each is its first word, so that a text is cut where a token ends.
TEXTS = [
    ("Once", " upon a time there was a robot who loved music. Every day it sang to the birds."),
    ("The", " cat sat on the mat, and the dog lay under the table. Nobody said anything."),
    ("def", " add(a, b):\n    \"\"\"Returns the sum.\"\"\"\n    return a + b\n"),
    ("1", "2 + 30 = 42, because 12 and 30 are 42."),
    ("\u5e8a", "\u524d\u660e\u6708\u5149\uff0c\u7591\u662f\u5730\u4e0a\u971c\u3002"),
]
TOLERANCE = 2e-6 # nats per token: log probabilities travel as floats of 32 bits


def nats_of(program, nano, text, folder):
    """The sum over a text as `eval nll` has it, and the number of predicted tokens."""
    path = pathlib.Path(folder) / "text.txt" # of a .jsonl, the end of a document would count
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([program, "eval", "nll", nano, path, "--json", "--quiet"], check=True,
                          stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    assert found["n_windows"] == 1, found
    return found["nats_per_token"] * found["n_tokens"], found["n_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("nano")
    parser.add_argument("--cache", type=pathlib.Path)
    options = parser.parse_args()
    python = python_of("lm-eval", ["lm_eval[api]<1", "transformers<6"], options.cache)
    with tempfile.TemporaryDirectory() as folder:
        texts = pathlib.Path(folder) / "texts.json"
        texts.write_text(json.dumps([{"first": a, "rest": b} for a, b in TEXTS]))
        with Server(options.program, options.nano) as server:
            environment = {**os.environ, "FLASHMOE_URL": server.url, "NO_PROXY": "127.0.0.1",
                           "HF_HUB_OFFLINE": "1", "HF_HOME": folder, "OPENAI_API_KEY": "none",
                           "TRANSFORMERS_VERBOSITY": "error"}
            done = subprocess.run([python, HERE / "lm_eval_client.py", texts, options.nano],
                                  env=environment, check=False, stdout=subprocess.PIPE,
                                  encoding="utf-8")
            if done.returncode != 0:
                print(done.stdout, server.lines())
                return 1
        found = json.loads(done.stdout.split("RESULT ", 1)[1])
        for (first, rest), value in zip(TEXTS, found["sums"], strict=True):
            nats, n = nats_of(options.program, options.nano, first + rest, folder)
            print(f"{n:4} tokens: lm-eval {-value:.6f} nats, eval nll {nats:.6f}")
            assert abs(-value - nats) <= TOLERANCE * n, (first, value, nats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
