#!/usr/bin/env python3
"""Tests downloads under faults: of the network, of the hub, of the disk, and of an attacker.

Usage: faults_test.py PROGRAM TESTS [TestClass...]
"""
import json
import os
import shutil
import ssl
import subprocess
import threading
import time

import hub as hubs
from pull_case import PROGRAM, Case, main, noise


class Network(Case):
    def test_cut_connections(self):
        files = self.add_noise()
        self.hub.cut_after = 700_000
        self.pull("org/noise", "--connections", "3")
        self.assert_pulled(files)
        self.assertGreater(len(self.hub.asked("files")), 12)
        # What has arrived is not asked for again.
        self.assertLess(self.hub.sent_bytes, 1.5 * sum(map(len, files.values())))

    def test_retry_after(self):
        files = self.add_noise(n_shards=1)
        seen = {}

        def busy(request):
            """The first request is refused, the second must come later."""
            key = (request.server.role, request.name)
            if request.server.role == "hub" and "/revision/" not in request.name:
                return False
            first = seen.setdefault(key, [])
            first.append(time.monotonic())
            if len(first) > 1:
                return False
            request.send(429 if request.server.role == "hub" else 503, [("Retry-After", "1")])
            return True
        self.hub.faults.append(busy)
        self.pull("org/noise", "--connections", "1")
        self.assert_pulled(files)
        for key, times in seen.items():
            self.assertGreaterEqual(times[1] - times[0], 0.95, key)

    def test_retry_after_holds_all(self):
        """A server that asks for a pause gets one, not requests of the other connections."""
        files = self.add_noise()
        both, refused, later = threading.Event(), threading.Event(), []
        order = iter(range(1000))

        def busy(request):
            if refused.is_set():
                later.append(time.monotonic())
            number = next(order) if request.server.role == "files" else None
            if number == 0:
                both.wait(600)
                later.append(time.monotonic())
                refused.set()
                request.send(503, [("Retry-After", "1")])
            elif number == 1:
                both.set()
                refused.wait(600)
                time.sleep(0.3)  # the refusal arrives first
            return number == 0
        self.hub.faults.append(busy)
        self.pull("org/noise", "--connections", "2")
        self.assert_pulled(files)
        self.assertGreater(len(later), 2)
        self.assertGreaterEqual(later[1] - later[0], 0.95)

    def test_server_errors(self):
        """Statuses that may pass are retried; then the user can continue."""
        files = self.add_noise()
        for status in (500, 502, 504, 429):
            broken = lambda r, status=status: r.server.role == "files" and not r.send(status)
            self.hub.faults.append(broken)
            self.assert_fails(self.pull("org/noise", "--retries", "1", status=1), str(status),
                              "same command again")
            self.hub.faults.remove(broken)
        self.assertEqual([m["state"] for m in self.list()], ["partial"])
        self.pull("org/noise")
        self.assert_pulled(files)

    def test_texts_of_errors(self):
        """The text of an error may be longer than what was asked for."""
        data = noise(1, 2_000_000)
        self.hub.plain_files["/m.gguf"] = data
        url = f"{self.hub.files_url}/m.gguf"
        for status, words in ((401, "must be public"), (403, "must be public"),
                              (404, "check the name"), (503, "same command again")):
            with self.subTest(status=status):
                self.hub.faults[:] = [lambda r, s=status: not r.send(s, (), b"text " * 100)]
                self.assert_fails(self.pull(url, "--retries", "1", status=1), str(status), words)
        self.hub.faults[:] = [lambda r: len(self.hub.asked("files", "^/m.gguf")) < 2 and
                              not r.send(503, (), b"text " * 100)]
        del self.hub.requests[:]
        self.pull(url)
        self.assertEqual(next(self.models.glob("**/m.gguf")).read_bytes(), data)

    def test_endless_texts(self):
        files = self.add_noise(n_shards=1)
        taken = []

        def answer(pattern, status, headers=()):
            self.hub.faults[:] = [lambda r: pattern in f"{r.server.role}{r.name}" and
                                  taken.append(r.send_endless(status, headers)) is None]
        for role in ("hub/", "files/"):
            for status, words in ((403, "token"), (500, "same command again")):
                with self.subTest(role=role, status=status):
                    answer(role, status)
                    self.assert_fails(self.pull("org/noise", "--retries", "1", status=1),
                                      str(status), words)
        shard = "model-00001-of-00001.safetensors"
        answer(shard, 302, [("Location", f"{self.hub.files_url}/other")])
        self.hub.plain_files["/other"] = files[shard]
        self.pull("org/noise")
        self.assert_pulled(files)
        self.assertLess(max(taken), 32 << 20)

    def test_no_network(self):
        self.add_noise()
        port = self.hub.url.rsplit(":", 1)[1]
        self.hub.__exit__()
        self.assert_fails(self.pull("org/noise", "--retries", "1", status=1), port, "again")

    def test_expired_links(self):
        """A link serves two requests; then the hub must be asked for another."""
        files = self.add_noise()
        self.hub.link_uses = 2
        self.pull("org/noise")
        self.assert_pulled(files)
        self.assertGreater(len(self.hub.asked("hub", "resolve.*safetensors")), 4)

    def test_links_that_never_work(self):
        self.add_noise()
        self.hub.link_uses = 0
        done = self.pull("org/noise", "--retries", "2", status=1)
        self.assertIn("403", done.stderr)
        self.assertNotIn("signature", done.stderr)

    def test_silent_server(self):
        """A connection that sends nothing is given up after --timeout."""
        files = self.add_noise(n_shards=1)
        silent, gate = [], threading.Event()

        def wait(request):
            if request.server.role == "files" and len(silent) < 2:
                silent.append(request)
                gate.wait(600)
                request.cut()
                return True
            return False
        self.hub.faults.append(wait)
        self.pull("org/noise", "--timeout", "1")
        gate.set()
        self.assert_pulled(files)

    def test_slow_server(self):
        """A connection that sends a byte now and then is given up too, with a line that says so."""
        files = self.add_noise(n_shards=1)
        slow, gate = [], threading.Event()

        def trickle(request):
            data = self.hub.by_digest.get(request.name[1:])
            if request.server.role != "files" or data is None or len(slow) == 2:
                return False
            slow.append(request)
            first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            request.send_header("Content-Length", str(last + 1 - first))
            request.end_headers()
            for byte in data[first:last + 1]:
                request.wfile.write(bytes([byte]))
                if gate.wait(0.05):
                    break
            request.cut()
            return True
        self.hub.faults.append(trickle)
        done = self.pull("org/noise", "--timeout", "2", "--connections", "1")
        gate.set()
        self.assert_pulled(files)
        self.assertEqual(len(slow), 2)
        self.assertIn("less than 512 bytes per second", done.stderr)
        del slow[:]
        gate.clear()
        self.flashmoe("rm", "org/noise")
        self.hub.faults[:] = [lambda request: trickle(request) if len(slow) < 2 else False]
        failed = self.pull("org/noise", "--timeout", "2", "--connections", "1", "--retries", "1",
                           status=1)
        gate.set()
        self.assertIn("too slow", failed.stderr)
        self.assertIn("same command again", failed.stderr)

    def test_no_ranges(self):
        files = self.add_noise()
        self.hub.has_ranges = False
        self.pull("org/noise")
        self.assert_pulled(files)
        # Cut in the middle, such a file begins again.
        self.flashmoe("rm", "org/noise")
        self.hub.cut_after = 2_000_000
        self.hub.n_cuts = 3
        self.pull("org/noise", "--connections", "1")
        self.assert_pulled(files)


