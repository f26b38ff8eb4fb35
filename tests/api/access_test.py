#!/usr/bin/env python3
"""Tests who may use the server: hosts, origins, content types, keys; ambiguous requests; signals.

usage: access_test.py PROGRAM NANO SHIM [PART...]
"""
import json
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from one_server import OneServer, read_all, wait_until
from served import Server, default_signals

PROGRAM, NANO, SHIM = sys.argv[1:4]
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "A"}], "temperature": 0}
GETS = ("/", "/health", "/v1/models", "/metrics", "/v1/metrics", "/props", "/v1/props", "/slots",
        "/stats", "/experts")
# Starting a model may take long on a busy machine. Nothing should take this long.
DEADLINE = 300


def end_child(pid):
    """Kills the server of a failed test. A test that passed has already waited for it."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        pass


class Scripted(OneServer):
    def status(self, method, path, server=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        body = json.dumps(BODY).encode() if method == "POST" else None
        return (server or self.server).request(method, path, body, headers)[0]

    def send(self, data):
        connection = self.server.socket()
        connection.settimeout(DEADLINE)
        connection.sendall(data)
        answer = read_all(connection)
        connection.close()
        return answer


class Browsers(Scripted):
    """A server without a key, and what browsers send it."""

    def test_hosts(self):
        port = self.server.port
        for host in ("localhost", f"localhost:{port}", "LOCALHOST", "localhost.", "127.0.0.1",
                     f"127.0.0.1:{port}", f"[::1]:{port}", "localhost:1", "localhost:",
                     f"a.localhost:{port}"):
            self.assertEqual(self.status("GET", "/props", Host=host), 200, host)
            self.assertEqual(self.status("POST", CHAT, Host=host), 200, host)
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example",
                     "127.0.0.1.nip.io", "192.168.1.7", "localhost, evil.example"):
            for path in GETS:
                self.assertEqual(self.status("GET", path, Host=host), 403, (path, host))
            self.assertEqual(self.status("POST", CHAT, Host=host), 403, host)
            self.assertEqual(self.status("OPTIONS", CHAT, Host=host), 403, host)
        _, _, body = self.server.request("GET", "/props", None, {"Host": "evil.example"})
        error = json.loads(body)["error"]
        self.assertEqual(error["code"], "forbidden")
        self.assertIn("'evil.example'", error["message"])
        self.assertIn("--allowed-host", error["message"])

    def test_rebinding(self):
        """A page whose DNS name now resolves to 127.0.0.1: its requests are same-origin."""
        name = f"rebind.evil.example:{self.server.port}"
        for extra in ({}, {"Origin": f"http://{name}"}, {"Sec_Fetch_Site": "same-origin"}):
            self.assertEqual(self.status("POST", CHAT, Host=name, **extra), 403)
            self.assertEqual(self.status("GET", "/props", Host=name, **extra), 403)

    def test_pages_of_other_sites(self):
        for origin in ("https://evil.example", "http://localhost.evil.example",
                       "http://localhost:3000.evil.example", "http://127.0.0.1.evil.example",
                       "null", "file://", "http://[::1].evil.example"):
            for method, path in (("POST", CHAT), ("GET", "/props"), ("GET", "/health"),
                                 ("OPTIONS", CHAT)):
                status, headers, _ = self.server.request(
                    method, path, json.dumps(BODY).encode() if method == "POST" else None,
                    {"Origin": origin})
                self.assertEqual(status, 403, (origin, method))
                self.assertNotIn("Access-Control-Allow-Origin", headers)
        for path in GETS[1:]: # as the browser fetches an image or a script
            self.assertEqual(self.status("GET", path, Sec_Fetch_Site="cross-site",
                                         Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="script"), 403)
        self.assertEqual(self.status("POST", CHAT, Sec_Fetch_Site="cross-site"), 403)
        self.assertEqual(self.status("POST", CHAT, Sec_Fetch_Site="same-site"), 403)

    def test_pages_of_this_machine(self):
        port = self.server.port
        own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
        self.assertEqual(self.status("POST", CHAT, **own), 200)
        for extra in ({"Sec_Fetch_Site": "none"},
                      {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate",
                       "Sec_Fetch_Dest": "document"}): # the address bar; a link
            self.assertEqual(self.status("GET", "/", **extra), 200)
        for origin in ("http://localhost:3000", "https://localhost", "http://[::1]:5173",
                       "http://chat.localhost:3000"):
            status, headers, _ = self.server.request("POST", CHAT, json.dumps(BODY).encode(), {
                "Origin": origin, "Sec-Fetch-Site": "cross-site",
                "Content-Type": "application/json"})
            self.assertEqual((status, headers.get("Access-Control-Allow-Origin")), (200, origin))
            status, headers, _ = self.server.request("OPTIONS", CHAT, None, {
                "Origin": origin, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Private-Network": "true"})
            self.assertEqual((status, headers.get("Access-Control-Allow-Origin")), (204, origin))
            self.assertEqual(headers["Access-Control-Allow-Private-Network"], "true")

    def test_listed_origins(self):
        """--cors adds to the pages of this machine; programs and extensions can be listed."""
        listed = ("https://chat.example", "app://obsidian.md", "tauri://localhost",
                  "vscode-webview://0a1b2c3d", "chrome-extension://abcdefgh")
        options = ("--cors", "https://chat.example/, app://obsidian.md,tauri://localhost,"
                             "vscode-webview://*,chrome-extension://abcdefgh")
        with Server(PROGRAM, self.folder.name, *options) as server:
            self.assertNotIn("warning", server.lines())
            for origin in (*listed, "http://localhost:3000"):
                status, headers, _ = server.request("POST", CHAT, json.dumps(BODY).encode(), {
                    "Origin": origin, "Sec-Fetch-Site": "cross-site"})
                self.assertEqual((status, headers.get("Access-Control-Allow-Origin")),
                                 (200, origin))
            for origin in ("http://chat.example", "app://other", "chrome-extension://other", "null",
                           "https://chat.example.evil.example"):
                self.assertEqual(self.status("POST", CHAT, server, Origin=origin), 403, origin)

    def test_content_types(self):
        for kind in ("application/json", "Application/Json; charset=utf-8",
                     "application/vnd.api+json"):
            self.assertEqual(self.status("POST", CHAT, Content_Type=kind), 200, kind)
        self.assertEqual(self.status("POST", CHAT), 200) # no Content-Type
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp",
                     "multipart/form-data; boundary=a", "text/plain; x=application/json"):
            for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize",
                         "/detokenize", "/apply-template", "/v1/messages/count_tokens"):
                self.assertEqual(self.status("POST", path, Content_Type=kind), 415, (path, kind))
        _, _, body = self.server.request("POST", CHAT, b"{}", {"Content-Type": "text/plain"})
        self.assertIn("application/json", json.loads(body)["error"]["message"])

    def test_log_has_no_control_characters(self):
        """A request can neither write its own log lines nor move the cursor of a reader's
        terminal."""
        nasty = ("%0A12:00:00%20GET%20/forged%20200", "%1B[2J", "%0D", "%7F", "%C2%9B31m", "%00",
                 "%E2%80%AE", "%9B", "%08%08")
        for text in nasty:
            self.status("GET", "/none" + text)
            self.status("GET", f"/v1/models/a{text}b")
            self.send(f"GET /x{text} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                      .encode())
        for raw in (b"\x1b[31m", b"\x9b31m", b"\x08\x08", b"\x7f", b"\xc2\x9b"):
            for name in (b"Host", b"Origin", b"Content-Type", b"Transfer-Encoding", b"X" + raw):
                self.send(b"POST /tokenize HTTP/1.1\r\nConnection: close\r\n%sContent-Length: 2\r\n"
                          b"%s: a%sb\r\n\r\n{}" % (
                              b"" if name == b"Host" else b"Host: localhost\r\n", name, raw))
            self.send(b"GET" + raw + b" / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for text in ("\n1 GET /forged", "\x1b[2J", "\x9b31m", "\u2028x", "\u202ex", "\x00"):
            for field, value in (("model", "m" + text), ("messages", [{"role": text}]),
                                 ("response_format", {"type": "x" + text}), ("stop" + text, 5)):
                self.server.request("POST", CHAT, {**BODY, "max_tokens": 1, field: value})
        log = pathlib.Path(self.server.log.name).read_bytes()
        self.assertNotRegex(log, rb"[^\n -~]")
        lines = log.decode().splitlines()
        self.assertGreater(len(lines), 60)
        for line in lines[2:]:
            self.assertRegex(line, r"^flashmoe: \d\d:\d\d:\d\d \S+ ", line)
        self.assertFalse([line for line in lines if re.search(r"\d /?GET /forged", line[:24])])


class Framing(Scripted):
    """Requests that a proxy and the server could delimit differently."""
    body = b'{"content":"A"}'
    chunks = b"f\r\n" + body + b"\r\n0\r\n\r\n"
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    def refused(self, *headers, data=body, version=b"1.1", line=b"POST /tokenize", status=b"400"):
        """The request gets that status, and what follows it gets no answer."""
        whole = line + b" HTTP/" + version + b"\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + data
        answer = self.send(whole + self.hidden)
        self.assertIn(b" " + status + b" ", answer.split(b"\r\n")[0], (headers, answer))
        self.assertNotIn(b"HTTP/1.1 2", answer, headers)
        self.assertNotIn(b'"status":"ok"', answer, headers)
        self.assertNotIn(b'"tokens"', answer, headers)

    def test_lengths(self):
        host, length = b"Host: localhost", b"Content-Length: 15"
        chunked = b"Transfer-Encoding: chunked"
        self.refused(host, length, chunked, data=self.chunks)
        self.refused(host, chunked, b"content-length: 25", data=self.chunks)
        self.refused(host, length, length)
        self.refused(host, length, b"Content-Length: 50")
        self.refused(host, b"Content-Length: 50", length)
        self.refused(host, length, b"CONTENT-LENGTH: 0")
        self.refused(host, chunked, chunked, data=self.chunks)
        for bad in (b"Content-Length : 15", b"Content-Length\t: 15", b"Transfer-Encoding : chunked",
                    b"Content-Length: +15", b"Content-Length: 15, 15", b"Content-Length: 0xf",
                    b"Content-Length: -1", b"Content-Length: 15 15", b"Content-Length:",
                    b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked",
                    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity",
                    b"Transfer-Encoding: chunked\r\nContent-Length: 15",
                    b"Transfer-Encoding:"):
            self.refused(host, bad, data=self.chunks)
        self.refused(host, chunked, data=self.chunks, version=b"1.0")
        for method in (b"GET /health", b"OPTIONS /health", b"HEAD /health"):
            self.refused(host, length, chunked, data=b"", line=method)

    def test_hosts(self):
        for line in (b"GET /health", b"POST /tokenize", b"OPTIONS /tokenize"):
            for hosts in ((), (b"Host: localhost", b"Host: localhost"),
                          (b"Host: localhost", b"HOST: evil.example"), (b"Host:",), (b"Host: ",)):
                self.refused(*hosts, b"Content-Length: 15", line=line)
                self.refused(*hosts, data=b"", line=line) # nothing else would close it
                if hosts or line != b"GET /health":
                    self.refused(*hosts, data=b"", line=line, version=b"1.0")
        for name in (b"localhost\0.evil.example", b"localhost\0", b"\0localhost"):
            for line in (b"GET /health", b"POST /tokenize"):
                self.refused(b"Host: " + name, b"Content-Length: 0", data=b"", line=line)
                self.refused(b"Content-Length: 0", b"Host: " + name, data=b"", line=line)

    def test_probes(self):
        """A health check with HTTP/1.0 names no host."""
        self.assertIn(b"200 OK", self.send(b"GET /health HTTP/1.0\r\n\r\n"))
        self.assertIn(b"200 OK", self.send(b"GET /health HTTP/1.0\r\nUser-Agent: x\r\n\r\n"))
        for rest in (b"/props HTTP/1.0", b"/health HTTP/1.1", b"/ HTTP/1.0",
                     b"/health HTTP/1.0\r\nHost:"):
            self.assertIn(b" 400 ", self.send(b"GET " + rest + b"\r\n\r\n"), rest)
        self.assertIn(b" 403 ", self.send(b"GET /health HTTP/1.0\r\nOrigin: http://evil.example"
                                          b"\r\n\r\n"))

    def test_no_end(self):
        """The library treats a line without a name as the end of the headers."""
        host, length = b"Host: localhost", b"Content-Length: 15"
        for method in (b"GET /health", b"POST /tokenize", b"HEAD /health", b"OPTIONS /health"):
            for bad in (b": x", b":", b": ", b"\t: x"):
                self.refused(host, bad, length, line=method)
                self.refused(host, b"X-a: 1", bad, line=method, data=b"")
            self.refused(host, b"X-a: 1\r\n 2", line=method, data=b"") # RFC 9112, 5.2
        self.refused(host, status=b"411")
        self.refused(host, status=b"411", data=b"")
        self.refused(host, status=b"411", data=b"", version=b"1.0")
        self.refused(host, status=b"411", data=b"", line=b"POST /none")
        answer = self.send(b"GET /health HTTP/1.1\r\n" + host + b"\r\n\r\n" + b"GET /health "
                           b"HTTP/1.1\r\n" + host + b"\r\n: x\r\n" + self.hidden)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answer), [b"200", b"400"], answer)

    def test_good_ones(self):
        for headers, data in ((b"Content-Length: 15", self.body),
                              (b"transfer-encoding: Chunked", self.chunks)):
            answer = self.send(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + headers +
                               b"\r\n\r\n" + data + self.hidden)
            self.assertEqual(answer.count(b"HTTP/1.1 200"), 2, answer)
        self.assertIn(b"200 OK", self.send(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n"))
        for headers in (b"Cookie: a=b; c=d\r\n", b"X-a:\r\n", b"X-a: \r\n", b"X-a:  1 \t\r\n",
                        b"X-a: 1\nX-b: 2\n", b"X-a: caf\xc3\xa9\r\n"):
            for whole in (b"Host: localhost\r\n" + headers, headers + b"Host: localhost\r\n"):
                answer = self.send(b"GET /health HTTP/1.1\r\n" + whole + b"\r\n" + self.hidden)
                self.assertEqual(answer.count(b"HTTP/1.1 200"), 2, (whole, answer))
        for options, text in ((("-X", "POST"), '"error"'), # with a length of 0, or without one
                              (("--json", '{"content":"A"}'), '"tokens"'),
                              (("--json", '{"content":"A"}', "-H", "Transfer-Encoding: chunked"),
                               '"tokens"')):
            done = subprocess.run(["curl", "-sS", *options, self.server.url + "/tokenize"],
                                  check=True, capture_output=True, text=True, timeout=DEADLINE)
            self.assertIn(text, done.stdout)


class Keys(Scripted):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.file = pathlib.Path(self.home.name) / "keys"
        self.write("# people\nann\n\nbob\n")

    def write(self, text, mode=0o600):
        self.file.write_text(text, encoding="utf-8")
        self.file.chmod(mode)

    def key(self, server, key):
        return self.status("GET", "/v1/models", server, Authorization=f"Bearer {key}")

    def cached(self, server, key, text):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0,
                "max_tokens": 4}
        status, answer = server.post(CHAT, body, **({"x-api-key": key} if key else {}))
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def fails(self, *options, **environment):
        done = subprocess.run([PROGRAM, "serve", self.folder.name, "--port", "0", *options],
                              check=False, capture_output=True, text=True, timeout=DEADLINE,
                              env={**os.environ, **environment})
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_bad_keys(self):
        self.assertIn("FLASHMOE_API_KEY", self.fails(FLASHMOE_API_KEY=""))
        self.assertIn("--api-key is empty", self.fails("--api-key", ""))
        self.assertIn("0x20", self.fails("--api-key", "a b"))
        self.write("")
        self.assertIn(str(self.file), self.fails("--api-key-file", str(self.file)))
        self.write("ann\n", 0o666)
        self.assertIn("chmod 600", self.fails("--api-key-file", str(self.file)))
        self.write("ann\n", 0o620)
        self.assertIn("its group may write", self.fails("--api-key-file", str(self.file)))
        self.write("ann\nb\u00e9\n")
        self.assertIn("line 2", self.fails("--api-key-file", str(self.file)))

    def test_bad_lists(self):
        """A value that no request could match is an error at the start instead of 403 forever."""
        for option, good, *bad in (
                ("--allowed-host", "chat.example", "https://chat.example", "*.corp.example",
                 "chat.example/", "fd00::7"),
                ("--cors", "https://chat.example", "chat.example", "https://*.corp.example",
                 "https://chat.example/page", "localhost:3000")):
            for word in bad:
                text = self.fails(option, f"{good},{word}")
                self.assertIn(f"{option}: '{word}'", text)
                self.assertIn("write ", text)

    def test_slots(self):
        """A key sees only the sessions of its own conversations."""
        with Server(PROGRAM, self.folder.name, "--api-key-file", str(self.file)) as server:
            ann, bob = ({"x-api-key": key} for key in ("ann", "bob"))
            self.assertEqual(server.get("/slots", **ann), [])
            self.cached(server, "ann", "A")
            self.assertTrue(wait_until(lambda: server.get("/slots", **ann)))
            self.assertEqual(server.get("/slots", **bob), [])
            self.cached(server, "bob", "A longer question")
            self.assertTrue(wait_until(lambda: server.get("/slots", **bob)))
            one, two = (server.get("/slots", **key) for key in (ann, bob))
            self.assertEqual((len(one), len(two)), (1, 1))
            self.assertNotEqual(one[0]["id"], two[0]["id"])
        with Server(PROGRAM, self.folder.name, "--api-key-file", str(self.file),
                    "--share-prefixes") as server:
            self.assertGreaterEqual(len(server.get("/slots", **ann)), 4)

    def test_file(self):
        with Server(PROGRAM, self.folder.name, "--api-key-file", str(self.file), "--api-key", "eve",
                    FLASHMOE_API_KEY="") as server:
            for key in ("ann", "bob", "eve"):
                self.assertEqual(self.key(server, key), 200, key)
            for key in ("", "carl", "an", "anne", "# people", "ann\tbob"):
                self.assertEqual(self.key(server, key), 401, key)
            self.assertNotIn("warning", server.lines())

    def test_reload(self):
        """SIGHUP reloads the file; a bad file changes nothing."""
        self.write("ann\nbob\n", 0o644)
        with Server(PROGRAM, self.folder.name, "--api-key-file", str(self.file)) as server:
            self.assertIn("every user of this machine can read the API keys", server.lines())
            self.write("bob\ncarl\n")
            server.process.send_signal(signal.SIGHUP)
            self.assertTrue(wait_until(lambda: "2 API keys read again" in server.lines()))
            self.assertEqual([self.key(server, k) for k in ("ann", "bob", "carl")],
                             [401, 200, 200])
            self.write("")
            server.process.send_signal(signal.SIGHUP)
            self.assertTrue(wait_until(lambda: "the API keys are unchanged" in server.lines()))
            self.assertEqual([self.key(server, k) for k in ("ann", "bob", "carl")],
                             [401, 200, 200])
            self.assertEqual(server.stop(seconds=DEADLINE), 0)

    def test_listening_beyond_loopback(self):
        for options, is_warned in ((("--host", "0.0.0.0"), True), ((), False),
                                   (("--host", "0.0.0.0", "--api-key", "ann"), False),
                                   (("--host", "localhost"), False), (("--cors", "*"), True),
                                   (("--host", "127.0.0.9"), False),
                                   (("--allowed-host", "*"), True),
                                   (("--cors", "vscode-webview://*"), False)):
            with Server(PROGRAM, self.folder.name, *options) as server:
                self.assertEqual("warning: " in server.lines(), is_warned, options)
        with Server(PROGRAM, self.folder.name, "--host", "0.0.0.0", "--allowed-host",
                    "box.lan,models.example.org") as server:
            for host, status in (("box.lan:80", 200), ("models.example.org", 200),
                                 ("192.168.1.7", 200), ("0.0.0.0:80", 200), ("evil.example", 403),
                                 ("x.box.lan", 403), (socket.gethostname(), 200),
                                 (socket.gethostname().split(".")[0] + ".local:80", 200),
                                 (socket.gethostname() + ".evil.example", 403)):
                self.assertEqual(self.status("GET", "/props", server, Host=host), status, host)
        self.assertEqual(self.status("GET", "/props", Host=socket.gethostname() + "x"), 403)

    def test_prefixes_are_a_keys_own(self):
        """Neither usage nor timing reveals what others have sent: in memory, for branches, on
        disk."""
        text = "Tell me a story about " + "a cat and a dog and a boat and " * 60 + "the sea."
        branch = text + " Then tell me another one."
        with tempfile.TemporaryDirectory() as kept:
            options = ("--api-key-file", str(self.file), "--snapshots", kept, "--parallel", "1",
                       "--sessions", "3")
            with Server(PROGRAM, NANO, *options) as server:
                self.assertEqual(self.cached(server, "ann", text), 0)
                self.assertEqual(self.cached(server, "bob", text), 0)
                self.assertEqual(self.cached(server, "bob", branch[:-9]), self.cached(
                    server, "ann", branch[:-9]))
                self.assertGreater(self.cached(server, "ann", text), 100)
                self.assertEqual(server.stop(seconds=DEADLINE), 0)
            self.assertTrue(list(pathlib.Path(kept).glob("*.fmsnap")))
            self.write("ann\nbob\ncarl\n")
            with Server(PROGRAM, NANO, *options) as server: # from the disk
                self.assertEqual(self.cached(server, "carl", branch), 0)
                self.assertGreater(self.cached(server, "ann", text), 100)
                self.assertGreater(self.cached(server, "bob", text), 100)
                # The slots are full: an evicted conversation is not a prefix for another key.
                self.write("dora\n")
                server.process.send_signal(signal.SIGHUP)
                self.assertTrue(wait_until(lambda: "1 API keys" in server.lines()))
                self.assertEqual(self.cached(server, "dora", text), 0)
                self.assertEqual(server.stop(seconds=DEADLINE), 0)
            with Server(PROGRAM, NANO, "--snapshots", kept) as server: # without an owner
                self.assertEqual(self.cached(server, None, text), 0)
                self.assertEqual(server.stop(seconds=DEADLINE), 0)

    def test_shared_prefixes(self):
        text = "Tell me a story about " + "a cat and a dog and a boat and " * 30 + "the sea."
        with tempfile.TemporaryDirectory() as kept:
            for key in ("ann", "bob"):
                with Server(PROGRAM, NANO, "--api-key-file", str(self.file), "--share-prefixes",
                            "--snapshots", kept) as server:
                    first, again = [self.cached(server, k, text) for k in (key, "bob")]
                    self.assertEqual(first > 100, key == "bob")
                    self.assertGreater(again, 100)
                    self.assertEqual(server.stop(seconds=DEADLINE), 0)


class Proxies(unittest.TestCase):
    """The proxy examples do not expose endpoints that describe the machine."""

    def test_paths(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        routes = (root / "src/server/http.c").read_text(encoding="utf-8")
        told = [path for path in re.findall(r'\.path = "(/\w+)", \.method = "GET", \.get', routes)
                if path != "/models"]
        self.assertGreaterEqual(set(told), {"/metrics", "/slots", "/props", "/stats", "/experts"})
        nginx = (root / "contrib/nginx.conf").read_text(encoding="utf-8")
        inside = re.search(r"location ~ (\S+) \{\s+allow 127\.0\.0\.1;\s+deny all;", nginx).group(1)
        caddy = (root / "contrib/Caddyfile").read_text(encoding="utf-8")
        paths = re.search(r"@inside \{\s+path (.*)\n", caddy).group(1).split()
        guide = (root / "docs/DEPLOY.md").read_text(encoding="utf-8")
        for path in told:
            self.assertIn(f"`{path}`", guide)
            for whole in (path, "/v1" + path):
                self.assertRegex(whole, inside)
                self.assertIn(whole, paths)
        for path in ("/", "/v1/models", "/v1/chat/completions", "/health"):
            self.assertNotRegex(path, inside)
            self.assertNotIn(path, paths)


class Signals(Scripted):
    def test_hang_up(self):
        """Without a key file, SIGHUP ends the server like SIGTERM."""
        with tempfile.TemporaryDirectory() as kept:
            with Server(PROGRAM, NANO, "--snapshots", kept) as server:
                server.ask("Tell me a story about " + "a cat and a dog and " * 60, max_tokens=4)
                self.assertEqual(server.stop(signal.SIGHUP, DEADLINE), 0)
                self.assertIn("stopped", server.lines())
            self.assertTrue(list(pathlib.Path(kept).glob("*.fmsnap")))

    def test_ignored(self):
        """A server that nohup started survives SIGHUP."""
        class Nohup(Server):
            @staticmethod
            def prepare():
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        with Nohup(PROGRAM, self.folder.name) as server:
            server.process.send_signal(signal.SIGHUP)
            server.ask("A")
            self.assertIsNone(server.process.poll())
            self.assertEqual(server.stop(seconds=DEADLINE), 0)

    def test_terminal_closed(self):
        """A key file does not keep a server alive after its terminal was closed."""
        with tempfile.TemporaryDirectory() as home:
            keys = pathlib.Path(home) / "keys"
            keys.write_text("ann\n", encoding="utf-8")
            keys.chmod(0o600)
            pid, terminal = pty.fork()
            if pid == 0:
                try:
                    default_signals()
                    os.execv(PROGRAM, [PROGRAM, "serve", self.folder.name, "--port", "0",
                                       "--no-heat", "--api-key-file", str(keys)])
                finally:
                    os._exit(127)
            self.addCleanup(end_child, pid)
            text = b""
            while b"listening on" not in text:
                text += os.read(terminal, 4096)
            os.close(terminal)
            ends = []
            self.assertTrue(wait_until(
                lambda: ends.append(os.waitpid(pid, os.WNOHANG)) or ends[-1][0] == pid))
            self.assertEqual(os.waitstatus_to_exitcode(ends[-1][1]), 0)

    def test_late(self):
        """Signals during shutdown: with the shim, before every block it frees."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            with Server(PROGRAM, self.folder.name, LD_PRELOAD=SHIM,
                        SHIM_LATE_SIGNAL=str(int(number))) as server:
                server.ask("A")
                self.assertEqual(server.stop(seconds=DEADLINE), 0)
                self.assertIn("late signals: ", server.lines())

    def test_idle_time(self):
        """Conversations are saved when idle, whatever the machine's clock says."""
        with tempfile.TemporaryDirectory() as kept:
            with Server(PROGRAM, NANO, "--snapshots", kept, LD_PRELOAD=SHIM,
                        SHIM_CLOCK_AHEAD="86400") as server:
                server.ask("Tell me a story about " + "a cat and a dog and " * 80, max_tokens=4)
                self.assertTrue(wait_until(lambda: list(pathlib.Path(kept).glob("*.fmsnap"))))
                self.assertEqual(server.stop(seconds=DEADLINE), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
