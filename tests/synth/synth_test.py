#!/usr/bin/env python3
"""synth_test.py FLASHMOE [TestClass...]: models of random weights in every form can be opened,
have the requested shape and generate; the same command gives the same bytes."""
import hashlib
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
TINY = {"tiny-qwen3": "qwen3_moe", "tiny-next": "qwen3_next", "tiny-qwen3.5": "qwen3_5_moe_text",
        "tiny-glm": "glm4_moe", "tiny-minimax": "minimax_m2", "tiny-mixtral": "mixtral",
        "tiny-olmoe": "olmoe", "tiny-qwen2": "qwen2_moe"}
AFFINE = ("--experts-format", "affine4-g64", "--dense-format", "affine4-g64")
# Billions of parameters of the text model, as published.
PUBLISHED = {"30b-a3b": 30.53, "235b-a22b": 235.09, "next-80b": 79.67, "coder-next": 79.67,
             "35b-a3b": 34.66, "122b-a10b": 122.11, "397b": 396.35, "olmoe-1b-7b": 6.92,
             "mixtral-8x7b": 46.70, "mixtral-8x22b": 140.63, "qwen1.5-moe-a2.7b": 14.32,
             "57b-a14b": 57.41, "glm-4.5-air": 106.85, "glm-4.5": 352.80, "minimax-m2": 228.69,
             "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.83,
             "qwen3.8-flash-next": 176.94,  # 51.2 of them in the table of n-grams
             "deepseek-v3": 671.03, "kimi-k2": 1026.41, "glm-4.7-flash": 29.94}


GGML = {"F32": (0, 1, 4), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
        "Q6_K": (14, 256, 210)}


