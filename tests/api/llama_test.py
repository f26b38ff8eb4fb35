#!/usr/bin/env python3
"""Tests llama-server's endpoints /completion and /infill, grammars, the form of timings, and
embeddings.

usage: llama_test.py PROGRAM NANO [PART...]
"""
import base64
import json
import math
import pathlib
import re
import struct
import sys
import unittest

import scripted_model
from one_server import OneServer

NANO = sys.argv[2]
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "qwen3_moe"
TEXT = "Hello there, world."
FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
       "<|file_sep|>"]
TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
           "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
           "predicted_max_ms"}


class Completion(OneServer):
    def complete(self, prompt, **fields):
        status, answer = self.server.post("/completion", {"prompt": prompt, "temperature": 0,
                                                          **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def test_whole(self):
        answer = self.complete("A")
        self.assertEqual((answer["content"], answer["stop"], answer["stop_type"]),
                         (TEXT, True, "eos"))
        self.assertEqual((answer["tokens_predicted"], answer["tokens_evaluated"]), (4, 1))
        self.assertEqual((answer["prompt"], answer["tokens"], answer["truncated"]),
                         ("A", [], False))
        self.assertEqual(set(answer["timings"]), TIMINGS)
        timings = answer["timings"]
        self.assertEqual((timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]),
                         (1, 4))
        _, chat = self.server.post("/v1/completions", {"prompt": "A"})
        self.assertEqual(set(chat["timings"]), TIMINGS)

    def test_ends(self):
        answer = self.complete("L", n_predict=7)
        self.assertEqual((answer["tokens_predicted"], answer["stop_type"]), (7, "limit"))
        answer = self.complete("A", stop=[", w"])
        self.assertEqual((answer["content"], answer["stop_type"], answer["stopping_word"]),
                         ("Hello there", "word", ", w"))
        answer = self.complete("A", n_predict=0)
        self.assertEqual((answer["content"], answer["tokens_evaluated"]), ("", 1))
        answer = self.complete("A", ignore_eos=True, n_predict=20)
        self.assertEqual(answer["tokens_predicted"], 20)
        timings = answer["timings"]
        self.assertTrue(0 < timings["predicted_max_ms"] <= timings["predicted_ms"], timings)
        self.assertEqual(self.complete("A", n_predict=1)["timings"]["predicted_max_ms"], 0)

    def test_stream(self):
        status, headers, body = self.server.request("POST", "/completion", {
            "prompt": "A", "stream": True, "return_tokens": True, "temperature": 0})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        events = [json.loads(line[6:]) for line in body.decode().splitlines()
                  if line.startswith("data: ")]
        self.assertEqual("".join(e["content"] for e in events), TEXT)
        self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(events[-1]["tokens_predicted"], 4)
        self.assertEqual(sum((e["tokens"] for e in events), []),
                         self.complete("A", return_tokens=True)["tokens"])

    def test_probabilities(self):
        answer = self.complete("A", n_probs=2)
        found = answer["completion_probabilities"]
        self.assertEqual([p["token"] for p in found], ["Hello", " there", ", world."])
        self.assertEqual([len(p["top_logprobs"]) for p in found], [2] * 3)
        self.assertEqual(found[0]["top_logprobs"][0]["id"], found[0]["id"])

    def test_prompts(self):
        """Several prompts give a list; tokens are prompts too."""
        ids = self.server.post("/tokenize", {"content": "A"})[1]["tokens"]
        answers = self.complete(["A", ids, "L"], n_predict=6)
        self.assertEqual([a["content"] for a in answers], [TEXT, TEXT, "la " * 6])
        self.assertEqual([a["tokens_predicted"] for a in answers], [4, 4, 6])
        self.assertEqual([a["index"] for a in answers], [0, 1, 2])
        self.assertEqual(self.complete(ids)["content"], TEXT)

    def test_penalties(self):
        """A window of 0 tokens switches all of them off; -1 is every token."""
        la, hello = (self.complete(key, n_predict=1, return_tokens=True)["tokens"][0]
                     for key in "LA")
        near = {str(la): -99, str(hello): 80}  # what one penalty of 100 changes
        for field in ("repeat_penalty", "presence_penalty", "frequency_penalty"):
            def text(**window):
                return self.complete("L", n_predict=6, logit_bias=near, **{field: 100},
                                     **window)["content"]
            self.assertNotEqual(text(), "la " * 6, field)
            self.assertEqual(text(repeat_last_n=-1), text(), field)
            self.assertEqual(text(repeat_last_n=0), "la " * 6, field)
        for n in ((1 << 24) + 1, 1 << 32, -2, "x"):
            status, answer = self.server.post("/completion", {"prompt": "A", "repeat_last_n": n})
            self.assertEqual((status, answer["error"]["param"]), (400, "repeat_last_n"))

    def test_bias_and_schema(self):
        hello = self.complete("A", return_tokens=True)["tokens"][0]
        for bias in ([[hello, False]], [[hello, -100.0]], {str(hello): -100}):
            self.assertNotIn("Hello", self.complete("A", logit_bias=bias, n_predict=1)["content"])
        answer = self.complete("O", json_schema={"type": "object", "properties": {
            "city": {"type": "string"}}, "required": ["city"]}, n_predict=60)
        self.assertTrue(answer["content"].startswith("{"), answer)
        for body, field in (({"logit_bias": [["x", 1]]}, "logit_bias"), ({"prompt": 5}, "prompt"),
                            ({"n_predict": -7}, "n_predict"), ({"n_probs": 99}, "n_probs"),
                            ({"prompt": []}, "prompt")):
            status, answer = self.server.post("/completion", {"prompt": "A", **body})
            self.assertEqual((status, answer["error"]["param"]), (400, field))


class Grammar(OneServer):
    """Answers that GBNF describes, from a model that would say something else."""
    model = NANO
    grammar = 'root ::= ("yes" | "no") ", " [0-9]{2} (" \u65e5" | "!")\n'
    fits = re.compile("(yes|no), [0-9]{2}( \u65e5|!)")

    def test_completion(self):
        for seed in range(5):
            _, answer = self.server.post("/completion", {
                "prompt": "Tell me", "grammar": self.grammar, "seed": seed, "temperature": 2})
            self.assertTrue(self.fits.fullmatch(answer["content"]), answer)
            self.assertEqual(answer["stop_type"], "eos")

    def test_dialects(self):
        """The same in every dialect, under the names of several servers."""
        messages = [{"role": "user", "content": "Tell me a story."}]
        for field in ({"grammar": self.grammar}, {"guided_grammar": self.grammar},
                      {"ebnf": self.grammar}, {"structured_outputs": {"grammar": self.grammar}}):
            _, chat = self.server.post("/v1/chat/completions", {"messages": messages, **field})
            text = chat["choices"][0]["message"]["content"]
            self.assertTrue(self.fits.fullmatch(text), text)
        _, answer = self.server.post("/v1/messages", {"messages": messages, "max_tokens": 30,
                                                      "grammar": self.grammar})
        self.assertTrue(self.fits.fullmatch(answer["content"][0]["text"]), answer)
        _, answer = self.server.post("/v1/completions", {"prompt": "A", "grammar": self.grammar})
        self.assertTrue(self.fits.fullmatch(answer["choices"][0]["text"]), answer)

    def test_recursive(self):
        _, answer = self.server.post("/completion", {
            "prompt": "2 + 2 =", "n_predict": 200, "temperature": 1.5, "seed": 3, "grammar":
            'root ::= value\nvalue ::= "[" (value ("," value)*)? "]" | [0-9]\n'})
        if answer["stop_type"] == "eos":
            json.loads(answer["content"])
        else:
            self.assertRegex(answer["content"], r"^[][0-9,]+$")

    def test_refused(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        messages = [{"role": "user", "content": "x"}]
        for more, text in (({"grammar": "root ::= x"}, "'x' is not defined"),
                           ({"grammar": 5}, "must be a grammar"),
                           ({"grammar": "root ::= " + '"a" | ' * 600 + '"b"'}, "512 ways"),
                           ({"grammar": 'root ::= "a"' + " e" * 40000 + ' "x"\ne ::= ""'},
                            "no token can follow in the grammar"),
                           ({"grammar": self.grammar, "tools": [tool]}, "'tools'"),
                           ({"grammar": self.grammar, "tools": [tool],
                             "tool_choice": "required"}, "must come"),
                           ({"grammar": self.grammar, "ignore_eos": True}, "ignore_eos"),
                           ({"grammar": self.grammar, "json_schema": {}}, "both define")):
            status, answer = self.server.post("/v1/chat/completions",
                                              {"messages": messages, **more})
            self.assertEqual(status, 400)
            self.assertIn(text, answer["error"]["message"])


class Infill(OneServer):
    """The scripted model knows what follows <|fim_middle|>."""

    @classmethod
    def setUpClass(cls):
        make = scripted_model.make
        scripts = {"M": ["<|fim_middle|>", "return", " a + b", "<|fim_pad|>", "never"]}
        scripted_model.make = lambda folder: make(folder, scripts=scripts, special=FIM)
        try:
            super().setUpClass()
        finally:
            scripted_model.make = make

    def fill(self, **fields):
        status, answer = self.server.post("/infill", fields)
        self.assertEqual(status, 200, answer)
        return answer

    def test_prompt(self):
        answer = self.fill(input_prefix="def add(a, b):\n    ", input_suffix="\nprint(add(1, 2))\n")
        self.assertEqual(answer["content"], "return a + b")
        self.assertEqual(answer["stop_type"], "eos")
        self.assertEqual(answer["prompt"], "<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>"
                         "\nprint(add(1, 2))\n<|fim_middle|>")
        answer = self.fill(input_prefix="a", input_suffix="b", prompt=" more")
        self.assertEqual(answer["prompt"], "<|fim_prefix|>a more<|fim_suffix|>b<|fim_middle|>")

    def test_files(self):
        answer = self.fill(input_prefix="a", input_suffix="b", input_extra=[
            {"filename": "x.py", "text": "X"}, {"text": "Y"}])
        self.assertEqual(answer["prompt"], "<|repo_name|>repository\n<|file_sep|>x.py\nX"
                         "<|file_sep|>file\nY<|file_sep|>current\n"
                         "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")

    def test_text_is_text(self):
        """A marker in the text is no marker."""
        count = lambda text: self.fill(input_prefix=text, input_suffix="b")["tokens_evaluated"]
        self.assertEqual(count("<|fim_middle|>") - count(""), len("<|fim_middle|>"))

    def test_others(self):
        """The same through OpenAI's completions and Ollama's generate."""
        _, answer = self.server.post("/v1/completions", {"prompt": "a", "suffix": "b"})
        self.assertEqual(answer["choices"][0]["text"], "return a + b")
        self.assertEqual(answer["usage"]["prompt_tokens"], 5)
        _, answer = self.server.post("/api/generate", {"prompt": "a", "suffix": "b",
                                                       "stream": False})
        self.assertEqual(answer["response"], "return a + b")
        self.assertIn("insert", self.server.post("/api/show", {})[1]["capabilities"])

    def test_refused(self):
        for body, field in (({}, "input_prefix"), ({"input_prefix": 5}, "input_prefix"),
                            ({"input_prefix": "a", "input_extra": [{"text": 1}]}, "input_extra"),
                            ({"input_prefix": "a", "input_extra": 1}, "input_extra")):
            status, answer = self.server.post("/infill", body)
            self.assertEqual((status, answer["error"]["param"]), (400, field))
        status, answer = self.server.post("/v1/completions", {"prompt": [1], "suffix": "b"})
        self.assertEqual((status, answer["error"]["param"]), (400, "suffix"))
        status, answer = self.server.post("/infill", {"input_prefix": "word " * 5000})
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))

    def test_long_files(self):
        """A text that cannot fit is refused by its bytes, before it is tokenized."""
        much = "word " * 10000
        for extra in ([{"text": much}, {"text": much}], [{"text": "", "filename": much * 2}]):
            status, answer = self.server.post("/infill", {"input_prefix": "a",
                                                          "input_extra": extra})
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
            self.assertIn("(100001 bytes", answer["error"]["message"])


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


