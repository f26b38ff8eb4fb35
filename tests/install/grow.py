#!/usr/bin/env python3
"""Makes the public headers of a later version: every struct that begins with its size has one more
field at its end. The library and the program of install.abi are compiled against them.

    grow.py headers INCLUDE OUT   writes the grown headers
    grow.py sources ROOT          prints the sources of the library whose layouts depend on them
"""
import os
import re
import sys

HEADERS = ("flashmoe.h", "flashmoe_lab.h")
SIZED = re.compile(r"^struct (\w+) \{\n    size_t size;\n.*?^(?=\};)", re.MULTILINE | re.DOTALL)
# The field begins behind the padding of the struct that it is added to. See base/sized.h.
FIELD = "    uint64_t grown;\n"


def sized_structs(text):
    return [match.group(1) for match in SIZED.finditer(text)]


def write_headers(include, out):
    os.makedirs(out, exist_ok=True)
    for name in (*HEADERS, "flashmoe_error.h"):
        with open(os.path.join(include, name), encoding="utf-8") as f:
            text = f.read()
        text = SIZED.sub(lambda match: match.group(0) + FIELD, text)
        if name == HEADERS[0]:
            text = text.replace("#define FLASHMOE_H\n", "#define FLASHMOE_H\n#define FM_GROWN 1\n")
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            f.write(text)


class Includes:
    """Tells which files include a public header, directly or through others."""
    def __init__(self, root):
        self.src = os.path.join(root, "src")
        self.known = {}

    def sees(self, path):
        if path not in self.known:
            self.known[path] = False  # includes never form a circle; this ends one all the same
            with open(path, encoding="utf-8") as f:
                names = re.findall(r'^#include "([^"]+)"', f.read(), re.MULTILINE)
            places = [os.path.join(folder, name) for name in names
                      for folder in (os.path.dirname(path), self.src)]
            self.known[path] = (any(name in HEADERS for name in names) or
                                any(self.sees(place) for place in places if os.path.exists(place)))
        return self.known[path]

    def sources(self):
        for folder, _, names in sorted(os.walk(self.src)):
            if os.path.basename(folder) == "server":
                continue
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(".c") and not name.endswith("_test.c") and self.sees(path):
                    yield path


if __name__ == "__main__":
    if sys.argv[1] == "headers":
        write_headers(sys.argv[2], sys.argv[3])
    else:
        print(";".join(Includes(sys.argv[2]).sources()), end="")
