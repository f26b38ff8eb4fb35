#!/usr/bin/env python3
"""Measures ranks with processors of their own, beside one rank, on a machine with many of them.

usage: cluster_cores.py KIT --json FILE [--ranks 4] [--cores 4] [--seconds 180] [--rounds 3]
                        [--work DIR] [--shape SHAPE] [--synth "OPTION..."] [--memory SIZE]

KIT is the folder that mpi_kit.sh makes; the machine needs python3, taskset and ranks x cores
processors, and no Open MPI. A model of random weights is made in DIR (default: /dev/shm if it has
room, or else the folder of FILE) and removed at the end. Then, in turns, round after round:

    one rank on --cores processors      layer times, alone and beside as many others as there are
                                        ranks; prompt of 2,048 tokens, 8 sequences, one answer
    --ranks ranks, each on as many      hops, the same prompt, 8 sequences, as many as ranks, one
    one rank on all these processors    the same prompt, 8 sequences, one answer

The last, and the prompt on ranks in pieces of other sizes, are measured in the first round only.

FILE is written after every step, so an end before the last one loses nothing. No step begins that
would end after --seconds. A table of what was measured is printed at the end, and again by
`cluster_cores.py --show FILE`; `cluster_simulate.py calibrate --from FILE` prints another one,
which compares the simulation with it.

How much ranks can gain depends on the shape. A group of sequences reads the dense weights of a rank
for itself, and experts that other groups have read, too; a piece of a prompt reads all experts. The
default shape has gpt-oss's layers with a twenty-fourth of the experts per token, and half as
many bytes of dense weights in a layer as in one expert. What memory allows 8 sequences at most, if
each rank has one of its own, is printed with the table.

Processors may be halves of cores. Then both halves have to belong to one rank: which processor
shares its core with the first one is measured before anything else. If half of the processors are
enough, each rank has cores of its own and leaves the other halves idle.

All ranks share the memory of this machine. Several machines do not. A rank with one or two
processors leaves most of the memory's bandwidth to the others, so --cores 1 is closest to machines
of their own. Layer times beside other processes show what sharing costs.

With --memory every rank has that budget, and reads what does not fit past the page cache, from DIR:
this is what several machines gain when one of them cannot hold the model. Only the prompt and the 8
sequences are measured then.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = "gpt-oss-120b"
SYNTH = ("--layers 8 --experts 96 --hidden 1024 --expert-width 4096 --heads 16 --kv-heads 4 "
         "--vocab 4096 --dense-format affine4-g64 --experts-format affine4-g64")
PROMPT, SEQUENCES = 2048, 8
PIECES = (128, 256) # the prompt on ranks again, in pieces that the program has not chosen
COMMON = ["--gpu", "off", "--no-heat", "--json", "--quiet"]
LOAD_S = 5.0 # after which a process has opened the model and computes


class Measuring:
    """A kit, a model, what was found, and the time that is left."""

    def __init__(self, options, model):
        self.options, self.model = options, model
        self.end = options.begin + options.seconds
        self.common = COMMON + (["--memory", options.memory, "--io", "direct"]
                                if options.memory else [])
        self.took = {}
        self.found = {"ranks": options.ranks, "cores": options.cores, "cut": None, "steps": []}

    def environment(self):
        lib = os.path.join(self.options.kit, "lib")
        before = os.environ.get("LD_LIBRARY_PATH")
        return dict(os.environ, LD_LIBRARY_PATH=f"{lib}:{before}" if before else lib)

    def program(self, *words):
        return output([os.path.join(self.options.kit, "bin", "flashmoe"), *words],
                      self.environment())

    def ranks(self, n, cores, *words):
        order = ",".join(map(str, self.found["processors"]))
        return output([os.path.join(self.options.kit, "ranks"), str(n), str(cores), *words],
                      dict(os.environ, RANK_PROCESSORS=order))

    def has_time(self, name):
        return time.monotonic() + self.took.get(name, 8) < self.end

    def step(self, name, measure):
        """Measures something, if there is time, and keeps it. Returns whether it was done."""
        if not self.has_time(name):
            return False
        begin = time.monotonic()
        result = measure()
        took = time.monotonic() - begin
        self.took[name] = max(took, self.took.get(name, 0))
        self.found["steps"].append({"name": name, "took_s": round(took, 2), **result})
        text = json.dumps(self.found, indent=1)
        pathlib.Path(self.options.json).write_text(text + "\n", "utf-8")
        told = result.get("tok_per_s")
        print(f"{name}: " + (f"{told:.1f} tok/s, " if told else "") + f"{took:.1f} s",
              file=sys.stderr, flush=True)
        return True


def output(words, environment):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def layer_times(text, n_rows):
    """Median seconds of each layer for passes with so many rows; the last one is the head."""
    times = {}
    for row in json.loads(text)["rows"]:
        if row["n_tokens"] == n_rows:
            ns = row["mix_ns"] + row["route_ns"] + row["wait_ns"] + row["compute_ns"]
            times.setdefault(row["layer"], []).append(ns / 1e9)
    return [statistics.median(times[layer]) for layer in sorted(times)]


def best_cut(times, n_ranks):
    """Layers of each rank so that the slowest one is fastest. The head belongs to the first."""
    n_layers, head = len(times) - 1, times[-1]
    best = [(0.0, [])] + [None] * n_layers  # of the first layers: slowest rank, cut
    for rank in range(n_ranks):
        new = [None] * (n_layers + 1)
        for end in range(rank + 1, n_layers + 1):
            for begin in range(rank, end):
                if best[begin] is None:
                    continue
                own = sum(times[begin:end]) + (head if rank == 0 else 0)
                slowest = max(best[begin][0], own)
                if new[end] is None or slowest < new[end][0]:
                    new[end] = (slowest, best[begin][1] + [end - begin])
        best = new
    return best[n_layers][1]


# ---- processors


def count_loops(processors, seconds):
    """How many turns a loop makes on the first of these processors while all of them have one."""
    begin = time.monotonic() + 0.05
    ends = []
    for at in processors:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.sched_setaffinity(0, {at})
            while time.monotonic() < begin:
                pass
            turns, x = 0, 1
            while time.monotonic() < begin + seconds:
                for _ in range(500):
                    x = x * 1103515245 + 12345 & 0xffffffff
                turns += 1
            os.write(writing, str(turns).encode())
            os._exit(0)
        os.close(writing)
        ends.append(reading)
    told = [int(os.read(end, 64)) for end in ends]
    for end in ends:
        os.close(end)
        os.wait()
    return told[0]


def other_half(processors):
    """The processor that shares a core with the first one, or None, and the loops that say so."""
    alone = statistics.median(count_loops(processors[:1], 0.08) for _ in range(3))
    shares = {p: round(count_loops([processors[0], p], 0.08) / alone, 2) for p in processors[1:]}
    slowest = min(shares, key=shares.get)
    if shares[slowest] < 0.85: # not by chance?
        shares[slowest] = round(statistics.median(
            count_loops([processors[0], slowest], 0.08) / alone for _ in range(5)), 2)
    return (slowest if shares[slowest] < 0.85 else None), shares


def in_order(processors, half, needed):
    """The processors with both halves of each core side by side, or one half of each if that is
    enough."""
    step = processors.index(half) if half is not None else 1
    if half is None or len(processors) % (2 * step) != 0:
        return processors
    ordered = [processors[block + i + j * step] for block in range(0, len(processors), 2 * step)
               for i in range(step) for j in range(2)]
    return ordered[::2] if 2 * needed <= len(ordered) else ordered


# ---- one step each


def profiled(m, n_rows):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "profile.json")
        told = json.loads(m.ranks(1, m.options.cores, "bench", "batch", m.model, *m.common,
                                  "--sequences", str(n_rows), "--tokens", "24", "--repeat", "5",
                                  "--profile", path))
        return {"rows": n_rows, "pass_s": n_rows / told["tok_per_s"],
                "layers_s": layer_times(pathlib.Path(path).read_text("utf-8"), n_rows)}


def profiled_beside(m, n_rows):
    """The same while a process on the processors of every other rank does the same."""
    cores = m.options.cores
    others = []
    try:
        for rank in range(1, m.options.ranks):
            own = m.found["processors"][rank * cores:(rank + 1) * cores]
            others.append(subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, own)),
                 os.path.join(m.options.kit, "bin", "flashmoe"), "bench", "batch", m.model,
                 *m.common, "--threads", str(cores), "--sequences", str(n_rows), "--tokens",
                 "16384", "--repeat", "1"],
                env=m.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL))
        time.sleep(LOAD_S)
        found = profiled(m, n_rows)
        if any(other.poll() is not None for other in others):
            sys.exit("a process that should have run beside the measured one has ended")
        return found
    finally:
        for other in others:
            other.kill()
            other.wait()


def bench(m, n, cores, *words):
    cut = ["--layers", ",".join(map(str, m.found["cut"]))] if n > 1 else []
    told = json.loads(m.ranks(n, cores, "bench", *words, *m.common, *cut))
    kept = ("tok_per_s", "tok_per_s_min", "tok_per_s_max", "memory_read_gb_per_s", "is_resident",
            "logits_hash")
    return {key: told[key] for key in kept}


def prompt_of(m, n, cores, *more):
    return bench(m, n, cores, "prefill", m.model, "--tokens", str(PROMPT), "--repeat", "3", *more)


def sequences_of(m, n, cores, count):
    length = ["--tokens", "8", "--repeat", "4"] if m.options.memory else \
        ["--tokens", "32", "--repeat", "5"]
    return bench(m, n, cores, "batch", m.model, "--sequences", str(count), *length)


def answer_of(m, n, cores):
    """One answer, with what each rank did for it. The speed is that of a batch of one, which has
    read its experts before: the answer itself reads them for the first time."""
    cut = ["--layers", ",".join(map(str, m.found["cut"]))] if n > 1 else []
    told = json.loads(m.ranks(n, cores, "run", m.model, "-p", "a", "--raw", "--temp", "0", "-n",
                              "128", *m.common, *cut))
    found = sequences_of(m, n, cores, 1)
    found["cold_tok_per_s"] = told["tok_per_s"]
    for rank in told.get("ranks", [])[:1]:
        found["hop_s"] = rank["network_s"] / max(rank["lone_passes"], 1) / n
    found["busy_s"] = [rank["busy_s"] / max(rank["messages"], 1) for rank in
                       told.get("ranks", [])[1:]]
    return found


def hops_of(m):
    told = json.loads(m.ranks(m.options.ranks, m.options.cores, "cluster", "probe", m.model,
                              "--json", "--quiet"))
    return {"hop_s": statistics.mean(one["message_s"] for one in told["machines"]),
            "message_bytes": told.get("message_bytes")}


def one_round_of_budgets(m, alone, apart):
    """The same with a budget: what a layer takes depends on how many others share its rank."""
    n, cores = m.options.ranks, m.options.cores
    if m.found["cut"] is None:
        layers = m.found["model"]["n_layers"]
        m.found["cut"] = best_cut([1] * layers + [0], n)
    steps = [(f"{where}, {what}", lambda r=r, f=f: f(m, r, cores))
             for what, f in (("prompt", prompt_of),
                             ("8 sequences", lambda *a: sequences_of(*a, SEQUENCES)))
             for where, r in ((alone, 1), (apart, n))]
    return all(m.step(name, measure) for name, measure in steps)


def one_round(m, with_all):
    """Returns False: there was no time for all of it."""
    n, cores = m.options.ranks, m.options.cores
    alone, apart, together = "one rank", f"{n} ranks", "one rank, all processors"
    if m.options.memory:
        return one_round_of_budgets(m, alone, apart)
    if not m.step("layers, alone", lambda: profiled(m, 1)) or \
            not m.step("layers, one row beside others", lambda: profiled_beside(m, 1)) or \
            not m.step("layers, in a group beside others",
                       lambda: profiled_beside(m, SEQUENCES // n)):
        return False
    if m.found["cut"] is None:
        m.found["cut"] = best_cut(m.found["steps"][-1]["layers_s"], n)
    steps = [(f"{where}, {what}", lambda r=r, c=c, f=f: f(m, r, c))
             for what, f in (("prompt", prompt_of),
                             ("8 sequences", lambda *a: sequences_of(*a, SEQUENCES)),
                             ("one answer", answer_of))
             for where, r, c in ((alone, 1, cores), (apart, n, cores))]
    steps.insert(4, ("hops", lambda: hops_of(m)))
    steps.append((f"{apart}, {n} sequences", lambda: sequences_of(m, n, cores, n)))
    if with_all:
        steps += [(f"{apart}, prompt, pieces of {rows}", lambda rows=rows:
                   prompt_of(m, n, cores, "--prefill-chunk", str(rows))) for rows in PIECES]
        steps += [(f"{together}, prompt", lambda: prompt_of(m, 1, n * cores)),
                  (f"{together}, 8 sequences",
                   lambda: sequences_of(m, 1, n * cores, SEQUENCES)),
                  (f"{together}, one answer", lambda: answer_of(m, 1, n * cores))]
    return all(m.step(name, measure) for name, measure in steps)


# ---- the table


def values_of(found, name, key="tok_per_s"):
    return [step[key] for step in found["steps"] if step["name"] == name]


def text_of(values):
    if not values:
        return "not measured"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def bytes_of_step(found):
    """What a token of each sequence reads on one rank, and on all ranks together, if routes are
    uniform."""
    model = found["model"]
    layers, experts = model["n_layers"], model["n_experts"]
    used = model["n_experts_per_token"] / experts

    def read(rows):
        return model["dense_token_bytes"] + \
            layers * experts * (1 - (1 - used) ** rows) * model["expert_bytes"]
    return read(SEQUENCES), found["ranks"] * read(SEQUENCES // found["ranks"])


def show(found):
    n = found["ranks"]
    rounds = len(values_of(found, f"{n} ranks, 8 sequences"))
    print(f"{found['description']}; layers {found['cut']}; {rounds} rounds, tok/s: median, lowest "
          "and highest\n")
    print(f"| | one rank, {found['cores']} processors | {n} ranks with {found['cores']} each | "
          f"ratio of medians, of pairs | one rank, {n * found['cores']} processors |")
    print("|---|---|---|---|---|")
    for what in ("prompt", "8 sequences", "one answer"):
        alone, apart = (values_of(found, f"{where}, {what}") for where in
                        ("one rank", f"{n} ranks"))
        ratios = sorted(b / a for a, b in zip(alone, apart))
        told = f"{statistics.median(apart) / statistics.median(alone):.2f} ({ratios[0]:.2f} to " \
               f"{ratios[-1]:.2f})" if ratios else "not measured"
        print(f"| {what} | {text_of(alone)} | {text_of(apart)} | {told} | "
              f"{text_of(values_of(found, f'one rank, all processors, {what}'))} |")
    for rows in PIECES:
        values = values_of(found, f"{n} ranks, prompt, pieces of {rows}")
        print(f"| prompt, pieces of {rows} | | {text_of(values)} | | |")
    speeds = [values_of(found, f"{where}, prompt", "memory_read_gb_per_s") for where in
              ("one rank", "one rank, all processors")]
    if all(speeds): # everything is in memory
        one, several = bytes_of_step(found)
        shared = statistics.median(speeds[1]) / statistics.median(speeds[0]) * one / several
        print(f"\nA token of each of 8 sequences reads {one / 1e9:.2f} GB on one rank, "
              f"{several / 1e9:.2f} GB on {n}. Where memory binds, {shared:.2f}x at most with the "
              f"memory of this machine, {n * one / several:.2f}x with one for each rank")
    for where in ("one rank, prompt", "one rank, all processors, prompt"):
        speeds = values_of(found, where, "memory_read_gb_per_s")
        if speeds:
            print(f"\nmemory read by {where[:-8]}: {statistics.median(speeds):.1f} GB/s", end="")
    print()
    hashes = {step["logits_hash"] for step in found["steps"] if "8 sequences" in step["name"]}
    if len(hashes) > 1:
        sys.exit(f"8 sequences have {len(hashes)} different hashes")


# ---- all of it


def place_of(options, n_bytes):
    """Where the model is made: memory, if half of it stays free."""
    if options.work is not None:
        return options.work
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    return "/dev/shm" if free > 3 * n_bytes else os.path.dirname(options.json)


def measure(options):
    n = options.ranks * options.cores
    if len(os.sched_getaffinity(0)) < n:
        sys.exit(f"cluster_cores.py: {n} processors are needed, and this process may use "
                 f"{len(os.sched_getaffinity(0))}")
    if not os.access(os.path.join(options.kit, "ranks"), os.X_OK):
        sys.exit(f"cluster_cores.py: '{options.kit}' is no folder of mpi_kit.sh: it has no 'ranks'")
    m = Measuring(options, None)
    own = sorted(os.sched_getaffinity(0))
    half, m.found["loops_beside_first"] = other_half(own)
    m.found["processors"] = in_order(own, half, n)
    print(f"processor {own[0]} shares its core with {half}; order {m.found['processors']}",
          file=sys.stderr)
    shape = [options.shape, "model.fmoe", *options.synth.split()]
    size = json.loads(m.program("synth", *shape, "--dry-run", "--json"))
    with tempfile.TemporaryDirectory(prefix="cluster-cores-",
                                     dir=place_of(options, size["file_bytes"])) as w:
        m.model = os.path.join(w, "model.fmoe")
        begin = time.monotonic()
        m.program("synth", options.shape, m.model, *options.synth.split(), "--quiet")
        print(f"synth: {time.monotonic() - begin:.1f} s in {w}", file=sys.stderr, flush=True)
        m.found["description"] = f"{options.shape} {options.synth}" + (
            f", {options.memory} for each rank" if options.memory else "")
        m.found["model"] = {key: value for key, value in size.items() if "bytes" in key}
        told = json.loads(m.program("inspect", m.model, "--json"))
        m.found["model"] |= {key: told[key] for key in ("n_layers", "n_experts",
                                                        "n_experts_per_token")}
        for i in range(options.rounds):
            print(f"round {i + 1}, {m.end - time.monotonic():.0f} s left", file=sys.stderr)
            if not one_round(m, i == 0):
                break
    return m.found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kit", nargs="?", type=os.path.abspath)
    parser.add_argument("--json", type=os.path.abspath)
    parser.add_argument("--show", help="print the table of such a file, and measure nothing")
    for name, value in (("ranks", 4), ("cores", 4), ("seconds", 180), ("rounds", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--work")
    parser.add_argument("--memory", help="budget of each rank, as for flashmoe")
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--synth", default=SYNTH, help="options of 'flashmoe synth', one word")
    options = parser.parse_args()
    options.begin = time.monotonic()
    if options.show is not None:
        show(json.loads(pathlib.Path(options.show).read_text("utf-8")))
        return
    if options.kit is None or options.json is None:
        parser.error("KIT and --json FILE are needed")
    show(measure(options))


if __name__ == "__main__":
    main()
