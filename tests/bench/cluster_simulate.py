#!/usr/bin/env python3
"""Simulates a model on up to 64 machines, and compares the simulation with measured ranks.

usage: cluster_simulate.py table PROGRAM [--machine FILE] [--svg FILE] [--json FILE]
       cluster_simulate.py calibrate PROGRAM [--rounds N] [--ranks N,...] [--json FILE]
       cluster_simulate.py calibrate --from FILE

table: for models of 397B and 1T parameters, of which only the headers are made, 'flashmoe cluster
plan' divides the layers among equal machines and gives the time of every stage and the size of the
messages. The numbers of the machine are measured ones: 'flashmoe cluster probe --json' prints such
a file. Then tokens of one or several answers pass the stages and the links, event by event. The
misses of a stage vary from token to token, as many as independent choices would. A stage reads and
computes one after the other; it computes one token at a time; hops add the latency, and the
messages of a link follow each other. Prints a table and draws a plot. It is a simulation.

calibrate: measures each layer of a model on one rank (bench decode --profile), and the hops between
ranks of this machine (cluster probe); predicts what 2 and 4 ranks reach, with the same simulation;
and measures that (bench decode, bench batch under mpirun), in turns. One thread per rank. With
--from, it takes all of this from a file of cluster_cores.py, whose ranks have several processors.
Where all ranks compute at the same time they share the machine's memory, so several sequences are
predicted from layers that were measured beside other processes. What a pass of one rank takes
beyond its layers is divided among the stages, and a hop is what it took in an answer, since a rank
that waits for long sleeps between its looks at the network.
"""
import argparse
import heapq
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

MODELS = {"397B": "397b", "1T": "kimi-k2"}
FORMATS = ["--dense-format", "affine4-g64", "--embed-format", "affine4-g64", "--head-format",
           "affine4-g64"]
# Two cores and an NVMe disk as docs/BENCHMARKS.md measures them; 28 GiB of 32 for the rank.
MACHINE = {"memory_bytes": 28 << 30, "memory_bytes_per_s": 24e9, "disk_bytes_per_s": 2.5e9}
NETWORKS = {"1 Gbit/s, 0.2 ms": (125e6, 2e-4), "10 Gbit/s, 0.05 ms": (1.25e9, 5e-5),
            "wifi: 100 Mbit/s, 3 ms": (12.5e6, 3e-3)}
TOKENS = 400  # per answer


# ---- the simulation ------------------------------------------------------------------------------


class Stage:
    """One rank: seconds of a token without misses, and of all its misses on average."""

    def __init__(self, compute_s, read_s=0.0, n_uses=0, hit_rate=1.0):
        self.compute_s, self.read_s = compute_s, read_s
        self.n_uses, self.hit_rate = n_uses, hit_rate

    def seconds(self, rng):
        expected = self.n_uses * (1 - self.hit_rate)
        if self.read_s <= 0 or expected <= 0:
            return self.compute_s
        # As many misses as independent choices would have.
        spread = math.sqrt(expected * self.hit_rate)
        misses = max(0.0, rng.gauss(expected, spread))
        return self.compute_s + self.read_s * misses / expected


def simulate(stages, hops, n_answers, n_tokens=TOKENS, seed=1):
    """Tokens per second of all answers together. hops: (latency, seconds on the wire) behind each
    stage; the last one leads back to the first."""
    rng = random.Random(seed)
    free_s = [0.0] * len(stages)   # when a stage can begin with the next token
    link_s = [0.0] * len(stages)
    events = [(0.0, answer, answer, 0) for answer in range(n_answers)]
    heapq.heapify(events)
    order = n_answers
    left = [n_tokens] * n_answers
    warm = n_answers * n_tokens // 10
    done, begin, end = 0, 0.0, 0.0
    while events:
        now, _, answer, at = heapq.heappop(events)
        if at == len(stages):      # its token is back at the first rank
            done += 1
            if done == warm:
                begin = now
            end = now
            left[answer] -= 1
            if left[answer] == 0:
                continue
            at = 0
        start = max(now, free_s[at])
        free_s[at] = start + stages[at].seconds(rng)
        arrival = free_s[at]
        if len(stages) > 1:
            latency, wire = hops[at]
            link_s[at] = max(free_s[at], link_s[at]) + wire
            arrival = link_s[at] + latency
        heapq.heappush(events, (arrival, order, answer, at + 1))
        order += 1
    return (done - warm) / (end - begin)


