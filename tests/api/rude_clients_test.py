#!/usr/bin/env python3
"""Tests the server with clients that are slow, rude, gone or too many, and how it stops.

usage: rude_clients_test.py PROGRAM NANO [PART...]
"""
import itertools
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from one_server import OneServer, metric, read_all, wait_until
from served import Server, raw_request

PROGRAM, NANO = sys.argv[1:3]
LONG = {"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0,
        "max_tokens": 3500, "logit_bias": {"16383": -100, "16381": -100}}
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 3}


class Hostile(OneServer):
    """Invalid requests. After each, others are answered."""
    options = ("--request-limit", "1M", "--idle-limit", "2", "--connections", "400")

    def tearDown(self):
        answer = self.server.ask("A")
        self.assertEqual(answer["choices"][0]["message"]["content"], "Hello there, world.")

    def send(self, data):
        connection = self.server.socket()
        connection.settimeout(1800)
        try:
            connection.sendall(data)
        except ConnectionError:
            pass
        answer = read_all(connection)
        connection.close()
        return answer

    def test_no_http(self):
        for data in (b"\r\n\r\n", b"hello\r\n\r\n", b"\x00" * 1000, b"GET\r\n\r\n", b"\xff" * 70000,
                     b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: -5\r\n\r\n", b"POST / HTTP/1.1\r\nHost: localhost\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
            self.send(data)

    def test_header_flood(self):
        many = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 50) for i in range(5000))
        answer = self.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")
        self.assertNotIn(b"200 OK", answer)
        long = b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.assertNotIn(b"200 OK", self.send(long))
        before = self.server.resident_kib()
        for _ in range(200):
            self.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many)
        self.assertLess(self.server.resident_kib() - before, 30000)

    def test_too_large(self):
        big = raw_request("/v1/chat/completions", b" " * (2 << 20))
        head = big[:big.index(b"\r\n\r\n") + 4]
        answer = self.send(head + b" " * 1000)
        self.assertIn(b" 413 ", answer.split(b"\r\n")[0])
        self.assertIn(b"request_too_large", answer)
        head = (b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for end in (b"", b"0\r\n\r\n", chunk * 100 + b"0\r\n\r\n"): # it may continue or wait
            answer = self.send(head + chunk * 17 + end)
            self.assertIn(b"HTTP/1.1 413 ", answer.split(b"\r\n")[0])
            self.assertIn(b"request_too_large", answer)
            self.assertEqual(answer.count(b"HTTP/1.1"), 1)
        answer = self.send(head + chunk * 15 + b"0\r\n\r\n" + b"GET /health HTTP/1.1\r\n"
                           b"Host: localhost\r\nConnection: close\r\n\r\n")
        self.assertIn(b" 400 ", answer.split(b"\r\n")[0]) # not JSON, but not too large

    def test_truncated(self):
        whole = raw_request("/v1/chat/completions", SHORT)
        for n in range(1, len(whole), 7):
            connection = self.server.socket()
            connection.sendall(whole[:n])
            connection.close()

    def test_slow_headers(self):
        """An occasional byte does not keep a connection open and delays nobody."""
        slow = [self.server.socket() for _ in range(100)]
        text = itertools.cycle(b"GET / HTTP/1.1")

        def all_closed():
            byte = bytes([next(text)])
            for connection in list(slow):
                try:
                    connection.sendall(byte)
                except OSError:
                    connection.close()
                    slow.remove(connection)
            self.assertEqual(self.server.get("/health"), {"status": "ok"})
            return not slow
        self.assertTrue(wait_until(all_closed))

    def test_server_held_up(self):
        """A request that arrived in time is answered even if the server was stopped meanwhile."""
        connection = self.server.socket()
        time.sleep(0.5) # wait until it is accepted
        self.server.process.send_signal(signal.SIGSTOP)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(2.5)
        self.server.process.send_signal(signal.SIGCONT)
        self.assertIn(b"200 OK", read_all(connection))
        connection.close()

    def test_too_many_connections(self):
        held = []
        for _ in range(500):
            held.append(self.server.socket())
        for connection in held:
            connection.close()
        self.assertTrue(wait_until(lambda: self.is_there()))

    def is_there(self):
        try:
            return self.server.get("/health") == {"status": "ok"}
        except OSError:
            return False

    def test_keep_alive_and_pipelining(self):
        one = raw_request("/v1/chat/completions", {**SHORT, "messages": [
            {"role": "user", "content": "A"}]})
        connection = self.server.socket()
        connection.sendall(one + one + b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
                           b"Connection: close\r\n\r\n")
        answer = read_all(connection)
        connection.close()
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(answer.count(b'"Hello there'), 2)

    def test_methods_and_paths(self):
        for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/health", 405),
                                     ("DELETE", "/v1/models", 405), ("PUT", "/nothing", 404),
                                     ("GET", "/../../etc/passwd", 404), ("GET", "/a/b.js", 404),
                                     ("GET", "/none.js", 404), ("HEAD", "/", 200),
                                     ("HEAD", "/health?x=1", 200), ("GET", "/v1/models?a=b", 200),
                                     ("OPTIONS", "/nothing", 204)):
            self.assertEqual(self.server.request(method, path)[0], status, (method, path))

    def begin(self, body):
        """Returns the connection of a request that the server has read. The running requests do not
        tell: an abandoned one may be among them for a while."""
        before = metric(self.server, "requests_total")
        connection = self.server.socket()
        connection.sendall(raw_request("/v1/chat/completions", body))
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_total") > before))
        return connection

    def test_gone_in_the_middle(self):
        before = metric(self.server, "requests_cancelled_total")
        for stream in (True, False):
            for _ in range(10):
                connection = self.begin({
                    "messages": [{"role": "user", "content": "L"}], "stream": stream, "n": 64})
                if stream:
                    connection.recv(1000)
                connection.close()
        self.assertTrue(wait_until(
            lambda: metric(self.server, "requests_cancelled_total") >= before + 20))
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0))

    def test_gone_behind_unread_bytes(self):
        """Unread bytes do not hide that the client has left."""
        body = {"messages": [{"role": "user", "content": "L"}], "n": 64}
        for after in (b"G", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x" * 200000):
            for end in (socket.SHUT_WR, socket.SHUT_RDWR):
                before = metric(self.server, "requests_cancelled_total")
                connection = self.begin(body)
                connection.sendall(after)
                connection.shutdown(end)
                self.assertTrue(wait_until(
                    lambda: metric(self.server, "requests_cancelled_total") > before), after[:9])
                connection.close()


class Waiting(unittest.TestCase):
    """A busy model: the queue, pings, and clients that give up."""

    def setUp(self):
        # One thread, so that it computes all the time while others wait.
        self.server = Server(PROGRAM, NANO, "--parallel", "1", "--queue", "2", "--sessions", "2",
                             "--threads", "1")

    def tearDown(self):
        self.server.stop()
        self.server.__exit__()

    def start(self, body, path="/v1/chat/completions"):
        connection = self.server.socket()
        connection.sendall(raw_request(path, {**body, "stream": True}))
        return connection

    def test_queue(self):
        busy = self.start({**LONG, "n": 32})
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 1))
        waiting = [self.start(SHORT), self.start(SHORT, "/v1/messages")]
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_queued") == 2))
        stats = self.server.get("/stats")
        self.assertEqual((stats["active"], stats["queued"]), (1, 2))
        for connection in waiting: # headers come at once
            self.assertIn(b"200 OK", connection.recv(200))
        for path, status in (("/v1/chat/completions", 503), ("/v1/responses", 503),
                             ("/v1/messages", 529)):
            got, headers, body = self.server.request("POST", path, {**SHORT, "input": "A"})
            self.assertEqual(got, status, body)
            self.assertIn("Retry-After", headers)
        waiting[0].close()
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_queued") == 1))
        text = b""
        while text.count(b"event: ping") < 2 and b"message_stop" not in text:
            text += waiting[1].recv(65536)
        self.assertGreaterEqual(text.count(b"event: ping"), 2)
        busy.close() # now it is the next one's turn
        text += read_until(waiting[1], b"message_stop")
        self.assertIn(b"message_stop", text)
        waiting[1].close()

    def test_connections(self):
        """Warns if fewer connections are accepted than requested, and only then."""
        for options, warns in (((), False), (("--connections", "100"), False),
                               (("--connections", "2048"), True)):
            with Server(PROGRAM, NANO, "--request-memory", "8M", *options) as server:
                self.assertEqual("at most 113 connections instead of 2048" in server.lines(),
                                 warns, server.lines())
                held = [server.socket() for _ in range(90)]
                self.assertTrue(wait_until(lambda: metric(server, "http_connections") == 91))
                for connection in held:
                    connection.close()

    def test_defaults_in_help(self):
        """Defaults that are not fixed numbers are described in words."""
        text = subprocess.run([PROGRAM, "serve", "--help"], check=True, encoding="utf-8",
                              stdout=subprocess.PIPE).stdout
        text = " ".join(text.split())
        self.assertIn("(default: a sixteenth of the budget, 48M to 256M)", text)
        self.assertIn("(1 to 60000; default: 2048, or what half of --request-memory holds)", text)
        with self.assertRaisesRegex(RuntimeError, "--request-memory is 0 bytes; the minimum is 8M"):
            Server(PROGRAM, NANO, "--request-memory", "0")

    def test_time_limit(self):
        with Server(PROGRAM, NANO, "--time-limit", "1") as server:
            status, answer = server.post("/v1/chat/completions", LONG)
            self.assertEqual((status, answer["error"]["code"]), (504, "timeout"))
            events = server.stream("/v1/messages", LONG)
            self.assertEqual(events[-1][0], "error")
            events = server.stream("/v1/chat/completions", LONG)
            self.assertIn("error", events[-2][1])
            self.assertEqual(events[-1][1], "[DONE]")
            self.assertEqual(server.stream("/v1/responses", {**LONG, "input": "A"})[-1][0],
                             "response.failed")


