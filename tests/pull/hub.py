"""A hub for tests: the part of the Hugging Face hub's API that downloads need, on loopback.

Two servers: the hub, and the host of large files (`files`), to which the hub redirects with links
that carry a signature and expire. PyPI's huggingface_hub accepts it (real_client_test.py).

Faults are functions in `Hub.faults`. Each gets the request's handler before it is answered and
returns True if it has answered.
"""
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

PAGE = 3  # files per page of a list, so that every test needs several


class Blob:
    """A file of a repository."""

    def __init__(self, data, is_large):
        self.data = data
        self.is_large = is_large
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.git_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def etag(self):
        return self.sha256 if self.is_large else self.git_id

    def entry(self, path):
        entry = {"type": "file", "path": path, "size": len(self.data), "oid": self.git_id}
        if self.is_large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}
        return entry


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        self.url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(self.url.query))
        # A proxy gets the whole URL.
        self.name = urllib.parse.unquote(self.url.path)
        with hub.lock:
            hub.requests.append((self.server.role, self.command, self.name,
                                 dict(self.headers.items())))
        try:
            if not any(fault(self) for fault in list(hub.faults)):
                getattr(self, "answer_" + self.server.role)()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # ---- answers

    def send(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, text):
        self.send(status, [("X-Error-Code", code), ("X-Error-Message", text)],
                  json.dumps({"error": text}).encode())

    def send_endless(self, status, headers=()):
        """Sends more than anybody should take. Returns how much was taken."""
        self.close_connection = True
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()  # without a length: until the connection closes
        taken = 0
        try:
            while taken < 64 << 20:
                self.wfile.write(bytes(65536))
                taken += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
        return taken

    def cut(self):
        """Closes the connection without an answer."""
        self.close_connection = True

    def send_file(self, data, headers=()):
        """Sends a file or the range that was asked for, as slowly as the hub says."""
        first, end = 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        is_range = asked is not None and self.server.hub.has_ranges
        if is_range:
            first = int(asked[1])
            end = min(int(asked[2]) + 1 if asked[2] else end, end)
        if is_range and first >= len(data):
            self.send(416, [("Content-Range", f"bytes */{len(data)}")])
            return
        self.send_response(206 if is_range else 200)
        for name, value in headers:
            self.send_header(name, value)
        if is_range:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        if self.command != "HEAD":
            self.send_bytes(data[first:end])

    def send_bytes(self, data):
        hub = self.server.hub
        step = 16384 if hub.bytes_per_second or hub.cut_after else 1 << 20
        for at in range(0, len(data), step):
            piece = data[at:at + step]
            if hub.cut_after is not None and not hub.spend(len(piece)):
                self.cut()
                return
            self.wfile.write(piece)
            with hub.lock:
                hub.sent_bytes += len(piece)
            if hub.bytes_per_second:
                time.sleep(len(piece) / hub.bytes_per_second)

    def answer_hub(self):
        hub = self.server.hub
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", self.name)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.name)
        repo = hub.repos.get((api or file)[1]) if api or file else None
        if repo is None:
            self.refuse(404 if not hub.token or self.has_token() else 401, "RepoNotFound",
                        "Repository not found")
        elif hub.token and not self.has_token():
            self.refuse(401, "GatedRepo", "Access to this model is restricted")
        elif api and api[3] not in (None, "main", hub.commit):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
        elif api and api[2] == "tree":
            self.answer_tree(repo)
        elif api:
            self.send(200, [("Content-Type", "application/json")], json.dumps({
                "id": api[1], "modelId": api[1], "sha": hub.commit, "private": False,
                "siblings": [{"rfilename": path} for path in repo]}).encode())
        else:
            self.answer_resolve(repo, file[3])

    def has_token(self):
        return self.headers.get("Authorization") == f"Bearer {self.server.hub.token}"

    def answer_tree(self, repo):
        first = int(self.query.get("cursor", "0"))
        entries = [blob.entry(path) for path, blob in repo.items()] + self.server.hub.more_entries
        headers = [("Content-Type", "application/json")]
        if first + PAGE < len(entries):
            headers.append(("Link", f'<{self.server.hub.url}{self.url.path}?recursive=true&cursor='
                                    f'{first + PAGE}>; rel="next"'))
        self.send(200, headers, json.dumps(entries[first:first + PAGE]).encode())

    def answer_resolve(self, repo, path):
        hub = self.server.hub
        blob = repo.get(path)
        if blob is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = [("X-Repo-Commit", hub.commit), ("ETag", f'"{blob.etag()}"')]
        if not blob.is_large:
            self.send_file(blob.data, headers)
            return
        link = f"{hub.files_url}/{blob.sha256}?signature={hub.sign()}&name={path}"
        self.send(302, headers + [("Location", link), ("X-Linked-Etag", f'"{blob.sha256}"'),
                                  ("X-Linked-Size", str(len(blob.data)))],
                  f"Temporary Redirect. Redirecting to {link}".encode())

    def answer_files(self):
        """Large files by digest; other files by name."""
        hub = self.server.hub
        plain = hub.plain_files.get(self.name)
        if plain is not None:
            self.send_file(plain, [("ETag", f'"{hashlib.md5(plain).hexdigest()}"')]
                           if hub.has_etags else [])
            return
        data = hub.by_digest.get(self.name[1:])
        if data is None or not hub.is_signed(self.query.get("signature")):
            self.send(403, body=b"<Error><Code>AccessDenied</Code></Error>")
        else:
            self.send_file(data, [("ETag", '"of-the-file-host"')])


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub, role, context=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub
        self.role = role
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):  # pylint: disable=arguments-differ
        pass


