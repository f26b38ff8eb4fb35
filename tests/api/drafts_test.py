"""A server with drafts answers as one without: greedy and sampled, with log probabilities, stop
strings and a schema, several requests at a time.

usage: drafts_test.py PROGRAM MODEL
"""
import concurrent.futures
import re
import sys
import unittest

import served
from one_server import metric, wait_until

PROGRAM = MODEL = ""
REPEATED = "Once upon a time there was a little fox. " * 6
LETTERS = "List: a b c d e a b c d e a b c"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                           "again": {"enum": ["fox", "little fox"]}},
          "required": ["name", "again"], "additionalProperties": False}


def text_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def requests():
    for seed in range(4):
        for temperature in (0, 1):
            yield "/v1/completions", {"prompt": REPEATED + "Once upon a", "max_tokens": 80,
                                      "temperature": temperature, "seed": seed, "logprobs": 2}
    yield "/v1/completions", {"prompt": LETTERS, "max_tokens": 60, "temperature": 0,
                              "stop": ["e a b"]}
    yield "/v1/completions", {"prompt": LETTERS, "max_tokens": 40, "temperature": 1, "seed": 5,
                              "frequency_penalty": 0.5}
    yield "/v1/chat/completions", {
        "messages": [{"role": "user", "content": REPEATED}], "max_tokens": 60, "seed": 3,
        "response_format": text_schema(SCHEMA)}
    yield "/v1/completions", {"prompt": REPEATED + "Once upon a", "max_tokens": 24, "n": 3,
                              "temperature": 1, "seed": 9, "logprobs": 1}
    yield "/v1/chat/completions", {
        "messages": [{"role": "user", "content": LETTERS}], "max_tokens": 40, "n": 2, "seed": 4,
        "logprobs": True, "top_logprobs": 3, "stop": ["c d"],
        "response_format": text_schema(SCHEMA)}


class Drafts(unittest.TestCase):
    def answers(self, draft):
        with served.Server(PROGRAM, MODEL, "--draft", draft, "--parallel", "4") as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                replies = list(pool.map(lambda r: server.post(*r), requests()))
            timings = [reply["timings"] for _, reply in replies]
            counts = [sum(t.get(name, 0) for t in timings)
                      for name in ("draft_n", "draft_n_accepted", "draft_passes")]
            wait_until(lambda: metric(server, "drafts_total") == counts[0] and
                       metric(server, "drafts_accepted_total") == counts[1])
            self.check_metrics(server.request("GET", "/metrics")[2].decode(), counts)
        self.assertEqual({status for status, _ in replies}, {200})
        for _, reply in replies:
            self.assertEqual(reply["timings"]["predicted_n"], reply["usage"]["completion_tokens"])
        return [reply["choices"] for _, reply in replies], (counts[0], counts[1])

    def check_metrics(self, metrics, counts):
        """By source and distance, drafts add up to those of all requests."""
        for name, total in zip(("draft_tokens_total", "draft_tokens_accepted_total"), counts):
            found = re.findall(name + r'{source="(\w+)",distance="[1-8]"} (\d+)', metrics)
            self.assertLessEqual({source for source, _ in found}, {"mtp", "lookup", "grammar"})
            self.assertEqual(sum(int(n) for _, n in found), total)
        passes = re.findall(r'draft_passes_total{drafts="\d"} (\d+)', metrics)
        self.assertEqual(sum(map(int, passes)), counts[2])

    def test_same_answers(self):
        expected, none = self.answers("off")
        self.assertEqual(none, (0, 0))
        for draft in ("1", "4", "8", "auto"):
            with self.subTest(draft):
                found, (n_drafts, n_accepted) = self.answers(draft)
                self.assertEqual(found, expected)
                if draft != "auto": # there the times decide
                    self.assertGreater(n_accepted, 0)
                    self.assertGreater(n_drafts, n_accepted)

    def test_no_waiting(self):
        """A token that was computed as a draft does not wait for the pass of another request."""
        long = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000,
                "stream": True, "temperature": 1, "seed": 1,
                "response_format": text_schema({"type": "string", "minLength": 30000})}
        short = {"prompt": "a b c d e f g h " * 12 + "a b", "max_tokens": 240, "temperature": 0}
        with served.Server(PROGRAM, MODEL, "--draft", "8", "--parallel", "2") as server:
            with server.socket() as other:
                other.sendall(served.raw_request("/v1/chat/completions", long))
                wait_until(lambda: metric(server, "passes_total") > 3)
                before = metric(server, "passes_total")
                status, reply = server.post("/v1/completions", short)
                passes = metric(server, "passes_total") - before
                running = metric(server, "requests_running")
        self.assertEqual((status, running), (200, 1), reply)
        timings = reply["timings"]
        self.assertEqual(timings["predicted_n"], 240)
        # It repeats itself, so that eight tokens are drafted in each of its passes.
        self.assertLess(timings["draft_passes"], 50)
        self.assertLess(passes, 160)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
