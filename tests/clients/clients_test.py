#!/usr/bin/env python3
"""Runs a client library or program against the server with the scripted model.

usage: clients_test.py PROGRAM CLIENT [--cache DIR]

NAME_client.py or NAME_client.mjs has the checks. It finds the server at FLASHMOE_URL; the key is
"sesame". The packages are fetched into the cache directory; the exit status is 77 when they cannot
be.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from packages import HERE, node_of, python_of

sys.path.insert(0, str(HERE.parent / "api"))
import scripted_model # pylint: disable=wrong-import-position
from served import Server # pylint: disable=wrong-import-position

PYTHON = {
    "aider": ["aider-chat<1"],
    "instructor": ["instructor<2"],
    "langchain": ["langchain-openai<2", "langchain-anthropic<2", "langchain-core<2"],
    "litellm": ["litellm<2", "mcp"],
    "llama_index": ["llama-index-llms-openai-like<1", "llama-index-embeddings-openai-like<1"],
    "llm": ["llm<1"],
    "ollama": ["ollama<1"],
    "openai_agents": ["openai-agents<1"],
    "pydantic_ai": ["pydantic-ai-slim[openai,anthropic]<3"],
    "smolagents": ["smolagents[openai]<2"],
}
NODE = {
    "continue_node": ["@continuedev/cli@1"],
    "ollama_node": ["ollama@0"],
    "openai_agents_node": ["@openai/agents@0", "zod"],
}


def command_of(name, cache):
    if name in PYTHON:
        return [python_of(name, PYTHON[name], cache), HERE / f"{name}_client.py"]
    folder = node_of(name, NODE[name], cache)
    shutil.copy(HERE / f"{name}_client.mjs", folder) # it finds packages beside itself only
    return ["node", folder / f"{name}_client.mjs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("client", choices=[*PYTHON, *NODE])
    parser.add_argument("--cache", type=pathlib.Path)
    options = parser.parse_args()
    command = command_of(options.client, options.cache)
    with tempfile.TemporaryDirectory() as folder:
        scripted_model.make(pathlib.Path(folder) / "model")
        home = pathlib.Path(folder) / "home" # for what clients write
        home.mkdir()
        with Server(options.program, pathlib.Path(folder) / "model", "--api-key",
                    "sesame") as server:
            environment = {**os.environ, "FLASHMOE_URL": server.url, "NO_PROXY": "127.0.0.1",
                           "HOME": str(home), "PATH": f"{command[0].parent}:{os.environ['PATH']}"
                           if isinstance(command[0], pathlib.Path) else os.environ["PATH"]}
            done = subprocess.run(command, env=environment, check=False, cwd=home)
            if done.returncode != 0:
                print(server.lines())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
