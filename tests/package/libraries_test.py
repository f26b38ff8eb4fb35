#!/usr/bin/env python3
"""packaging/libraries.sh without a network and without its builds: when it fetches sources again,
and that it stops where a command fails."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from commands import write_commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("jansson", "xxhash", "libmicrohttpd", "curl")
# The distribution: $STATE/versions/NAME has the versions of a package, one in each line.
COMMANDS = {
    "apt-get": """for last; do :; done
case "$*" in
indextargets*) echo "deb-src https://mirror.example stable main" ;;
*update) [ ! -e "$STATE/no-network" ] ;;
*source*) echo "$last" >>"$STATE/fetched"; echo "${last#*=}" >"${last%%=*}_${last#*=}.dsc" ;;
esac""",
    "apt-cache": """for last; do :; done
sed "s/.*/Package: $last\\nVersion: &\\n/" "$STATE/versions/$last" """,
    "dpkg-source": """for last; do :; done
dsc=$3
[ $# -eq 4 ]
mkdir -p "$last/debian"
name=$(basename "$dsc")
echo "${name%%_*} ($(cat "$dsc")) stable; urgency=low" >"$last/debian/changelog" """,
    "cmake": 'echo "cmake $*"; case $1 in -S) [ ! -e "$STATE/broken" ] ;; esac',
}


@unittest.skipUnless(shutil.which("dpkg"), "no dpkg")
class Libraries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.sources = self.folder / "sources"
        (self.folder / "versions").mkdir()
        write_commands(self.folder / "bin", COMMANDS)
        for name in PACKAGES:
            self.publish(name, "1.0-1")

    def publish(self, name, *versions):
        text = "".join(version + "\n" for version in versions)
        (self.folder / "versions" / name).write_text(text, encoding="utf-8")

    def start(self, **environment):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["/bin/sh", ROOT / "packaging/libraries.sh", self.folder / "prefix"], text=True,
            capture_output=True, cwd=self.folder,
            env=dict(os.environ, PATH=path, STATE=str(self.folder), SOURCES="sources",
                     **environment))

    def fetched(self, **environment):
        """Runs it and returns what was fetched. It then fails: the sources have no code."""
        (self.folder / "fetched").write_text("", encoding="utf-8")
        self.assertIn("xxhash failed", self.start(**environment).stderr)
        return (self.folder / "fetched").read_text(encoding="utf-8").split()

    def version(self, name):
        text = (self.sources / name / "debian/changelog").read_text(encoding="utf-8")
        return text.partition("(")[2].partition(")")[0]

    def test_newer_sources_replace_older_ones(self):
        self.assertEqual(self.fetched(), [name + "=1.0-1" for name in PACKAGES])
        self.assertEqual(self.fetched(), [])
        # The order of the lists says nothing, and 10 is more than 9.
        self.publish("curl", "1:1.0-1+deb12u9", "1:1.0-1+deb12u10", "1.0-1")
        self.assertEqual(self.fetched(OFFLINE="1"), [])
        self.assertEqual(self.version("curl"), "1.0-1")
        self.assertEqual(self.fetched(), ["curl=1:1.0-1+deb12u10"])
        self.assertEqual(self.version("curl"), "1:1.0-1+deb12u10")
        self.assertEqual(self.fetched(), [])
        self.assertEqual({path.name for path in self.sources.iterdir()}, {*PACKAGES, "apt"})

    def test_no_network(self):
        (self.folder / "no-network").touch()
        self.assertIn("OFFLINE=1 takes those in", self.start().stderr)
        self.assertIn("jansson is no source package", self.start(OFFLINE="1").stderr)

    def test_somebody_elses_folder_stays(self):
        mine = self.sources / "curl/mine.c"
        mine.parent.mkdir(parents=True)
        mine.touch()
        done = self.start()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("move it away", done.stderr)
        self.assertTrue(mine.exists())

    def test_a_command_that_fails_stops_it(self):
        """Configuring fails, and what follows would succeed."""
        self.fetched()
        (self.folder / "broken").touch()
        done = self.start()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libraries.sh: jansson failed", done.stderr)
        self.assertIn("cmake -S", done.stderr)
        self.assertNotIn("cmake --build", done.stderr)


class Toolchain(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cmake"), "no cmake")
    def test_libraries_are_found_after_the_compiler_was_tried(self):
        """CMake reads the toolchain for macOS again for that, without the path of the libraries."""
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "twice.cmake")
            toolchain = ROOT / "packaging/macos-arm64.cmake"
            script.write_text(f'set(CMAKE_FIND_ROOT_PATH /libraries)\ninclude("{toolchain}")\n'
                              f'unset(CMAKE_FIND_ROOT_PATH)\ninclude("{toolchain}")\n'
                              'message("$ENV{PKG_CONFIG_LIBDIR}")\n', encoding="utf-8")
            done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True,
                                  check=True)
            self.assertEqual(done.stderr, "/libraries/lib/pkgconfig\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
