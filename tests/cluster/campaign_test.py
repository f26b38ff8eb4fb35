"""Random faults of ranks while a server answers, and while `run` and `bench` compute.

Usage: campaign_test.py PROGRAM PRELOAD RELAY GOLDEN_DIR NANO [--faults N] [--seed N]
                        [--kinds K,...] [--first N] [--json FILE]

PRELOAD is the library built from tests/fault/preload_reads.c, RELAY the program of net_relay.c.
Each fault has 2 to 4 ranks, which talk over shared memory, TCP, or a network between namespaces,
and compute nano or a golden. Kinds of faults:
    kill    kill -9 of a rank
    stop    SIGSTOP of a rank
    disk    a rank's reads of experts fail, end early, or give a wrong bit
    cut     a rank's network interface goes down (needs root)
What must hold, whatever the fault:
    - no token is delivered that the undisturbed model does not give, to the last bit of its logprob
    - every request ends within 10 s of the fault, and so does a command
    - if the first rank lives, a failed request names rank, host and cause; the log always does
    - the program ends with a status that is not 0; after a disk fault it goes on
    - no process is left
    - the same command starts again, takes its sessions from snapshots of which all ranks have their
      parts, or computes them, and answers with the same tokens; no snapshot is damaged and no
      unfinished file is left

Prints a line for each fault and a summary. Exit status 1: something did not hold. 77: mpirun or the
program's module for it is not there.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import net

LIMIT_S = 10      # for a request
END_LIMIT_S = 15  # for mpirun and all ranks
SLOW_S = 300      # for an answer without a fault, on a machine with other work
MARK = "FLASHMOE_CAMPAIGN"
PROMPTS = ("Write a story about a robot who loves music.", "The river that never sleeps",
           "What is the capital of France?",
           "Once upon a time there was a clock that told the hours backwards. " * 20)
# What docs/CLUSTER.md tells users to set.
MPI = ("--mca", "oob_tcp_keepalive_time", "3", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca",
       "oob_tcp_keepalive_probes", "3")
# Ranks on one machine.
LOCAL = {"shm": ("--mca", "btl", "self,vader"),
         "tcp": ("--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")}


class Wrong(Exception):
    """Something that must hold does not."""


def need(holds, text):
    if not holds:
        raise Wrong(text)


# ---- processes

def marked(mark):
    """The processes of a round, by id: the ranks' numbers, None for mpirun and its daemons."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                words = dict(w.split(b"=", 1) for w in f.read().split(b"\0") if b"=" in w)
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                is_zombie = f.read().rsplit(")", 1)[1].split()[0] in "ZX"
        except OSError:
            continue
        if words.get(MARK.encode()) == mark.encode() and not is_zombie:
            rank = words.get(b"OMPI_COMM_WORLD_RANK")
            found[int(pid)] = int(rank) if rank is not None else None
    return found


def rank_ids(mark):
    """The processes of the ranks themselves, by rank."""
    return {rank: pid for pid, rank in sorted(marked(mark).items(), reverse=True)
            if rank is not None}


def kill_all(mark):
    for pid in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


# ---- requests

