"""make_lloyd_max.py: prints the Lloyd-Max codebooks of the normal distribution that kv_test.c
holds, and the unit in which rounded levels, below 128, have the least error."""

import math


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def share(x):
    return math.erf(x / math.sqrt(2)) / 2


def edges(levels):
    return [0] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [40]


def lloyd_max(n):
    """The upper half: each level the mean of what is nearest to it."""
    levels = [3 * (i + 0.5) / n for i in range(n)]
    while True:
        at = edges(levels)
        better = [(density(a) - density(b)) / (share(b) - share(a)) for a, b in zip(at, at[1:])]
        if max(abs(a - b) for a, b in zip(levels, better)) < 1e-14:
            return better
        levels = better


def error(levels):
    total, at = 0, edges(levels)
    for level, a, b in zip(levels, at, at[1:]):
        mass = share(b) - share(a)
        squares = mass + a * density(a) - b * density(b)
        total += squares - 2 * level * (density(a) - density(b)) + level * level * mass
    return 2 * total


def main():
    for bits in (2, 3, 4):
        exact = lloyd_max(1 << (bits - 1))
        least = error(exact)
        found = []
        for tenths in range(300, 1270):
            unit = exact[-1] * 10 / tenths
            levels = [round(x / unit) for x in exact]
            found.append((error([unit * k for k in levels]), unit, levels))
        most, unit, levels = min(found, key=lambda f: (round(f[0], 9), -f[1]))
        print(f"{bits} bits: {', '.join(f'{x:.9f}' for x in exact)}; error {least:.9f}")
        print(f"    unit {unit:.10f}: {levels}, error {most / least:.7f} times that")


main()
