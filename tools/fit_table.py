#!/usr/bin/env python3
"""Writes the tables of docs/CHOOSE.md, which model fits which machine, and of docs/START.md.

usage: fit_table.py FLASHMOE write
       fit_table.py FLASHMOE check [--few]

Every model is written without weights, in the formats that `flashmoe pull --pack` gives it, and
planned (`flashmoe plan`) for machines of fixed speed and three quarters of their memory, so that
the tables are the same on every machine. `check` fails if a model is on another line than the page
says. A speed that is within 3 % of a limit may be on either side of it. With --few it checks a few
models on one machine.
"""
import concurrent.futures
import pathlib
import sys

sys.dont_write_bytecode = True
import models_table  # pylint: disable=wrong-import-position

PAGE = models_table.ROOT / "docs/CHOOSE.md"
START = models_table.ROOT / "docs/START.md"
MACHINES = (8, 16, 32, 64, 128)  # GB of memory
SHARE = 0.75  # of the memory, for --memory
SPEEDS = ("--disk-speed", "5", "--memory-speed", "60", "--threads", "8", "--context")
CONTEXT = 32768
CONTEXTS = {"OLMoE-1B-7B": 4096, "Qwen1.5-MoE-A2.7B": 8192}  # that have less
FAST, USABLE = 10, 3  # tokens per second
TOLERANCE = models_table.TOLERANCE
WORDS = ("fast", "usable", "slow", "no")
# Coder-Next on 32 GB, by what --dense and --head of `pull --pack` are given.
BITS = (("16 bits, as released (the default)", ("--dense-format", "bf16")),
        ("8 bits", ("--dense-format", "affine8-g64", "--head-format", "affine8-g64",
                    "--embed-format", "bf16")),
        ("4 bits", ()))
FEW, FEW_MACHINE = models_table.FEW, 32


def packed_formats(formats):
    """`pull --pack` turns the experts into 4 bits and keeps the rest."""
    kept = list(formats)
    if "--experts-format" in kept:
        at = kept.index("--experts-format")
        del kept[at:at + 2]
    return kept


def figures(program, model, machines):
    """Returns GB on disk and, for each machine, the lower tokens per second or None."""
    budgets = [int(machine * SHARE) for machine in machines]
    _, on_disk, floor, speeds = models_table.figures_of(
        program, model[2], packed_formats(model[3][1]), budgets,
        (*SPEEDS, str(CONTEXTS.get(model[0], CONTEXT))))
    return on_disk / 1e9, floor / 2 ** 30, [speed and speed[0] for speed in speeds]


def word(speed):
    return "no" if speed is None else "fast" if speed >= FAST else \
        "usable" if speed >= USABLE else "slow"


def cell(speed):
    return "no" if speed is None else f"{word(speed)}, {models_table.number(speed)}"


def row_of(program, model, machines=MACHINES):
    on_disk, floor, speeds = figures(program, model, machines)
    return [model[0], models_table.number(on_disk), models_table.number(floor), *map(cell, speeds)]


def is_near(kept, found):
    """Compares two cells: the figures, and the word unless the figure is at a limit."""
    a, b = kept.split(", "), found.split(", ")
    if not models_table.is_near(a[-1], b[-1]):
        return False
    if len(a) == len(b) == 1:
        return True
    return a[0] == b[0] or any(abs(float(b[-1]) - limit) <= TOLERANCE * limit
                               for limit in (FAST, USABLE) if b[-1] != "no")


def head():
    return ["Model", "GB on disk", "floor, GiB", *(f"{machine} GB" for machine in MACHINES)]


def summary(rows):
    """For each machine, the models that reach a speed which they do not reach on a smaller one."""
    lines, seen = [], {name: set() for name in WORDS[:2]}
    for i, machine in enumerate(MACHINES):
        cells = []
        for name in WORDS[:2]:
            new = [row[0] for row in rows if row[3 + i].split(",")[0] == name
                   and row[0] not in seen[name]]
            seen[name].update(new)
            cells.append("; ".join(new) or "no others")
        lines.append([f"{machine} GB", f"`--memory {int(machine * SHARE)}G`", *cells])
    return lines


def bits_rows(program):
    rows = []
    for name, formats in BITS:
        _, on_disk, _, (speed,) = models_table.figures_of(
            program, ("coder-next",), formats, (int(32 * SHARE),), (*SPEEDS, str(CONTEXT)))
        rows.append([name, f"{models_table.number(on_disk / 1e9)} GB",
                     f"{models_table.cell(speed)} tok/s"])
    return rows


def bits_are_near(kept, found):
    return len(kept) == len(found) and all(
        a[0] == b[0] and models_table.is_near(a[1].split()[0], b[1].split()[0])
        and models_table.is_near(a[2].split()[0], b[2].split()[0]) for a, b in zip(kept, found))


def part(text, name, body=None):
    return models_table.part(text, name, body, "fit_table.py")


def write(program):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda model: row_of(program, model), models_table.MODELS))
    text = PAGE.read_text(encoding="utf-8")
    text = part(text, "machines", models_table.table(
        ["Memory", "Option", f"new at {FAST} tok/s or more", f"new at {USABLE} to {FAST} tok/s"],
        summary(rows)))
    text = part(text, "models", models_table.table(head(), rows))
    PAGE.write_text(text, encoding="utf-8")
    START.write_text(part(START.read_text(encoding="utf-8"), "bits", models_table.table(
        ["weights that are not experts", "on disk", "predicted speed"], bits_rows(program))),
        encoding="utf-8")
    return 0


def check(program, is_few):
    text, stale = PAGE.read_text(encoding="utf-8"), []
    rows = models_table.rows_in(part(text, "models"))
    if [row[0] for row in rows] != [model[0] for model in models_table.MODELS]:
        stale.append("the models of the page are not those of tools/models_table.py")
    elif models_table.rows_in(part(text, "machines")) != summary(rows):
        stale.append("the table by machine does not follow from the table by model")
    jobs = [(model, row) for model, row in zip(models_table.MODELS, rows)
            if not is_few or model[0] in FEW]
    machines = (FEW_MACHINE,) if is_few else MACHINES
    columns = [0, 1, 2, *(3 + MACHINES.index(machine) for machine in machines)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda job: row_of(program, job[0], machines), jobs))
    for (model, row), found in zip(jobs, made):
        kept = [row[i] for i in columns]
        if not all(map(is_near, kept[1:], found[1:])):
            stale.append(f"{model[0]}: the page has {kept}, found {found}")
    bits, found = models_table.rows_in(part(START.read_text(encoding="utf-8"), "bits")), \
        bits_rows(program)
    if not bits_are_near(bits, found):
        stale.append(f"docs/START.md has {bits}, found {found}")
    for line in stale:
        print(line)
    print(f"{len(jobs)} rows compared, {len(stale)} stale"
          + ("; run tools/fit_table.py FLASHMOE write" if stale else ""))
    return bool(stale) or not jobs


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("write", "check"):
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2] == "write":
        return write(program)
    return check(program, "--few" in sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
