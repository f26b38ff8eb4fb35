#!/usr/bin/env python3
"""Plants one-line faults in the code, one after another, and runs the tests that must notice them.

usage: mutate.py [--only TEXT] [--list] [--check [BUILD]]

Each entry of faults.py names a file, a piece of its text, what to put there instead, and the tests
that must fail. This program copies the tree to build-mutate/, builds it there, and checks that the
named tests pass. Then it plants each fault, builds what its tests need, runs them, and takes the
fault out again. A fault survives if one of its tests still passes. The exit status is 1 if any
fault survives, so nothing may survive before a release.

--only   plant only the faults whose name or file contains TEXT
--list   print the faults and stop
--check  check that every fault can still be planted and, with BUILD, that its tests exist there.
         `make test` does this, so that the list stays in step with the code.

A full run takes about a minute per fault on 2 cores.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from faults import FAULTS

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
COPY = TREE / "build-mutate" / "tree"
# A fault may make a test hang. No test needs this long on a slow machine.
TEST_SECONDS = 900


def say(text):
    print(text, flush=True)


def planted(tree, fault):
    """The text of the fault's file with the fault in it."""
    text = (tree / fault.file).read_text(encoding="utf-8")
    n = text.count(fault.old)
    if n != 1:
        raise ValueError(f"{fault.file}: the text of '{fault.name}' occurs {n} times, not once: "
                         f"{fault.old!r}")
    return text.replace(fault.old, fault.new)


def tests_of(build):
    """The command of every test that a build folder has."""
    listing = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, check=True,
                             stdout=subprocess.PIPE).stdout
    return {test["name"]: test.get("command", []) for test in json.loads(listing)["tests"]}


def check(build):
    """The faults that cannot be planted or that name a test that does not exist."""
    wrong = []
    names = [fault.name for fault in FAULTS]
    wrong += [f"two faults have the name '{name}'" for name in set(names) if names.count(name) > 1]
    tests = tests_of(build) if build else None
    for fault in FAULTS:
        try:
            planted(TREE, fault)
        except (OSError, ValueError) as error:
            wrong.append(str(error))
        if not fault.tests:
            wrong.append(f"'{fault.name}' names no test")
        wrong += [f"'{fault.name}' names the test {name}, which does not exist"
                  for name in fault.tests if tests is not None and name not in tests]
    return wrong


def copy_tree():
    """The files that git knows or would add. Files that did not change keep their times."""
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], cwd=TREE, check=True,
                             stdout=subprocess.PIPE).stdout
    wanted = {name for name in listing.decode().split("\0") if name and (TREE / name).is_file()}
    for name in wanted:
        source, target = TREE / name, COPY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copy2(source, target)
            os.utime(target)
    for path in COPY.rglob("*"):
        name = path.relative_to(COPY)
        if path.is_file() and name.parts[0] != "build" and str(name) not in wanted:
            path.unlink()


def build_targets(commands):
    """The files in the build folder that the tests' commands name: the program, test programs,
    libraries to preload."""
    build = COPY / "build"
    found = set()
    for command in commands:
        for word in command:
            path = pathlib.Path(word)
            if path.is_absolute() and build in path.parents and path.is_file():
                found.add(str(path.relative_to(build)))
    return sorted(found)


def make(targets, is_quiet=True):
    done = subprocess.run(["ninja", "-C", COPY / "build", *targets], check=False,
                          stdout=subprocess.PIPE if is_quiet else None, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise ValueError("it does not compile:\n" + (done.stdout or b"").decode()[-2000:])


def run_tests(names):
    """The named tests that failed."""
    report = COPY / "build" / "mutate.xml"
    report.unlink(missing_ok=True)
    pattern = "|".join(re.escape(name) for name in names)
    subprocess.run(["ctest", "--timeout", str(TEST_SECONDS), "-R", f"^({pattern})$",
                    "--output-junit", report], cwd=COPY / "build", check=False,
                   env={**os.environ, "XDG_CACHE_HOME": "/dev/null/none"},
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    text = report.read_text(encoding="utf-8", errors="replace")
    status = dict(re.findall(r'<testcase name="([^"]+)".*?status="([^"]+)"', text))
    missing = [name for name in names if name not in status]
    if missing:
        raise ValueError(f"not run: {', '.join(missing)}")
    return [name for name in names if status[name] == "fail"]


def survivors_of(fault, tests):
    """Plants the fault; the tests that did not notice it."""
    path = COPY / fault.file
    sound = path.read_text(encoding="utf-8")
    targets = build_targets([tests[name] for name in fault.tests])
    try:
        path.write_text(planted(COPY, fault), encoding="utf-8")
        make(targets)
        failed = run_tests(fault.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
    return [name for name in fault.tests if name not in failed]


def prepare(faults):
    """Builds the copy and checks that every test that will be used passes there."""
    copy_tree()
    subprocess.run(["cmake", "--preset", "release", "-DFLASHMOE_TESTS=ON"], cwd=COPY, check=True,
                   stdout=subprocess.DEVNULL)
    make([], is_quiet=False)
    tests = tests_of(COPY / "build")
    names = sorted({name for fault in faults for name in fault.tests})
    say(f"{len(faults)} faults, {len(names)} tests; first the tests without a fault")
    failed = run_tests(names)
    if failed:
        sys.exit(f"these fail without any fault: {', '.join(failed)}")
    return tests


def run(faults):
    tests = prepare(faults)
    begin, survived = time.monotonic(), []
    for i, fault in enumerate(faults):
        try:
            blind = survivors_of(fault, tests)
            verdict = f"SURVIVED {', '.join(blind)}" if blind else "noticed"
        except ValueError as error:
            blind, verdict = True, f"INVALID {error}"
        if blind:
            survived.append(f"{fault.file}: {fault.name}: {verdict}")
        spent = time.monotonic() - begin
        left = spent / (i + 1) * (len(faults) - i - 1)
        say(f"[{i + 1}/{len(faults)}, {left / 60:.0f} min left] {fault.file}: {fault.name}: "
            f"{verdict}")
    say(f"{len(faults)} faults, {len(survived)} survived")
    for line in survived:
        say(line)
    return 1 if survived else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", nargs="?", const="", metavar="BUILD")
    options = parser.parse_args()
    if options.check is not None:
        wrong = check(options.check)
        say("\n".join(wrong) or f"{len(FAULTS)} faults can be planted")
        return 1 if wrong else 0
    faults = [f for f in FAULTS if options.only in f.name or options.only in f.file]
    if options.list:
        for fault in faults:
            say(f"{fault.file}: {fault.name} ({', '.join(fault.tests)})")
        return 0
    if not faults:
        sys.exit(f"no fault has '{options.only}' in its name or file")
    return run(faults)


if __name__ == "__main__":
    sys.exit(main())
