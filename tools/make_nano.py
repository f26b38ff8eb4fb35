#!/usr/bin/env python3
"""Makes models/nano.fmoe, the model that comes with the program.

usage: make_nano.py DATA [PROGRAM]

DATA holds nano-hf.tar.xz.0, .1, ...: the trained checkpoint. PROGRAM is build/flashmoe unless
given. Experts become affine4-g64, every other matrix affine8-g64. The model card,
models/nano.fmoe/README.md, is written by hand and goes into the pack as it is. The same checkpoint
always gives the same bytes.
"""
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NANO = ROOT / "models" / "nano.fmoe"
FORMATS = ["--experts", "affine4-g64", "--dense", "affine8-g64", "--embed", "affine8-g64",
           "--head", "affine8-g64"]
# What was in the archive for the training and is no part of the model.
LEFT_OUT = ["log.txt", "meta.json"]


def unpack(data, folder):
    parts = sorted(data.glob("nano-hf.tar.xz.*"))
    if not parts:
        sys.exit(f"{data} has no nano-hf.tar.xz.*")
    archive = folder / "nano-hf.tar.xz"
    with open(archive, "wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "tar")
    archive.unlink()
    return next((folder / "tar").rglob("config.json")).parent


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = sys.argv[2] if len(sys.argv) == 3 else str(ROOT / "build" / "flashmoe")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoint = unpack(pathlib.Path(sys.argv[1]), folder)
        checkpoint = checkpoint.rename(folder / "nano-hf")
        for name in LEFT_OUT:
            (checkpoint / name).unlink(missing_ok=True)
        shutil.copy(NANO / "README.md", checkpoint / "README.md")
        packed = folder / "nano.fmoe"
        subprocess.run([program, "pack", str(checkpoint), str(packed), *FORMATS], check=True)
        subprocess.run([program, "verify", str(packed)], check=True)
        shutil.rmtree(NANO)
        shutil.copytree(packed, NANO)
    bytes_of = sum(file.stat().st_size for file in NANO.iterdir())
    print(f"{NANO.relative_to(ROOT)}: {bytes_of / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
