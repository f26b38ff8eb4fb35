"""Models on several ranks, with the real program under mpirun on this machine.

Usage: cluster_test.py PROGRAM GOLDEN_DIR NANO [TestClass...]

Exit status 77, skipped: mpirun or the program's module for it is not there.
"""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = GOLDEN = NANO = ""
PROMPT = "Write a story about a robot who loves music and a river that never sleeps."


def mpirun(n):
    """The words before a program; several may follow each other with ':'."""
    words = ["mpirun", "--oversubscribe"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    return words + ["-n", str(n)]


def environment(**more):
    # Ranks on one machine do not need the network, and no user's settings belong in a test.
    own = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    return dict(os.environ, **own, **more)


def run(*words, timeout=120, **more):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, env=environment(**more), check=False)


def answer(model, n_ranks, *options, n_tokens=12, **more):
    """Runs a prompt on so many ranks; the program's JSON."""
    words = mpirun(n_ranks) if n_ranks > 0 else []
    done = run(*words, PROGRAM, "run", model, "-p", PROMPT, "--temp", "0", "-n", str(n_tokens),
               "--json", "--threads", "1", "--quiet", *options, **more)
    if done.returncode != 0:
        raise AssertionError(f"{n_ranks} ranks {options}: status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def golden(name):
    return os.path.join(GOLDEN, name)


class Hashes(unittest.TestCase):
    """One hash, whatever the ranks, the cut, the chunk and the transport."""

    def check(self, model, cuts, *options):
        expected = answer(model, 0, *options)["logits_hash"]
        for n_ranks, more in cuts:
            with self.subTest(model=model, ranks=n_ranks, options=more):
                self.assertEqual(answer(model, n_ranks, *options, *more)["logits_hash"], expected)

    def test_nano(self):
        self.check(NANO, [(1, ()), (2, ()), (3, ("--layers", "1,6,1")),
                          (0, ("--stages", "3", "--layers", "5,2,1"))])

    def test_golden(self):
        self.check(golden("qwen3_next"), [(2, ("--prefill-chunk", "5"))], "--kv", "f32")

    def test_ranks_are_told(self):
        found = answer(NANO, 3, "--layers", "2,3,3")
        ranks = found["ranks"]
        self.assertEqual([r["first_layer"] for r in ranks], [0, 2, 5])
        self.assertEqual([r["n_layers"] for r in ranks], [2, 3, 3])
        self.assertTrue(all(r["busy_s"] > 0 or r["rank"] == 0 for r in ranks), ranks)
        self.assertEqual(sum(r["expert_hits"] for r in ranks), found["n_expert_hits"])
        self.assertEqual(sum(r["bytes_read"] for r in ranks), found["bytes_read"])
        # Hidden states travel, not logits: 384 floats of each token, and a little around them.
        n_tokens = found["n_prompt_tokens"] + found["n_tokens"]
        self.assertLess(ranks[1]["bytes_sent"], n_tokens * (384 * 4 + 2048))


class HashesOfAll(Hashes):
    """More of them."""

    def test_nano(self):
        cuts = [(n, ()) for n in (2, 3, 4, 8)] + [(4, ("--layers", "1,1,1,5")),
                                                 (4, ("--layers", "5,1,1,1")),
                                                 (8, ("--prefill-chunk", "3"))]
        self.check(NANO, cuts)
        self.check(NANO, [(3, ()), (3, ("--memory", "64M"))], "--draft", "4")

    def test_golden(self):
        for name in sorted(os.listdir(GOLDEN)):
            if os.path.exists(os.path.join(golden(name), "tokenizer.json")):
                self.check(golden(name), [(2, ()), (3, ("--prefill-chunk", "4"))])


class Refusals(unittest.TestCase):
    def refused(self, status, text, *words, **more):
        done = run(*words, **more)
        lines = [line for line in done.stderr.splitlines() if line.startswith("flashmoe: ")]
        self.assertTrue(any(re.search(text, line) for line in lines), done.stderr)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(lines), 1, lines)
        if status is not None:
            self.assertEqual(done.returncode, status)

    def command(self, model, *options):
        return (PROGRAM, "run", model, "-p", "a", "-n", "2", "--quiet", *options)

    def test_another_model(self):
        self.refused(None, r"rank 1 \(.+\) has another model: it has 4 layers, and that of rank 0 "
                     "has 8", *mpirun(1), *self.command(NANO), ":", "-n", "1",
                     *self.command(golden("qwen3_next")))

    def test_other_weights(self):
        with tempfile.TemporaryDirectory() as work:
            copy = os.path.join(work, "copy")
            shutil.copytree(golden("qwen3_moe"), copy)
            name = next(n for n in sorted(os.listdir(copy)) if n.endswith(".safetensors"))
            path = os.path.join(copy, name)
            with open(path, "r+b") as f:
                head = 8 + int.from_bytes(f.read(8), "little")
                f.seek(head)
                byte = f.read(1)
                f.seek(head)
                f.write(bytes([byte[0] ^ 1]))
            self.refused(None, r"rank 1 \(.+\) has another model than rank 0: its configuration, "
                         "sizes or weights differ", *mpirun(1), *self.command(golden("qwen3_moe")),
                         ":", "-n", "1", *self.command(copy))

    def test_missing_model(self):
        self.refused(None, r"rank 1 \(.+\): .*'/nowhere'", *mpirun(1), *self.command(NANO), ":",
                     "-n", "1", *self.command("/nowhere"))

    def test_other_options(self):
        self.refused(2, r"rank 1 \(.+\) was started with '--kv rot8', and rank 0 \(.+\) with "
                     r"'--kv f32'", *mpirun(1), *self.command(NANO, "--kv", "f32"), ":", "-n",
                     "1", *self.command(NANO, "--kv", "rot8"))

    def test_one_rank_that_does_not_begin(self):
        """The first rank waits for the others: one that ends before says why."""
        self.refused(None, "rank 1: .*'--nonsense'", *mpirun(1), *self.command(NANO), ":", "-n",
                     "1", *self.command(NANO, "--nonsense"))

    def test_slow_first_rank(self):
        """All ranks refuse their words, and the first one says so even if it is the last."""
        words = self.command(NANO, "--nonsense")
        self.refused(2, r"^flashmoe: (?!rank ).*'--nonsense'", *mpirun(1), "sh", "-c",
                     'sleep 1; exec "$@"', "sh", *words, ":", "-n", "1", *words)

    def test_layers(self):
        for layers, text in (("4,4,1", "do not add up"), ("8,0", "--layers is '8,0'"),
                             ("4,3", "do not add up"), ("4", "layers of 1 ranks are given"),
                             ("4,x", "--layers is '4,x'")):
            with self.subTest(layers):
                n = 3 if layers == "4,4,1" else 2
                self.refused(None, text, *mpirun(n), *self.command(NANO, "--layers", layers))
        self.refused(2, "start flashmoe with mpirun", *self.command(NANO, "--layers", "4,4"))
        self.refused(None, "8 ranks are too many for the 4 layers", *mpirun(8),
                     *self.command(golden("qwen3_next")))

    def test_memory(self):
        self.refused(None, r"rank 1 \(.+\): the model needs at least .* budget is 4.0 MiB",
                     *mpirun(1), *self.command(NANO), ":", "-n", "1",
                     *self.command(NANO, "--memory", "4M"))

    def test_gpu(self):
        """No rank leaves its GPU out silently."""
        for options, text in ((("--gpu", "0"), "GPU 0 cannot be used with several ranks yet: leave "
                               "out --gpu"),
                              (("--gpu-memory", "1G"), "leave out --gpu-memory")):
            self.refused(None, text, *mpirun(2), *self.command(NANO, *options))
            self.refused(None, r"rank 1 \(.+\): .*" + text, *mpirun(1), *self.command(NANO), ":",
                         "-n", "1", *self.command(NANO, *options))
        self.refused(None, "GPU 0 cannot be used with several ranks yet",
                     *self.command(NANO, "--stages", "2", "--gpu", "0"))

    def test_commands_for_one_machine(self):
        done = run(*mpirun(2), PROGRAM, "inspect", NANO)
        self.assertIn("'flashmoe inspect' runs on one machine", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_without_the_module(self):
        with tempfile.TemporaryDirectory() as work:
            program = os.path.join(work, "flashmoe")
            shutil.copy(PROGRAM, program)
            done = run(*mpirun(2), program, "run", NANO, "-p", "a")
            self.assertIn("several ranks need Open MPI: libflashmoe_mpi.so is not installed",
                          done.stderr)
            self.assertNotEqual(done.returncode, 0)


class Snapshots(unittest.TestCase):
    """Each rank has its part of a snapshot; all of them are restored, or none."""

    def setUp(self):
        self.work = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.work.cleanup()

    def answer(self, prompt, *options):
        done = run(*mpirun(3), PROGRAM, "run", NANO, "--temp", "0", "-n", "8", "--json",
                   "--threads", "1", "--verbose", "-p", prompt, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def kept(self, suffix):
        return [os.path.join(self.work.name, name) for name in sorted(os.listdir(self.work.name))
                if name.endswith(suffix)]

    def test_parts(self):
        keep = ("--system", "You know a lot about rivers and music. " * 5, "--snapshots",
                self.work.name)
        expected, _ = self.answer(PROMPT, *keep[:2])
        first, _ = self.answer(PROMPT, *keep)
        self.assertEqual(first["n_prompt_reused"], 0)
        wholes = self.kept(".fmsnap")
        self.assertGreater(len(wholes), 0)
        for rank in (1, 2):
            self.assertEqual(self.kept(f".rank{rank}"), [w + f".rank{rank}" for w in wholes])
        again, _ = self.answer(PROMPT, *keep)
        self.assertGreater(again["n_prompt_reused"], 20)
        self.assertEqual(again["tokens"], expected["tokens"])
        for spoil, text in ((self.damage, r"rank 2 \(.+\): .*damaged"),
                            (self.exchange, r"rank 2 \(.+\): '.*' is not this rank's part"),
                            (os.remove, r"rank 2 \(.+\): .*rank2")):
            with self.subTest(text):
                for part in self.kept(".rank2"):
                    spoil(part)
                found, log = self.answer(PROMPT, *keep)
                self.assertEqual(found["n_prompt_reused"], 0)
                self.assertEqual(found["tokens"], expected["tokens"])
                self.assertRegex(log, text)

    def damage(self, path):
        with open(path, "r+b") as f:
            f.seek(-40, 2)
            f.write(b"damaged!")

    def exchange(self, path):
        """Puts the part of another snapshot there."""
        with tempfile.TemporaryDirectory() as other:
            self.answer(PROMPT, "--system", "You know a lot about rivers and musik. " * 5,
                        "--snapshots", other)
            parts = [n for n in sorted(os.listdir(other)) if n.endswith(".rank2")]
            size = os.path.getsize(path)
            same = [n for n in parts if os.path.getsize(os.path.join(other, n)) == size]
            shutil.copy(os.path.join(other, (same or parts)[0]), path)


class Server:
    """A server on several ranks; 0: without mpirun."""

    def __init__(self, n_ranks, *options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*(mpirun(n_ranks) if n_ranks > 0 else ()), PROGRAM, "serve", NANO, "--port",
             str(self.port), "--threads", "1", *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self.log, env=environment())
        self.wait_until_ready()

    def wait_until_ready(self):
        for _ in range(600):
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError("the server does not start: " + self.read_log())

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def stream(self, path, body):
        """The parts of an answer's text, as they come. All of them: the answer is whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(dict(body, stream=True)),
                           {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.strip() == b"data: [DONE]":
                connection.close()
                return
            if line.startswith(b"data: "):
                yield json.loads(line[6:])["choices"][0]["text"]
        raise AssertionError("the answer ends early: " + self.read_log())

    def ranks(self):
        """The process ids of the ranks, by rank."""
        found = {}
        for pid in os.listdir("/proc"):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    values = dict(v.split(b"=", 1) for v in f.read().split(b"\0") if b"=" in v)
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if str(self.port).encode() in words and b"OMPI_COMM_WORLD_RANK" in values:
                found[int(values[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
        return found

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Serving(unittest.TestCase):
    def test_serve(self):
        body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0,
                "max_tokens": 16}
        server = Server(3)
        try:
            status, text = server.post("/v1/chat/completions", body)
            self.assertEqual(status, 200, text)
            told = json.loads(text)["choices"][0]["message"]["content"]
            self.assertEqual(len(server.ranks()), 3)
            # Idle ranks do not use a core.
            before = {rank: cpu_s(pid) for rank, pid in server.ranks().items()}
            time.sleep(3)
            for rank, pid in server.ranks().items():
                self.assertLess(cpu_s(pid) - before[rank], 0.6, f"rank {rank}")
            status, text = server.get("/metrics")
            self.assertEqual(status, 200)
            self.assertEqual(len(re.findall(r'^flashmoe_rank_layers\{rank="\d",host="[^"]+"\} \d+$',
                                            text, re.M)), 3, text)
        finally:
            server.stop()
        alone = run(PROGRAM, "run", NANO, "-p", PROMPT, "--temp", "0", "-n", "16", "--quiet",
                    "--json", "--threads", "1")
        self.assertEqual(json.loads(alone.stdout)["text"], told)

    def bodies(self):
        """Requests that overlap: short and long prompts, greedy and sampled answers."""
        long = "The river was wide and the bridge was old. " * 40
        for i in range(9):
            text = (long if i % 3 == 2 else "") + f"Number {i}: " + PROMPT
            yield {"messages": [{"role": "user", "content": text}], "max_tokens": 24 + 4 * i,
                   "temperature": 0.8 * (i % 2), "seed": i}

    def answers(self, post):
        bodies = list(self.bodies())
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            done = list(pool.map(lambda body: post("/v1/chat/completions", body), bodies))
        for status, text in done:
            self.assertEqual(status, 200, text)
        return [json.loads(text)["choices"][0]["message"]["content"] for _, text in done]

    def leave(self, server):
        """A client that leaves in mid-answer."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True,
                "max_tokens": 400}
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        connection.getresponse().read(200)
        connection.close()

    def test_many(self):
        """Groups of answers on different ranks at a time: every text is as alone."""
        server = Server(3, "--parallel", "8")
        try:
            leaver = threading.Thread(target=self.leave, args=(server,))
            leaver.start()
            together = self.answers(server.post)
            leaver.join()
            again = self.answers(server.post)  # prefixes are found in other sessions now
            one_by_one = [json.loads(server.post("/v1/chat/completions", body)[1])
                          ["choices"][0]["message"]["content"] for body in self.bodies()]
        finally:
            server.stop()
        self.assertEqual(together, one_by_one)
        self.assertEqual(again, one_by_one)
        server = Server(1, "--parallel", "8")
        try:
            self.assertEqual(self.answers(server.post), one_by_one)
        finally:
            server.stop()


if __name__ == "__main__":
    PROGRAM, GOLDEN, NANO = sys.argv[1:4]
    module = os.path.join(os.path.dirname(PROGRAM), "libflashmoe_mpi.so")
    if shutil.which("mpirun") is None or not os.path.exists(module):
        print("skipped: Open MPI is not there (Debian: libopenmpi-dev openmpi-bin)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
