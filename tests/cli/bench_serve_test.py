#!/usr/bin/env python3
"""Tests `flashmoe bench serve`: against its own server, and against servers that behave like
llama-server or badly.

usage: bench_serve_test.py PROGRAM MODEL
"""
import http.server
import json
import subprocess
import sys
import threading
import unittest

PROGRAM = ""
MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine


def bench(*args):
    return subprocess.run([PROGRAM, "bench", "serve", *args, "--quiet"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=SECONDS,
                          stdin=subprocess.DEVNULL)


def event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def piece(text):
    return event({"choices": [{"text": text, "index": 0}]})


class FakeServer:
    """Answers completions with given bytes, which may depend on the request."""

    def __init__(self, body_of, vocabulary=1000, status=200):
        asks = self.asks = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                models = {"data": [{"id": "fake", "meta": {"n_vocab": vocabulary}}]}
                data = json.dumps(models if vocabulary else {"data": [{"id": "fake"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = True

            def do_POST(self):
                ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asks.append((self.path, dict(self.headers), ask))
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for data in body_of(ask):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                pass  # clients leave bad servers

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def good_body(ask):
    """Answers as llama-server does: a piece for each token, then the counts."""
    for i in range(ask["max_tokens"]):
        text = piece(f"{ask['prompt'][-1]}-{i} \0")
        yield text[:7]  # chunks end anywhere
        yield text[7:]
    yield event({"choices": [], "usage": {"completion_tokens": ask["max_tokens"],
                                          "prompt_tokens": len(ask["prompt"])},
                 "timings": {"cache_n": len(ask["prompt"]) // 2}})
    yield event(b"[DONE]")


class Test(unittest.TestCase):
    def json_of(self, *args):
        result = bench(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def assert_fails(self, result, status, *words):
        self.assertEqual(result.returncode, status, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_own(self):
        found = self.json_of(MODEL, "--users", "3", "--prompt", "20", "--prefix", "100",
                             "--tokens", "40", "--repeat", "2")
        [own] = found["servers"]
        self.assertTrue(own["is_own"])
        self.assertFalse(own["texts_differ"])
        for part in ("new", "cached"):
            values = own[part]
            self.assertGreater(values["tok_per_s"]["median"], 0)
            self.assertLessEqual(values["first_token_s"]["min"],
                                 values["first_token_last_s"]["max"])
            self.assertGreater(values["longest_gap_s"]["max"], 0)
            self.assertLessEqual(values["user_tok_per_s_min"]["min"],
                                 values["user_tok_per_s"]["max"])
        self.assertGreater(own["cached"]["cached_share"]["min"], 0.98)
        if own["limit"] is not None:
            self.assertLessEqual(own["tokens_per_pass"], 3)
            self.assertGreater(own["limit"]["expert_bytes"], 0)
        text = bench(MODEL, "--users", "2", "--prompt", "20", "--tokens", "8", "--repeat", "1")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("the same for new and cached prompts", text.stdout)

    def test_other_server(self):
        with FakeServer(good_body) as fake:
            found = self.json_of("--url", fake.url + "/v1", "--users", "5", "--prompt", "10",
                                 "--prefix", "4", "--tokens", "6", "--repeat", "2", "--api-key",
                                 "sesame")
            [server] = found["servers"]
            self.assertFalse(server["is_own"])
            self.assertIsNone(server["limit"])
            self.assertAlmostEqual(server["new"]["cached_share"]["median"], 0.5)
            self.assertFalse(server["texts_differ"])
            self.assertEqual(len(fake.asks), 5 + 2 * 2 * 5)
            for path, headers, ask in fake.asks:
                self.assertEqual(path, "/v1/completions")
                self.assertEqual(headers["Authorization"], "Bearer sesame")
                self.assertEqual(len(ask["prompt"]), 14)
                self.assertTrue(all(0 <= i < 1000 for i in ask["prompt"]))
                self.assertTrue(ask["stream"] and ask["ignore_eos"])
                self.assertEqual(ask["max_tokens"], 6)
            asks = [ask["prompt"] for _, _, ask in fake.asks]
            for start in (5, 15):  # of a round; the same prompts twice
                new, again = sorted(asks[start:start + 5]), sorted(asks[start + 5:start + 10])
                self.assertEqual(new, again)
                self.assertEqual(len({tuple(p[:4]) for p in new}), 1)
                self.assertEqual(len({tuple(p) for p in new}), 5)
            self.assertNotEqual(asks[5][:4], asks[15][:4])

    def test_both(self):
        with FakeServer(good_body, vocabulary=100) as fake:
            found = self.json_of(MODEL, "--url", fake.url, "--url", fake.url, "--users", "2",
                                 "--prompt", "5", "--tokens", "3", "--repeat", "1")
            self.assertEqual([s["is_own"] for s in found["servers"]], [True, False, False])
            self.assertTrue(all(i < 100 for _, _, ask in fake.asks for i in ask["prompt"]))

    def test_different_texts_are_told(self):
        n = [0]

        def body(ask):
            n[0] += 1
            yield piece(f"x{n[0]}")
            yield event(b"[DONE]")
        with FakeServer(body) as fake:
            self.assertTrue(self.json_of("--url", fake.url, "--users", "1", "--repeat",
                                         "1")["servers"][0]["texts_differ"])

    def test_tokens_without_text(self):
        """With random weights a token may have no text. llama-server sends it all the same."""
        def body(ask):
            for _ in range(ask["max_tokens"]):
                yield piece("")
            yield event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]})
            yield event(b"[DONE]")
        with FakeServer(body) as fake:
            server = self.json_of("--url", fake.url, "--users", "1", "--tokens", "5", "--repeat",
                                  "1")["servers"][0]
        self.assertGreater(server["new"]["tok_per_s"]["median"], 0)

    def test_bad_servers(self):
        few = ("--users", "2", "--prompt", "4", "--tokens", "4", "--repeat", "1")
        for body, words in (
                (lambda _: [piece("x")], "ended early"),
                (lambda _: [event(b"[DONE]")], "no text"),
                (lambda _: [event(b"nonsense")], "not a JSON object"),
                (lambda _: [event({"error": {"message": "no room"}})], "no room"),
                (lambda _: [b"data: " + b"x" * (3 << 20)], "too long")):
            with FakeServer(body) as fake:
                self.assert_fails(bench("--url", fake.url, *few), 1, fake.url, words)
        with FakeServer(lambda _: [b'{"error": "try later"}\n'], status=503) as fake:
            self.assert_fails(bench("--url", fake.url, *few), 1, "status 503", "try later")
        with FakeServer(good_body, vocabulary=None) as fake:
            self.assert_fails(bench("--url", fake.url, *few), 1, "n_vocab")
        self.assert_fails(bench("--url", "http://127.0.0.1:1", *few), 1, "cannot connect")

    def test_usage(self):
        for url, words in (("ftp://x", "http://"), ("https://127.0.0.1:1", "TLS")):
            self.assert_fails(bench("--url", url), 2, words)
        self.assert_fails(bench("--users", "0"), 2, "--users")


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
