#!/usr/bin/env python3
"""bounded_test.py FLASHMOE MODEL [OPTION...]: measured resident memory stays within --memory, from
the smallest budget that the program accepts upwards, and a smaller budget reads more."""
import json
import subprocess
import sys

MIB = 1 << 20


def run(program, model, budget, options):
    command = [program, "run", model, "-p", "Once upon a time", "-n", "48", "--greedy", "--json",
               "--memory", str(budget), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def main():
    program, model, *options = sys.argv[1:]
    # The memory that a program takes before it opens a model varies by some pages from run to run.
    # So the run that found the smallest budget is also the run that is measured.
    for smallest in range(2, 1 << 14):
        first = run(program, model, smallest * MIB, options)
        if first:
            break
    results = [first] + [run(program, model, (smallest + more) * MIB, options)
                         for more in (1, 8, 64)]
    for r in results:
        print(f"budget {r['memory_budget_bytes'] / MIB:.0f} MiB: resident "
              f"{r['memory_bytes'] / MIB:.1f} MiB, {r['bytes_read'] / MIB:.1f} MiB read, "
              f"hash {r['logits_hash']}")
    assert all(r["memory_bytes"] <= r["memory_budget_bytes"] for r in results), "over the budget"
    assert len({r["logits_hash"] for r in results}) == 1, "the budget changed the logits"
    assert results[0]["bytes_read"] > results[-1]["bytes_read"], "the budget made no difference"


if __name__ == "__main__":
    main()
