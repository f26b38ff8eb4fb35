#!/usr/bin/env python3
"""Compares the sampler with transformers' logits processors, on random logits.

usage: sampling.py make OUT.json [N]
       sampling.py check SAMPLE_LINES [SAMPLES.json]

make: writes N cases (default 200) with the tokens that transformers keeps and their probabilities.
Needs torch and transformers. Bias, repetition penalty, temperature, top-k, top-p, min-p and
typical-p are its own classes, in its own order. Presence and frequency penalties, which it lacks,
are subtracted as OpenAI's documentation says. Cases in which a rounding error would change which
tokens are kept are left out.

check: compares them with the output of sample_lines, by default with the frozen samples. Needs only
the standard library.
"""
import collections
import json
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "golden" / "qwen3_next"
VOCABULARY = 320
SHARES = ("top_p", "min_p", "typical_p")


def make_case(rng):
    width = rng.choice((2000, 8000, 16000))
    logits = rng.sample(range(-4 * width, 4 * width), VOCABULARY)
    logits = [int(x / 4 * abs(x) / (4 * width)) * 4 + i % 4 for i, x in enumerate(logits)]
    case = {"temperature": rng.choice((1, 1, 0.7, 0.25, 1.5)), "top_k": 0, "top_p": 1, "min_p": 0,
            "typical_p": 1, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
            "logit_bias": [], "prompt": [], "answer": [], "logits": logits}
    for name, values in (("top_k", (1, 5, 40, 319, 1000)), ("top_p", (0.1, 0.5, 0.8, 0.95)),
                         ("min_p", (0.01, 0.05, 0.3)), ("typical_p", (0.2, 0.5, 0.9, 0.95)),
                         ("repetition_penalty", (1.1, 1.5, 0.8)),
                         ("presence_penalty", (0.5, 1.5, -1)),
                         ("frequency_penalty", (0.3, 1, -0.5))):
        if rng.random() < 0.4:
            case[name] = rng.choice(values)
    for name in ("prompt", "answer"):
        case[name] = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(20))]
        case[name] += case[name][:3]
    if rng.random() < 0.3:
        case["logit_bias"] = [[i, rng.choice((2, -3.5, 100, -100))]
                              for i in rng.sample(range(VOCABULARY), 4)]
    return case


def change_logits(case, torch, lib):
    scores = torch.tensor([case["logits"]], dtype=torch.float64) / 4096
    ids = torch.tensor([case["prompt"] + case["answer"]], dtype=torch.long)
    if case["logit_bias"]:
        bias = {(i,): float(x) for i, x in case["logit_bias"]}
        scores = lib.SequenceBiasLogitsProcessor(bias)(ids, scores)
    if case["repetition_penalty"] != 1 and ids.numel() > 0:
        scores = lib.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
    for token, n in collections.Counter(case["answer"]).items():
        scores[0, token] -= case["frequency_penalty"] * n + case["presence_penalty"]
    return ids, scores


def filter_tokens(case, ids, scores, lib, slack=1.0):
    chain = [lib.TemperatureLogitsWarper(float(case["temperature"]))]
    share = {name: min(case[name] * slack, 1.0) if case[name] != 1 else 1.0 for name in SHARES}
    if case["top_k"]:
        chain.append(lib.TopKLogitsWarper(case["top_k"]))
    if share["top_p"] < 1:
        chain.append(lib.TopPLogitsWarper(share["top_p"]))
    if share["min_p"] > 0:
        chain.append(lib.MinPLogitsWarper(share["min_p"]))
    if share["typical_p"] < 1:
        chain.append(lib.TypicalLogitsWarper(share["typical_p"]))
    for each in chain:
        scores = each(ids, scores)
    return scores.softmax(-1)[0].tolist()


def kept(probabilities):
    return [i for i, p in enumerate(probabilities) if p > 0]


def make(n):
    import torch
    import transformers.generation.logits_process as lib
    rng = random.Random(3)
    samples = []
    while len(samples) < n:
        case = make_case(rng)
        ids, scores = change_logits(case, torch, lib)
        if min(len(set(scores[0].tolist())), len(set(case["logits"]))) < VOCABULARY:
            continue  # either of two equal tokens may be dropped
        results = [filter_tokens(case, ids, scores, lib, slack)
                   for slack in (1, 1 + 3e-5, 1 - 3e-5)]
        if len({tuple(kept(result)) for result in results}) > 1:
            continue
        raw = (torch.tensor(case["logits"], dtype=torch.float64) / 4096).log_softmax(-1)
        top = raw.topk(5)
        case["top"] = [[i, round(x, 7)] for i, x in zip(top.indices.tolist(), top.values.tolist())]
        case["want"] = [[i, float(f"{results[0][i]:.7g}")] for i in kept(results[0])]
        samples.append(case)
    return samples


def is_close(a, b, relative=2e-5):
    """Relative, but with an absolute tolerance below the resolution of a float32 near 1."""
    return abs(a - b) <= relative * max(abs(a), abs(b)) + 1e-12


def differences(case, got):
    want = dict(map(tuple, case["want"]))
    have = dict(zip(got["ids"], got["p"]))
    # Without top-p, tokens that vanish next to the rest in a double are not drawn either.
    far = {i for i in want.keys() ^ have.keys() if max(want.get(i, 0), have.get(i, 0)) > 1e-15}
    if far:
        yield f"kept: {len(want)} expected, {len(have)} got, different: {sorted(far)[:9]}"
    for i in want.keys() & have.keys():
        if not is_close(want[i], have[i]):
            yield f"token {i}: {want[i]} expected, {have[i]} got"
    if got["p"] != sorted(got["p"], reverse=True):
        yield "not best first"
    if got["drawn"] not in have:
        yield f"drew {got['drawn']}"
    for (i, x), (j, y) in zip(case["top"], got["top"]):
        if i != j or abs(x - y) > 2e-6 * max(1, abs(x)):
            yield f"logprob {(i, x)} expected, {(j, y)} got"


def check(program, path):
    samples = json.loads(path.read_text(encoding="utf-8"))
    lines = [json.dumps({key: x for key, x in case.items() if key not in ("want", "top")})
             for case in samples]
    done = subprocess.run([program, str(MODEL)], input="\n".join(lines) + "\n",
                          stdout=subprocess.PIPE, encoding="utf-8", check=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    n_bad = abs(len(results) - len(samples))
    for case, got in zip(samples, results):
        found = list(differences(case, got))
        n_bad += bool(found)
        if found and n_bad <= 5:
            print({key: x for key, x in case.items() if key not in ("want", "logits")}, *found[:5],
                  sep="\n  ")
    print(f"{len(samples)} distributions, {n_bad} different")
    return 1 if n_bad or not samples else 0


def main():
    if len(sys.argv) in (3, 4) and sys.argv[1] == "make":
        samples = make(int(sys.argv[3]) if len(sys.argv) == 4 else 200)
        text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in samples)
        pathlib.Path(sys.argv[2]).write_text(f"[\n{text}\n]\n", encoding="utf-8")
        return 0
    if len(sys.argv) in (3, 4) and sys.argv[1] == "check":
        path = sys.argv[3] if len(sys.argv) == 4 else HERE / "sampling.json"
        return check(sys.argv[2], pathlib.Path(path))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
