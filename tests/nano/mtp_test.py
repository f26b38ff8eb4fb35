#!/usr/bin/env python3
"""How many drafts of nano's block for multi-token prediction are right, by position, against an
independent computation in float64.

usage: mtp_test.py check MTP_ACCEPT MODEL
       mtp_test.py check MTP_ACCEPT DATA FOLDER
       mtp_test.py make CHECKPOINT HELDOUT

`make` writes mtp_accept.json: greedy answers to prompts of the eight held-out domains, and how many
drafts for them are right by tests/oracle/mtp.py; it needs torch and transformers. `check` gives the
same texts to MODEL, or to the checkpoint in DATA, which is unpacked in FOLDER (nano_test.py). In
every domain the share of passes whose drafts up to each position are right must be within a point.
Exit status 77 (skipped) when DATA has no checkpoint.
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


def continue_text(model, ids):
    """Returns the ids and the most likely ones behind them."""
    import torch

    out, ids = model(torch.tensor([ids]), use_cache=True), list(ids)
    for _ in range(N_TOKENS):
        ids.append(int(out.logits[0, -1].argmax()))
        if ids[-1] == model.config.eos_token_id:
            break
        out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values)
    return ids


def make_texts(checkpoint, heldout):
    """Any text would do, but that of the model is what sessions have."""
    import mtp
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    tokenizer = Tokenizer.from_file(f"{checkpoint}/tokenizer.json")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return {domain: [[len(prompt), *continue_text(model, prompt)] for prompt in
                     mtp.prompts(heldout, domain, tokenizer, N_PROMPTS)] for domain in DOMAINS}


def make(checkpoint, heldout):
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import mtp

    domains = {}
    all_texts = make_texts(checkpoint, heldout)
    predictor = mtp.Predictor(checkpoint)
    for domain, texts in all_texts.items():
        n_passes, right = 0, [0] * DEPTH
        for n_prompt, *ids in texts:
            n, good = mtp.count_accepted(ids, n_prompt, predictor.drafts(ids, DEPTH)[0])
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


def check(program, model, folder=None):
    if folder is not None:
        import nano_test

        model = nano_test.unpack(pathlib.Path(model), pathlib.Path(folder))
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
