#!/usr/bin/env python3
"""Sends `flashmoe serve` recorded requests of coding agents, without the agents.

usage: replay_test.py PROGRAM

requests/ holds the recordings of agents_test.py --record: both turns of each agent, in their
original form but with other words. Every request must be answered completely in its dialect, and a
second turn must find what the first has computed.
"""
import http.client
import json
import pathlib
import re
import sys
import tempfile
import unittest

import agents_test
import long_nano

REQUESTS = pathlib.Path(__file__).resolve().parent / "requests"
FIRST = sorted(path.stem[:-2] for path in REQUESTS.glob("*-1.json"))
ENDS = {"/v1/chat/completions": r"\[DONE\]", "/v1/messages": '"message_stop"',
        "/v1/responses": '"response.(completed|incomplete)"'}
# Some of nano's answers would end only with the context, minutes later.
ANSWER_TOKENS = "64"


def read(name):
    return json.loads((REQUESTS / f"{name}.json").read_text(encoding="utf-8"))


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.server = agents_test.Server(sys.argv[1], long_nano.make(folder / "long-nano.fmoe"),
                                        folder, "--n-tokens", ANSWER_TOKENS)
        cls.port = int(cls.server.url.rsplit(":", 1)[1])

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.folder.cleanup()
        if status != 0:
            raise AssertionError(f"the server ended with {status}")

    def send(self, kept):
        """Returns (tokens of the prompt, cached tokens)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        connection.request("POST", kept["path"], json.dumps(kept["body"]).encode(),
                           {"Authorization": f"Bearer {agents_test.KEY}", **kept["headers"]})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200, text)
        path = kept["path"].split("?")[0]
        if kept["body"].get("stream"):
            self.assertEqual(answer.headers["Content-Type"].split(";")[0], "text/event-stream")
            last = re.findall(r"(?m)^data: (.*)$", text)[-1]
            self.assertRegex(last, ENDS[path])
        usage = [u for u in re.findall(r'"usage":\s*(\{(?:[^{}]|\{[^{}]*\})*\})', text)]
        found = {}
        for one in usage:
            found.update(json.loads(one))
        details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
        n_cached = details.get("cached_tokens", found.get("cache_read_input_tokens", 0))
        n_prompt = found.get("prompt_tokens", found.get("input_tokens", 0))
        if path == "/v1/messages":  # this API counts only what was not cached
            n_prompt += n_cached
        self.assertGreater(n_prompt, 0, text)
        return n_prompt, n_cached

    def test_all_agents_are_there(self):
        self.assertEqual(FIRST, ["claude", "codex", "opencode", "pi", "qwen"])

    def test_turns(self):
        for name in FIRST:
            with self.subTest(agent=name):
                firsts = [self.send(read(p.stem))[0]
                          for p in sorted(REQUESTS.glob(f"{name}-1*.json"))]
                longest = max(sorted(REQUESTS.glob(f"{name}-2*.json")),
                              key=lambda p: p.stat().st_size)
                n_prompt, n_cached = self.send(read(longest.stem))
                # All of the first turn's prompt, except for the tokens that begin an answer.
                self.assertGreater(n_cached, 0.8 * max(firsts))
                self.assertGreater(n_prompt, n_cached)

    def test_billing_header(self):
        """The one line of Claude Code's prompt that changes between requests is ignored."""
        kept = read("claude-1")
        for number in range(2):
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.197."
                       f"{number}ab; cc_entrypoint=cli; cch={number}{number}9cd;"}]
            kept["body"]["system"] = system + [block for block in kept["body"]["system"] if
                                               "billing-header" not in block["text"]]
            n_prompt, n_cached = self.send(kept)
        self.assertGreater(n_cached, 0.9 * n_prompt)

    def test_whole_answers(self):
        for name in FIRST:
            with self.subTest(agent=name):
                kept = read(f"{name}-1")
                kept["body"]["stream"] = False
                kept["body"].pop("stream_options", None)
                self.send(kept)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
