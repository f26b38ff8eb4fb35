#!/usr/bin/env python3
"""The release script without its builds: what it refuses and keeps, and that the same commit gives
the same bytes. It runs in a small tree with the files that it reads."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from commands import write_commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("CMakeLists.txt", "CHANGELOG.md", "LICENSE", ".gitignore", "packaging")
LIGHT = ("--only", "source,formula,notes")
MARKER = ".flashmoe-release"
# In place of the builds: installing makes one program, and packing one file of each kind.
COMMANDS = {
    "cmake": """case $1 in
-S) while [ "$1" != -B ]; do shift; done; mkdir -p "$2" ;;
--install) mkdir -p "$DESTDIR/usr/local/bin"; echo program >"$DESTDIR/usr/local/bin/flashmoe" ;;
esac""",
    "cpack": 'kind=$(basename "$PWD"); echo "$kind" >"flashmoe.$kind"',
    "ninja": "", "musl-gcc": "", "dpkg-shlibdeps": "", "rpmbuild": "",
}
LIBRARIES = """#!/bin/sh
mkdir -p "$1" "$SOURCES/zlib/debian"
echo text >"$SOURCES/zlib/debian/copyright"
echo "zlib 1" >"$1/versions"
"""


class Roots(unittest.TestCase):
    """The test of the packages themselves."""

    def test_no_mirror(self):
        """It is skipped, not failed, where no root can be made: also without a mirror."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("SHA256SUMS", "flashmoe_1.deb"):
                pathlib.Path(folder, name).touch()
            commands = os.path.join(folder, "bin")
            write_commands(commands, {"mmdebstrap": "echo no mirror >&2; exit 25"})
            done = subprocess.run(
                [sys.executable, ROOT / "tests/package/roots_test.py", folder,
                 "Deb.test_installed_run_upgraded_removed"],
                env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "ROOTS": ""},
                capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("no mirror" if os.geteuid() == 0 else "only root", done.stdout)


