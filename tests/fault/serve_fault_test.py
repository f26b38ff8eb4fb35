"""Makes one expert unreadable while the server answers several requests in one batch.

Usage: serve_fault_test.py PROGRAM PRELOAD NANO TESTS_DIR [TestClass...]

PRELOAD is the library built from preload_reads.c. Requests whose tokens choose the expert fail in
every dialect, and their errors name layer and expert and no file. The others give the text that
they give without the fault. The server's log names the file. When the expert can be read again,
all do.
"""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = PRELOAD = NANO = ""
GOOD = ("Tell a story about a robot.", "What is the capital of France?")
BAD = "\u6625\u671b"  # classical Chinese, which uses other experts
N_GOOD, N_BAD = 40, 6


def experts_of(prompt, n_tokens):
    """Returns the pairs of layer and expert that an answer uses."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.csv")
        subprocess.run([PROGRAM, "run", NANO, "-p", prompt, "--greedy", "-n", str(n_tokens), "-q",
                        "--no-heat", "--trace", path], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            rows = csv.DictReader(line for line in file if not line.startswith("#"))
            return {(int(row["layer"]), int(row["expert"])) for row in rows}


def chat(prompt, n_tokens, **more):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "max_tokens": n_tokens, **more}


# The request of each dialect.
DIALECTS = {
    "chat": ("/v1/chat/completions", chat(BAD, N_BAD)),
    "chat stream": ("/v1/chat/completions", chat(BAD, N_BAD, stream=True)),
    "logprobs": ("/v1/chat/completions", chat(BAD, N_BAD, logprobs=True, top_logprobs=3)),
    "responses": ("/v1/responses", {"input": BAD, "temperature": 0, "max_output_tokens": N_BAD}),
    "anthropic": ("/v1/messages", chat(BAD, N_BAD)),
}


class Answers:
    """Requests that run concurrently, each on its own thread."""

    def __init__(self, server):
        self.server, self.threads, self.found = server, [], {}

    def ask(self, name, path, body):
        def work():
            status, _, data = self.server.request("POST", path, body)
            self.found[name] = status, data.decode()
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def all(self):
        for thread in self.threads:
            thread.join()
        return self.found


def text_of(answer):
    status, data = answer
    assert status == 200, answer
    return json.loads(data)["choices"][0]["message"]["content"]


class OneExpert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        wanted = experts_of(BAD, N_BAD)
        others = set().union(*(experts_of(prompt, N_GOOD) for prompt in GOOD))
        cls.layer, cls.expert = min(wanted - others)
        model = json.loads(pathlib.Path(NANO, "model.json").read_text(encoding="utf-8"))
        record = next(r for r in model["experts"] if r["layer"] == cls.layer)
        begin = cls.expert * record["record_bytes"]
        cls.fault = f"{record['file']} {begin} {begin + record['record_bytes']}\n"
        cls.file = record["file"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.ranges = pathlib.Path(folder.name, "ranges")
        self.set_ranges("")
        # The sanitizer's runtime is not the first library then, which it would refuse.
        asan = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]))
        self.server = Server(PROGRAM, NANO, "--parallel", "8", "--sessions", "8", "--context",
                             "512", "--io", "direct", LD_PRELOAD=PRELOAD, ASAN_OPTIONS=asan,
                             FAULT_RANGE=str(self.ranges))
        self.addCleanup(self.server.__exit__)

    def set_ranges(self, lines):
        """Atomically: a read never sees a part of them."""
        new = self.ranges.with_suffix(".new")
        new.write_text(lines, encoding="ascii")
        new.replace(self.ranges)

    def wait_for(self, n):
        """Waits until this many requests are running or waiting."""
        deadline = time.monotonic() + 300
        while True:
            stats = self.server.get("/stats")
            if stats["active"] + stats["queued"] >= n:
                return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def ask_all(self, *, is_held):
        """Returns the answers to all requests. When held, all requests have arrived before the
        first pass over the model has read an expert, and are computed together from the second pass
        on. That needs a server without experts in memory."""
        if is_held:
            self.set_ranges(self.fault + "HOLD experts-\n")
        answers = Answers(self.server)
        answers.ask(0, "/v1/chat/completions", chat(GOOD[0], N_GOOD))
        if is_held:
            self.wait_for(1)
        answers.ask(1, "/v1/chat/completions", chat(GOOD[1], N_GOOD))
        for name, (path, body) in DIALECTS.items():
            answers.ask(name, path, body)
        if is_held:
            self.wait_for(2 + len(DIALECTS))
            self.set_ranges(self.fault)
        return answers.all()

    def is_refused(self, name, status, data):
        with self.subTest(name):
            self.assertEqual(status, 200 if "stream" in name else 500, data)
            named = re.search(r"expert (\d+) of layer (\d+) cannot be read", data)
            self.assertIsNotNone(named, data)
            self.assertEqual((int(named[2]), int(named[1])), (self.layer, self.expert))
            for secret in (NANO, os.path.dirname(os.path.abspath(NANO)), self.file, ".bin",
                           "at byte"):
                self.assertNotIn(secret, data)

    def test_only_those_who_need_it(self):
        broken = self.ask_all(is_held=True)
        for name in DIALECTS:
            self.is_refused(name, *broken[name])
        log = self.server.lines()
        self.assertRegex(log, rf"expert {self.expert} of layer {self.layer}: '[^']*/{self.file}'")
        # Once the disk works again, the same server answers all requests.
        self.set_ranges("")
        whole = self.ask_all(is_held=False)
        for name in DIALECTS:
            self.assertEqual(whole[name][0], 200, whole[name])
        for i in range(len(GOOD)):
            self.assertEqual(text_of(broken[i]), text_of(whole[i]))
            alone = self.server.ask(GOOD[i], max_tokens=N_GOOD)
            self.assertEqual(text_of(whole[i]), alone["choices"][0]["message"]["content"])
        metrics = self.server.request("GET", "/metrics")[2].decode()
        self.assertIn(f"\nflashmoe_requests_failed_total {len(DIALECTS)}\n", metrics)
        self.assertEqual(self.server.stop(), 0)


if __name__ == "__main__":
    PROGRAM, PRELOAD, NANO = sys.argv[1:4]
    sys.path.insert(0, os.path.join(sys.argv[4], "api"))
    from served import Server
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
