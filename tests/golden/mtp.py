#!/usr/bin/env python3
"""Models with a block for multi-token prediction, and what it predicts in float64.

usage: mtp.py stage DIR
       mtp.py make

The models are goldens with a block that variants.py makes. `stage` writes them to DIR. `make`
writes the logits that the block gives (tests/oracle/mtp.py), for the tokens of the golden, to
mtp/NAME.f32 as little-endian float32 [tokens - 1, DEPTH, vocabulary]; it needs torch and
transformers. Row i, depth 1, follows tokens 0 to i + 1; each further depth takes the most likely
token of the one before.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("qwen3_next", "qwen3_5_moe_text")
DEPTH, N_TOKENS = 3, 48


def stage(folder):
    for name in NAMES:
        subprocess.run([sys.executable, HERE / "variants.py", HERE / name, folder / name,
                        "--layout", "mtp"], check=True)


def make():
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import mtp

    with tempfile.TemporaryDirectory() as root:
        stage(pathlib.Path(root))
        for name in NAMES:
            ids = json.loads((HERE / name / "golden.json").read_text())["input_ids"][:N_TOKENS]
            drafts, logits = mtp.Predictor(f"{root}/{name}").drafts(ids, DEPTH)
            logits.astype("<f4").tofile(HERE / "mtp" / f"{name}.f32")
            print(name, logits.shape, "drafts", drafts[-1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["stage"]:
        stage(pathlib.Path(sys.argv[2]))
    else:
        make()
