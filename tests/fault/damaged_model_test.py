"""Gives the flashmoe program damaged checkpoints and wrong arguments.

Usage: damaged_model_test.py PROGRAM GOLDEN [TestClass...]

GOLDEN is the folder of tiny checkpoints. Every refusal must be one line on standard error that
names the file and the field or tensor at fault, with nothing on standard output and exit status
1 (2 for wrong usage).
"""

import ctypes
import ctypes.util
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "format"))
import safetensors_file # pylint: disable=wrong-import-position

PROGRAM = ""
GOLDEN = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine

NEXT, MOE, QWEN35 = "qwen3_next", "qwen3_moe", "qwen3_5_moe_text"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
DROP = object()  # marks a field to remove
EXPERT = "model.layers.0.mlp.experts.7.gate_proj.weight"
NORM = "model.layers.3.input_layernorm.weight"
EMBED = "model.embed_tokens.weight"


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def data_end(header):
    """Returns where the last tensor ends; None if the offsets are damaged."""
    try:
        return max(entry["data_offsets"][1] for name, entry in header.items()
                   if name != "__metadata__")
    except (KeyError, TypeError, IndexError, ValueError):
        return None


class Checkpoint:
    """A copy of a golden checkpoint that may be damaged. The weights are a link until changed."""

    def __init__(self, folder, family):
        self.golden = os.path.join(GOLDEN, family)
        self.dir = os.path.join(folder, "model")
        os.mkdir(self.dir)
        for name in (CONFIG, GENERATION):
            shutil.copy(os.path.join(self.golden, name), self.dir)
        shutil.copy(os.path.join(GOLDEN, NEXT, TOKENIZER), self.dir)
        os.symlink(os.path.join(self.golden, WEIGHTS), self.path(WEIGHTS))

    def path(self, name):
        return os.path.join(self.dir, name) if name else self.dir

    def remove(self, name):
        os.unlink(self.path(name))

    def write(self, name, content):
        if os.path.lexists(self.path(name)):
            self.remove(name)
        with open(self.path(name), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())

    def edit(self, name, change):
        """Applies a function to the object in a JSON file."""
        document = read_json(self.path(name))
        change(document)
        self.write(name, json.dumps(document))

    def fields(self, changes, name=CONFIG):
        def change(document):
            for field, value in changes.items():
                if value is DROP:
                    del document[field]
                else:
                    document[field] = value
        self.edit(name, change)

    def header(self, change, name=WEIGHTS):
        """Applies a function to the header of the weights; the data does not move and ends with the
        last tensor."""
        header, data = safetensors_file.read(self.path(name))
        change(header)
        self.write(name, safetensors_file.framed(header, data[:data_end(header)]))

    def split(self):
        """Writes two shards and an index instead of one file."""
        header, data = safetensors_file.read(self.path(WEIGHTS))
        names = sorted(n for n in header if n != "__metadata__")
        placed = {n: f"model-{1 + (i % 2)}.safetensors" for i, n in enumerate(names)}
        for shard in set(placed.values()):
            part = {n: header[n] for n in names if placed[n] == shard}
            self.write(shard, safetensors_file.framed(part, data[:data_end(part)]))
        self.remove(WEIGHTS)
        self.write(INDEX, json.dumps({"weight_map": placed}))


