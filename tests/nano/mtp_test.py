#!/usr/bin/env python3
"""How many drafts of nano's block for multi-token prediction are right, by position, against an
independent computation in float64.

usage: mtp_test.py check MTP_ACCEPT MODEL
       mtp_test.py check MTP_ACCEPT DATA FOLDER
       mtp_test.py make CHECKPOINT HELDOUT FLASHMOE

`make` writes mtp_accept.json: greedy answers to prompts of the eight held-out domains, and how many
drafts for them are right by tests/oracle/mtp.py; it needs torch and transformers. `check` gives the
same texts to the checkpoint in DATA, which is unpacked in FOLDER (nano_test.py), or to MODEL, the
packed one. In every domain the share of passes whose drafts up to each position are right must be
within a point; in those of the packed model, whose weights are other ones, within five. Exit status
77 (skipped) when DATA has no checkpoint.
"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "mtp_accept.json"
DOMAINS = "en_story en_prose code_python code_c zh ja math chat".split()
N_PROMPTS, N_TOKENS, DEPTH = 12, 72, 4
TOLERANCE, PACKED_TOLERANCE = 0.01, 0.05


def continue_text(program, checkpoint, text, ids):
    """Returns the ids of a prompt and of the program's answer. Any text would do."""
    done = subprocess.run([program, "run", checkpoint, "--raw", "-p", text, "--greedy", "-n",
                           str(N_TOKENS), "--json", "-q", "--memory", "1G", "--no-heat"],
                          capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["n_prompt_tokens"] == len(ids), (answer["n_prompt_tokens"], ids)
    return [len(ids), *ids, *answer["tokens"]]


def make(checkpoint, heldout, program):
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import mtp
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{checkpoint}/tokenizer.json")
    predictor = mtp.Predictor(checkpoint)
    domains = {}
    for domain in DOMAINS:
        texts = [continue_text(program, checkpoint, text, ids)
                 for text, ids in mtp.prompts(heldout, domain, tokenizer, N_PROMPTS)]
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
    tolerance = PACKED_TOLERANCE if folder is None else TOLERANCE
    if folder is not None:
        import nano_test

        model = nano_test.unpack(pathlib.Path(model), pathlib.Path(folder))
    status = 0
    for domain, expected in json.loads(EXPECTED.read_text()).items():
        n_passes, *right = count(program, model, expected["texts"])
        shares = [n / n_passes for n in right]
        wanted = [n / expected["n_passes"] for n in expected["n_right"]]
        far = max(abs(a - b) for a, b in zip(shares, wanted))
        status |= far > tolerance
        print(f"{domain:12} {n_passes:4} passes, right up to each position:",
              " ".join(f"{100 * a:5.1f}" for a in shares), "%, in float64:",
              " ".join(f"{100 * b:5.1f}" for b in wanted), "%",
              "TOO FAR" if far > tolerance else "")
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(*sys.argv[2:])
    else:
        sys.exit(check(*sys.argv[2:]))
