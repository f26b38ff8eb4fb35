#!/usr/bin/env python3
"""Holds the hub of these tests to the real client: PyPI's huggingface_hub downloads a repository
from it, and flashmoe uses what it has downloaded.

Usage: real_client_test.py PROGRAM TESTS [TestClass...]

The package is fetched into FLASHMOE_TEST_CACHE; the exit status is 77 when it cannot be.
"""
import json
import os
import pathlib
import subprocess
import sys
import venv

from pull_case import TESTS, Case, main

PACKAGES = ["huggingface_hub"]
MODEL = TESTS / "golden" / "qwen3_next"


def client():
    home = pathlib.Path(os.environ.get("FLASHMOE_TEST_CACHE", "build")).resolve() / "hub-venv"
    marker = home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != PACKAGES:
        venv.create(home, with_pip=True)
        done = subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet",
                               *PACKAGES], check=False)
        if done.returncode != 0:
            print("skipped: the Python packages cannot be installed")
            sys.exit(77)
        marker.write_text(json.dumps(PACKAGES))
    return home / "bin" / "python"


class RealClient(Case):
    def download(self, repo, **env):
        done = subprocess.run([CLIENT, TESTS / "pull/real_client.py", repo],
                              env=self.environment(HF_HUB_DISABLE_TELEMETRY="1", **env),
                              capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return pathlib.Path(done.stdout.strip().splitlines()[-1])

    def test_the_hub_is_accepted(self):
        files = self.add_noise()
        self.hub.token = "hf_secret"
        folder = self.download("org/noise", HF_TOKEN="hf_secret")
        for name, data in files.items():
            self.assertEqual((folder / name).read_bytes(), data)

    def test_its_cache_is_used(self):
        self.hub.add("org/tiny", {p.name: p.read_bytes() for p in MODEL.iterdir() if p.is_file()})
        folder = self.download("org/tiny")
        self.assertEqual([(m["name"], m["state"], m["path"]) for m in self.list()],
                         [("org/tiny", "cache", str(folder))])
        before = self.hub.sent_bytes
        self.assertIn("huggingface_hub's cache", self.pull("org/tiny").stderr)
        self.assertEqual(self.hub.sent_bytes, before)
        done = self.flashmoe("run", "org/tiny", "-p", "a", "-n", "1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_both_download_the_same(self):
        self.add_noise()
        folder = self.download("org/noise")
        self.pull("org/noise", HF_HOME=self.folder / "empty")
        for path in (self.models / "org/noise").iterdir():
            if path.is_file():
                self.assertEqual(path.read_bytes(), (folder / path.name).read_bytes())


if __name__ == "__main__":
    CLIENT = client()
    main()
