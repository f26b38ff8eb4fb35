#!/usr/bin/env python3
"""Programs that were compiled against the frozen headers of this binary interface (abi-N) work with
today's library and with one whose structs have grown; programs of the grown headers work with
today's library. Today's headers contain the frozen ones."""
import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest

from grow import HEADERS, sized_structs

OPTIONS = None
# A frozen header never changes. A new number in CMakeLists.txt (FLASHMOE_ABI) gets new ones.
FROZEN = {
    "flashmoe.h": "11b77f84f6cf89fc481e606e6e6f3a294ae52df8da34e8a28ba3e5e308bc9ac4",
    "flashmoe_error.h": "dea78a9d1c73b9f747ef9077ad145ce34f95c52d6c42c80da3ef9a0facde3857",
    "flashmoe_lab.h": "f6f8b322ff1a7832099aa0a7ae879cb52371b38e7e3b4497d9c58ae6f1475054",
}
# Structs without a size that callers make: they can never grow.
FIXED = ("fm_error", "fm_batch_item", "fm_logit_bias", "fm_logprob", "fm_speed")


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as f:
        return f.read()


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, **environment))


# ---- headers --------------------------------------------------------------------------------

class Header:
    """The declarations of all public headers of a folder."""
    def __init__(self, folder):
        self.folder = folder
        text = "".join(read(folder, name) for name in ("flashmoe_error.h", *HEADERS))
        self.text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        self.structs = {name: self.fields(body) for name, body in
                        re.findall(r"^struct (\w+) \{\n(.*?)^\};", self.text, re.M | re.DOTALL)}
        enums = re.findall(r"^enum(?: \w+)? \{(.*?)\};", self.text, re.M | re.DOTALL)
        self.constants = re.findall(r"\bFM_[A-Z0-9_]+\b", " ".join(enums))
        self.constants += re.findall(r"^#define (FM_[A-Z_]+) \d+", self.text, re.M)
        self.functions = [" ".join(text.split()) + ";" for text in
                          re.findall(r"^FM_API (.*?);", self.text, re.M | re.DOTALL)]
        self.typedefs = [" ".join(text.split()) + ";" for text in
                         re.findall(r"^(typedef .*?);", self.text, re.M | re.DOTALL)]

    @staticmethod
    def fields(body):
        names = []
        for declaration in body.split(";"):
            pointer = re.search(r"\(\*(\w+)\)\(", declaration)
            parts = [pointer.group(0)] if pointer else declaration.split(",")
            for part in parts:
                match = re.search(r"(\w+)\s*(?:\[\w+\])?\s*(?:\)\()?$", part.rstrip())
                if match:
                    names.append(match.group(1))
        return names

    def function_names(self):
        return [re.search(r"(fm_\w+)\(", text).group(1) for text in self.functions]


def program(header, frozen):
    """Prints layouts of what `header` declares. It also declares what `frozen` does, which the
    compiler refuses where a type differs, and needs its functions from the library."""
    lines = ["#include <stdio.h>", '#include "flashmoe_lab.h"', *frozen.typedefs,
             *("FM_API " + text for text in frozen.functions),
             "typedef void any_fn(void);", "any_fn *const functions[] = {"]
    lines += [f"    (any_fn *){name}," for name in frozen.function_names()]
    lines += ["};", "int main(void)", "{"]
    for struct, fields in header.structs.items():
        lines.append(f'    printf("{struct} %zu\\n", sizeof(struct {struct}));')
        lines += [f'    printf("{struct}.{field} %zu %zu\\n", offsetof(struct {struct}, {field}), '
                  f'sizeof(((struct {struct} *)0)->{field}));' for field in fields]
    lines += [f'    printf("{name} %d\\n", (int){name});' for name in frozen.constants]
    return "\n".join([*lines, "    return functions[0] == 0;", "}", ""])