class Redirects(Case):
    def test_renamed_repository(self):
        files = self.add_noise("new/noise")
        self.hub.token = "hf_secret"

        def renamed(request):
            if "old/noise" not in request.path:
                return False
            request.send(307, [("Location", request.path.replace("old/noise", "new/noise"))])
            return True
        self.hub.faults.append(renamed)
        self.pull("old/noise", HF_TOKEN="hf_secret")
        self.assert_pulled(files, "old/noise")

    def redirect_to(self, location, role="hub"):
        self.add_noise()
        self.hub.faults.append(lambda r: r.server.role == role and
                               not r.send(302, [("Location", location)]))
        return self.pull("org/noise", "--retries", "1", status=1)

    def test_endless(self):
        self.assert_fails(self.redirect_to("/again"), "redirects")

    def test_endless_files(self):
        self.assert_fails(self.redirect_to("/again", "files"), "redirects")

    def test_other_schemes(self):
        for location in ("file:///etc/passwd", "ftp://127.0.0.1/x", "", "javascript:x",
                         "gopher://127.0.0.1:1/x"):
            with self.subTest(location=location):
                self.assert_fails(self.redirect_to(location, "files"), "redirects to")
                self.hub.faults.clear()

    def test_https_to_http(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl")
        key, cert = self.folder / "key.pem", self.folder / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        insecure_url = self.hub.files_url
        self.hub = self.enter(hubs.Hub(context))
        files = self.add_noise(n_shards=1)
        self.hub.token = "hf_secret"
        self.assert_fails(self.pull("org/noise", "--retries", "1", HF_TOKEN="hf_secret", status=1),
                          "certificate")
        self.assertEqual(self.hub.requests, [])
        self.pull("org/noise", HF_TOKEN="hf_secret", SSL_CERT_FILE=cert)
        self.assert_pulled(files)
        self.flashmoe("rm", "org/noise")
        self.hub.files_url = insecure_url
        self.assert_fails(self.pull("org/noise", HF_TOKEN="hf_secret", SSL_CERT_FILE=cert,
                                    status=1), "without https")


class WrongBytes(Case):
    def spoil(self, times):
        """Sends wrong bytes in this many responses."""
        left = [times]

        def wrong(request):
            data = self.hub.by_digest.get(request.name[1:])
            if request.server.role != "files" or data is None or left[0] == 0:
                return False
            left[0] -= 1
            spoiled = bytearray(data)
            for at in range(0, len(data), 100_000):  # in every range
                spoiled[at] ^= 1
            request.send_file(bytes(spoiled))
            return True
        self.hub.faults.append(wrong)

    def test_once(self):
        files = self.add_noise()
        self.spoil(1)
        self.assertIn("downloading it again", self.pull("org/noise").stderr)
        self.assert_pulled(files)

    def test_always(self):
        self.add_noise()
        self.spoil(-1)
        done = self.pull("org/noise", status=1)
        self.assert_fails(done, "wrong bytes", "model-0000")
        self.assertEqual(list((self.models / "org/noise").glob("*.safetensors")), [])
        self.assert_fails(self.flashmoe("run", "org/noise", "-p", "a"), "in part")

    def test_small_files(self):
        """A file without SHA-256 has the id of its git blob."""
        self.add_noise()
        data = b'{"model_type": "nOise"}'
        self.hub.faults.append(lambda r: r.name.endswith("config.json") and not r.send_file(data))
        self.assert_fails(self.pull("org/noise", status=1), "config.json", "wrong bytes")

    def test_damaged_while_it_waits(self):
        """Bytes that an earlier process left are checked, too."""
        files = self.add_noise(n_shards=1, shard_bytes=6_000_000)
        self.hub.cut_after = 3_000_000
        self.pull("org/noise", "--retries", "0", "--connections", "1", status=1)
        part = self.models / "org/noise/.pull/model-00001-of-00001.safetensors.part"
        with part.open("r+b") as file:
            file.write(b"damage")
        self.hub.cut_after = None
        self.assertIn("downloading it again", self.pull("org/noise").stderr)
        self.assert_pulled(files)

    def answer(self, make):
        """Lets `make` answer every request for a large file."""
        self.add_noise(n_shards=1)
        self.hub.faults.append(lambda r: r.server.role == "files" and not make(r))
        return self.pull("org/noise", "--retries", "1", status=1)

    def test_wrong_ranges(self):
        data = noise(2, 3_000_000)
        answers = {
            "other range": lambda r: r.send(206, [("Content-Range", "bytes 5-9/3000000")],
                                            b"12345"),
            "no range": lambda r: r.send(206, [], b"12345"),
            "other size": lambda r: r.send_file(data + b"more"),
            "less": lambda r: r.send_file(data[:-5]),
            "nonsense": lambda r: r.send(206, [("Content-Range", "bytes -1-x/99999999999999999")],
                                         b"1"),
            "encoded": lambda r: r.send_file(data, [("Content-Encoding", "gzip")]),
        }
        for name, make in answers.items():
            with self.subTest(name):
                self.hub.faults.clear()
                self.answer(make)
                self.assertFalse((self.models / "org/noise/model-00001-of-00001.safetensors")
                                 .exists())

    def test_more_bytes_than_asked(self):
        def more(request):
            first = int(request.headers["Range"][6:].split("-")[0])
            end = int(request.headers["Range"][6:].split("-")[1]) + 1
            request.close_connection = True
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{end - 1}/3000000")
            request.end_headers()  # without a length: until the connection closes
            request.wfile.write(bytes(end - first + 100))
        self.assert_fails(self.answer(more), "more bytes")


class HostileHub(Case):
    def test_names(self):
        (self.folder / "models").mkdir()
        for name in ("../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors",
                     "..", "x\\y.safetensors", "con\ntrol.safetensors", "\x1b[2Jx.safetensors",
                     "a//b", "n" * 300 + ".safetensors"):
            with self.subTest(name=name):
                self.add_noise()
                self.hub.more_entries = [hubs.Blob(b"evil", True).entry(name)]
                done = self.assert_fails(self.pull("org/noise", status=1), "cannot be used")
                self.assertNotIn("\x1b", done.stderr)
        self.assertEqual(list(self.models.iterdir()), [])
        self.assertEqual(self.hub.asked("files"), [])

    def test_hidden_names_are_left_out(self):
        files = self.add_noise()
        self.hub.more_entries = [hubs.Blob(b"x", True).entry(name)
                                 for name in (".bashrc", ".pull", "a/.b.safetensors")]
        self.pull("org/noise")
        self.assert_pulled(files)

    def test_two_files_of_one_name(self):
        self.add_noise()
        self.hub.more_entries = [hubs.Blob(b"x", True).entry("config.json")]
        self.assert_fails(self.pull("org/noise", status=1), "two files", "config.json")

    def test_lists(self):
        good = hubs.Blob(b"x", True).entry("model.safetensors")
        for change in ({"size": -1, "lfs": None}, {"lfs": {"oid": "short", "size": 1}},
                       {"lfs": {"oid": "g" * 64, "size": 1}}, {"size": 1 << 62, "lfs": None},
                       {"path": 7}, {"type": None}, {"lfs": {"oid": "a" * 64, "size": "1"},
                                                     "size": None}, {"oid": 5, "lfs": None}):
            with self.subTest(change=change):
                self.hub.repos.clear()
                self.add_noise()
                entry = {**good, **change}
                self.hub.more_entries = [{k: v for k, v in entry.items() if v is not None}]
                self.assert_fails(self.pull("org/noise", status=1), "not the hub's")

    def test_answers(self):
        self.add_noise()
        for body in (b"", b"<html>", b"[" * 100_000, b'{"sha": "../../x"}', b'{"sha": 5}', b"{}",
                     b'{"sha": "' + b"A" * 40 + b'"}', b'"\xff"'):
            with self.subTest(body=body[:20]):
                fault = lambda r, body=body: "/revision/" in r.name and not r.send(200, (), body)
                self.hub.faults.append(fault)
                self.assert_fails(self.pull("org/noise", status=1), "not the hub's")
                self.hub.faults.remove(fault)

    def test_endless_list(self):
        self.add_noise()
        page = [("Link", f'<{self.hub.url}/api/models/org/noise/tree/x>; rel="next"')]
        self.hub.faults.append(lambda r: "/tree/" in r.name and not r.send(200, page, b"[]"))
        self.assert_fails(self.pull("org/noise", status=1), "too many pages")

    def test_long_list(self):
        self.add_noise()
        page = json.dumps([hubs.Blob(b"x", False).entry(f"{i}.json") for i in range(10_001)])
        self.hub.faults.append(lambda r: "/tree/" in r.name and
                               not r.send(200, (), page.encode()))
        self.assert_fails(self.pull("org/noise", status=1), "too many files")

    def test_larger_than_any_disk(self):
        self.add_noise()
        entry = hubs.Blob(b"x", True).entry("model-9.safetensors")
        entry["lfs"]["size"] = 1 << 45
        self.hub.more_entries = [entry]
        self.assert_fails(self.pull("org/noise", status=1), "not enough space", "GB are free")
        self.assertEqual(self.hub.asked("files"), [])


class Disk(Case):
    def test_links(self):
        """Nothing is written through a link, and nothing that it leads to is changed."""
        outside = self.folder / "outside"
        outside.mkdir()
        (outside / "file").write_text("precious")
        folder = self.models / "org/noise"
        shard = "model-00001-of-00003.safetensors"
        self.add_noise()
        for name, target in ((".pull", outside), ("config.json", outside / "file"),
                             (f".pull/{shard}.part", outside / "file"),
                             (f".pull/{shard}.state.tmp", outside / "file"),
                             (".pull/manifest.json.tmp", outside / "file")):
            with self.subTest(name=name):
                shutil.rmtree(self.models, ignore_errors=True)
                folder.mkdir(parents=True)
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).symlink_to(target)
                done = self.flashmoe("pull", "org/noise")
                self.assertEqual((outside / "file").read_text(), "precious")
                self.assertEqual([p.name for p in outside.iterdir()], ["file"])
                if done.returncode == 0:
                    self.assertFalse(any(p.is_symlink() for p in folder.iterdir()))

    def test_a_second_name(self):
        """A part that has another name could change a file elsewhere: it is not continued."""
        self.add_noise(n_shards=1, shard_bytes=6_000_000)
        self.hub.cut_after = 3_000_000
        self.pull("org/noise", "--retries", "0", "--connections", "1", status=1)
        part = self.models / "org/noise/.pull/model-00001-of-00001.safetensors.part"
        os.link(part, self.folder / "elsewhere")
        self.assert_fails(self.pull("org/noise", status=2), "was not changed", status=2)

    def test_full_disk(self):
        disk = self.folder / "models"
        disk.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M", "tmpfs", str(disk)],
                               capture_output=True, check=False)
        if mount.returncode != 0:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", str(disk)], check=True)
        files = self.add_noise(n_shards=3, shard_bytes=4_000_000)
        (disk / "other").write_bytes(bytes(8_000_000))
        self.assert_fails(self.pull("org/noise", status=1), "not enough space")
        # Another program takes the space during the download.
        (disk / "other").unlink()
        def fill(request):
            with self.hub.lock:
                if request.server.role == "files" and fill in self.hub.faults:
                    self.hub.faults.remove(fill)
                    (disk / "other").write_bytes(bytes(10_000_000))
            return False
        self.hub.faults.append(fill)
        self.assert_fails(self.pull("org/noise", status=1), "full")
        (disk / "other").unlink()
        self.pull("org/noise")
        self.assert_pulled(files)

    def test_read_only(self):
        if os.geteuid() == 0:
            self.skipTest("root may write everywhere")
        self.add_noise()
        self.models.mkdir()
        self.models.chmod(0o500)
        self.assert_fails(self.pull("org/noise", status=1), str(self.models))


