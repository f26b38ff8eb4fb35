#!/usr/bin/env python3
"""Tests what holds on every route of the server, whoever's protocol it is: keys, hosts, origins,
content types, sizes, methods, and that a client who leaves stops its answer.

usage: routes_test.py PROGRAM [PART...]

The routes are those of the table in src/server/http.c, so that a new one is tested too.
"""
import json
import pathlib
import re
import sys
import unittest

from one_server import OneServer, metric, wait_until
from served import raw_request

HTTP_C = pathlib.Path(__file__).resolve().parents[2] / "src/server/http.c"
ROUTES = re.findall(r'\{\.path = "(\S+)", \.method = "(\w+)"(.*)\}', HTTP_C.read_text())
CLOSED = [(path, method) for path, method, rest in ROUTES if "is_open" not in rest]
ANSWERS = [path for path, _, rest in ROUTES if ".api = " in rest]
# Something to compute without an end, in every protocol.
ENDLESS = {"messages": [{"role": "user", "content": "L"}], "prompt": "L", "input": "L",
           "max_tokens": 100000, "max_output_tokens": 100000, "n_predict": -1, "stream": True,
           "options": {"num_predict": -1}}
ONCE = {"/embeddings", "/api/embed", "/api/embeddings", "/infill"} # have no stream, or need another model
KEY = {"Authorization": "Bearer sesame"}


class Routes(OneServer):
    options = ("--api-key", "sesame", "--request-limit", "64K")

    def each(self, *headers):
        for path, method in CLOSED:
            for more in headers:
                body = b"{}" if method == "POST" else None
                status, _, answer = self.server.request(method, path, body, more)
                yield path, status, answer

    def test_all_are_found(self):
        self.assertGreaterEqual(len(CLOSED), 20)
        self.assertGreaterEqual(len(ANSWERS), 6)

    def test_keys(self):
        for path, status, answer in self.each({}, {"Authorization": "Bearer no"},
                                              {"x-api-key": "no"}):
            self.assertEqual(status, 401, path)
            self.assertIn("error", json.loads(answer), path)
        for path, status, _ in self.each(KEY, {"x-api-key": "sesame"}):
            self.assertNotIn(status, (401, 403, 404, 405), path)

    def test_sites(self):
        for path, status, _ in self.each({**KEY, "Host": "evil.example"},
                                         {**KEY, "Origin": "http://evil.example"},
                                         {**KEY, "Origin": "null"},
                                         {**KEY, "Sec-Fetch-Site": "cross-site"}):
            self.assertEqual(status, 403, path)

    def test_bodies(self):
        for path, method in CLOSED:
            wrong = "POST" if method == "GET" else "GET"
            body = b"{}" if wrong == "POST" else None
            self.assertEqual(self.server.request(wrong, path, body, KEY)[0], 405, path)
            if method == "GET":
                continue
            for headers, data, status in (
                    ({"Content-Type": "text/plain"}, b"{}", 415), ({}, b" " * 70000, 413),
                    ({}, b"{", 400), ({}, b"[]", 400), ({}, b"", 400)):
                got, _, answer = self.server.request("POST", path, data, {**KEY, **headers})
                self.assertEqual(got, status, (path, data[:9], answer))
                self.assertIn("error", json.loads(answer), path)

    def test_leaving(self):
        """A client that closes its connection ends its answer."""
        for path in ANSWERS:
            if path in ONCE:
                continue
            before = metric_of(self.server, "requests_cancelled_total")
            connection = self.server.socket()
            body = {name: value for name, value in ENDLESS.items()
                    if path != "/responses" or name != "prompt"} # it would be a stored one
            connection.sendall(raw_request(path, body, "Authorization: Bearer sesame\r\n"))
            text = b""
            while text.count(b"la ") < 3:
                more = connection.recv(65536)
                self.assertTrue(more, (path, text))
                text += more
            connection.close()
            self.assertTrue(wait_until(lambda n=before: metric_of(
                self.server, "requests_cancelled_total") == n + 1), path)


def metric_of(server, name):
    """The metric, with the key."""
    plain = server.request
    server.request = lambda method, path: plain(method, path, headers=KEY)
    try:
        return metric(server, name)
    finally:
        server.request = plain


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
