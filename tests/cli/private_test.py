"""Tests the files that the program leaves on the disk: readable by this user alone, complete after
a power failure, and never written through a link.

Usage: private_test.py PROGRAM PRELOAD MODEL [TestClass...]

PRELOAD is the library built from tests/pack/preload_writes.c; it fails calls and lists them.
"""
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

PROGRAM = PRELOAD = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
ANSWER = ("--greedy", "-n", "4", "-q")


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="private-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)

    def flashmoe(self, *args, text=None, cache=None, **faults):
        """Runs with the umask of a user who shares everything."""
        env = dict(os.environ, XDG_CACHE_HOME=str(cache or self.folder / "cache"),
                   LD_PRELOAD=PRELOAD, ASAN_OPTIONS="verify_asan_link_order=0",
                   **{f"FAULT_{name.upper()}": str(value) for name, value in faults.items()})
        done = subprocess.run([PROGRAM, *map(str, args)], env=env, input=text or "", umask=0,
                              encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def run_with(self, *args, prompt="Hello", **faults):
        return self.flashmoe("run", MODEL, *ANSWER, "-p", prompt, *args, **faults)

    def talk(self, *lines, **faults):
        return self.flashmoe("chat", MODEL, *ANSWER, "--no-heat",
                             text="\n".join(lines) + "\n", **faults)

    def mode(self, path):
        return stat.S_IMODE(os.lstat(path).st_mode)

    def assert_private(self, root):
        """Checks for modes 0700 and 0600, recursively."""
        paths = [root, *root.rglob("*")]
        self.assertGreater(len(paths), 1)
        for path in paths:
            with self.subTest(path.name):
                self.assertEqual(oct(self.mode(path)), oct(0o700 if path.is_dir() else 0o600))

    def open_up(self, root):
        """Opens the rights as an earlier version or a copy may have left them."""
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


class Modes(Case):
    def test_snapshots(self):
        folder = self.folder / "snapshots"
        args = ("--no-heat", "--snapshots", folder, "--system", "Be kind.")
        self.run_with(*args)
        self.assert_private(folder)
        self.open_up(folder)
        self.run_with(*args, prompt="Bye")
        self.assert_private(folder)

    def test_heat_and_io(self):
        args = ("--memory", "400M")
        self.run_with(*args)
        cache = self.folder / "cache"
        names = {path.suffix for path in (cache / "flashmoe").iterdir()}
        self.assertIn(".heat", names)
        self.assert_private(cache)
        self.open_up(cache / "flashmoe")
        self.run_with(*args)
        self.assert_private(cache / "flashmoe")
        self.assertEqual(self.mode(cache), 0o700)

    def test_the_cache_is_left_to_its_owner(self):
        """Only our own folder is made private."""
        cache = self.folder / "cache"
        cache.mkdir()
        cache.chmod(0o755)
        self.run_with("--memory", "400M")
        self.assertEqual(self.mode(cache), 0o755)
        self.assert_private(cache / "flashmoe")

    def test_given_heat(self):
        heat = self.folder / "my.heat"
        for _ in range(2):
            self.run_with("--heat", heat)
            self.assertEqual(self.mode(heat), 0o600)
            heat.chmod(0o644)

    def test_trace(self):
        trace = self.folder / "trace.csv"
        for _ in range(2):
            self.run_with("--no-heat", "--trace", trace)
            self.assertEqual(self.mode(trace), 0o600)
            trace.chmod(0o644)

    def test_save(self):
        saved = self.folder / "talk.json"
        state = self.folder / "talk.json.fmsnap"
        self.talk("Hello", f"/save {saved}")
        self.assertEqual((self.mode(saved), self.mode(state)), (0o600, 0o600))
        for path in (saved, state):
            path.chmod(0o664)
        self.talk(f"/load {saved}")
        self.assertEqual((self.mode(saved), self.mode(state)), (0o600, 0o600))
        # A file that somebody else has written is read unchanged.
        given = self.folder / "given.json"
        given.write_text('[{"role": "user", "content": "Hi"}]')
        given.chmod(0o644)
        self.talk(f"/load {given}")
        self.assertEqual(self.mode(given), 0o644)

    def test_another_users_cache(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give files away")
        cache = self.folder / "cache"
        (cache / "flashmoe").mkdir(parents=True)
        os.chown(cache / "flashmoe", 12345, 12345)
        self.run_with("--memory", "400M")
        self.assertEqual(list((cache / "flashmoe").iterdir()), [])


class Order(Case):
    """Bytes first, then the name: checks the order of the calls."""

    def calls(self, run, *args, **more):
        trace = self.folder / "calls"
        trace.unlink(missing_ok=True)
        run(*args, trace=trace, **more)
        return [line.split("\t") for line in trace.read_text().splitlines()]

    def assert_synced(self, calls, suffix):
        """Files that get a name with this suffix were synced after their last write."""
        named = [(at, path) for at, (name, path, to) in enumerate(calls)
                 if name == "rename" and to.endswith(suffix)]
        self.assertTrue(named, f"none is renamed to *{suffix}: written in place?")
        for at, path in named:
            before = [name for name, of, _ in calls[:at] if of == path]
            self.assertEqual(before[-1:], ["fsync"], f"{path}: {before}")

    def test_snapshots(self):
        calls = self.calls(self.run_with, "--no-heat", "--snapshots", self.folder / "s",
                           "--system", "Be kind.")
        self.assert_synced(calls, ".fmsnap")

    def test_heat(self):
        calls = self.calls(self.run_with, "--memory", "400M")
        self.assert_synced(calls, ".heat")

    def test_save(self):
        saved = self.folder / "talk.json"
        calls = self.calls(self.talk, "Hello", f"/save {saved}")
        self.assert_synced(calls, "talk.json")
        self.assert_synced(calls, "talk.json.fmsnap")

    def test_trace(self):
        calls = self.calls(self.run_with, "--no-heat", "--trace", self.folder / "t.csv")
        self.assert_synced(calls, "t.csv")

    def test_replaced_not_overwritten(self):
        """A process that has the old file open keeps it, complete."""
        for name, args in (("my.heat", ("--heat",)), ("t.csv", ("--no-heat", "--trace"))):
            path, old = self.folder / name, self.folder / ("old." + name)
            self.run_with(*args, path)
            os.link(path, old)
            was = old.read_bytes()
            self.run_with(*args, path, prompt="Something else, and longer than before")
            self.assertNotEqual(os.stat(path).st_ino, os.stat(old).st_ino)
            self.assertEqual(old.read_bytes(), was)
            self.assertNotEqual(path.read_bytes(), was)

    def test_a_failed_write_keeps_the_old_one(self):
        heat = self.folder / "my.heat"
        self.run_with("--heat", heat)
        was = heat.read_bytes()
        for on in ("pwrite:my.heat", "fsync:my.heat", "rename:my.heat"):
            self.run_with("--heat", heat, prompt="Something else", kind="eio", on=on)
            self.assertEqual(heat.read_bytes(), was)
            self.assertEqual([p.name for p in self.folder.glob("my.heat*")], ["my.heat"])


class FullDisk(Case):
    def keep(self, prompt, **faults):
        return self.run_with("--no-heat", "--snapshots", self.folder / "s", prompt=prompt, **faults)

    def files(self):
        """Returns them from the oldest to the newest."""
        return sorted((self.folder / "s").iterdir(), key=lambda path: path.stat().st_mtime_ns)

    def fill(self):
        for prompt in ("One", "Two, which is older", "Three, which is the newest of all"):
            self.keep(prompt)
        first, second, third = self.files()
        return first, second, third

    def test_the_oldest_make_way(self):
        """At every call that reports a full disk."""
        for on in ("fallocate:.part", "pwrite:.part", "fsync:.part"):
            with self.subTest(on):
                for path in (self.folder / "s").glob("*"):
                    path.unlink()
                first, second, third = self.fill()
                done = self.keep("Four", kind="enospc", on=on, free=1 << 40)
                self.assertEqual(done.stderr, "")
                left = self.files()
                self.assertEqual(left[:2], [second, third])
                self.assertEqual(len(left), 3)
                self.assertNotIn(first, left)

    def test_several_make_way(self):
        self.fill()
        self.keep("Four", kind="enospc", on="fallocate:.part", span=3, free=1 << 40)
        self.assertEqual(len(self.files()), 1)

    def test_in_vain(self):
        """If removing all of them would not be enough, they stay."""
        self.keep("One")
        kept = set(self.files())
        done = self.keep("A long prompt " * 40, kind="enospc", on="fallocate:.part", span=0, free=0)
        self.assertIn("the disk is full", done.stderr)
        self.assertEqual(set(self.files()), kept)

    def test_other_faults(self):
        """A faulty disk is no reason to remove anything."""
        kept = set(self.fill())
        done = self.keep("Four", kind="eio", on="pwrite:.part", span=0)
        self.assertIn("Input/output error", done.stderr)
        self.assertEqual(set(self.files()), kept)


class Links(Case):
    """Links where a temporary file is written."""

    def setUp(self):
        super().setUp()
        self.victim = self.folder / "victim"
        self.victim.write_text("precious")
        self.addCleanup(lambda: self.assertEqual(self.victim.read_text(), "precious"))

    def fails(self, *args, text=""):
        done = subprocess.run([PROGRAM, *map(str, args)], input=text, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS)
        self.assertEqual(self.victim.read_text(), "precious")
        return done

    def test_aside(self):
        for option, name in (("--trace", "t.csv"), ("--profile", "p.json")):
            aside = self.folder / (name + ".part")
            aside.symlink_to(self.victim)
            done = self.fails("run", MODEL, *ANSWER, "--no-heat", "-p", "Hi", option,
                              self.folder / name)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"{option}.*{name}.part' is in the way: it is a link")
            self.assertTrue(aside.is_symlink())

    def test_a_leftover(self):
        """A leftover of this user is replaced."""
        (self.folder / "t.csv.part").write_text("half")
        self.run_with("--no-heat", "--trace", self.folder / "t.csv")
        self.assertEqual([p.name for p in self.folder.glob("t.csv*")], ["t.csv"])

    def test_in_place(self):
        """A link that has the name itself is replaced, not followed."""
        for option, name in (("--trace", "t.csv"), ("--heat", "my.heat")):
            path = self.folder / name
            path.symlink_to(self.victim)
            more = () if option == "--heat" else ("--no-heat",)
            self.run_with(option, path, *more)
            self.assertFalse(path.is_symlink())

    def test_save(self):
        saved = self.folder / "talk.json"
        for name in ("talk.json", "talk.json.fmsnap"):
            (self.folder / name).symlink_to(self.victim)
        self.talk("Hello", f"/save {saved}")
        self.assertFalse(saved.is_symlink() or saved.with_name("talk.json.fmsnap").is_symlink())
        (self.folder / "talk.json.fmsnap.part").symlink_to(self.victim)
        self.assertIn("is a link", self.talk("Hello", f"/save {saved}").stderr)


if __name__ == "__main__":
    PROGRAM, PRELOAD, MODEL = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
