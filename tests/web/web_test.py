#!/usr/bin/env python3
"""Tests the server's page in Chromium.

usage: web_test.py [--packages DIR] [--program PROGRAM MODEL | --url URL] [--part PART]
                   [--shots DIR | --readme FILE | --reports [--shots DIR]]

The tests run against a server with the same API and scripted answers (mock_server.mjs). With
--program they run against the real one, which is started with so little memory that experts have to
be read. With --url they run against a server that is already running. Tests that need scripted
answers are left out then. PART is one of markdown, math, code, extras, looks, page and, only for
the program and nano, real; the default is all. --shots takes screenshots of the page instead.
--readme takes the one of README.md, with --program. --reports tests the reports of validate: the
samples in docs/, and with --program a new one of MODEL and one of a copy with two experts swapped.

playwright-core, axe-core, katex and temml come from npm and are kept in the packages folder. Exits
77, with the reason, if node, npm, Chromium or the packages are not available.
"""
import argparse
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# The newest playwright-core that runs with the node of Debian 12.
PACKAGES = {"playwright-core": "1.60.0", "axe-core": "4.12.0",
            # Two converters of formulas, to compare with.
            "katex": "0.19.1", "temml": "0.13.5"}
# The last part kills the server.
PARTS = ("markdown", "math", "code", "extras", "looks", "page", "real")
# A third of nano's experts.
REAL_OPTIONS = ("--memory", "70M", "--request-memory", "8M", "--parallel", "2", "--sessions", "2",
                "--context", "4096")
SKIPPED = 77

sys.path.insert(0, str(HERE.parent / "api"))
from served import Server  # pylint: disable=wrong-import-position


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def fetch(packages, name, version):
    """Unpacks an npm package that has no dependencies, so that node finds it by its name."""
    target = packages / "node_modules" / name
    marker = target / f".{version}"
    if marker.exists():
        return
    packages.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=packages) as scratch:
        environment = {**os.environ, "npm_config_cache": f"{scratch}/cache"}
        done = subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=scratch,
                              env=environment, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            skip(f"npm does not give {name}@{version}: {reason}")
        with tarfile.open(f"{scratch}/{done.stdout.split()[-1]}") as archive:
            archive.extractall(scratch)
        pathlib.Path(scratch, "package", marker.name).touch()
        target.parent.mkdir(exist_ok=True)
        with open(packages / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not marker.exists():
                shutil.rmtree(target, ignore_errors=True)
                os.rename(f"{scratch}/package", target)


def swap_experts(model, layer):
    """Lets two experts of a packed model change places."""
    size = json.loads((model / "model.json").read_text())["experts"][layer]["record_bytes"]
    path = model / f"experts-{layer:03}.bin"
    data = path.read_bytes()
    path.write_bytes(data[size:2 * size] + data[:size] + data[2 * size:])


def make_reports(program, model, folder):
    """Validates the model and a damaged copy of it. Returns the pages."""
    damaged = folder / "model.fmoe"
    shutil.copytree(model, damaged)
    swap_experts(damaged, 5)
    pages = []
    for name, path, status in (("passed", model, 0), ("failed", damaged, 1)):
        done = subprocess.run([program, "validate", path, "-q", "--quick", "--out", folder / name],
                              check=False)
        if done.returncode != status:
            sys.exit(f"validate ended with {done.returncode}, not {status}")
        pages.append(folder / f"{name}.html")
    return pages


def run_reports(options, environment):
    with tempfile.TemporaryDirectory() as folder:
        pages = sorted((HERE.parent.parent / "docs").glob("validate-*.html"))
        if options.program:
            pages += make_reports(*options.program, pathlib.Path(folder))
        environment["FLASHMOE_REPORTS"] = "\n".join(map(str, pages))
        if options.shots:
            options.shots.mkdir(parents=True, exist_ok=True)
            environment["FLASHMOE_SHOTS"] = str(options.shots.resolve())
        return subprocess.run(["node", "--test", "--test-reporter=spec", HERE / "report_test.mjs"],
                              env=environment, check=False).returncode


def run_parts(options, environment):
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
        commands = [["node", HERE / "shots.mjs", options.shots.resolve()]]
    elif options.readme:
        commands = [["node", HERE / "readme_shot.mjs", options.readme.resolve()]]
    else:
        parts = PARTS[3:] if options.program else PARTS[:-1]
        commands = [["node", "--test", "--test-reporter=spec", HERE / f"{part}_test.mjs"]
                    for part in ([options.part] if options.part else parts)]
    results = [subprocess.run(command, env=environment, check=False).returncode
               for command in commands]
    return 1 if any(results) else 0


def run_with_program(options, environment):
    program, model = options.program
    with Server(program, model, *REAL_OPTIONS) as server:
        again = [program, "serve", model, "--port", str(server.port), "--no-heat", *REAL_OPTIONS]
        environment.update(FLASHMOE_WEB_URL=server.url + "/",
                           FLASHMOE_WEB_PID=str(server.process.pid),
                           FLASHMOE_WEB_COMMAND=json.dumps(again))
        rc = run_parts(options, environment)
        if rc != 0:
            print(server.lines()[-3000:])
    return rc


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--packages", type=pathlib.Path, default=HERE.parent.parent / "build-web")
    parser.add_argument("--program", nargs=2, metavar=("PROGRAM", "MODEL"))
    parser.add_argument("--url")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--shots", type=pathlib.Path)
    parser.add_argument("--readme", type=pathlib.Path)
    parser.add_argument("--reports", action="store_true")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser:
        skip("no chromium (Debian: apt-get install chromium)")
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            skip(f"no {tool} (Debian: apt-get install nodejs npm)")
    packages = options.packages.resolve()
    for name, version in PACKAGES.items():
        fetch(packages, name, version)
    # The browser keeps its files in a folder that is removed after the test.
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "FLASHMOE_WEB_PACKAGES": str(packages),
                       "FLASHMOE_CHROMIUM": browser, "HOME": home, "XDG_CACHE_HOME": home,
                       "XDG_CONFIG_HOME": home, "FLASHMOE_WEB_URL": options.url or ""}
        if options.reports:
            return run_reports(options, environment)
        if options.program:
            return run_with_program(options, environment)
        return run_parts(options, environment)


if __name__ == "__main__":
    sys.exit(main())
