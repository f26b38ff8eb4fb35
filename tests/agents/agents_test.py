#!/usr/bin/env python3
"""Real coding agents hold a conversation of two turns with `flashmoe serve`, by `flashmoe launch`.

usage: agents_test.py PROGRAM [--cache DIR] [--agent NAME...] [--record DIR]

Each agent runs headless in an empty project with its own home folder. The first turn must succeed
and say something. The second turn continues the conversation and must find more than 90 % of its
prompt already computed. The model is nano, configured to accept long prompts, so its answers make
no sense. --record writes what the agents sent, with all texts replaced, for replay_test.py.

The agents come from npm, 0.1 to 0.4 GB each, and are kept in the cache folder. Exits 77, with the
reason, if fewer than three can be installed.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import long_nano
import record

# The newest versions that run with the node of Debian 12 or 13, and each turn's arguments.
AGENTS = {
    "pi": ("@mariozechner/pi-coding-agent@0.73.1", ["--", "-p"], ["--", "-c", "-p"]),
    "codex": ("@openai/codex@0.166.0", ["exec", "--", "--skip-git-repo-check"],
              ["exec", "--", "--skip-git-repo-check", "resume", "--last"]),
    "opencode": ("opencode-ai@1.18.18", ["run"], ["--", "run", "--continue"]),
    "qwen": ("@qwen-code/qwen-code@0.15.10", ["--", "-p"], ["--", "--continue", "-p"]),
    "claude": ("@anthropic-ai/claude-code@2.1.197", ["--", "-p"], ["--", "--continue", "-p"]),
}
PROMPTS = ("Say hello.", "And now tell me a story.")
MIN_AGENTS = 3
KEY = "a-key-of-the-test"
LINE = re.compile(r"POST (\S+) (\d+)(.*?)\| queue .*?\| prompt (\d+) tokens, (\d+) cached.*?"
                  r"\| answer (\d+) tokens")
SKIPPED = 77
TURN_SECONDS = 600


def install(cache, name, spec):
    """Returns the folder of its programs. Returns None and prints the reason if there is none."""
    target = cache / "agents" / spec.replace("/", "-")
    programs = target / "node_modules" / ".bin"
    if (programs / name).exists():
        return programs
    (cache / "agents").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        done = subprocess.run(
            ["npm", "install", "--prefix", f"{scratch}/new", "--no-audit", "--no-fund",
             "--no-update-notifier", "--silent", spec],
            env={**os.environ, "npm_config_cache": f"{scratch}/cache"}, check=False,
            capture_output=True, text=True)
        if done.returncode != 0 or not pathlib.Path(scratch, "new/node_modules/.bin",
                                                    name).exists():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name}: npm does not give {spec}: {reason}")
            return None
        shutil.rmtree(target, ignore_errors=True)
        os.rename(f"{scratch}/new", target)
    return programs


class Server:
    """`flashmoe serve` on a port of its own, and the lines that it printed."""

    def __init__(self, program, model, folder, *options):
        self.log = folder / "serve.log"
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [program, "serve", str(model), "--port", "0", "--context", "65536", "--sessions",
                 "8", "--api-key", KEY, "--no-heat", *options], stdout=out, stderr=out,
                env={**os.environ, "XDG_CACHE_HOME": str(folder)})
        self.seen = 0
        found = None
        while not found:
            if self.process.poll() is not None:
                raise RuntimeError("the server did not start:\n" + self.log.read_text())
            time.sleep(0.1)
            found = re.search(r"listening on (http://\S+)", self.log.read_text())
        self.url = found[1]

    def new_lines(self):
        text = self.log.read_text()
        new, self.seen = text[self.seen:], len(text)
        return new

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


class Turn:
    """The result of one run of an agent."""

    def __init__(self, server, status, out, err):
        self.status, self.out, self.err = status, out, err
        self.requests = []
        self.refused = []
        time.sleep(0.3)  # the last line is written after the last byte is sent
        self.lines = server.new_lines()
        for path, code, _, n_prompt, n_cached, n_answer in LINE.findall(self.lines):
            self.requests.append((path, int(code), int(n_prompt), int(n_cached), int(n_answer)))
        for code in re.findall(r"(?m) POST \S+ (\d+)", self.lines):
            if code != "200":
                self.refused.append(code)

    def main(self):
        """Returns the request with the longest prompt. Others ask for a title and the like."""
        return max(self.requests, key=lambda request: request[2])

    def faults(self, is_second):
        found = []
        if self.status != 0:
            found.append(f"exit status {self.status}")
        if not self.out.strip():
            found.append("no text")
        if self.refused:
            found.append(f"answers other than 200: {', '.join(self.refused)}")
        if not self.requests:
            return found + ["no request reached the server"]
        _, _, n_prompt, n_cached, n_answer = self.main()
        if n_answer == 0:
            found.append("an empty answer")
        if is_second and n_cached <= 0.9 * n_prompt:
            found.append(f"of {n_prompt} tokens only {n_cached} were cached")
        return found


def run_turn(program, name, words, prompt, server, url, folder, programs):
    home, project, out = folder / "home", folder / "project", folder / "out"
    environment = {k: v for k, v in os.environ.items()
                   if k in ("LANG", "TZ", "NODE_EXTRA_CA_CERTS")}
    environment.update(PATH=f"{programs}:{os.environ['PATH']}", HOME=str(home), TERM="dumb",
                       XDG_CONFIG_HOME=f"{home}/.config", XDG_DATA_HOME=f"{home}/.local/share",
                       XDG_CACHE_HOME=f"{home}/.cache", XDG_STATE_HOME=f"{home}/.local/state",
                       FLASHMOE_API_KEY=KEY)
    with open(out, "w+", encoding="utf-8") as stdout, \
            open(folder / "err", "w+", encoding="utf-8") as stderr:
        try:
            status = subprocess.run(
                [program, "launch", name, "--url", url, *words, prompt], cwd=project,
                env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                check=False, timeout=TURN_SECONDS).returncode
        except subprocess.TimeoutExpired:
            status = "none: it took too long"
    return Turn(server, status, out.read_text(errors="replace"),
                (folder / "err").read_text(errors="replace"))


def try_agent(program, name, server, programs, recorder):
    """Returns the faults of both turns."""
    _, first, second = AGENTS[name]
    url = server.url if recorder is None else recorder.url
    faults = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "home").mkdir()
        (folder / "project").mkdir()
        subprocess.run(["git", "init", "-q", str(folder / "project")], check=False)
        for number, words in enumerate((first, second)):
            if recorder is not None:
                recorder.name = f"{name}-{number + 1}"
            begin = time.monotonic()
            turn = run_turn(program, name, words, PROMPTS[number], server, url, folder, programs)
            seconds = time.monotonic() - begin
            wrong = turn.faults(number == 1)
            for path, code, n_prompt, n_cached, n_answer in turn.requests:
                print(f"{name} turn {number + 1}: {path} {code}, prompt {n_prompt}, cached "
                      f"{n_cached}, answer {n_answer}")
            print(f"{name} turn {number + 1}: {seconds:.0f} s, "
                  f"{'; '.join(wrong) if wrong else 'good'}", flush=True)
            if wrong:
                print(turn.out[-2000:], turn.err[-2000:], turn.lines[-2000:], sep="\n---\n")
            faults += wrong
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("build-agents"))
    parser.add_argument("--agent", nargs="*", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--record", type=pathlib.Path)
    options = parser.parse_args()
    for tool in ("node", "npm", "git"):
        if not shutil.which(tool):
            print(f"skipped: no {tool} (Debian: apt-get install nodejs npm git)")
            return SKIPPED
    programs = {name: install(options.cache.resolve(), name, AGENTS[name][0])
                for name in options.agent}
    there = [name for name in options.agent if programs[name]]
    if len(there) < min(MIN_AGENTS, len(options.agent)):
        print(f"skipped: npm gives {len(there)} agents, {MIN_AGENTS} are needed")
        return SKIPPED
    program = options.program.resolve()
    with tempfile.TemporaryDirectory() as folder:
        model = long_nano.make(pathlib.Path(folder, "long-nano.fmoe"))
        server = Server(program, model, pathlib.Path(folder))
        recorder = record.Recorder(server.url, options.record) if options.record else None
        try:
            faults = {name: try_agent(program, name, server, programs[name], recorder)
                      for name in there}
        finally:
            if recorder:
                recorder.close()
            status = server.stop()
    bad = [name for name, found in faults.items() if found]
    print(f"{len(there) - len(bad)} agents good, {len(bad)} bad{': ' if bad else ''}"
          f"{', '.join(bad)}; the server ended with {status}")
    return 1 if bad or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
