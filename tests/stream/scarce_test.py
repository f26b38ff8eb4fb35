#!/usr/bin/env python3
"""scarce_test.py FLASHMOE MODEL: runs in a memory cgroup whose limit is below what the model would
take, from the start or lowered during an answer. The program survives and gives the same text, and
measurements report that the cache shrank. Exit status 77 (skipped) if this process may not make a
memory cgroup."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from cgroup import open_group

MIB = 1 << 20
# Ends a test that hangs.
SECONDS = 1800


def start(group, command):
    return group.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_briefly(process, seconds):
    """Lets a stopped process run. It is stopped again when this returns, so that it cannot finish
    while this test waits for its turn on a busy machine."""
    process.send_signal(signal.SIGCONT)
    time.sleep(seconds)
    process.send_signal(signal.SIGSTOP)


def lower(group, limit, process):
    """Lowers the limit to `limit`, in steps that stay a few MiB above what is in use. For a lower
    limit the system would refuse or kill."""
    while process.poll() is None:
        step = max(limit, group.usage() + 6 * MIB)
        try:
            group.limit(step)
            if step == limit:
                process.send_signal(signal.SIGCONT)
                return True
        except OSError:
            pass
        run_briefly(process, 0.1)
    return False


def has_model(process):
    """Returns whether it has the experts open. Measurements take memory before that, too."""
    try:
        folder = pathlib.Path(f"/proc/{process.pid}/fd")
        return any("experts-" in os.readlink(link) for link in folder.iterdir())
    except OSError:
        return False  # it has just closed one, or has ended


def run_free(group, command):
    """Returns the command's answer when memory is plentiful, and the maximum of bytes it used."""
    peak = 0
    group.limit(512 * MIB)
    process = start(group, command)
    while process.poll() is None:
        peak = max(peak, group.usage() if has_model(process) else 0)
        time.sleep(0.02)
    return finish(process), peak


def start_lowered(group, peak, limit, command):
    """Starts the command and lowers the group's limit to `limit` once the cache is full. While it
    fills the cache, it may take memory faster than it looks at the limit."""
    group.limit(512 * MIB)
    process = start(group, command)
    process.send_signal(signal.SIGSTOP)
    while process.poll() is None and not (has_model(process) and
                                          group.usage() >= peak - 3 * MIB):
        run_briefly(process, 0.01)
    assert lower(group, limit, process), "it was done before the limit was lowered"
    return process


def output(process):
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"status {process.returncode}: {err}"
    return out


def finish(process):
    return json.loads(output(process))


def measurements_say_so(group, program, model):
    """A measurement during which the cache changed its size says so. A measurement with a budget
    that the group does not have is refused."""
    decode = [program, "bench", "decode", model, "--memory", "400M", "--tokens", "900", "--repeat",
              "2", "--threads", "1"]
    stream = [program, "bench", "stream", model, "--budgets", "400M", "--threads", "1"]
    free, peak = run_free(group, [*decode, "--json"])
    assert free["n_shrinks"] == 0
    at = (peak, peak - 10 * MIB)
    assert finish(start_lowered(group, *at, [*decode, "--json"]))["n_shrinks"] > 0
    assert re.search(r"\nelastic      the cache shrank [1-9]\d* time",
                     output(start_lowered(group, *at, decode)))
    group.limit(256 * MIB)
    for command in (decode, stream):
        process = start(group, command)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 1 and "allows 256.0 MiB" in err, err


def main():
    program, model = sys.argv[1:]
    command = [program, "run", model, "-p", "def main():", "--raw", "-n", "1900", "--greedy",
               "--json", "--no-heat", "--context", "2048", "--threads", "1"]
    group = open_group()
    if group is None:
        print("skipped: no memory cgroup can be made here")
        return 77
    try:
        free, peak = run_free(group, command)
        print(f"free: {free['n_cache_slots']} experts, {free['memory_bytes'] / MIB:.1f} MiB")
        limit = peak - 10 * MIB

        lowered = finish(start_lowered(group, peak, limit, command))
        print(f"lowered to {limit / MIB:.1f} MiB: {lowered['n_cache_slots']} experts, "
              f"{lowered['n_shrinks']} shrinks")

        group.limit(limit)
        small = finish(start(group, command))
        print(f"{limit / MIB:.1f} MiB from the start: {small['n_cache_slots']} experts, "
              f"{small['memory_bytes'] / MIB:.1f} MiB")
        for answer in (lowered, small):
            assert answer["tokens"] == free["tokens"], "another text"
            assert answer["logits_hash"] == free["logits_hash"], "other bits"
            assert answer["n_cache_slots"] < free["n_cache_slots"], "nothing was given back"
        assert lowered["n_shrinks"] > 0
        measurements_say_so(group, program, model)
    finally:
        group.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
