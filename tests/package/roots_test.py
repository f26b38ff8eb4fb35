#!/usr/bin/env python3
"""Installs, runs, upgrades and removes the packages of a release in roots that have nothing else.

usage: roots_test.py RELEASE [TestClass...]

RELEASE is a folder that packaging/release.sh made. Needs root, mmdebstrap and a mirror of Debian;
exits 77, with the reason, where one of them or the release is missing. Roots lie in a temporary
folder; the folder in the variable ROOTS keeps what they are made of. Nothing else is changed.
"""
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

RELEASE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build-release").resolve()
RUN = ("run", "-q", "--greedy", "-n", "12", "--json", "-p", "Write a story about a robot.")
# A third of nano's experts fit, so answers read the files.
SMALL = ("--memory", "70M", "--request-memory", "8M", "--parallel", "2", "--sessions", "2",
         "--context", "4096")
# What installing and removing any package changes.
NOISE = re.compile(r"^\./(proc|dev|sys|tmp|run|var/(cache|log|lib/(apt|dpkg|systemd|rpm))|"
                   r"etc/ld\.so\.cache|root/\.)")
TIMEOUT_S = 900
missing = [] # the reasons why a root could not be made
TEMPORARY = tempfile.TemporaryDirectory(prefix="flashmoe-roots-")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Root:
    """A folder that is the root of what runs in it."""

    def __init__(self, path):
        self.path = path

    def command(self, *words):
        return ["chroot", str(self.path), *map(str, words)]

    def run(self, *words, check=True):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                       "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(self.command(*words), capture_output=True, text=True,
                              env=environment, timeout=TIMEOUT_S, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stdout[-2000:]}"
                                 f"{done.stderr[-2000:]}")
        return done

    def logits(self, program):
        """Returns the hash of the logits of an answer of nano."""
        return json.loads(self.run(program, *RUN).stdout)["logits_hash"]

    def files(self):
        found = subprocess.run(["find", ".", "-xdev", "-printf", "%p %l\n"], cwd=self.path,
                               capture_output=True, text=True, check=True).stdout
        return {line for line in found.splitlines() if not NOISE.match(line)}