class Hub:
    """The state of both servers. Use it with `with`."""

    def __init__(self, context=None):
        self.lock = threading.Lock()
        self.repos = {}
        self.by_digest = {}
        self.plain_files = {}
        self.more_entries = []  # of every list: what an attacker adds
        self.commit = "0123456789abcdef0123456789abcdef01234567"
        self.token = None
        self.faults = []
        self.requests = []
        self.sent_bytes = 0
        self.bytes_per_second = None  # of each connection
        self.has_ranges = True
        self.has_etags = True  # of plain files
        self.cut_after = None  # bytes until all connections are cut, then every so many
        self.n_cuts = None  # so many at most
        self.spent = 0
        self.link_uses = None  # requests per signed link
        self.signatures = {}
        scheme = "https" if context else "http"
        self.servers = [Server(self, "hub", context), Server(self, "files", context)]
        self.url, self.files_url = (f"{scheme}://localhost:{s.server_address[1]}"
                                    if context else f"http://127.0.0.1:{s.server_address[1]}"
                                    for s in self.servers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, repo, files, large=(".safetensors", ".gguf")):
        """Adds files {path: bytes} to a repository."""
        blobs = self.repos.setdefault(repo, {})
        for path, data in files.items():
            blobs[path] = Blob(data, path.endswith(tuple(large)))
            self.by_digest[blobs[path].sha256] = data

    def sign(self):
        with self.lock:
            signature = f"s{len(self.signatures)}"
            self.signatures[signature] = 0
            return signature

    def is_signed(self, signature):
        with self.lock:
            if signature not in self.signatures:
                return False
            self.signatures[signature] += 1
            return self.link_uses is None or self.signatures[signature] <= self.link_uses

    def spend(self, n_bytes):
        """Returns False when it is time to cut."""
        with self.lock:
            self.spent += n_bytes
            if self.spent < self.cut_after or self.n_cuts == 0:
                return True
            self.spent = 0
            if self.n_cuts is not None:
                self.n_cuts -= 1
            return False

    def asked(self, role, pattern=""):
        with self.lock:
            return [r for r in self.requests if r[0] == role and re.search(pattern, r[2])]
