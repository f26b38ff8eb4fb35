#!/usr/bin/env python3
"""Routing that takes the place of the routers'.

usage: routes_test.py {references,replay,same_bits} FLASHMOE GOLDENS TRACES

references  the frozen numbers of the real traces are what the program measures from them; 77
            (skipped) when TRACES does not hold them
replay      a recording of a run, replayed, gives the same text and logits; a recording of a
            replayed trace has the trace's experts
same_bits   with --routes the logits depend on nothing but the routes, and every output says that
            they are in use
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

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
    """A run without a tokenizer in the way: bench decode needs none."""
    return json.loads(flashmoe(program, "bench", "decode", model, "--repeat", "1", "--tokens", "24",
                               "--json", "--quiet", *args).stdout)


def experts_of(path):
    """{(step, layer): set of experts} of a recording."""
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


def main():
    part, program, goldens, traces = sys.argv[1:]
    globals()[part](program, pathlib.Path(goldens), pathlib.Path(traces))


if __name__ == "__main__":
    main()
