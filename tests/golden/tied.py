#!/usr/bin/env python3
"""A golden whose head is tied to the embedding, so that its logits are large.

usage: tied.py check GOLDEN_TEST
       tied.py make

The weights are those of the golden qwen3_next without its lm_head (variants.py). `make` writes
transformers' results for them to tied/; it needs torch and transformers. `check` combines both and
runs GOLDEN_TEST on the result. The engine is off by 1.4e-4: 3e-6 of the spread, but more than an
absolute 1e-4. transformers in float32 is off by 6.8e-4.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCE, RESULTS = HERE / "qwen3_next", HERE / "tied"
N_TOKENS, N_PROMPT, N_GREEDY = 48, 16, 24


def stage(folder):
    subprocess.run([sys.executable, HERE / "variants.py", SOURCE, folder, "--layout", "tied"],
                   check=True, stdout=subprocess.DEVNULL)


def forward(folder, dtype, ids):
    """Returns logits, hidden states, and the greedy continuation of the first tokens."""
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager", attn_implementation="eager").eval()
    kept = torch.float32, torch.Tensor.float
    if dtype == torch.float64:
        # The models use float32 inside norms, softmax and the delta rule: give them float64.
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
        answer = list(ids[:N_PROMPT])
        while len(answer) < N_PROMPT + N_GREEDY:
            answer.append(int(model(torch.tensor([answer])).logits[0, -1].argmax()))
    torch.float32, torch.Tensor.float = kept
    return out.logits[0], torch.cat([h for h in out.hidden_states]), answer[N_PROMPT:]


def make():
    import torch
    import transformers
    ids = json.loads((SOURCE / "golden.json").read_text())["input_ids"][:N_TOKENS]
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stage(folder)
        logits, hidden, _ = forward(folder, torch.float32, ids)
        exact, _, greedy = forward(folder, torch.float64, ids)
    for name, values in (("logits", logits), ("exact", exact), ("hidden", hidden)):
        values.float().numpy().astype("<f4").tofile(RESULTS / f"golden_{name}.f32")
    (RESULTS / "results.json").write_text(json.dumps({
        "architecture": "qwen3_next", "transformers": transformers.__version__,
        "torch": torch.__version__, "input_ids": ids, "vocab": logits.shape[1],
        "n_hidden": len(hidden), "greedy_prompt": ids[:N_PROMPT],
        "greedy_continuation": greedy}) + "\n")


def check(golden_test):
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root) / "tied"
        stage(folder)
        for file in RESULTS.iterdir():
            shutil.copy(file, folder / file.name.replace("results.json", "golden.json"))
        return subprocess.run([golden_test, root]).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2]))
    make()
