#!/usr/bin/env python3
"""Sends `flashmoe serve` valid requests with some of their bytes changed.

usage: http_fuzz.py PROGRAM [--seconds N] [--seed N] [--clients N] [--keep FOLDER] [--no-memory]

Clients take requests of every path and dialect and change, cut, duplicate and mix them. They send
them in one piece or many, and read the whole answer or part of it, or disconnect. An answer must be
HTTP with a status other than 500. Every second the server must be alive and answer an honest client
as always. Its memory must stay bounded, and in the end it must stop with status 0. Works best with
a program built with AddressSanitizer (use --no-memory then, because it delays freeing memory). If
something is wrong, FOLDER keeps what was sent last.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "api"))
import scripted_model  # noqa: E402 pylint: disable=wrong-import-position
from served import Server  # noqa: E402 pylint: disable=wrong-import-position

KIB_SLACK = 64 << 10
TOOL = {"name": "look", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, None]}}}}
TURNS = [{"role": "system", "content": "S"}, {"role": "user", "content": "A"},
         {"role": "assistant", "content": None, "tool_calls": [
             {"id": "call_1", "type": "function", "function": {"name": "look",
                                                               "arguments": "{\"a\":\"b\"}"}}]},
         {"role": "tool", "tool_call_id": "call_1", "content": "C"}]
BODIES = [
    ("/v1/chat/completions", {"messages": TURNS, "tools": [{"type": "function", "function": TOOL}],
                              "tool_choice": "auto", "stream": True,
                              "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "A"}]}], "temperature": 0.5, "seed": 1, "n": 2, "logprobs": True,
        "top_logprobs": 3, "stop": ["x", "\n"], "logit_bias": {"5": -100}, "max_tokens": 5}),
    ("/v1/chat/completions", {"messages": TURNS[1:2], "max_completion_tokens": 8,
                              "response_format": {"type": "json_schema", "json_schema": {
                                  "name": "n", "schema": TOOL["parameters"]}}}),
    ("/v1/completions", {"prompt": ["A", "B"], "max_tokens": 4, "echo": True, "stream": True}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text",
                                                               "text": "A"}]}],
                       "instructions": "S", "stream": True, "max_output_tokens": 16,
                       "tools": [{"type": "function", **TOOL}]}),
    ("/v1/messages?beta=true", {"system": [{"type": "text", "text": "S"}], "max_tokens": 9,
                                "messages": [{"role": "user", "content": [
                                    {"type": "text", "text": "A"}]}], "stream": True,
                                "tools": [{"name": "look", "input_schema": TOOL["parameters"]}]}),
    ("/v1/messages/count_tokens", {"messages": TURNS[1:2]}),
    ("/tokenize", {"content": "A\u00e9\u6c49", "parse_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3, 4]}),
    ("/apply-template", {"messages": TURNS}),
    ("/v1/completions", {"prompt": [[5, 6, 7], [8]], "max_tokens": 0, "echo": True, "logprobs": 2}),
    ("/v1/chat/completions", {"messages": [*TURNS[1:2], {"role": "assistant", "content": "So"}],
                              "continue_final_message": True, "max_tokens": 5}),
    ("/api/chat", {"messages": TURNS[1:2], "think": True, "logprobs": True,
                   "options": {"num_predict": 5, "stop": ["x"]}}),
    ("/api/generate", {"prompt": "A", "raw": True, "stream": False, "options": {"num_predict": 4}}),
    ("/api/show", {"model": "any"}),
    ("/completion", {"prompt": ["A", [5, 6]], "n_predict": 4, "n_probs": 2, "stream": True}),
    ("/infill", {"input_prefix": "A", "input_suffix": "B", "n_predict": 4}),
    ("/v1/embeddings", {"input": ["A", [5, 6]], "encoding_format": "base64"}),
]
PATHS = ["/", "/health", "/v1/models", "/models/nano", "/metrics", "/props", "/slots", "/stats",
         "/experts", "/api/version", "/api/tags", "/api/ps", "/app.js", "/none", "/../x.js"]
WORDS = [b"\r\n", b"\n", b"\r\n\r\n", b"\0", b": ", b"\xff\xfe", b"chunked",
         b"Connection: close\r\n",
         b"Transfer-Encoding: chunked\r\n", b"Content-Length: 18446744073709551616\r\n",
         b"Content-Length: -1\r\n", b"Content-Length: 7\r\n", b"Expect: 100-continue\r\n", b"%00",
         b"HTTP/1.0", b"HTTP/2.0", b"Upgrade: h2c\r\n", b"{", b"[" * 300,
         b"x: " + b"y" * 3000 + b"\r\n",
         b'{"a":' * 90, b"null", b"1e999", b"-0", b"9" * 40, b'"\\ud800"', b'"\\u0000"', b"true",
         b"\xed\xa0\x80", b'"stream":true,', b'"n":64,', b'"max_tokens":0,',
         b"ffffffffffffffff\r\n",
         b"0\r\n\r\n", b"PUT ", b"HEAD ", b"OPTIONS ", b" " * 4000]


def framed(path, data, rng):
    """Returns a good request with this body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    if rng.random() < 0.8:
        return head + b"Content-Length: %d\r\n\r\n" % len(data) + data
    out, at = head + b"Transfer-Encoding: chunked\r\n\r\n", 0
    while at < len(data):
        piece = data[at:at + rng.randrange(1, 200)]
        out += b"%x\r\n" % len(piece) + piece + b"\r\n"
        at += len(piece)
    return out + b"0\r\n\r\n"