def run(*args):
    return subprocess.run([PROGRAM, "run", *args], stdin=subprocess.DEVNULL, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Case(unittest.TestCase):
    def assert_refused(self, result, words, status=1, warnings=0):
        stderr = result.stderr.decode()
        self.assertEqual(result.returncode, status, stderr)
        self.assertEqual(result.stdout, b"")
        for _ in range(warnings):
            line, _, stderr = stderr.partition("\n")
            self.assertRegex(line, r"\Aflashmoe: warning: .")
        self.assertRegex(stderr, r"\Aflashmoe: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, stderr)

    def refuse(self, damage, *words, family=NEXT, args=(), status=1, warnings=0):
        """Applies `damage` to a fresh copy. A word "/NAME" stands for that file of the copy."""
        with self.subTest(words), tempfile.TemporaryDirectory() as folder:
            copy = Checkpoint(folder, family)
            damage(copy)
            words = [copy.path(w[1:]) if w.startswith("/") else w for w in words]
            result = run(copy.dir, "-p", "hi", "-n", "4", "--greedy", *args)
            self.assert_refused(result, words, status, warnings)

    def refuse_fields(self, changes, *words, family=NEXT):
        self.refuse(lambda c: c.fields(changes), f"/{CONFIG}", *words, family=family)

    def refuse_header(self, change, *words, family=NEXT):
        self.refuse(lambda c: c.header(change), f"/{WEIGHTS}", *words, family=family)


class Sound(Case):
    """The copies work before they are damaged, so nothing below is refused for another reason."""

    def test_copies_run(self):
        for family in (NEXT, MOE, QWEN35, "glm4_moe", "mixtral"):
            for damage in (lambda c: None, lambda c: c.fields({}), lambda c: c.header(lambda h: 0),
                           Checkpoint.split):
                with self.subTest(family), tempfile.TemporaryDirectory() as folder:
                    copy = Checkpoint(folder, family)
                    damage(copy)
                    result = run(copy.dir, "-p", "hi", "-n", "4", "--greedy", "-q")
                    self.assertEqual((result.returncode, result.stderr), (0, b""))

    def test_garbage_weights_do_not_crash(self):
        """There is no checksum to notice it; whatever the numbers are, the program must not
        crash."""
        pairs = (b"\xff\xff", b"\x80\x7f", b"\x80\xff", b"\x7f\x7f", b"\x01\x00", b"\x00\x00")
        for family in (NEXT, QWEN35, MOE):
            header, data = safetensors_file.read(os.path.join(GOLDEN, family, WEIGHTS))
            fills = [pair * (len(data) // 2) for pair in pairs] + [data[::-1]]
            for fill in fills:
                with self.subTest(fill[:2]), tempfile.TemporaryDirectory() as folder:
                    copy = Checkpoint(folder, family)
                    copy.write(WEIGHTS, safetensors_file.framed(header, fill))
                    for choice in ("--greedy", "--temp=1"):
                        result = run(copy.dir, "-p", "hi", "-n", "4", "-q", choice)
                        self.assertIn(result.returncode, (0, 1), result.stderr)

    def test_values_beyond_f16(self):
        """Values that become NaN with f16 work with f32, and the message names it."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Checkpoint(folder, NEXT)
            header, data = safetensors_file.read(copy.path(WEIGHTS))
            data = bytearray(data)
            for name in (name for name in header if name.endswith("v_proj.weight")):
                begin, end = header[name]["data_offsets"]
                numbers = struct.unpack(f"<{(end - begin) // 2}H", data[begin:end])
                larger = [x + (40 << 7) if x & 0x7f80 else x for x in numbers]  # bf16, times 2^40
                data[begin:end] = struct.pack(f"<{len(larger)}H", *larger)
            copy.write(WEIGHTS, safetensors_file.framed(header, data))
            args = (copy.dir, "-p", "hi", "-n", "4", "--greedy", "-q")
            self.assert_refused(run(*args), ["not numbers (NaN)", "f16", "try --kv f32"])
            result = run(*args, "--kv", "f32")
            self.assertEqual((result.returncode, result.stderr), (0, b""))


class Directory(Case):
    def refuse_path(self, path, *words):
        self.assert_refused(run(path, "-p", "hi", "-n", "4", "--greedy"), words)

    def test_path(self):
        with tempfile.TemporaryDirectory() as folder:
            missing, empty = os.path.join(folder, "none"), os.path.join(folder, "empty")
            file, gguf = os.path.join(folder, "file"), os.path.join(folder, "a.gguf")
            os.mkdir(empty)
            for path in (file, gguf):
                with open(path, "wb"):
                    pass
            self.refuse_path(missing, f"'{missing}'", "No such file")
            self.refuse_path(file, f"'{file}'", "not a directory")
            self.refuse_path(gguf, f"{gguf}: the file has 0 bytes", "GGUF")
            self.refuse_path(empty, f"'{empty}'", "config.json")
            self.refuse_path("", "the path of the model is empty")
            self.refuse_path("x" * 300, "cannot open", "name too long")
            self.refuse_path("x" * 5000, "cannot open")
            os.symlink("loop", os.path.join(folder, "loop"))
            self.refuse_path(os.path.join(folder, "loop"), "loop", "symbolic links")
            os.mkdir(os.path.join(folder, "new\nline\x1b[2J"))
            self.refuse_path(os.path.join(folder, "new\nline\x1b[2J"), "config.json")

    def test_missing_files(self):
        self.refuse(lambda c: c.remove(CONFIG), "/", "neither model.json nor config.json")
        self.refuse(lambda c: c.remove(WEIGHTS), INDEX, WEIGHTS)
        self.refuse(lambda c: c.remove(TOKENIZER), "tokenizer.json")

    def test_adapters(self):
        """A LoRA is recognised, with and without a model next to it."""
        lora = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-30B-A3B"})
        for name, content, words in (
                ("adapter_config.json", lora, ("LORA", "Qwen/Qwen3-30B-A3B", "Merge")),
                ("adapter_config.json", "{", ("LoRA", "Merge")),
                ("adapter_model.safetensors", b"", ("LoRA", "Merge")),
                ("adapter_model.bin", b"", ("LoRA", "Merge")),
                ("adapters.safetensors", b"", ("LoRA", "Merge"))):
            self.refuse(lambda c, n=name, t=content: c.write(n, t), "/", f"has '{name}'", *words)

            def alone(c, n=name, t=content):
                for file in (CONFIG, WEIGHTS, GENERATION, TOKENIZER):
                    c.remove(file)
                c.write(n, t)
            self.refuse(alone, "/", f"has '{name}'", *words)

    def test_unreadable_files(self):
        def dangling(name):
            def damage(c):
                c.remove(name)
                os.symlink("nowhere", c.path(name))
            return damage

        def other_kind(name, make):
            def damage(c):
                c.remove(name)
                make(c.path(name))
            return damage
        for name in (CONFIG, WEIGHTS, TOKENIZER, GENERATION):
            for make in (os.mkdir, os.mkfifo):
                self.refuse(other_kind(name, make), f"/{name}", "not a regular file")
        self.refuse(dangling(CONFIG), "config.json")
        self.refuse(dangling(WEIGHTS), WEIGHTS)
        self.refuse(dangling(TOKENIZER), TOKENIZER)

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_forbidden_files(self):
        for name in (CONFIG, TOKENIZER, GENERATION):
            self.refuse(lambda c, n=name: os.chmod(c.path(n), 0), f"/{name}", "Permission denied")

        def weights(c):
            c.header(lambda h: 0)
            os.chmod(c.path(WEIGHTS), 0)
        self.refuse(weights, f"/{WEIGHTS}", "Permission denied")


def multimodal(checkpoint, root, text):
    """Nests the configuration in text_config, with changes to both objects."""
    def change(document):
        inner = {**document, "model_type": QWEN35, **text}
        document.clear()
        document.update({"model_type": "qwen3_5_moe", **root})
        document["text_config"] = {k: v for k, v in inner.items() if v is not DROP}
    checkpoint.edit(CONFIG, change)


class Config(Case):
    REQUIRED = ("num_hidden_layers hidden_size vocab_size num_attention_heads num_experts "
                "num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size "
                "linear_num_key_heads linear_num_value_heads linear_key_head_dim "
                "linear_value_head_dim linear_conv_kernel_dim model_type").split()
    ABSURD = (0, -1, 1e30, "x", 2 ** 40, 2.5, 2 ** 62, [], {}, True)

    def test_not_a_document(self):
        with open(os.path.join(GOLDEN, NEXT, CONFIG), "rb") as f:
            text = f.read()
        for content, word in ((b"", "not valid JSON"), (b"hello", "not valid JSON"),
                              (b"[1, 2]", "root is not an object"), (b"null", "not valid JSON"),
                              (text[:len(text) // 2], "not valid JSON"), (text[:-2], "not valid"),
                              (text + b"}", "not valid JSON"), (b"\xff\xfe{}", "not valid JSON"),
                              (b'{"a": "\xff"}', "not valid JSON"), (b"{}\0", "not valid JSON"),
                              (text.replace(b"{", b'{"vocab_size": 1,', 1), "duplicate"),
                              (b"[" * 100000, "not valid JSON"), (b'{"a":' * 9999, "not valid"),
                              (text.replace(b": 320", b": 1e999", 1), "not valid JSON"),
                              (text.replace(b": 320", b": 9" + b"9" * 30, 1),
                               "field 'vocab_size' is 9.9")):
            self.refuse(lambda c, t=content: c.write(CONFIG, t), f"/{CONFIG}", word)
        self.refuse(lambda c: c.write(CONFIG, b" " * (17 << 20)), f"/{CONFIG}", "limit")

    def test_missing_fields(self):
        for field in self.REQUIRED:
            for value in (DROP, None):
                self.refuse_fields({field: value}, f"field '{field}' is missing")
        self.refuse_fields({"rope_parameters": {}}, "field 'rope_theta' is missing")
        self.refuse_fields({"rope_parameters": DROP}, "field 'rope_theta' is missing")
        self.refuse_fields({"rope_parameters": {"rope_theta": None}}, "'rope_theta' is missing")

    def test_absurd_fields(self):
        for field in self.REQUIRED[:-1]:
            for value in self.ABSURD:
                self.refuse_fields({field: value}, f"field '{field}' is ", "expected")
        for value in (0, -1, 1e30, "x", 2 ** 41, [], True):
            self.refuse_fields({"rope_parameters": {"rope_theta": value}}, "field 'rope_theta' is")
            self.refuse_fields({"rope_parameters": DROP, "rope_theta": value}, "'rope_theta' is")

    def test_absurd_optional_fields(self):
        for field, values in {
                "head_dim": self.ABSURD, "num_key_value_heads": self.ABSURD,
                "max_position_embeddings": self.ABSURD, "decoder_sparse_step": self.ABSURD,
                "rms_norm_eps": (-1, "x", 2, []), "partial_rotary_factor": (-1, 2, "x", 1e30),
                "tie_word_embeddings": (0, "no", []), "norm_topk_prob": (1, "yes"),
                "layer_types": (4, "full_attention", {}), "mlp_only_layers": (1, "1", {}),
                "text_config": (1, [], "x"), "model_type": (7, [], True),
                "rope_parameters": (1, [], "default")}.items():
            for value in values:
                changes = {field: value}
                if field == "partial_rotary_factor":
                    changes["rope_parameters"] = {"rope_theta": 1e4}
                self.refuse_fields(changes, f"field '{field}'")

    def test_unknown_kinds(self):
        for value in ("llama", "", "qwen3_nex", "qwen3_next ", "x" * 3000, "a\nb\x1b[2J", "\u00e9"):
            self.refuse_fields({"model_type": value}, "field 'model_type' is")
        self.refuse_fields({"model_type": "qwen3_nextest"},
                           'the nearest family that it runs is "qwen3_next"\n')
        self.refuse_fields({"model_type": "x", "index_topk": 4, "hidden_act": "gelu",
                            "hidden_size": DROP},
                           "; fields it does not know: index_topk; fields with other values: "
                           "hidden_act; fields it needs: hidden_size\n")
        self.refuse_fields({"model_type": "llama", "num_experts": DROP,
                            "num_experts_per_tok": DROP,
                            "shared_expert_intermediate_size": DROP},
                           "no field says that it has experts",
                           "glm4_moe, glm4_moe_lite, gpt_oss, minimax_m2, mixtral, ")
        for field, value in (("hidden_act", "gelu"), ("hidden_act", 1), ("attention_bias", True),
                             ("attention_bias", 0), ("use_sliding_window", True)):
            self.refuse_fields({field: value}, f"field '{field}' is")
        for kind in ("dynamic", "longrope", "llama3", "YaRN", "", 3):
            self.refuse_fields({"rope_parameters": {"rope_theta": 1e4, "rope_type": kind}},
                               "field 'rope_parameters.rope_type'")
            self.refuse_fields({"rope_parameters": DROP, "rope_theta": 1e4,
                                "rope_scaling": {"type": kind}}, "field 'rope_scaling.rope_type'")

    def test_rope_scaling_anywhere(self):
        """Also next to rope_parameters, and where transformers would not look."""
        yarn = {"factor": 4.0, "original_max_position_embeddings": 2048}
        for name in ("rope_scaling", "rope_parameters"):
            for key in ("rope_type", "type"):
                for kind in ("dynamic", "llama3", "longrope", "proportional"):
                    scaled = {"rope_theta": 1e4, **yarn, key: kind}
                    for family in (NEXT, MOE, QWEN35):
                        self.refuse_fields({name: scaled}, f"field '{name}.rope_type' is \"{kind}",
                                           family=family)
                    self.refuse(lambda c, f=name, v=scaled: multimodal(c, {}, {f: v}),
                                f"/{CONFIG}", f"field 'text_config.{name}.rope_type' is \"{kind}")
                for kind in ("yarn", "linear", "dynamic"):
                    scaled = {"rope_theta": 1e4, **yarn, key: kind}
                    self.refuse(lambda c, f=name, v=scaled: multimodal(c, {f: v}, {}),
                                f"/{CONFIG}", f"field '{name}.rope_type' is \"{kind}")
            layered = {"rope_theta": 1e4, "full_attention": {"rope_type": "yarn", "factor": 4.0}}
            self.refuse_fields({name: layered}, f"field '{name}.full_attention'")
        for kind in ("yarn", "linear"):
            self.refuse_fields({"rope_scaling": {"rope_type": "default", "rope_theta": 1e4},
                                "rope_parameters": {"rope_type": kind, **yarn}},
                               f"field 'rope_parameters.rope_type' is \"{kind}\"",
                               "'rope_scaling' takes its place")
        for scaling in ({"rope_type": "default"}, {"rope_type": "yarn", **yarn}):
            self.refuse_fields({"rope_scaling": scaling}, "'rope_theta' is missing",
                               "rope_scaling takes the place")

    def test_absurd_rope_scaling(self):
        """Values of a scaling that make no sense, for which transformers only warns."""
        sound = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0,
                 "original_max_position_embeddings": 64}
        absurd = {
            "factor": (0, 0.5, -4, "4", [], True, 1e30), "rope_theta": (1, 1.0),
            "original_max_position_embeddings": (0, -1, 0.5, "64", [], 1e30, True),
            "attention_factor": (0, 0.0, -1, "1", [], 1e30, True),
            "beta_fast": (-1, 0.5, "32", [], 1e30), "beta_slow": (-1, 33, "1", [], 1e-30),
            "mscale": (-1, "1", 1e30), "mscale_all_dim": (-1, "1", 1e30),
            "truncate": (0, 1, "no", []),
        }
        for field, values in absurd.items():
            for value in values:
                for family in (NEXT, MOE):
                    self.refuse_fields({"rope_parameters": {**sound, field: value}}, field,
                                       family=family)
        for kind in ("yarn", "linear"):
            self.refuse_fields({"rope_parameters": {"rope_type": kind, "rope_theta": 1e4}},
                               "field 'rope_parameters.factor' is missing")
        for value in (None, 0, 0.5, "2"):
            self.refuse_fields({"rope_scaling": {"type": "linear", "rope_theta": 1e4,
                                                 "factor": value}}, "factor' is ")
        self.refuse_fields({"max_position_embeddings": 32,
                            "rope_parameters": {**sound, "factor": None}},
                           "max_position_embeddings 32", "at least 1")
        self.refuse_fields({"rope_parameters": {**sound, "partial_rotary_factor": 0.5}},
                           "field 'partial_rotary_factor' is 0.5", family=MOE)

    def test_general_fields(self):
        """Fields that change what transformers computes in any family."""
        for field, value in (("is_causal", False), ("is_causal", None), ("is_causal", 1),
                             ("per_layer_config", {"1": {"num_experts_per_tok": 2}}),
                             ("attention_chunk_size", 4), ("num_kv_shared_layers", 1),
                             ("transformers_weights", "other.safetensors")):
            for family in (NEXT, MOE, QWEN35):
                self.refuse_fields({field: value}, f"field '{field}' is", family=family)
        self.refuse_fields({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
                           "field 'layer_types[3]'", family=MOE)

    def test_multimodal(self):
        self.refuse_fields({"text_config": {}}, "field 'text_config' is there")
        self.refuse_fields({"model_type": "qwen3_5_moe"}, "field 'text_config' is missing",
                           family=QWEN35)
        for kind in ("qwen3_vl_moe", "qwen3_next"):
            self.refuse(lambda c, k=kind: multimodal(c, {"model_type": k}, {}), f"/{CONFIG}",
                        "field '")
            self.refuse(lambda c, k=kind: multimodal(c, {}, {"model_type": k}), f"/{CONFIG}",
                        "field 'model_type' is")
        self.refuse(lambda c: multimodal(c, {"hidden_size": 128}, {"hidden_size": DROP}),
                    f"/{CONFIG}", "field 'hidden_size' is missing")

    def test_quantised(self):
        """Refused by method, before any tensor is read."""
        methods = ("gptq", "awq", "bitsandbytes", "mxfp4", "torchao", "hqq",
                   "modelopt", "auto-round", "fbgemm_fp8", "quanto", "aqlm", "eetq", 4, None)
        for name in ("quantization_config", "compression_config"):
            for method in methods:
                value = {"quant_method": method, "bits": 4, "load_in_4bit": method is None}
                words = (f"field '{{}}{name}.quant_method' is", method or "load_in_4bit",
                         "GGUF")
                words = [str(word) for word in words]
                self.refuse_fields({name: value}, words[0].format(""), *words[1:])
                self.refuse(lambda c, f=name, v=value: multimodal(c, {}, {f: v}), f"/{CONFIG}",
                            words[0].format("text_config."), *words[1:])
        self.refuse_fields({"quantization_config": {"quant_method": "fp8",
                                                    "weight_block_size": [64, 64]}},
                           "quantization_config.weight_block_size' is [64,64]")
        self.refuse_fields({"quantization_config": 1}, "field 'quantization_config' is 1")

    def test_contradictions(self):
        self.refuse_fields({"num_key_value_heads": 3}, "num_attention_heads", "num_key_value_heads")
        self.refuse_fields({"linear_num_value_heads": 3}, "linear_num_value_heads")
        self.refuse_fields({"num_experts_per_tok": 17}, "field 'num_experts_per_tok' is 17")
        self.refuse_fields({"num_experts_per_tok": 65, "num_experts": 128}, "num_experts_per_tok")
        self.refuse_fields({"head_dim": 63}, "head_dim", "rotary")
        self.refuse_fields({"hidden_size": 2, "head_dim": DROP}, "head_dim", family=MOE)
        for layers in (["full_attention"] * 3, ["full_attention"] * 5, []):
            self.refuse_fields({"layer_types": layers}, "field 'layer_types'")
        for entry in ("sliding_attention", 1, None, []):
            self.refuse_fields({"layer_types": ["linear_attention"] * 3 + [entry]},
                               "field 'layer_types[3]'")
        for entry in (4, -1, 1e9, "1", None):
            self.refuse_fields({"mlp_only_layers": [entry]}, "field 'mlp_only_layers[0]'")
            self.refuse_fields({"mlp_only_layers": [1, entry]}, "field 'mlp_only_layers[1]'",
                               family=MOE)
        for value in ("1", [1, "2"], -1, 2 ** 40, 1.5, True, {}, [[1]]):
            self.refuse_fields({"eos_token_id": value}, "field 'eos_token_id'")

    def test_not_what_the_weights_are(self):
        four = ["linear_attention"] * 3 + ["full_attention"]
        for changes, tensor in (
                ({"num_hidden_layers": 5, "layer_types": four + ["full_attention"]},
                 "'model.layers.4.input_layernorm.weight' is missing"),
                ({"num_hidden_layers": 1024, "layer_types": DROP}, "'model.layers.4."),
                ({"num_hidden_layers": 3, "layer_types": four[:3]}, "'model.layers.3."),
                ({"vocab_size": 321}, f"'{EMBED}'"), ({"vocab_size": 319}, f"'{EMBED}'"),
                ({"hidden_size": 131072}, f"'{EMBED}'"), ({"num_experts": 15}, "mlp.gate.weight'"),
                ({"num_experts": 65535}, "mlp.gate.weight'"),
                ({"moe_intermediate_size": 65}, "experts.0.gate_proj.weight'"),
                ({"moe_intermediate_size": 1048576}, "experts.0.gate_proj.weight'"),
                ({"shared_expert_intermediate_size": 32}, "shared_expert.gate_proj.weight'"),
                ({"num_attention_heads": 4096}, "self_attn.q_proj.weight'"),
                ({"num_attention_heads": 8}, "self_attn.q_proj.weight'"),
                ({"num_key_value_heads": 1}, "self_attn.k_proj.weight'"),
                ({"head_dim": 32}, "self_attn.q_proj.weight'"),
                ({"linear_num_key_heads": 4}, "in_proj_qkvz.weight'"),
                ({"linear_num_key_heads": 4096, "linear_num_value_heads": 4096}, "in_proj_qkvz"),
                ({"linear_key_head_dim": 4096}, "in_proj_qkvz.weight'"),
                ({"linear_value_head_dim": 4096}, "in_proj_qkvz.weight'"),
                ({"linear_conv_kernel_dim": 3}, "conv1d.weight'"),
                ({"layer_types": four[::-1]}, "'model.layers.0.self_attn.q_proj.weight'"),
                ({"mlp_only_layers": [2]}, "'model.layers.2.mlp.gate_proj.weight'"),
                ({"decoder_sparse_step": 2}, "'model.layers.0.mlp.gate_proj.weight'"),
                ({"model_type": MOE, "layer_types": DROP},
                 "'model.layers.0.self_attn.q_proj.weight'"),
                ({"model_type": QWEN35}, "'model.layers.0.linear_attn.in_proj_qkv.weight'")):
            self.refuse(lambda c, x=changes: c.fields(x), "/", tensor)
        self.refuse(lambda c: c.fields({"mlp_only_layers": []}), "'model.layers.1.mlp.gate.weight'",
                    family=MOE)
        self.refuse(lambda c: c.fields({"mlp_only_layers": [1], "intermediate_size": DROP}),
                    f"/{CONFIG}", "field 'intermediate_size' is missing", family=MOE)


def at(name, **changes):
    """Returns a header change: fields of one tensor."""
    return lambda header: header[name].update(changes)


def drop(name):
    return lambda header: header.pop(name)


class Weights(Case):
    def test_container(self):
        with open(os.path.join(GOLDEN, NEXT, WEIGHTS), "rb") as f:
            whole = f.read()
        length = struct.Struct("<Q").pack
        size = struct.unpack("<Q", whole[:8])[0]
        text = whole[8:8 + size].rstrip()  # padded with blanks, which would hide a wrong length
        whole = length(len(text)) + text + whole[8 + size:]
        size = len(text)
        for content, words in (
                (b"", ["too short"]), (whole[:7], ["too short"]), (whole[:8], ["header length"]),
                (whole[:size // 2], ["header length"]), (whole[:8 + size], ["data_offsets"]),
                (whole[:-1], ["'model.norm.weight'", "data_offsets"]),
                (length(len(whole) - 7) + whole[8:], ["header length"]),
                (length(0) + whole[8:], ["header length is 0"]),
                (length(2 ** 64 - 1) + whole[8:], ["header length"]),
                (length(2 ** 63) + whole[8:], ["header length"]),
                (length(size - 1) + whole[8:], ["not valid JSON"]),
                (length(size) + text + b" " + whole[8 + size:], ["the tensors end at byte"]),
                (length(size + 1) + whole[8:], ["not valid JSON"]),
                (length(size) + b"\xff" * size + whole[8 + size:], ["not valid JSON"]),
                (length(4) + b"[1] ", ["root is not an object"]),
                (length(2) + b"{}", [EMBED, "missing"]),
                (b"version https://git-lfs.github.com/spec/v1\n", ["Git LFS"])):
            file = "/" if "missing" in words else f"/{WEIGHTS}"
            self.refuse(lambda c, x=content: c.write(WEIGHTS, x), file, *words)

    def test_entries(self):
        twice = f'{{"{EMBED}": {{}}, "{EMBED}": {{}}}}'.encode()
        self.refuse(lambda c: c.write(WEIGHTS, safetensors_file.framed(twice)),
                    f"/{WEIGHTS}", "duplicate")
        for field in ("dtype", "shape", "data_offsets"):
            self.refuse_header(lambda h, f=field: h[EMBED].pop(f), EMBED, f"has no {field}")
            for value in (None, 1, "x", {}, [-1, 4], [1.5, 2], ["a", "b"], [2 ** 63 - 1] * 2):
                self.refuse_header(at(EMBED, **{field: value}), EMBED)
        for value in (None, 1, "x", []):
            self.refuse_header(lambda h, v=value: h.update({EMBED: v}), EMBED)
        for name in ("x\ny\x1b[2J", "", "z" * 9000, "model.layers.0.mlp.experts.16.up_proj.weight"):
            extra = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
            self.refuse_header(lambda h, n=name: h.update({n: extra}), f"tensor '{name[:1]}")
        self.refuse_header(lambda h: h.update(__metadata__=[1]), "__metadata__")
        self.refuse_header(lambda h: h.update(__metadata__={"a": 1}), "__metadata__")

    def test_offsets(self):
        for offsets, word in (([81920, 81919], "end before they begin"), ([81920, 2 ** 40], "end"),
                              ([2 ** 62, 2 ** 62 + 81920], "end beyond the file"),
                              ([4194000, 4194000 + 81920], "end beyond the file"),
                              ([81920, 163838], "bytes"), ([81919, 163839], "overlap"),
                              ([0, 81920], "overlap"), ([82000, 163920], "overlap")):
            self.refuse_header(at(EMBED, data_offsets=offsets), EMBED, word)
        for shape in ([2 ** 32, 2 ** 32, 2 ** 32], [2 ** 62, 8], [0, 2 ** 62, 2 ** 62], [320],
                      [1] * 9 + [320, 128], [], [320, 128, 0]):
            self.refuse_header(at(EMBED, shape=shape), EMBED)

    def test_dtypes(self):
        """The same bytes under another name, and sizes that contradict it."""
        for name, rows, columns in ((EMBED, 320, 128), (EXPERT, 64, 128)):
            for dtype, shape in (("I32", [rows, columns // 2]), ("U8", [rows, columns * 2]),
                                 ("F64", [rows, columns // 4]), ("I16", [rows, columns])):
                self.refuse_header(at(name, dtype=dtype, shape=shape), name, f"dtype {dtype}")
            for dtype in ("F32", "U8", "F64", "F4", "BF17", "bf16", ""):
                self.refuse_header(at(name, dtype=dtype), name, dtype)
        self.refuse_header(at(NORM, dtype="I16"), NORM, "dtype I16")
        for name in (EXPERT, EXPERT.replace("gate", "down"), EXPERT.replace(".7.", ".15.")):
            self.refuse_header(at(name, dtype="F16"), name, "dtype F16", "other experts")

    def test_shapes(self):
        for name, shape in ((EMBED, [128, 320]), (EMBED, [320, 1, 128]), (EMBED, [40960]),
                            (EXPERT, [128, 64]), (EXPERT, [1, 64, 128]), (EXPERT, [32, 256]),
                            ("model.layers.0.mlp.gate.weight", [128, 16]),
                            ("model.layers.0.mlp.shared_expert_gate.weight", [128, 1])):
            self.refuse_header(at(name, shape=shape), f"'{name}'", "has shape", "expected")
        for name, shape, offsets in ((NORM, [127], [3090928, 3091182]), (NORM, [0], [0, 0]),
                                     (NORM, [], [3090928, 3090930]),
                                     (EXPERT, [64, 127], [954704, 954704 + 64 * 254]),
                                     ("model.layers.0.linear_attn.A_log", [3], [164096, 164102])):
            self.refuse_header(at(name, shape=shape, data_offsets=offsets), f"'{name}'",
                               "has shape", "expected")

    def test_missing_and_unknown_tensors(self):
        layer = "model.layers.0."
        for name in (layer + "input_layernorm.weight", layer + "mlp.gate.weight", EXPERT,
                     EXPERT.replace("gate", "up"), EXPERT.replace("gate", "down"), NORM, EMBED,
                     "lm_head.weight", "model.norm.weight", layer + "linear_attn.A_log",
                     layer + "linear_attn.in_proj_ba.weight", layer + "linear_attn.conv1d.weight",
                     layer + "mlp.shared_expert_gate.weight",
                     "model.layers.3.self_attn.q_norm.weight",
                     layer + "mlp.experts.0.gate_proj.weight"):
            self.refuse(lambda c, n=name: c.header(drop(n)), "/", f"'{name}' is missing")
        for name in ("extra.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.9.x",
                     "model.embed_tokens.scales"):
            entry = {"dtype": "BF16", "shape": [4], "data_offsets": [4194032, 4194040]}

            def add(c, n=name):
                c.header(lambda h: h.update({n: entry}))
                with open(c.path(WEIGHTS), "ab") as f:
                    f.write(bytes(8))
            self.refuse(add, f"/{WEIGHTS}", f"tensor '{name}'")

    def test_shards(self):
        def damaged(change):
            def damage(c):
                c.split()
                change(c)
            return damage

        def placing(where):
            change = {EMBED: where}
            return damaged(lambda c: c.edit(INDEX, lambda d: d["weight_map"].update(change)))
        first, second = "model-1.safetensors", "model-2.safetensors"
        self.refuse(damaged(lambda c: c.remove(second)), f"/{INDEX}", second)
        self.refuse(damaged(lambda c: c.write(second, b"")), f"/{second}", "too short")
        self.refuse(placing("other.safetensors"), f"/{INDEX}", "other.safetensors")
        for where in ("../x.safetensors", "/etc/passwd", "", 1, None, []):
            self.refuse(placing(where), f"/{INDEX}", EMBED)
        for where in (first, second):
            content = safetensors_file.framed(
                {EMBED: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}})
            self.refuse(damaged(lambda c, w=where, x=content: c.write(w, x)), "model-")
        for text in ("", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {}}'):
            self.refuse(damaged(lambda c, t=text: c.write(INDEX, t)), f"/{INDEX}")
        self.refuse(damaged(lambda c: c.edit(INDEX, lambda d: d["weight_map"].pop(EMBED))),
                    "/", f"'{EMBED}' is missing", warnings=1)


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def reseal(text, old, new):
    """Returns a packed model's model.json with a change and the matching checksum."""
    body, mark, _ = text.rpartition(b',\n "self": "')
    if not mark or body.count(old) != 1:
        raise ValueError("model.json is not as expected")
    body = body.replace(old, new)
    digest = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits
    digest.argtypes, digest.restype = (ctypes.c_char_p, ctypes.c_size_t), Digest
    found = digest(body, len(body))
    return body + mark + b'%016x%016x"\n}\n' % (found.high, found.low)


class EveryCommand(Case):
    """What is refused is refused by every command, and in every form of the model."""

    KINDS = (({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
              "field 'rope_scaling.rope_type' is \"dynamic\""),
             ({"quantization_config": {"quant_method": "awq", "bits": 4}},
              "field 'quantization_config.quant_method' is \"awq\""),
             ({"is_causal": False}, "field 'is_causal' is false"))

    def refuse_by_all(self, model, folder, *words):
        target = os.path.join(folder, "target.fmoe")
        taken = socket.create_server(("127.0.0.1", 0))  # a server for this model fails as well
        self.addCleanup(taken.close)
        port = str(taken.getsockname()[1])
        for command in (["run", model, "-p", "hi"], ["inspect", model], ["pack", model, target],
                        ["plan", model], ["chat", model], ["serve", model, "--port", port]):
            with self.subTest(command[0]):
                result = subprocess.run([PROGRAM, *command], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        timeout=SECONDS)
                self.assert_refused(result, words)
                self.assertFalse(os.path.exists(target))

    def test_directories(self):
        for changes, word in self.KINDS:
            with tempfile.TemporaryDirectory() as folder:
                copy = Checkpoint(folder, NEXT)
                copy.fields(changes)
                self.refuse_by_all(copy.dir, folder, copy.path(CONFIG), word)
        with tempfile.TemporaryDirectory() as folder:
            copy = Checkpoint(folder, NEXT)
            copy.write("adapter_config.json", "{}")
            self.refuse_by_all(copy.dir, folder, copy.dir, "is an adapter (LoRA)")

    def test_packed(self):
        with tempfile.TemporaryDirectory() as folder:
            packed = os.path.join(folder, "model.fmoe")
            subprocess.run([PROGRAM, "pack", "--quiet", os.path.join(GOLDEN, NEXT), packed],
                           check=True, timeout=SECONDS)
            path = os.path.join(packed, "model.json")
            with open(path, "rb") as f:
                text = f.read()
            field = re.search(rb'"hidden_act": ?"silu"', text)[0]
            self.rewrite(path, reseal(text, field, field))
            result = run(packed, "-p", "hi", "-n", "1", "--greedy", "-q")
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            for changes, word in self.KINDS:
                more = json.dumps(changes)[1:-1].encode()
                self.rewrite(path, reseal(text, field, field + b", " + more))
                self.refuse_by_all(packed, folder, path, word)

    def rewrite(self, path, text):
        with open(path, "wb") as f:
            f.write(text)


class Beside(Case):
    """The small files next to the weights."""

    def refuse_tokenizer(self, change, *words):
        self.refuse(lambda c: c.edit(TOKENIZER, change), f"/{TOKENIZER}", *words)

    def test_tokenizer(self):
        with open(os.path.join(GOLDEN, NEXT, TOKENIZER), "rb") as f:
            text = f.read()
        for content in (b"", b"[]", text[:len(text) // 2], b"{}"):
            self.refuse(lambda c, t=content: c.write(TOKENIZER, t), f"/{TOKENIZER}")
        self.refuse_tokenizer(lambda d: d["model"].update(type="Unigram"), "Unigram")
        self.refuse_tokenizer(lambda d: d.update(model=1), "model")
        self.refuse_tokenizer(lambda d: d.update(pre_tokenizer={"type": "Metaspace"}), "Metaspace")
        self.refuse_tokenizer(lambda d: d.update(pre_tokenizer=None), "pre_tokenizer")
        self.refuse_tokenizer(lambda d: d.update(normalizer={"type": "Lowercase"}), "Lowercase")
        self.refuse_tokenizer(lambda d: d.update(decoder={"type": "WordPiece"}), "WordPiece")
        self.refuse_tokenizer(lambda d: d["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(
            Regex=".*"), "pre_tokenizer")

    def test_vocabulary(self):
        for merge in (["zq", "h"], "zq h", ["h", "q"], "he", ["h"], 1, ["h", "e"]):
            self.refuse_tokenizer(lambda d, m=merge: d["model"]["merges"].append(m), ".merges[")
        self.refuse_tokenizer(lambda d: d["model"].update(merges={}), "model.merges")
        self.refuse_tokenizer(lambda d: d["model"]["vocab"].update(zzzz=320), "320", "vocab_size")
        self.refuse_tokenizer(lambda d: d["model"]["vocab"].update(zzzz=5), "id 5")
        for value in (-1, 2 ** 40, "1", 1.5, None):
            self.refuse_tokenizer(lambda d, v=value: d["model"]["vocab"].update(zzzz=v), "'zzzz'")
            self.refuse_tokenizer(lambda d, v=value: d["added_tokens"][0].update(id=v), "<|endof")
        self.refuse_tokenizer(lambda d: d["model"]["vocab"].pop("a"), "0x61")
        self.refuse_tokenizer(lambda d: d["added_tokens"][0].update(id=319), "319")
        self.refuse_tokenizer(lambda d: d["added_tokens"][0].update(content=""), "added_tokens[0]")
        self.refuse_tokenizer(lambda d: d["added_tokens"][0].update(lstrip=True), "lstrip")
        self.refuse_tokenizer(lambda d: d["added_tokens"].append(d["added_tokens"][0]), "<|endof")
        self.refuse_tokenizer(lambda d: d.update(added_tokens=1), "added_tokens")

    def test_generation_config(self):
        for content in (b"", b"{", b"[]"):
            self.refuse(lambda c, t=content: c.write(GENERATION, t), f"/{GENERATION}")
        for field, values in {"eos_token_id": ("x", -1, [1, None], 2 ** 40),
                              "temperature": ("hot", -1, 1e30), "top_p": (2, -1, "x"),
                              "top_k": (-1, 1.5, 2 ** 40, "x"), "min_p": (-1, 2),
                              "typical_p": (-1, 2), "repetition_penalty": (-1, 101, "x"),
                              "do_sample": (1, "yes")}.items():
            for value in values:
                self.refuse(lambda c, f=field, v=value: c.fields({f: v}, GENERATION),
                            f"/{GENERATION}", f"field '{field}'")

    def test_tokenizer_config(self):
        for content in (b"", b"{", b"[]"):
            self.refuse(lambda c, t=content: c.write("tokenizer_config.json", t),
                        "/tokenizer_config.json")


class Arguments(Case):
    def test_budget(self):
        self.refuse(lambda c: 0, "the model needs at least", "the budget is 10.0 MiB", "program",
                    "dense weights", "scratch", "experts in each of 4 layers", "--memory",
                    args=("--memory", "10M"))
        for value in ("nonsense", "", "-1", "10X", "1e9999", "99999999999G", "0"):
            self.refuse(lambda c: 0, "memory", args=(f"--memory={value}",), status=2)

    def test_context(self):
        self.refuse(lambda c: 0, "context of 4096", "2048", args=("--context", "4096"))
        self.refuse(lambda c: 0, "context holds 8", "--context", args=("--context", "8", "--raw",
                                                                       "-p", "word " * 20))
        self.refuse(lambda c: c.fields({"max_position_embeddings": 8}), "supports at most 8",
                    args=("--raw", "-p", "word " * 20))

    def test_usage(self):
        for args in (("--threads", "0"), ("--threads", "1000"), ("--context", "-1"),
                     ("--prefill-chunk", "x"), ("-n", "-3"), ("--temp", "nan"), ("--top-p", "2")):
            self.refuse(lambda c: 0, args[0].lstrip("-")[:3], args=args, status=2)


if __name__ == "__main__":
    PROGRAM, GOLDEN = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
