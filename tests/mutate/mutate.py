#!/usr/bin/env python3
"""Plants one-line faults in copies of the tree, one at a time in each, and runs the tests that must
notice them.

usage: mutate.py [--only TEXT] [--jobs N] [--list] [--check [BUILD]]

Each entry of faults.py names a file, a piece of its text, what to put there instead, and the tests
that must fail. This program copies the tree to build-mutate/0, builds there what the tests need,
and checks that they pass. Then it plants each fault, builds, runs its tests, and takes the fault
out again. A fault survives if one of its tests still passes. A fault is skipped if one of its
tests cannot be run here, or fails without a fault: whether it is noticed is then not known. The
exit status is 1 if any fault survives or is skipped, so neither may happen before a release.

--only   plant only the faults whose name or file contains TEXT; may be given more than once
--jobs   plant N faults at a time, each in a copy of its own (build-mutate/0, 1, ...). The default
         is one per two processors.
--list   print the faults and stop
--check  check that every fault can still be planted and, with BUILD, that its tests exist there.
         `make test` does this, so that the list stays in step with the code.

A full run takes about a minute per fault on 2 cores.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import time

from faults import FAULTS

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
COPIES = TREE / "build-mutate"
PROCESSORS = os.cpu_count() or 1
# A fault may make a test hang. No test needs this long on a slow machine.
TEST_SECONDS = 900


def say(text):
    print(text, flush=True)


def planted(tree, fault):
    """Returns the text of the fault's file with the fault in it."""
    text = (tree / fault.file).read_text(encoding="utf-8")
    n = text.count(fault.old)
    if n != 1:
        raise ValueError(f"{fault.file}: the text of '{fault.name}' occurs {n} times, not once: "
                         f"{fault.old!r}")
    return text.replace(fault.old, fault.new)


def tests_of(build):
    """Returns the command of every test of a build folder. ctest does not tell the commands of
    programs that are not built yet."""
    tests = {}
    for listing in pathlib.Path(build).rglob("CTestTestfile.cmake"):
        for name, command in re.findall(r'^add_test\((?:\[=\[|")?(.+?)(?:\]=\]|")? (".*)\)$',
                                        listing.read_text(encoding="utf-8"), re.MULTILINE):
            tests[name] = re.findall(r'"([^"]*)"', command)
    return tests


def check(build):
    """Returns the faults that cannot be planted or that name a test that does not exist."""
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


