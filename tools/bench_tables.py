#!/usr/bin/env python3
"""Writes the tables of docs/BENCHMARKS.md that come from `flashmoe bench all`.

usage: bench_tables.py write [--root DIR]
       bench_tables.py check [--root DIR]

The results are docs/benchmarks/*.json, as the command wrote them (bench.json). In the page, a
table stands between two lines:

    <!-- bench all: NAME.json -->
    <!-- end of NAME.json -->

A list of regimes behind the name takes these alone (`NAME.json decode,stream`). `check` fails if a
table is not what its file gives, if a file has no table, or if a table has no file.
"""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN = re.compile(r"^<!-- bench all: (\S+\.json)((?: [a-z,-]+)?) -->$")
END = "<!-- end of {} -->"
REPORT = "flashmoe bench all"


class Wrong(Exception):
    pass


def figure(x):
    """Three digits, or all digits before the point, as the command prints them."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def spread(s):
    if s is None:
        return "-"
    if s["n"] == 1:
        return figure(s["median"])
    return f"{figure(s['median'])} ({figure(s['min'])} to {figure(s['max'])})"


def gib(n):
    return f"{n / 2**30:.1f} GiB"


def rate(s):
    if s is None:
        return "not measured"
    return (f"{s['median'] / 1e9:.1f} GB/s ({s['min'] / 1e9:.1f} to {s['max'] / 1e9:.1f})")


def facts(result):
    """One paragraph: the model, the machine, how often, and whether the machine was quiet."""
    model, machine, quiet = result["model"], result["machine"], result["machine"]["quiet"]
    lines = [
        f"`{model['name']}`: {model['container']}, {model['architecture']}, {model['n_layers']} "
        f"layers of {model['n_experts']} experts, {model['formats']}; dense "
        f"{gib(model['dense_bytes'])}, experts {gib(model['experts_bytes'])}"
        + (f"; routes `{model['routes']}`" if model["routes"] else "") + ".",
        f"{machine['processor'] or machine['architecture']}, {machine['n_cores']} cores, level "
        f"{machine['cpu_level']}, {gib(machine['memory_bytes'])} of memory; memory read at "
        f"{rate(machine['memory_read_bytes_per_s'])}, disk at "
        f"{rate(machine['disk_read_bytes_per_s'])}"
        + (f"; GPU: {machine['gpu']}" if machine["gpu"] else "") + ".",
        f"{result['version']}, {result['date']}, {result['n_rounds']} rounds"
        + (f" in turns with {result['versus']}" if result["versus"] else "")
        + (", `--quick`" if result["is_quick"] else "") + ".",
    ]
    if quiet["is_quiet"] is not None:
        lines.append(f"The machine was {'quiet' if quiet['is_quiet'] else 'not quiet'} before the "
                     f"first run: others used {quiet['others_cpus']:.2f} processors, "
                     f"{quiet['stolen_cpus']:.2f} were stolen, load {quiet['load']:.2f}.")
    else:
        lines.append("It is not known whether the machine was quiet.")
    return "\n".join(lines)


def extras(one):
    return ", ".join(f"{e['name']} {figure(e['value']['median'])}{' ' if e['unit'] else ''}"
                     f"{e['unit']}" for e in one["extras"] if e["value"] is not None)


def share(one):
    if one["percent"] is not None:
        return f"{one['percent']['median']:.1f} %"
    return "above" if one["n_above_limit"] else "-"


def marks(one):
    said = [f"busy in {one['n_not_quiet']} of {one['n_runs']}"] if one["n_not_quiet"] else []
    if one["n_above_limit"]:
        said.append(f"above the limit in {one['n_above_limit']} of {one['n_runs']}")
    return ", ".join(said)


def rows(result, regime):
    for one in regime["cases"]:
        if one["value"] is None:
            continue
        limit = "-" if one["limit"] is None else figure(one["limit"]["median"])
        cells = [regime["title"], one["label"], f"{spread(one['value'])} {regime['unit']}",
                 limit + (f", {one['bound_by']}" if one["bound_by"] else ""), share(one)]
        if result["versus"]:
            cells.append(spread(one["ratio"]))
        cells.append("; ".join(filter(None, (extras(one), marks(one)))))
        yield "| " + " | ".join(cells) + " |"


def table(result, only):
    """Returns the generated lines of one result."""
    head = ["regime", "case", "reached", "limit", "share of the limit"]
    head += ["over the other version"] if result["versus"] else []
    head.append("beside it")
    names = {regime["name"] for regime in result["regimes"]}
    if only and not set(only) <= names:
        raise Wrong(f"no regime {', '.join(sorted(set(only) - names))}")
    wanted = [r for r in result["regimes"] if not only or r["name"] in only]
    lines = [facts(result), "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for regime in wanted:
        lines += rows(result, regime)
    left = [f"{r['name']} ({r['left_out']})" for r in wanted if r["left_out"]]
    if left:
        lines += ["", "Left out: " + "; ".join(left) + "."]
    return "\n".join(lines).split("\n")


def load(path):
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        raise Wrong(f"{path.name}: {why}") from why
    if not isinstance(result, dict) or result.get("report") != REPORT:
        raise Wrong(f"{path.name} is no result of '{REPORT}'")
    return result


def rewrite(text, folder):
    """Returns the page with its tables replaced, and the names of the files it has tables of."""
    out, used, lines = [], set(), iter(text.split("\n"))
    for line in lines:
        out.append(line)
        found = BEGIN.match(line)
        if not found:
            continue
        name, only = found[1], [word for word in found[2].strip().split(",") if word]
        used.add(name)
        out += ["", *table(load(folder / name), only), ""]
        for line in lines:
            if line == END.format(name):
                break
        else:
            raise Wrong(f"there is no line '{END.format(name)}'")
        out.append(END.format(name))
    return "\n".join(out), used


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    args = parser.parse_args()
    page, folder = args.root / "docs/BENCHMARKS.md", args.root / "docs/benchmarks"
    text = page.read_text(encoding="utf-8")
    try:
        new, used = rewrite(text, folder)
        unused = {path.name for path in folder.glob("*.json")} - used
        if unused:
            raise Wrong(f"docs/BENCHMARKS.md has no table of {', '.join(sorted(unused))}")
        if args.what == "check" and new != text:
            at = next(i for i, (a, b) in enumerate(zip(text.split("\n") + [""],
                                                       new.split("\n") + [""])) if a != b)
            raise Wrong(f"docs/BENCHMARKS.md, line {at + 1} is not what docs/benchmarks gives; "
                        "run tools/bench_tables.py write")
    except Wrong as why:
        sys.exit(f"bench_tables.py: {why}")
    if new != text:
        page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