class Embeddings(OneServer):
    """A checkpoint whose hidden states transformers has computed."""
    model = GOLDEN

    def embed(self, what, **fields):
        status, answer = self.server.post("/v1/embeddings", {"input": what, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def expected(self, n_tokens, n_hidden, n_layers):
        """The mean over tokens of the last hidden state, the output of the final norm."""
        data = (GOLDEN / "golden_hidden.f32").read_bytes()
        at = n_layers * n_tokens * n_hidden * 4
        last = struct.unpack(f"<{n_tokens * n_hidden}f", data[at:])
        return unit([sum(last[i::n_hidden]) for i in range(n_hidden)])

    def test_golden(self):
        golden = json.loads((GOLDEN / "golden.json").read_text())
        config = json.loads((GOLDEN / "config.json").read_text())
        ids = golden["input_ids"]
        ids = ids[0] if isinstance(ids[0], list) else ids
        answer = self.embed(ids)
        vector = answer["data"][0]["embedding"]
        wanted = self.expected(len(ids), config["hidden_size"], config["num_hidden_layers"])
        self.assertEqual(len(vector), len(wanted))
        self.assertLess(max(abs(a - b) for a, b in zip(vector, wanted)), 2e-2)
        self.assertGreater(sum(a * b for a, b in zip(vector, wanted)), 0.9995)
        self.assertEqual(answer["usage"], {"prompt_tokens": len(ids), "total_tokens": len(ids)})

    def test_forms(self):
        one = self.embed("hi there")["data"][0]["embedding"]
        self.assertAlmostEqual(sum(x * x for x in one), 1, 5)
        many = self.embed(["hi there", "other", "hi there"])["data"]
        self.assertEqual([d["index"] for d in many], [0, 1, 2])
        self.assertEqual([d["embedding"] for d in many[::2]], [one, one])
        self.assertNotEqual(many[1]["embedding"], one)
        coded = self.embed("hi there", encoding_format="base64")["data"][0]["embedding"]
        again = struct.unpack(f"<{len(one)}f", base64.b64decode(coded))
        self.assertEqual(list(again), [struct.unpack("<f", struct.pack("<f", x))[0] for x in one])

    def test_ollama(self):
        """Ollama's two forms give the same vectors."""
        one, other = (d["embedding"] for d in self.embed(["hi there", "other"])["data"])
        status, answer = self.server.post("/api/embed", {"input": ["hi there", "other"]})
        self.assertEqual((status, answer["embeddings"]), (200, [one, other]), answer)
        status, answer = self.server.post("/api/embeddings", {"prompt": "hi there"})
        self.assertEqual((status, answer), (200, {"embedding": one}))
        # Without a text, programs ask to load the model.
        name = self.server.get("/api/tags")["models"][0]["name"]
        for body in ({}, {"input": None}, {"input": ""}, {"input": []}, {"keep_alive": 0}):
            self.assertEqual(self.server.post("/api/embed", {"model": name, **body}),
                             (200, {"model": name, "embeddings": []}))
        for body in ({}, {"prompt": ""}, {"prompt": None, "keep_alive": "5m"}):
            self.assertEqual(self.server.post("/api/embeddings", body), (200, {"embedding": []}))
        for path, body, field in (("/api/embed", {"input": 5}, "input"),
                                  ("/api/embed", {"input": {}}, "input"),
                                  ("/api/embed", {"input": ["x", 5]}, "input[1]"),
                                  ("/api/embed", {"input": ["", "x"]}, "input[0]"),
                                  ("/api/embed", {"input": [[1], []]}, "input[1]"),
                                  ("/api/embed", {"input": ["x", [-1]]}, "input[1]"),
                                  ("/api/embed", {"input": "x", "keep_alive": "5"}, "keep_alive"),
                                  ("/api/embed", {"keep_alive": []}, "keep_alive"),
                                  ("/api/embeddings", {"keep_alive": "x"}, "keep_alive"),
                                  ("/api/embeddings", {"prompt": "x", "keep_alive": "x"},
                                   "keep_alive"),
                                  ("/api/embeddings", {"prompt": ["x"]}, "prompt"),
                                  ("/api/embeddings", {"prompt": []}, "prompt"),
                                  ("/api/embed", {"input": "x", "stream": True}, "stream")):
            status, answer = self.server.post(path, body)
            self.assertEqual(status, 400)
            self.assertIn(f"'{field}'", answer["error"])

    def test_ollama_models(self):
        """The served model need not be pulled, and no other can be. It is never unloaded."""
        name = self.server.get("/api/tags")["models"][0]["name"]
        for field, wanted in (("model", name), ("name", name), ("model", name + ":latest")):
            self.assertEqual(self.server.post("/api/pull", {field: wanted}),
                             (200, {"status": "success"}))
        self.assertEqual(self.server.post("/api/pull", {"model": ""})[0], 400)
        for wanted in ("other", name + "x", name + ":7b"):
            status, answer = self.server.post("/api/pull", {"model": wanted})
            self.assertEqual(status, 404)
            self.assertIn("'flashmoe pull'", answer["error"])
        status, answer = self.server.post("/api/copy", {"source": name, "destination": "x"})
        self.assertEqual(status, 404)
        self.assertIn("manage models", answer["error"])
        for keep, reason in ((0, "unload"), ("0", "unload"), ("0h0.0s", "unload"), (-1, "load"),
                             ("-1s", "load"), ("1h30m", "load"), ("1.5ms", "load"), ("5us", "load"),
                             ("5\u00b5s", "load"), ("5\u03bcs", "load")):
            status, answer = self.server.post("/api/generate", {"keep_alive": keep})
            self.assertEqual((status, answer["done_reason"]), (200, reason), answer)
        for keep in ("", "5", "m", "5 m", ".h", "5q", "5m,", [], True):
            status, answer = self.server.post("/api/generate", {"keep_alive": keep, "prompt": "A"})
            self.assertEqual(status, 400, keep)
            self.assertIn("'keep_alive'", answer["error"])

    def test_refused(self):
        for body, field in (({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"),
                            ({"input": [1, "x"]}, "input"),
                            ({"input": ["x"] * 257}, "input[256]"),
                            ({"input": "x", "dimensions": 7}, "dimensions"),
                            ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
                            ({"input": "x", "stream": True}, "stream")):
            status, answer = self.server.post("/v1/embeddings", body)
            self.assertEqual((status, answer["error"]["param"]), (400, field), answer)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