# ---- the table -----------------------------------------------------------------------------------


def run(words, **more):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def plan(program, model, machine, n, work):
    path = pathlib.Path(work) / "machines.json"
    path.write_text(json.dumps({"machines": [machine] * n}), encoding="utf-8")
    return json.loads(run([program, "cluster", "plan", model, "--machines", path, "--json",
                           "--quiet"]))


def stages_of(found, n_used, n_dense):
    """The stages of a plan. The first n_dense layers of the model have no routed experts."""
    stages = []
    for s in found["stages"]:
        n_moe = s["n_layers"] - max(0, min(n_dense - s["first_layer"], s["n_layers"]))
        stages.append(Stage(s["ram_s"], s["io_s"], n_moe * n_used, s["hit_rate"]))
    return stages


def rows_of(program, name, model, machine, work):
    info = json.loads(run([program, "inspect", model, "--json"]))
    n_layers, n_used = info["n_layers"], info["n_experts_per_token"]
    n_dense = n_layers - info["n_moe_layers"]
    counts = [n for n in (1, 2, 4, 8, 16, 32) if n < n_layers] + [min(64, n_layers)]
    rows = []
    for n in counts:
        found = plan(program, model, machine, n, work)
        stages = stages_of(found, n_used, n_dense)
        for network, (rate, latency) in NETWORKS.items():
            hops = [(latency, found["message_bytes"] / rate)] * n
            rows.append({
                "model": name, "network": network, "ranks": n, "layers": found["layers"],
                "hit_rate": statistics.mean(s["hit_rate"] for s in found["stages"]),
                "message_bytes": found["message_bytes"],
                "stages_ms": sum(s["max_s"] for s in found["stages"]) * 1e3,
                "hops_ms": sum(map(sum, hops)) * 1e3 if n > 1 else 0,
                "one": simulate(stages, hops, 1),
                "many": simulate(stages, hops, 2 * n, max(40, TOKENS // n)),
                "bound": found["pipelined_tok_per_s_min"]})
            print(f"{name}, {network}, {n} ranks: {rows[-1]['one']:.2f} tok/s, "
                  f"{rows[-1]['many']:.2f} together", file=sys.stderr)
    return rows


def print_table(rows):
    for name in dict.fromkeys(row["model"] for row in rows):
        print(f"\n| {name}: ranks | hit rate | " + " | ".join(NETWORKS) + " |")
        print("|---|---|" + "---|" * len(NETWORKS))
        own = [row for row in rows if row["model"] == name]
        for n in dict.fromkeys(row["ranks"] for row in own):
            these = [row for row in own if row["ranks"] == n]
            cells = [f"{row['one']:.2f}; {row['many']:.1f}" for row in these]
            print(f"| {n} | {100 * these[0]['hit_rate']:.1f} % | " + " | ".join(cells) + " |")
    sizes = sorted({(row["model"], row["message_bytes"]) for row in rows})
    print("\nA cell: tok/s of one answer; of two answers per rank together. Bytes of a message: "
          + ", ".join(f"{name} {size:,}" for name, size in sizes) + ". Simulated.")


# ---- the plot ------------------------------------------------------------------------------------

COLORS = ["#1c7f78", "#b4540a", "#5b4bb7"]


def draw(rows, path):
    width, height, left, top, gap = 460, 330, 62, 46, 40
    names = list(dict.fromkeys(row["model"] for row in rows))
    values = [row[key] for row in rows for key in ("one", "many")]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(names) * (width + gap)} '
           f'{height + 120}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#ffffff"/>']

    def place(i, ranks, value):
        x = left + i * (width + gap) + (width - left - 12) * math.log2(ranks) / 6
        y = top + height - (height - 20) * (math.log10(value) - low) / (high - low)
        return x, y

    for i, name in enumerate(names):
        x0, x1 = place(i, 1, 1)[0], place(i, 64, 1)[0]
        out.append(f'<text x="{x0}" y="24" font-size="14" font-weight="600">{name}, simulated: '
                   f'tok/s by ranks</text>')
        for power in range(low, high + 1):
            y = place(i, 1, 10 ** power)[1]
            out.append(f'<path d="M{x0:.1f} {y:.1f}H{x1:.1f}" stroke="#dddddd"/>'
                       f'<text x="{x0 - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">'
                       f'{10 ** power:g}</text>')
        for n in (1, 2, 4, 8, 16, 32, 64):
            x = place(i, n, 1)[0]
            out.append(f'<text x="{x:.1f}" y="{top + height + 20}" text-anchor="middle">{n}</text>')
        for network, color in zip(NETWORKS, COLORS):
            own = [row for row in rows if row["model"] == name and row["network"] == network]
            for key, dash in (("one", ""), ("many", ' stroke-dasharray="5 4"')):
                at = [place(i, row["ranks"], row[key]) for row in own]
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
                out.append(f'<polyline points="{line}" fill="none" stroke="{color}" '
                           f'stroke-width="1.8"{dash}/>')
                out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>'
                           for x, y in at)
    for k, (network, color) in enumerate(zip(NETWORKS, COLORS)):
        x = left + k * 210
        out.append(f'<path d="M{x} {height + 88}h26" stroke="{color}" stroke-width="2"/>'
                   f'<text x="{x + 32}" y="{height + 92}">{network}</text>')
    out.append(f'<text x="{left}" y="{height + 112}" fill="#555555">solid: one answer; dashed: two '
               'answers per rank, all together. A simulation from measured speeds.</text></svg>')
    pathlib.Path(path).write_text("\n".join(out) + "\n", encoding="utf-8")