@functools.lru_cache
def archive_of(suite):
    """Returns a tar file with the least of a Debian release. ROOTS keeps it for the next run."""
    path = pathlib.Path(os.environ.get("ROOTS") or TEMPORARY.name) / f"{suite}.tar"
    if not path.exists():
        part = path.with_suffix(".part.tar")
        made = subprocess.run(["mmdebstrap", "-q", "--variant=minbase", "--mode=root", suite, part],
                              stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        if made.returncode != 0:
            missing.append(f"mmdebstrap makes no root of {suite}: {made.stderr.strip()[-500:]}")
            raise unittest.SkipTest(missing[-1])
        part.rename(path)
    return path


@contextlib.contextmanager
def bare(suite=None):
    """Yields a root with the least of a Debian release, or with nothing."""
    with tempfile.TemporaryDirectory(prefix="flashmoe-root-") as folder:
        if suite is not None:
            subprocess.run(["tar", "-C", folder, "-xf", archive_of(suite)], check=True)
            shutil.copy("/etc/resolv.conf", f"{folder}/etc/resolv.conf")
        yield Root(pathlib.Path(folder))


class Service:
    """A server in a root, as the service would start it."""

    def __init__(self, root, program):
        self.port = free_port()
        self.process = subprocess.Popen(
            root.command(program, "serve", "--port", self.port, "--no-heat", *SMALL),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            try:
                self.ask("/health")
                break
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "no server"
                time.sleep(0.1)

    def ask(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def completion(self, text):
        """Asks for something new, so that experts are read from the files."""
        return self.ask("/v1/completions", {"prompt": text, "max_tokens": 24, "temperature": 0})

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def one(pattern):
    found = sorted(RELEASE.glob(pattern))
    if not found:
        raise unittest.SkipTest(f"{RELEASE} has no {pattern}")
    return found[-1]


class Case(unittest.TestCase):
    hashes = set() # of all packages together

    def assert_same_logits(self, root, program):
        Case.hashes.add(root.logits(program))
        self.assertEqual(len(Case.hashes), 1)


class Deb(Case):
    def test_installed_run_upgraded_removed(self):
        package = one("flashmoe_*.deb")
        with bare("bookworm") as root:
            root.run("apt-get", "update", "-q")
            before = root.files()
            shutil.copy(package, root.path / "tmp")
            inside = f"/tmp/{package.name}"
            root.run("apt-get", "install", "-y", "--no-install-recommends", inside)
            self.check_files(root)
            self.assert_same_logits(root, "flashmoe")
            self.check_upgrade(root, inside)
            root.run("apt-get", "purge", "-y", "--autoremove", "flashmoe")
            left = {line.partition(" ")[0] for line in root.files() - before}
            self.assertEqual(left, set())

    def check_files(self, root):
        listed = root.run("dpkg", "-L", "flashmoe").stdout
        for name in ("/usr/bin/flashmoe", "/usr/share/man/man1/flashmoe.1.gz",
                     "/usr/share/bash-completion/completions/flashmoe",
                     "/usr/share/zsh/vendor-completions/_flashmoe",
                     "/usr/share/fish/vendor_completions.d/flashmoe.fish",
                     "/lib/systemd/system/flashmoe.service", "/etc/flashmoe/serve.env",
                     "/usr/share/flashmoe/nano.fmoe/model.json"):
            self.assertIn(name, listed)
        self.assertEqual(list((root.path / "etc/systemd/system").rglob("flashmoe.service")), [])
        version = root.run("dpkg-query", "-W", "-f", "${Version}", "flashmoe").stdout
        self.assertIn(version.partition("-")[0], root.run("flashmoe", "--version").stdout)

    def check_upgrade(self, root, inside):
        """Settings and a running server outlive the next version, and the removal."""
        settings = root.path / "etc/flashmoe/serve.env"
        settings.write_text("FLASHMOE_API_KEY=mine\n")
        service = Service(root, "flashmoe")
        try:
            service.completion("Before")
            root.run("dpkg", "-i", inside)
            self.assertEqual(settings.read_text(), "FLASHMOE_API_KEY=mine\n")
            self.assertGreater(service.completion("An upgrade")["usage"]["completion_tokens"], 0)
            root.run("apt-get", "remove", "-y", "flashmoe")
            self.assertTrue(settings.exists())
            self.assertFalse((root.path / "usr/bin/flashmoe").exists())
            self.assertGreater(service.completion("A removal")["usage"]["completion_tokens"], 0)
        finally:
            service.stop()

    def test_development(self):
        """A program is compiled against the library's packages."""
        with bare("bookworm") as root:
            for name in ("libflashmoe1_*.deb", "libflashmoe-dev_*.deb"):
                shutil.copy(one(name), root.path / "tmp")
            root.run("apt-get", "update", "-q")
            root.run("sh", "-c", "apt-get install -y --no-install-recommends gcc libc6-dev "
                                 "/tmp/libflashmoe*.deb")
            (root.path / "tmp/a.c").write_text(
                '#include <flashmoe.h>\n#include <stdio.h>\n'
                'int main(void) { return puts(fm_version()) < 0; }\n')
            root.run("sh", "-c", "cd /tmp && gcc a.c -o a $(pkg-config --cflags --libs flashmoe)")
            self.assertRegex(root.run("/tmp/a").stdout, r"^\d+\.\d+")

    @unittest.skipUnless(shutil.which("lintian"), "no lintian")
    def test_lintian(self):
        packages = sorted(RELEASE.glob("*.deb"))
        if not packages:
            self.skipTest("no .deb")
        done = subprocess.run(["lintian", "--allow-root", *packages], capture_output=True,
                              text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual((done.stdout, done.returncode), ("", 0), done.stderr)


class Rpm(Case):
    @unittest.skipUnless(shutil.which("rpm"), "no rpm")
    def test_installed_run_removed(self):
        package = one("flashmoe-[0-9]*.rpm")
        with bare("bookworm") as root:
            before = root.files()

            def rpm(*words):
                # The root's packages are Debian's, so rpm does not know its C library.
                subprocess.run(["rpm", "--root", root.path, "--nodeps", *words], check=True,
                               capture_output=True, timeout=TIMEOUT_S)
            rpm("-i", package)
            rpm("-V", "flashmoe")
            self.assert_same_logits(root, "flashmoe")
            (root.path / "etc/flashmoe/serve.env").write_text("mine\n")
            rpm("-U", "--force", package)
            self.assertEqual((root.path / "etc/flashmoe/serve.env").read_text(), "mine\n")
            rpm("-e", "flashmoe")
            left = {line.partition(" ")[0] for line in root.files() - before}
            # What the user changed is kept, as rpm does; some folders are other packages'.
            self.assertEqual({name for name in left if not (root.path / name).is_dir()},
                             {"./etc/flashmoe/serve.env.rpmsave"})
            self.assertEqual({name for name in left if "flashmoe" in name},
                             {"./etc/flashmoe", "./etc/flashmoe/serve.env.rpmsave"})


class Static(Case):
    def unpack(self, root):
        subprocess.run(["tar", "-C", root.path, "--strip-components=1", "-xf",
                        one("flashmoe-*-linux-*.tar.gz")], check=True)

    def check(self, root):
        self.unpack(root)
        self.assert_same_logits(root, "/bin/flashmoe")
        service = Service(root, "/bin/flashmoe")
        try:
            self.assertGreater(service.completion("Hello")["usage"]["completion_tokens"], 0)
        finally:
            service.stop()

    def test_nothing_else(self):
        """No C library, no shell, no /proc."""
        with bare() as root:
            self.check(root)

    def test_old(self):
        with bare("bullseye") as root:
            self.check(root)


    def test_installed_removed(self):
        """Below /usr/local, with the commands of INSTALL.md."""
        package = one("flashmoe-*-linux-*.tar.gz")
        text = (pathlib.Path(__file__).parents[2] / "docs/INSTALL.md").read_text(encoding="utf-8")
        text = text.replace("flashmoe-VERSION-linux-x86_64.tar.gz", package.name)
        install = re.search(r"(?m)^ +sudo (tar -C /usr/local[^\n]*\n[^\n]*)", text).group(1)
        remove = re.search(r"(?m)^ +(tar -tf [^\n]*\n[^\n]*)", text).group(1)
        with bare("bookworm") as root:
            before = root.files()
            shutil.copy(package, root.path / "tmp")
            for _ in range(2): # the second time over itself
                root.run("sh", "-c", "cd /tmp && " + install)
            self.assert_same_logits(root, "/usr/local/bin/flashmoe")
            root.run("sh", "-c", "cd /tmp && " + remove.replace("sudo ", ""))
            left = {line.partition(" ")[0] for line in root.files() - before}
            self.assertEqual({name for name in left if not (root.path / name).is_dir()}, set())


class Formula(Case):
    @unittest.skipUnless(shutil.which("ruby"), "no ruby")
    def test_syntax(self):
        """Ruby can read it, and its digest is that of the sources."""
        formula = one("flashmoe.rb")
        subprocess.run(["ruby", "-c", formula], check=True, capture_output=True)
        text = formula.read_text(encoding="utf-8")
        digest = re.search(r'sha256 "([0-9a-f]{64})"', text).group(1)
        name = re.search(r'/(flashmoe-[^/"]+\.tar\.gz)"', text).group(1)
        sums = (RELEASE / "SHA256SUMS").read_text(encoding="utf-8")
        self.assertIn(f"{digest}  {name}\n", sums)


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("only root can change the root of a program")
    if not shutil.which("mmdebstrap"):
        skip("no mmdebstrap (Debian: apt-get install mmdebstrap)")
    if not (RELEASE / "SHA256SUMS").exists():
        skip(f"{RELEASE} has no release (make packages)")
    is_good = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2,
                            exit=False).result.wasSuccessful()
    if is_good and missing:
        skip(missing[0])
    sys.exit(not is_good)
