#!/usr/bin/env python3
"""Tests messages with parts that a model of text cannot read, and the older form of tool calls.

usage: parts_test.py PROGRAM [PART...]
"""
import json
import sys
import unittest

import scripted_model
from one_server import OneServer

LINE = "[image left out: this model reads text only]"
PICTURE = "iVBORw0KGgo="
# A picture as each API has it, in a message and in the result of a tool.
CHAT = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PICTURE}}
MESSAGES = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                        "data": PICTURE}}
RESPONSES = {"type": "input_image", "image_url": "data:image/png;base64," + PICTURE}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
SAY = {"role": "user", "content": "look A"}
FUNCTIONS = [{"name": "get_weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
             {"name": "get_time"}]


class Parts(OneServer):
    @classmethod
    def setUpClass(cls):
        make = scripted_model.make
        scripts = {**scripted_model.SCRIPTS, "]": ["I cannot", " see it."]}
        scripted_model.make = lambda folder: make(folder, scripts=scripts)
        try:
            super().setUpClass()
        finally:
            scripted_model.make = make

    def post(self, path, body, status=200):
        got, answer = self.server.post(path, {"temperature": 0, "max_tokens": 50, **body})
        self.assertEqual(got, status, answer)
        return answer

    def prompt(self, messages, **more):
        return self.post("/apply-template", {"messages": messages, **more})["prompt"]


class Images(Parts):
    """An image in what the user says now is refused. In results of tools and in what was said
    before, a line stands for it, so that a conversation can go on."""

    def refused(self, path, body, param):
        error = self.post(path, body, 400)["error"]
        self.assertIn(f"'{param}'", error["message"] if path != "/api/chat" else error)
        self.assertIn("text only", error["message"] if path != "/api/chat" else error)

    def same(self, path, one, other):
        """Both bodies have the same prompt: all of the second but its last token is known."""
        usage = [self.post(path, body)["usage"] for body in (one, other)]
        if path == "/v1/messages":
            self.assertEqual(usage[1]["input_tokens"], 1)
            return
        name = "prompt_tokens" if path == "/v1/chat/completions" else "input_tokens"
        self.assertEqual(usage[0][name], usage[1][name])
        self.assertEqual(usage[1][name + "_details"]["cached_tokens"], usage[1][name] - 1)

    def test_chat(self):
        path = "/v1/chat/completions"
        asks = {"role": "user", "content": [{"type": "text", "text": "what is this A"}, CHAT]}
        self.refused(path, {"messages": [asks]}, "messages[0].content[1]")
        self.refused(path, {"messages": [{"role": "system", "content": [CHAT]}, SAY]},
                     "messages[0].content[0]")
        prefill = {"role": "assistant", "content": "It is", "prefix": True}
        self.refused(path, {"messages": [asks, prefill]}, "messages[0].content[1]")
        self.assertIn(f"what is this A\n{LINE}<|im_end|>", self.prompt([asks, SAY]))
        calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        for parts, text in (([CHAT], LINE), ([CHAT, CHAT], f"{LINE}\n{LINE}"),
                            ([{"type": "text", "text": "seen"}, CHAT,
                              {"type": "text", "text": ""}, {"type": "text", "text": "so A"}],
                             f"seen\n{LINE}\nso A")):
            result = {"role": "tool", "tool_call_id": "call_1", "content": parts}
            self.assertIn(f"<|im_start|>tool\n{text}<|im_end|>", self.prompt([SAY, calls, result]))
            self.same(path, {"messages": [SAY, calls, result]},
                      {"messages": [SAY, calls, {**result, "content": text}]})
        # Agents send a tool's image behind its result, as the user's.
        result = {"role": "tool", "tool_call_id": "call_1", "content": "read"}
        for behind in ([asks], [SAY, asks], [asks, asks]):
            self.assertIn(LINE, self.prompt([SAY, calls, result, *behind]))
        self.refused(path, {"messages": [SAY, calls, result,
                                         {"role": "assistant", "content": "x"}, asks]},
                     "messages[4].content[1]")

    def test_kinds(self):
        calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        for part, kind in (({"type": "input_audio"}, "audio"), ({"type": "file"}, "file"),
                           ({"type": "video_url"}, "video"), ({"type": "tool_reference"},
                                                              "tool_reference"),
                           ({"type": "<|im_end|>"}, "part"), ({"type": ""}, "part"),
                           ({"type": "x" * 900}, "part"), ({"type": "_url"}, "_url")):
            text = self.prompt([SAY, calls, {"role": "tool", "content": [part]}])
            self.assertIn(f"\n[{kind} left out: this model reads text only]<", text)
        for part in ({}, {"type": None}, {"type": 5}, 5, None):
            self.refused("/v1/chat/completions", {"messages": [
                SAY, calls, {"role": "tool", "content": [part]}]}, "messages[2].content[0]")

    def test_messages(self):
        path = "/v1/messages"
        asks = {"role": "user", "content": [{"type": "text", "text": "what A"}, MESSAGES]}
        self.refused(path, {"messages": [asks]}, "messages[0].content[1]")
        self.refused(path, {"messages": [SAY], "system": [{"type": "text", "text": "x"},
                                                          MESSAGES]}, "system[1]")
        self.same(path, {"messages": [asks, SAY]}, {"messages": [
            {"role": "user", "content": f"what A\n{LINE}"}, SAY]})
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1",
                                                 "name": "get_time", "input": {}}]}
        def result(content, *more):
            return {"messages": [SAY, use, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": content}, *more]}]}
        answer = self.post(path, result([MESSAGES]))
        self.assertEqual(answer["content"][0]["text"], "I cannot see it.")
        self.same(path, result([MESSAGES]), result(LINE))
        pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                              "data": ""}}
        behind = "[document left out: this model reads text only]"
        self.same(path, result("ok", pdf, {"type": "text", "text": "so A"}),
                  result("ok", {"type": "text", "text": f"{behind}\nso A"}))
        count = self.post("/v1/messages/count_tokens", result([MESSAGES]))
        self.assertEqual(count, self.post("/v1/messages/count_tokens", result(LINE)))

    def test_documents(self):
        """Documents of text are read, wherever they stand."""
        texts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        def ask(*parts):
            return {"messages": [{"role": "user", "content": [*parts]}]}
        for part, text in (
                ({"type": "document", "source": {"type": "text", "media_type": "text/plain",
                                                 "data": "plain"}}, "plain"),
                ({"type": "document", "title": "T", "source": {"type": "content",
                                                               "content": texts}}, "T\none two"),
                ({"type": "search_result", "title": "T", "source": "http://x", "content": texts},
                 "T\nhttp://x\none two")):
            self.same("/v1/messages", ask({"type": "text", "text": "see"}, part,
                                          {"type": "text", "text": "so A"}),
                      ask({"type": "text", "text": f"see\n{text}\nso A"}))
        self.refused("/v1/messages", ask({"type": "document", "source": {
            "type": "content", "content": [MESSAGES]}}), "messages[0].content[0][0]")

    def test_responses(self):
        path = "/v1/responses"
        asks = {"role": "user", "content": [{"type": "input_text", "text": "what A"}, RESPONSES]}
        self.refused(path, {"input": [asks]}, "input[0].content[1]")
        self.same(path, {"input": [asks, SAY]},
                  {"input": [{"role": "user", "content": f"what A\n{LINE}"}, SAY]})
        call = {"type": "function_call", "call_id": "call_1", "name": "get_time",
                "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "call_1"}
        self.same(path, {"input": [SAY, call, {**output, "output": [RESPONSES]}]},
                  {"input": [SAY, call, {**output, "output": LINE}]})
        answer = self.post(path, {"input": [SAY, call, {**output, "output": "x"}, asks]})
        self.assertEqual(answer["output"][0]["content"][0]["text"], "I cannot see it.")

    def test_ollama(self):
        path = "/api/chat"
        asks = {"role": "user", "content": "what A", "images": [PICTURE]}
        self.refused(path, {"messages": [asks]}, "messages[0].images")
        for messages, text in (([asks, SAY], "Hello there, world."),
                               ([SAY, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                                 {"role": "tool", "tool_name": "get_time", "content": "ok",
                                  "images": [PICTURE, PICTURE]}], "I cannot see it.")):
            answer = self.post(path, {"messages": messages, "stream": False})
            self.assertEqual(answer["message"]["content"], text)
        self.assertIn(f"ok\n{LINE}\n{LINE}<", self.prompt(messages))


class Functions(Parts):
    """'functions' and 'function_call', which came before 'tools'."""
    path = "/v1/chat/completions"

    def ask(self, text, **more):
        body = {"messages": [{"role": "user", "content": text}], "functions": FUNCTIONS, **more}
        return self.post(self.path, body)["choices"][0]

    def stream(self, text, **more):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0,
                "functions": FUNCTIONS, **more}
        found, finish = {}, None
        for name, event in self.server.stream(self.path, body):
            for choice in event["choices"] if name != ":" and event != "[DONE]" else ():
                finish = choice["finish_reason"] or finish
                self.assertNotIn("tool_calls", choice["delta"])
                for key, value in choice["delta"].get("function_call", {}).items():
                    found[key] = found.get(key, "") + value
        return found, finish

    def test_call(self):
        for more in ({}, {"function_call": "auto"}):
            choice = self.ask("T", **more)
            call = choice["message"]["function_call"]
            self.assertEqual((choice["finish_reason"], call["name"], json.loads(call["arguments"])),
                             ("function_call", "get_weather", {"city": "Paris", "days": 3}))
            self.assertNotIn("tool_calls", choice["message"])
            self.assertEqual(self.stream("T", **more), (call, "function_call"))
        two = self.ask("U") # the second call does not come
        self.assertEqual(two["message"]["function_call"]["name"], "get_weather")
        self.assertEqual(self.stream("U")[0]["name"], "get_weather")
        self.assertEqual(self.ask("A")["finish_reason"], "stop")

    def test_choice(self):
        choice = self.ask("T", function_call="none")
        self.assertIn("<tool_call>", choice["message"]["content"])
        self.assertEqual(choice["finish_reason"], "stop")
        named = self.ask("A", function_call={"name": "get_time"})
        self.assertEqual(named["message"]["function_call"]["name"], "get_time")
        self.assertEqual(named["finish_reason"], "function_call")

    def test_history(self):
        call = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
        tool = {"id": "call_9", "type": "function", "function": call}
        older = [SAY, {"role": "assistant", "content": None, "function_call": call},
                 {"role": "function", "name": "get_weather", "content": "warm A"}]
        newer = [SAY, {"role": "assistant", "content": None, "tool_calls": [tool]},
                 {"role": "tool", "tool_call_id": "call_9", "name": "get_weather",
                  "content": "warm A"}]
        self.assertEqual(self.prompt(older, functions=FUNCTIONS),
                         self.prompt(newer, tools=[{"type": "function", "function": f}
                                                   for f in FUNCTIONS]))
        answer = self.post(self.path, {"messages": older, "functions": FUNCTIONS})
        self.assertEqual(answer["choices"][0]["message"]["content"], "Hello there, world.")

    def test_refused(self):
        good = {"messages": [SAY], "functions": FUNCTIONS}
        for more, param in (({"functions": "x"}, "functions"), ({"functions": [{}]}, "functions"),
                            ({"functions": [{"name": 5}]}, "functions"),
                            ({"functions": [{"name": "f", "strict": 1}]}, "functions"),
                            ({"function_call": "required"}, "function_call"),
                            ({"function_call": {}}, "function_call"),
                            ({"function_call": 5}, "function_call"),
                            ({"function_call": {"name": "other"}}, "function_call"),
                            ({"functions": [], "function_call": {"name": "get_time"}},
                             "function_call"),
                            ({"tools": [{"type": "function", "function": FUNCTIONS[0]}]},
                             "functions"),
                            ({"functions": [{"name": "f", "strict": True, "parameters": {
                                "type": "object", "properties": {"a": {
                                    "type": "array", "uniqueItems": True}}}}],
                              "function_call": {"name": "f"}}, "functions")):
            error = self.post(self.path, {**good, **more}, 400)["error"]
            self.assertEqual(error["param"], param, (more, error))
            self.assertIn(param, error["message"])
        for message in ({"role": "assistant", "function_call": "f"},
                        {"role": "assistant", "function_call": {"arguments": "{}"}}):
            error = self.post(self.path, {"messages": [SAY, message]}, 400)["error"]
            self.assertEqual(error["param"], "messages[1].function_call")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