def read_gguf(path):
    """Returns metadata and {name: (type, dims)} of one file, whose size must follow from them."""
    data, at = path.read_bytes(), 0

    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return found[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take({2: "H", 4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    assert data[:4] == b"GGUF" and struct.unpack_from("<I", data, 4) == (3,)
    at = 8
    n_tensors, n_values = take("Q"), take("Q")
    metadata = {text(): value(take("I")) for _ in range(n_values)}
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q"))
             for _ in range(n_tensors)]
    end, tensors, names = 0, {}, {v[0]: (k, *v[1:]) for k, v in GGML.items()}
    for name, dims, kind, offset in infos:
        label, block, size = names[kind]
        n = 1
        for d in dims:
            n *= d
        assert offset == end and dims[0] % block == 0
        end = (offset + n // block * size + 31) // 32 * 32
        tensors[name] = (label, dims)
    assert (at + 31) // 32 * 32 + end == len(data)
    return metadata, tensors


def flashmoe(*args):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=1800)


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.dir = pathlib.Path(temp.name)

    def works(self, *args):
        done = flashmoe(*args)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return done.stdout

    def json(self, *args):
        return json.loads(self.works(*args, "--json"))

    def synth(self, shape, name, *more):
        path = self.dir / name
        self.works("synth", shape, path, "-q", *more)
        return path

    def generate(self, path):
        return self.json("run", path, "-p", "Tell me about the sea.", "-n", "8", "--greedy")


class Forms(Case):
    def check(self, path, architecture, formats):
        found = self.json("inspect", path)
        self.assertEqual(found["architecture"], architecture)
        self.assertEqual((found["hidden"], found["n_experts"], found["n_experts_per_token"]),
                         (256, 8, 2))
        self.assertEqual(found["vocabulary"], 512)
        self.assertTrue(found["has_tokenizer"])
        self.assertEqual({f["name"] for f in found["formats"]}, formats)
        said = self.generate(path)
        self.assertGreater(len(said["tokens"]), 0)
        return said["logits_hash"], found["n_parameters"], found["formats"]

    def needs_gguf(self, path):
        if flashmoe("inspect", path).stderr.endswith("' is a GGUF file\n"):
            self.skipTest("this version reads no GGUF")

    def test_packed(self):
        for shape, architecture in TINY.items():
            with self.subTest(shape):
                path = self.synth(shape, f"{shape}.fmoe")
                self.check(path, architecture, {"affine4-g64", "affine8-g64", "bf16"})
                verify = flashmoe("verify", path)
                if "unknown command" not in verify.stderr:
                    self.assertEqual(verify.returncode, 0, verify.stderr)

    def test_gpt_oss(self):
        """As released: experts in MXFP4, the rest in BF16. The released directory is not made."""
        packed = self.synth("tiny-gpt-oss", "a.fmoe")
        self.check(packed, "gpt_oss", {"mxfp4-g32", "bf16"})
        self.assertEqual(flashmoe("verify", packed).returncode, 0)
        path = self.synth("tiny-gpt-oss", "a.gguf")
        self.check(path, "gpt_oss", {"mxfp4", "bf16", "f32"})
        refused = flashmoe("synth", "tiny-gpt-oss", self.dir / "hf")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("packed or as GGUF", refused.stderr)

    def test_deepseek(self):
        packed = self.synth("tiny-deepseek", "a.fmoe")
        found = self.check(packed, "deepseek_v3", {"affine4-g64", "affine8-g64", "bf16", "f32"})
        self.assertEqual(flashmoe("verify", packed).returncode, 0)
        self.assertEqual(self.check(self.synth("tiny-deepseek", "hf"), "deepseek_v3", {"bf16"})[1],
                         found[1])
        cut = self.check(self.synth("tiny-deepseek", "a.gguf"), "deepseek_v3",
                         {"q4_k", "q6_k", "f32"})
        self.assertEqual(cut[1], found[1])

    def test_int4(self):
        path = self.synth("tiny-deepseek", "a.fmoe", "--experts-format", "int4-g32")
        self.check(path, "deepseek_v3", {"int4-g32", "affine4-g64", "affine8-g64", "bf16", "f32"})
        self.assertEqual(flashmoe("verify", path).returncode, 0)
        for name, words in (("a.gguf", "it has q4_0"), ("hf", "affine4-g64 and the like")):
            refused = flashmoe("synth", "tiny-deepseek", self.dir / f"b{name}",
                               "--experts-format", "int4-g32")
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)

    def test_flash_next(self):
        """The table is in files and in the number of parameters, and not in memory."""
        packed = self.synth("tiny-flash-next", "a.fmoe")
        found = self.check(packed, "qwen4_exp_text", {"affine4-g64", "affine8-g64", "bf16"})
        self.assertEqual(flashmoe("verify", packed).returncode, 0)
        made = self.synth("tiny-flash-next", "hf")
        self.assertEqual(self.check(made, "qwen4_exp_text", {"bf16"})[1], found[1])
        about = json.loads(flashmoe("inspect", made, "--json").stdout)
        self.assertEqual(about["table_bytes"], 1040 * 64 * 2)
        refused = flashmoe("synth", "tiny-flash-next", self.dir / "a.gguf")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("packed or as a Hugging Face directory", refused.stderr)

    def test_packed_formats(self):
        path = self.synth("tiny-next", "a.fmoe", "--experts-format", "q4_k", "--dense-format",
                          "q8_0", "--embed-format", "f16", "--head-format", "affine6-g32")
        self.check(path, "qwen3_next", {"q4_k", "q8_0", "f16", "f32", "affine6-g32", "bf16"})

    def test_hugging_face(self):
        for shape, architecture in TINY.items():
            with self.subTest(shape):
                path = self.synth(shape, f"{shape}-hf", "--split-size", "1M")
                self.assertGreater(len(list(path.glob("model-*.safetensors"))), 2)
                self.check(path, architecture, {"bf16"})

    def test_mlx_equals_packed(self):
        """The same formats and the same seed give the same model."""
        for shape, architecture in TINY.items():
            with self.subTest(shape):
                mlx = self.synth(shape, f"{shape}-mlx", *AFFINE)
                packed = self.synth(shape, f"{shape}.fmoe")
                formats = {"affine4-g64", "affine8-g64", "bf16"}
                self.assertEqual(self.check(mlx, architecture, formats),
                                 self.check(packed, architecture, formats))
                widths = json.loads((mlx / "config.json").read_text())["quantization"]
                self.assertEqual((widths["bits"], widths["group_size"]), (4, 64))

    def test_gguf(self):
        """The container; tests/oracle/synth_in_llama.py shows that llama.cpp runs it."""
        gguf = {"tiny-qwen3": "qwen3moe", "tiny-next": "qwen3next", "tiny-qwen3.5": "qwen35moe",
                "tiny-glm": "glm4moe", "tiny-minimax": "minimax-m2", "tiny-mixtral": "llama",
                "tiny-olmoe": "olmoe", "tiny-qwen2": "qwen2moe"}
        for shape, architecture in TINY.items():
            with self.subTest(shape):
                path = self.synth(shape, f"{shape}.gguf")
                metadata, tensors = read_gguf(path)
                self.assertEqual(metadata["general.architecture"], gguf[shape])
                self.assertEqual(len(metadata["tokenizer.ggml.tokens"]), 512)
                self.assertEqual(metadata["tokenizer.ggml.tokens"][258], "<|im_end|>")
                self.assertEqual(tensors["output.weight"], ("Q6_K", [256, 512]))
                self.assertEqual(tensors["blk.1.ffn_down_exps.weight"], ("Q4_K", [256, 256, 8]))
                self.assertEqual(tensors["blk.1.ffn_gate_inp.weight"], ("F32", [256, 8]))
                if shape in ("tiny-next", "tiny-qwen3.5"):
                    self.assertEqual(tensors["blk.0.ssm_conv1d.weight"], ("F32", [4, 512]))
                    self.assertEqual(tensors["blk.0.ffn_gate_inp_shexp.weight"], ("F32", [256]))
                self.assertFalse([n for n in tensors if "proj" in n or "model." in n])
                self.needs_gguf(path)
                self.check(path, architecture, {"q4_k", "q6_k", "f32"})

    def test_gguf_equals_packed(self):
        """Where the conventions do not differ, the same formats give the same model."""
        path = self.synth("tiny-qwen3", "a.gguf")
        self.needs_gguf(path)
        packed = self.synth("tiny-qwen3", "a.fmoe", "--experts-format", "q4_k", "--dense-format",
                            "q4_k", "--head-format", "q6_k")
        self.assertEqual(self.generate(path)["logits_hash"],
                         self.generate(packed)["logits_hash"])

    def test_gguf_split(self):
        self.works("synth", "tiny-next", self.dir / "a.gguf", "-q", "--split-size", "1M")
        whole = read_gguf(self.synth("tiny-next", "whole.gguf"))[1]
        parts = sorted(self.dir.glob("a-*.gguf"))
        self.assertEqual([p.name for p in parts],
                         [f"a-{i + 1:05}-of-{len(parts):05}.gguf" for i in range(len(parts))])
        found = {}
        for i, part in enumerate(parts):
            metadata, tensors = read_gguf(part)
            self.assertEqual((metadata["split.no"], metadata["split.count"]), (i, len(parts)))
            self.assertEqual(metadata["split.tensors.count"], len(whole))
            found.update(tensors)
        self.assertEqual(found, whole)
        self.needs_gguf(parts[0])
        self.assertEqual(self.generate(parts[0])["logits_hash"],
                         self.generate(self.dir / "whole.gguf")["logits_hash"])

    def test_headers_only(self):
        """Files of full length that take no space; the model can be inspected and planned. What a
        run would read is not there, and a packed model says so."""
        for name in ("a.fmoe", "hf", "a.gguf"):
            with self.subTest(name):
                whole = self.synth("tiny-next", "whole-" + name)
                empty = self.synth("tiny-next", name, "--headers-only")
                files = sorted(empty.iterdir()) if empty.is_dir() else [empty]
                for file in files:
                    other = whole / file.name if empty.is_dir() else whole
                    if file.name != "model.json":
                        self.assertEqual(file.stat().st_size, other.stat().st_size, file)
                facts = [self.json("inspect", path) for path in (whole, empty)]
                for found in facts:
                    found.pop("model")
                self.assertEqual(*facts)
                self.json("plan", empty, "--memory", "1G", "--disk-speed", "1", "--memory-speed",
                          "10")
        weights = self.dir / "a.fmoe" / "experts-000.bin"
        self.assertEqual(set(weights.read_bytes()), {0})
        self.assertEqual(weights.stat().st_blocks, 0)
        refused = flashmoe("run", self.dir / "a.fmoe", "-p", "hi", "-n", "1", "-q")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("checksum", refused.stderr)

    def test_accounting(self):
        for shape in TINY:
            for name, more in ((f"{shape}.fmoe", ()), (f"{shape}-hf", ())):
                with self.subTest(name):
                    plan = self.json("synth", shape, self.dir / name, "--dry-run", *more)
                    path = self.synth(shape, name, *more)
                    files = [f for f in path.iterdir() if f.name != "model.json"]
                    self.assertEqual(plan["file_bytes"], sum(f.stat().st_size for f in files))
                    found = self.json("inspect", path)
                    for field in ("n_parameters", "experts_bytes", "expert_token_bytes"):
                        self.assertEqual(plan[field], found[field], field)


class Shapes(Case):
    def test_completions_have_every_shape(self):
        known = flashmoe("synth", "none", self.dir / "a").stderr.strip().split(" one of ")[1]
        shapes = known.split(", ")
        self.assertTrue(set(TINY) | set(PUBLISHED) <= set(shapes))
        for shell in ("bash", "zsh", "fish"):
            self.assertIn(" ".join(shapes), self.works("completions", shell), shell)

    def test_published_counts(self):
        for shape, billions in PUBLISHED.items():
            with self.subTest(shape):
                found = self.json("synth", shape, self.dir / "x.fmoe", "--dry-run")
                self.assertEqual(round(found["n_parameters"] / 1e9, 2), billions)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_published_sizes(self):
        found = self.json("synth", "397b", self.dir / "x.fmoe", "--dry-run")
        self.assertEqual(found["expert_bytes"], 7077888)
        oss = self.json("synth", "gpt-oss-120b", self.dir / "x.fmoe", "--dry-run")
        self.assertEqual(oss["expert_bytes"], 3 * 2880 * (1440 + 90))
        self.assertEqual(round(found["dense_bytes"] / 1e9, 3), 5.579)
        self.assertEqual(round(found["dense_token_bytes"] / 1e9, 3), 5.007)
        self.assertEqual(round(found["expert_token_bytes"] / 1e9, 3), 4.247)
        self.assertEqual(round(found["file_bytes"] / 1e9, 1), 223.0)

    def test_numbers(self):
        path = self.synth("tiny-next", "x.fmoe", "--layers", "6", "--experts", "12", "--used", "3",
                          "--interval", "3", "--vocab", "1000", "--context", "777",
                          "--expert-width", "128", "--head-dim", "32")
        found = self.json("inspect", path)
        self.assertEqual((found["n_layers"], found["n_attention_layers"], found["n_experts"],
                          found["n_experts_per_token"], found["vocabulary"], found["max_context"]),
                         (6, 2, 12, 3, 1000, 777))
        self.assertEqual(found["expert_bytes"], 14 * 4096) # 3 * 256 * 128 * 9 / 16 = 13.5 pages
        self.generate(path)

    def test_narrow(self):
        """If the usual format does not fit the columns, another one is used."""
        path = self.synth("tiny-next", "x.fmoe", "--hidden", "96", "--expert-width", "40")
        self.generate(path)


class Bytes(Case):
    def digest(self, path):
        total = hashlib.sha256()
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.suffix == ".json":
                continue
            total.update(file.name.encode() + b"\0" + file.read_bytes())
        return total.hexdigest()

    def test_same_bytes(self):
        """With any number of threads and in every version, because recorded measurements refer to
        them."""
        for name, args in FIXED.items():
            with self.subTest(name):
                digests = set()
                for threads in ("1", "2", "7"):
                    path = self.synth(*args[:1], name, *args[1:], "--threads", threads)
                    digests.add(self.digest(path))
                    subprocess.run(["rm", "-r", str(path)], check=True)
                self.assertEqual(digests, {FIXED_SHA256[name]})

    def test_seed(self):
        a = self.synth("tiny-qwen3", "a.fmoe")
        b = self.synth("tiny-qwen3", "b.fmoe", "--seed", "2")
        self.assertNotEqual((a / "dense.bin").read_bytes(), (b / "dense.bin").read_bytes())
        self.assertNotEqual((a / "experts-000.bin").read_bytes(),
                            (a / "experts-001.bin").read_bytes())


FIXED = {
    "packed.fmoe": ("tiny-next",),
    "hf": ("tiny-qwen3.5",),
    "mlx": ("tiny-next", *AFFINE, "--split-size", "1M"),
    "a.gguf": ("tiny-qwen3.5",),
}
FIXED_SHA256 = {
    "a.gguf": "cf45f4eac83b6f71a30c96b406908d8c1bfe99b4b994d3cc9cbee735b4181e81",
    "packed.fmoe": "486f4bea1d11a74e3372e0d1def7bb72f2cd1e70ef2755c5a5402f209852e147",
    "hf": "9c6a5a555e86a34a9817fe7e1eb21a463f0600df36864425430a69d28c31ffd2",
    "mlx": "d26f667f508b8374b37ab8ab66d4ce5ee687d83390a0cd7dd714ff4a3a40c875",
}


class Faults(Case):
    def fails(self, status, words, *args):
        before = sorted(self.dir.iterdir())
        done = flashmoe("synth", *args)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, r"\Aflashmoe: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(sorted(self.dir.iterdir()), before)

    def test_refused(self):
        x = self.dir / "x.fmoe"
        self.fails(2, ["12b", "397b"], "12b", x)
        self.fails(2, ["no key-heads"], "tiny-qwen3", x, "--key-heads", "2")
        self.fails(2, ["9 of 8 experts"], "tiny-next", x, "--used", "9")
        self.fails(2, ["heads 5", "kv-heads 2"], "tiny-next", x, "--heads", "5")
        self.fails(2, ["vocab 100", "259"], "tiny-next", x, "--vocab", "100")
        self.fails(2, ["int5"], "tiny-next", x, "--experts-format", "int5")
        self.fails(2, ["experts.0.down_proj", "100 columns", "affine4-g128"], "tiny-next", x,
                   "--experts-format", "affine4-g128", "--expert-width", "100")
        self.fails(2, ["q4_k"], "tiny-next", self.dir / "hf", "--dense-format", "q4_k")
        self.fails(2, ["GGUF", "affine4-g64"], "tiny-next", self.dir / "x.gguf", "--dense-format",
                   "affine4-g64")
        self.fails(2, ["--form"], "tiny-next", x, "--form", "zip")
        self.fails(1, ["nowhere"], "tiny-next", self.dir / "nowhere" / "x.fmoe")
        x.mkdir()
        self.fails(2, ["exists already"], "tiny-next", x)

    def test_no_room(self):
        self.fails(1, ["GB free"], "397b", self.dir / "x.fmoe", "--layers", "1000")

    def test_full_disk(self):
        """A file may not become longer than a limit: the write fails as on a full disk."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        for name in ("x.fmoe", "hf", "x.gguf"):
            with self.subTest(name):
                done = subprocess.run([PROGRAM, "synth", "tiny-next", self.dir / name],
                                      capture_output=True, text=True, preexec_fn=limit,
                                      restore_signals=False)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, r"\Aflashmoe: cannot write [^\n]+\n\Z")
                self.assertEqual(os.listdir(self.dir), [])

    def test_after_a_kill(self):
        """The leftovers of a killed run do not disturb the next one."""
        partial = self.dir / "x.fmoe.synth-partial"
        partial.mkdir()
        (partial / "dense.bin").write_bytes(b"half")
        self.synth("tiny-next", "x.fmoe")
        self.assertEqual([p.name for p in self.dir.iterdir()], ["x.fmoe"])
        (self.dir / "y.fmoe.synth-partial").mkdir()
        (self.dir / "y.fmoe.synth-partial" / "diary.txt").write_text("mine")
        self.fails(2, ["in the way"], "tiny-next", self.dir / "y.fmoe")

    def test_leaves_an_unfinished_pack_alone(self):
        """It may be all that is left of a source that was consumed."""
        packing = self.dir / "x.fmoe.partial"
        packing.mkdir()
        kept = {"dense.bin": b"dense", "experts-000.bin": b"experts", "plan.json": b"{}"}
        for name, content in kept.items():
            (packing / name).write_bytes(content)
        self.synth("tiny-next", "x.fmoe")
        self.assertEqual({p.name: p.read_bytes() for p in packing.iterdir()}, kept)

    def test_interrupt(self):
        args = [PROGRAM, "synth", "tiny-next", str(self.dir / "x.fmoe"), "--layers", "40",
                "--experts", "512", "--threads", "1"]
        process = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 1800
        while not (self.dir / "x.fmoe.synth-partial").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=1800)[1]
        if process.returncode == 0:
            self.skipTest("it was done before the signal came")
        self.assertEqual(process.returncode, 130, error)
        self.assertIn("removed the unfinished", error)
        self.assertEqual(os.listdir(self.dir), [])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