def changed(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 12))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 5, 30, 200)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.choice((1, 3, 40)))
        elif kind == 4:
            data[at:at] = rng.choice(WORDS)
        elif kind == 5:
            data[at:end] = rng.choice(WORDS)
        elif numbers := list(re.finditer(rb"\d+", bytes(data))):
            found = rng.choice(numbers)
            data[found.start():found.end()] = rng.choice(
                (b"0", b"-1", b"65536", b"4294967296", b"1.5", b"9223372036854775808", b'"7"'))
    return bytes(data)


def make_request(rng):
    if rng.random() < 0.15:
        whole = f"{rng.choice(('GET', 'HEAD', 'OPTIONS'))} {rng.choice(PATHS)} HTTP/1.1\r\n" \
                "Host: localhost\r\nOrigin: http://localhost:1\r\nAccept: */*\r\n\r\n"
        return changed(whole.encode(), rng)
    path, body = rng.choice(BODIES)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    script = rng.choice(list(scripted_model.SCRIPTS)).encode()
    data = data.replace(b'"A"', b'"' + script + b'"')
    kind = rng.random()
    if kind < 0.45:  # only the body is wrong
        return framed(path, changed(data, rng), rng)
    whole = framed(path, data, rng)
    if kind < 0.55:
        return whole[:rng.randrange(len(whole))]
    if kind < 0.65:  # after a good one on the same connection
        return whole + changed(framed(path, data, rng), rng)
    return changed(whole, rng)


class Fuzz:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.statuses = collections.Counter()
        self.last = [collections.deque(maxlen=20) for _ in range(options.clients)]
        self.faults = []
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()

    def exchange(self, data, rng):
        """Returns what was received of the answer."""
        link = self.server.socket()
        link.settimeout(rng.choice((0.01, 0.02, 0.05, 0.5)))
        if rng.random() < 0.2:  # disconnects with a reset
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer = b""
        try:
            at = 0
            while at < len(data):
                n = len(data) if rng.random() < 0.7 else rng.randrange(1, 300)
                link.sendall(data[at:at + n])
                at += n
            if rng.random() < 0.4:
                link.shutdown(socket.SHUT_WR)
            most = rng.choice((0, 1, 100, 1 << 20))
            while len(answer) < most and (piece := link.recv(min(most, 65536))):
                answer += piece
        except (TimeoutError, ConnectionError, OSError):
            pass
        link.close()
        return answer

    def client(self, number):
        rng = random.Random(f"{self.options.seed}-{number}")
        while time.monotonic() < self.end and not self.faults:
            data = make_request(rng)
            self.last[number].append(data)
            try:
                answer = self.exchange(data, rng)
            except OSError as error:  # no connection
                self.faults.append(f"cannot connect: {error}")
                return
            found = re.match(rb"HTTP/1\.[01] (\d\d\d) ", answer)
            with self.lock:
                self.statuses[int(found[1]) if found else None] += 1
            if len(answer) > 16 and (not found or found[1] == b"500"):
                self.faults.append(f"answered {answer[:300]!r} to {data[:2000]!r}")

    def look(self):
        """Checks that the server is alive and answers as always."""
        if self.server.process.poll() is not None:
            self.faults.append(f"the server ended with {self.server.process.returncode}")
            return
        try:
            answer = self.server.ask("A", max_tokens=100)["choices"][0]["message"]["content"]
        except (AssertionError, OSError, ValueError) as error:
            if "503" not in str(error) and "queue is full" not in str(error):
                self.faults.append(f"an honest client got {error!r}")
            return
        if answer != "Hello there, world.":
            self.faults.append(f"an honest client got {answer!r}")

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,))
                   for i in range(self.options.clients)]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        warm_kib = max_kib = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(1, self.options.seconds / 10))
            self.look()
            if self.server.process.poll() is None:
                now = self.server.resident_kib()
                if warm_kib == 0 or time.monotonic() - begin < self.options.seconds * 0.3:
                    warm_kib = now
                max_kib = max(max_kib, now)
        for thread in threads:
            thread.join()
        if not self.options.no_memory and max_kib > warm_kib + KIB_SLACK:
            self.faults.append(f"memory grew from {warm_kib} KiB to {max_kib} KiB")
        print(f"{sum(self.statuses.values())} requests, answers by status "
              f"{dict(sorted(self.statuses.items(), key=str))}; resident {warm_kib >> 10} MiB, "
              f"{max_kib >> 10} MiB at most", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--no-memory", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        scripted_model.make(folder)
        with Server(options.program, folder, "--n-tokens", "200", "--idle-limit", "5",
                    "--request-limit", "1M", "--queue", "200") as server:
            fuzz = Fuzz(server, options)
            fuzz.run()
            status = server.stop()
            if status != 0:
                fuzz.faults.append(f"the server ended with {status}")
            for fault in fuzz.faults:
                print(fault)
            if fuzz.faults:
                print(server.lines()[-6000:])
    if fuzz.faults and options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        for number, sent in enumerate(fuzz.last):
            for i, data in enumerate(sent):
                (options.keep / f"{options.seed}-{number}-{i}").write_bytes(data)
    return 1 if fuzz.faults else 0


if __name__ == "__main__":
    sys.exit(main())