class Ask(threading.Thread):
    """A streamed answer: its tokens with their logprobs, and how it ended."""

    def __init__(self, port, body):
        super().__init__(daemon=True)
        self.port, self.body = port, body
        self.tokens, self.error, self.status, self.ended = [], None, None, None
        self.n_cached = 0
        self.is_whole = False
        self.start()

    def run(self):
        try:
            self.read()
        except (OSError, http.client.HTTPException) as why:
            self.error = f"the connection ends: {why!r}"
        self.ended = time.monotonic()

    def read(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(self.body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.status = response.status
        if response.status != 200:
            self.error = response.read().decode()
            return
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                self.is_whole = self.error is None
                break
            self.take(json.loads(line[6:]))
        if not self.is_whole and self.error is None:
            self.error = "the connection ends"

    def take(self, event):
        if "error" in event:
            self.error = json.dumps(event["error"])
        for choice in event.get("choices", ()):
            told = choice.get("logprobs") or {}
            self.tokens += zip(told.get("tokens", ()), told.get("token_logprobs", ()))
        used = event.get("usage") or {}
        details = used.get("prompt_tokens_details") or {}
        self.n_cached = max(self.n_cached, details.get("cached_tokens", 0))


class Model:
    def __init__(self, name, path, forbidden):
        self.name, self.path, self.forbidden = name, path, forbidden
        self.answers, self.text = {}, ""

    def body(self, prompt, n_tokens=300):
        return {"prompt": prompt, "temperature": 0, "max_tokens": n_tokens, "stream": True,
                "logprobs": 1, "stream_options": {"include_usage": True},
                "logit_bias": {str(token): -100 for token in self.forbidden}}

    def run_words(self):
        words = ["run", self.path, "-p", PROMPTS[0], "--raw", "--temp", "0", "-n", "600",
                 "--verbose"]
        for token in self.forbidden: # the answer would end
            words += ["--logit-bias", f"{token}=-100"]
        return words


# ---- a server or command on ranks

class Job:
    """`mpirun ... flashmoe COMMAND`, with its own marker."""

    n_jobs = 0

    def __init__(self, plan, words, ranges=None):
        Job.n_jobs += 1
        self.mark = f"{os.getpid()}-{Job.n_jobs}"
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.out = tempfile.TemporaryFile("w+", errors="replace")
        own = {MARK: self.mark, "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        self.process = subprocess.Popen(
            [*plan.mpirun(), *rank_words(plan, words, ranges)], stdin=subprocess.DEVNULL,
            stdout=self.out, stderr=self.log, env=dict(os.environ, **own))
        self.plan = plan

    def read(self, file):
        file.seek(0)
        return file.read()

    def wait_for_end(self, limit_s, ranks_only=False):
        """Waits for the end of mpirun, of all ranks, and of the daemons of Open MPI."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.process.poll() is not None and \
                    not (rank_ids if ranks_only else marked)(self.mark):
                return
            time.sleep(0.02)

    def close(self):
        kill_all(self.mark)
        self.process.wait()
        self.log.close()
        self.out.close()


def rank_words(plan, words, ranges):
    """The program for each rank; the victim of a disk fault reads through the preload library."""
    program = [ARGS.program, *words]
    if ranges is None:
        return ["-n", str(plan.n_ranks), "-x", MARK, *program]
    faulty = ["env", f"LD_PRELOAD={ARGS.preload}", f"FAULT_RANGE={ranges}", *program]
    all_words = []
    for rank in range(plan.n_ranks):
        all_words += [":"] if rank > 0 else []
        all_words += ["-n", "1", "-x", MARK, *(faulty if rank == plan.rank else program)]
    return all_words


class Serving(Job):
    def __init__(self, plan, folder, ranges=None):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        super().__init__(plan, ["serve", plan.model.path, "--port", str(self.port), "--snapshots",
                                str(folder), "--verbose", "--request-memory", "8M", "--sessions",
                                "4", *plan.options()], ranges)
        end = time.monotonic() + 60
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                log = self.read(self.log)
                self.close()
                raise Wrong("the server does not start: " + log[-2000:])
            time.sleep(0.03)

    def is_ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def stop(self):
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for_end(30)
        need(self.process.poll() is not None, "the server does not stop")
        # A rank that leaves waits 2 s for mpirun to take note of it, and Open MPI has no setting
        # for that: on a machine with too much work mpirun may think that it has died.
        log = self.read(self.log)
        need(self.process.returncode == 0 or
             ("flashmoe: stopped" in log and "exiting improperly" in log),
             f"status {self.process.returncode} after SIGUSR1")


# ---- faults

class Plan:
    """What happens in a round, drawn from the seed and the round's number."""

    def __init__(self, number, models, networks, kinds):
        chance = random.Random(ARGS.seed * 100003 + number)
        self.number = number
        self.kind = kinds[number % len(kinds)]
        # A damaged read is noticed in a packed model only, and the golden is too small for misses.
        self.model = models[self.kind != "disk" and chance.random() < 0.4]
        self.n_ranks = chance.choice((2, 3, 4))
        self.rank = chance.randrange(self.n_ranks)
        self.command = chance.choices(("serve", "run", "bench"), (8, 1, 1))[0]
        self.delay_s = chance.random() * 1.2
        self.over = "net" if self.kind == "cut" else chance.choice(("shm", "tcp"))
        self.damage = chance.choice(("eio", "cut", "damage"))
        self.net = networks
        self.is_saved = chance.random() < 0.5 # a session is saved before the fault

    def mpirun(self):
        if self.over == "net":
            return self.net.mpirun(*MPI)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", "--oversubscribe", *root, "--bind-to", "none", *MPI, *LOCAL[self.over]]

    def options(self):
        """Of the program. For faults of its disk a rank has too little memory for its experts."""
        memory = "128M" if self.kind != "disk" else "66M" if self.n_ranks == 4 else "70M"
        return ["--threads", "1", "--memory", memory, "--context", "1024", "--io", "direct",
                "--no-heat"]

    def __str__(self):
        how = self.kind + (f" ({self.damage})" if self.kind == "disk" else "")
        return (f"{self.number:3}: {how} of rank {self.rank} of {self.n_ranks}, {self.command} of "
                f"{self.model.name} over {self.over}, after {self.delay_s:.2f} s")

    def strike(self, ids, ranges):
        """Makes the fault happen."""
        if self.kind == "kill":
            os.kill(ids[self.rank], signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(ids[self.rank], signal.SIGSTOP)
        elif self.kind == "cut":
            self.net.unplug(self.rank)
        else:
            lines = {"cut": "CUT experts-\n", "damage": "DAMAGE experts-\n",
                     "eio": "".join(f"experts-{i:03}.bin 0 {1 << 40}\n" for i in range(9))}
            write_ranges(ranges, lines[self.damage])


def plain(text):
    """Without control characters: mpirun gives a rank a terminal, which gets none."""
    return "".join(c for c in text if c.isprintable())


def write_ranges(path, text):
    new = path.with_suffix(".new")
    new.write_text(text, "ascii")
    new.replace(path)


def check_tokens(ask, expected):
    need(ask.tokens == expected[:len(ask.tokens)],
         f"wrong tokens: {ask.tokens[-3:]} where {expected[:len(ask.tokens)][-3:]} belong")
    if ask.is_whole:
        need(len(ask.tokens) == len(expected), f"a whole answer has {len(ask.tokens)} tokens")


def names_rank(plan, text, *more):
    """Whether a text names the rank with its host and a cause. With a rank's network cut, or rank 0
    stopped, any rank may be the one that the others miss."""
    rank = r"\d" if plan.rank == 0 or plan.kind == "cut" else str(plan.rank)
    causes = ("has died", "has not answered", "no sign of life", "cannot (be )?read", "is damaged",
              "is told to end", *more)
    return re.search(rf"rank {rank} \([^)]+\).*({'|'.join(causes)})", text) or \
        re.search(rf"({'|'.join(causes)}).*rank {rank} \([^)]+\)", text)


def log_names(plan, log):
    """The same of a log, where mpirun may say it."""
    if names_rank(plan, log, "cannot send to", "cannot receive from"):
        return True
    rank = r"\d+" if plan.kind == "cut" or plan.rank == 0 else str(plan.rank)
    return re.search(rf"process rank {rank} with PID \d+ on node \S+ exited on signal", log) or \
        (plan.kind == "cut" and "lost communication with a remote daemon" in log.replace("\n", " "))


def check_folder(folder, n_ranks):
    """Every snapshot has the parts of all ranks, and nothing is unfinished."""
    names = set(os.listdir(folder))
    for name in names:
        need(re.search(r"\.fmsnap(\.rank\d+)?$", name) or name.endswith(".lock"),
             f"'{name}' is left behind")
    for whole in (n for n in names if n.endswith(".fmsnap")):
        for rank in range(1, n_ranks):
            need(f"{whole}.rank{rank}" in names, f"rank {rank} has no part of {whole}")


# ---- rounds

def serve_round(plan, folder, found):
    ranges = folder / "ranges"
    write_ranges(ranges, "")
    snapshots = folder / "snapshots"
    server = Serving(plan, snapshots, ranges if plan.kind == "disk" else None)
    try:
        # One session is finished, and may be saved already.
        first = Ask(server.port, plan.model.body(PROMPTS[3], 40))
        first.join(SLOW_S)
        check_tokens(first, plan.model.answers[PROMPTS[3]])
        need(first.is_whole, f"undisturbed: {first.error}")
        if plan.is_saved:
            time.sleep(4) # sessions are saved after 3 s without work
        asks = {p: Ask(server.port, plan.model.body(p)) for p in PROMPTS[:3]}
        ids = rank_ids(server.mark)
        time.sleep(plan.delay_s)
        plan.strike(ids, ranges)
        struck = time.monotonic()
        for prompt, ask in asks.items():
            if plan.kind == "disk":
                ask.join(SLOW_S)
            else:
                ask.join(max(0, struck + LIMIT_S - time.monotonic()))
            need(not ask.is_alive(), f"a request hangs for {LIMIT_S} s")
            check_tokens(ask, plan.model.answers[prompt])
        found["failed"] = [a.error for a in asks.values() if not a.is_whole]
        if plan.kind != "disk": # others need no broken expert, and take their time
            found["request_s"] = max(0, max(a.ended for a in asks.values()) - struck)
        if plan.kind == "disk":
            judge_disk(plan, server, asks, ranges)
        else:
            judge_loss(plan, server, asks, struck, found)
    except Wrong as why:
        raise Wrong(f"{why}\n{server.read(server.log)[-3000:]}") from why
    finally:
        server.close()
        if plan.kind == "cut":
            plan.net.plug(plan.rank)
    restart(plan, snapshots, found)


def judge_disk(plan, server, asks, ranges):
    """Requests that needed the experts have failed; then the disk is well again."""
    log = server.read(server.log)
    for ask in asks.values():
        if not ask.is_whole:
            need(names_rank(plan, ask.error), f"a request does not name the rank: {ask.error}")
            need(names_rank(plan, log), "the log does not name the rank")
    need(server.process.poll() is None, "the server has ended")
    write_ranges(ranges, "")
    for prompt in PROMPTS[:3]:
        ask = Ask(server.port, plan.model.body(prompt, 60))
        ask.join(SLOW_S)
        need(ask.is_whole, f"after the fault: {ask.error}")
        check_tokens(ask, plan.model.answers[prompt][:60])
    server.stop()
    need(not marked(server.mark), "a process is left")


def see_end(plan, job, struck, found):
    """mpirun and all ranks end. A daemon of Open MPI that was cut off does when the network is
    back."""
    job.wait_for_end(struck + END_LIMIT_S - time.monotonic(), plan.kind == "cut")
    found["end_s"] = time.monotonic() - struck
    need(job.process.poll() is not None, f"mpirun has not ended after {END_LIMIT_S} s")
    need(not rank_ids(job.mark), f"ranks are left: {rank_ids(job.mark)}")
    if plan.kind == "cut":
        plan.net.plug(plan.rank)
        job.wait_for_end(60)
    need(not marked(job.mark), f"processes are left: {marked(job.mark)}")


def judge_loss(plan, server, asks, struck, found):
    see_end(plan, server, struck, found)
    log = server.read(server.log)
    if all(ask.is_whole for ask in asks.values()):
        return # it came too late
    need(server.process.returncode != 0, "the status is 0")
    need(log_names(plan, log), "the log does not name the rank")
    told = [a.error for a in asks.values() if not a.is_whole and "connection ends" not in a.error]
    found["told"] = len(told)
    for error in told:
        need(names_rank(plan, error), f"a request does not name the rank: {error}")
    # The first rank lives unless it is the victim, or mpirun ends it before it can answer.
    found["cut_off"] = len(found["failed"]) - len(told)


def restart(plan, snapshots, found):
    """The supervisor starts it again: sessions come back, whole or not at all."""
    before = {name for name in os.listdir(snapshots) if name.endswith(".fmsnap")} \
        if snapshots.exists() else set()
    whole = {name for name in before if all((snapshots / f"{name}.rank{r}").exists()
                                            for r in range(1, plan.n_ranks))}
    server = Serving(plan, snapshots)
    try:
        ask = Ask(server.port, plan.model.body(PROMPTS[3], 40))
        ask.join(SLOW_S)
        need(ask.is_whole, f"after the restart: {ask.error}")
        check_tokens(ask, plan.model.answers[PROMPTS[3]])
        found["saved"], found["restored"] = len(whole), ask.n_cached > 0
        need(ask.n_cached == 0 or whole, "a session was restored without all parts")
        server.stop()
        log = server.read(server.log)
        need("damaged" not in log and "does not match" not in log, "a snapshot is damaged:\n" + log)
        check_folder(snapshots, plan.n_ranks)
    except Wrong as why:
        raise Wrong(f"{why}\n{server.read(server.log)[-3000:]}") from why
    finally:
        server.close()


def command_round(plan, folder, found):
    """`run` shows nothing wrong and says which rank is gone; `bench` prints no result."""
    ranges = folder / "ranges"
    write_ranges(ranges, "")
    words = plan.model.run_words() if plan.command == "run" else \
        ["bench", "decode", plan.model.path, "--tokens", "150", "--repeat", "2",
         "--verbose"]
    job = Job(plan, [*words, *plan.options()], ranges if plan.kind == "disk" else None)
    try:
        end = time.monotonic() + 60
        while "flashmoe: context " not in job.read(job.log) and time.monotonic() < end:
            time.sleep(0.02) # until the model is open
        time.sleep(0.2 + plan.delay_s)
        if job.process.poll() is not None:
            found["failed"] = []
            return # too late
        ids = rank_ids(job.mark)
        if plan.rank not in ids:
            found["failed"] = []
            return # it ends just now
        plan.strike(ids, ranges)
        struck = time.monotonic()
        if plan.kind == "disk":
            job.wait_for_end(SLOW_S)
            need(not marked(job.mark), "processes are left")
        else:
            see_end(plan, job, struck, found)
        log, out = job.read(job.log), job.read(job.out)
        if job.process.returncode == 0:
            found["failed"] = []
        else:
            found["failed"] = [log]
            need(log_names(plan, log), "the log does not name the rank")
        if plan.command == "run":
            need(plain(plan.model.text).startswith(plain(out)), f"wrong text: {out!r}")
        elif job.process.returncode != 0:
            need(out == "", f"a result is printed: {out!r}")
    except Wrong as why:
        raise Wrong(f"{why}\n{job.read(job.log)[-3000:]}") from why
    finally:
        job.close()
        if plan.kind == "cut":
            plan.net.plug(plan.rank)


def one_round(plan):
    found = {"plan": str(plan), "kind": plan.kind, "command": plan.command}
    with tempfile.TemporaryDirectory() as folder:
        try:
            if plan.kind == "cut":
                plan.net = net.Net(ARGS.relay, plan.n_ranks, "local", folder)
            (serve_round if plan.command == "serve" else command_round)(
                plan, pathlib.Path(folder), found)
            found["wrong"] = None
        except Wrong as why:
            found["wrong"] = str(why)
        finally:
            if plan.kind == "cut" and plan.net is not None:
                plan.net.close()
    times = "".join(f", {name} {found[name + '_s']:.1f} s" for name in ("request", "end")
                    if name + "_s" in found)
    more = "".join(f", {name}" for name in ("saved", "restored") if found.get(name))
    print(f"{plan}: {len(found.get('failed', ()))} failed, {found.get('told', 0)} told{times}{more}"
          + (f"\n    WRONG: {found['wrong']}" if found["wrong"] else ""), flush=True)
    return found


# ---- all of it

def learn(model):
    """Computes the undisturbed answers, in one process."""
    alone = Plan(0, (model, model), None, ("kill",))
    alone.n_ranks, alone.over = 1, "shm"
    with tempfile.TemporaryDirectory() as folder:
        server = Serving(alone, folder)
        for i, prompt in enumerate(PROMPTS):
            ask = Ask(server.port, model.body(prompt, 40 if i == 3 else 300))
            ask.join(120)
            if not ask.is_whole or len(ask.tokens) < 30:
                raise AssertionError(f"{model.name}, '{prompt}': {ask.error} {ask.tokens}")
            model.answers[prompt] = ask.tokens
        server.close()
    done = subprocess.run([ARGS.program, *model.run_words(), *alone.options()], check=True,
                          capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL)
    model.text = done.stdout


def summarize(all_found):
    n_wrong = sum(f["wrong"] is not None for f in all_found)
    print(f"{len(all_found)} faults, {n_wrong} with something wrong")
    for kind in sorted({f["kind"] for f in all_found}):
        own = [f for f in all_found if f["kind"] == kind]
        requests = [f["request_s"] for f in own if "request_s" in f]
        ends = [f["end_s"] for f in own if "end_s" in f]
        print(f"{kind}: {len(own)} faults, {sum(bool(f.get('failed')) for f in own)} with failed "
              f"requests or commands, {sum(len(f.get('failed', ())) for f in own)} failed, "
              f"{sum(f.get('told', 0) for f in own)} told by the server, "
              f"{sum(f.get('cut_off', 0) for f in own)} cut off; slowest request "
              f"{max(requests, default=0):.1f} s, slowest end {max(ends, default=0):.1f} s; "
              f"{sum(bool(f.get('saved')) for f in own)} times a session was saved, "
              f"{sum(bool(f.get('restored')) for f in own)} times restored")
    return n_wrong


def main():
    module = os.path.join(os.path.dirname(ARGS.program), "libflashmoe_mpi.so")
    if shutil.which("mpirun") is None or not os.path.exists(module):
        print("skipped: Open MPI is not there (Debian: libopenmpi-dev openmpi-bin)")
        return 77
    kinds = ARGS.kinds.split(",")
    why = net.missing() if "cut" in kinds else None
    if why is not None:
        print(f"no interface goes down: {why}")
        kinds.remove("cut")
    golden = os.path.join(ARGS.golden, "qwen3_next")
    models = (Model("nano", ARGS.nano, (16381, 16382, 16383)), Model("golden", golden, (1,)))
    for model in models:
        learn(model)
    all_found = [one_round(Plan(i, models, None, kinds))
                 for i in range(ARGS.first, ARGS.first + ARGS.faults)]
    if ARGS.json is not None:
        pathlib.Path(ARGS.json).write_text(json.dumps(all_found, indent=1), "utf-8")
    n_failed = sum(bool(f.get("failed")) for f in all_found)
    n_wrong = summarize(all_found)
    if n_failed == 0:
        print("no fault had an effect: the campaign proves nothing")
    return int(n_wrong > 0 or n_failed == 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Random faults of ranks")
    for operand in ("program", "preload", "relay", "golden", "nano"):
        parser.add_argument(operand)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--kinds", default="kill,stop,disk,cut")
    parser.add_argument("--json")
    ARGS = parser.parse_args()
    ARGS.program = os.path.abspath(ARGS.program)
    sys.exit(main())
