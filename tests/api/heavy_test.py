#!/usr/bin/env python3
"""Tests the server with requests that take long to read or need much memory.

usage: heavy_test.py PROGRAM NANO [PART...]

Nothing here depends on how fast the machine is: what must not wait for something else has to be
over before that is.
"""
import http.client
import json
import pathlib
import re
import select
import signal
import socket
import sys
import tempfile
import time
import unittest
from concurrent import futures

import scripted_model
from one_server import OneServer, metric, wait_until
from served import Server, raw_request

PROGRAM, NANO = sys.argv[1:3]
MIB = 1 << 20
LONG = {"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0,
        "max_tokens": 3500, "logit_bias": {"16383": -100, "16381": -100}, "stream": True}
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 3}
WORDS = "once upon a time there was a robot who loved music. "


def is_readable(connection):
    return bool(select.select([connection], [], [], 0)[0])


def read_answer(connection):
    """(status, body)"""
    connection.settimeout(1800)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read()


def is_idle(server):
    return metric(server, "requests_preparing") == 0 and \
        metric(server, "requests_running") == 0 and metric(server, "request_memory_bytes") == 0


class Reading(OneServer):
    """While a large request is read, others are served."""
    model = NANO
    options = ("--memory", "4G", "--request-memory", "2G", "--context", "4096")

    def tearDown(self):
        self.assertTrue(wait_until(lambda: is_idle(self.server)))

    def while_reading(self, what, path="/tokenize", body=None):
        """Calls `what` while the server reads a large request, until it returns before that request
        is answered; a faster machine gets a larger one. Returns False if it never does."""
        for n in (1, 2, 4, 8):
            large = self.server.socket()
            data = json.dumps(body or {"content": WORDS * (20000 * n)}).encode()
            large.sendall(raw_request(path, data))
            if not wait_until(lambda: metric(self.server, "requests_preparing") > 0 or
                              is_readable(large)):
                self.fail("the request is not read")
            what()
            is_first = not is_readable(large)
            status, _ = read_answer(large)
            large.close()
            self.assertIn(status, (200, 400, 413))
            if is_first:
                return True
        return False

    def test_health(self):
        self.assertTrue(self.while_reading(
            lambda: self.assertEqual(self.server.get("/health"), {"status": "ok"})))

    def test_stream(self):
        """Another stream continues."""
        stream = self.server.socket()
        stream.sendall(raw_request("/v1/chat/completions", LONG))
        begun = b""
        while b"data: " not in begun:
            more = stream.recv(65536)
            self.assertTrue(more, begun)
            begun += more

        def goes_on():
            seen = b""
            while seen.count(b"data: ") < 3:
                seen += stream.recv(65536)
        self.assertTrue(self.while_reading(goes_on))
        stream.close()

    def test_small_request(self):
        """A small request is not queued behind two large ones."""
        other = self.server.socket()
        other.sendall(raw_request("/tokenize", {"content": WORDS * 40000}))
        self.assertTrue(self.while_reading(lambda: self.server.ask("Hi", max_tokens=1)))
        read_answer(other)
        other.close()

    def test_gone(self):
        """When a client leaves, reading ends and its memory is freed."""
        large = self.server.socket()
        large.sendall(raw_request("/tokenize", {"content": WORDS * 80000}))
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_preparing") > 0))
        large.close()
        self.assertTrue(wait_until(lambda: is_idle(self.server)))

    def test_too_long(self):
        """A prompt that cannot fit is refused by its size: as a prompt, as a message, as
        messages."""
        text = "a" * (30 << 20)
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        for path, body in (("/v1/chat/completions", {"messages": messages * 250000}),
                           ("/v1/messages", {"messages": messages * 250000, "max_tokens": 5}),
                           ("/v1/completions", {"prompt": text}),
                           ("/v1/chat/completions",
                            {"messages": [{"role": "user", "content": text}]})):
            status, answer = self.server.post(path, body)
            self.assertIn(status, (400, 413), answer)
            if status == 400:
                self.assertIn("too long", answer["error"]["message"])
        _, answer = self.server.post("/v1/completions", {"prompt": "a" * (4 << 20)})
        self.assertEqual(answer["error"]["code"], "context_length_exceeded")
        self.assertIn("no token has more than", answer["error"]["message"])

    def test_template_gives_up(self):
        """A conversation that the template cannot finish is the client's fault."""
        parts = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        status, _, data = self.server.request("POST", "/apply-template",
                                              {"messages": parts * 250000})
        self.assertEqual(status, 400, data[:300])


