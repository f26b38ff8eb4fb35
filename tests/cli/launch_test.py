"""Tests `flashmoe launch` with servers that give scripted answers and agents that report how they
were run.

Usage: launch_test.py PROGRAM MODEL [TestClass...]
"""
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
import unittest

import cli_test
from cli_test import Case

AGENTS = ("claude", "codex", "opencode", "qwen", "pi")

# Reports how it was run, as JSON; a file named with --extension is reported with its text.
FAKE = f"""#!{sys.executable}
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(77))
words = sys.argv[1:]
files = [w for before, w in zip(words, words[1:]) if before == "--extension"]
print(json.dumps({{"name": os.path.basename(sys.argv[0]), "args": words, "env": dict(os.environ),
                  "files": [open(f).read() for f in files]}}), flush=True)
while "wait" in words:  # a pause would miss a signal that comes just before it
    time.sleep(0.05)
if "die" in words:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5 if "fail" in words else 0)
"""


class Server:
    """Serves /health and /v1/models below `prefix`."""

    def __init__(self, name="a-model", n_context=65536, key=None, prefix="", chunks=None, body=None,
                 status=200, family=socket.AF_INET):
        self.seen = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):  # pylint: disable=invalid-name
                outer.seen.append((self.path, dict(self.headers)))
                answers = {
                    f"{prefix}/health": {"status": "ok"},
                    f"{prefix}/v1/models": {"data": [{"id": name, "context_length": n_context}]}}
                code = 404 if self.path not in answers else status
                if key and self.headers.get("Authorization") != f"Bearer {key}" and \
                        self.path.endswith("models"):
                    code = 401
                text = body if body is not None else \
                    json.dumps(answers.get(self.path, {})).encode()
                self.send_response(code)
                self.send_header("Connection", "close")
                if chunks:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for i in range(0, len(text), chunks):
                        part = text[i:i + chunks]
                        self.wfile.write(b"%X;x=y\r\n%b\r\n" % (len(part), part))
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

        class Kind(http.server.ThreadingHTTPServer):
            address_family = family

        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.server = Kind((host, 0), Handler)
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{shown}:{self.server.server_address[1]}{prefix}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Launching(Case):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.bin = pathlib.Path(self.home.name, "bin")
        self.tmp = pathlib.Path(self.home.name, "tmp")
        self.bin.mkdir()
        self.tmp.mkdir()
        for name in AGENTS:
            (self.bin / name).write_text(FAKE)
            (self.bin / name).chmod(0o755)

    def environment(self, **more):
        found = {k: v for k, v in os.environ.items() if k != "FLASHMOE_API_KEY"}
        return {**found, "PATH": f"{self.bin}:{found['PATH']}", "HOME": self.home.name,
                "TMPDIR": str(self.tmp), **more}

    def launch(self, *args, **more):
        return subprocess.run([cli_test.PROGRAM, "launch", *args], env=self.environment(**more),
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=1800, check=False)

    def ran(self, *args, status=0, **more):
        done = self.launch(*args, **more)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(list(self.tmp.iterdir()), [])
        return json.loads(done.stdout)

    def printed(self, *args, **more):
        """Returns what a shell does with the output of --print."""
        shown = self.assert_works(self.launch("--print", *args, **more)).stdout
        done = subprocess.run(["sh", "-eu", "-c", shown], env=self.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=1800, check=True)
        return json.loads(done.stdout)


