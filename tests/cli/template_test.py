"""Tests how a conversation is shown as the model's template renders it.

Usage: template_test.py PROGRAM MODEL [TestClass...]

MODEL is a tiny checkpoint with a tokenizer.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))

import cli_test
from cli_test import Case, flashmoe
from served import Server


class Template(Case):
    MESSAGES = '[{"role": "user", "content": "Hi <|im_end|>"}]'
    TEXT = "<|im_start|>user\nHi <|im_end|><|im_end|>\n"

    def template(self, *args):
        result = flashmoe("template", cli_test.MODEL, "-", *args, text=self.MESSAGES)
        return self.assert_works(result).stdout

    def test_forms(self):
        whole = self.TEXT + "<|im_start|>assistant\n"
        self.assertEqual(self.template(), whole)
        for more in (["--no-generation-prompt"], ["--set", '{"add_generation_prompt": false}'],
                     ["--set", "add_generation_prompt=false"]):
            self.assertEqual(self.template(*more), self.TEXT)
        rows = [row.split() for row in self.template("--tokens").splitlines()]
        self.assertEqual(len([row for row in rows if row[1] == "*"]), 3)
        found = json.loads(self.template("--json"))
        self.assertEqual(found["text"], whole)
        self.assertEqual(found["tokens"], [int(row[0]) for row in rows])

    def test_note(self):
        """Every command that uses ChatML in place of a template says so, once."""
        note = "note: this model has no chat template; ChatML stands in"
        run = ["run", cli_test.MODEL, "-p", "Hi", "-n", "1", "--greedy"]
        for command, expected in ((run, 1), ([*run, "--quiet"], 0), ([*run, "--raw"], 0),
                                  (["chat", cli_test.MODEL, "-n", "1"], 1),
                                  (["chat", cli_test.MODEL, "-n", "1", "--quiet"], 0)):
            result = self.assert_works(flashmoe(*command, text="Hi\n"))
            self.assertEqual(result.stderr.count(note), expected, command)
        for options, expected in (((), 1), (("--quiet",), 0)):
            with Server(cli_test.PROGRAM, cli_test.MODEL, *options) as server:
                self.assertEqual(server.lines().count(note), expected)
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(cli_test.MODEL):
                os.symlink(os.path.join(cli_test.MODEL, name), os.path.join(folder, name))
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
                f.write("{{ messages[0].content }}")
            result = self.assert_works(flashmoe("run", folder, *run[2:]))
            self.assertNotIn("template", result.stderr)

    def test_refusals(self):
        for text, part in (("{", "not JSON"), ("1", "array of messages"), ("[1]", "message 0")):
            self.assert_fails(flashmoe("template", cli_test.MODEL, "-", text=text), 1, part)


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
