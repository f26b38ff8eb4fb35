#!/usr/bin/env python3
"""Measures a model on several machines, which are network namespaces of this one.

usage: cluster_net.py FLASHMOE RELAY MODEL.fmoe [--networks 1g,10g,wifi] [--ranks 2,4] [--repeat 2]
                      [--share 4] [--tokens 64] [--prompt 256] [--rings 150] [--json FILE]
                      [--llama BUILD --gguf MODEL.gguf]

Needs root, ip, nsenter, unshare and mpirun. RELAY is build/tests/cluster/net_relay, the
network between the namespaces (tests/cluster/net.py has its bandwidths and latencies). The model is
one of synthetic weights, for instance
    flashmoe synth coder-next MODEL.fmoe --layers 8 --experts 128 --vocab 16384
Each rank has 1/--share of the model's size as its budget, its own memory cgroup with 96 MB more,
for mpirun, and one thread. Routes are generated (--routes gen). A run is
    flashmoe run MODEL -p PROMPT -n TOKENS --routes gen --json
and gives decode, prefill, hit rate and what each rank did. Measured are
    1 rank        one process with the memory of one rank
    N ranks       over each network
    N x cache     one process with as many slots for experts as the N ranks have together
In turns, --repeat rounds; medians are printed with the lowest and the highest.

"of the limit" compares a token's time with what stage times and hops allow: the time in which a
rank computed or waited for its disk, and for each hop what plain TCP connections between the same
namespaces take right after the run, with messages of a token's size and pauses as long as the
stages (tests/cluster/net_ring.py). So a network that loses packets is measured with what TCP needs
to send them again. "by arithmetic" the hop is the latency and 4 * hidden bytes / bandwidth: what is
missing there are lost packets, messages in both kernels, and threads that wake up. Times of the
prompt's messages, which are larger, are taken off: the same command is run with one token, too.

With --llama, llama.cpp's RPC in the same namespaces: rpc-server with one thread on all machines but
the first, llama-bench there. Its servers hold their layers in memory, so they have no cgroup. To
build it, see compare_llama.py; add -DGGML_RPC=ON and the target ggml-rpc-server. Load time is that
of the whole command with one token, for both.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent / "stream")]
import cgroup # noqa: E402
import net # noqa: E402

GROUP_MORE = 96 << 20
HEAD_BYTES = 128 # of a message, around the row of a token
PORT = 50052


def bytes_of(model):
    path = pathlib.Path(model)
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


def words_of(memory, n_tokens, n_prompt):
    return [ARGS.flashmoe, "run", ARGS.model, "-p", "a" * n_prompt, "--raw", "--temp", "0", "-n",
            str(n_tokens), "--memory", str(memory), "--threads", "1", "--context", "1024",
            "--prefill-chunk", "32", "--no-heat", "--io", "direct", "--routes", "gen", "--gpu",
            "off", "--json", "--quiet"]


def run(words, enter):
    """Runs a command cold. Returns its output and the seconds it took."""
    cgroup.drop_page_cache()
    begin = time.monotonic()
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          preexec_fn=enter, check=False)
    took = time.monotonic() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
    return done.stdout, took


def answer(words, enter):
    return json.loads(run(words, enter)[0].strip().splitlines()[-1])


def alone(memory):
    """One process in a cgroup of its own."""
    group = cgroup.open_group()
    group.limit(memory + GROUP_MORE)
    try:
        def enter():
            (group.path / "cgroup.procs").write_text("0", "ascii")
        load = run(words_of(memory, 1, 1), enter)[1]
        return dict(answer(words_of(memory, ARGS.tokens, ARGS.prompt), enter), load_s=load)
    finally:
        group.remove()


def on_ranks(n_ranks, network, memory):
    with tempfile.TemporaryDirectory() as folder:
        there = net.Net(ARGS.relay, n_ranks, network, folder, [memory + GROUP_MORE] * n_ranks)
        try:
            start = [*there.mpirun(), "-n", str(n_ranks)]
            load = run([*start, *words_of(memory, 1, 1)], there.enter)[1]
            found = answer([*start, *words_of(memory, ARGS.tokens, ARGS.prompt)], there.enter)
            found["load_s"] = load
            found["prompt"] = answer([*start, *words_of(memory, 1, ARGS.prompt)], there.enter)
            found["tcp_hop_s"] = tcp_hop(there, found, n_ranks)
            found["ping_us"] = there.ping_us(1)
            found["ping_row_us"] = there.ping_us(1, 4 * ARGS.hidden)
            return found
        finally:
            there.close()


def stages_of(found):
    """Seconds of a token in each rank's stage but the first, without the prompt."""
    ends = zip(found["ranks"][1:], found["prompt"]["ranks"][1:])
    return [max(0, (a["busy_s"] - b["busy_s"]) / (a["messages"] - b["messages"])) for a, b in ends]


