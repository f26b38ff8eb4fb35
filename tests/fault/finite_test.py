"""Weights of NaN and infinity: no command selects a token or computes a probability.

Usage: finite_test.py PROGRAM MODEL TESTS_DIR [TestClass...]

MODEL is a tiny qwen3_next checkpoint in bf16, one value of which is changed. Every command ends
with one line that names the layer, the embedding or the output head; so does every dialect of the
server, without a path, and the server stays.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
NAN, INFINITY, MINUS_INFINITY = 0x7fc0, 0x7f80, 0xff80

# Tensor, index of the value, the value, and what the message names. The head's row 319 is the last
# token, which nothing would select: one bad logit among good ones is enough.
CASES = (
    ("lm_head.weight", 319 * 128 + 5, NAN, "the output head gives logits that are not numbers"),
    ("lm_head.weight", 0, INFINITY, "the output head gives logits that are "),
    ("lm_head.weight", 17 * 128, MINUS_INFINITY, "the output head gives logits that are "),
    ("model.norm.weight", 3, NAN, "the output head gives logits that are not numbers"),
    ("model.embed_tokens.weight", None, NAN, "the embedding gives values that are not numbers"),
    ("model.embed_tokens.weight", None, INFINITY, "the embedding gives values that are infinite"),
    ("model.layers.0.linear_attn.out_proj.weight", 9, NAN, "layer 0 gives values that are not"),
    ("model.layers.1.linear_attn.dt_bias", 0, NAN, "layer 1 gives values that are not numbers"),
    ("model.layers.2.mlp.gate.weight", None, NAN, "layer 2 gives values that are not numbers"),
    ("model.layers.2.mlp.shared_expert.down_proj.weight", 7, INFINITY, "layer 2 gives values "),
    ("model.layers.3.self_attn.v_proj.weight", 1, NAN, "layer 3 gives values that are not"),
)
FEW = (CASES[0], CASES[2], CASES[9])


def change(folder, tensor, index, value):
    """Copies the checkpoint with one value changed, or with all values of the tensor."""
    shutil.copytree(MODEL, folder)
    path = os.path.join(folder, "model.safetensors")
    header, data = safetensors_file.read(path)
    data = bytearray(data)
    begin, end = header[tensor]["data_offsets"]
    if index is None:
        data[begin:end] = struct.pack("<H", value) * ((end - begin) // 2)
    else:
        struct.pack_into("<H", data, begin + 2 * index, value)
    with open(path, "wb") as f:
        f.write(safetensors_file.framed(header, data))


def flashmoe(*args, text=""):
    return subprocess.run([PROGRAM, *args], input=text.encode(), timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Finite(unittest.TestCase):
    @staticmethod
    def each(cases):
        for tensor, index, value, words in cases:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model")
                change(path, tensor, index, value)
                yield path, words

    def refused(self, result, words, path):
        error = result.stderr.decode()
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertIn(words, error)
        self.assertIn(f"'{path}'", error)

    def test_run(self):
        for path, words in self.each(CASES):
            for how in (("--greedy",), ("--temp", "1.5"), ("--greedy", "--logprobs", "3"),
                        ("--temp", "1", "--logprobs", "0", "--json"), ("--greedy", "--kv", "f32")):
                result = flashmoe("run", path, "-p", "hello", "-n", "4", "-q", "--no-heat", *how)
                self.refused(result, words, path)
                self.assertEqual(result.stdout, b"")
                self.assertEqual(result.stderr.count(b"\n"), 1)

    def test_chat(self):
        for path, words in self.each(FEW):
            result = flashmoe("chat", path, "--greedy", "-n", "4", "--no-heat", text="hello\n")
            self.assertIn(words, result.stderr.decode())

    def test_eval(self):
        for path, words in self.each(FEW):
            text = os.path.join(path, "text.txt")
            with open(text, "w", encoding="ascii") as f:
                f.write("Once upon a time there was a small house. " * 5)
            self.refused(flashmoe("eval", "nll", path, text, "-q"), words, path)

    def test_serve(self):
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        kinds = {"/v1/chat/completions": (chat, {**chat, "temperature": 0},
                                          {**chat, "logprobs": True, "top_logprobs": 2}),
                 "/v1/completions": ({"prompt": "hello", "max_tokens": 4, "logprobs": 1},),
                 "/v1/messages": (chat,), "/v1/responses": ({"input": "hello"},)}
        for path, words in self.each(FEW):
            with Server(PROGRAM, path) as server:
                for where, bodies in kinds.items():
                    for body in bodies:
                        status, answer = server.post(where, body)
                        self.assertEqual(status, 500, answer)
                        self.assertIn(words, answer["error"]["message"])
                        self.assertNotIn(path, json.dumps(answer))
                self.assertEqual(server.get("/stats")["active"], 0)
                self.assertIn(f"'{path}': {words}", server.lines())
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    sys.path[:0] = [os.path.join(sys.argv[3], folder) for folder in ("api", "format")]
    import safetensors_file
    from served import Server
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
