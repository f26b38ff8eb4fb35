#!/usr/bin/env python3
"""The scripts of the .deb, run for a root that is a temporary folder (DPKG_ROOT)."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELPER = shutil.which("deb-systemd-helper")
UNIT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


class Deb(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("lib/systemd/system/flashmoe.service", UNIT)
        self.enabled = self.root / "etc/systemd/system/multi-user.target.wants/flashmoe.service"
        self.masked = self.root / "etc/systemd/system/flashmoe.service"

    def run_it(self, *command):
        done = subprocess.run(command, capture_output=True, text=True,
                              env=dict(os.environ, DPKG_ROOT=str(self.root),
                                       DPKG_MAINTSCRIPT_PACKAGE="flashmoe"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def script(self, name, *arguments):
        self.run_it("/bin/sh", str(ROOT / "packaging/deb" / name), *arguments)

    def write(self, name, text="text\n"):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    @unittest.skipUnless(HELPER, "no deb-systemd-helper")
    def test_the_service_is_not_enabled(self):
        self.script("postinst", "configure", "")
        self.assertFalse(os.path.lexists(self.enabled))
        self.script("postinst", "configure", "0.1")
        self.assertFalse(os.path.lexists(self.enabled))
        self.script("postrm", "remove")
        self.assertTrue(os.path.lexists(self.masked))
        self.script("postinst", "configure", "0.1")
        self.assertFalse(os.path.lexists(self.masked))
        self.assertFalse(os.path.lexists(self.enabled))

    @unittest.skipUnless(HELPER, "no deb-systemd-helper")
    def test_an_enabled_service_stays_enabled_until_it_is_purged(self):
        self.script("postinst", "configure", "")
        self.run_it(HELPER, "enable", "flashmoe.service")
        self.script("postinst", "configure", "0.1")
        self.assertTrue(os.path.lexists(self.enabled))
        self.script("postrm", "remove")
        self.script("postinst", "configure", "0.1")
        self.assertTrue(os.path.lexists(self.enabled))
        self.script("postrm", "remove")
        self.script("postrm", "purge")
        self.assertFalse(os.path.lexists(self.masked))
        self.script("postinst", "configure", "")
        self.assertFalse(os.path.lexists(self.enabled))

    @unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("cmake"), "no dpkg-deb or cmake")
    def test_the_library_has_no_scripts(self):
        """CPack's calls of ldconfig go, the trigger stays, and a script with more is not lost."""
        tree = self.root / "tree"
        for more, status in (("", 0), ("echo more\n", 1)):
            shutil.rmtree(tree, ignore_errors=True)
            self.write("tree/DEBIAN/control", "Package: libflashmoe1\nVersion: 1\n"
                                              "Architecture: all\n"
                                              "Maintainer: A <a@example.org>\nDescription: b\n")
            self.write("tree/DEBIAN/triggers", "activate-noawait ldconfig\n")
            for name, when in (("postinst", "configure"), ("postrm", "remove")):
                path = self.write(f"tree/DEBIAN/{name}", "#!/bin/sh\n\nset -e\n\nif [ \"$1\" = \""
                                  f"{when}\" ]; then\n\tldconfig\nfi\n{more}")
                path.chmod(0o755)
            package = self.root / "libflashmoe1_1_all.deb"
            subprocess.run(["dpkg-deb", "-b", str(tree), str(package)], check=True,
                           capture_output=True)
            done = subprocess.run(["cmake", f"-DCPACK_PACKAGE_FILES={package}", "-P",
                                   str(ROOT / "packaging/deb/no_ldconfig.cmake")],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertEqual("echo more" in done.stderr, status == 1)
            shown = subprocess.run(["dpkg-deb", "-I", str(package)], check=True,
                                   capture_output=True, text=True).stdout
            self.assertIn(" triggers", shown)
            self.assertEqual("postinst" in shown or "postrm" in shown, status == 1)

    def purge(self):
        """Purges, and returns what is left below var, links included."""
        self.script("postrm", "purge")
        var = self.root / "var"
        return {str(path.relative_to(var)) for path in var.rglob("*")
                if (path.is_symlink() or path.is_file()) and "systemd" not in path.parts}

    def test_purging_removes_what_the_service_wrote(self):
        self.write("var/lib/private/flashmoe/snapshots/s1")
        self.write("var/cache/private/flashmoe/flashmoe/a.heat")
        for parent in ("lib", "cache"):
            os.symlink("private/flashmoe", self.root / "var" / parent / "flashmoe")
        self.assertEqual(self.purge(), set())
        self.write("var/lib/flashmoe/snapshots/s1")
        self.write("var/cache/flashmoe/flashmoe/a.heat")
        self.assertEqual(self.purge(), set())
        self.assertFalse((self.root / "var/lib/flashmoe").exists())

    def test_purging_keeps_models(self):
        models = {name + "/big.fmoe/dense.bin" for name in (
            "lib/flashmoe", "lib/private/flashmoe", "lib/flashmoe/flashmoe",
            "lib/private/flashmoe/flashmoe", "cache/flashmoe", "cache/flashmoe/snapshots")}
        for name in models:
            self.write("var/" + name)
        self.write("var/lib/flashmoe/snapshots/s1")
        self.assertEqual(self.purge(), models)

    def test_purging_follows_no_link_of_the_administrator(self):
        kept = {"srv/snapshots/model.fmoe/dense.bin", "srv/flashmoe/model.fmoe/dense.bin"}
        for links in (("lib/flashmoe", "cache/flashmoe"),
                      ("lib/private/flashmoe", "cache/private/flashmoe"),
                      ("lib/flashmoe/snapshots", "cache/flashmoe/flashmoe")):
            with self.subTest(links=links):
                shutil.rmtree(self.root / "var", ignore_errors=True)
                for name in kept:
                    self.write("var/" + name)
                for name in links:
                    path = self.root / "var" / name
                    path.parent.mkdir(parents=True)
                    below = path.name if path.parent.name == "flashmoe" else ""
                    os.symlink(self.root / "var/srv" / below, path)
                left = self.purge()
                self.assertLessEqual(kept, left)
                # The service's own name may be a link: the link goes, what it leads to stays.
                own = links[0].endswith("snapshots")
                self.assertEqual(left - kept, set() if own else set(links))


if __name__ == "__main__":
    unittest.main(verbosity=2)