def layouts(folder, frozen_folder, work):
    """Maps each struct, struct.field and constant to its numbers. A string says why it failed."""
    text = program(Header(folder), Header(frozen_folder))
    source, binary = os.path.join(work, "layout.c"), os.path.join(work, "layout")
    with open(source, "w", encoding="utf-8") as f:
        f.write(text)
    done = run(OPTIONS.cc, "-std=c11", "-w", "-I" + folder, source, "-o", binary,
               *OPTIONS.flags.split(), OPTIONS.library)
    if done.returncode != 0:
        return done.stderr
    done = run(binary, LD_LIBRARY_PATH=os.path.dirname(OPTIONS.library),
               DYLD_LIBRARY_PATH=os.path.dirname(OPTIONS.library))
    return {line.split()[0]: tuple(int(number) for number in line.split()[1:])
            for line in done.stdout.splitlines()}


def differences(frozen_folder, folder, work):
    """What breaks programs that were compiled against the frozen headers, in sentences."""
    frozen, now = layouts(frozen_folder, frozen_folder, work), layouts(folder, frozen_folder, work)
    if isinstance(frozen, str) or isinstance(now, str):
        return [frozen if isinstance(frozen, str) else now]
    found = []
    for name, numbers in frozen.items():
        is_struct = name.startswith("fm_") and "." not in name
        if name not in now:
            found.append(f"{name} is missing")
        elif not is_struct and now[name] != numbers:
            found.append(f"{name} was {numbers} and is {now[name]}")
        elif is_struct and (now[name] < numbers or (name in FIXED and now[name] != numbers)):
            found.append(f"{name} had {numbers[0]} bytes and has {now[name][0]}")
    for name, numbers in now.items():
        struct = name.split(".")[0]
        if "." in name and name not in frozen and struct in frozen:
            if numbers[0] < frozen[struct][0]:
                found.append(f"{name} is new and begins before the frozen struct ends")
    return found


class Headers(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)

    def test_the_frozen_headers_have_not_changed(self):
        for name, digest in FROZEN.items():
            with open(os.path.join(OPTIONS.frozen, name), "rb") as f:
                self.assertEqual(hashlib.sha256(f.read()).hexdigest(), digest, name)

    def test_every_declaration_is_found(self):
        frozen = Header(OPTIONS.frozen)
        self.assertEqual(len(frozen.functions), len(re.findall(r"^FM_API", frozen.text, re.M)))
        self.assertEqual(sum(name.startswith("fm_") for name in frozen.structs),
                         len(re.findall(r"^struct \w+ \{", frozen.text, re.M)))
        self.assertEqual(frozen.structs["fm_observer"], ["size", "ctx", "hidden", "logits", "route",
                                                         "progress", "profile"])
        self.assertEqual(frozen.structs["fm_error"], ["code", "text"])
        self.assertIn("FM_ERR_CANCELLED", frozen.constants)
        self.assertIn("FM_ERROR_BYTES", frozen.constants)

    def test_todays_headers_contain_the_frozen_ones(self):
        self.assertEqual(differences(OPTIONS.frozen, OPTIONS.include, self.work.name), [])

    def test_grown_headers_contain_the_frozen_ones(self):
        self.assertEqual(differences(OPTIONS.frozen, OPTIONS.grown_include, self.work.name), [])

    def test_every_close_says_that_it_accepts_null(self):
        text = "".join(read(OPTIONS.include, name) for name in HEADERS)
        lines = re.findall(r"^.*\bfm_\w+_close\(.*$|^.*\bfm_free\(.*$", text, re.M)
        self.assertEqual(len(lines), 9)
        self.assertEqual([line for line in lines if not line.endswith(" /* accepts NULL */")], [])

    def edited(self, name, old, new):
        """The differences that one edit of the frozen headers makes."""
        folder = os.path.join(self.work.name, "edited")
        os.makedirs(folder, exist_ok=True)
        for header in FROZEN:
            text = read(OPTIONS.frozen, header)
            if header == name:
                self.assertEqual(text.count(old), 1, old)
                text = text.replace(old, new)
            with open(os.path.join(folder, header), "w", encoding="utf-8") as f:
                f.write(text)
        return "\n".join(differences(OPTIONS.frozen, folder, self.work.name))

    def test_breaking_edits_are_noticed(self):
        for name, old, new, why in (
                ("flashmoe.h", "    unsigned n_context;\n", "    unsigned n_context, more;\n",
                 "fm_model_options.n_marks was"),
                ("flashmoe.h", "    unsigned n_stages;\n", "    unsigned n_stages, more;\n",
                 "fm_model_options.more is new and begins before"),
                ("flashmoe.h", "    size_t n_ids;\n    int rc;",
                 "    size_t n_ids, n;\n    int rc;", "fm_batch_item.rc was"),
                ("flashmoe.h", "FM_POLICY_LCP, FM_POLICY_LRU", "FM_POLICY_LRU, FM_POLICY_LCP",
                 "FM_POLICY_LCP was (0,) and is (1,)"),
                ("flashmoe.h", "FM_API void fm_session_reset(struct fm_session *session);",
                 "FM_API int fm_session_reset(struct fm_session *session);",
                 "conflicting types"),
                ("flashmoe_lab.h", "    uint64_t n_experts, n_tensors, n_files;",
                 "    uint64_t n_tensors, n_experts, n_files;", "fm_verify_result.n_experts was"),
                ("flashmoe_error.h", "FM_ERROR_BYTES 768", "FM_ERROR_BYTES 1024",
                 "fm_error had 772 bytes and has 1028")):
            with self.subTest(new):
                self.assertIn(why, self.edited(name, old, new))


