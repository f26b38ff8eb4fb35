#!/usr/bin/env python3
"""Writes the tables of docs/MODELS.md.

usage: models_table.py FLASHMOE write
       models_table.py FLASHMOE check [--few]

Every model is written without weights (`flashmoe synth --headers-only`) in the number formats of
its release and in 4 bits, and planned for fixed speeds of disk and memory (`flashmoe plan`), so
that the tables are the same on every machine. `check` fails if a figure differs by more than 3 %,
which is more than the size of the program varies, or if a row is missing. With --few it checks one
budget of one model per family. The table of what was verified is counted from the tests.
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/MODELS.md"
BUDGETS = (8, 16, 24, 32, 64)
MACHINE = ("--disk-speed", "5", "--memory-speed", "60", "--threads", "8", "--context", "4096")
TOLERANCE = 0.03

BF16 = ("bf16", ("--experts-format", "bf16", "--dense-format", "bf16"))
FP8 = ("fp8", ("--experts-format", "fp8-b128-f32", "--dense-format", "fp8-b128-f32",
               "--embed-format", "bf16", "--head-format", "bf16"))
MXFP4 = ("mxfp4", ())
CODER_480B = ("--layers", "62", "--hidden", "6144", "--heads", "96", "--kv-heads", "8",
              "--experts", "160", "--expert-width", "2560", "--context", "262144")

# name, family, shape and changes of it, number format of the release
MODELS = (
    ("OLMoE-1B-7B", "olmoe", ("olmoe-1b-7b",), BF16),
    ("Qwen1.5-MoE-A2.7B", "qwen2_moe", ("qwen1.5-moe-a2.7b",), BF16),
    ("gpt-oss-20b", "gpt_oss", ("gpt-oss-20b",), MXFP4),
    ("GLM-4.7-Flash", "glm4_moe_lite", ("glm-4.7-flash",), BF16),
    ("Qwen3-30B-A3B, Qwen3-Coder-30B-A3B", "qwen3_moe", ("30b-a3b",), BF16),
    ("Qwen3.5-35B-A3B", "qwen3_5_moe", ("35b-a3b",), BF16),
    ("Mixtral-8x7B", "mixtral", ("mixtral-8x7b",), BF16),
    ("Qwen2-57B-A14B", "qwen2_moe", ("57b-a14b",), BF16),
    ("Qwen3-Next-80B-A3B", "qwen3_next", ("next-80b",), BF16),
    ("Qwen3-Coder-Next", "qwen3_next", ("coder-next",), BF16),
    ("GLM-4.5-Air", "glm4_moe", ("glm-4.5-air",), BF16),
    ("gpt-oss-120b", "gpt_oss", ("gpt-oss-120b",), MXFP4),
    ("Qwen3.5-122B-A10B", "qwen3_5_moe", ("122b-a10b",), BF16),
    ("Mixtral-8x22B", "mixtral", ("mixtral-8x22b",), BF16),
    ("Qwen3.8-Flash-Next", "qwen4_exp", ("qwen3.8-flash-next",), BF16),
    ("MiniMax-M2", "minimax_m2", ("minimax-m2",), FP8),
    ("Qwen3-235B-A22B", "qwen3_moe", ("235b-a22b",), BF16),
    ("GLM-4.5, GLM-4.6, GLM-4.7", "glm4_moe", ("glm-4.5",), BF16),
    ("Qwen3.5-397B-A17B", "qwen3_5_moe", ("397b",), BF16),
    ("Qwen3-Coder-480B-A35B", "qwen3_moe", ("235b-a22b", *CODER_480B), BF16),
    ("DeepSeek-V3, R1, V3.1", "deepseek_v3", ("deepseek-v3",), FP8),
    ("Kimi-K2", "deepseek_v3", ("kimi-k2",), FP8),
)
# Checked with --few.
FEW = ("OLMoE-1B-7B", "gpt-oss-20b", "GLM-4.7-Flash", "Qwen3.5-35B-A3B", "Mixtral-8x7B",
       "GLM-4.5-Air", "MiniMax-M2")


def flashmoe(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# ---- figures ----------------------------------------------------------------------------------


def speed_of(program, model, budget, machine):
    """Returns (floor in bytes, (slowest, fastest) tokens per second or None)."""
    status, out, said = flashmoe(program, "plan", model, "--memory", f"{budget}G", *machine,
                                 "--json", "-q")
    if status != 0:
        least = re.search(r"smallest budget that works here is --memory (\d+)M", said)
        if not least:
            raise SystemExit(f"{model}: {said}")
        return int(least[1]) << 20, None
    found = json.loads(out)
    limit = found["budgets"][found["chosen"]]["limit"]
    return found["min_bytes"], (limit["serial_tok_per_s"], limit["overlapped_tok_per_s"])


def figures_of(program, shape, formats, budgets, machine=MACHINE):
    """Returns parameters, bytes on disk, the floor, and speeds by budget."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.fmoe"
        status, out, said = flashmoe(program, "synth", shape[0], path, *shape[1:], *formats,
                                     "--headers-only", "--json", "-q")
        if status != 0:
            raise SystemExit(f"{shape}: {said}")
        made = json.loads(out)
        speeds = [speed_of(program, path, budget, machine) for budget in budgets]
    return made["n_parameters"], made["file_bytes"], speeds[0][0], [speed for _, speed in speeds]