class Allowed(unittest.TestCase):
    def test_many_tools(self):
        """tool_choice: the work grows with the sum of tools and allowed names, not the product."""
        with Server(PROGRAM, NANO, "--request-memory", "1G") as server:
            def work(n_names):
                stat = pathlib.Path(f"/proc/{server.process.pid}/stat")
                tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(12000)]
                names = [{"name": f"g{i}"} for i in range(n_names - 1)] + [{"name": "f5"}]
                body = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 1,
                        "tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                            "mode": "auto", "tools": names}}}
                before = int(stat.read_text("utf-8").rpartition(")")[2].split()[11])
                status, answer = server.post("/v1/chat/completions", body)
                after = int(stat.read_text("utf-8").rpartition(")")[2].split()[11])
                self.assertEqual(status, 200, answer)
                self.assertEqual(server.post("/tokenize", {"content": "A"})[0], 200)
                return after - before, answer["usage"]["prompt_tokens"]

            few, n_few = work(10)
            many, n_many = work(35000)
            self.assertEqual(n_few, n_many) # only the allowed tool remains
            # In ticks of processor time. The product would be 3500 times as much.
            self.assertLess(many, 20 * (few + 10), (few, many))


class Stopping(unittest.TestCase):
    def test_while_reading(self):
        """A request that is being read does not keep the server from stopping."""
        for n_signals in (1, 2):
            with Server(PROGRAM, NANO, "--memory", "3G") as server:
                waiting = [server.socket() for _ in range(6)]
                for connection in waiting:
                    connection.sendall(raw_request("/tokenize", {"content": WORDS * 40000}))
                self.assertTrue(wait_until(lambda: metric(server, "requests_preparing") > 0))
                for _ in range(n_signals):
                    server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(1800), 0)
                for connection in waiting:
                    connection.close()


class Gone(unittest.TestCase):
    """Clients that send a part of a request and leave take nothing from others. A client that came
    before them and stays proves that they were not ended by a time limit, which would end it
    first."""

    CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"

    def assert_forgotten(self, part):
        whole = raw_request("/v1/chat/completions", SHORT)
        with Server(PROGRAM, NANO, "--request-memory", "48M") as server:
            stays = server.socket()
            stays.sendall(whole[:40 if b"\r\n\r\n" not in part else -1])
            for _ in range(600):
                with server.socket() as gone:
                    gone.sendall(part)
            self.assertTrue(wait_until(lambda: metric(server, "http_connections") <= 2))
            self.assertEqual(server.ask("Hi", max_tokens=1)["usage"]["completion_tokens"], 1)
            stays.sendall(whole[40 if b"\r\n\r\n" not in part else -1:])
            self.assertEqual(read_answer(stays)[0], 200)
            stays.close()

    def test_headers(self):
        self.assert_forgotten(self.CHAT)

    def test_body(self):
        self.assert_forgotten(self.CHAT + b"Content-Length: 30000\r\n\r\n" + b" " * 20000)

    def test_chunks(self):
        self.assert_forgotten(self.CHAT + b"Transfer-Encoding: chunked\r\n\r\n8000\r\n" +
                              b" " * 20000)

    def test_all_sent(self):
        """Clients that close their sending side after their requests are answered."""
        look = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with Server(PROGRAM, NANO) as server:
            for n in (1, 3, 50):
                with server.socket() as connection:
                    connection.sendall(look * n)
                    connection.shutdown(socket.SHUT_WR)
                    seen = b""
                    while more := connection.recv(65536):
                        seen += more
                    self.assertEqual(seen.count(b"200 OK"), n)