class Launch(Launching):
    """What each agent is told."""

    def both(self, name, *args, **more):
        """Running and printing give the same result."""
        with Server("odd 'name'/x", key="k-1") as server:
            all_args = (name, "-u", server.url, "--api-key", "k-1", *args)
            run, shown = self.ran(*all_args, **more), self.printed(*all_args, **more)
        self.assertEqual(run["name"], name)
        paths = [re.compile(r"^/.*/flashmoe\.js$").sub("FILE", w) for w in run["args"]]
        self.assertEqual([re.sub(r"^/.*/flashmoe\.js$", "FILE", w) for w in shown["args"]], paths)
        self.assertEqual(run["files"], shown["files"])
        was = self.environment()
        told = {k: v for k, v in run["env"].items() if was.get(k) != v}
        for key, value in told.items():
            self.assertEqual(shown["env"][key], value)
        return server.url, told, run

    def test_claude(self):
        url, told, run = self.both("claude", "--", "-p", "hello 'you'")
        self.assertEqual(run["args"], ["-p", "hello 'you'"])
        self.assertEqual(told["ANTHROPIC_BASE_URL"], url)
        self.assertEqual(told["ANTHROPIC_AUTH_TOKEN"], "k-1")
        self.assertEqual(told["ANTHROPIC_API_KEY"], "")
        for name in ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL",
                     "ANTHROPIC_DEFAULT_HAIKU_MODEL"):
            self.assertEqual(told[name], "odd 'name'/x")
        self.assertEqual(told["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"], "1")
        self.assertEqual(told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], "16384")
        self.assertEqual(told["CLAUDE_CODE_AUTO_COMPACT_WINDOW"], "65536")

    def test_what_the_user_has_set(self):
        with Server() as server:
            told = self.ran("claude", "--url", server.url, CLAUDE_CODE_MAX_OUTPUT_TOKENS="999",
                            ANTHROPIC_MODEL="elsewhere")["env"]
        self.assertEqual(told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], "999")
        self.assertEqual(told["ANTHROPIC_MODEL"], "a-model")

    def test_codex(self):
        url, told, run = self.both("codex", "exec", "hello")
        self.assertEqual(run["args"][-2:], ["exec", "hello"])
        settings = run["args"][:-2]
        self.assertEqual(set(settings[::2]), {"-c"})
        found = tomllib.loads("\n".join(settings[1::2]))
        self.assertEqual(found["model"], "odd 'name'/x")
        self.assertEqual(found["model_context_window"], 65536)
        provider = found["model_providers"][found["model_provider"]]
        self.assertEqual(provider["base_url"], f"{url}/v1")
        self.assertEqual(provider["wire_api"], "responses")
        self.assertEqual(told[provider["env_key"]], "k-1")

    def test_opencode(self):
        url, told, run = self.both("opencode", "run", "hello")
        self.assertEqual(run["args"], ["run", "hello"])
        config = json.loads(told["OPENCODE_CONFIG_CONTENT"])
        provider, model = config["model"].split("/", 1)
        self.assertEqual(config["small_model"], config["model"])
        self.assertEqual(config["provider"][provider]["options"],
                         {"baseURL": f"{url}/v1", "apiKey": "k-1"})
        self.assertEqual(config["provider"][provider]["models"][model]["limit"],
                         {"context": 65536, "output": 16384})

    def test_qwen(self):
        url, told, run = self.both("qwen", "--", "-p", "hello")
        self.assertEqual(run["args"], ["--auth-type", "openai", "--model", "odd 'name'/x", "-p",
                                       "hello"])
        self.assertEqual((told["OPENAI_BASE_URL"], told["OPENAI_API_KEY"], told["OPENAI_MODEL"]),
                         (f"{url}/v1", "k-1", "odd 'name'/x"))

    def test_pi(self):
        url, told, run = self.both("pi", "--", "-p", "hello")
        self.assertEqual(run["args"][:1] + run["args"][2:],
                         ["--extension", "--provider", "flashmoe", "--model", "odd 'name'/x",
                          "-p", "hello"])
        text, = run["files"]
        provider = json.loads(re.search(r'registerProvider\("flashmoe", (.*)\);', text, re.S)[1])
        self.assertEqual(provider["baseUrl"], f"{url}/v1")
        self.assertEqual(told[provider["apiKey"]], "k-1")
        self.assertEqual(provider["models"][0]["id"], "odd 'name'/x")
        self.assertEqual(provider["models"][0]["contextWindow"], 65536)

    def test_settings_of_the_user_stay(self):
        with Server() as server:
            for name in AGENTS:
                self.ran(name, "--url", server.url)
        self.assertEqual(sorted(os.listdir(self.home.name)), ["bin", "tmp"])