# ---- programs -------------------------------------------------------------------------------

class Programs(unittest.TestCase):
    def call(self, binary, library, *arguments):
        folder = os.path.dirname(library)
        with tempfile.TemporaryDirectory() as work:
            done = run(binary, OPTIONS.model, work, *arguments, LD_LIBRARY_PATH=folder,
                       DYLD_LIBRARY_PATH=folder)
            return done.returncode, done.stdout.replace(work, "WORK"), done.stderr

    def output(self, binary, library):
        """What a program prints that must be the same everywhere, and its grown fields."""
        rc, out, err = self.call(binary, library)
        self.assertEqual((rc, err), (0, ""))
        lines = out.splitlines()
        version = OPTIONS.version if library == OPTIONS.library else "grown"
        self.assertEqual(lines[0], "version " + version)
        return ([line for line in lines[1:] if not line.startswith("grown ")],
                {line.split()[1]: int(line.split()[2]) for line in lines
                 if line.startswith("grown ")})

    @classmethod
    def setUpClass(cls):
        cls.structs = sized_structs("".join(read(OPTIONS.frozen, name) for name in HEADERS))
        cls.options = [name for name in cls.structs
                       if name.endswith("_options") or name in ("fm_sampling", "fm_observer")]

    def test_old_and_new_programs_get_the_same_answers(self):
        expected, grown = self.output(OPTIONS.program, OPTIONS.library)
        self.assertEqual(grown, {})
        self.assertEqual(sorted(set(line.split()[1] for line in expected
                                    if line.startswith("uses "))), sorted(self.structs))
        self.assertTrue(any(line.startswith("text: ") for line in expected))
        self.assertIn("progress: some", expected)
        self.assertTrue(any("3 threads, approximate: " in line for line in expected), expected)
        with self.subTest("frozen program, grown library"):
            self.assertEqual(self.output(OPTIONS.program, OPTIONS.grown_library), (expected, {}))
        for library, value in ((OPTIONS.library, 0), (OPTIONS.grown_library, 4711)):
            with self.subTest("grown program", library=library):
                lines, grown = self.output(OPTIONS.grown_program, library)
                self.assertEqual(lines, expected)
                self.assertEqual(grown, {name: value for name in self.structs
                                         if name not in self.options})

    def test_a_new_option_is_refused_by_an_old_library(self):
        self.assertEqual(len(self.options), 10)
        for name in self.options:
            with self.subTest(name):
                rc, _, err = self.call(OPTIONS.grown_program, OPTIONS.library, name)
                self.assertEqual(rc, 1, err)
                if name == "fm_observer":  # fm_session_observe has no fm_error
                    self.assertIn("fm_session_observe: failed", err)
                else:
                    self.assertRegex(err, name + r" has \d+ bytes, but this library knows only the "
                                     r"first \d+: an option after them is set")
                rc, _, err = self.call(OPTIONS.grown_program, OPTIONS.grown_library, name)
                self.assertEqual((rc, err), (0, ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("include", "frozen", "grown-include", "library", "grown-library", "program",
                 "grown-program", "model", "version", "cc"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--flags", default="")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
