#!/usr/bin/env python3
"""Tests the server with the official client libraries: PyPI openai, anthropic, openai-agents and
instructor; npm openai, @anthropic-ai/sdk and ai.

usage: sdk_test.py PROGRAM python|node [--cache DIR]

The libraries are fetched into the cache directory; the exit status is 77 when they cannot be.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv

import scripted_model
from served import Server

HERE = pathlib.Path(__file__).resolve().parent
PYTHON_PACKAGES = ["openai>=1.60,<3", "anthropic>=0.40,<1", "openai-agents<1", "instructor<2"]
NODE_PACKAGES = ["openai@6", "@anthropic-ai/sdk", "ai@6", "@ai-sdk/openai-compatible@2",
                 "@ai-sdk/anthropic@3"]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def python_client(cache):
    home = cache / "api-venv"
    marker = home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != PYTHON_PACKAGES:
        venv.create(home, with_pip=True)
        done = subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet",
                               *PYTHON_PACKAGES], check=False)
        if done.returncode != 0:
            skip("the Python packages cannot be installed")
        marker.write_text(json.dumps(PYTHON_PACKAGES))
    return [home / "bin" / "python", HERE / "sdk_client.py"]


def node_client(cache):
    if not shutil.which("node") or not shutil.which("npm"):
        skip("there is no node")
    home = cache / "api-node"
    marker = home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != NODE_PACKAGES:
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true, "type": "module"}')
        done = subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund",
                               *NODE_PACKAGES], cwd=home, check=False)
        if done.returncode != 0:
            skip("the npm packages cannot be installed")
        marker.write_text(json.dumps(NODE_PACKAGES))
    shutil.copy(HERE / "sdk_client.mjs", home / "sdk_client.mjs")
    return ["node", home / "sdk_client.mjs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("which", choices=["python", "node"])
    parser.add_argument("--cache", type=pathlib.Path,
                        default=HERE.parent.parent / "build-oracle")
    options = parser.parse_args()
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    command = python_client(cache) if options.which == "python" else node_client(cache)
    with tempfile.TemporaryDirectory() as folder:
        scripted_model.make(folder)
        with Server(options.program, folder, "--api-key", "sesame") as server:
            environment = {**os.environ, "FLASHMOE_URL": server.url, "NO_PROXY": "127.0.0.1"}
            done = subprocess.run(command, env=environment, check=False)
            if done.returncode != 0:
                print(server.lines())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