class LaunchServers(Launching):
    """What is found out about the server, and the messages when that fails."""

    def test_key_and_model(self):
        with Server(key="secret") as server:
            self.assert_fails(self.launch("claude", "--url", server.url), 1, "requires an API key",
                              "--api-key", "FLASHMOE_API_KEY")
            self.assert_fails(self.launch("claude", "--url", server.url, "--api-key", "x"), 1,
                              "requires another API key")
            told = self.ran("claude", "--url", server.url, FLASHMOE_API_KEY="secret")["env"]
            self.assertEqual(told["ANTHROPIC_AUTH_TOKEN"], "secret")
            told = self.ran("claude", "--url", server.url, "--model", "other", "--api-key",
                            "secret")["env"]
            self.assertEqual(told["ANTHROPIC_MODEL"], "other")
        with Server() as server:
            told = self.ran("claude", "--url", server.url, FLASHMOE_API_KEY="")["env"]
            self.assertEqual(told["ANTHROPIC_AUTH_TOKEN"], "flashmoe")
            self.assertNotIn("Authorization", server.seen[0][1])

    def test_forms_of_answers(self):
        for more in ({"chunks": 7}, {"chunks": 1 << 16}, {"prefix": "/models/here"},
                     {"family": socket.AF_INET6}):
            with Server(**more) as server:
                for end in ("", "/", "//"):
                    told = self.ran("claude", "--url", server.url + end)["env"]
                    self.assertEqual(told["ANTHROPIC_BASE_URL"], server.url)
                    self.assertEqual(told["ANTHROPIC_MODEL"], "a-model")
                host = server.url.split("/")[2]
                self.assertEqual({headers["Host"] for _, headers in server.seen}, {host})

    def test_nobody(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            self.assert_fails(self.launch("pi", "--url", url), 1, f"no server at {url}",
                              "refused", "flashmoe serve", "--url")

    def raw(self, answer):
        """Serves one connection that gets these bytes and is closed."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            def serve():
                with server.accept()[0] as client:
                    client.recv(4096)
                    client.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            done = self.launch("pi", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
            thread.join()
        return done

    def test_others(self):
        for answer in (b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n", b"\0\0\0\0",
                       b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n"):
            self.assert_fails(self.raw(answer), 1, "the response is not HTTP")
        self.assert_fails(self.raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 << 20)), 1, "too long")
        self.assert_fails(self.raw(b"HTTP/1.0 404 No\r\n\r\n"), 1, "answers 404",
                          "not a model server")
        self.assert_fails(self.raw(b"HTTP/1.1 503 No\r\n\r\n"), 1, "not ready (503)")
        self.assert_fails(self.raw(b"HTTP/1.1 403 No\r\n\r\n"), 1, "--allowed-host 127.0.0.1")
        for body in (b"", b"[]", b"{}", b'{"data":[]}', b'{"data":[{"id":7}]}', b"{", b"\xff"):
            with Server(body=body) as server:
                self.assert_fails(self.launch("pi", "--url", server.url), 1, "lists no model")

    def test_urls(self):
        for url in ("", "here", "127.0.0.1:8080", "http://", "http://:80", "http://a:",
                    "http://a:0", "http://a:65536", "http://a:8o", "http://[::1",
                    "http://[::1]80", "http://a b",
                    "http://a\r\nX: y", "http://u@h", "http://a/?q", "ftp://a",
                    "http://" + "a" * 999, "http://a/" + "b" * 2000):
            self.assert_fails(self.launch("pi", "--url", url), 2, "is not a server URL")
        self.assert_fails(self.launch("pi", "--api-key", "a\nb"), 2, "a header cannot contain")
        self.assert_fails(self.launch("pi", "--api-key", "a" * 9999), 2, "too long")
        self.assert_fails(self.launch("pi", "--url", "https://a.invalid"), 2, "--model NAME")
        told = self.ran("claude", "--url", "https://a.invalid/x/", "--model", "m")["env"]
        self.assertEqual(told["ANTHROPIC_BASE_URL"], "https://a.invalid/x")

    def test_context(self):
        for name, tokens in (("claude", 18814), ("codex", 6111), ("opencode", 7207),
                             ("qwen", 14857), ("pi", 1360)):
            for n_context, warns in ((tokens, True), (tokens + 4096, False), (0, False)):
                with Server(n_context=n_context) as server:
                    done = self.assert_works(self.launch(name, "--url", server.url))
                self.assertEqual(f"the first request of {name} alone has about {tokens}" in
                                 done.stderr, warns, done.stderr)
                self.assertEqual("--context " in done.stderr, warns)


class LaunchRuns(Launching):
    """The agent as a program."""

    def test_status(self):
        with Server() as server:
            for name in ("claude", "pi"):
                self.ran(name, "--url", server.url, "fail", status=5)
                done = self.launch(name, "--url", server.url, "die")
                self.assertIn(done.returncode, (-signal.SIGKILL, 128 + signal.SIGKILL))
                self.assertEqual(list(self.tmp.iterdir()), [])

    @unittest.skipUnless(os.path.exists("/proc/self/status"), "no /proc")
    def test_no_signal_is_ignored(self):
        (self.bin / "claude").write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
        with Server() as server:
            done = self.assert_works(self.launch("claude", "--url", server.url))
        self.assertEqual(int(done.stdout.split()[1], 16) & 1 << (signal.SIGPIPE - 1), 0)

    def test_many_words(self):
        words = [f"w{i}" for i in range(100)]
        with Server() as server:
            self.assertEqual(self.ran("claude", "--url", server.url, *words)["args"], words)

    def test_not_there(self):
        with Server() as server:
            for name, package in (("claude", "@anthropic-ai/claude-code"), ("pi", "pi-coding")):
                (self.bin / name).unlink()
                self.assert_fails(self.launch(name, "--url", server.url, PATH=str(self.bin)), 1,
                                  f"'{name}' is not on PATH", "npm install -g", package)
                self.assert_works(self.launch(name, "--url", server.url, "--print",
                                              PATH=str(self.bin)))

    def test_stopped(self):
        """A signal reaches the agent, and its file is still removed."""
        with Server() as server:
            for name in ("claude", "pi"):
                with subprocess.Popen([cli_test.PROGRAM, "launch", name, "--url", server.url,
                                       "wait"], env=self.environment(), stdout=subprocess.PIPE,
                                      encoding="utf-8") as run:
                    self.assertEqual(json.loads(run.stdout.readline())["name"], name)
                    run.send_signal(signal.SIGTERM)
                    self.assertEqual(run.wait(timeout=1800), 77)
                self.assertEqual(list(self.tmp.iterdir()), [])

    def test_words(self):
        self.assert_fails(self.launch(), 2, "AGENT is missing")
        self.assert_fails(self.launch("cluade"), 2, "did you mean 'claude'?")
        self.assert_fails(self.launch("emacs"), 2, "claude, codex, opencode, qwen and pi")
        self.assert_fails(self.launch("claude", "-c"), 2, "unknown option '-c'")


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
