#!/usr/bin/env python3
"""Installs the build into a temporary folder and uses it like a third party: a C and a C++
program through pkg-config, the shared and the static library, the man page, the completions."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = """\
#include <flashmoe.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct fm_model_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return puts(fm_version()) < 0;
}
"""
OPTIONS = None


def run(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True,
                          env=dict(os.environ, **environment))
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(prefix, **environment):
    run(OPTIONS.cmake, "--install", OPTIONS.build, "--prefix", prefix, **environment)


def staged_files(stage, *options):
    """Returns the paths that are installed below /usr with these options."""
    run(OPTIONS.cmake, "--install", OPTIONS.build, "--prefix", "/usr", *options, DESTDIR=stage)
    return ["/" + os.path.relpath(os.path.join(folder, name), stage)
            for folder, _, names in os.walk(stage) for name in names]


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as f:
        return f.read()


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = os.path.join(cls.folder.name, "usr")
        cls.libdir = os.path.join(cls.prefix, OPTIONS.libdir)
        install(cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def pkg_config(self, *options):
        return run("pkg-config", *options, "flashmoe",
                   PKG_CONFIG_PATH=os.path.join(self.libdir, "pkgconfig")).split()

    def test_default_model(self):
        program = os.path.join(self.prefix, "bin", "flashmoe")
        self.assertIn(os.path.join("share", "flashmoe", "nano.fmoe"), run(program, "inspect"))
        self.assertTrue(run(program, "run", "-q", "--greedy", "-n", "5", "-p", "Hello").strip())

    def build_and_run(self, compiler, suffix, *options, libs=None):
        source = os.path.join(self.folder.name, "user" + suffix)
        program = os.path.join(self.folder.name, "user")
        with open(source, "w", encoding="utf-8") as f:
            f.write(SOURCE)
        flags = OPTIONS.flags.split()
        libs = self.pkg_config("--cflags", "--libs") if libs is None else libs
        run(compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", *options, source, "-o", program,
            *flags, *libs)
        output = run(program, LD_LIBRARY_PATH=self.libdir, DYLD_LIBRARY_PATH=self.libdir)
        self.assertEqual(output.strip(), OPTIONS.version)

    def test_c_program(self):
        self.build_and_run(OPTIONS.cc, ".c", "-std=c11")

    def run_example(self, number, *arguments):
        """Builds a program of docs/API.md as the page says, and returns what it prints."""
        page = read(os.path.dirname(__file__), "..", "..", "docs", "API.md")
        text = re.findall(r"^```c\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[number]
        source = os.path.join(self.folder.name, f"example{number}.c")
        program = os.path.join(self.folder.name, f"example{number}")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        run(OPTIONS.cc, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c11", source, "-o",
            program, *OPTIONS.flags.split(), *self.pkg_config("--cflags", "--libs"))
        return run(program, *arguments, LD_LIBRARY_PATH=self.libdir,
                   DYLD_LIBRARY_PATH=self.libdir)

    def nano(self):
        return os.path.join(self.prefix, "share", "flashmoe", "nano.fmoe")

    def test_the_api_page_answers_as_the_program_does(self):
        prompt = "Write a story about a robot who loves music."
        program = os.path.join(self.prefix, "bin", "flashmoe")
        expected = run(program, "run", self.nano(), "-q", "--greedy", "-n", "40", "-p", prompt)
        answer = self.run_example(0, self.nano(), prompt)
        self.assertGreater(len(answer), 40)
        self.assertEqual(answer.strip(), expected.strip())

    def test_the_api_page_shows_the_same_bits(self):
        hashes = self.run_example(1, self.nano()).split()
        self.assertEqual(len(hashes), 2)
        self.assertEqual(hashes[0], hashes[1])

    def test_cxx_program(self):
        if not OPTIONS.cxx:
            self.skipTest("no C++ compiler")
        self.build_and_run(OPTIONS.cxx, ".cc", "-std=c++17")

    def test_static_library(self):
        archive = os.path.join(self.libdir, "libflashmoe.a")
        libs = [archive if lib == "-lflashmoe" else lib
                for lib in self.pkg_config("--static", "--cflags", "--libs")]
        self.build_and_run(OPTIONS.cc, ".c", "-std=c11", libs=libs)

    def test_pkg_config_names_the_version_and_private_libraries(self):
        self.assertEqual(self.pkg_config("--modversion"), [OPTIONS.version])
        self.assertEqual(self.pkg_config("--variable=prefix"), [self.prefix])
        self.assertIn("jansson", self.pkg_config("--print-requires-private"))
        self.assertNotIn("-ljansson", self.pkg_config("--libs"))
        self.assertIn("-ljansson", self.pkg_config("--static", "--libs"))

    def test_program_runs_from_its_new_place(self):
        self.assertIn(OPTIONS.version,
                      run(os.path.join(self.prefix, "bin", "flashmoe"), "--version"))

    def test_man_page_and_completions(self):
        share = os.path.join(self.prefix, "share")
        self.assertRegex(read(share, "man/man1/flashmoe.1"), r"(?m)^\.(TH|Dt) +\"?(?i:flashmoe)")
        for path in ("bash-completion/completions/flashmoe", "zsh/site-functions/_flashmoe",
                     "fish/vendor_completions.d/flashmoe.fish"):
            self.assertIn("flashmoe", read(share, path))
        self.assertTrue(read(share, "zsh/site-functions/_flashmoe").startswith("#compdef"))

    def test_deployment(self):
        docs = os.path.join(self.prefix, "share", "doc", "flashmoe")
        self.assertIn("proxy_buffering off", read(docs, "nginx.conf"))
        self.assertIn("flush_interval -1", read(docs, "Caddyfile"))
        self.assertIn("flashmoe launch claude", read(docs, "DEPLOY.md"))

    def test_nothing_is_missing_and_nothing_else_is_there(self):
        """The whole tree but the libraries: a file that packages need is not forgotten."""
        paths = set()
        for folder, _, names in os.walk(self.prefix):
            paths |= {os.path.relpath(os.path.join(folder, name), self.prefix) for name in names}
        libraries = OPTIONS.libdir + "/"
        nano = os.path.join(os.path.dirname(__file__), "..", "..", "models", "nano.fmoe")
        expected = {
            "bin/flashmoe", "share/man/man1/flashmoe.1",
            "share/bash-completion/completions/flashmoe", "share/zsh/site-functions/_flashmoe",
            "share/fish/vendor_completions.d/flashmoe.fish",
            *("include/" + name for name in ("flashmoe.h", "flashmoe_error.h", "flashmoe_lab.h")),
            *("share/doc/flashmoe/" + name
              for name in ("Caddyfile", "DEPLOY.md", "nginx.conf", "serve.env")),
            *("share/flashmoe/nano.fmoe/" + name for name in os.listdir(nano)),
        }
        if sys.platform == "linux":
            expected.add("lib/systemd/system/flashmoe.service")
        found = {path for path in paths if not path.startswith(libraries)
                 or path.startswith("lib/systemd/")}
        self.assertEqual(sorted(found), sorted(expected))
        self.assertTrue({libraries + "libflashmoe.a", libraries + "pkgconfig/flashmoe.pc"} <= paths)

    def test_components_divide_the_tree(self):
        """Packages are made of components: each file is in one of them."""
        whole = staged_files(os.path.join(self.folder.name, "whole"))
        parts = {}
        for component in ("program", "library", "development", "gpu", "cluster"):
            parts[component] = staged_files(os.path.join(self.folder.name, component),
                                            "--component", component)
        self.assertEqual(sorted(path for part in parts.values() for path in part), sorted(whole))
        self.assertIn("/usr/share/flashmoe/nano.fmoe/dense.bin", parts["program"])
        self.assertEqual([path for path in parts["program"] if "libflashmoe" in path], [])
        self.assertEqual({os.path.basename(path).split(".")[0] for path in parts["library"]},
                         {"libflashmoe"})

    @unittest.skipUnless(sys.platform == "linux", "systemd is Linux's")
    def test_service_starts_the_installed_program(self):
        stage = os.path.join(self.folder.name, "service")
        install("/opt/fm", DESTDIR=stage)
        unit = stage + "/opt/fm/lib/systemd/system/flashmoe.service"
        text = read(unit)
        self.assertIn("\nExecStart=/opt/fm/bin/flashmoe serve ", text)
        self.assertNotIn("@", text.replace("=@", "=").replace("~@", "~"))
        for line in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes",
                     "EnvironmentFile=-/etc/flashmoe/serve.env"):
            self.assertIn(line + "\n", text)
        self.assertNotIn("--host", text) # the default is loopback
        # Every setting of the example is switched off: it is installed as it is.
        settings = read(stage, "opt/fm/share/doc/flashmoe/serve.env").splitlines()
        self.assertEqual([line for line in settings if line and not line.startswith("#")], [])
        self.check_service(unit)

    def check_service(self, unit):
        """systemd itself reads the unit and finds it hardened."""
        if not shutil.which("systemd-analyze"):
            return
        moved = os.path.join(self.folder.name, "flashmoe.service")
        with open(moved, "w", encoding="utf-8") as f:
            f.write(read(unit).replace("/opt/fm/bin", os.path.join(self.prefix, "bin")))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", moved],
                              capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if "flashmoe" in line]
        self.assertEqual(complaints, [])
        text = run("systemd-analyze", "security", "--offline=true", "--no-pager", moved)
        exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
        self.assertLessEqual(float(exposure.group(1)), 1.5, text)

    def test_only_the_public_header_is_installed(self):
        self.assertEqual(sorted(os.listdir(os.path.join(self.prefix, "include"))),
                         ["flashmoe.h", "flashmoe_error.h", "flashmoe_lab.h"])

    def test_shared_library_exports_only_the_public_names(self):
        if OPTIONS.flags:
            self.skipTest("a sanitizer adds names of its own")
        mac = sys.platform == "darwin"
        library = os.path.join(self.libdir, "libflashmoe.dylib" if mac else "libflashmoe.so")
        listing = run("nm", "-gU" if mac else "-D", *([] if mac else ["--defined-only"]), library)
        names = [line.split()[-1] for line in listing.splitlines() if line.strip()]
        names = [name[1:] if mac else name for name in names]
        self.assertIn("fm_version", names)
        self.assertEqual([name for name in names if not name.startswith("fm_")], [])

    def test_soname_is_the_number_of_the_binary_interface(self):
        if sys.platform == "darwin":
            self.skipTest("Mach-O has no soname")
        soname = f"libflashmoe.so.{OPTIONS.abi}"
        library = os.path.join(self.libdir, "libflashmoe.so")
        self.assertEqual(os.readlink(library), soname)
        self.assertEqual(os.path.basename(os.path.realpath(library)),
                         f"libflashmoe.so.{OPTIONS.version}")
        self.assertIn(f"soname: [{soname}]", run("readelf", "-d", library))
        self.assertIn(f"`{soname}`", read(os.path.dirname(__file__), "..", "..", "docs", "API.md"))

    def test_staging_keeps_the_final_prefix(self):
        stage = os.path.join(self.folder.name, "stage")
        install("/opt/fm", DESTDIR=stage)
        self.assertTrue(os.path.exists(stage + "/opt/fm/bin/flashmoe"))
        text = read(stage + "/opt/fm", OPTIONS.libdir, "pkgconfig/flashmoe.pc")
        self.assertTrue(text.startswith("prefix=/opt/fm\n"))
        self.assertNotIn("@", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("build", "cmake", "libdir", "version", "abi", "cc"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--cxx", default="")
    parser.add_argument("--flags", default="")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
