"""Shared by tests that use a server: one server per class, its metrics, and waiting."""
import re
import sys
import tempfile
import time
import unittest

import scripted_model
from served import Server


def metric(server, name):
    text = server.request("GET", "/metrics")[2].decode()
    return float(re.search(rf"^flashmoe_{name} (\S+)$", text, re.M).group(1))


def wait_until(what, seconds=1800):
    """Waits with a deadline of minutes, which only a hanging server reaches."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return False


def read_all(connection):
    """Reads until the other side closes."""
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data


class OneServer(unittest.TestCase):
    """One server of the program under test for all tests of a class; it must end without an
    error."""
    model = None # the scripted model
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        model = cls.model or scripted_model.make(cls.folder.name)
        cls.server = Server(sys.argv[1], model, *cls.options)
        cls.addClassCleanup(cls.stop_server) # also if setUpClass of a subclass fails

    @classmethod
    def stop_server(cls):
        status = cls.server.stop()
        log = cls.server.lines()
        cls.server.__exit__()
        if status != 0:
            raise AssertionError(f"the server ended with {status}:\n{log}")
