#!/usr/bin/env python3
"""Chats in the page of PyPI's Open WebUI, in Chromium, through both APIs that it can use.

usage: open_webui_test.py PROGRAM [--cache DIR] [--web-packages DIR]

Open WebUI gets the settings that docs/CLIENTS.md shows. Two servers with the scripted model have
different names, so that each chat shows which API it went through. Open WebUI runs offline and
without the packages for embeddings, speech and scanned pages (5 GB), which a chat does not use. Its
data are in a folder that is removed at the end. Exits 77, with the reason, if something cannot be
installed.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from packages import HERE, python_of, skip

# pylint: disable=wrong-import-position
for folder in ("api", "web", "guide"):
    sys.path.insert(0, str(HERE.parent / folder))
import scripted_model
from machine import free_port
from pages import blocks_of
from served import Server
import web_test

PACKAGES = ["open-webui<1"]
WITHOUT = ("torch", "sentence-transformers", "transformers", "faster-whisper",
           "opencv-python-headless", "rapidocr-onnxruntime")
# No network, nobody to sign in, no requests besides the chat.
QUIET = {"OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "WEBUI_AUTH": "False",
         "WEBUI_SECRET_KEY": "of the test", "RAG_EMBEDDING_ENGINE": "openai",
         "RAG_EMBEDDING_MODEL": "", "ENABLE_TITLE_GENERATION": "False",
         "ENABLE_TAGS_GENERATION": "False", "ENABLE_FOLLOW_UP_GENERATION": "False",
         "ENABLE_AUTOCOMPLETE_GENERATION": "False", "ENABLE_VERSION_UPDATE_CHECK": "False",
         "ANONYMIZED_TELEMETRY": "false", "DO_NOT_TRACK": "true", "SCARF_NO_ANALYTICS": "true",
         "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
# The setting of each connection, the path that its chats go to, and the name of its server.
CONNECTIONS = (("OPENAI_API_BASE_URL", "/v1/chat/completions", "by-openai"),
               ("OLLAMA_BASE_URL", "/api/chat", "by-ollama"))


def settings_of_page():
    """Returns the variables that docs/CLIENTS.md sets, and the command."""
    block = next(b for b in blocks_of("docs/CLIENTS.md") if b.value == "open_webui")
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", block.text, re.M))
    return variables, block.text.splitlines()[-1].split()


def wait_until_up(process, url, log):
    while True:
        if process.poll() is not None:
            raise SystemExit(f"Open WebUI ended with {process.returncode}:\n"
                             f"{log.read_text(errors='replace')[-5000:]}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=10) as answer:
                if json.load(answer)["status"]:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)


def start(python, folder, servers):
    """Starts Open WebUI as the page says. Returns the process, its address and its log."""
    variables, command = settings_of_page()
    assert command[:2] == ["open-webui", "serve"], command
    assert {name for name, _, _ in CONNECTIONS} < set(variables), variables
    for (name, _, _), server in zip(CONNECTIONS, servers):
        variables[name] = re.sub(r"^http://127\.0\.0\.1:8080", server.url, variables[name])
    port = str(free_port())
    words = [port if word == "3000" else word for word in command[1:]]
    home = folder / "home"
    home.mkdir()
    log = folder / "log"
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment.update(QUIET, **variables, HOME=str(home), DATA_DIR=str(folder / "data"),
                       XDG_CACHE_HOME=str(home / "cache"), TMPDIR=str(home),
                       CORS_ALLOW_ORIGIN=f"http://127.0.0.1:{port}")
    (folder / "data").mkdir()
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen([python.parent / "open-webui", *words], env=environment,
                                   cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(process, url, log)
    except BaseException:
        stop(process)
        raise
    return process, url, log


def stop(process):
    """Ends Open WebUI and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            continue


def chat(url, browser, packages, folder):
    environment = {**os.environ, "FLASHMOE_WEB_PACKAGES": str(packages), "HOME": str(folder),
                   "FLASHMOE_CHROMIUM": browser, "OPEN_WEBUI_URL": url,
                   "OPEN_WEBUI_MODELS": json.dumps([name for _, _, name in CONNECTIONS])}
    return subprocess.run(["node", HERE / "open_webui.mjs"], env=environment,
                          check=False).returncode


def tools(options):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser or not shutil.which("node") or not shutil.which("npm"):
        skip("no chromium, node or npm (Debian: apt-get install chromium nodejs npm)")
    packages = options.web_packages.resolve()
    for name, version in web_test.PACKAGES.items():
        web_test.fetch(packages, name, version)
    return browser, packages


def faults_of(servers):
    """Each server must have answered one chat, over its own API."""
    found = []
    for (_, path, name), server in zip(CONNECTIONS, servers):
        posts = re.findall(r" POST (\S+) (\d+)", server.lines())
        if posts.count((path, "200")) != 1 or len(posts) != 1:
            found.append(f"{name}: one chat to {path} was expected, seen: {posts}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--web-packages", type=pathlib.Path,
                        default=HERE.parent.parent / "build-web")
    options = parser.parse_args()
    browser, packages = tools(options)
    python = python_of("open_webui", PACKAGES, options.cache, WITHOUT)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        scripted_model.make(scratch / "model")
        with Server(options.program, scratch / "model", "--name", "by-openai") as first, \
                Server(options.program, scratch / "model", "--name", "by-ollama") as second:
            process, url, log = start(python, scratch, (first, second))
            try:
                status = chat(url, browser, packages, scratch)
            finally:
                stop(process)
            faults = faults_of((first, second))
        for fault in faults:
            print(fault)
        if status != 0 or faults:
            print(log.read_text(errors="replace")[-5000:])
    return 1 if status != 0 or faults else 0


if __name__ == "__main__":
    sys.exit(main())
