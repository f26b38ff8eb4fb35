#!/usr/bin/env python3
"""How many drafts of nano's block for multi-token prediction are right, by position, against an
independent computation in float64.

usage: mtp_test.py check MTP_ACCEPT MODEL
       mtp_test.py check MTP_ACCEPT DATA FOLDER
       mtp_test.py make CHECKPOINT HELDOUT FLASHMOE
       mtp_test.py make-packed MODEL HELDOUT FLASHMOE

`make` writes mtp_accept.json: greedy answers to prompts of the eight held-out domains, and how many
drafts for them are right by tests/oracle/mtp.py; it needs torch and transformers. `make-packed`
writes mtp_packed.json: the same for MODEL, the packed one, whose weights tests/oracle/packed.py
restores. `check` gives the texts to the checkpoint in DATA, which is unpacked in FOLDER
(nano_test.py), or to MODEL. In every domain the share of passes whose drafts up to each position
are right must be within a point. Exit status 77 (skipped) when DATA has no checkpoint.

Products of the packed model round their input to 8 bits, so the last bit of a sum decides some
drafts: a few of a hundred are other ones in float64, in both directions. There are more texts for
it, so that this averages out. The first draft's share and the mean of all domains at every position
must be within a point, every other share within one and a half.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "mtp_accept.json"
DOMAINS = "en_story en_prose code_python code_c zh ja math chat".split()
PACKED = HERE / "mtp_packed.json"
N_PROMPTS, N_TOKENS, DEPTH = 12, 72, 4
PACKED_TOKENS = 1800  # of all answers of a domain, at least
TOLERANCE, PACKED_TOLERANCE = 0.01, 0.015


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
        domains[domain] = count_right(predictor, domain, texts) | {"texts": texts}
    write_expected(EXPECTED, domains)


def make_packed(model, heldout, program):
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import mtp
    import packed
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    with tempfile.TemporaryDirectory() as folder:
        predictor = mtp.Predictor(packed.restore(model, folder))
    packed.round_inputs(packed.group_of(model))
    domains = {}
    for domain in DOMAINS:
        texts, n_tokens = [], 0
        for text, ids in mtp.prompts(heldout, domain, tokenizer, 1000):
            texts.append(continue_text(program, model, text, ids))
            n_tokens += len(texts[-1]) - 1 - len(ids)
            if n_tokens >= PACKED_TOKENS:
                break
        domains[domain] = count_right(predictor, domain, texts) | {"texts": texts}
        write_expected(PACKED, domains)


def count_right(predictor, domain, texts):
    import mtp

    n_passes, right = 0, [0] * DEPTH
    for n_prompt, *ids in texts:
        n, good = mtp.count_accepted(ids, n_prompt, predictor.drafts(ids, DEPTH)[0])
        n_passes += n
        right = [a + int(b) for a, b in zip(right, good)]
    print(domain, n_passes, right, flush=True)
    return {"n_passes": n_passes, "n_right": right}


def write_expected(path, domains):
    lines = [f'"{name}":' + json.dumps(d, separators=(",", ":")) for name, d in domains.items()]
    path.write_text("{" + ",\n".join(lines) + "}\n")


def count(program, model, texts):
    lines = "".join(" ".join(map(str, text)) + "\n" for text in texts)
    done = subprocess.run([program, model, str(DEPTH)], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = [[int(n) for n in line.split()] for line in done.stdout.splitlines()]
    assert len(found) == len(texts)
    return [sum(column) for column in zip(*found)]


def check(program, model, folder=None):
    is_packed = folder is None
    if not is_packed:
        import nano_test

        model = nano_test.unpack(pathlib.Path(model), pathlib.Path(folder))
    tolerance = [TOLERANCE] + [PACKED_TOLERANCE if is_packed else TOLERANCE] * (DEPTH - 1)
    status, all_domains = 0, []
    for domain, expected in json.loads((PACKED if is_packed else EXPECTED).read_text()).items():
        n_passes, *right = count(program, model, expected["texts"])
        shares = [n / n_passes for n in right]
        wanted = [n / expected["n_passes"] for n in expected["n_right"]]
        all_domains.append((shares, wanted))
        status |= compare(f"{domain:12} {n_passes:4} passes", shares, wanted, tolerance)
    assert len(all_domains) == len(DOMAINS)
    means = [[sum(column) / len(column) for column in zip(*side)] for side in zip(*all_domains)]
    return status | compare("mean of all domains    ", *means, [TOLERANCE] * DEPTH)


def compare(what, shares, wanted, tolerance):
    is_far = any(abs(a - b) > t for a, b, t in zip(shares, wanted, tolerance))
    print(f"{what}, right up to each position:", " ".join(f"{100 * a:5.1f}" for a in shares),
          "%, in float64:", " ".join(f"{100 * b:5.1f}" for b in wanted), "%",
          "TOO FAR" if is_far else "")
    return is_far


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(*sys.argv[2:])
    elif sys.argv[1:2] == ["make-packed"]:
        make_packed(*sys.argv[2:])
    else:
        sys.exit(check(*sys.argv[2:]))
