"""A ring of plain TCP connections: what the network alone takes for messages of one size.

usage: net_ring.py INDEX N_HOSTS SUBNET PORT BYTES COUNT HOLD_MS,...

Host i listens at SUBNET.(i + 1) and sends to the next one. Host 0 sends a message, waits until it
has been around, and waits HOLD_MS of its own before the next one. The others keep a message for
their HOLD_MS, as a rank that computes, and pass it on; how long they really kept it goes with it.
Host 0 prints the seconds in which each message was under way and nobody kept it, as JSON.
"""
import json
import socket
import struct
import sys
import time

HEAD = struct.Struct("d")


def receive(link, n_bytes):
    parts = bytearray()
    while len(parts) < n_bytes:
        part = link.recv(n_bytes - len(parts))
        if not part:
            sys.exit(0)  # the host before has ended
        parts += part
    return parts


def connect(address):
    """The next host may not listen yet."""
    for _ in range(200):
        try:
            return socket.create_connection(address, timeout=5)
        except OSError:
            time.sleep(0.05)
    raise OSError(f"{address} does not answer")


def main():
    index, n_hosts, subnet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    port, n_bytes, count = (int(word) for word in sys.argv[4:7])
    hold_s = float(sys.argv[7].split(",")[index]) / 1e3
    listener = socket.create_server((f"{subnet}.{index + 1}", port))
    to_next = connect((f"{subnet}.{(index + 1) % n_hosts + 1}", port))
    before, _ = listener.accept()
    to_next.settimeout(None)
    for link in (to_next, before):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = []
    for _ in range(count if index == 0 else 1 << 30):
        message = bytearray(n_bytes) if index == 0 else receive(before, n_bytes)
        begin = time.perf_counter()
        if index > 0:
            time.sleep(hold_s)
            kept_s = HEAD.unpack_from(message)[0] + time.perf_counter() - begin
            HEAD.pack_into(message, 0, kept_s)
        to_next.sendall(message)
        if index == 0:
            kept_s = HEAD.unpack_from(receive(before, n_bytes))[0]
            found.append(time.perf_counter() - begin - kept_s)
            time.sleep(hold_s)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