class Running(unittest.TestCase):
    """Running answers finish, however many bodies fill the memory for requests."""

    SIZES = (240000, 60000, 15000, 4000, 1000)

    def fill(self, server):
        """Sends half-sent bodies of decreasing size until none fits."""
        held = []
        for size in self.SIZES:
            for _ in range(20):
                held.append(server.socket())
                held[-1].sendall(raw_request("/v1/chat/completions", b" " * size)[:-1])
                if server.request("POST", "/tokenize", b" " * size)[0] == 503:
                    break
        return held

    def assert_finish(self, n_answers):
        """Returns False if an answer ended before the memory was full."""
        bodies = [{**LONG, "n": n_answers, "max_tokens": 300, "stream": stream, **more}
                  for stream, more in ((True, {"logprobs": True, "top_logprobs": 20}),
                                       (True, {}), (False, {}))]
        with Server(PROGRAM, NANO, "--request-memory", "12M", "--context", "1024") as server, \
                futures.ThreadPoolExecutor(len(bodies)) as pool:
            asked = [pool.submit(server.request, "POST", "/v1/chat/completions", body)
                     for body in bodies]
            self.assertTrue(wait_until(lambda: metric(server, "requests_running") == len(bodies)))
            held = self.fill(server)
            is_first = metric(server, "requests_running") == len(bodies)
            for answer in asked:
                status, _, data = answer.result()
                self.assertEqual((status, b'{"error"' in data), (200, False), data[-300:])
                self.assertEqual(data.count(b'"finish_reason":"length"'), n_answers)
            for connection in held:
                connection.close()
        return is_first

    def test_finish(self):
        self.assertTrue(any(self.assert_finish(n) for n in (4, 16, 64)))


