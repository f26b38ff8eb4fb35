#!/usr/bin/env python3
"""Runs the blocks of docs/CLIENTS.md that need a client from a package registry, with that client.

usage: settings_test.py PROGRAM NAME [--cache DIR]

NAME is what `needs NAME` says above a block. The blocks before it are files and the server. Exits
77, with the reason, if the client cannot be installed.
"""
import argparse
import pathlib
import re
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import clients
import pages
from machine import Machine


def posts(machine):
    return re.findall(r" POST (\S+) (\d+)", machine.log())


def run_block(machine, block, programs):
    """Returns what is wrong."""
    text = block.text
    if block.language == "python":
        machine.write("~/example.py", text)
        text = f"'{programs / 'python'}' ~/example.py"
    before = len(posts(machine))
    status, output = machine.run(f"export PATH='{programs}':\"$PATH\"\n{text}", block.where(),
                                 keeps=False)
    asked = posts(machine)[before:]
    print(f"{block.where()}: {output.strip()[-500:]}\n{asked}")
    if status != 0:
        return f"it ended with {status}:\n{output[-3000:]}\n{machine.log()[-2000:]}"
    if not asked or any(code != "200" for _, code in asked):
        return f"one request or more with status 200 were expected, seen: {asked}\n{output[-3000:]}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("name", choices=[n for n in clients.NAMES if n not in clients.ELSEWHERE])
    parser.add_argument("--cache", type=pathlib.Path, default=pages.ROOT / "build-oracle")
    options = parser.parse_args()
    programs = clients.programs_of(options.name, options.cache)
    found = pages.blocks_of("docs/CLIENTS.md")
    faults = []
    with Machine(options.program) as machine:
        server = machine.faults_of(found[0])  # the page begins with it
        faults += [server] if server else []
        for block in found:
            if block.kind == "file":
                machine.write(block.value, block.text)
            elif block.kind == "needs" and block.value == options.name and not faults:
                wrong = run_block(machine, block, programs)
                faults += [f"{block.where()}: {wrong}"] if wrong else []
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
