"""Installs client packages from the registries, each client in a folder of its own, because their
requirements conflict."""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parent.parent / "build-oracle"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


class Folder:
    """A folder for packages; `with` keeps others from installing into it at the same time."""

    def __init__(self, name, packages, cache):
        self.path = pathlib.Path(cache or CACHE).resolve() / f"client-{name}"
        self.packages = packages
        self.path.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        self.lock = open(self.path / "lock", "w", encoding="utf-8")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_):
        self.lock.close()

    def is_installed(self):
        marker = self.path / "packages.json"
        return marker.exists() and json.loads(marker.read_text()) == self.packages

    def install(self, *commands):
        # Certificates as pip and npm take them; no cache: tests have no cache folder.
        environment = {"UV_SYSTEM_CERTS": "1", "UV_NO_CACHE": "1", **os.environ}
        for command in commands:
            done = subprocess.run(command, cwd=self.path, check=False, env=environment)
            if done.returncode != 0:
                skip(f"{', '.join(self.packages)} cannot be installed")
        (self.path / "packages.json").write_text(json.dumps(self.packages))


def python_of(name, packages, cache=None, without=()):
    """Returns a Python with these packages, but without requirements that a test does not use."""
    with Folder(name, packages, cache) as folder:
        python = folder.path / "bin" / "python"
        if not folder.is_installed():
            venv.create(folder.path, with_pip=True)
            (folder.path / "without.txt").write_text(
                "".join(f"{package} ; sys_platform == 'none'\n" for package in without))
            # pip alone takes many minutes to choose versions of packages with many requirements.
            folder.install([python, "-m", "pip", "install", "--quiet", "uv"],
                           [folder.path / "bin" / "uv", "pip", "install", "--quiet", "--python",
                            python, "--override", "without.txt", *packages])
    return python


def node_of(name, packages, cache=None):
    """Returns a folder whose node_modules has these packages."""
    if not shutil.which("node") or not shutil.which("npm"):
        skip("there is no node")
    with Folder(name, packages, cache) as folder:
        if not folder.is_installed():
            (folder.path / "package.json").write_text('{"private": true, "type": "module"}')
            folder.install(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages])
    return folder.path