def number(x):
    """Three digits."""
    return f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 9.95 else f"{x:.2f}"


def cell(speed):
    return "-" if speed is None else f"{number(speed[0])}-{number(speed[1])}"


def row_of(program, model, is_native, budgets=BUDGETS):
    name, family, shape, (label, formats) = model
    n, on_disk, floor, speeds = figures_of(program, shape, formats if is_native else (), budgets)
    first = f"`{label}`" if is_native else f"`{family}`"
    return [name, first, number(n / 1e9), number(on_disk / 1e9), number(floor / 2 ** 30),
            *map(cell, speeds)]


# ---- what was verified ------------------------------------------------------------------------


def verified_rows():
    golden, oracle = ROOT / "tests/golden", ROOT / "tests/oracle"
    shapes = json.loads((golden / "families.json").read_text())
    cases = [case[0] for path in sorted(oracle.glob("sweep*.json"))
             for case in json.loads(path.read_text())]
    frozen = [path.stem for path in (oracle / "frozen").glob("*.json")]
    rows = []
    for family in sorted({model[1] for model in MODELS}):
        folders = [path for path in golden.glob(f"{family}*/golden.json")
                   if family != "glm4_moe" or "lite" not in path.parent.name]
        n = max(len(shapes.get(family, shapes.get(family + "_text", []))), len(folders))
        swept = sum(name.split("-")[0] in (family, family + "_text") for name in cases)
        files = [name for name in frozen if re.search(rf"(^|_){family}(_text|_mxfp4)?-", name)]
        gguf = sum((oracle / f"frozen/{name}.gguf").exists() for name in files)
        mlx = sum("bit-g" in name or name.endswith("-mxfp4") for name in files)
        rows.append([f"`{family}`", str(n), str(swept), str(gguf) if gguf else "none",
                     str(mlx) if mlx else "none"])
    return rows


# ---- the page ---------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def speeds_head(first):
    return ["Model", first, "billion parameters", "GB on disk", "floor, GiB",
            *(f"{budget} GiB" for budget in BUDGETS)]


def part(text, name, body=None, script="models_table.py"):
    """Returns a generated part of the page or, with a body, the page with it replaced."""
    begin, end = f"<!-- {name}: made by tools/{script} -->\n", f"<!-- end of {name} -->\n"
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[first:last] if body is None else text[:first] + body + text[last:]


def write(program):
    text = PAGE.read_text()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        four = list(pool.map(lambda model: row_of(program, model, False), MODELS))
        native = list(pool.map(lambda model: row_of(program, model, True), MODELS))
    text = part(text, "four bits", table(speeds_head("Family"), four))
    text = part(text, "as released", table(speeds_head("Released as"), native))
    text = part(text, "verified", table(["Family", "goldens", "config cases", "GGUF", "MLX"],
                                        verified_rows()))
    PAGE.write_text(text)
    return 0


def is_near(a, b):
    """Compares cells: text, or one or two numbers."""
    x, y = (re.fullmatch(r"([\d.]+)(?:-([\d.]+))?", text) for text in (a, b))
    if not x or not y:
        return a == b
    return all(p is None or q is None or abs(float(p) - float(q)) <= TOLERANCE * float(q) + 0.011
               for p, q in zip(x.groups(), y.groups())) and x.lastindex == y.lastindex


def rows_in(body):
    return [[cell.strip() for cell in line.strip("|\n ").split(" | ")]
            for line in body.splitlines()[2:]]


def check(program, is_few):
    text, stale = PAGE.read_text(), []
    parts = {is_native: rows_in(part(text, "as released" if is_native else "four bits"))
             for is_native in (False, True)}
    jobs = []
    for is_native, written in parts.items():
        if [row[0] for row in written] != [model[0] for model in MODELS]:
            stale.append("the models of a table are not those of the script")
        elif not is_few or not is_native:
            jobs += [(model, is_native, row) for model, row in zip(MODELS, written)
                     if not is_few or model[0] in FEW]
    budgets = BUDGETS[1:2] if is_few else BUDGETS
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda job: row_of(program, job[0], job[1], budgets), jobs))
    for (model, is_native, row), found in zip(jobs, made):
        kept = [*row[:5], *(row[5 + BUDGETS.index(budget)] for budget in budgets)]
        if not all(map(is_near, kept, found)):
            stale.append(f"{model[0]} {'as released' if is_native else 'in 4 bits'}: "
                         f"the page has {kept}, found {found}")
    if rows_in(part(text, "verified")) != verified_rows():
        stale.append("the table of what was verified does not have the counts of the tests")
    for line in stale:
        print(line)
    print(f"{len(jobs)} rows compared, {len(stale)} stale"
          + ("; run tools/models_table.py FLASHMOE write" if stale else ""))
    return bool(stale) or not jobs


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("write", "check"):
        sys.exit(__doc__)
    if sys.argv[2] == "write":
        return write(sys.argv[1])
    return check(sys.argv[1], "--few" in sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
