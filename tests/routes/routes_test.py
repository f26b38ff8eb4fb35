#!/usr/bin/env python3
"""Tests routing that replaces the routers.

usage: routes_test.py {references,replay,same_bits,policies,tiers,engine} FLASHMOE GOLDENS TRACES

references  the frozen numbers of the real traces are what the program measures from them; 77
            (skipped) when TRACES does not hold them
replay      a recording of a run, replayed, gives the same text and logits; a recording of a
            replayed trace has the trace's experts
same_bits   with --routes the logits depend on nothing but the routes, and every output says that
            they are in use
policies    `bench replay` hits what a cache written anew here hits, on random routes and on TRACES
            where they are; nothing beats Belady; what is no trace is refused
tiers       the same for two tiers of slots, and what moves between them
engine      `bench replay` of a recording counts the hits that the recorded run had
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import replay_model

FAMILIES = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
TRACES = {"Qwen3-30B-A3B": "qwen", "gemma-4-26B-A4B": "gemma", "gpt-oss-120b": "gptoss"}
LABEL = "the text is meaningless, speed only"


def flashmoe(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{args}: status {done.returncode}: {done.stderr}")
    return done


def measure(program, *args):
    return json.loads(flashmoe(program, "bench", "routes", *args, "--json").stdout)


def references(program, _, traces):
    frozen = {r["name"]: r for r in measure(program, "gen")["references"]}
    assert list(frozen) == list(TRACES)
    for name, file in TRACES.items():
        path = traces / f"{file}.route.csv"
        if not path.exists():
            print(f"skipped: there is no {path}")
            sys.exit(77)
        found, want = measure(program, path)["routes"], frozen[name]
        for key, value in want.items():
            if isinstance(value, list):
                digits = 5e-4 if key == "distinct" else 5e-5
                same = all(a is b is None or abs(a - b) <= digits * 1.01
                           for a, b in zip(found[key], value, strict=True))
            else:
                same = key == "name" or found[key] == value
            assert same, f"{name}: {key} is {found[key]}, frozen {value}"
        print(f"{name}: as frozen")


def tokens(program, model, *args):
    """Runs 24 tokens; bench decode would measure the machine every time."""
    return json.loads(flashmoe(program, "run", model, "-p", "Once upon a time", "-n", "24",
                               "--greedy", "--no-heat", "--json", "--quiet", *args).stdout)


def experts_of(path):
    """Returns {(step, layer): set of experts} of a recording."""
    cells = {}
    for line in path.read_text().splitlines():
        if line[0].isdigit():
            _, _, step, layer, _, expert, *_ = line.split(",")
            cells.setdefault((int(step), int(layer)), set()).add(int(expert))
    return cells


def replay(program, goldens, _):
    model = goldens / "qwen3_next"
    with tempfile.TemporaryDirectory() as folder:
        own, again = pathlib.Path(folder, "own.csv"), pathlib.Path(folder, "again.csv")
        run = ("run", model, "-p", "Once upon a time", "-n", "24", "--greedy", "--json")
        plain = json.loads(flashmoe(program, *run).stdout)
        traced = json.loads(flashmoe(program, *run, "--trace", own).stdout)
        replayed = json.loads(flashmoe(program, *run, "--routes", own, "--trace", again,
                                       "--prefill-chunk", "3").stdout)
        for other in (traced, replayed):
            assert (other["logits_hash"], other["tokens"]) == (plain["logits_hash"],
                                                               plain["tokens"])
        assert experts_of(own) == experts_of(again)
        n = plain["n_prompt_tokens"] + plain["n_tokens"] - 1
        config = json.loads((model / "config.json").read_text())
        assert len(experts_of(own)) == n * config["num_hidden_layers"]
        assert all(len(cell) == config["num_experts_per_tok"] for cell in experts_of(own).values())
        assert not os.path.exists(f"{own}.part")
        different = json.loads(flashmoe(program, *run, "--routes", "gen").stdout)
        assert different["logits_hash"] != plain["logits_hash"]
        print(f"{n} tokens recorded and replayed, logits hash {plain['logits_hash']}")
        nll = pathlib.Path(folder, "nll.csv")
        text = pathlib.Path(folder, "text.txt")
        text.write_text("Once upon a time there was a robot. " * 8)
        flashmoe(program, "eval", "nll", model, text, "--window", "16", "--trace", nll)
        turns = {line.split(",")[0] for line in nll.read_text().splitlines() if line[0].isdigit()}
        assert len(turns) > 3, turns
        assert measure(program, nll)["routes"]["n_tokens"] > 48


def same_bits(program, goldens, _):
    trace = goldens.parent / "fuzz" / "corpus" / "routes" / "two-turns.csv"
    for family in FAMILIES:
        for routes in ("gen", "gen:hot=3,topic=5,seed=9", trace):
            model = goldens / family
            ways = ((), ("--threads", "1"), ("--prefill-chunk", "3"), ("--memory", "64M"))
            found = [tokens(program, model, "--routes", routes, *way) for way in ways]
            assert len({f["logits_hash"] for f in found}) == 1, (family, routes)
            assert all(LABEL in f["routes"] for f in found)
            assert found[0]["logits_hash"] != tokens(program, model)["logits_hash"]
            print(f"{family}, {routes}: {found[0]['logits_hash']}")
    model = goldens / "qwen3_next"
    done = flashmoe(program, "run", model, "-p", "Hi", "-n", "4", "--routes", "gen", "--quiet")
    assert LABEL in done.stderr
    done = flashmoe(program, "bench", "decode", model, "--tokens", "4", "--routes", "gen")
    assert LABEL in done.stdout and LABEL in done.stderr


def write_trace(path, tokens, n_experts, n_warm):
    """`tokens` is [token][layer] of distinct experts."""
    n_layers, n_used = len(tokens[0]), len(tokens[0][0])
    lines = ["# route_trace v1",
             f"# model=x arch=x n_layer={n_layers} n_expert={n_experts} n_expert_used={n_used}",
             "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"]
    lines += [f"0,{int(t >= n_warm)},{t},{layer},{slot},{expert},0.5,0,0"
              for t, layers in enumerate(tokens) for layer, experts in enumerate(layers)
              for slot, expert in enumerate(experts)]
    path.write_text("\n".join(lines) + "\n")


def random_routes(seed, n_tokens, n_layers, n_experts, n_used):
    """Popular experts, some repetition, and another subject after two thirds."""
    rng = random.Random(seed)
    tokens, last = [], [[] for _ in range(n_layers)]
    for t in range(n_tokens):
        subject = t >= 2 * n_tokens // 3
        for layer in range(n_layers):
            chosen = {e for e in last[layer] if rng.random() < 0.2}
            while len(chosen) < n_used:
                rank = min(int(rng.paretovariate(0.7)) - 1, n_experts - 1)
                chosen.add((rank * 7 + layer * 3 + 11 * subject) % n_experts)
            last[layer] = sorted(chosen)
        tokens.append([list(experts) for experts in last])
    return tokens


def check_point(name, point, tokens=None, n_warm=0):
    """Compares with the model here if there are tokens, and always with Belady."""
    for policy in replay_model.POLICIES if tokens else ():
        want = replay_model.POLICIES[policy](tokens, n_warm, point["n_slots"])
        found = point["hits"][policy]
        assert abs(found - want) < 1e-6, f"{name}, {point['n_slots']} slots: {policy} hits " \
                                         f"{found}, the model here {want}"
    hits = {policy: value for policy, value in point["hits"].items() if value is not None}
    assert max(hits["layer-lru"], hits["layer-lfu"]) <= hits["layer-belady"] + 1e-9, (name, hits)
    assert max(hits.values()) <= hits["belady"] + 1e-9, (name, hits)
    assert point["hits"]["static"] is None and 0 <= point["late_hits"]["static"] <= 1


def run_replay(program, *args):
    return json.loads(flashmoe(program, "bench", "replay", *args, "--json").stdout)


def refuse_bad_traces(program, folder, good):
    lines = good.read_text().splitlines()
    bad = pathlib.Path(folder, "bad.csv")
    for change in (lambda x: x[1:], lambda x: x[:3], lambda x: x + ["0,1,0,0,0,9999,1,0,0"],
                   lambda x: x + [x[-1]], lambda x: x + ["0,1,0,99,0,1,1,0,0"]):
        bad.write_text("\n".join(change(lines)) + "\n")
        refuse(program, 1, bad)
    raw = pathlib.Path(folder, "bad.u8")
    for content in (b"", bytes(63), bytes(range(8)) * 8 + b"x", bytes(64),
                    (bytes(range(8)) * 8)[:-1] + b"\x40"):
        raw.write_bytes(content)
        refuse(program, 1, raw)
    refuse(program, 1, pathlib.Path(folder, "none.csv"))
    for residency in ("", "0", "101", "12.5,", ",5", "1e1", "nan", "5,,5", "-1", "x",
                      ",".join(["5"] * 17)):
        refuse(program, 2, good, "--residency", residency)
    raw.write_bytes(bytes(range(8)) * 16)
    assert run_replay(program, raw)["n_tokens"] == 2


def refuse(program, status, *args):
    done = subprocess.run([program, "bench", "replay", *map(str, args)], capture_output=True,
                          text=True)
    assert done.returncode == status and done.stdout == "", (args, done)
    assert done.stderr.startswith("flashmoe: ") and done.stderr.count("\n") == 1, done.stderr


def policies(program, _, traces):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "routes.csv")
        for seed, (n_tokens, n_layers, n_experts, n_used, n_warm) in enumerate(
                ((60, 1, 8, 2, 0), (150, 5, 32, 4, 10), (200, 3, 24, 6, 20), (90, 7, 16, 1, 1))):
            tokens = random_routes(seed, n_tokens, n_layers, n_experts, n_used)
            write_trace(path, tokens, n_experts, n_warm)
            found = run_replay(program, path, "--residency", "4,6.25,12.5,20,25,37.5,50,77,100")
            assert found["n_tokens"] == n_tokens - n_warm and found["n_warm"] == n_warm
            for point in found["points"]:
                check_point(f"random {seed}", point, tokens, n_warm)
        print("random routes: as the model here")
        refuse_bad_traces(program, folder, path)
    for file in TRACES.values():
        path = traces / f"{file}.route.csv"
        if not path.exists():
            print(f"there is no {path}")
            continue
        found = run_replay(program, path)
        for point in found["points"]:
            hits = point["hits"]
            check_point(file, point)
            assert hits["lcp"] >= hits["lru"] - 0.005, (file, point["share"], hits)
            if file == "qwen" and point["share"] == 0.125:
                assert hits["lcp"] >= hits["lru"] + 0.02, hits
        if file != "gptoss":
            continue
        tokens, n_warm = read_trace(path)
        for point in found["points"][:3]:
            check_point(file, point, tokens, n_warm)
        print(f"{file}: as the model here")


def tiers(program, _, traces):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "routes.csv")
        for seed, (n_tokens, n_layers, n_experts, n_used, n_warm) in enumerate(
                ((150, 5, 32, 4, 10), (200, 3, 24, 6, 20), (120, 7, 16, 1, 1))):
            tokens = random_routes(seed, n_tokens, n_layers, n_experts, n_used)
            write_trace(path, tokens, n_experts, n_warm)
            check_tiers(program, path, f"random {seed}", tokens, n_warm)
        for text in ("", "5", "5+", "+5", "50+101", "101+5", "5+5,", "0+5", "5+0", "5-5", "5+5+5",
                     "x", ",".join(["5+5"] * 17)):
            refuse(program, 2, path, "--tiers", text)
    path = traces / "gptoss.route.csv"
    if path.exists():
        check_tiers(program, path, "gptoss", *read_trace(path), "12.5+25")


TIERS = "4+13,12.5+12.5,25+50,60+40,25+80,30+100"


def check_tiers(program, path, name, tokens, n_warm, points=TIERS):
    """Compares with the model here; no placement beats one pool of as many slots that knows the
    future."""
    found = run_replay(program, path, "--tiers", points)
    n_measured = len(tokens) - n_warm
    n_uses = n_measured * len(tokens[0]) * len(tokens[0][0])
    moved = 0
    for point in found["points"]:
        for moves, counts in point["moves"].items():
            want = replay_model.tiers(moves, tokens, n_warm, point["n_above"], point["n_below"])
            have = (counts["hits_above"] * n_uses, counts["hits_below"] * n_uses,
                    counts["moved_up_per_token"] * n_measured,
                    counts["moved_down_per_token"] * n_measured)
            assert all(abs(a - b) < 1e-3 for a, b in zip(have, want)), \
                (name, moves, point["n_above"], point["n_below"], have, want)
            moved += want[3]
    assert moved > 0
    print(f"{name}: as the model here, {moved} moves down")


def read_trace(path):
    """Returns [token][layer] of sorted experts and the number of tokens before the first decoded
    one, for one turn. A layer that lacks a token gets the next one's, as the program reads it."""
    cells, first_decoded = {}, None
    for line in path.read_text().splitlines():
        if line[0].isdigit():
            _, phase, step, layer, _, expert, *_ = map(float, line.split(","))
            cells.setdefault((int(step), int(layer)), []).append(int(expert))
            if phase == 1 and (first_decoded is None or step < first_decoded):
                first_decoded = int(step)
    steps = sorted({step for step, _ in cells})
    layers = sorted({layer for _, layer in cells})
    assert steps == list(range(steps[0], steps[-1] + 1))
    tokens = []
    for step in reversed(steps):
        tokens.append([sorted(cells[step, layer]) if (step, layer) in cells else tokens[-1][i]
                       for i, layer in enumerate(layers)])
    return tokens[::-1], first_decoded - steps[0]


