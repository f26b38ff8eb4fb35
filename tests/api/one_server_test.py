#!/usr/bin/env python3
"""Tests that the server of a class ends with the class, and that an error at its end is reported.

usage: one_server_test.py PROGRAM
"""
import signal
import sys
import unittest

from one_server import OneServer


def run(case):
    """Returns the result of the class, run as unittest does."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


class Ends(unittest.TestCase):
    def test_failed_setup(self):
        class Failing(OneServer):
            @classmethod
            def setUpClass(cls):
                super().setUpClass()
                raise ValueError("no more")

            def test_nothing(self):
                pass

        result = run(Failing)
        try:
            self.assertEqual((result.testsRun, len(result.errors)), (0, 1))
            self.assertIsNotNone(Failing.server.process.poll())
        finally:
            Failing.server.__exit__()

    def test_status(self):
        class Killed(OneServer):
            def test_kill(self):
                self.server.stop(signal.SIGKILL)

        result = run(Killed)
        self.assertEqual((result.testsRun, len(result.errors)), (1, 1))
        self.assertIn("the server ended with -9", result.errors[0][1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