def tcp_hop(there, found, n_ranks):
    """What a hop of plain TCP takes on average, with the pauses of these stages."""
    others = stages_of(found)
    first = 1 / found["tok_per_s"] - sum(others) - network_of(found)
    times = there.ring_s(4 * ARGS.hidden + HEAD_BYTES, [max(0, first), *others], ARGS.rings)
    return statistics.mean(times[5:]) / n_ranks


def network_of(found):
    """Seconds that a token was in the network. Only passes that were under way alone count: those
    of the answer are."""
    all_s, prompt_s = (f["ranks"][0]["network_s"] for f in (found, found["prompt"]))
    all_n, prompt_n = (f["ranks"][0]["lone_passes"] for f in (found, found["prompt"]))
    return (all_s - prompt_s) / max(1, all_n - prompt_n)


def limit_of(found, n_ranks, network):
    """Returns the time of a token in the network, of a hop by arithmetic, and the shares of the
    limit that decode reaches: with hops of plain TCP, and by arithmetic."""
    rate, delay, jitter, _, _ = net.NETWORKS[network]
    hop_s = (delay + jitter / 2) * 1e-6 + 4 * ARGS.hidden * 8 / (rate * 1e6)
    network_s = network_of(found)
    token_s = 1 / found["tok_per_s"]
    return (network_s, hop_s, *((token_s - network_s + n_ranks * hop) / token_s
                                for hop in (found["tcp_hop_s"], hop_s)))


def show(values, form):
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def numbers(rounds):
    """A line of what all kinds of runs have."""
    return (f"decode {show([f['tok_per_s'] for f in rounds], '{:.2f}'.format)} tok/s, prefill "
            f"{show([f['prefill_tok_per_s'] for f in rounds], '{:.1f}'.format)} tok/s, load "
            f"{show([f['load_s'] for f in rounds], '{:.1f}'.format)} s, hits "
            f"{show([100 * f['hit_rate'] for f in rounds], '{:.1f}'.format)} %, "
            f"{rounds[0]['n_cache_slots']} slots")


