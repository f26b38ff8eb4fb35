"""A proxy that records what an agent sends, with all texts replaced.

What a server must understand is the form: fields, types, nesting, schemas. Texts are replaced by
numbered ones, so that nothing of the agent's own prompts, the machine or its user is kept. The same
text always becomes the same words, so that the second turn still begins like the first.
"""
import http.client
import http.server
import json
import threading
import urllib.parse

# Fields whose values belong to the protocol and not to a prompt.
PROTOCOL = {"type", "role", "format", "$schema", "tool_choice", "wire_api", "effort", "summary",
            "verbosity", "truncation", "include", "reasoning_effort", "keep", "edits", "ttl",
            "syntax", "status", "phase", "object"}
SCHEMAS = {"parameters", "input_schema", "schema"}
HEADERS = ("anthropic-version", "anthropic-beta", "content-type", "accept", "session_id",
           "x-claude-code-session-id", "x-session-affinity", "originator")
TOOLS_KEPT = 4
BILLING = "x-anthropic-billing-header: cc_version=0.0.0.000; cc_entrypoint=cli; cch=00000;"


class Words:
    """Maps texts to their replacements."""

    def __init__(self):
        self.seen = {}

    def of(self, text):
        if text.startswith("x-anthropic-billing-header"):
            return BILLING
        if text not in self.seen:
            self.seen[text] = f"text {len(self.seen) + 1}"
        return self.seen[text]

    def schema(self, value):
        """Returns a schema with its names and limits, but without descriptions."""
        if isinstance(value, dict):
            return {k: self.schema(v) for k, v in value.items()
                    if not (k in ("description", "title", "examples") and isinstance(v, str))}
        return [self.schema(v) for v in value] if isinstance(value, list) else value

    def reduce(self, value, key=""):
        if isinstance(value, dict):
            return {k: self.schema(v) if k in SCHEMAS else self.reduce(v, k)
                    for k, v in value.items()}
        if isinstance(value, list):
            if key == "tools":
                value = self.some_tools(value)
            return [self.reduce(v, key) for v in value]
        if not isinstance(value, str) or key in PROTOCOL:
            return value
        if key == "model":
            return "model"
        return value if key == "name" and len(value) < 64 else self.of(value)

    @staticmethod
    def some_tools(tools):
        """Returns one tool of each kind, and the first few. The others differ only in their
        schemas."""
        kinds, kept = set(), []
        for tool in tools:
            kind = tool.get("type", "")
            if kind not in kinds or len(kept) < TOOLS_KEPT:
                kept.append(tool)
            kinds.add(kind)
        return kept


class Recorder:
    def __init__(self, url, folder):
        self.folder, self.name = folder, "request"
        self.words = Words()
        self.counts = {}
        folder.mkdir(parents=True, exist_ok=True)
        to = urllib.parse.urlsplit(url)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def forward(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if body:
                    outer.keep(self.path, self.headers, body)
                there = http.client.HTTPConnection(to.hostname, to.port, timeout=600)
                headers = {k: v for k, v in self.headers.items()
                           if k.lower() not in ("host", "connection")}
                there.request(self.command, self.path, body or None, headers)
                answer = there.getresponse()
                self.send_response(answer.status)
                for k, v in answer.getheaders():
                    if k.lower() not in ("transfer-encoding", "connection", "date", "server"):
                        self.send_header(k, v)
                self.send_header("Connection", "close")
                self.end_headers()
                while self.command != "HEAD" and (data := answer.read1(65536)):
                    self.wfile.write(data)
                    self.wfile.flush()
                self.close_connection = True
                there.close()

            do_GET = do_POST = do_HEAD = forward

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def keep(self, path, headers, body):
        number = self.counts[self.name] = self.counts.get(self.name, 0) + 1
        kept = {"path": path,
                "headers": {k: self.words.of(headers[k]) if "session" in k else headers[k]
                            for k in HEADERS if headers.get(k)},
                "body": self.words.reduce(json.loads(body))}
        name = self.name if number == 1 else f"{self.name}-{number}"
        (self.folder / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False)
                                                  + "\n", encoding="utf-8")

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
