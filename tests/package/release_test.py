#!/usr/bin/env python3
"""The release script without its builds: what it refuses, and that the same commit gives the same
bytes. It runs in a small tree with the files that it reads."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("CMakeLists.txt", "CHANGELOG.md", "LICENSE", ".gitignore", "packaging")
LIGHT = ("--only", "source,formula,notes")


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

    def test_a_released_version_is_not_released_again(self):
        self.git("tag", "v" + self.version)
        self.assertEqual(self.release(*LIGHT).returncode, 0)
        self.edit("LICENSE", "MIT", "mit")
        self.commit("later")
        shutil.rmtree(os.path.join(self.folder.name, "out"))
        self.refused(f"the tag v{self.version} is another commit", *LIGHT)

    def test_bad_options_are_refused(self):
        self.refused("'snap' is no kind", "--only", "source,snap")
        self.refused("--url needs a value", "--url")

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
        self.assertEqual({path.name for path in out.iterdir()}, names | {"SHA256SUMS"})
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
