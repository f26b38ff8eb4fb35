"""Lets PyPI's aider, a coding assistant, ask the server at FLASHMOE_URL; run by clients_test.py."""
import os
import subprocess
import unittest

URL = os.environ["FLASHMOE_URL"]


class Aider(unittest.TestCase):
    def run_aider(self, *more):
        words = ["aider", "--model", "openai/any", "--message", "A", "--no-git", "--yes-always",
                 "--no-auto-commits", "--no-check-update", "--no-show-model-warnings",
                 "--analytics-disable", "--no-pretty", "--no-show-release-notes", *more]
        environment = {**os.environ, "OPENAI_API_BASE": URL + "/v1", "OPENAI_API_KEY": "sesame"}
        done = subprocess.run(words, env=environment, check=False, timeout=600,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_message(self):
        """Which script answers depends on the words that aider puts behind the message."""
        for more in ((), ("--no-stream",)):
            self.assertRegex(self.run_aider("--edit-format", "ask", *more),
                             r"Tokens: \d+ sent, [1-9]\d* received")


if __name__ == "__main__":
    unittest.main()
