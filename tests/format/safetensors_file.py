"""Reads and writes the container of a safetensors file: a length, a JSON header, the data."""
import json
import struct


def read(path):
    """Returns the header as a dict, and the data that follows it."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(size)), f.read()


def framed(header, data=b""):
    """Returns the bytes of a file. The header may be damaged; it is written as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
