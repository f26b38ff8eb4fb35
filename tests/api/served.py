"""Starts `flashmoe serve` for tests, and sends HTTP requests to it."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time


def default_signals():
    """Restores the default actions of SIGHUP and SIGINT in a child. A child inherits ignored
    signals: nohup ignores SIGHUP, and a shell ignores SIGINT in background jobs."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Server:
    """Runs `flashmoe serve` on a free port; `with` stops it."""
    prepare = staticmethod(default_signals) # called in the child before the program starts

    def __init__(self, program, model, *options, **environment):
        self.cache = tempfile.TemporaryDirectory()
        self.log = open(pathlib.Path(self.cache.name) / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, "serve", model, "--port", "0", "--no-heat", *options], stdout=self.log,
            stderr=self.log, env={**os.environ, "XDG_CACHE_HOME": self.cache.name, **environment},
            preexec_fn=self.prepare)
        try:
            self.port = self.wait_for_port()
        except BaseException:
            self.process.kill() # nothing else would end it: there is no `with` yet
            self.process.wait()
            raise
        self.url = f"http://127.0.0.1:{self.port}"

    def lines(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def wait_for_port(self):
        while True:
            found = re.search(r"listening on http://\S+:(\d+)", self.lines())
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        text = self.lines()
        self.__exit__()
        raise RuntimeError("the server did not start:\n" + text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.log.close()
        self.cache.cleanup()

    def stop(self, number=signal.SIGTERM, seconds=1800):
        """Stops the server and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def resident_kib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1))

    def request(self, method, path, body=None, headers=None):
        """Returns (status, headers, body as bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path, **headers):
        status, _, body = self.request("GET", path, headers=headers)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def post(self, path, body, **headers):
        """Returns (status, JSON)."""
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def ask(self, text, **fields):
        """Returns the whole chat answer."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        status, answer = self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    def stream(self, path, body):
        """Returns the events of a stream: (event, data), with comments as (':', text)."""
        status, headers, data = self.request("POST", path, {**body, "stream": True})
        assert status == 200, (status, data)
        assert headers["Content-Type"] == "text/event-stream", headers
        return events_of(data.decode())

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=1800)


def events_of(text):
    found = []
    for frame in text.split("\n\n"):
        name, data = None, None
        for line in frame.splitlines():
            if line.startswith(":"):
                found.append((":", line[1:].strip()))
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found


def raw_request(path, body, extra=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
            ).encode() + data
