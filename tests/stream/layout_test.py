#!/usr/bin/env python3
"""layout_test.py FLASHMOE SAME_BITS FORMAT: a GGUF file or an MLX folder whose rows the processor
interleaves as they land. The logits have the hash that they had before there was another layout, at
every level, from the smallest budget on. The packed file gives the same text. A snapshot of one
level is taken by the others, which lay out the dense weights in another way. SAME_BITS -: only the
text."""
import pathlib
import re
import subprocess
import sys
import tempfile

# Logits of `same_bits` with the rows as they lie in the file.
HASHES = {
    "q4_k": "e2e6cd8b3a0ae0734c89c1057f470e85",
    "q6_k": "fae79125ed38c1283d82d2d35a928132",
    "q5_k": "0a30dd28a9596d76b4809f2f61ef7cff",
    "q8_0": "a0b8f1fe86bc46c03a4cc1af68636904",
    "iq4_xs": "d56dd6650c86023c1961b62988174e9e",
    "mxfp4": "2434089afbc4e72329cea23d4a8d92c0",
    "q4_0": "11bdf690bf4bc2f6640576e6feb0c942",
    "q5_1": "8ea8d54a47b3b9a567c4c879bb97832d",
    "q3_k": "8cfe2387f51913b0b4cfcd854aca8f5a",
    "q2_k": "a1374d548fa46fb172a82aee6bf7defb",
    "affine2-g64": "3535f5efcbb44fee81782e1821e7d21a",
    "affine3-g32": "47a9c6698e19d8fed2fd4f146d5fdb92",
    "affine5-g128": "f45dbb0b117fa8abd9b36cfbe6ae4038",
    "affine6-g64": "87bd3c1c5aebcbd67a63a9236c22e8af",
}
SHAPE = {"layers": 2, "hidden": 256, "heads": 4, "kv-heads": 2, "head-dim": 64, "experts": 8,
         "used": 2, "expert-width": 256, "vocab": 512}
PROMPT = ["--raw", "--greedy", "-n", "6", "-p", "hello there you"]


def run(*command):
    done = subprocess.run([str(x) for x in command], capture_output=True, check=False)
    out = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{out}"
    return out


def levels(flashmoe):
    """The names of the levels that this processor has, from a message about one that is none."""
    done = subprocess.run([flashmoe, "run", "--cpu", "none", "-p", "x"], capture_output=True,
                          check=False, text=True)
    names = re.search("expected one of ([a-z0-9, ]+)", done.stderr).group(1).split(", ")
    has = []
    for name in names:
        done = subprocess.run([flashmoe, "run", "--cpu", name, "-p", "x", "-n", "1"],
                              capture_output=True, check=False, text=True)
        if done.returncode == 0:
            has.append(name)
    return has


def main():
    flashmoe, same_bits, quant = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = folder / ("mlx" if quant.startswith("affine") else "m.gguf")
        packed = folder / "m.fmoe"
        shape = [x for key, value in SHAPE.items() for x in (f"--{key}", value)]
        formats = [x for part in ("experts", "dense", "embed", "head")
                   for x in (f"--{part}-format", quant)]
        run(flashmoe, "synth", "30b-a3b", model, *shape, *formats)
        if same_bits != "-":
            print(run(same_bits, model, HASHES[quant], 4).splitlines()[-1])
        run(flashmoe, "pack", model, packed)
        run(flashmoe, "verify", packed)
        answers = {run(flashmoe, "run", packed, *PROMPT).splitlines()[0]}
        has = levels(flashmoe)
        assert "reference" in has and len(has) > 1, has
        for i, level in enumerate(has):
            out = run(flashmoe, "run", model, "--snapshots", folder / "kept", "--cpu", level,
                      *PROMPT)
            assert ("14 from a snapshot" in out) == (i > 0), (level, out)
            answers.add(out.splitlines()[0])
        assert len(answers) == 1, answers


main()