def table(options):
    machine = MACHINE
    if options.machine:
        machine = json.loads(pathlib.Path(options.machine).read_text("utf-8"))["machines"][0]
    rows = []
    with tempfile.TemporaryDirectory(prefix="cluster-simulate-") as work:
        for name, shape in MODELS.items():
            model = os.path.join(work, shape)
            run([options.program, "synth", shape, model, "--form", "packed", "--headers-only",
                 "--quiet", *FORMATS])
            rows += rows_of(options.program, name, model, machine, work)
    print_table(rows)
    if options.svg:
        draw(rows, options.svg)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"machine": machine, "rows": rows},
                                                         indent=1), encoding="utf-8")


# ---- the calibration -----------------------------------------------------------------------------

OWN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
BENCH = ["--threads", "1", "--no-heat", "--json", "--quiet", "--tokens", "24", "--repeat", "2"]


def ranked(n, *words):
    return run(["mpirun", "-n", str(n), *words], env=dict(os.environ, **OWN))


def layer_times(program, model, work):
    """Median seconds of each layer on one rank; the last one is the head."""
    path = os.path.join(work, "profile.json")
    if os.path.exists(path):
        os.unlink(path)
    run([program, "bench", "decode", model, *BENCH, "--profile", path])
    with open(path, encoding="utf-8") as f:
        rows = [row for row in json.load(f)["rows"] if row["n_tokens"] == 1]
    times = {}
    for row in rows:
        ns = row["mix_ns"] + row["route_ns"] + row["wait_ns"] + row["compute_ns"]
        times.setdefault(row["layer"], []).append(ns / 1e9)
    return [statistics.median(times[layer]) for layer in sorted(times)]


def predict(times, cut, hop_s, n_answers):
    stages, first = [], 0
    for rank, n in enumerate(cut):
        own = sum(times[first:first + n]) + (times[-1] if rank == 0 else 0)
        stages.append(Stage(own))
        first += n
    return simulate(stages, [(hop_s, 0.0)] * len(cut), n_answers)


