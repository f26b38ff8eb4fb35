#!/usr/bin/env python3
"""Measures how fast answers come over HTTP compared with `flashmoe run` in the same minute.

usage: serve_speed.py PROGRAM [MODEL] [--tokens N] [--rounds N] [--other PROGRAM]
                      [--option OPTION]...

In every round `flashmoe run` writes N greedy tokens, then a server that was just started streams
the same ones to one client on this machine: both begin with an empty cache. Speeds are what a
reader of the text sees, from its first piece to its last; `run` also tells its own, which is that
of the passes over the model, without the choice of tokens. Both texts must be the same. Prints
every round, and medians, spread and shares. With --other the server of another build takes its
turn in each round, too; --option goes to all of them.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

NANO = pathlib.Path(__file__).resolve().parents[2] / "models" / "nano.fmoe"
PROMPT = "Write a story about a robot who loves music."
# The tokens that end an answer of nano: it must not end early.
ENDS = (16383, 16381)


def run_once(program, options):
    """Returns (tokens per second as printed, as the program reports them, text)."""
    with tempfile.TemporaryFile() as err:
        run = subprocess.Popen(
            [program, "run", options.model, "-p", PROMPT, "-n", str(options.tokens), "--greedy",
             "--no-heat", "--logit-bias", ",".join(f"{i}=-inf" for i in ENDS), *options.option],
            stdout=subprocess.PIPE, stderr=err)
        pieces = []
        while piece := os.read(run.stdout.fileno(), 1 << 16):
            pieces.append((time.perf_counter(), piece))
        run.stdout.close()
        if run.wait() != 0:
            raise RuntimeError("`run` failed")
        err.seek(0)
        told_speed = re.search(rb"([0-9.]+) tok/s", err.read())[1]
    text = b"".join(p for _, p in pieces).decode()
    timed = [t for t, p in pieces if p != b"\n"]  # the last one ends the line
    return (options.tokens - 1) / (timed[-1] - timed[0]), float(told_speed), text


def start(program, options, log):
    server = subprocess.Popen([program, "serve", options.model, "--port", "0", "--no-heat",
                               *options.option], stdout=log, stderr=log)
    while server.poll() is None:
        found = re.search(r"listening on http://\S+:(\d+)", pathlib.Path(log.name).read_text())
        if found:
            return server, int(found[1])
        time.sleep(0.02)
    raise RuntimeError("the server did not start: " + pathlib.Path(log.name).read_text())


def read_stream(port, body):
    """Returns the pieces with their times; the client does as little work as possible."""
    data = json.dumps(body).encode()
    link = socket.create_connection(("127.0.0.1", port))
    begin = time.perf_counter()
    link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                 b"Content-Length: %d\r\n\r\n"
                 % len(data) + data)
    pieces = []
    while not pieces or b"[DONE]" not in pieces[-1][1]:
        piece = link.recv(1 << 16)
        if not piece:
            raise RuntimeError("the stream ended early")
        pieces.append((time.perf_counter() - begin, piece))
    link.close()
    return pieces


class Streamed:
    def __init__(self, pieces, n_tokens):
        timed = [(t, p) for t, p in pieces if b'"content":"' in p and b'"content":""' not in p]
        texts = re.findall(r"(?m)^data: (\{.*)$", b"".join(p for _, p in pieces).decode())
        deltas = [c["delta"] for t in texts for c in json.loads(t)["choices"]]
        self.text = "".join(d.get("content") or "" for d in deltas)
        self.first_ms = timed[0][0] * 1e3
        # A token's text may come together with the next one's; the first piece has one.
        self.speed = (n_tokens - 1) / (timed[-1][0] - timed[0][0])
        self.gap_ms = 1e3 * max(b[0] - a[0] for a, b in zip(timed, timed[1:]))
        self.n_reads = len(timed)


def serve_once(program, options):
    body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "temperature": 0,
            "max_tokens": options.tokens, "logit_bias": {str(i): -100 for i in ENDS}}
    with tempfile.NamedTemporaryFile() as log:
        server, port = start(program, options, log)
        try:
            return Streamed(read_stream(port, body), options.tokens)
        finally:
            server.terminate()
            server.wait()


def told(name, speeds):
    median = statistics.median(speeds)
    return (f"{name}: median {median:.1f} tok/s, {min(speeds):.1f} to {max(speeds):.1f} "
            f"({(max(speeds) - min(speeds)) / median:.1%})")


def share(speeds, against):
    pairs = statistics.median(s / a for s, a in zip(speeds, against))
    return (f"{statistics.median(speeds) / statistics.median(against):.1%} "
            f"(median of the rounds {pairs:.1%}, fastest to fastest "
            f"{max(speeds) / max(against):.1%})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("model", nargs="?", default=str(NANO))
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--other", help="another build's program, whose server is measured too")
    parser.add_argument("--option", action="append", default=[], help="for run and serve")
    options = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = "/dev/null/none"
    servers = [options.program] + ([options.other] if options.other else [])
    runs, owns, served = [], [], {name: [] for name in servers}
    for i in range(options.rounds):
        speed, own, text = run_once(options.program, options)
        runs.append(speed)
        owns.append(own)
        line = f"{i + 1:2}: run {speed:7.1f} (decoding alone {own:.1f})"
        for name in servers:
            found = serve_once(name, options)
            if found.text.rstrip("\n") != text.rstrip("\n"):
                raise RuntimeError("the server's text is another than that of `run`")
            served[name].append(found.speed)
            line += (f"   serve {found.speed:7.1f} ({found.speed / speed:6.1%}; first after "
                     f"{found.first_ms:.1f} ms, longest gap {found.gap_ms:.1f} ms, "
                     f"{found.n_reads} reads)")
        print(line, flush=True)
    print(told("run", runs))
    print(told("run, decoding alone", owns))
    for name in servers:
        print(told(f"serve {name}", served[name]))
        print(f"  of run {share(served[name], runs)}, of its decoding alone "
              f"{share(served[name], owns)}")


if __name__ == "__main__":
    sys.exit(main())