class Unread(unittest.TestCase):
    """A stream whose client does not read waits for it, holds little memory and nobody else up."""

    N = 32
    BODY = {**LONG, "n": N, "max_tokens": 100, "logprobs": True, "top_logprobs": 20}

    def stalled(self, server, may_end=False):
        """Returns a connection with a stream that waits for it, or has ended if it may."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        n_held, n_asked = metric(server, "requests_held"), metric(server, "requests_total")

        def is_over():
            return metric(server, "requests_total") > n_asked and \
                metric(server, "requests_queued") + metric(server, "requests_running") == n_held

        def is_held(): # not for a moment only
            return all(metric(server, "requests_held") == n_held + 1 for _ in range(50))

        connection.sendall(raw_request("/v1/chat/completions", self.BODY))
        self.assertTrue(wait_until(lambda: is_held() or is_over()))
        self.assertTrue(may_end or not is_over())
        return connection

    def texts(self, data):
        """The texts of the answers in a stream that is complete."""
        texts, n_logprobs, n_finished = [""] * self.N, 0, 0
        for line in data.decode().splitlines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
                n_logprobs += len((choice["logprobs"] or {}).get("content", []))
                n_finished += choice["finish_reason"] == "length"
        self.assertEqual((n_logprobs, n_finished), (100 * self.N, self.N))
        return texts

    def test_continues(self):
        """Two streams that nobody reads, then a whole one beside them, then the two."""
        with Server(PROGRAM, NANO, "--request-memory", "8M", "--context", "1024",
                    "--parallel", "3") as server:
            waiting = [self.stalled(server) for _ in range(2)]
            self.assertLess(metric(server, "request_memory_bytes"),
                            metric(server, "request_memory_limit_bytes") / 4)
            status, _, data = server.request("POST", "/v1/chat/completions", self.BODY)
            self.assertEqual(status, 200)
            texts = self.texts(data)
            self.assertTrue(wait_until(lambda: metric(server, "requests_held") == 2))
            for connection in waiting:
                status, data = read_answer(connection)
                self.assertEqual(status, 200)
                self.assertEqual(self.texts(data), texts)
                connection.close()
            self.assertTrue(wait_until(lambda: is_idle(server)))
            self.assertTrue(wait_until(lambda: metric(server, "requests_held") == 0))

    def test_ends(self):
        """Such a stream ends when its client leaves, when others have waited, and at a stop."""
        with Server(PROGRAM, NANO, "--context", "1024", "--parallel", "1",
                    "--request-memory", "8M") as server:
            self.stalled(server).close()
            self.assertTrue(wait_until(lambda: is_idle(server)))
            slow = self.stalled(server)
            self.assertEqual(server.request("POST", "/v1/chat/completions", SHORT)[0], 200)
            self.assertIn(b"read too slowly", read_answer(slow)[1])
            slow.close()
            last = self.stalled(server)
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(wait_until(lambda: not self.listens(server)))
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(1800), 0)
            last.close()

    def listens(self, server):
        try:
            server.socket().close()
            return True
        except ConnectionError:
            return False

    def test_time_limit(self):
        with Server(PROGRAM, NANO, "--context", "1024", "--time-limit", "20") as server:
            late = self.stalled(server, may_end=True)
            self.assertTrue(wait_until(lambda: metric(server, "requests_running") == 0))
            self.assertIn(b"time limit", read_answer(late)[1])
            late.close()


class Whole(unittest.TestCase):
    """Answers without streaming: what was computed can be sent, in little memory."""

    ASKED = {"temperature": 0, "logit_bias": LONG["logit_bias"], "max_tokens": 1000}

    def test_logprobs(self):
        """A thousand tokens with twenty alternatives each, in the minimum memory."""
        with Server(PROGRAM, NANO, "--request-memory", "8M", "--context", "4096") as server:
            status, answer = server.post("/v1/chat/completions", {
                **self.ASKED, "messages": LONG["messages"], "logprobs": True, "top_logprobs": 20})
            self.assertEqual(status, 200, answer)
            content = answer["choices"][0]["logprobs"]["content"]
            self.assertEqual([len(token["top_logprobs"]) for token in content], [20] * 1000)
            self.assertEqual("".join(token["token"] for token in content),
                             answer["choices"][0]["message"]["content"])
            status, answer = server.post("/v1/completions", {
                **self.ASKED, "prompt": "Once", "logprobs": 20})
            self.assertEqual(status, 200, answer)
            lists = answer["choices"][0]["logprobs"]
            self.assertEqual([len(lists[name]) for name in
                              ("tokens", "token_logprobs", "top_logprobs")], [1000] * 3)
            self.assertEqual("".join(lists["tokens"]), answer["choices"][0]["text"])
            self.assertTrue(wait_until(lambda: is_idle(server)))

    def test_calls(self):
        """Log probabilities of a call are sent as they come, and none is lost."""
        tool = {"type": "object", "required": ["a"],
                "properties": {"a": {"type": "string", "minLength": 4000}}}
        body = {**self.ASKED, "messages": LONG["messages"], "logprobs": True, "top_logprobs": 20,
                "max_tokens": 200, "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": tool}}]}
        with Server(PROGRAM, NANO, "--context", "1024") as server:
            status, answer = server.post("/v1/chat/completions", body)
            self.assertEqual(status, 200, answer)
            whole = answer["choices"][0]["logprobs"]["content"]
            self.assertEqual(len(whole), 200)
            streamed = []
            for name, event in server.stream("/v1/chat/completions", body):
                if name != ":" and event != "[DONE]" and event["choices"][0]["logprobs"]:
                    streamed.append(event["choices"][0]["logprobs"]["content"])
            self.assertLessEqual(max(len(tokens) for tokens in streamed), 32)
            self.assertEqual(sum(streamed, []), whole)

    def ask_then_fill(self, path, body):
        """Returns the answer of a request that runs while unfinished bodies fill the memory; None
        if it ended before that."""
        with Server(PROGRAM, NANO, "--request-memory", "8M", "--context", "1024") as server, \
                futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.request, "POST", path, body)
            self.assertTrue(wait_until(lambda: metric(server, "requests_running") == 1 or
                                       asked.done()))
            held = []
            for size in (200000, 50000, 10000, 2000):
                for _ in range(40):
                    held.append(server.socket())
                    held[-1].sendall(raw_request("/tokenize", b" " * size)[:-1])
                    if server.request("POST", "/tokenize", b" " * size)[0] == 503:
                        break
            is_late = not asked.done()
            status, _, data = asked.result()
            for connection in held:
                connection.close()
        return (status, data) if is_late or status != 200 else None

    def test_echo(self):
        """Memory for the parts of a request that an answer repeats is reserved before it is
        computed."""
        bias = LONG["logit_bias"]
        for path, body in (
                ("/v1/responses", {"input": "Hi", "metadata": {"a": "x" * 300000}}),
                ("/v1/responses", {"input": "Hi", "tools": [{
                    "type": "function", "name": "f", "description": "x",
                    "parameters": {"description": "x" * 150000}}]}),
                ("/v1/completions", {"prompt": " " * 2000, "echo": True, "n": 32})):
            found = None
            for n in (250, 500, 900): # the smallest number that does not end too soon
                found = found or self.ask_then_fill(path, {
                    "temperature": 0, "logit_bias": bias, "max_output_tokens": n,
                    "max_tokens": n // 16, **body})
            self.assertIsNotNone(found, path)
            self.assertEqual((found[0], b'"error":{' in found[1]), (200, False), found[1][-300:])

    def test_too_much(self):
        """An answer that cannot be sent is not computed to its end."""
        with tempfile.TemporaryDirectory() as folder:
            scripted_model.make(folder)
            for text, n, more in (("L", 64, {"logprobs": True, "top_logprobs": 20}), ("Z", 1, {})):
                with Server(PROGRAM, folder, "--request-memory", "8M") as server:
                    status, answer = server.post("/v1/chat/completions", {
                        "messages": [{"role": "user", "content": text}], "temperature": 0, "n": n,
                        "max_tokens": 4000, **more})
                    self.assertEqual(status, 413, answer)
                    self.assertIn("--request-memory", answer["error"]["message"])
                    self.assertTrue(wait_until(lambda: is_idle(server)))
                    self.assertLess(metric(server, "answer_tokens_total"), 0.8 * 4000 * n)


class Looking(unittest.TestCase):
    """The answer to a GET counts as memory for requests until it has been read."""

    def test_counted(self):
        for path in ("/experts", "/metrics", "/props", "/v1/models"):
            with Server(PROGRAM, NANO, "--request-memory", "8M") as server:
                connection = server.socket()
                connection.setblocking(False)
                look = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 100
                n_blocked = 0
                while n_blocked < 20: # until nothing is read any more, because nothing can be sent
                    try:
                        connection.send(look)
                        n_blocked = 0
                    except BlockingIOError:
                        n_blocked += 1
                        time.sleep(0.05)
                self.assertTrue(wait_until(lambda: metric(server, "request_memory_bytes") > 0, 60),
                                path)
                self.assertEqual(server.get("/health"), {"status": "ok"})
                connection.close()
                self.assertTrue(wait_until(lambda: is_idle(server)))


class Memory(OneServer):
    """The memory of requests is part of --memory, whatever they send, and is freed."""

    BUDGET = 120 * MIB
    model = NANO
    options = ("--memory", str(BUDGET), "--context", "2048", "--parallel", "2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.ask("Hi", max_tokens=2)

    def setUp(self):
        self.assertTrue(wait_until(lambda: is_idle(self.server)))
        self.before = self.server.resident_kib()

    def tearDown(self):
        """Within the budget all the time; afterwards as little as before."""
        self.assertTrue(wait_until(lambda: is_idle(self.server)))
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text("utf-8")
        most = int(re.search(r"VmHWM:\s+(\d+)", status).group(1))
        after = self.server.resident_kib()
        print(f"{self.id()}: at most {most >> 10} of {self.BUDGET >> 20} MiB; {self.before >> 10} "
              f"MiB before, {after >> 10} MiB after")
        self.assertLessEqual(most * 1024, self.BUDGET)
        self.assertLess(after, self.before + (8 << 10))

    def send_some(self, connection, data):
        """Sends as much as the server accepts; it may refuse at any byte."""
        connection.settimeout(1800)
        try:
            connection.sendall(data)
            return True
        except OSError:
            return False

    def test_half_sent(self):
        held = []
        for i in range(60):
            whole = raw_request("/v1/chat/completions", b" " * (31 if i % 4 == 3 else 9) * 1000000)
            connection = self.server.socket()
            self.send_some(connection, whole[:8 << 20])
            held.append(connection)
        self.assertGreater(metric(self.server, "request_memory_bytes"), MIB)
        self.assertEqual(self.server.ask("Hi", max_tokens=1)["usage"]["completion_tokens"], 1)
        statuses = set()
        for i, connection in enumerate(held): # a client that continues gets an answer
            if i % 4 != 3:
                rest = len(raw_request("/v1/chat/completions", b" " * 9000000)) - (8 << 20)
                self.assertTrue(self.send_some(connection, b" " * rest))
                statuses.add(read_answer(connection)[0])
            connection.close()
        self.assertTrue({503} <= statuses <= {400, 413, 503}, statuses)

    def test_chunked(self):
        """Bodies without a length."""
        held, chunk = [], b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(60):
            connection = self.server.socket()
            self.send_some(connection, b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: "
                           b"application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 100)
            held.append(connection)
        self.assertEqual(self.server.ask("Hi", max_tokens=1)["usage"]["completion_tokens"], 1)
        for connection in held:
            connection.close()

    def test_many_values(self):
        """Small texts that become much JSON: none is worth 2.5 GB."""
        for value in (b"{},", b"[],", b"0,", b'"",', b'{"a":0},'):
            n = (3 << 20) // len(value)
            body = b'{"messages":[' + value * n + b"{}]}"
            status, _, data = self.server.request("POST", "/v1/chat/completions", body)
            self.assertIn(status, (400, 413), data[:300])

    def test_large_bodies_together(self):
        """Any number of them: each is answered, refused for now, or refused."""
        body = raw_request("/tokenize", {"content": WORDS * 20000})
        held = [self.server.socket() for _ in range(20)]
        for connection in held:
            self.send_some(connection, body)
        statuses = set()
        for connection in held:
            try:
                statuses.add(read_answer(connection)[0])
            except OSError:
                pass
            connection.close()
        self.assertTrue(statuses <= {200, 413, 503}, statuses)

    def test_logprobs(self):
        """The memory for twenty alternatives is counted."""
        body = {**SHORT, "logprobs": True, "top_logprobs": 20, "max_tokens": 200, "n": 8,
                "logit_bias": LONG["logit_bias"]}
        held = [self.server.socket() for _ in range(8)]
        for connection in held:
            connection.sendall(raw_request("/v1/chat/completions", body))
        for connection in held:
            status, data = read_answer(connection)
            self.assertIn(status, (200, 503, 413), data[:300])
            connection.close()

    def test_slow_reader(self):
        """A stream that nobody reads waits with little memory."""
        body = {**LONG, "logprobs": True, "top_logprobs": 20, "n": 8, "max_tokens": 1500}
        held = []
        for _ in range(2):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", self.server.port))
            connection.sendall(raw_request("/v1/chat/completions", body))
            held.append(connection)
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_held") == 2))
        for connection in held:
            connection.close()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
