"""A memory cgroup for a test: measures the memory that the system charges to a program, and limits
it."""

import os
import pathlib
import subprocess
import sys
import time


class Group:
    """A memory cgroup of version 1 or 2."""

    def __init__(self, parent, is_v2):
        self.is_v2 = is_v2
        self.path = parent / f"flashmoe-test-{os.getpid()}"
        self.path.mkdir()

    def limit(self, n_bytes):
        name = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(n_bytes))

    def stat(self):
        return dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())

    def held(self):
        """Returns resident memory plus page cache."""
        stat = self.stat()
        return sum(int(stat[name]) for name in (("anon", "file") if self.is_v2 else
                                                ("rss", "cache")))

    def usage(self):
        """Returns what counts against the limit, without the page cache."""
        stat, prefix = self.stat(), "" if self.is_v2 else "total_"
        name = "memory.current" if self.is_v2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text()) - sum(
            int(stat[prefix + kind]) for kind in ("active_file", "inactive_file"))

    def n_killed(self):
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        stat = dict(line.split() for line in (self.path / name).read_text().splitlines())
        return int(stat.get("oom_kill", 0))

    def start(self, command, **how):
        """Starts the command as a process in the group."""
        def enter():
            (self.path / "cgroup.procs").write_text("0")
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=enter, **how)

    def remove(self):
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError: # its memory is still being freed
                time.sleep(0.1)


def need_root():
    if os.geteuid() != 0:
        sys.exit("a cold page cache and memory limits need root: run this with sudo")


def drop_page_cache():
    """Makes the system read files from disk again. Needs root."""
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    time.sleep(0.3)


def open_group():
    """Returns a new group, or None if none can be made."""
    root = pathlib.Path("/sys/fs/cgroup")
    for parent, is_v2 in ((root / "memory", False), (root, True)):
        try:
            if is_v2:
                (parent / "cgroup.subtree_control").write_text("+memory")
            group = Group(parent, is_v2)
        except OSError:
            continue
        try:
            group.held()
            return group
        except (OSError, KeyError):
            group.remove()
    return None
