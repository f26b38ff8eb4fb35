#!/usr/bin/env python3
"""Tests what a request says about its prompt and its end: a last message that is continued, the
prompt's own log probabilities, answers without an end or without a limit.

usage: prompts_test.py PROGRAM NANO [PART...]
"""
import json
import sys
import tempfile
import unittest

import scripted_model
from one_server import OneServer
from served import Server

NANO = sys.argv[2]
TEXT = "The cat sat on the mat. It was \u65e9\u4e0a."


def says(*texts):
    return [{"role": "assistant" if i % 2 else "user", "content": text}
            for i, text in enumerate(texts)]


class Continued(OneServer):
    """The scripted model says what follows the last token."""

    def chat(self, *texts, **fields):
        return self.server.post("/v1/chat/completions", {"messages": says(*texts), **fields})

    def content(self, *texts, **fields):
        status, answer = self.chat(*texts, **fields)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"]["content"]

    def test_text(self):
        go_on = {"continue_final_message": True}
        self.assertEqual(self.content("A", "Hello", **go_on), " there, world.")
        self.assertEqual(self.content("A", "Hello", add_generation_prompt=False, **go_on),
                         " there, world.")
        self.assertEqual(self.content("A", "Hello",
                                      chat_template_kwargs={"continue_final_message": True}),
                         " there, world.")
        messages = says("A", "Hello")
        messages[1]["prefix"] = True
        status, answer = self.server.post("/v1/chat/completions", {"messages": messages})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]),
                         (200, " there, world."))
        events = self.server.stream("/v1/chat/completions",
                                    {"messages": says("A", "Hello"), **go_on})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for n, e in events
                                 if n != ":" and e != "[DONE]"), " there, world.")

    def test_prefill(self):
        """Anthropic and Ollama continue such a message by themselves."""
        _, answer = self.server.post("/v1/messages", {"messages": says("A", "Hello"),
                                                      "max_tokens": 9})
        self.assertEqual(answer["content"][0]["text"], " there, world.")
        _, answer = self.server.post("/v1/messages", {"max_tokens": 9, "messages": [
            *says("A"), {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]})
        self.assertEqual(answer["content"][0]["text"], " there, world.")
        _, answer = self.server.post("/api/chat", {"messages": says("A", "Hello"),
                                                   "stream": False})
        self.assertEqual(answer["message"]["content"], " there, world.")
        _, count = self.server.post("/v1/messages/count_tokens", {"messages": says("A", "Hello")})
        self.assertEqual(count["input_tokens"],
                         self.chat("A", "Hello", continue_final_message=True)[1]["usage"]
                         ["prompt_tokens"])

    def test_reasoning(self):
        status, answer = self.chat("R", "<think>\nLet me", continue_final_message=True)
        self.assertEqual(status, 200, answer)
        message = answer["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]),
                         (" think.", "Forty-two."))

    def test_template(self):
        _, answer = self.server.post("/apply-template", {"messages": says("A", "Hel "),
                                                         "continue_final_message": True})
        self.assertTrue(answer["prompt"].endswith("<|im_start|>assistant\nAHel "), answer)

    def test_refused(self):
        go_on = {"continue_final_message": True}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for messages, more, field in (
                (says("A"), go_on, "messages"), (says("A", " \n"), go_on, "messages"),
                ([*says("A"), {"role": "assistant", "content": "x", "tool_calls": [call]}], go_on,
                 "messages"),
                (says("A", "x"), {**go_on, "add_generation_prompt": True},
                 "add_generation_prompt"),
                (says("A", "x"), {"add_generation_prompt": False}, "add_generation_prompt"),
                (says("A", "x"), {**go_on, "response_format": {"type": "json_object"}},
                 "response_format"),
                (says("A", "x"), {**go_on, "tools": [tool], "tool_choice": "required"}, "tools")):
            status, answer = self.server.post("/v1/chat/completions",
                                              {"messages": messages, **more})
            self.assertEqual((status, answer["error"].get("param")), (400, field), answer)

    def test_frames(self):
        """In a format of several messages the answer goes on inside its last one."""
        template = ("{%- for m in messages %}{{- '<|start|>' + m.role + '<|channel|>final"
                    "<|message|>' + m.content | trim + '<|end|>' }}{%- endfor %}")
        with tempfile.TemporaryDirectory() as folder:
            scripted_model.make(folder, template=template)
            with Server(sys.argv[1], folder) as server:
                _, answer = server.post("/v1/chat/completions", {
                    "messages": says("A", "Hello \n"), "continue_final_message": True})
        self.assertEqual(answer["choices"][0]["message"]["content"], " there, world.")


class Endless(OneServer):
    options = ("--context", "256")

    def test_ignore_eos(self):
        for path, body, count in (
                ("/v1/chat/completions", {"messages": says("A"), "max_tokens": 20},
                 lambda a: a["usage"]["completion_tokens"]),
                ("/v1/completions", {"prompt": "A", "max_tokens": 20},
                 lambda a: a["usage"]["completion_tokens"]),
                ("/api/chat", {"messages": says("A"), "stream": False,
                               "options": {"num_predict": 20, "ignore_eos": True}},
                 lambda a: a["eval_count"])):
            status, answer = self.server.post(path, {**body, "ignore_eos": True})
            self.assertEqual((status, count(answer)), (200, 20), answer)
        status, answer = self.server.post("/v1/chat/completions", {
            "messages": says("A"), "ignore_eos": True, "response_format": {"type": "json_object"}})
        self.assertEqual((status, answer["error"]["param"]), (400, "ignore_eos"))
        status, answer = self.server.post("/v1/completions", {"prompt": "A", "ignore_eos": 3})
        self.assertEqual((status, answer["error"]["param"]), (400, "ignore_eos"))

    def test_no_limit(self):
        """-1 is no limit; the default of completions is 16 tokens."""
        for more, n in (({}, 16), ({"max_tokens": -1}, 256), ({"n_predict": 30}, 30)):
            _, answer = self.server.post("/v1/completions", {"prompt": "L", **more})
            self.assertEqual(answer["usage"]["completion_tokens"], n)
        for path, body in (("/v1/chat/completions", {"max_tokens": -1}),
                           ("/v1/chat/completions", {"max_completion_tokens": -1}),
                           ("/v1/messages", {"max_tokens": -1}),
                           ("/v1/responses", {"max_output_tokens": -1, "input": "A"})):
            status, answer = self.server.post(path, {"messages": says("A"), **body})
            self.assertEqual(status, 200, answer)
        for value in (-3, 1.5, "x"):
            status, answer = self.server.post("/v1/completions",
                                              {"prompt": "A", "max_tokens": value})
            self.assertEqual((status, answer["error"]["param"]), (400, "max_tokens"))


class Echo(OneServer):
    model = NANO

    def complete(self, prompt, **fields):
        status, answer = self.server.post("/v1/completions", {"prompt": prompt, "temperature": 0,
                                                              **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def ids(self, text):
        return self.server.post("/tokenize", {"content": text})[1]["tokens"]

    def test_text(self):
        """The texts of all prompts are repeated, of tokens too, before each of their answers."""
        ids = self.ids(TEXT)
        answer = self.complete([TEXT, "Once"], echo=True, n=2, max_tokens=3)
        plain = self.complete([TEXT, "Once"], n=2, max_tokens=3)
        for i, before in enumerate((TEXT, TEXT, "Once", "Once")):
            self.assertEqual(answer["choices"][i]["text"], before + plain["choices"][i]["text"])
        self.assertTrue(self.complete([ids, ids[:3]], echo=True)["choices"][0]["text"]
                        .startswith(TEXT))

    def test_logprobs(self):
        """Each token has the log probability that an answer to the tokens before it gives it."""
        ids = self.ids(TEXT)
        answer = self.complete([ids, ids[:1]], echo=True, logprobs=2, max_tokens=2)
        found = answer["choices"][0]["logprobs"]
        self.assertEqual(len(found["token_logprobs"]),
                         len(ids) + answer["usage"]["completion_tokens"] - 2)
        self.assertEqual((found["token_logprobs"][0], found["top_logprobs"][0]), (None, None))
        self.assertEqual(answer["choices"][1]["logprobs"]["token_logprobs"][0], None)
        for i in range(1, len(ids)):
            step = self.complete([ids[:i]], logprobs=20, max_tokens=1, ignore_eos=True)
            top = step["choices"][0]["logprobs"]["top_logprobs"][0]
            self.assertEqual(list(found["top_logprobs"][i].values()), list(top.values())[:2])
            own = found["token_logprobs"][i]
            self.assertTrue(own in top.values() or own < min(top.values()), (i, own, top))

    def test_no_answer(self):
        """With no tokens for an answer, only the prompt is computed."""
        whole = self.complete(TEXT, echo=True, logprobs=1, max_tokens=0)
        self.assertEqual(whole["usage"]["completion_tokens"], 0)
        choice = whole["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (TEXT, "length"))
        self.assertEqual(len(choice["logprobs"]["tokens"]), whole["usage"]["prompt_tokens"])
        self.assertEqual(self.complete(TEXT, max_tokens=0)["choices"][0]["text"], "")

    def test_stream(self):
        whole = self.complete(TEXT * 20, echo=True, logprobs=1, max_tokens=4)["choices"][0]
        events = self.server.stream("/v1/completions", {
            "prompt": TEXT * 20, "temperature": 0, "echo": True, "logprobs": 1, "max_tokens": 4})
        choices = [e["choices"][0] for n, e in events if n != ":" and e != "[DONE]"]
        self.assertEqual("".join(c["text"] for c in choices), whole["text"])
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(sum((c["logprobs"][name] for c in choices), []),
                             whole["logprobs"][name])

    def assert_offsets(self, choice, before):
        """Each token is found at its offset in prompt and answer, counted in characters. A token
        with a part of a character has the place of that character."""
        found = choice["logprobs"]
        text = before + choice["text"]
        self.assertEqual(len(found["text_offset"]), len(found["tokens"]))
        at = found["text_offset"][0]
        for token, offset in zip(found["tokens"], found["text_offset"]):
            self.assertLessEqual(at, offset + 1)
            self.assertLessEqual(offset, len(text))
            if "\ufffd" not in token and offset + len(token) <= len(text):
                self.assertEqual(text[offset:offset + len(token)], token, (found, text))
            at = offset
        return found["text_offset"]

    def test_offsets(self):
        """As OpenAI's: from the beginning of the prompt, with or without echo."""
        odd = "A caf\u00e9, \u6771\u4eac and \U0001f600 \U0001f9d1\u200d\U0001f680 are here."
        for prompt in (TEXT, odd):
            more = {"logprobs": 1, "max_tokens": 6, "ignore_eos": True}
            plain = self.complete(prompt, **more)["choices"][0]
            self.assertEqual(self.assert_offsets(plain, prompt)[0], len(prompt))
            echoed = self.complete(prompt, echo=True, **more)["choices"][0]
            offsets = self.assert_offsets(echoed, "")
            self.assertEqual(offsets[0], 0)
            n = len(plain["logprobs"]["tokens"])
            self.assertIn(plain["logprobs"]["text_offset"], (offsets[-n:], offsets[-n - 1:-1]))
            self.assertIn(len(prompt), offsets)
        ids = self.ids(TEXT)
        two = self.complete([ids, ids[:3]], logprobs=0, max_tokens=3, n=2,
                            ignore_eos=True)["choices"]
        part = self.server.post("/detokenize", {"tokens": ids[:3]})[1]["content"]
        self.assertEqual([c["logprobs"]["text_offset"][0] for c in two],
                         [len(TEXT)] * 2 + [len(part)] * 2)

    def test_cached_prefix(self):
        """A conversation that goes on meanwhile keeps its prefix."""
        first = self.server.ask("Tell me about the sea.", max_tokens=5)
        self.complete(TEXT, echo=True, logprobs=1)
        again = self.server.ask("Tell me about the sea.", max_tokens=5)
        self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.complete(TEXT, echo=True, logprobs=1)["usage"]
                         ["prompt_tokens_details"]["cached_tokens"], 0)

    def test_continued(self):
        """A greedy answer that is cut goes on as if it had not been."""
        whole = self.server.ask("Tell me a story.", max_tokens=40)["choices"][0]["message"]
        at = whole["content"].index(" ", 30)
        status, answer = self.server.post("/v1/chat/completions", {
            "messages": says("Tell me a story.", whole["content"][:at]), "temperature": 0,
            "max_tokens": 60, "continue_final_message": True})
        self.assertEqual(status, 200)
        rest = answer["choices"][0]["message"]["content"]
        self.assertTrue(rest.startswith(whole["content"][at:]), (whole, rest))

    def test_refused(self):
        status, answer = self.server.post("/v1/completions", {"prompt": "A", "echo": True, "n": 2,
                                                              "logprobs": 1})
        self.assertEqual((status, answer["error"]["param"]), (400, "echo"), json.dumps(answer))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
