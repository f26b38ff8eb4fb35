#!/usr/bin/env python3
"""Every rule of tools/lint.py fires on a tiny tree that breaks it, and only then."""
import importlib.util
import os
import shutil
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SPEC = importlib.util.spec_from_file_location(
    "lint", os.path.join(HERE, "..", "..", "tools", "lint.py"))
sys.dont_write_bytecode = True
lint = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint)


def header(guard, body=""):
    return f"#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


def function(lines, head="int f(void)"):
    return head + "\n{\n" + "    ;\n" * (lines - 3) + "}\n"


def findings(files, compilers=()):
    """Returns `rule` or `rule:name` and the path of each finding in a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return [(f"{f.rule}:{f.name}" if f.name else f.rule, f.path)
                for f in lint.check(root, compilers)]


class Rules(unittest.TestCase):
    seen = set()

    def fires(self, rule, path, text, **more):
        self.assertEqual(findings({path: text, **more}), [(rule, path)])
        Rules.seen.add(rule.partition(":")[0])

    def silent(self, path, text):
        self.assertEqual(findings({path: text}), [])

    def includes(self, path, *headers):
        return findings({path: "".join(f'#include "{h}"\n' for h in headers)})

    # ---- layers

    def test_each_rank_includes_the_lower_ones_only(self):
        for folder, rank in lint.RANKS.items():
            for other, other_rank in lint.RANKS.items():
                if folder == "apps" or other == "apps":
                    continue
                allowed = folder == other or other_rank < rank
                self.assertEqual(self.includes(f"src/{folder}/x.c", f"{other}/y.h"),
                                 [] if allowed else [("layer", f"src/{folder}/x.c")],
                                 f"{folder} includes {other}")
        Rules.seen.add("layer")

    def test_ranks_are_those_of_the_design(self):
        order = sorted(lint.RANKS.items(), key=lambda item: item[1])
        self.assertEqual(order, [
            ("base", 0), ("quant", 1), ("format", 2), ("text", 2), ("jinja", 3), ("grammar", 3),
            ("model", 3), ("chat", 4), ("store", 4), ("backend", 4), ("cache", 5), ("arch", 6),
            ("engine", 7), ("pack", 7), ("lab", 8), ("cluster", 8), ("session", 9), ("server", 10),
            ("apps", 11)])

    def test_apps_include_the_public_header_base_and_their_own(self):
        self.assertEqual(self.includes("apps/x.c", "flashmoe.h", "base/err.h", "own.h"), [])
        for other in ("model/model.h", "session/session.h", "server/http.h", "quant/quant.h"):
            self.fires("layer", "apps/x.c", f'#include "{other}"\n')
        self.fires("layer", "src/server/x.c", '#include "apps/own.h"\n')

    def test_layer_sees_through_brackets_and_paths(self):
        self.fires("layer", "src/base/x.c", "#include <quant/quant.h>\n")
        self.fires("layer", "src/base/x.c", '#  include "../quant/quant.h"\n')
        self.fires("layer", "src/base/x.c", '#include "elsewhere/y.h"\n')
        self.silent("src/base/x.c", '#include <stdio.h>\n#include <sys/stat.h>\n'
                    '#include "flashmoe_error.h"\n#include "own.h"\n')
        self.fires("layer", "src/base/x.c", '#include "flashmoe.h"\n')
        self.silent("src/quant/x.c", '#include "flashmoe.h"\n')
        self.silent("src/base/x.c", '/* #include "quant/quant.h" */\n'
                    '// #include "quant/quant.h"\n')
        self.silent("src/backend/cpu/x.c", '#include "kernels.h"\n#include "backend/backend.h"\n')

    def test_unit_tests_keep_to_the_layers(self):
        self.fires("layer", "src/base/x_test.c", '#include "quant/quant.h"\n')

    def test_private_headers(self):
        self.fires("private-header", "src/cache/x.c", '#include "store/store_internal.h"\n')
        self.fires("private-header", "src/cache/x.c", '#include "backend/cpu/kernels.h"\n')
        self.silent("src/backend/x.c", '#include "backend/cpu/kernels.h"\n')
        self.silent("src/store/x.c", '#include "store/store_internal.h"\n')

    def test_unknown_folder(self):
        self.fires("folder", "src/misc/x.c", "int x;\n")
        self.fires("folder", "src/x.c", "int x;\n")

    # ---- headers

    def test_guard(self):
        self.fires("guard", "src/base/x.h", "int x;\n")
        self.fires("guard", "src/base/x.h", header("FLASHMOE_BASE_Y_H"))
        self.fires("guard", "src/backend/cpu/x.h", header("FLASHMOE_CPU_X_H"))
        self.silent("src/base/x.h", header("FLASHMOE_BASE_X_H"))
        self.silent("src/backend/cpu/x.h", header("FLASHMOE_BACKEND_CPU_X_H"))
        self.silent("apps/x.h", header("FLASHMOE_APPS_X_H"))
        self.silent("include/flashmoe.h", header("FLASHMOE_H"))

    def test_header_alone(self):
        compilers = [pair for pair in (("c", "cc"), ("c++", "c++")) if shutil.which(pair[1])]
        path = "src/base/x.h"
        count = len(compilers)
        self.assertGreaterEqual(count, 1)
        found = findings({path: header("FLASHMOE_BASE_X_H", "size_t f(void);")}, compilers)
        self.assertEqual(found, [("header-alone", path)] * count)
        good = header("FLASHMOE_BASE_X_H", "#include <stddef.h>\nsize_t f(void);")
        self.assertEqual(findings({path: good}, compilers), [])
        only_c = header("FLASHMOE_BASE_X_H", "void f(int *class);")
        self.assertEqual(findings({path: only_c}, compilers), [("header-alone", path)] *
                         sum(language == "c++" for language, _ in compilers))
        Rules.seen.add("header-alone")

    def test_lists_need_no_guard_and_are_sorted(self):
        self.silent("src/quant/quant_list.h", "QUANT(affine)\nQUANT(plain)\n")
        self.fires("list-order", "src/quant/quant_list.h", "QUANT(plain)\nQUANT(affine)\n")
        self.fires("list-order", "src/arch/arch_list.h",
                   "#define ARCHS(X) \\\n    X(b, 1) \\\n    X(a, 2)\n")

    # ---- calls

    def test_calls_that_belong_to_apps(self):
        for name in lint.PROCESS_CALLS.split():
            self.fires(f"call:{name}", "src/base/x.c", f"{name}(1);\n")
            self.silent("apps/x.c", f"{name}(1);\n")

    def test_streams(self):
        self.fires("call:stderr", "src/base/x.c", "fprintf (stderr, format);\n")
        self.fires("call:stdout", "src/base/x.c", "fputs(text, stdout);\n")
        self.silent("src/base/x.c", "fprintf(file, format);\n")
        self.silent("apps/x.c", "fprintf(stderr, format);\n")

    def test_unsafe_calls_nowhere(self):
        for name in lint.UNSAFE_CALLS.split():
            self.fires(f"call:{name}", "src/base/x.c", f"{name}(a, b);\n")
            self.fires(f"call:{name}", "apps/x.c", f"{name}(a, b);\n")

    def test_allocation_only_in_mem(self):
        for name in lint.ALLOCATION_CALLS.split():
            self.fires(f"call:{name}", "src/model/x.c", f"p = {name}(n);\n")
            self.silent("src/base/mem.c", f"p = {name}(n);\n")

    def test_calls_in_comments_literals_members_and_longer_names(self):
        self.silent("src/base/x.c", '/* printf(1) */ // exit(1)\n'
                    'const char *s = "abort() \\" exit()";\n'
                    "mem_free(p); snprintf(b, n, f); ops->free(p); ops.exit(1); int exit_code;\n")

    def test_tests_may_call_anything(self):
        self.silent("src/base/x_test.c", "free(p); printf(f); x = expf(y);\n")

    def test_libm(self):
        for name in ("exp", "expf", "logf", "sin", "cosf", "pow", "powl", "tanhf", "log1pf"):
            self.fires(f"libm:{name}", "src/arch/x.c", f"x = {name}(y);\n")
        self.silent("src/arch/x.c", "x = sqrt(y) + sqrtf(y) + fmaf(a, b, c) + logs(1);\n")

    def test_threads(self):
        for text in ("#include <pthread.h>\n", "#include <stdatomic.h>\n", "_Atomic int x;\n",
                     "__atomic_thread_fence(5);\n"):
            self.fires("threads", "src/model/x.c", text)
            self.fires("threads", "apps/x.c", text)
            for path in ("src/base/pool.c", "src/base/mem.c", "src/store/reader_pread.c",
                         "src/cache/expert_cache.c", "src/session/session.c",
                         "src/session/session_batch.c", "src/server/jobs.c",
                         "src/server/call_texts.c"):
                self.silent(path, text)

    # ---- shape

    def test_line_length(self):
        self.fires("line-length", "src/base/x.c", "/* " + "a" * 95 + " */\n")
        self.silent("src/base/x.c", "/* " + "a" * 94 + " */\n")
        self.silent("src/base/x.c", "/* " + "\u00e9" * 94 + " */\n")
        self.fires("line-length", "tools/x.py", "#" * 101 + "\n")
        self.fires("line-length", "tests/api/x.c", "//" + "a" * 99 + "\n")

    def test_tab(self):
        self.fires("tab", "src/base/x.c", "\tint x;\n")
        self.fires("tab", "tools/x.sh", "\techo\n")

    def test_file_length(self):
        self.fires("file-length", "src/base/x.c", "int x;\n" * 801)
        self.silent("src/base/x.c", "int x;\n" * 800)

    def test_header_length(self):
        guard = header("FLASHMOE_BASE_X_H", "\n" * 245)
        self.silent("src/base/x.h", guard)
        self.fires("header-length", "src/base/x.h", guard + "\n\n")
        template = header("FLASHMOE_BACKEND_CPU_LANES_X_H", "\n" * 500)
        self.silent("src/backend/cpu/lanes_x.h", template)

    def test_function_length(self):
        self.silent("src/base/x.c", function(60))
        self.fires("function-long:f", "src/base/x.c", function(61))
        self.fires("function-long:f", "src/base/x.c", function(120))
        self.fires("function-hard:f", "src/base/x.c", function(121))
        head = '__attribute__((target("avx2")))\nstatic const char *g(int a,\n    int (*h)(int))'
        self.fires("function-long:g", "src/base/x.c", function(20) + function(62, head))
        self.fires("function-long:f", "src/base/x.c", 'extern "C" {\n' + function(61) + "}\n")
        self.silent("src/base/x.c", "static const int table[] = {\n" + "    1,\n" * 200 + "};\n")
        self.silent("src/base/x.c", "#define M(x) \\\n    do { \\\n    } while (0)\n" +
                    "struct s {\n" + "    int a;\n" * 100 + "};\n" + function(60))
        self.fires("function-long:f", "src/base/x.c",
                   "int e(void)\n{\n#if A\n    if (a) {\n#else\n    if (b) {\n#endif\n    }\n}\n" +
                   function(61))

    def test_open_mark(self):
        for word in ("TO" + "DO", "FIX" + "ME"):
            self.fires("open-mark", "src/base/x.c", f"/* {word}: later */\n")
            self.fires("open-mark", "tools/x.py", f"# {word}\n")

    def test_generated_tables_are_exempt(self):
        self.silent("src/text/unicode_tables.c", "\t" + "1," * 100 + "\n")
        self.silent("src/text/classes.inc", "\t" + "1," * 100 + "\n")

    # ---- exceptions

    def test_exceptions(self):
        tree = {"src/base/x.c": "free(p);\n"}
        for rule in ("call:free", "call"):
            self.assertEqual(findings(
                {**tree, "tools/lint.allow": f"# debt\n\nsrc/base/x.c {rule} a reason\n"}), [])
        for line in ("src/base/x.c call:malloc a reason",  # not needed
                     "src/base/y.c call:free a reason",
                     "src/base/x.c call:free",  # no reason
                     "src/base/x.c nonsense a reason"):
            self.assertEqual(sorted(findings({**tree, "tools/lint.allow": line + "\n"})),
                             [("allow", "tools/lint.allow"), ("call:free", "src/base/x.c")])
        Rules.seen.add("allow")

    def test_the_hard_limit_has_no_exception(self):
        found = findings({"src/base/x.c": function(121),
                          "tools/lint.allow": "src/base/x.c function-hard:f a reason\n"})
        self.assertEqual(sorted(found), [("allow", "tools/lint.allow"),
                                         ("function-hard:f", "src/base/x.c")])

    def test_zz_every_rule_has_fired(self):
        self.assertEqual(set(lint.RULES) - Rules.seen, set())


if __name__ == "__main__":
    unittest.main()
