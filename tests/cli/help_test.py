"""Asks every command of the program for help, in every way a user would.

Usage: help_test.py PROGRAM

The commands are those that the program lists, so a new one is tested without a change here.
"""

import re
import subprocess
import sys
import unittest

PROGRAM = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine


def flashmoe(*args):
    return subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=SECONDS)


def all_commands():
    """Returns the commands that the program lists, each as its words."""
    listed = flashmoe("help").stdout.split("\n\n")[2]
    return [re.match(r"  (\w+(?: \w+)?)  ", line)[1].split() for line in listed.splitlines()]


class Help(unittest.TestCase):
    def assert_help(self, result, usage):
        """Checks for help on standard output and nothing on standard error."""
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.args)
        self.assertTrue(result.stdout.startswith(f"Usage: flashmoe {usage} "), result.args)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)

    def assert_refused(self, result, text):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.args)
        self.assertRegex(result.stderr, r"\Aflashmoe: [^\n]+\n\Z")
        self.assertIn(text, result.stderr)

    def test_commands(self):
        commands = all_commands()
        self.assertLessEqual({("run",), ("serve",), ("bench", "decode"), ("help",)},
                             set(map(tuple, commands)))
        for words in commands:
            asked = flashmoe("help", *words)
            self.assert_help(asked, " ".join(words))
            for flag in ("--help", "-h"):
                result = flashmoe(*words, flag)
                self.assert_help(result, " ".join(words))
                self.assertEqual(result.stdout, asked.stdout)

    def test_groups(self):
        commands = [words for words in all_commands() if len(words) == 2]
        groups = {first: [second for word, second in commands if word == first]
                  for first, _ in commands}
        self.assertLessEqual({"bench", "eval"}, set(groups))
        for group, seconds in groups.items():
            for words in (["help", group], [group, "--help"], [group, "-h"],
                          [group, "--json", "--help"], [group, "-q", "-h"]):
                result = flashmoe(*words)
                self.assert_help(result, f"{group} COMMAND")
                self.assertEqual(re.findall(r"(?m)^  (\w+)  ", result.stdout), seconds)
                self.assertIn(f"'flashmoe help {group} COMMAND'", result.stdout)

    def test_what_is_no_command(self):
        self.assert_refused(flashmoe("bench"), "'bench' needs a second word")
        self.assert_refused(flashmoe("bench", "zzz", "--help"), "unknown command 'bench zzz'")
        self.assert_refused(flashmoe("bench", "--", "--help"), "unknown command 'bench --'")
        self.assert_refused(flashmoe("help", "bench", "zzz"), "unknown command 'bench zzz'")
        self.assert_refused(flashmoe("help", "run", "zzz"), "unexpected argument 'zzz' after 'run'")
        self.assert_refused(flashmoe("help", "eval", "nll", "zzz"),
                            "unexpected argument 'zzz' after 'eval nll'")
        self.assert_refused(flashmoe("help", "formats", "zzz"),
                            "unexpected argument 'zzz' after 'formats'")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