def engine(program, goldens, _):
    """One token at a time, as in decode, including the prompt."""
    nano = goldens.parent.parent / "models" / "nano.fmoe"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "own.csv")
        for policy in ("lcp", "lru"):
            for memory in ("44M", "48M", "56M", "64M"):
                run = json.loads(flashmoe(
                    program, "run", nano, "-p", "Once upon a time", "-n", "60", "--greedy",
                    "--json", "--memory", memory, "--no-heat", "--lookahead", "off",
                    "--prefill-chunk", "1", "--policy", policy, "--trace", path).stdout)
                recorded = path.read_text().replace("\n0,0,", "\n0,1,")
                path.write_text(recorded)
                share = 100 * (run["n_cache_slots"] + 0.5) / (8 * 64)
                found = run_replay(program, path, "--residency", f"{min(share, 100):.6f}")
                point = found["points"][0]
                n = found["n_tokens"] * 64
                assert point["n_slots"] == run["n_cache_slots"], (point, run["n_cache_slots"])
                assert n == run["n_expert_hits"] + run["n_expert_misses"]
                assert abs(point["hits"][policy] * n - run["n_expert_hits"]) < 0.01, \
                    (policy, memory, point["hits"][policy] * n, run["n_expert_hits"])
                print(f"{policy}, {point['n_slots']} slots: {run['n_expert_hits']} of {n} hits")


def main():
    part, program, goldens, traces = sys.argv[1:]
    globals()[part](program, pathlib.Path(goldens), pathlib.Path(traces))


if __name__ == "__main__":
    main()