def even_cut(n_layers, n):
    return [n_layers * (i + 1) // n - n_layers * i // n for i in range(n)]


def measure_round(options, model, counts, work, found):
    """Measures one rank, the hops, and the ranks, one after the other."""
    times = layer_times(options.program, model, work)
    n_layers = len(times) - 1
    alone = json.loads(run([options.program, "bench", "decode", model, *BENCH]))["tok_per_s"]
    found.setdefault("1 rank", []).append((predict(times, [n_layers], 0, 1), alone))
    for n in counts:
        cut = even_cut(n_layers, n)
        layers = ["--layers", ",".join(map(str, cut))]
        probe = json.loads(ranked(n, options.program, "cluster", "probe", model, "--threads", "1",
                                  "--json", "--quiet"))
        hop_s = statistics.mean(m["message_s"] for m in probe["machines"])
        one = json.loads(ranked(n, options.program, "bench", "decode", model, *BENCH, *layers))
        found.setdefault(f"{n} ranks", []).append((predict(times, cut, hop_s, 1),
                                                   one["tok_per_s"]))
        found.setdefault(f"hop of {n} ranks, ms", []).append((hop_s * 1e3, hop_s * 1e3))
        if n <= (os.cpu_count() or 1):
            many = json.loads(ranked(n, options.program, "bench", "batch", model, *BENCH, *layers,
                                     "--sequences", str(n)))
            found.setdefault(f"{n} ranks, {n} sequences", []).append(
                (predict(times, cut, hop_s, n), many["tok_per_s"]))


def print_pairs(found):
    print("| | predicted tok/s | measured tok/s | measured / predicted |")
    print("|---|---|---|---|")
    for what, pairs in found.items():
        if what.startswith("hop"):
            continue
        ratio = sorted(measured / expected for expected, measured in pairs)
        print(f"| {what} | {statistics.median(p for p, _ in pairs):.2f} | "
              f"{statistics.median(m for _, m in pairs):.2f} | "
              f"{statistics.median(ratio):.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f}) |")
    for what, pairs in found.items():
        if what.startswith("hop") and pairs:
            print(f"\n{what}: {statistics.median(p for p, _ in pairs):.3f} "
                  f"({min(pairs)[0]:.3f} to {max(pairs)[0]:.3f})")


def pairs_from(kept):
    """The same of a file of cluster_cores.py: what was predicted and measured, by round."""
    n, cut = kept["ranks"], kept["cut"]
    layers = [step for step in kept["steps"] if step["name"].startswith("layers")]
    if any("pass_s" not in step for step in layers) or (kept["steps"] and not layers):
        sys.exit("cluster_simulate.py: the file has no times of layers that this version knows: "
                 "measure again with cluster_cores.py, and without --memory")
    rounds = {}
    for step in kept["steps"]:
        rounds.setdefault(step["name"], []).append(step)
    found = {}

    answers = rounds.get(f"{n} ranks, one answer", ())

    def compare(what, measured, layers, predicted):
        for i, step in enumerate(rounds.get(measured, ())):
            if i < len(answers):
                own = rounds[f"layers, {layers}"][i]
                beyond = own["pass_s"] / sum(own["layers_s"])
                times = [beyond * s for s in own["layers_s"]]
                found.setdefault(what, []).append(
                    (own["rows"] * predicted(times, answers[i]["hop_s"]), step["tok_per_s"]))

    compare("1 rank, measured again", "one rank, one answer", "alone",
            lambda times, hop: predict(times, [len(times) - 1], 0, 1))
    compare(f"{n} ranks", f"{n} ranks, one answer", "alone",
            lambda times, hop: predict(times, cut, hop, 1))
    compare(f"{n} ranks, {n} sequences", f"{n} ranks, {n} sequences", "one row beside others",
            lambda times, hop: predict(times, cut, hop, n))
    compare(f"{n} ranks, 8 sequences in {n} groups", f"{n} ranks, 8 sequences",
            "in a group beside others", lambda times, hop: predict(times, cut, hop, n))
    found[f"hop of {n} ranks, ms"] = [(1e3 * step["hop_s"],) * 2 for step in rounds.get("hops", ())]
    found["hop in an answer, ms"] = [(1e3 * step["hop_s"],) * 2
                                     for step in answers]
    return found


def calibrate(options):
    if options.of is not None:
        kept = json.loads(pathlib.Path(options.of).read_text("utf-8"))
        print_pairs(pairs_from(kept))
        return
    counts = [int(n) for n in options.ranks.split(",")]
    found = {}
    with tempfile.TemporaryDirectory(prefix="cluster-simulate-", dir=options.work) as work:
        model = os.path.join(work, "model")
        run([options.program, "synth", "30b-a3b", model, "--form", "packed", "--layers", "8",
             "--experts", "24", "--vocab", "8192", "--quiet"])
        for i in range(options.rounds):
            print(f"round {i + 1}", file=sys.stderr)
            measure_round(options, model, counts, work, found)
    print_pairs(found)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("mode", choices=("table", "calibrate"))
    parser.add_argument("program", type=os.path.abspath, nargs="?")
    parser.add_argument("--machine", help="JSON of 'flashmoe cluster probe'; its first machine")
    parser.add_argument("--svg")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--work", help="where the model of the calibration is made")
    parser.add_argument("--from", dest="of", help="a file of cluster_cores.py: calibrate with it")
    options = parser.parse_args()
    if options.program is None and (options.mode == "table" or options.of is None):
        parser.error("PROGRAM is missing")
    return table(options) if options.mode == "table" else calibrate(options)


if __name__ == "__main__":
    sys.exit(main())
