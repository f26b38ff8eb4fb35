#!/usr/bin/env python3
"""Tests the server with many clients at once, some of them rude.

usage: load_test.py PROGRAM MODEL [--part Idle|Load|Rude ...] [--seconds N] [--clients N]
                    [--idle N] [--seed N] [--no-memory]

Idle: clients whose answers wait behind others' keep their connections, get their pings and use few
resources. Load: clients send requests for some time, and a fifth of them disconnects during an
answer. No answer may be an error except the documented 503 or 529, resident memory must stay flat,
and every answer must be the same as for a single client. Rude: slow, oversized, malformed and
truncated requests and floods of headers come all at once, while an honest client is answered as
before.
"""
import argparse
import asyncio
import json
import pathlib
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

# The tokens that end an answer of nano: without them an answer continues as long as it may.
NO_END = {"16383": -100, "16381": -100}
LEAVING = 0.2
KIB_SLACK = 24 << 10  # allocators keep some; 100 bytes leaked per request would show
# Ends a hanging test. The server's speed is only printed; no machine is too slow for this test.
LATE_SECONDS = 600


# ---- HTTP over plain sockets ----------------------------------------------------------------


class Left(Exception):
    """The client left on purpose."""


class Client:
    """Uses one keep-alive connection after another."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None
        self.is_used = False

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.is_used = False

    def drop(self):
        """Closes the connection abruptly."""
        if self.writer is not None:
            self.writer.transport.abort()
        self.writer = None

    async def line(self):
        found = await self.reader.readline()
        if not found.endswith(b"\n"):
            raise ConnectionError("the connection ended within a line")
        return found.strip()

    async def head(self):
        first = (await self.line()).split(b" ", 2)
        headers = {}
        while line := await self.line():
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode()] = value.strip().decode()
        return int(first[1]), headers

    async def body(self, headers, leave):
        """Reads at most `leave` bytes, then the client leaves."""
        data = b""
        if "chunked" not in headers.get("transfer-encoding", ""):
            data = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return data
        while n := int((await self.line()).split(b";")[0], 16):
            data += await self.reader.readexactly(n)
            await self.line()
            if leave is not None and len(data) >= leave:
                raise Left
        await self.line()
        return data

    async def ask(self, path, body=None, leave=None):
        """Returns (status, headers, body). `leave`: (seconds, bytes) after which the client
        leaves."""
        if self.writer is None:
            await self.open()
        data = json.dumps(body).encode() if body is not None else b""
        method = "POST" if body is not None else "GET"
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                          "Content-Type: application/json"
                          f"\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        was_used, self.is_used = self.is_used, True
        try:
            status, headers = await asyncio.wait_for(self.head(), leave and leave[0])
        except ConnectionError:
            self.drop()
            if not was_used:  # a kept connection may end between two requests
                raise
            return await self.ask(path, body, leave)
        except asyncio.TimeoutError:
            self.drop()
            raise Left from None
        try:
            data = await self.body(headers, leave and leave[1])
        except Left:
            self.drop()
            raise
        if headers.get("connection", "").lower() == "close":
            self.drop()
        return status, headers, data


# ---- the server -----------------------------------------------------------------------------


class Server:
    def __init__(self, program, model, *options):
        # pylint: disable=consider-using-with
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name, "log")
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--no-heat",
                                             *options], stdout=out, stderr=out)
        found = None
        while not found:
            if self.process.poll() is not None:
                raise RuntimeError("the server did not start:\n" + self.log.read_text())
            time.sleep(0.05)
            found = re.search(r"listening on http://\S+:(\d+)", self.log.read_text())
        self.port = int(found[1])

    def resident_kib(self):
        return int(subprocess.run(["ps", "-o", "rss=", "-p", str(self.process.pid)], check=True,
                                  stdout=subprocess.PIPE).stdout)

    async def metric(self, name):
        client = Client(self.port)
        _, _, text = await client.ask("/metrics")
        client.drop()
        return float(re.search(rf"(?m)^flashmoe_{name} (\S+)$", text.decode())[1])

    async def wait_for(self, name, value, seconds=LATE_SECONDS):
        end = time.monotonic() + seconds
        while (now := await self.metric(name)) != value and time.monotonic() < end:
            await asyncio.sleep(0.1)
        return now

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.folder.cleanup()


# ---- requests and their answers -------------------------------------------------------------


def requests(rng):
    """Returns requests of every dialect, streamed and complete, greedy and sampled with a seed."""
    topics = ("a fox", "the moon", "a robot who loves music", "an old king", "rain")
    found = []
    for i, topic in enumerate(topics):
        text = f"Write a story about {topic}."
        turns = [{"role": "user", "content": text}]
        more = {"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": 11 + i}
        n = rng.randrange(6, 40)
        found += [
            ("/v1/chat/completions", {"messages": turns, "max_tokens": n, "logprobs": True,
                                      "top_logprobs": 3, **more}),
            ("/v1/chat/completions", {"messages": turns, "max_tokens": n, "stream": True, **more}),
            ("/v1/completions", {"prompt": f"Once upon a time there was {topic} that", **more,
                                 "max_tokens": n}),
            ("/v1/messages", {"messages": turns, "max_tokens": n, "temperature": 0,
                              "stream": i % 2 == 0}),
            ("/v1/responses", {"input": text, "max_output_tokens": max(n, 16), "temperature": 0,
                               "stream": i % 2 == 1})]
    return found


# Fields that differ from one answer to the next.
PASSING = {"id", "created", "created_at", "completed_at", "item_id", "usage", "sequence_number",
           "system_fingerprint", "timings"}


LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
# Events of the Responses API that repeat what was streamed.
REPEATING = (".done", ".added", ".completed", ".incomplete")


def lasting(value):
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in PASSING}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def texts_of(value):
    """Returns all words of an answer, in order; where a stream is cut depends on timing."""
    if isinstance(value, dict):
        return "".join(value[k] if isinstance(value[k], str) else texts_of(value[k]) for k in
                       ("delta", "content", "text", "choices", "content_block", "message")
                       if k in value and not str(value.get("type")).endswith(REPEATING))
    return "".join(texts_of(v) for v in value) if isinstance(value, list) else ""


def meaning(data, is_stream):
    """Returns what must be the same whoever else is connected; None for an incomplete answer."""
    if not is_stream:
        return lasting(json.loads(data))
    events = re.findall(r"(?m)^data: (.*)$", data.decode())
    found = [json.loads(event) for event in events if event != "[DONE]"]
    if any(event.get("error") for event in found):
        return None
    last = events[-1] if events else ""
    if last != "[DONE]" and json.loads(last or "{}").get("type") not in LAST_EVENTS:
        return None
    ends = re.findall(r'"(?:finish_reason|stop_reason|reason)":\s*"(\w+)"', data.decode())
    return texts_of(found), ends


async def alone(port, asked):
    """Returns the answers that one client gets, one after the other."""
    client, found = Client(port), []
    for path, body in asked:
        status, _, data = await client.ask(path, body)
        if status != 200:
            raise RuntimeError(f"{path} alone: {status} {data[:500]}")
        found.append(meaning(data, body.get("stream")))
        if found[-1] is None or found[-1] == ("", []):
            raise RuntimeError(f"{path} alone: no answer in {data[-500:]}")
    client.drop()
    return found


class Tally:
    def __init__(self):
        self.n_good = self.n_left = self.n_refused = 0
        self.faults = []

    def fault(self, text):
        if len(self.faults) < 20:
            self.faults.append(text)


async def one_request(client, asked, wanted, rng, tally):
    i = rng.randrange(len(asked))
    path, body = asked[i]
    leave = (rng.uniform(0.001, 2), rng.randrange(1, 4000)) if rng.random() < LEAVING else None
    try:
        status, headers, data = await client.ask(path, body, leave)
    except Left:
        tally.n_left += 1
        return
    if status in (503, 529):
        tally.n_refused += 1
        if status != (529 if path == "/v1/messages" else 503) or "retry-after" not in headers:
            tally.fault(f"{path}: refused as {status} {headers}")
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        return
    if status != 200:
        tally.fault(f"{path}: {status} {data[:300]}")
        return
    found = meaning(data, body.get("stream"))
    if found != wanted[i]:
        tally.fault(f"{path} {json.dumps(body)}: {str(found)[:600]} instead of "
                    f"{str(wanted[i])[:600]}")
    tally.n_good += 1


# ---- the parts ------------------------------------------------------------------------------


async def run_load(server, options, rng):
    asked, tally, resident = requests(rng), Tally(), []
    wanted = await alone(server.port, asked)
    end = time.monotonic() + options.seconds

    def is_over():
        enough = tally.n_good >= len(asked) and tally.n_left > 0
        now = time.monotonic()
        return len(tally.faults) >= 20 or now > end + LATE_SECONDS or (enough and now > end)

    async def send():
        client = Client(server.port)
        own = random.Random(rng.random())
        while not is_over():
            try:
                await one_request(client, asked, wanted, own, tally)
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                tally.fault(f"a request failed: {error!r}")
                client.drop()
        client.drop()

    async def watch():
        while not is_over():
            resident.append(server.resident_kib())
            await asyncio.sleep(max(0.5, options.seconds / 200))

    await asyncio.gather(watch(), *(send() for _ in range(options.clients)))
    for name in ("requests_running", "requests_queued"):
        if await server.wait_for(name, 0) != 0:
            tally.fault(f"{name} does not come to 0 when all have gone")
    if await alone(server.port, asked) != wanted:
        tally.fault("the answers to one client are others than before")
    third = max(1, len(resident) // 3)
    early, late = max(resident[:third]), max(resident[third:] or resident)
    print(f"Load: {options.clients} clients, {options.seconds} s: {tally.n_good} answers as alone, "
          f"{tally.n_left} clients gone, {tally.n_refused} told to come back; resident "
          f"{early >> 10} MiB in the first third, {late >> 10} MiB after")
    if not options.no_memory and late > early + KIB_SLACK:
        tally.fault(f"memory grew from {early} KiB to {late} KiB: {resident}")
    if tally.n_good < len(asked) or tally.n_left == 0:
        tally.fault("too little was asked to know anything")
    return tally.faults


async def run_idle(server, options, _):
    """All clients request long answers. Only a few run; the others wait."""
    faults, n = [], options.idle
    small = [("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}],
                                       "max_tokens": 4, "temperature": 0})]
    wanted = await alone(server.port, small)
    before = server.resident_kib()
    body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
            "max_tokens": 3800, "temperature": 0, "logit_bias": NO_END}
    data = json.dumps(body).encode()
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
            ).encode()
    clients = [Client(server.port) for _ in range(n)]
    first, begin = [0.0] * n, time.monotonic()

    async def hold(i):
        await clients[i].open()
        clients[i].writer.write(head + data)
        status, _ = await clients[i].head()
        first[i] = time.monotonic() - begin
        return status

    async def is_pinged(client):
        """Waits until more arrives than what is sent with the headers."""
        got = b""
        while got.count(b"\n\n") < 2 and not client.reader.at_eof():
            try:
                got += await asyncio.wait_for(client.reader.read(1 << 16), LATE_SECONDS)
            except asyncio.TimeoutError:
                break
        return got.count(b"\n\n") >= 2

    statuses = await asyncio.gather(*(hold(i) for i in range(n)))
    if set(statuses) != {200}:
        faults.append(f"answers {set(statuses)} instead of 200")
    during, slowest = server.resident_kib(), 0.0
    for _ in range(10):
        asked = time.monotonic()
        client = Client(server.port)
        status, _, _ = await client.ask("/health")
        client.drop()
        slowest = max(slowest, time.monotonic() - asked)
        faults += [] if status == 200 else [f"/health answers {status}"]
        await asyncio.sleep(0.7)
    n_pinged = sum(await asyncio.gather(*(is_pinged(client) for client in clients)))
    if n_pinged < n:
        faults.append(f"only {n_pinged} of {n} streams were pinged")
    for client in clients:
        client.drop()
    for name in ("requests_queued", "requests_running"):
        if await server.wait_for(name, 0) != 0:
            faults.append(f"{name} does not come to 0 when all have gone")
    if await alone(server.port, small) != wanted:
        faults.append("the answer afterwards is another than before")
    print(f"Idle: {n} streams, headers within {max(first):.1f} s, /health within {slowest:.2f} s, "
          f"{n_pinged} pinged; resident {before >> 10} MiB before, {during >> 10} MiB with them")
    if not options.no_memory and during - before > n * 64 + KIB_SLACK:
        faults.append(f"{n} streams cost {during - before} KiB")
    return faults


def rude_bytes(rng):
    """Returns bytes that no server should get, and whether the sender continues byte by byte."""
    good = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()

    def post(body, length=None, extra=b""):
        return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: %d\r\n%b\r\n" %
                (len(body) if length is None else length, extra)) + body

    whole = post(good)
    kinds = (
        lambda: post(rng.randbytes(rng.randrange(1, 2000))),                 # not JSON
        lambda: post(b"[" * 100000),                                         # deeply nested
        lambda: post(good[:rng.randrange(len(good))]),                       # cut short
        lambda: post(b'{"messages": 7, "max_tokens": -1e999}'),
        lambda: post(b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'),
        lambda: post(b"{}", length=1 << 40),                                 # oversized
        lambda: post(b" " * 300000, length=64 << 20),
        lambda: b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" +
        (b"10000\r\n" + b" " * 0x10000 + b"\r\n") * 40,
        lambda: b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        lambda: whole[:rng.randrange(1, len(whole))],                        # truncated
        lambda: b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
        lambda: b"GET / HTTP/1.1\r\nx: " + b"y" * 200000 + b"\r\n\r\n",
        lambda: b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
        lambda: rng.randbytes(rng.randrange(1, 5000)),                       # not HTTP
        lambda: b"\r\n" * 3000,
        lambda: whole * 20,                                                  # pipelined
    )
    return rng.choice(kinds)()


async def run_rude(server, options, rng):
    asked, tally, slowest = requests(rng)[:5], Tally(), 0.0
    wanted = await alone(server.port, asked)
    before = server.resident_kib()
    end = time.monotonic() + options.seconds
    n_rude = n_closed = 0

    async def be_rude():
        nonlocal n_rude
        own = random.Random(rng.random())
        while time.monotonic() < end:
            client = Client(server.port)
            try:
                await client.open()
                client.writer.write(rude_bytes(own))
                await asyncio.wait_for(client.writer.drain(), 2)
                await asyncio.wait_for(client.reader.read(own.randrange(1, 4000)),
                                       own.uniform(0.01, 1))
            except (OSError, asyncio.TimeoutError):
                pass
            client.drop()
            n_rude += 1

    async def be_slow():
        """Sends a byte now and then until the server ends the connection."""
        nonlocal n_closed
        text = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" \
               b"Content-Length: 9999\r\n\r\n{"
        client = Client(server.port)
        await client.open()
        for i in range(10 ** 6):
            if time.monotonic() > end + LATE_SECONDS or client.reader.at_eof() or \
                    client.writer.transport.is_closing():
                break
            client.writer.write(text[i:i + 1] or b" ")
            try:
                await asyncio.wait_for(client.reader.read(4096), 0.2)
            except asyncio.TimeoutError:
                continue
            except OSError:
                break
        n_closed += client.reader.at_eof() or client.writer.transport.is_closing()
        client.drop()

    async def be_honest():
        nonlocal slowest
        client, i = Client(server.port), 0
        while time.monotonic() < end or (tally.n_good < 5 and
                                         time.monotonic() < end + LATE_SECONDS):
            path, body = asked[i % len(asked)]
            begin = time.monotonic()
            status, _, data = await client.ask(path, body)
            slowest = max(slowest, time.monotonic() - begin)
            found = meaning(data, body.get("stream")) if status == 200 else data[:300]
            if status in (503, 529):
                tally.n_refused += 1
            elif found != wanted[i % len(asked)]:
                tally.fault(f"{path}: {status} {found} instead of {wanted[i % len(asked)]}")
            else:
                tally.n_good += 1
            i += 1

    n_slow = max(4, options.clients // 4)
    await asyncio.gather(be_honest(), *(be_slow() for _ in range(n_slow)),
                         *(be_rude() for _ in range(max(4, options.clients // 8))))
    after = server.resident_kib()
    print(f"Rude: {n_rude} requests, {n_closed} of {n_slow} slow ones closed; an honest client got "
          f"{tally.n_good} answers as alone, {tally.n_refused} refusals, the slowest in "
          f"{slowest:.2f} s; resident {before >> 10} MiB before, {after >> 10} MiB after")
    if n_closed < n_slow:
        tally.fault(f"{n_slow - n_closed} slow connections were kept")
    if tally.n_good < 5 or slowest > LATE_SECONDS:
        tally.fault("the honest client was disturbed")
    if not options.no_memory and after > before + 2 * KIB_SLACK:
        tally.fault(f"memory grew from {before} KiB to {after} KiB")
    if await alone(server.port, asked) != wanted:
        tally.fault("the answers afterwards are others than before")
    return tally.faults


PARTS = {
    "Idle": (run_idle, ("--queue", "4096", "--connections", "4096", "--parallel", "2")),
    "Load": (run_load, ("--parallel", "4", "--queue", "64", "--context", "1024")),
    "Rude": (run_rude, ("--idle-limit", "2", "--request-limit", "1M", "--context", "1024")),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-memory", action="store_true", help="under a sanitizer")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"seed {options.seed}", flush=True)
    status = 0
    for part in options.part:
        run, settings = PARTS[part]
        server = Server(options.program, options.model, *settings)
        ended = None
        try:
            faults = asyncio.run(run(server, options, random.Random(options.seed)))
        finally:
            tail = server.log.read_text(errors="replace")[-3000:]
            ended = server.stop()
        if ended != 0:
            faults.append(f"the server ended with {ended}")
        for fault in faults:
            print(f"{part}: {fault}")
        if faults:
            print(tail)
        print(f"{part}: {'bad' if faults else 'good'}", flush=True)
        status = status or (1 if faults else 0)
    return status


if __name__ == "__main__":
    sys.exit(main())
