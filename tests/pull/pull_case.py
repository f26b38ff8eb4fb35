"""Shared by the tests of pull: the program, a hub, a folder to work in.

The arguments of the command line are read here: PROGRAM TESTS [TestClass...]
"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import hub as hubs

PROGRAM = os.path.abspath(sys.argv[1])
TESTS = pathlib.Path(sys.argv[2]).resolve()
REST = sys.argv[3:]
SECONDS = 1800  # ends a hanging program; no test needs a fast machine


def noise(seed, n_bytes):
    return random.Random(seed).randbytes(n_bytes)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flashmoe-pull-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hub = self.enterContext(hubs.Hub()) if hasattr(self, "enterContext") else \
            self.enter(hubs.Hub())
        self.models = self.folder / "models"

    def enter(self, context):
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def environment(self, **more):
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("HF_", "HUGGING", "FLASHMOE_"))
               and not name.lower().endswith("_proxy")}
        env.update(HOME=str(self.folder / "home"), FLASHMOE_MODELS=str(self.models),
                   HF_ENDPOINT=self.hub.url, XDG_CACHE_HOME=str(self.folder / "cache"))
        env.update({name: str(value) for name, value in more.items() if value is not None})
        return env

    def flashmoe(self, *args, program=None, preexec_fn=None, **env):
        return subprocess.run([program or PROGRAM, *map(str, args)], env=self.environment(**env),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, encoding="utf-8", timeout=SECONDS,
                              preexec_fn=preexec_fn, check=False)

    def pull(self, *args, status=0, **env):
        done = self.flashmoe("pull", *args, **env)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def assert_fails(self, done, *words, status=1):
        self.assertEqual(done.returncode, status, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def add_noise(self, repo="org/noise", n_shards=3, shard_bytes=3_000_000):
        """A repository with the files of a checkpoint, whose weights are noise."""
        files = {"config.json": b'{"model_type": "noise"}', "tokenizer.json": noise(1, 70_000),
                 "README.md": b"# noise\n", ".gitattributes": b"*.safetensors filter=lfs\n",
                 "original/model.safetensors": b"not needed", "empty.txt": b"",
                 "tool.py": b"print()\n"}
        for i in range(n_shards):
            files[f"model-{i + 1:05}-of-{n_shards:05}.safetensors"] = noise(i + 2, shard_bytes + i)
        self.hub.add(repo, files)
        return {path: data for path, data in files.items()
                if "/" not in path and not path.startswith(".") and not path.endswith(".py")}

    def assert_pulled(self, files, repo="org/noise"):
        """Checks that exactly these files are there, and no unfinished ones."""
        folder = self.models / repo
        self.assertEqual(sorted(p.name for p in folder.iterdir() if p.name != ".pull"),
                         sorted(files))
        for name, data in files.items():
            self.assertEqual(hashlib.sha256((folder / name).read_bytes()).hexdigest(),
                             hashlib.sha256(data).hexdigest(), name)
        self.assertEqual([p.name for p in (folder / ".pull").iterdir()], ["manifest.json"])

    def list(self, **env):
        done = self.flashmoe("list", "--json", **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["models"]


def main():
    unittest.main(module="__main__", argv=[sys.argv[0], *REST])
