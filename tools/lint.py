#!/usr/bin/env python3
"""Checks the tree against the house rules (docs/ARCHITECTURE.md). Standard library only.

Usage: tools/lint.py [--root DIR] [--cc CC] [--cxx CXX]

A finding is `path:line: rule: message`. An exception is a line `path rule reason` in
tools/lint.allow; the rule may name its object (`function-long:forward_run`, `call:free`). An
exception that nothing needs is a finding itself, so that file is exactly the debt of the tree.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys

# A folder is a layer. A file includes headers of a lower rank or of its own folder.
RANKS = {"base": 0, "quant": 1, "format": 2, "text": 2, "jinja": 3, "grammar": 3, "model": 3,
         "chat": 4, "store": 4, "backend": 4, "cache": 5, "arch": 6, "engine": 7, "pack": 7,
         "lab": 8, "cluster": 8, "session": 9, "server": 10, "apps": 11}
APPS_MAY_INCLUDE = {"base", "apps"}
# The API. The lowest folder shares its error type and nothing else.
PUBLIC_HEADERS = {"flashmoe.h", "flashmoe_error.h", "flashmoe_lab.h"}

LINE_CHARACTERS, FILE_LINES, HEADER_LINES = 100, 800, 250
FUNCTION_LINES, FUNCTION_HARD_LINES = 60, 120

# Calls without a bound, with hidden state or without error reporting: nowhere.
UNSAFE_CALLS = "strcpy strcat sprintf vsprintf strtok atoi atol atoll atof gets rand srand"
# The library never exits, prints or reads the environment.
PROCESS_CALLS = ("getenv secure_getenv setenv putenv exit _exit _Exit quick_exit abort printf "
                 "vprintf puts putchar perror")
ALLOCATION_CALLS = ("malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf "
                    "aligned_alloc posix_memalign")
ALLOCATION_FILE = "src/base/mem.c"
STREAMS = "stdout stderr"
# Not correctly rounded, so their bits depend on the C library. sqrt, fma, floor and their like
# are exact by IEEE 754 and free.
LIBM_CALLS = ("exp exp2 exp10 expm1 log log2 log10 log1p pow sin cos sincos tan asin acos atan "
              "atan2 sinh cosh tanh asinh acosh atanh cbrt hypot erf erfc tgamma lgamma")
THREAD_FILES = ("src/base/pool.c", "src/base/mem.c", "src/store/reader_*.[ch]",
                "src/store/disk_probe.c", "src/store/expert_store.c", "src/store/row_store.c",
                "src/backend/cuda/cuda_memory.[ch]",
                "src/cache/expert_cache*.[ch]", "src/cache/background.c", "src/pack/crew.c",
                "src/cluster/transport_threads.c", "src/cluster/beat.c",
                "src/cluster/mpi/transport_mpi.c",
                "src/session/session*.c", "src/server/jobs*.c", "src/server/call_texts.c",
                "apps/pull/parts.c", "apps/pull/pull_pack.c", "src/base/gate.h")
THREADS = re.compile(r"#\s*include\s*<(?:stdatomic|pthread|threads)\.h>"
                     r"|\b(?:_Atomic|pthread_\w+|atomic_\w+|__atomic_\w+|__sync_\w+)\b")

RULES = ("layer private-header folder guard header-alone call libm threads line-length tab "
         "file-length header-length function-long function-hard list-order open-mark "
         "allow").split()
NO_EXCEPTION = {"function-hard", "allow"}

FOLDERS = ("include", "src", "apps", "tests", "tools", "cmake")
SUFFIXES = (".c", ".h", ".cc", ".py", ".sh", ".cmake", ".mjs", ".js", "CMakeLists.txt")
GENERATED = ("*.inc", "unicode_tables*")
# Kernels that are compiled once per instruction set: code, not an interface, and part of the file
# that includes them.
TEMPLATES = ("src/backend/cpu/lanes*.h", "src/backend/cuda/k_*.h",
             "src/backend/cuda/kernels_all.h", "src/backend/cuda/language.h",
             "src/backend/cuda/emulator.h")
# Headers of one instruction set: the processor and the flags under which they compile.
ISA_HEADERS = (("*neon*", "aarch64|arm64", ""), ("*avx512*", "x86_64|AMD64", "-march=x86-64-v4"),
               ("*avx2*", "x86_64|AMD64", "-mavx2 -mfma -mf16c"))

Finding = collections.namedtuple("Finding", "path line rule name text")

LITERAL = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]", re.M)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def without_comments(text):
    return LITERAL.sub(lambda m: blank(m) if m.group()[0] == "/" else m.group(), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


class Source:
    """One file: its text, and its code with comments and literals blanked."""

    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            self.text = f.read()
        self.lines = self.text.splitlines()
        self.is_header = path.endswith(".h")
        self.is_c = path.endswith((".c", ".h"))
        self.is_test = path.startswith("tests/") or path.endswith("_test.c")
        self.is_list = path.endswith("_list.h")
        parts = path.split("/")
        self.top = parts[0]
        self.in_layer = self.top in ("src", "apps")
        self.folder = "apps" if self.top == "apps" else parts[1] if len(parts) > 2 else ""
        self.code = LITERAL.sub(blank, self.text) if self.is_c else ""

    def finding(self, line, rule, text, name=""):
        return Finding(self.path, line, rule, name, text)


def find_sources(root):
    paths = [".ci/run"] if os.path.exists(os.path.join(root, ".ci/run")) else []
    for top in FOLDERS:
        for folder, subfolders, files in os.walk(os.path.join(root, top)):
            subfolders[:] = sorted(s for s in subfolders
                                   if s not in ("__pycache__", "node_modules"))
            for file in sorted(files):
                if file.endswith(SUFFIXES) and not any(
                        fnmatch.fnmatch(file, pattern) for pattern in GENERATED):
                    paths.append(os.path.relpath(os.path.join(folder, file), root))
    return [Source(root, path.replace(os.sep, "/")) for path in paths]


def check_includes(source):
    """Rules layer, private-header and folder."""
    if source.folder not in RANKS:
        yield source.finding(1, "folder", f"'{source.folder}' is no layer; add it to RANKS")
        return
    code = without_comments(source.text)
    for match in INCLUDE.finditer(code):
        line, (bracket, path) = line_of(code, match.start(1)), match.groups()
        parts = path.split("/")
        if path in PUBLIC_HEADERS:
            if source.folder == "base" and path != "flashmoe_error.h":
                yield source.finding(line, "layer", f"base may not include '{path}'")
            continue
        if bracket == "<" and parts[0] not in RANKS:
            continue
        if ".." in parts:
            yield source.finding(line, "layer", f"'{path}' is written relative to the file")
            continue
        own = source.path.split("/")[1:-1] if source.top == "src" else ["apps"]
        if len(parts) == 1:
            parts = own + parts
        folder = parts[0]
        if folder == source.folder:
            continue
        if folder not in RANKS:
            yield source.finding(line, "layer", f"'{path}' is in no layer")
        elif source.folder == "apps" and folder not in APPS_MAY_INCLUDE:
            yield source.finding(line, "layer", f"apps may not include '{path}', only flashmoe.h "
                                 "and base")
        elif RANKS[folder] >= RANKS[source.folder]:
            yield source.finding(line, "layer", f"{source.folder} (rank {RANKS[source.folder]}) "
                                 f"may not include '{path}' (rank {RANKS[folder]})")
        elif path.endswith("_internal.h") or len(parts) > 2:
            yield source.finding(line, "private-header", f"'{path}' is private to {folder}")


def check_guard(source):
    parts = source.path[:-2].split("/")[1:]
    names = parts if source.top in ("include",) else \
        ["flashmoe"] + (["apps"] if source.top == "apps" else []) + parts
    guard = re.sub(r"\W", "_", "_".join(names)).upper() + "_H"
    if not re.search(rf"^#ifndef {guard}\n#define {guard}$", source.text, re.M):
        yield source.finding(1, "guard", f"the include guard must be {guard}")


def find_calls(source, names, suffix=""):
    """Calls of the plain function, not of a member with its name."""
    pattern = rf"(?<![\w.])(?<!->)({'|'.join(names.split())}){suffix}(?=\s*\()"
    for match in re.finditer(pattern, source.code):
        yield line_of(source.code, match.start()), match.group()


def check_calls(source):
    """Rules call, libm and threads."""
    for line, name in find_calls(source, UNSAFE_CALLS):
        yield source.finding(line, "call", f"{name}() is not used here", name)
    if not any(fnmatch.fnmatch(source.path, pattern) for pattern in THREAD_FILES):
        for match in THREADS.finditer(source.code):
            yield source.finding(line_of(source.code, match.start()), "threads",
                                 f"'{match.group()}' outside the files that own locks")
    if source.top != "src":
        return
    for line, name in find_calls(source, PROCESS_CALLS):
        yield source.finding(line, "call", f"{name}() belongs to apps", name)
    for match in re.finditer(rf"\b(?:{STREAMS.replace(' ', '|')})\b", source.code):
        yield source.finding(line_of(source.code, match.start()), "call",
                             f"{match.group()} belongs to apps", match.group())
    if source.path != ALLOCATION_FILE:
        for line, name in find_calls(source, ALLOCATION_CALLS):
            yield source.finding(line, "call", f"{name}() belongs to {ALLOCATION_FILE}", name)
    for line, name in find_calls(source, LIBM_CALLS, "[fl]?"):
        yield source.finding(line, "libm", f"{name}() has other bits on other systems", name)


def find_functions(code):
    """(name, first line, last line) of each function definition."""
    code = DIRECTIVE.sub(blank, code)
    depth, start, is_function = 0, None, False
    for match in re.finditer(r"extern\s+\{|[{};]|[^\s{};]+", code):
        token, position = match.group(), match.start()
        if token.startswith("extern") and token.endswith("{"):
            start = None
        elif token == "{":
            if depth == 0:
                head = code[start:position].rstrip() if start is not None else ""
                is_function = head.endswith(")") and "=" not in head
            depth += 1
        elif token == "}":
            # The closing brace of a definition stands in column 0, whatever #if hid before it.
            depth = 0 if code[position - 1:position] in ("", "\n") else max(depth - 1, 0)
            if depth == 0:
                if is_function:
                    head = re.sub(r"__attribute__\s*\(\(.*?\)\)", " ", head, flags=re.S)
                    name = re.search(r"(\w+)\s*\(", head)
                    yield (name.group(1) if name else "?", line_of(code, start),
                           line_of(code, position))
                start, is_function = None, False
        elif depth == 0:
            start = None if token == ";" else position if start is None else start


def is_template(source):
    return any(fnmatch.fnmatch(source.path, pattern) for pattern in TEMPLATES)


def check_shape(source):
    """Rules line-length, tab, file-length, header-length, function-*, list-order, open-mark."""
    for number, line in enumerate(source.lines, 1):
        if len(line) > LINE_CHARACTERS:
            yield source.finding(number, "line-length", f"{len(line)} characters")
        if "\t" in line:
            yield source.finding(number, "tab", "a tab; indent with 4 spaces")
        if re.search(r"\b(TO[D]O|FIX[M]E)\b", line):
            yield source.finding(number, "open-mark", "write NEEDS: and the condition to act")
    if len(source.lines) > FILE_LINES:
        yield source.finding(FILE_LINES, "file-length", f"{len(source.lines)} lines")
    if source.is_header and not is_template(source) and len(source.lines) > HEADER_LINES:
        yield source.finding(HEADER_LINES, "header-length", f"{len(source.lines)} lines")
    for name, first, last in find_functions(source.code):
        lines = last - first + 1
        if lines > FUNCTION_HARD_LINES:
            yield source.finding(first, "function-hard", f"{lines} lines", name)
        elif lines > FUNCTION_LINES:
            yield source.finding(first, "function-long", f"{lines} lines", name)
    if source.is_list:
        entries = [(m.group(1), number) for number, line in enumerate(source.lines, 1)
                   for m in [re.match(r"\s*[A-Z]\w*\(\s*([^,)]+)", line)] if m]
        for (before, _), (entry, number) in zip(entries, entries[1:]):
            if entry < before:
                yield source.finding(number, "list-order", f"'{entry}' stands after '{before}'")


def check_header_alone(root, headers, compilers):
    """Every header compiles by itself. Compilers: (language, command)."""
    found = subprocess.run(["pkg-config", "--cflags", "jansson", "libxxhash",
                            "libmicrohttpd"],
                           capture_output=True, text=True) if shutil.which("pkg-config") else None
    flags = shlex.split(found.stdout) if found and found.returncode == 0 else []

    def compile_one(header, language, command):
        isa = next((i for i in ISA_HEADERS if fnmatch.fnmatch(os.path.basename(header.path), i[0])),
                   (None, ".", ""))
        if not re.search(isa[1], platform.machine()):
            return None
        standard = "-std=c11" if language == "c" else "-std=c++17"
        done = subprocess.run(
            [*shlex.split(command), standard, "-fsyntax-only", "-Wall", "-Werror", "-D_GNU_SOURCE",
             '-DFLASHMOE_VERSION="0"', "-Iinclude", "-Isrc", "-I.", *flags, *isa[2].split(),
             "-include", header.path, "-x", language, os.devnull],
            cwd=root, capture_output=True, text=True)
        if done.returncode == 0:
            return None
        why = next((l for l in done.stderr.splitlines() if "error" in l), done.stderr.strip())
        return header.finding(1, "header-alone", f"not alone as {standard[5:]}: {why}")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_one, header, *compiler)
                for header in headers if not is_template(header) for compiler in compilers]
        return [job.result() for job in jobs if job.result()]


def apply_exceptions(root, findings):
    """Drops the findings that tools/lint.allow excuses; adds one for each line nothing needs."""
    path, exceptions, kept = "tools/lint.allow", {}, []
    if os.path.exists(os.path.join(root, path)):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                words = line.split(None, 2)
                if not words or words[0].startswith("#"):
                    continue
                rule = words[1].partition(":")[0] if len(words) > 1 else ""
                if len(words) < 3 or rule not in RULES or rule in NO_EXCEPTION:
                    kept.append(Finding(path, number, "allow", "", "expected: path rule reason"))
                else:
                    exceptions[(words[0], words[1])] = [number, False]
    for finding in findings:
        keys = ((finding.path, finding.rule), (finding.path, f"{finding.rule}:{finding.name}"))
        excuses = [exceptions[key] for key in keys if key in exceptions]
        for excuse in excuses:
            excuse[1] = True
        if not excuses:
            kept.append(finding)
    for (file, rule), (number, used) in exceptions.items():
        if not used:
            kept.append(Finding(path, number, "allow", "", f"nothing in {file} needs '{rule}'"))
    return kept


def check(root, compilers=()):
    findings, headers = [], []
    for source in find_sources(root):
        findings += check_shape(source)
        if source.is_c and source.in_layer:
            findings += check_includes(source)
            if not source.is_test:
                findings += check_calls(source)
        if source.is_header and not source.is_list and not source.is_test:
            findings += check_guard(source)
            headers.append(source)
    findings += check_header_alone(root, headers, compilers)
    return sorted(apply_exceptions(root, findings))


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description="Checks the tree against the house rules.")
    parser.add_argument("--root", default=here)
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
    options = parser.parse_args()
    compilers = []
    for language, command in (("c", options.cc), ("c++", options.cxx)):
        if command and shutil.which(shlex.split(command)[0]):
            compilers.append((language, command))
        else:
            print(f"lint: no compiler '{command}': headers not checked as {language}")
    findings = check(options.root, compilers)
    for f in findings:
        rule = f"{f.rule}:{f.name}" if f.name else f.rule
        print(f"{f.path}:{f.line}: {rule}: {f.text}")
    print(f"lint: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
