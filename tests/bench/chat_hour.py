#!/usr/bin/env python3
"""Uses `flashmoe chat` in tmux as a person would, and watches its memory.

Usage: chat_hour.py PROGRAM [MINUTES] [CHAT_OPTION...]

Types messages, pastes several lines, reads files, stops answers, takes back, answers again, saves
and loads, changes settings, resizes the window; pauses in between. Prints the resident memory every
minute and, at the end, how far it went after the first tenth of the time, in which buffers that are
kept reach their size. Exits with 1 when that is more than 1 %, or when the program ended.
"""

import os
import random
import shlex
import subprocess
import sys
import tempfile
import time

MESSAGES = ["Write a story about a robot who loves music.", "What is the Moon?", "Hello", "为我写一首诗",
            "Write a C function that adds two numbers.", "What is 12 + 30?", "And then?",
            "Tell me about the sea.", "Write a Python function that reverses a list."]
SETTINGS = ["temperature 0.8", "temperature 0", "top_p 0.9", "n_tokens 60", "n_tokens 200"]


class Terminal:
    def __init__(self, command):
        self.name = f"chat-hour-{os.getpid()}"
        self.tmux("new-session", "-d", "-s", self.name, "-x", "100", "-y", "40",
                  "exec " + shlex.join(command))
        self.pid = int(self.tmux("display-message", "-p", "-t", self.name, "#{pane_pid}"))

    def tmux(self, *args, text=None):
        return subprocess.run(["tmux", "-L", self.name, *args], input=text, check=True,
                              capture_output=True, text=True).stdout

    def type(self, text, *keys):
        self.tmux("send-keys", "-t", self.name, "-l", text)
        for key in keys:
            self.press(key)

    def press(self, key):
        self.tmux("send-keys", "-t", self.name, key)

    def paste(self, text):
        self.tmux("load-buffer", "-", text=text)
        self.tmux("paste-buffer", "-p", "-t", self.name)

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", self.name)

    def resident_kib(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def wait_quiet(terminal, seconds=60):
    """Waits until the screen has not changed for a second."""
    last, end = None, time.monotonic() + seconds
    while time.monotonic() < end:
        seen = terminal.screen()
        if seen == last:
            return
        last = seen
        time.sleep(1)


def act(terminal, rng, folder):
    kind = rng.randrange(14)
    if kind < 6:
        terminal.type(rng.choice(MESSAGES), "Enter")
    elif kind == 6:
        terminal.paste("Here are three lines:\n  one\n  two\n")
        terminal.press("Enter")
    elif kind == 7:
        terminal.type(rng.choice(MESSAGES), "Enter")
        time.sleep(rng.uniform(0.05, 1.5))
        terminal.press("C-c")
    elif kind == 8:
        terminal.type(rng.choice(["/regen", "/undo", "/stats", "/help", "/think on", "/nonsense"]),
                      "Enter")
    elif kind == 9:
        terminal.type("/read " + os.path.join(folder, "notes.txt"), "Enter")
    elif kind == 10:
        path = os.path.join(folder, f"talk-{rng.randrange(3)}.json")
        is_load = os.path.exists(path) and rng.random() < 0.6
        terminal.type(("/load " if is_load else "/save ") + path, "Enter")
    elif kind == 11:
        terminal.type("/set " + rng.choice(SETTINGS), "Enter")
    elif kind == 12:
        terminal.type("a line that is never sent", "Up", "C-a", "C-k", "C-c")
    else:
        terminal.type("/system " + rng.choice(["Be brief.", "You tell stories.", ""]), "Enter")
        terminal.tmux("resize-window", "-t", terminal.name, "-x", str(rng.randrange(40, 160)))
    wait_quiet(terminal)


def watch(terminal, minutes, folder):
    rng, begin, samples, n_acts = random.Random(1), time.monotonic(), [], 0
    while (passed := time.monotonic() - begin) < minutes * 60:
        act(terminal, rng, folder)
        n_acts += 1
        if "is full" in terminal.screen():  # begin another conversation
            terminal.type("/load " + os.path.join(folder, "empty.json"), "Enter")
            wait_quiet(terminal)
        time.sleep(rng.uniform(0, 4))
        samples.append((passed, terminal.resident_kib()))
        if int(passed // 60) != int((time.monotonic() - begin) // 60):
            print(f"{passed / 60:5.1f} min  {n_acts:4} acts  {samples[-1][1] / 1024:8.1f} MiB",
                  flush=True)
    return samples


def main():
    program, minutes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "notes.txt"), "w", encoding="utf-8") as file:
            file.write("A note about a small boat on the sea.\n" * 20)
        with open(os.path.join(folder, "empty.json"), "w", encoding="utf-8") as file:
            file.write('{"messages": []}')
        terminal = Terminal([program, "chat", "--no-history", "--snapshots",
                             os.path.join(folder, "snapshots"), "--snapshot-limit", "200M",
                             *sys.argv[3:]])
        wait_quiet(terminal)
        samples = watch(terminal, minutes, folder)
        print(terminal.screen())
        steady = [kib for passed, kib in samples if passed > minutes * 6]
        spread = (max(steady) - steady[0]) / steady[0]
        print(f"{len(samples)} acts in {minutes:g} minutes; after the first tenth "
              f"{steady[0] / 1024:.1f} MiB, least {min(steady) / 1024:.1f}, most "
              f"{max(steady) / 1024:.1f}, at the end {steady[-1] / 1024:.1f}: "
              f"{spread:+.2%} at most")
        terminal.press("C-d")
        return 1 if spread > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
