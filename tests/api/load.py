#!/usr/bin/env python3
"""Load: idle streams, and clients that ask and leave.

usage: load.py PROGRAM MODEL [--clients N] [--seconds S] [--idle N] [--gone SHARE] [OPTION...]

First answers a set of requests one by one. Then N clients ask for them at random for S seconds, and
a share of them leaves before the end, while so many streams wait. Every answer must be the single
one, the only errors are 503, and memory must not grow. Exits 1 otherwise.
"""
import argparse
import json
import random
import resource
import sys
import threading
import time

from served import Server, raw_request

PROMPTS = ["Tell me a story about a cat.", "What is 12 + 30?", "Write a C function.",
           "Once upon a time", "Why is the sky blue?", "def fib(n):", "Name three colours.",
           "\u6625\u7720\u4e0d\u899a\u6653"]
CASES = [{"messages": [{"role": "user", "content": p}], "max_tokens": 12 + 3 * i, **k}
         for i, p in enumerate(PROMPTS)
         for k in ({"temperature": 0}, {"temperature": 0.9, "seed": 5})]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--gone", type=float, default=0.2)
    return parser.parse_known_args()


class Load:
    def __init__(self, server, wanted, options):
        self.server, self.wanted, self.options = server, wanted, options
        self.lock = threading.Lock()
        self.n_same = self.n_refused = self.n_gone = 0
        self.faults = []
        self.end = time.time() + options.seconds

    def count(self, name):
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    def leave(self, rng, case):
        connection = self.server.socket()
        connection.sendall(raw_request("/v1/chat/completions", {**case, "stream": True,
                                                                "max_tokens": 500}))
        time.sleep(rng.random() * 0.5)
        connection.close()
        self.count("n_gone")

    def client(self, number):
        rng = random.Random(number)
        while time.time() < self.end and len(self.faults) < 10:
            i = rng.randrange(len(CASES))
            try:
                if rng.random() < self.options.gone:
                    self.leave(rng, CASES[i])
                    continue
                status, _, body = self.server.request("POST", "/v1/chat/completions", CASES[i])
                if status == 503:
                    self.count("n_refused")
                    time.sleep(0.2 + rng.random())
                elif status != 200 or json.loads(body)["choices"] != self.wanted[i]:
                    self.faults.append((status, body[:300]))
                else:
                    self.count("n_same")
            except OSError as error:
                self.faults.append((type(error).__name__, str(error)))

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,))
                   for i in range(self.options.clients)]
        for thread in threads:
            thread.start()
        half = None
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.5)
            if half is None and time.time() > self.end - self.options.seconds * 0.7:
                half = self.server.resident_kib()
        for thread in threads:
            thread.join()
        return half


def open_idle(server, n):
    """Streams that wait: they are never more than queued."""
    held = []
    for _ in range(n):
        connection = server.socket()
        connection.sendall(raw_request("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "stream": True}))
        held.append(connection)
    return held


def measure_idle(options, extra):
    """So many streams, of which one is answered and the others wait."""
    with Server(options.program, options.model, "--parallel", "1", "--queue",
                str(options.idle + 10), "--connections", "8000", *extra) as server:
        before = server.resident_kib()
        busy = server.socket()
        busy.sendall(raw_request("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
            "logit_bias": {"16383": -100, "16381": -100}, "temperature": 0}))
        held = open_idle(server, options.idle)
        time.sleep(6)
        begin = time.time()
        server.get("/health")
        health_ms = (time.time() - begin) * 1000
        n_alive = 0
        for connection in held:
            connection.settimeout(10)
            n_alive += b"200 OK" in connection.recv(4096)
        print(f"idle: {n_alive} of {options.idle} streams opened, "
              f"{server.resident_kib() - before} KiB more, /health in {health_ms:.1f} ms")
        for connection in [busy, *held]:
            connection.close()
        is_good = server.stop() == 0 and n_alive == options.idle
    return is_good


def main():
    options, extra = parse_arguments()
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    is_good = measure_idle(options, extra) if options.idle > 0 else True
    with Server(options.program, options.model, "--parallel", "1", "--sessions", "1",
                *extra) as server:
        wanted = [json.loads(server.request("POST", "/v1/chat/completions", c)[2])["choices"]
                  for c in CASES]
    with Server(options.program, options.model, "--parallel", "8", "--connections", "8000",
                *extra) as server:
        load = Load(server, wanted, options)
        before = load.run()
        after = server.resident_kib()
        print(f"load: {load.n_same} same answers, {load.n_refused} refused, {load.n_gone} left, "
              f"{len(load.faults)} faults; memory {before} KiB, then {after} KiB")
        for fault in load.faults[:5]:
            print("  ", fault)
        is_good &= server.stop() == 0 and not load.faults and load.n_same > 0
        is_good &= before is None or after < before * 1.1 + 8192
        if not is_good:
            print(server.lines()[-2000:])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