def refuses(server):
    """Returns whether the server has seen that it must stop."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=1800).close()
        return False
    except OSError:
        return True


def read_until(connection, word):
    text = b""
    while word not in text:
        more = connection.recv(65536)
        if not more:
            break
        text += more
    return text


class Stopping(unittest.TestCase):
    def stream_of(self, server, body, result):
        connection = server.socket()
        connection.sendall(raw_request("/v1/chat/completions", {**body, "stream": True}))
        text = read_until(connection, b"[DONE]").decode()
        result.append(text)
        connection.close()

    def test_graceful(self):
        """Running requests finish, new ones are refused, and the status is 0."""
        with Server(PROGRAM, NANO) as server:
            result = []
            thread = threading.Thread(target=self.stream_of,
                                      args=(server, {**LONG, "max_tokens": 300}, result))
            thread.start()
            wait_until(lambda: metric(server, "requests_running") == 1)
            self.assertEqual(server.stop(), 0)
            thread.join()
            self.assertIn('"finish_reason":"length"', result[0])
            self.assertIn("[DONE]", result[0])
            with self.assertRaises(OSError):
                socket.create_connection(("127.0.0.1", server.port), timeout=2)

    def test_twice(self):
        """The second signal ends running requests with an error in the stream."""
        with Server(PROGRAM, NANO) as server:
            result = []
            thread = threading.Thread(target=self.stream_of,
                                      args=(server, {**LONG, "n": 32}, result))
            thread.start()
            wait_until(lambda: metric(server, "requests_running") == 1)
            server.process.send_signal(signal.SIGINT)
            self.assertTrue(wait_until(lambda: refuses(server)))
            self.assertEqual(server.stop(signal.SIGINT), 0)
            thread.join()
            self.assertIn("shutting down", result[0])

    def test_twice_in_a_prompt(self):
        """It does not wait for a pass over a long prompt, which takes many seconds here."""
        body = {"messages": [{"role": "user", "content": "a cat and a dog " * 800}]}
        with Server(PROGRAM, NANO, "--cpu", "reference", "--threads", "1") as server:
            began = time.monotonic()
            server.ask("a dog and a cat " * 100, max_tokens=1)
            whole_s = 8 * (time.monotonic() - began)  # eight times as many tokens
            result = []
            thread = threading.Thread(target=self.stream_of, args=(server, body, result))
            thread.start()
            wait_until(lambda: metric(server, "requests_running") == 1)
            server.process.send_signal(signal.SIGINT)
            self.assertTrue(wait_until(lambda: refuses(server)))
            began = time.monotonic()
            self.assertEqual(server.stop(signal.SIGINT), 0)
            thread.join()
            self.assertIn("shutting down", result[0])
            self.assertLess(time.monotonic() - began, whole_s / 2)

    def test_snapshots(self):
        """After a restart, a conversation is not computed again."""
        with tempfile.TemporaryDirectory() as folder:
            text = "Tell me a story about " + "a cat and a dog and a boat and " * 60 + "the sea."
            with Server(PROGRAM, NANO, "--snapshots", folder) as server:
                first = server.ask(text, max_tokens=20)
                self.assertEqual(server.stop(), 0)
            messages = [{"role": "user", "content": text}, first["choices"][0]["message"],
                        {"role": "user", "content": "And then?"}]
            with Server(PROGRAM, NANO, "--snapshots", folder) as server:
                _, again = server.post("/v1/chat/completions", {"messages": messages,
                                                                "max_tokens": 5})
                cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertGreaterEqual(cached, first["usage"]["total_tokens"] - 2)

    def test_port_in_use(self):
        with Server(PROGRAM, NANO) as server:
            with self.assertRaisesRegex(RuntimeError, "in use"):
                Server(PROGRAM, NANO, "--port", str(server.port))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
