"""Several machines on this one: a network namespace, a host name and a memory cgroup for each rank,
and a network between them with the bandwidth, latency and loss of a real one (net_relay.c).

Rank 0 stays in the namespace of the caller, so that a client reaches its server. mpirun starts the
other ranks through an agent that enters their namespaces, in place of ssh. Needs root, `ip`,
`nsenter` and `unshare`, and a kernel with network namespaces and TUN. netem is not needed.
"""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

# Name: megabits per second, latency in us, jitter in us, loss in percent, MTU.
NETWORKS = {
    "1g": (1000, 200, 0, 0, 1500),
    "10g": (10000, 50, 0, 0, 9000),
    "wifi": (300, 3000, 2000, 1, 1500),
    "wifi-rto": (300, 3000, 2000, 1, 1500),
    "local": (100000, 0, 0, 0, 9000),
}

# What docs/CLUSTER.md tells users to set on each machine.
ROUTES = {"wifi-rto": ("rto_min", "20ms")}

AGENT = """#!/bin/sh
# Runs a command on another "machine": agent ADDRESS COMMAND...
name={name}-${{1##*.}}
shift
exec nsenter --net=/run/netns/$name unshare --uts sh -c '
hostname "$1"
shift
group={groups}/$(hostname)/cgroup.procs
[ ! -e "$group" ] || echo $$ >"$group"
exec sh -c "$*"' sh "$name" "$@"
"""


