"""Ranks that die or hang: every request fails in time, with a line that names the rank.

Usage: fault_test.py PROGRAM GOLDEN_DIR NANO [--rounds N] [--preload LIBRARY] [--hold-close LIBRARY]
       [TestClass...]

The libraries are built from tests/fault/preload_reads.c, which Opening and Signals need, and from
tests/cluster/hold_close.c, which Signals needs.

Exit status 77, skipped: mpirun or the program's module for it is not there.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import cluster_test
from cluster_test import PROMPT, Server, environment, mpirun

ROUNDS = 6
PRELOAD = HOLD_CLOSE = ""
LIMIT_S = 10
START_S = 120 # a busy machine needs long until all ranks read


def finish(process, limit_s):
    """Waits for the end of a process; None: it has not ended."""
    end = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return process.poll()


class Opening(unittest.TestCase):
    """A rank that hangs while the model opens is named in time, and one that is slow is not."""

    def start(self, fault, ranks, work, *options):
        # Reads of dense weights of these ranks never return, or are slow.
        held = os.path.join(work, "held")
        with open(held, "w", encoding="ascii") as f:
            f.write(f"{fault} dense\n")
        words = [*mpirun(1)[:-2]]
        for rank in range(2):
            more = ("env", f"LD_PRELOAD={PRELOAD}", f"FAULT_RANGE={held}", "FAULT_BLOCKS=none",
                    f"FAULT_SEEN={seen_by(work, rank)}")
            words += [":"] if rank > 0 else []
            words += ["-n", "1", *(more if rank in ranks else ()), cluster_test.PROGRAM, "run",
                      cluster_test.NANO, "-p", "a", "-n", "2", "--threads", "1", "--no-heat",
                      *options]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment())

    def run_with(self, fault, ranks, limit_s, *options):
        """Returns the process, what it has written, and the seconds from the time when the reads
        of all these ranks waited to its end."""
        with tempfile.TemporaryDirectory() as work:
            process = self.start(fault, ranks, work, *options)
            begin, end = None, time.monotonic() + START_S
            while process.poll() is None and time.monotonic() < end:
                if begin is None and all(os.path.exists(seen_by(work, rank)) for rank in ranks):
                    begin = time.monotonic()
                    end = begin + limit_s
                time.sleep(0.05)
            took = time.monotonic() - (begin or 0)
            ended = process.poll() is not None
            if not ended:
                process.terminate() # mpirun ends the ranks
            out, err = process.communicate(timeout=START_S)
            self.assertIsNotNone(begin, "no read has waited: " + err)
            self.assertTrue(ended, f"it has not ended after {took:.1f} s: {err}")
            return process, out, err, took

    def check(self, hung, text, *options):
        # mpirun needs two seconds to end a job.
        process, out, err, _ = self.run_with("HOLD", hung, LIMIT_S + 3, *options)
        self.assertEqual(out, "")
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(err, text)
        self.assertIn("--rank-timeout", err)

    def test_slow(self):
        """A file system without a block device, such as one of a network: each read takes a second,
        and all of them longer than the limit."""
        process, out, err, took = self.run_with("SLOW", {1}, START_S, "--rank-timeout", "4")
        self.assertEqual(process.returncode, 0, err)
        self.assertNotEqual(out, "")
        self.assertGreater(took, 6)

    def test_one(self):
        self.check({1}, r"flashmoe: rank 1 \(.+\): it has read and computed nothing for 8\.")

    def test_first(self):
        self.check({0}, r"rank 0 \(.+\): it has read and computed nothing for 4\.",
                   "--rank-timeout", "4")

    def test_all(self):
        """One file system for all does not answer: nobody is left to hear of it."""
        self.check({0, 1}, r"rank \d \(.+\) has read and computed nothing for \d+\.\d s and ends "
                   "the job", "--rank-timeout", "4")


class Signals(Opening):
    """A job that is told to end does so in time, says it once, and leaves no process."""

    test_slow = test_one = test_first = test_all = None

    def setUp(self):
        # What is printed here can be looked at at any time: ranks append to it.
        self.out, self.err = (tempfile.TemporaryFile("a+", errors="replace") for _ in range(2))
        self.addCleanup(self.out.close)
        self.addCleanup(self.err.close)

    def end(self, process, signal_number, rank, text):
        """Sends a signal to a rank, or to mpirun, that ends the job with one line. mpirun may
        kill a rank of a busy machine before it has written that. Returns the standard output."""
        ranks = [find_rank(process.pid, i) for i in range(2)]
        self.assertNotIn(None, ranks)
        before = content(self.err)
        os.kill(process.pid if rank is None else ranks[rank], signal_number)
        status = finish(process, LIMIT_S)
        if status is None:
            process.terminate()
        out, err = process.communicate(timeout=START_S)
        if err is None:
            out, err = content(self.out), content(self.err)[len(before):]
        self.assertIsNotNone(status, err)
        self.assertNotEqual(status, 0)
        # Where joining takes long, the first rank has said that, too.
        lines = [line for line in err.splitlines() if line.startswith("flashmoe: ") and
                 "waits for ranks that have not begun" not in line]
        self.assertIn(len(lines), (0, 1) if rank is None else (1,), err)
        for line in lines:
            self.assertRegex(line, text)
        self.assertEqual([pid for pid in ranks if is_alive(pid)], [])
        return out

    def test_opening(self):
        """Also when a rank hangs, and takes no message."""
        for signal_number, rank in ((signal.SIGINT, None), (signal.SIGTERM, 0)):
            with self.subTest(signal=signal_number), tempfile.TemporaryDirectory() as work:
                process = self.start("HOLD", {1}, work)
                wait_until(lambda: os.path.exists(seen_by(work, 1)))
                self.assertEqual(self.end(process, signal_number, rank, "told to end"), "")

    def test_another_program(self):
        """MPI waits for ever for a rank that has ended well: the first rank says that it waits."""
        process = subprocess.Popen(
            [*mpirun(1), cluster_test.PROGRAM, "run", cluster_test.NANO, "-p", "a", ":", "-n", "1",
             "true"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment())
        line = process.stderr.readline()
        process.terminate()
        process.communicate(timeout=START_S)
        self.assertRegex(line, "rank 0 waits for ranks that have not begun")

    def command(self, *words):
        return subprocess.Popen([*mpirun(2), cluster_test.PROGRAM, *words, "--threads", "1",
                                 "--no-heat"], stdin=subprocess.PIPE, stdout=self.out,
                                stderr=self.err, text=True, env=environment())

    def test_computing(self):
        for n, signal_number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            with self.subTest(signal=signal_number):
                process = self.command("bench", "decode", cluster_test.NANO, "--tokens", "800",
                                       "--repeat", "5", "--verbose")
                wait_until(lambda n=n + 1: content(self.err).count("flashmoe: context ") == n)
                self.assertEqual(self.end(process, signal_number, None, "told to end"), "")

    def test_waiting_for_its_user(self):
        """The first rank does not look for messages then."""
        process = self.command("chat", cluster_test.NANO, "-n", "4", "--temp", "0")
        process.stdin.write("hello\n")
        process.stdin.flush()
        wait_until(lambda: content(self.out).endswith("\n")) # it has answered
        self.end(process, signal.SIGTERM, 0, r"rank 0 \(.+\): the job is told to end")

    def test_closing(self):
        """The first rank waits for one that hangs: nobody looks for an alarm then."""
        with tempfile.TemporaryDirectory() as work:
            words = [cluster_test.PROGRAM, "run", cluster_test.NANO, "-p", "a", "-n", "2",
                     "--threads", "1", "--no-heat"]
            process = subprocess.Popen(
                [*mpirun(1), "env", f"LD_PRELOAD={HOLD_CLOSE}", f"FAULT_SEEN={seen_by(work, 0)}",
                 *words, ":", "-n", "1", *words], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
            wait_until(lambda: os.path.exists(seen_by(work, 0)))
            os.kill(find_rank(process.pid, 0), signal.SIGTERM)
            status = finish(process, LIMIT_S)
            process.terminate() # if it has not ended; mpirun ends the ranks
            _, err = process.communicate(timeout=START_S)
            self.assertIsNotNone(status, err)
            self.assertNotEqual(status, 0)

    def test_stages(self):
        """Ranks that are threads: a server finishes its answers as one without ranks does."""
        texts = []
        for options in ((), ("--stages", "2")):
            with self.subTest(options=options):
                server = Server(0, *options, "--grace", str(START_S))
                try:
                    events = server.stream("/v1/completions", endless(400))
                    texts.append(next(events))
                    server.process.send_signal(signal.SIGTERM)
                    texts[-1] += "".join(events)
                    self.assertEqual(finish(server.process, LIMIT_S), 0, server.read_log())
                finally:
                    server.stop()
        self.assertEqual(texts[0], texts[1])


class Faults(unittest.TestCase):
    """Kills or stops a random rank while a server answers."""

    def expected(self):
        body = endless(400)
        server = Server(2)
        try:
            status, text = server.post("/v1/completions", body)
            self.assertEqual(status, 200, text)
            return body, json.loads(text)["choices"][0]["text"]
        finally:
            server.stop()

    def fault(self, body, whole, how, rank, delay_s):
        server = Server(3)
        found = {}

        def ask():
            begin = time.monotonic()
            try:
                found["status"], found["text"] = server.post("/v1/completions", body)
            except OSError as why:
                found["status"], found["text"] = None, str(why)
            found["s"] = time.monotonic() - begin

        try:
            victim = server.ranks()[rank]
            asking = threading.Thread(target=ask)
            asking.start()
            time.sleep(delay_s)
            os.kill(victim, how)
            begin = time.monotonic()
            status = finish(server.process, LIMIT_S + 3)
            took = time.monotonic() - begin
            asking.join(20)
            log = server.read_log()
            self.assertIsNotNone(status, "the server does not end")
            self.assertLess(took, LIMIT_S + 1, log)
            if found["status"] == 200: # it was answered before
                self.assertEqual(json.loads(found["text"])["choices"][0]["text"], whole)
                return False
            self.assertNotEqual(status, 0)
            self.assertRegex(log, rf"rank {rank} \(.+\): it (has died|has not answered)")
            if how == signal.SIGSTOP: # the client hears of it, too
                self.assertEqual(found["status"], 500, found)
                self.assertRegex(found["text"], rf"rank {rank} \(.+\): it has not answered")
            return True
        finally:
            for pid in server.ranks().values():
                os.kill(pid, signal.SIGCONT)
            server.stop()

    def test_random(self):
        chance = random.Random(23)
        body, whole = self.expected()
        n_failed = 0
        for i in range(ROUNDS):
            how = signal.SIGSTOP if i % 3 == 2 else signal.SIGKILL
            rank, delay_s = chance.choice((1, 2)), 0.2 + chance.random() * 0.6
            with self.subTest(round=i, how=how, rank=rank, delay=delay_s):
                n_failed += self.fault(body, whole, how, rank, delay_s)
        self.assertGreater(n_failed, 0)

    def test_idle(self):
        """A rank that hangs while nobody asks: the server ends for its supervisor."""
        server = Server(2, "--rank-timeout", "2")
        try:
            server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
            os.kill(server.ranks()[1], signal.SIGSTOP)
            status = finish(server.process, LIMIT_S)
            self.assertEqual(status, 1, server.read_log())
            self.assertRegex(server.read_log(), r"rank 1 \(.+\): it has not answered")
        finally:
            for pid in server.ranks().values():
                os.kill(pid, signal.SIGCONT)
            server.stop()

    def test_run(self):
        """A command says which rank is gone, and returns nothing wrong."""
        # The first rank says it, or mpirun, if it ends the first rank before that: while that does
        # not wait for the others, or over TCP.
        self.run_and_kill(())
        self.run_and_kill(("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"))

    def run_and_kill(self, options):
        process = subprocess.Popen(
            [*mpirun(3)[:-2], *options, "-n", "3", cluster_test.PROGRAM, "bench", "decode",
             cluster_test.NANO, "--tokens", "700", "--repeat", "5", "--threads", "1", "--quiet"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment())
        victim = None
        for _ in range(300):
            time.sleep(0.1)
            victim = find_rank(process.pid, 1)
            if victim is not None and cluster_test.cpu_s(victim) > 2:
                break
        self.assertIsNotNone(victim)
        os.kill(victim, signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(out, "")
        self.assertRegex(err, r"rank 1 .+(it has died|exited on signal 9)")


def endless(n_tokens):
    """A request for so many tokens: those that would end its answer are forbidden."""
    return {"prompt": PROMPT, "temperature": 0, "max_tokens": n_tokens,
            "logit_bias": {"16381": -100, "16382": -100, "16383": -100}}


def wait_until(holds):
    end = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it does not begin")
        time.sleep(0.05)


def content(file):
    file.seek(0)
    return file.read()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def seen_by(work, rank):
    """The file that says that a read of a rank waits."""
    return os.path.join(work, f"seen{rank}")


def find_rank(parent, rank):
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                own_parent = int(f.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{pid}/environ", "rb") as f:
                values = f.read().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if own_parent == parent and b"OMPI_COMM_WORLD_RANK=%d" % rank in values:
            return int(pid)
    return None


if __name__ == "__main__":
    words = sys.argv[1:]
    if "--rounds" in words:
        at = words.index("--rounds")
        ROUNDS = int(words[at + 1])
        del words[at:at + 2]
    if "--preload" in words:
        at = words.index("--preload")
        PRELOAD = words[at + 1]
        del words[at:at + 2]
    if "--hold-close" in words:
        at = words.index("--hold-close")
        HOLD_CLOSE = words[at + 1]
        del words[at:at + 2]
    cluster_test.PROGRAM, cluster_test.GOLDEN, cluster_test.NANO = words[:3]
    module = os.path.join(os.path.dirname(words[0]), "libflashmoe_mpi.so")
    if shutil.which("mpirun") is None or not os.path.exists(module):
        print("skipped: Open MPI is not there (Debian: libopenmpi-dev openmpi-bin)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + words[3:], verbosity=2)