class Release(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tree = pathlib.Path(self.folder.name, "tree")
        self.tree.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.tree / name)
        text = (self.tree / "CMakeLists.txt").read_text(encoding="utf-8")
        self.version = re.search(r"project\(flashmoe VERSION (\S+)", text).group(1)
        self.git("init", "-q", "-b", "main")
        self.commit("first")

    def git(self, *arguments):
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false",
               "-c", "core.hooksPath=/dev/null")
        subprocess.run(["git", *who, *arguments], cwd=self.tree, check=True, capture_output=True)

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def release(self, *options, out="out", **environment):
        return subprocess.run([self.tree / "packaging/release.sh", "--out",
                               os.path.join(self.folder.name, out), *options], text=True,
                              capture_output=True, env=dict(os.environ, **environment))

    def refused(self, why, *options):
        done = self.release(*options)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(why, done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "out", "SHA256SUMS")))

    def edit(self, name, old, new):
        path = self.tree / name
        text = path.read_text(encoding="utf-8")
        self.assertIn(old, text)
        path.write_text(text.replace(old, new), encoding="utf-8")

    def test_changes_are_refused(self):
        self.edit("LICENSE", "MIT", "mit")
        self.refused("the tree has changes", *LIGHT)
        self.git("checkout", "-q", "LICENSE")
        (self.tree / "new.c").write_text("int x;\n", encoding="utf-8")
        self.refused("?? new.c", *LIGHT)

    def test_a_version_without_a_section_is_refused(self):
        self.edit("CMakeLists.txt", f"VERSION {self.version}", "VERSION 9.9.9")
        self.commit("version")
        self.refused("CHANGELOG.md has no section '## 9.9.9 (YYYY-MM-DD)'", *LIGHT)

    def test_changes_that_no_version_has_are_named(self):
        text = (self.tree / "CHANGELOG.md").read_text(encoding="utf-8")
        text = re.sub(r"(?ms)^## Next\n.*?(?=^## )", "", text)
        for more, is_named in (("", False), ("## Next\n\n- New.\n\n", True)):
            (self.tree / "CHANGELOG.md").write_text(
                text.replace(f"## {self.version} ", f"{more}## {self.version} "), encoding="utf-8")
            self.git("add", "-A")
            self.git("commit", "-q", "--allow-empty", "-m", "changes")
            done = self.release(*LIGHT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("under '## Next'" in done.stderr, is_named)

    def test_a_released_version_is_not_released_again(self):
        self.git("tag", "v" + self.version)
        self.assertEqual(self.release(*LIGHT).returncode, 0)
        self.edit("LICENSE", "MIT", "mit")
        self.commit("later")
        shutil.rmtree(os.path.join(self.folder.name, "out"))
        self.refused(f"the tag v{self.version} is another commit", *LIGHT)

    def test_bad_options_are_refused(self):
        self.refused("'snap' is no kind", "--only", "source,snap")
        self.refused("--only needs a kind", "--only", ",")
        self.refused("--url needs a value", "--url")
        for url in ("", "https://a.org/x|", "https://a.org/\\1", 'https://a.org/"', "a\nb", "#{x}"):
            self.refused("is no URL", *LIGHT, "--url", url)

    def test_a_url_is_written_as_it_is(self):
        url = "https://example.org/a%20b~/x?y=1&z=+2"
        done = self.release(*LIGHT, "--url", url)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f'homepage "{url}"\n', self.out("flashmoe.rb").read_text(encoding="utf-8"))

    def out(self, *parts):
        return pathlib.Path(self.folder.name, "out", *parts)

    def test_a_folder_of_somebody_else_is_refused(self):
        for name in ("work/thesis.txt", "flashmoe-notes.txt", ".flashmoe-work/x", ".hidden"):
            path = self.out(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine\n", encoding="utf-8")
            self.refused("is not empty and has no " + MARKER, *LIGHT)
            self.assertEqual(path.read_text(encoding="utf-8"), "mine\n")
            shutil.rmtree(self.out())
        self.out().write_text("mine\n", encoding="utf-8")
        self.refused("is no folder", *LIGHT)

    def with_stubs(self, kinds):
        """Makes these kinds without a compiler, and returns the names in SHA256SUMS."""
        folder = os.path.join(self.folder.name, "bin")
        write_commands(folder, COMMANDS)
        done = self.release("--only", kinds, PATH=folder + ":" + os.environ["PATH"],
                            SOURCES=os.path.join(self.folder.name, "sources"))
        self.assertEqual(done.returncode, 0, done.stderr)
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=self.out(), check=True)
        sums = self.out("SHA256SUMS").read_text(encoding="utf-8")
        self.assertTrue(done.stdout.endswith(sums))
        return [line.split()[1] for line in sums.splitlines()]

    def use_light_libraries(self):
        (self.tree / "packaging/libraries.sh").write_text(LIBRARIES, encoding="utf-8")
        self.commit("libraries")

    def test_kinds_made_one_after_the_other(self):
        self.use_light_libraries()
        self.assertEqual(self.with_stubs("deb"), ["flashmoe.deb"])
        self.out("flashmoe-mine.txt").write_text("mine\n", encoding="utf-8")
        self.out("work").mkdir()
        self.assertEqual(self.with_stubs("rpm"), ["flashmoe.deb", "flashmoe.rpm"])
        self.assertEqual(self.with_stubs("rpm,notes"), ["NOTES.md", "flashmoe.deb", "flashmoe.rpm"])
        # Another commit: the files stay, but are not part of its release.
        self.edit("LICENSE", "MIT", "mit")
        self.commit("later")
        self.assertEqual(self.with_stubs("deb"), ["flashmoe.deb"])
        names = {"SHA256SUMS", MARKER, "NOTES.md", "flashmoe.deb", "flashmoe.rpm", "work"}
        self.assertEqual({path.name for path in self.out().iterdir()},
                         names | {"flashmoe-mine.txt"})

    def test_a_file_changed_later_does_not_get_a_new_sum(self):
        self.use_light_libraries()
        self.with_stubs("deb")
        before = self.out("SHA256SUMS").read_text(encoding="utf-8")
        self.out("flashmoe.deb").write_text("changed\n", encoding="utf-8")
        self.assertEqual(self.release("--only", "notes").returncode, 0)
        self.assertIn(before, self.out("SHA256SUMS").read_text(encoding="utf-8"))

    def test_the_static_program_puts_only_folders_below_the_prefix(self):
        """It is unpacked into /usr/local: texts lie in the documentation folder."""
        self.use_light_libraries()
        name, = self.with_stubs("static")
        with tarfile.open(self.out(name)) as tar:
            files = {member.name.partition("/")[2] for member in tar if member.isfile()}
        doc = "share/doc/flashmoe/"
        self.assertEqual(files, {"bin/flashmoe", doc + "LICENSE", doc + "CHANGELOG.md",
                                 doc + "libraries/versions", doc + "libraries/zlib"})

    def test_the_same_commit_gives_the_same_bytes(self):
        done = self.release(*LIGHT, "--url", "https://example.org/x", TZ="Asia/Tokyo")
        self.assertEqual(done.returncode, 0, done.stderr)
        again = self.release(*LIGHT, "--url", "https://example.org/x", out="other", TZ="UTC")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(done.stdout, again.stdout)
        names = {f"flashmoe-{self.version}.tar.gz", "flashmoe.rb", "NOTES.md"}
        sums = dict(reversed(line.split()) for line in done.stdout.splitlines())
        self.assertEqual(set(sums), names)
        out = pathlib.Path(self.folder.name, "out")
        for name, digest in sums.items():
            self.assertEqual(hashlib.sha256((out / name).read_bytes()).hexdigest(), digest)
        self.assertEqual({path.name for path in out.iterdir()}, names | {"SHA256SUMS", MARKER})
        self.check_source(out / f"flashmoe-{self.version}.tar.gz")
        formula = (out / "flashmoe.rb").read_text(encoding="utf-8")
        self.assertIn(f'url "https://example.org/x/flashmoe-{self.version}.tar.gz"', formula)
        self.assertIn(f'sha256 "{sums[f"flashmoe-{self.version}.tar.gz"]}"', formula)
        self.assertNotIn("@", formula)
        notes = (out / "NOTES.md").read_text(encoding="utf-8")
        self.assertTrue(notes.startswith("- "), notes)
        self.assertNotIn("## ", notes)

    def check_source(self, path):
        with tarfile.open(path) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
            self.assertEqual({name.partition("/")[0] for name in tar.getnames()},
                             {f"flashmoe-{self.version}"})
        self.assertLessEqual({"CMakeLists.txt", "packaging/release.sh"}, names)


if __name__ == "__main__":
    unittest.main(verbosity=2)