def missing():
    """Says what is not there, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nsenter", "unshare", "mpirun"):
        if shutil.which(tool) is None:
            return f"'{tool}' is not installed (Debian: iproute2, util-linux, openmpi-bin)"
    if not os.path.exists("/dev/net/tun"):
        return "the kernel has no TUN devices (/dev/net/tun)"
    return None


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def own_group():
    """Returns the memory cgroup (version 1 or 2) below which groups can be made, or None."""
    for path, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                        ("/sys/fs/cgroup", "memory.max")):
        group = pathlib.Path(path, f"flashmoe-net-{os.getpid()}")
        try:
            if limit == "memory.max":
                pathlib.Path(path, "cgroup.subtree_control").write_text("+memory", "ascii")
            group.mkdir()
            if (group / limit).exists():
                return group.parent, limit
        except OSError:
            continue
        finally:
            if group.exists():
                group.rmdir()
    return None


def echo(number, size):
    """An ICMP request for an echo."""
    def pack(checksum):
        return struct.pack(">BBHHH", 8, 0, checksum, os.getpid() & 0xffff, number) + bytes(size)
    words = pack(0) + bytes(size % 2)
    total = sum(struct.unpack(f">{len(words) // 2}H", words))
    total = (total >> 16) + (total & 0xffff)
    return pack(~(total + (total >> 16)) & 0xffff)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL) # PR_SET_PDEATHSIG


class Net:
    """A network of `n_hosts` machines. `memory` [n_hosts]: bytes of each cgroup, or None."""

    def __init__(self, relay, n_hosts, network, folder, memory=None):
        rate, delay, jitter, loss, mtu = NETWORKS[network]
        self.name, self.n_hosts = f"fm{os.getpid()}", n_hosts
        self.subnet = f"10.77.{os.getpid() % 250}"
        self.folder, self.groups = pathlib.Path(folder), []
        self.spaces = [f"{self.name}-{i + 1}" for i in range(1, n_hosts)]
        try:
            for space in self.spaces:
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
            # Its own session: a signal to the ranks does not reach it.
            self.relay = subprocess.Popen(
                [relay, *map(str, (rate, delay, jitter, loss)), self.subnet + ".0", self.name,
                 ".", *(f"/run/netns/{space}" for space in self.spaces)],
                stdout=subprocess.PIPE, preexec_fn=die_with_parent, start_new_session=True)
            if self.relay.stdout.readline() != b"ready\n":
                raise OSError("net_relay does not start")
            for i in range(n_hosts):
                self.ip(i, "addr", "add", f"{self.subnet}.{i + 1}/24", "dev", self.name)
                self.ip(i, "link", "set", self.name, "mtu", str(mtu), "txqueuelen", "1000", "up")
                if network in ROUTES:
                    self.ip(i, "route", "change", self.subnet + ".0/24", "dev", self.name,
                            *ROUTES[network])
            self.make_groups(memory)
            self.write_files()
        except BaseException:
            self.close()
            raise

    def ip(self, host, *words):
        ip(*(["-n", self.spaces[host - 1]] if host > 0 else []), *words)

    def make_groups(self, memory):
        if memory is None:
            return
        found = own_group()
        if found is None:
            raise OSError("memory cgroups cannot be made here")
        parent, limit = found
        self.parent = parent
        for i, n_bytes in enumerate(memory):
            group = parent / f"{self.name}-{i + 1}"
            group.mkdir()
            self.groups.append(group)
            (group / limit).write_text(str(n_bytes), "ascii")

    def write_files(self):
        self.agent, self.hosts = self.folder / "agent.sh", self.folder / "hosts"
        groups = self.parent if self.groups else "/nowhere"
        self.agent.write_text(AGENT.format(name=self.name, groups=groups), "ascii")
        self.agent.chmod(self.agent.stat().st_mode | stat.S_IXUSR)
        self.hosts.write_text("".join(f"{self.subnet}.{i + 1} slots=1\n"
                                      for i in range(self.n_hosts)), "ascii")

    def mpirun(self, *options):
        """The words before a program, as docs/CLUSTER.md has them."""
        return ["mpirun", "--allow-run-as-root", "--hostfile", str(self.hosts),
                "--mca", "plm_rsh_agent", str(self.agent),
                "--mca", "btl_tcp_if_include", self.subnet + ".0/24",
                "--mca", "oob_tcp_if_include", self.subnet + ".0/24",
                "--bind-to", "none", *options]

    def enter(self):
        """For the process that starts mpirun: rank 0 belongs to the first group."""
        if self.groups:
            (self.groups[0] / "cgroup.procs").write_text("0", "ascii")

    def unplug(self, host):
        self.ip(host, "link", "set", self.name, "down")

    def plug(self, host):
        self.ip(host, "link", "set", self.name, "up")

    def ping_us(self, host, size=56, count=50):
        """Returns the median time of a packet to a host and back, in us."""
        times = []
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
            s.settimeout(0.5)
            s.connect((f"{self.subnet}.{host + 1}", 0))
            for number in range(count):
                begin = time.perf_counter()
                s.send(echo(number, size))
                try:
                    s.recv(1 << 16)
                    times.append(time.perf_counter() - begin)
                except TimeoutError:
                    pass # lost
                time.sleep(0.01)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        times.sort()
        return 1e6 * times[len(times) // 2]

    def ring_s(self, n_bytes, holds_s, count=150):
        """Sends messages around a ring of plain TCP connections (net_ring.py). Host i keeps each
        for holds_s[i], as a rank that computes. Returns the seconds of each in the network."""
        program = pathlib.Path(__file__).parent / "net_ring.py"
        holds = ",".join(f"{1e3 * hold:.3f}" for hold in holds_s)
        hosts = [subprocess.Popen(
            [*([] if i == 0 else ["nsenter", f"--net=/run/netns/{self.spaces[i - 1]}"]),
             sys.executable, str(program), *map(str, (i, self.n_hosts, self.subnet, 47500, n_bytes,
                                                      count)), holds],
            stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL, text=True)
            for i in range(self.n_hosts)]
        try:
            return json.loads(hosts[0].communicate(timeout=120 + count * sum(holds_s))[0])
        finally:
            for host in hosts:
                host.kill()
                host.wait()

    def close(self):
        if getattr(self, "relay", None) is not None:
            self.relay.kill()
            self.relay.wait()
            self.relay.stdout.close()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
        for group in self.groups:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError: # its memory is still being freed
                    time.sleep(0.1)