def files_of_tree():
    """Returns the files that git knows or would add; without git, all except those of builds."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                  "--exclude-standard"], cwd=TREE, check=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = listing.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        paths = [path for top in TREE.iterdir() if not top.name.startswith(("build", "."))
                 for path in ([top] if top.is_file() else top.rglob("*"))]
        names = [str(path.relative_to(TREE)) for path in paths if path.parent.name != "__pycache__"]
    return {name for name in names if name and (TREE / name).is_file()}


class Copy:
    """A copy of the tree, in which one fault at a time is planted."""

    def __init__(self, number, n_compilers):
        self.tree = COPIES / str(number)
        self.build = self.tree / "build"
        self.n_compilers = n_compilers
        self.environment = dict(os.environ)
        if shutil.which("ccache"):
            self.environment.update(CMAKE_C_COMPILER_LAUNCHER="ccache", CCACHE_NOHASHDIR="1",
                                    CCACHE_BASEDIR=str(self.tree))

    def fill(self):
        """Files that did not change keep their times."""
        wanted = files_of_tree()
        for name in wanted:
            source, target = TREE / name, self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copy2(source, target)
                os.utime(target)
        for path in self.tree.rglob("*"):
            name = path.relative_to(self.tree)
            if path.is_file() and name.parts[0] != "build" and str(name) not in wanted:
                path.unlink()

    def call(self, command, folder, **environment):
        """Runs a command. Returns its exit status and output."""
        done = subprocess.run(command, cwd=folder, env=self.environment | environment, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout.decode(errors="replace")

    def make(self, names):
        """Builds the files that the commands of the named tests name: the program, test programs,
        libraries to preload."""
        tests = tests_of(self.build)
        paths = {pathlib.Path(word) for name in names for word in tests.get(name, [])}
        inside = {str(path.relative_to(self.build)) for path in paths if self.build in path.parents}
        _, known = self.call(["ninja", "-t", "targets", "all"], self.build)
        targets = sorted(inside & set(re.findall(r"^(.*): ", known, re.MULTILINE)))
        status, said = self.call(["ninja", "-j", str(self.n_compilers), *targets], self.build)
        if status != 0:
            raise ValueError("it does not compile:\n" + said[-2000:])

    def prepare(self, names):
        """Copies the tree and builds what the named tests need."""
        self.fill()
        status, said = self.call(["cmake", "--preset", "release", "-DFLASHMOE_TESTS=ON"], self.tree)
        if status != 0:
            raise ValueError("cmake failed:\n" + said[-2000:])
        self.make(names)

    def run_tests(self, names):
        """Returns how each of the named tests ended: passed, failed, not run, or None if there is
        no such test."""
        report = self.build / "mutate.xml"
        report.unlink(missing_ok=True)
        pattern = "|".join(re.escape(name) for name in names)
        self.call(["ctest", "--timeout", str(TEST_SECONDS), "-R", f"^({pattern})$",
                   "--output-junit", report], self.build, XDG_CACHE_HOME="/dev/null/none")
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
        status = dict(re.findall(r'<testcase name="([^"]+)".*?status="([^"]+)"', text))
        words = {"run": "passed", "fail": "failed", None: None}
        return {name: words.get(status.get(name), "not run") for name in names}

    def verdict(self, fault):
        """Plants the fault and returns whether its tests notice it."""
        path = self.tree / fault.file
        sound = path.read_text(encoding="utf-8")
        try:
            path.write_text(planted(self.tree, fault), encoding="utf-8")
            self.make(fault.tests)
            ends = self.run_tests(fault.tests)
        except ValueError as error:
            return f"INVALID {error}"
        finally:
            path.write_text(sound, encoding="utf-8")
        blind = [name for name in fault.tests if ends[name] != "failed"]
        return f"SURVIVED {', '.join(blind)}" if blind else "noticed"


def spread(copies, work, items):
    """Yields each item with work(copy, item). Every copy takes the next item when it is free."""
    free = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(item):
        copy = free.get()
        try:
            return item, work(copy, item)
        finally:
            free.put(copy)

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(one, i) for i in items]):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def useless_tests(copies, names):
    """Returns the tests that cannot show whether a fault is noticed, with the reason."""
    reasons = {"failed": "fails without a fault", "not run": "cannot be run here",
               None: "does not exist here"}
    ends = spread(copies, lambda copy, name: copy.run_tests([name])[name], names)
    return {name: reasons[end] for name, end in ends if end != "passed"}


def run(faults, jobs):
    copies = [Copy(i, max(1, PROCESSORS // jobs)) for i in range(jobs)]
    names = sorted({name for fault in faults for name in fault.tests})
    say(f"{len(faults)} faults, {len(names)} tests; building {jobs} copies of the tree")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda copy: copy.prepare(names), copies))
    say("running the tests without a fault")
    useless = useless_tests(copies, names)
    for name, reason in useless.items():
        say(f"{name} {reason}: its faults are skipped")

    lost = []

    def report(n_done, fault, verdict, left):
        say(f"[{n_done}/{len(faults)}, {left / 60:.0f} min left] {fault.file}: {fault.name}: "
            f"{verdict}")
        if verdict != "noticed":
            lost.append(f"{fault.file}: {fault.name}: {verdict}")

    skipped = [fault for fault in faults if any(name in useless for name in fault.tests)]
    sound = [fault for fault in faults if fault not in skipped]
    for i, fault in enumerate(skipped):
        why = [f"{name} {useless[name]}" for name in fault.tests if name in useless]
        report(i + 1, fault, f"SKIPPED {', '.join(why)}", 0)
    begin = time.monotonic()
    for i, (fault, verdict) in enumerate(spread(copies, Copy.verdict, sound)):
        left = (time.monotonic() - begin) / (i + 1) * (len(sound) - i - 1)
        report(len(skipped) + i + 1, fault, verdict, left)
    say(f"{len(faults)} faults, {len(lost) - len(skipped)} survived, {len(skipped)} skipped")
    for line in lost:
        say(line)
    return 1 if lost else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=max(1, PROCESSORS // 2), metavar="N")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", nargs="?", const="", metavar="BUILD")
    options = parser.parse_args()
    if options.check is not None:
        wrong = check(options.check)
        say("\n".join(wrong) or f"{len(FAULTS)} faults can be planted")
        return 1 if wrong else 0
    only = options.only or [""]
    faults = [f for f in FAULTS if any(text in f.name or text in f.file for text in only)]
    if options.list:
        for fault in faults:
            say(f"{fault.file}: {fault.name} ({', '.join(fault.tests)})")
        return 0
    if not faults:
        sys.exit(f"no fault has {' or '.join(map(repr, only))} in its name or file")
    if options.jobs < 1:
        sys.exit(f"--jobs {options.jobs}: at least one fault is planted at a time")
    try:
        return run(faults, min(options.jobs, len(faults)))
    except ValueError as error:
        sys.exit(f"the tree without a fault: {error}")


if __name__ == "__main__":
    sys.exit(main())