class Stop(Case):
    """Processes that are killed or interrupted."""

    def kill_at(self, at_bytes):
        """Starts a pull and kills it when the servers have sent so much more. Returns its
        status."""
        before = self.hub.sent_bytes
        process = subprocess.Popen([PROGRAM, "pull", "org/noise", "--connections", "3"],
                                   env=self.environment(), stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None and self.hub.sent_bytes - before < at_bytes:
            time.sleep(0.001)
        process.kill()
        process.communicate()
        return process.returncode

    def kill(self, times):
        files = self.add_noise(n_shards=3, shard_bytes=10_000_000)
        total = sum(map(len, files.values()))
        # Slow enough that every kill comes while bytes arrive.
        self.hub.bytes_per_second = 400_000
        n_killed = 0
        for i in range(times):
            n_killed += self.kill_at(1 + (i * 37 % 10) * 40_000) == -9
        self.assertEqual(n_killed, times)
        self.hub.bytes_per_second = None
        before = self.hub.sent_bytes
        self.pull("org/noise")
        self.assert_pulled(files)
        return (self.hub.sent_bytes - before) / total

    def test_killed(self):
        self.kill(5)

    def test_continues(self):
        """What a killed process had is not downloaded again."""
        files = self.add_noise(n_shards=1, shard_bytes=8_000_000)
        self.hub.bytes_per_second = 1_000_000
        state = self.models / "org/noise/.pull/model-00001-of-00001.safetensors.state"
        process = subprocess.Popen([PROGRAM, "pull", "org/noise"], env=self.environment(),
                                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.hub.sent_bytes < 4_000_000:
            time.sleep(0.01)
            self.assertIsNone(process.poll())
        process.kill()
        process.wait()
        self.assertTrue(state.exists())
        self.hub.bytes_per_second = None
        before = self.hub.sent_bytes
        self.pull("org/noise")
        self.assert_pulled(files)
        self.assertLess(self.hub.sent_bytes - before, 8_000_000)

    def test_changed_meanwhile(self):
        """Without a digest, the ETag says that the file is another one: nothing is mixed."""
        url = f"{self.hub.files_url}/m.gguf"
        self.hub.plain_files["/m.gguf"] = noise(1, 6_000_000)
        self.hub.cut_after = 3_000_000
        self.pull(url, "--retries", "0", "--connections", "1", status=1)
        self.assertTrue(list(self.models.glob("**/m.gguf.state")))
        self.hub.cut_after = None
        self.hub.plain_files["/m.gguf"] = noise(2, 6_000_000)
        self.pull(url)
        path = next(self.models.glob("**/m.gguf"))
        self.assertEqual(path.read_bytes(), noise(2, 6_000_000))

    def test_changed_and_interrupted(self):
        """Files of an older commit and of the same length are not taken for the new ones."""
        files = self.add_noise()
        self.pull("org/noise")
        new = {name: noise(i + 50, len(files[name])) for i, name in
               enumerate(("tokenizer.json", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors"))}
        self.hub.add("org/noise", new)
        self.hub.commit = "f" * 40
        self.hub.faults.append(lambda r: r.name.endswith(self.hub.repos["org/noise"]
                               ["model-00003-of-00003.safetensors"].sha256) and not r.send(500))
        self.pull("org/noise", "--retries", "0", "--connections", "1", status=1)
        self.assertEqual([m["state"] for m in self.list()], ["partial"])
        self.hub.faults.clear()
        before = self.hub.sent_bytes
        self.pull("org/noise")
        self.assert_pulled({**files, **new})
        # The second shard had arrived and is not downloaded again.
        self.assertLess(self.hub.sent_bytes - before, 4_000_000)

    def test_interrupted(self):
        files = self.add_noise()
        self.hub.bytes_per_second = 400_000
        interrupt = 2
        before = self.hub.sent_bytes
        process = subprocess.Popen([PROGRAM, "pull", "org/noise"], env=self.environment(),
                                   stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while self.hub.sent_bytes - before < 300_000:
            time.sleep(0.001)
        process.send_signal(interrupt)
        self.assertEqual(process.wait(600), 130)
        self.assertIn(b"same command again", process.stderr.read())
        process.stderr.close()
        self.hub.bytes_per_second = None
        self.pull("org/noise")
        self.assert_pulled(files)


class Killed100(Stop):
    """The whole of Stop.test_killed."""
    test_continues = test_interrupted = test_changed_meanwhile = None
    test_changed_and_interrupted = None

    def test_killed(self):
        left = self.kill(100)
        print(f"after 100 kills {left:.2f} of the bytes were left to download")
        self.assertLess(left, 0.95)


if __name__ == "__main__":
    main()
