#!/usr/bin/env python3
"""Compares render_templates with frozen results of jinja2 as transformers configures it.

usage: check_templates.py RENDER_TEMPLATES

The samples are written by compare_templates.py --freeze: a checksum of the text that each template
in templates/ gives for every conversation, or null where it refuses, and the texts of random
templates. Python's standard library only.
"""
import hashlib
import json
import pathlib
import struct
import subprocess
import sys

import template_conversations
import template_random

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1_790_000_123
TRUSTED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def render(program, cases):
    records = []
    for source, variables in cases:
        document = {"variables": variables, "trusted": TRUSTED, "now": NOW}
        for text in (source.encode(), json.dumps(document).encode()):
            records.append(struct.pack("=I", len(text)) + text)
    done = subprocess.run([program], input=b"".join(records), stdout=subprocess.PIPE, check=True)
    at = 0
    while at < len(done.stdout):
        status, n = struct.unpack_from("=II", done.stdout, at)
        yield done.stdout[at + 8:at + 8 + n].decode() if status == 0 else None
        at += 8 + n


def main():
    samples = json.loads((HERE / "frozen_templates.json").read_text())
    conversations = dict(template_conversations.all_cases())
    labels, cases, wanted = [], [], []
    for name, results in samples["templates"].items():
        source = (HERE / "templates" / name).read_text(encoding="utf-8")
        for label, checksum in results.items():
            labels.append(f"{name}: {label}")
            cases.append((source, conversations[label]))
            wanted.append(checksum)
    for source, text in samples["random"]:
        labels.append(ascii(source))
        cases.append((source, template_random.VARIABLES))
        wanted.append(text if text is None else hashlib.sha256(text.encode()).hexdigest()[:16])
    n_bad = 0
    for label, want, text in zip(labels, wanted, render(sys.argv[1], cases), strict=True):
        own = text if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]
        n_bad += own != want
        if own != want and n_bad <= 5:
            print(f"{label}: want {want}, ours {own}: {ascii(text)}")
    print(f"{len(cases)} samples, {n_bad} different from {samples['official']}")
    return 1 if n_bad > 0 or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