def measure_ours(memory):
    networks, counts = ARGS.networks.split(","), [int(n) for n in ARGS.ranks.split(",")]
    found = {}
    for _ in range(ARGS.repeat):
        found.setdefault("1 rank", []).append(alone(memory))
        one = found["1 rank"][0]
        for n in counts:
            for network in networks:
                key = f"{n} ranks, {network}"
                found.setdefault(key, []).append(on_ranks(n, network, memory))
                print(f"    {key}: {found[key][-1]['tok_per_s']:.2f} tok/s", flush=True)
            more = found[f"{n} ranks, {networks[0]}"][0]["n_cache_slots"] - one["n_cache_slots"]
            found.setdefault(f"{n} x cache", []).append(alone(memory + more * ARGS.expert_bytes))
    for key, rounds in found.items():
        print(f"{key}: {numbers(rounds)}")
        if "ranks," not in key:
            continue
        n, network = int(key.split()[0]), key.split()[-1]
        limits = [limit_of(f, n, network) for f in rounds]
        print(f"    {show([100 * l[2] for l in limits], '{:.0f}'.format)} % of the limit, "
              f"{show([100 * l[3] for l in limits], '{:.0f}'.format)} % by arithmetic; a hop "
              f"takes {show([1e6 * l[0] / n for l in limits], '{:.0f}'.format)} us, of plain TCP "
              f"{show([1e6 * f['tcp_hop_s'] for f in rounds], '{:.0f}'.format)} us, by arithmetic "
              f"{1e6 * limits[0][1]:.0f} us; ping "
              f"{show([f['ping_us'] / 2 for f in rounds], '{:.0f}'.format)} us one way, with a row "
              f"{show([f['ping_row_us'] / 2 for f in rounds], '{:.0f}'.format)} us")
    return found


def bench_llama(there, n_hosts, *test):
    servers = ",".join(f"{there.subnet}.{i + 1}:{PORT}" for i in range(1, n_hosts))
    out, took = run([os.path.join(ARGS.llama, "bin/llama-bench"), "-m", ARGS.gguf, "--rpc",
                     servers, "-ngl", "99", "-t", "1", "-r", "1", "-o", "json", *test], None)
    return json.loads(out), took


def measure_llama():
    for network in ARGS.networks.split(","):
        for n in (int(n) for n in ARGS.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                there = net.Net(ARGS.relay, n, network, folder)
                servers = [subprocess.Popen(
                    ["nsenter", f"--net=/run/netns/{space}",
                     os.path.join(ARGS.llama, "bin/ggml-rpc-server"), "-H",
                     f"{there.subnet}.{i + 2}", "-p", str(PORT), "-t", "1"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    for i, space in enumerate(there.spaces)]
                try:
                    time.sleep(1)
                    _, load_s = bench_llama(there, n, "-p", "0", "-n", "1")
                    told, _ = bench_llama(there, n, "-p", str(ARGS.prompt), "-n",
                                          str(ARGS.tokens))
                    prefill, decode = (t["avg_ts"] for t in told)
                    print(f"llama.cpp, {n} machines, {network}: decode {decode:.2f} tok/s, "
                          f"prefill {prefill:.1f} tok/s, load {load_s:.1f} s", flush=True)
                finally:
                    for server in servers:
                        server.kill()
                        server.wait()
                    there.close()


def main():
    why = net.missing()
    if why is not None:
        sys.exit(f"cluster_net.py: {why}")
    size = bytes_of(ARGS.model)
    told = json.loads(subprocess.run([ARGS.flashmoe, "inspect", ARGS.model, "--json"], check=True,
                                     capture_output=True, text=True).stdout)
    ARGS.hidden = told["hidden"]
    ARGS.expert_bytes = told["expert_bytes"]
    memory = size // ARGS.share
    print(f"{size / 1e9:.2f} GB, {memory / 1e6:.0f} MB for each rank, hidden size {ARGS.hidden}")
    found = measure_ours(memory) if ARGS.repeat > 0 else {}
    if ARGS.json is not None:
        pathlib.Path(ARGS.json).write_text(json.dumps(found, indent=1), "utf-8")
    if ARGS.llama is not None:
        measure_llama()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A model on several machines")
    for operand in ("flashmoe", "relay", "model"):
        parser.add_argument(operand)
    parser.add_argument("--networks", default="1g,10g,wifi")
    parser.add_argument("--ranks", default="2,4")
    for name, value in (("repeat", 2), ("share", 4), ("tokens", 64), ("prompt", 256),
                        ("rings", 150)):
        parser.add_argument("--" + name, type=int, default=value)
    for name in ("json", "llama", "gguf"):
        parser.add_argument("--" + name)
    ARGS = parser.parse_args()
    main()
