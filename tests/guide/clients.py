"""The clients from package registries whose settings docs/CLIENTS.md shows.

The packages are installed into the folders that tests/clients and tests/api use.
"""
import pathlib
import sys

from pages import ROOT

# The name in `needs NAME`. tests/clients/open_webui_test.py runs the block of Open WebUI.
ELSEWHERE = ("open_webui",)
LIBRARIES = ("anthropic", "openai")  # of the environment of tests/api/sdk_test.py
NAMES = ("aider", *LIBRARIES, "continue_node", "llm", "ollama", *ELSEWHERE)


def programs_of(name, cache):
    """Installs a client. Returns the folder with its programs, `python` among them."""
    for folder in ("api", "clients"):
        sys.path.insert(0, str(ROOT / "tests" / folder))
    # pylint: disable=import-outside-toplevel
    import clients_test
    import packages
    import sdk_test
    cache = pathlib.Path(cache).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    if name in LIBRARIES:
        return pathlib.Path(sdk_test.python_client(cache)[0]).parent
    if name in clients_test.NODE:
        return packages.node_of(name, clients_test.NODE[name], cache) / "node_modules" / ".bin"
    return pathlib.Path(packages.python_of(name, clients_test.PYTHON[name], cache)).parent
