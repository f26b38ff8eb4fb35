#!/usr/bin/env python3
"""How many drafts of nano's block for multi-token prediction are right, by position, against an
independent computation in float64.

usage: mtp_test.py check MTP_ACCEPT MODEL
       mtp_test.py make CHECKPOINT HELDOUT

`make` writes mtp_accept.json: greedy answers to prompts of the eight held-out domains, and how many
drafts for them are right by tests/oracle/mtp.py; it needs torch and transformers. `check` gives the
same texts to MODEL. In every domain the share of passes whose drafts up to each position are right
must be within a point; a point of all passes is half a dozen. Exit status 77 (skipped) when there
is no MODEL.
"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "mtp_accept.json"
DOMAINS = "en_story en_prose code_python code_c zh ja math chat".split()
N_PROMPTS, N_TOKENS, DEPTH = 12, 72, 4
TOLERANCE = 0.01


def continue_text(model, ids, end):
    """Returns the ids and the most likely ones behind them."""
    import torch

    out, ids = model(torch.tensor([ids]), use_cache=True), list(ids)
    for _ in range(N_TOKENS):
        ids.append(int(out.logits[0, -1].argmax()))
        if ids[-1] == end:
            break
        out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values)
    return ids


def make(checkpoint, heldout):
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import mtp
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{checkpoint}/tokenizer.json")
    predictor = mtp.Predictor(checkpoint)
    end = predictor.model.config.eos_token_id
    domains = {}
    for domain in DOMAINS:
        texts, n_passes, right = [], 0, [0] * DEPTH
        for prompt in mtp.prompts(heldout, domain, tokenizer, N_PROMPTS):
            ids = continue_text(predictor.model, prompt, end)
            n, good = mtp.count_accepted(ids, len(prompt), predictor.drafts(ids, DEPTH)[0])
            texts.append([len(prompt), *ids])
            n_passes += n
            right = [a + int(b) for a, b in zip(right, good)]
        domains[domain] = {"n_passes": n_passes, "n_right": right, "texts": texts}
        print(domain, n_passes, right, flush=True)
    EXPECTED.write_text(json.dumps(domains, separators=(",", ":")).replace('},"', '},\n"') + "\n")


def count(program, model, texts):
    lines = "".join(" ".join(map(str, text)) + "\n" for text in texts)
    done = subprocess.run([program, model, str(DEPTH)], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = [[int(n) for n in line.split()] for line in done.stdout.splitlines()]
    assert len(found) == len(texts)
    return [sum(column) for column in zip(*found)]


def check(program, model):
    if not pathlib.Path(model).exists():
        print(f"skipped: there is no {model}")
        return 77
    status = 0
    for domain, expected in json.loads(EXPECTED.read_text()).items():
        n_passes, *right = count(program, model, expected["texts"])
        shares = [n / n_passes for n in right]
        wanted = [n / expected["n_passes"] for n in expected["n_right"]]
        far = max(abs(a - b) for a, b in zip(shares, wanted))
        status |= far > TOLERANCE
        print(f"{domain:12} {n_passes:4} passes, right up to each position:",
              " ".join(f"{100 * a:5.1f}" for a in shares), "%, in float64:",
              " ".join(f"{100 * b:5.1f}" for b in wanted), "%",
              "TOO FAR" if far > TOLERANCE else "")
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(*sys.argv[2:])
    else:
        sys.exit(check(*sys.argv[2:]))
