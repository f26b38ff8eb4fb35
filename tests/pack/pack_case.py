"""Shared by the tests of packing: the program, its faults, a folder to work in.

The arguments of the command line are read here: PROGRAM PRELOAD TESTS [--kills N] [TestClass...]
"""
import hashlib
import json
import os
import pathlib
import pty
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, PRELOAD = map(os.path.abspath, sys.argv[1:3])
TESTS = pathlib.Path(sys.argv[3]).resolve()
REST = sys.argv[4:]
N_KILLS = 6
if REST[:1] == ["--kills"]:
    N_KILLS, REST = int(REST[1]), REST[2:]
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
FAMILIES = ["qwen3_moe", "qwen3_next", "qwen3_5_moe_text"]
NARROW = ["glm4_moe", "minimax_m2", "mixtral", "olmoe", "qwen2_moe"]  # experts of 32 columns


def flashmoe(*args, text=None, **faults):
    env = dict(os.environ)
    if faults:
        env["LD_PRELOAD"] = PRELOAD
        # The sanitizer's runtime is not the first library then, which it would refuse.
        env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"),
                                                     "verify_asan_link_order=0"]))
        env.update({f"FAULT_{name.upper()}": str(value) for name, value in faults.items()})
    given = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    return subprocess.run([PROGRAM, *map(str, args)], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=SECONDS, **given)


class Held:
    """A process that waits at a certain call until `release`, so that the actions of a test happen
    at that moment on every machine. Use it with `with`."""

    def __init__(self, folder, on, *args, at=1, **files):
        self.gate = pathlib.Path(folder) / "gate"
        env = dict(os.environ, LD_PRELOAD=PRELOAD, FAULT_KIND="hold", FAULT_ON=on,
                   FAULT_AT=str(at), FAULT_GATE=str(self.gate),
                   ASAN_OPTIONS="verify_asan_link_order=0")
        self.process = subprocess.Popen([PROGRAM, *map(str, args)], env=env,
                                        stdin=subprocess.DEVNULL, **files)

    def __enter__(self):
        held = self.gate.with_name("gate.held")
        while not held.exists():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode} before it was held")
            time.sleep(0.005)
        held.unlink()
        return self

    def __exit__(self, *_):
        self.release()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.gate.unlink()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def release(self):
        self.gate.touch()

    def finish(self):
        """Lets it continue, and returns its standard error."""
        self.release()
        return self.process.communicate(timeout=SECONDS)[1]


def logits_hash(model, *args):
    done = flashmoe("run", model, "--raw", "-p", "The cat sat on the mat.", "-n", "6", "--greedy",
                    "--json", *args)
    if done.returncode != 0:
        raise AssertionError(f"{model}: {done.stderr}")
    return json.loads(done.stdout)["logits_hash"]


def digest(folder):
    """Returns the names and contents of all files below a folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def shard_by_layer(src, dst):
    """Writes one file per layer and one for the rest, as in large checkpoints."""
    sys.path.insert(0, str(TESTS / "golden"))
    import variants
    config, tensors = variants.read_checkpoint(src)
    dst.mkdir(parents=True)
    weight_map = {}
    for name in tensors:
        words = name.split(".")
        layer = words[words.index("layers") + 1] if "layers" in words else "none"
        weight_map[name] = f"model-{layer}.safetensors"
    for shard in sorted(set(weight_map.values())):
        variants.write_file(dst / shard, {n: tensors[n] for n in tensors if weight_map[n] == shard},
                            random.Random(0), [])
    (dst / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (dst / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "generation_config.json"):
        if (src / name).exists():
            shutil.copyfile(src / name, dst / name)


def add_tensor(folder, name):
    """Adds a tensor to model.safetensors."""
    sys.path.insert(0, str(TESTS / "golden"))
    import variants
    tensors = variants.read_checkpoint(folder)[1]
    tensors[name] = next(iter(tensors.values()))
    variants.write_file(folder / "model.safetensors", tensors, random.Random(0), [])


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="pack-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)
        self.dst = self.folder / "model.fmoe"
        self.partial = self.folder / "model.fmoe.partial"
        self.golden = TESTS / "golden" / "qwen3_next"

    def pack(self, src, dst, *args, **faults):
        done = flashmoe("pack", src, dst, *args, **faults)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def assert_fails(self, done, *words, status=1):
        """Checks for one line on standard error with these words."""
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, r"\A(?:flashmoe: [^\n]+\n)+\Z")
        for word in words:
            self.assertIn(word, done.stderr)

    def count_calls(self, src, dst, *args):
        path = self.folder / "count"
        self.pack(src, dst, *args, count=path)
        return int(path.read_text())

    def trace_calls(self, *args):
        """Returns the calls that write, in order: (name, path, new path)."""
        path = self.folder / "trace"
        path.unlink(missing_ok=True)
        done = flashmoe(*args, trace=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split("\t") for line in path.read_text().splitlines()]

    def ask(self, *args, answer):
        """Starts it at a terminal and types the answer."""
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, *map(str, args)], stdin=slave, encoding="utf-8",
                                   stderr=subprocess.PIPE, start_new_session=True)
        os.close(slave)
        os.write(master, answer)
        errors = process.communicate(timeout=SECONDS)[1]
        os.close(master)
        return subprocess.CompletedProcess(args, process.returncode, "", errors)

    def flip(self, path, at, bit=1):
        with open(path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ bit]))


def main():
    unittest.main(argv=[sys.argv[0], *REST])
