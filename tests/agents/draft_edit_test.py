"""An agent reads a file of 300 lines and writes it again with changes: drafts must save passes.

usage: draft_edit_test.py DRAFT_EDIT FILE

The first 300 lines of FILE are the file. The answer is scripted, as an agent's would be that was
asked for it: a name changes wherever it occurs, three lines are new, two are gone, one comment is
written anew. nano, configured for more positions, is given both.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import long_nano

N_LINES = 300


def most_frequent_name(lines):
    names = re.findall(r"\b[a-z]+_[a-z_]+\b", "\n".join(lines))
    return max(sorted(set(names)), key=names.count)


def edit(lines):
    name = most_frequent_name(lines)
    lines = [re.sub(rf"\b{name}\b", "renamed_" + name, line) for line in lines]
    lines[40:40] = ["/* Counts what was seen so far. */", "static unsigned long n_seen_so_far;", ""]
    del lines[120:122]
    lines[200] = "    /* This line says something else than before. */"
    return lines


def main():
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    lines = source.read_text().splitlines()[:N_LINES]
    assert len(lines) == N_LINES, f"{source} has only {len(lines)} lines"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = long_nano.make(folder / "long.fmoe")
        (folder / "file").write_text("\n".join(lines) + "\n")
        (folder / "edited").write_text("\n".join(edit(lines)) + "\n")
        done = subprocess.run([program, model, folder / "file", folder / "edited"], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
