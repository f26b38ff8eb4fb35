#!/usr/bin/env python3
"""tiers_test.py CTEST BUILD: checks which tests `make test` and `make test-all` run, and that CI
runs every test once."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

CTEST, BUILD = sys.argv[1:3]
TREE = pathlib.Path(__file__).resolve().parents[2]
SECOND = "second-tier"
# Browsers, client libraries, emulators, load.
IS_SECOND = re.compile(r"(web|load)\.|api\.sdk_|kernels\.check_(other|tiles)$")


def tests(*selection):
    """Returns {name: command} of the tests that ctest would run."""
    listing = subprocess.run([CTEST, "--show-only=json-v1", *selection], cwd=BUILD, check=True,
                             stdout=subprocess.PIPE).stdout
    return {test["name"]: test.get("command", []) for test in json.loads(listing)["tests"]}


NOTE = """#!/bin/sh
for word; do
    case $word in -L|-LE|-R|x|second-tier) printf "%s " "$word" ;; esac
done >> "$NOTED"
echo >> "$NOTED"
for folder in build*; do echo '<testcase status="run"/>' > "$folder/ctest.xml"; done
"""


def selections(*command):
    """Returns how `command` selects tests, for each time that it starts ctest. The programs that it
    would build and run are replaced by ones that record how they are called."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, text in (("bin/ctest", NOTE), ("bin/cmake", "#!/bin/sh\n"),
                           ("tree/tools/deps.sh", "exit 0\n")):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        for name in ("Makefile", "tools/check.sh", ".ci/run"):
            path = folder / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((TREE / name).read_bytes())
        for name in ("build", "build-debug", "build-asan", "build-tsan"):
            (folder / "tree" / name).mkdir()
        kept = {name: value for name, value in os.environ.items()
                if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS")}
        environment = {**kept, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
                       "NOTED": str(folder / "noted")}
        subprocess.run(command, cwd=folder / "tree", env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        return (folder / "noted").read_text(encoding="utf-8").splitlines()


class Tiers(unittest.TestCase):
    def test_kinds(self):
        """The kinds of tests that belong in the second tier are there."""
        first = tests("-LE", SECOND)
        self.assertGreater(len(first), 100)
        wrong = [name for name, command in first.items()
                 if IS_SECOND.match(name) or any("qemu" in word for word in command)]
        self.assertEqual(wrong, [])

    def test_parts(self):
        """A part of a sweep is in the first tier, all of it in the second."""
        first, second = tests("-LE", SECOND), tests("-L", SECOND)
        parts = [name for name in {**first, **second} if name.endswith(".few")]
        self.assertGreater(len(parts), 2)
        for name in parts:
            self.assertIn(name, first)
            self.assertNotIn(name.removesuffix(".few"), first)

    def test_makefile(self):
        self.assertEqual(selections("make", "test"), [f"-LE {SECOND} "])
        self.assertEqual(selections("make", "test", "ARGS=-R x"), [f"-LE {SECOND} -R x "])
        for target in ("test-all", "debug", "asan", "tsan"):
            self.assertEqual(selections("make", target), [""], target)

    def test_ci(self):
        """CI runs both tiers, neither of them twice."""
        self.assertEqual(selections("bash", ".ci/run"), [f"-LE {SECOND} ", f"-L {SECOND} "])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
