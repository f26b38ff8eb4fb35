#!/usr/bin/env python3
"""Compares YaRN and linear rope scaling beyond the original length of the models with transformers.

usage: rope_scaling.py check SWEEP_ENGINE
       rope_scaling.py same_bits SAME_BITS
       rope_scaling.py make

The weights are those of the goldens next to this file; every case changes only their configuration.
`make` writes transformers' float64 logits to rope_scaling.f32 as little-endian float32: for each
family and each case, in the order below, the rows ROWS of the prompt, every STEP-th logit of each.
It needs torch and transformers. `check` compares the engine with them. `same_bits` checks for one
hash of logits on every path and every machine. Both need only the standard library.
"""
import array
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "rope_scaling.f32"
FAMILIES = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
N_TOKENS, ROWS, STEP = 80, (1, 15, 16, 31, 32, 47, 63, 79), 2
TOLERANCE = 1e-4
# A case must move the logits by this much to be meaningful.
MIN_EFFECT = 100 * TOLERANCE

BENT = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 2, "beta_slow": 0.5, "rope_theta": 100.0}
# name: fields of rope_parameters, which keep their rope_theta; or of the whole configuration.
CASES = {
    "linear 2": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "linear 4, old name": {"rope_scaling": {"type": "linear", "factor": 4}},
    "yarn 2": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0,
                                   "original_max_position_embeddings": 32}},
    "yarn 4, old name": {"rope_scaling": {"type": "yarn", "factor": 4.0,
                                          "original_max_position_embeddings": 16}},
    "yarn 2.5, length of the model": {"max_position_embeddings": 32, "rope_parameters": {
        "rope_type": "yarn", "factor": 2.5}},
    "yarn, factor by the lengths": {"max_position_embeddings": 128, "rope_parameters": {
        "rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32}},
    "length outside": {"original_max_position_embeddings": 24, "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0,
        "original_max_position_embeddings": 1000}},
    "attention factor": {"rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "attention_factor": 1.5}},
    "mscale": {"rope_parameters": {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32,
        "mscale": 4.0, "mscale_all_dim": 0.5}},
    "mscale alone": {"rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        "mscale": 4.0}},
    "default betas": {"rope_parameters": {  # a length at which both betas matter
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
        "rope_theta": 100.0}},
    "betas": {"rope_parameters": BENT},
    "betas, not truncated": {"rope_parameters": {**BENT, "truncate": False}},
    "truncate null": {"rope_parameters": {**BENT, "truncate": None}},
    "betas 0": {"rope_parameters": {**BENT, "beta_fast": 0, "beta_slow": 0}},
    "equal betas": {"rope_parameters": {**BENT, "beta_slow": 2, "truncate": False}},
    "length of less than a turn": {"rope_parameters": {
        **BENT, "original_max_position_embeddings": 4, "beta_slow": 1}},
}

# For the case "betas, not truncated", which uses every part of the arithmetic.
HASHES = {"qwen3_moe": "9185de5e226c5fad7e3bf0ff6d8de983",
          "qwen3_next": "ad7b3ff0e64c4c3aa3049a0a4c0a6220",
          "qwen3_5_moe_text": "f12bde2c23bb438c7a83cda6e008c176"}
N_RUNS = 3


def stage(family, changes, folder):
    config = json.loads((HERE / family / "config.json").read_text())
    kept = {key: config["rope_parameters"][key] for key in ("rope_theta", "partial_rotary_factor")
            if key in config["rope_parameters"]}
    for key, value in changes.items():
        config[key] = {**kept, **value} if isinstance(value, dict) else value
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(HERE / family / "model.safetensors")


def tokens_of(family):
    return json.loads((HERE / family / "golden.json").read_text())["input_ids"][:N_TOKENS]


def sample(logits):
    vocabulary = len(logits) // N_TOKENS
    return array.array("f", [logits[row * vocabulary + i] for row in ROWS
                             for i in range(0, vocabulary, STEP)])


def distance(a, b):
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        d = abs(x - y)
        worst = d if not d <= worst else worst  # a NaN is worse than everything
    return worst


# ---- transformers -----------------------------------------------------------------------------


def reference(folder, tokens):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager",
        attn_implementation="eager").eval()
    kept = torch.float32, torch.Tensor.float
    # The models use float32 inside norms, softmax and the delta rule: give them float64.
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    with torch.no_grad():
        result = model(torch.tensor([tokens])).logits[0]
    torch.float32, torch.Tensor.float = kept
    return result.flatten().tolist()


def make():
    written = array.array("f")
    with tempfile.TemporaryDirectory() as top:
        for family in FAMILIES:
            stage(family, {}, pathlib.Path(top) / family / "plain")
            plain = sample(reference(pathlib.Path(top) / family / "plain", tokens_of(family)))
            seen = {"no scaling": plain}
            for i, (name, changes) in enumerate(CASES.items()):
                folder = pathlib.Path(top) / family / str(i)
                stage(family, changes, folder)
                found = sample(reference(folder, tokens_of(family)))
                nearest = min((distance(found, other), known) for known, other in seen.items())
                print(f"{family}: {name}: {distance(found, plain):.2e} from no scaling, "
                      f"{nearest[0]:.2e} from the nearest: {nearest[1]}", flush=True)
                if distance(found, plain) < MIN_EFFECT:
                    sys.exit("this case shows nothing")
                seen[name] = found
                written.extend(found)
    if sys.byteorder == "big":
        written.byteswap()
    EXPECTED.write_bytes(written.tobytes())


# ---- this engine ------------------------------------------------------------------------------


def check(program):
    expected = array.array("f", EXPECTED.read_bytes())
    if sys.byteorder == "big":
        expected.byteswap()
    n_failed, at, n = 0, 0, len(expected) // (len(FAMILIES) * len(CASES))
    with tempfile.TemporaryDirectory() as top:
        for family in FAMILIES:
            for i, (name, changes) in enumerate(CASES.items()):
                folder = pathlib.Path(top) / family / str(i)
                stage(family, changes, folder)
                done = subprocess.run([program, folder, *map(str, tokens_of(family))],
                                      capture_output=True)
                wanted = expected[at:at + n]
                at += n
                if done.returncode != 0:
                    n_failed += 1
                    print(f"{family}: {name}: FAILED: {done.stderr.decode().strip()}")
                    continue
                off = distance(sample(array.array("f", done.stdout)), wanted)
                n_failed += not off <= TOLERANCE
                print(f"{family}: {name}: off by {off:.2e}{'' if off <= TOLERANCE else ' FAILED'}")
    print(f"{len(FAMILIES) * len(CASES) - n_failed} passed, {n_failed} failed")
    return n_failed > 0 or n == 0 or at != len(expected)


def same_bits(program):
    failed = False
    with tempfile.TemporaryDirectory() as top:
        for family, expected in HASHES.items():
            folder = pathlib.Path(top) / family
            stage(family, CASES["betas, not truncated"], folder)
            failed |= subprocess.run([program, folder, expected, str(N_RUNS)]).returncode != 0
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["same_bits"]:
        sys.exit(same_bits(sys.argv[2]))
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2]))
    make()
