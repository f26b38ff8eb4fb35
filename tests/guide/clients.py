"""The clients from package registries whose settings docs/CLIENTS.md shows.

The packages are installed into the folders that tests/clients uses.
"""
import pathlib
import sys

from pages import ROOT

# The name in `needs NAME`. tests/clients/open_webui_test.py runs the block of Open WebUI.
ELSEWHERE = ("open_webui",)
# Those that are not in tests/clients: tests/api has their tests, for all in one folder.
LIBRARIES = {"anthropic": ["anthropic>=0.40,<1"], "openai": ["openai>=1.60,<3"]}
NAMES = ("aider", *LIBRARIES, "continue_node", "llm", "ollama", *ELSEWHERE)


def programs_of(name, cache):
    """Installs a client. Returns the folder with its programs, `python` among them."""
    sys.path.insert(0, str(ROOT / "tests/clients"))
    # pylint: disable=import-outside-toplevel
    import clients_test
    import packages
    cache = pathlib.Path(cache).resolve()
    if name in clients_test.NODE:
        return packages.node_of(name, clients_test.NODE[name], cache) / "node_modules" / ".bin"
    wanted = {**clients_test.PYTHON, **LIBRARIES}[name]
    return pathlib.Path(packages.python_of(name, wanted, cache)).parent
