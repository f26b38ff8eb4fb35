#!/usr/bin/env python3
"""Tests the forms of an answer: schemas and tools together, calls that are cut off, fields that
change the form of the answer, and texts with invalid characters.

usage: forms_test.py PROGRAM [PART...]
"""
import json
import re
import sys
import unittest

import scripted_model
from one_server import OneServer

ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"},
                                              "days": {"type": "integer"}}}
SCHEMA = {**ARGUMENTS, "required": ["city", "days"], "additionalProperties": False}
NAMES = ["get_weather", "get_time"]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ARGUMENTS}}
         for name in NAMES]
CITY = {"city": "Oslo", "days": 2}
TEXT = "Hello there, world."


class Forms(OneServer):
    """One server for all tests, and one way to use every dialect."""
    dialects = ("chat", "responses", "messages")

    @staticmethod
    def body(dialect, text, schema=None, tools=NAMES, choice=None, one=False, n_tokens=200, **more):
        """Returns the same request for each dialect."""
        body = {"model": "m", "temperature": 0, **more}
        name = choice if choice in NAMES else None
        if dialect == "chat":
            body.update(messages=[{"role": "user", "content": text}], max_tokens=n_tokens)
            if schema is not None:
                body["response_format"] = {"type": "json_schema",
                                           "json_schema": {"name": "x", "schema": schema}}
            body["tools"] = [t for t in TOOLS if t["function"]["name"] in tools]
            body["tool_choice"] = {"type": "function", "function": {"name": name}} if name \
                else choice
            body["parallel_tool_calls"] = not one
        elif dialect == "responses":
            body.update(input=text, max_output_tokens=n_tokens)
            if schema is not None:
                body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
            body["tools"] = [{"type": "function", **t["function"]} for t in TOOLS
                             if t["function"]["name"] in tools]
            body["tool_choice"] = {"type": "function", "name": name} if name else choice
            body["parallel_tool_calls"] = not one
        else:
            body.update(messages=[{"role": "user", "content": text}], max_tokens=n_tokens)
            if schema is not None:
                body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
            body["tools"] = [{"name": t, "input_schema": ARGUMENTS} for t in tools]
            kind = {None: "auto", "required": "any", "none": "none"}.get(choice, "tool")
            body["tool_choice"] = {"type": kind, "disable_parallel_tool_use": one}
            if name:
                body["tool_choice"]["name"] = name
        return body

    def ask(self, dialect, text, stream=False, **how):
        """(text, [(name, arguments as text)], why it ended, statuses of Responses' items)"""
        body = self.body(dialect, text, **how)
        path = {"chat": "/v1/chat/completions", "responses": "/v1/responses",
                "messages": "/v1/messages"}[dialect]
        if stream:
            events = [(n, e) for n, e in self.server.stream(path, body) if n != ":"]
            return getattr(self, "stream_" + dialect)(events)
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, answer)
        return getattr(self, "whole_" + dialect)(answer)

    @staticmethod
    def whole_chat(answer):
        message = answer["choices"][0]["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"])
                 for c in message.get("tool_calls", [])]
        return message["content"] or "", calls, answer["choices"][0]["finish_reason"], None

    @staticmethod
    def whole_responses(answer):
        text = "".join(p["text"] for i in answer["output"] if i["type"] == "message"
                       for p in i["content"])
        calls = [(i["name"], i["arguments"]) for i in answer["output"]
                 if i["type"] == "function_call"]
        return text, calls, answer["status"], [i.get("status") for i in answer["output"]]

    @staticmethod
    def whole_messages(answer):
        text = "".join(b["text"] for b in answer["content"] if b["type"] == "text")
        calls = [(b["name"], json.dumps(b["input"])) for b in answer["content"]
                 if b["type"] == "tool_use"]
        return text, calls, answer["stop_reason"], None

    def stream_chat(self, events):
        text, calls, finish = "", [], None
        for _, event in events[:-1]:
            for choice in event["choices"]:
                finish = choice["finish_reason"] or finish
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    if "id" in call:
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"]["arguments"]
        return text, [tuple(c) for c in calls], finish, None

    def stream_responses(self, events):
        """Complete at the end; the events before must agree."""
        found = self.whole_responses(events[-1][1]["response"])
        deltas = {"response.output_text.delta": "", "response.function_call_arguments.delta": ""}
        for name, event in events:
            if name in deltas:
                deltas[name] += event["delta"]
        self.assertEqual(deltas["response.output_text.delta"], found[0])
        self.assertEqual(deltas["response.function_call_arguments.delta"],
                         "".join(a for _, a in found[1]))
        done = [e["item"] for n, e in events if n == "response.output_item.done"]
        self.assertEqual(done, events[-1][1]["response"]["output"])
        return found

    def stream_messages(self, events):
        text, calls, reason = "", [], None
        for name, event in events:
            if name == "content_block_start" and event["content_block"]["type"] == "tool_use":
                calls.append([event["content_block"]["name"], ""])
            elif name == "content_block_delta":
                text += event["delta"].get("text") or ""
                if "partial_json" in event["delta"]:
                    calls[-1][1] += event["delta"]["partial_json"]
            elif name == "message_delta":
                reason = event["delta"]["stop_reason"]
        return text, [tuple(c) for c in calls], reason, None

    def each(self, **how):
        """Yields every dialect, complete and streamed."""
        def asker(dialect, stream):
            return lambda text, **more: self.ask(dialect, text, stream=stream, **{**how, **more})
        return [(dialect, stream, asker(dialect, stream)) for dialect in self.dialects
                for stream in (False, True)]

    def refused(self, path, body, param):
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 400, (param, answer))
        self.assertIn(param.split(".")[-1], answer["error"]["message"], answer)
        if path != "/v1/messages":
            self.assertEqual(answer["error"]["param"], param, answer)


class Either(Forms):
    """Tools and a schema: the answer is a call or fits the schema."""
    ended = {"chat": "stop", "responses": "completed", "messages": "end_turn"}
    called = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}

    def test_auto(self):
        for dialect, _, ask in self.each(schema=SCHEMA):
            text, calls, end, _ = ask("O")
            self.assertEqual((json.loads(text), calls, end), (CITY, [], self.ended[dialect]))
            text, calls, end, _ = ask("P")
            self.assertEqual((text, end), ("", self.called[dialect]))
            self.assertEqual([(n, json.loads(a)) for n, a in calls],
                             [("get_weather", {"city": "Kyiv", "days": 3})])
            text, calls, end, _ = ask("W")
            self.assertEqual((text, end), ("", self.called[dialect]))
            self.assertEqual([(n, json.loads(a)) for n, a in calls],
                             [("get_weather", {"city": "Bonn"}), ("get_time", {})])

    def test_text_is_neither(self):
        """A model that would write something else writes something of the required form."""
        for _, _, ask in self.each(schema=SCHEMA):
            for key in "ARBXU":
                text, calls, _, _ = ask(key, n_tokens=60)
                self.assertTrue(calls or text.startswith(("{", "<tool_call>")), text)
                self.assertNotIn("there", text)

    def test_required(self):
        for dialect, _, ask in self.each(schema=SCHEMA, choice="required"):
            text, calls, end, _ = ask("T", n_tokens=500)
            self.assertEqual((text, len(calls)), ("", 1))
            self.assertIn(calls[0][0], NAMES)
            self.assertIn(end, (self.called[dialect], "length", "incomplete", "max_tokens"))

    def test_named(self):
        for _, _, ask in self.each(schema=SCHEMA):
            for name in NAMES:
                text, calls, _, _ = ask("O", choice=name, n_tokens=500)
                self.assertEqual((text, [n for n, _ in calls]), ("", [name]))

    def test_none_leaves_the_schema(self):
        for _, _, ask in self.each(schema=SCHEMA, choice="none"):
            text, calls, _, _ = ask("T", n_tokens=60)
            self.assertEqual((text[:1], calls), ("{", []))

    def test_one_call(self):
        """With parallel calls disabled, the answer ends with the first call."""
        for schema in (None, SCHEMA):
            for dialect, _, ask in self.each(schema=schema, one=True):
                text, calls, end, _ = ask("W")
                self.assertEqual((text, [n for n, _ in calls], end),
                                 ("", ["get_weather"], self.called[dialect]))
        for _, _, ask in self.each():
            self.assertEqual([n for n, _ in ask("W")[1]], NAMES)
            self.assertIn("And so on.", ask("W")[0])
        status, answer = self.server.post("/v1/chat/completions", self.body("chat", "W", one=True))
        self.assertEqual(answer["usage"]["completion_tokens"], 4)  # nothing is computed after it
        status, answer = self.server.post("/v1/responses", self.body("responses", "A", one=True))
        self.assertEqual((status, answer["parallel_tool_calls"]), (200, False))

    def test_allowed_tools(self):
        for mode in ("auto", "required"):
            chat = self.body("chat", "W", choice={"type": "allowed_tools", "allowed_tools": {
                "mode": mode, "tools": [{"type": "function", "function": {"name": NAMES[1]}}]}})
            responses = self.body("responses", "W", choice={
                "type": "allowed_tools", "mode": mode,
                "tools": [{"type": "function", "name": NAMES[1]}]})
            for path, body in (("/v1/chat/completions", chat), ("/v1/responses", responses)):
                status, answer = self.server.post(path, body)
                self.assertEqual(status, 200, answer)
                calls = (self.whole_chat if path.endswith("s") and "chat" in path
                         else self.whole_responses)(answer)[1]
                if mode == "required":
                    self.assertEqual([n for n, _ in calls], [NAMES[1]])
        for choice in ("maybe", {"type": "web_search"}, {"type": "function"}, 5, ["auto"],
                       {"type": "allowed_tools"}):
            body = {**self.body("chat", "A"), "tool_choice": choice}
            self.refused("/v1/chat/completions", body, "tool_choice")
            body = {**self.body("responses", "A"), "tool_choice": choice}
            self.refused("/v1/responses", body, "tool_choice")
        self.refused("/v1/messages", {**self.body("messages", "A"),
                                      "tool_choice": {"type": "required"}}, "tool_choice.type")

    def test_many_tools(self):
        """Each of a hundred tools can be called with its own schema and its own references."""
        names = [f"tool_{i:03}" for i in range(100)]
        tools = [{"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"],
            "additionalProperties": False, "$defs": {"A": {"const": i}}}}}
            for i, name in enumerate(names)]
        for i in (0, 40, 99):
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": names[i]}}]}}
            for chosen in (choice, {"type": "function", "function": {"name": names[i]}}):
                answer = self.server.ask("A", tools=tools, tool_choice=chosen)
                _, calls, end, _ = self.whole_chat(answer)
                self.assertEqual([(n, json.loads(a)) for n, a in calls], [(names[i], {"a": i})])
                self.assertEqual(end, "tool_calls")
        _, nine = self.server.post("/tokenize", {"content": "9"})
        answer = self.server.ask("A", tools=tools, tool_choice="required",
                                 logit_bias={str(nine["tokens"][0]): 100})
        self.assertEqual([(n, json.loads(a)) for n, a in self.whole_chat(answer)[1]],
                         [("tool_099", {"a": 99})])


class Names(Forms):
    """How the name of a required call is written."""

    def test_literal(self):
        wanted = re.compile(r'\{ ?"name": ?"(get_weather|get_time)", ?"arguments": ?\{[^\n\t]*$')
        for byte in ("\\", " ", "\n", "\t", "u"):
            _, tokens = self.server.post("/tokenize", {"content": byte})
            answer = self.server.ask("T", tools=TOOLS, tool_choice="required", max_tokens=60,
                                     logprobs=True, logit_bias={str(tokens["tokens"][0]): 100})
            text = "".join(t["token"] for t in answer["choices"][0]["logprobs"]["content"])
            self.assertRegex(text, wanted)
            self.assertNotIn("  ", text.split('"arguments"')[0])

    def test_hostile_names(self):
        """A name that JSON must escape, a name that is a prefix of another, and two equal names."""
        names = ['quo"te', "back\\slash", "get", "get_more", "get", "\u00e9t\u00e9"]
        tools = [{"type": "function", "function": {"name": n}} for n in names]
        for name in names[:6]:
            answer = self.server.ask("A", tools=tools, max_tokens=200, tool_choice={
                "type": "function", "function": {"name": name}})
            self.assertEqual(self.whole_chat(answer)[1][0][0], name)
        for name in ("", "new\nline", "x" * 256):
            tools = [{"type": "function", "function": {"name": name}}]
            for more in ({"tool_choice": "required"}, {"json_schema": SCHEMA}):
                self.refused("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "A"}], "tools": tools, **more},
                    "tools")

    def test_arguments_are_objects(self):
        """Arguments are objects even if the schema does not say so."""
        for parameters in ({"properties": {"a": {"const": 1}}}, True, {}, {"type": "string"},
                           {"anyOf": [{"type": "integer"}, {"type": "object"}]}, None):
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            answer = self.server.ask("A", tools=tools, tool_choice="required", max_tokens=400)
            calls = self.whole_chat(answer)[1]
            self.assertEqual(len(calls), 1, answer)
            self.assertEqual(calls[0][1][:1], "{", answer)


class Cut(Forms):
    """An incomplete call is sent once and marked."""

    def test_every_length(self):
        lengths = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}
        whole = {key: "".join(scripted_model.SCRIPTS[key]) for key in "TX"}
        for dialect, stream, ask in self.each():
            for key, n_all in (("T", 4), ("X", 5)):
                for n in range(1, n_all):
                    text, calls, end, statuses = ask(key, n_tokens=n)
                    self.assertEqual(end, lengths[dialect])
                    self.assertEqual(len(calls) + (text != ""), 1, (key, n, text, calls))
                    if calls and (stream or dialect != "messages"):
                        self.assertTrue(calls[0][1].startswith('{"city"'), calls)
                        self.assertEqual(calls[0][0], "get_weather")
                    elif not calls:
                        self.assertTrue(whole[key].startswith(text), text)
                    if statuses is not None:
                        self.assertEqual(statuses, ["incomplete"])
            self.assertEqual(len(ask("T", n_tokens=2)[1]), 1)
            text, calls, end, statuses = ask("T", n_tokens=4)  # whole, but for the end of the turn
            self.assertEqual((text, [json.loads(a) for _, a in calls]),
                             ("", [{"city": "Paris", "days": 3}]))
            if statuses is not None:
                self.assertEqual(statuses, ["completed"])

    def test_forced(self):
        """The same for a required call, wherever it is cut. Before its name is complete it is not a
        call, and it is never text."""
        lengths = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}
        for dialect, stream, ask in self.each(choice="get_weather"):
            for n in [*range(1, 40), 47, 54]:
                text, calls, end, statuses = ask("T", n_tokens=n)
                self.assertEqual(text, "", (dialect, stream, n))
                self.assertLessEqual(len(calls), 1)
                if not calls:
                    self.assertEqual(end, lengths[dialect], (dialect, stream, n))
                if statuses is None:
                    continue
                try:
                    json.loads(calls[0][1] if calls else "")
                    self.assertEqual(statuses, ["completed"])
                except ValueError:
                    self.assertEqual(statuses, ["incomplete"])

    def test_forced_by_name(self):
        """Cut by its length: no byte of it is text."""
        for choice in ("required", "get_weather"):
            for dialect, stream, ask in self.each(choice=choice):
                begun = [bool(ask("T", n_tokens=n)[1]) for n in range(1, 40)]
                self.assertEqual(begun, sorted(begun)) # first without a name, then with one
                self.assertEqual(set(begun), {False, True})

    def test_forced_with_stop(self):
        """Stop strings apply to text: a required call is complete, whatever it contains."""
        stops = {"chat": "stop", "messages": "stop_sequences"}
        called = {"chat": "tool_calls", "messages": "tool_use"}
        for choice in ("required", "get_weather"):
            for dialect, stream, ask in self.each(choice=choice):
                if dialect not in stops:
                    continue
                whole = ask("P")
                self.assertEqual((whole[0], len(whole[1]), whole[2]), ("", 1, called[dialect]))
                for stop in ('"', "name", "get_", "weather", "arg", ": {", "city", "{", "}", "}}",
                             "\n", "</tool_call>", '"city"', "\n</tool_call>"):
                    self.assertEqual(ask("P", **{stops[dialect]: [stop]}), whole, stop)
                self.assertEqual(ask("P", **{stops[dialect]: ["}", "city", '"']}), whole)

    def test_history(self):
        """A client sends a cut call back with its result: the template gets an object."""
        for cut in ('{"city": "Par', "[1]", "oops", "5"):
            call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": cut}}
            body = {"messages": [{"role": "user", "content": "x"},
                                 {"role": "assistant", "content": None, "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "x", "content": "no JSON A"}]}
            _, shown = self.server.post("/apply-template", body)
            self.assertIn(json.dumps({"arguments": cut}), shown["prompt"])
            status, answer = self.server.post("/v1/chat/completions", body)
            self.assertEqual((status, self.whole_chat(answer)[0]), (200, TEXT))

    def test_text(self):
        _, _, status, items = self.ask("responses", "L", n_tokens=3)
        self.assertEqual((status, items), ("incomplete", ["incomplete"]))

    def test_broken_in_a_stream(self):
        """What was sent as a call is not sent as text as well."""
        for dialect, stream, ask in self.each():
            text, calls, end, statuses = ask("B")
            self.assertEqual(text, "oops not JSON" if stream else
                             "".join(scripted_model.SCRIPTS["B"]))
            self.assertEqual(calls, [("get_weather", '{"city": ')] if stream else [])
            self.assertEqual(end, {"chat": "stop", "responses": "completed",
                                   "messages": "end_turn"}[dialect])
            if statuses is not None and stream:
                self.assertEqual(statuses, ["incomplete", "completed"])


class Dropped(Forms):
    """Fields that change the form of the answer are honoured or refused, others are ignored."""
    asks = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "A"}]},
            "/v1/completions": {"prompt": "A"},
            "/v1/responses": {"input": "A"},
            "/v1/messages": {"max_tokens": 50, "messages": [{"role": "user", "content": "A"}]}}

    def test_refused(self):
        fields = {"grammar": "root ::= root", "guided_regex": "a+", "guided_choice": ["a", "b"],
                  "guided_grammar": "x", "guided_whitespace_pattern": " ?", "regex": "a+",
                  "ebnf": "x", "structural_tag": {"a": 1}, "function_call": {"name": "f"},
                  "conversation": "conv_1",
                  "modalities": ["text", "audio"], "stop_token_ids": [1],
                  "allowed_token_ids": [5], "bad_words": ["x"], "min_tokens": 5,
                  "use_beam_search": True,
                  "include_stop_str_in_output": True, "skip_special_tokens": False,
                  "add_generation_prompt": False, "suffix": "x", "best_of": 3,
                  "json_schema": 5, "guided_json": 5}
        for path, good in self.asks.items():
            for name, value in fields.items():
                self.refused(path, {**good, name: value}, name)
            for name in ("regex", "choice", "grammar", "structural_tag"):
                self.refused(path, {**good, "structured_outputs": {name: "a"}},
                             "structured_outputs." + name)
            if path != "/v1/completions":
                self.refused(path, {**good, "echo": True}, "echo")
            if path != "/v1/chat/completions":
                self.refused(path, {**good, "functions": [{"name": "f"}]}, "functions")
        for path in ("/v1/completions", "/v1/responses"):
            self.refused(path, {**self.asks[path], "continue_final_message": True},
                         "continue_final_message")
        self.refused("/v1/responses", {"input": "A", "prompt": {"id": "pmpt_1"}}, "prompt")
        self.refused("/v1/responses", {"input": "A", "background": True}, "background")
        both = {"response_format": {"type": "json_object"}, "json_schema": SCHEMA}
        self.refused("/v1/chat/completions", {**self.asks["/v1/chat/completions"], **both},
                     "json_schema")

    def test_ignored_ends(self):
        ask = {**self.asks["/v1/chat/completions"], "max_tokens": 50, "temperature": 0}
        for fields, reason in (({}, "stop"), ({"ignore_eos": True}, "length"),
                               ({"ignore_eos": True, "logit_bias": {"5": -100}}, "length")):
            status, answer = self.server.post("/v1/chat/completions", {**ask, **fields})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["finish_reason"], reason, fields)
            self.assertEqual(answer["usage"]["completion_tokens"] == 50, reason == "length")

    def test_unset_and_unknown_are_ignored(self):
        unset = {"grammar": "", "guided_regex": None, "guided_choice": [], "functions": [],
                 "function_call": "auto", "conversation": None, "modalities": ["text"],
                 "stop_token_ids": [], "min_tokens": 0, "ignore_eos": False,
                 "skip_special_tokens": True, "add_generation_prompt": True, "suffix": "",
                 "best_of": 1, "echo": False, "json_schema": None, "guided_json": None,
                 "structured_outputs": None, "structured_outputs_": {"regex": "a"},
                 "prediction": {"type": "content", "content": "x"}, "verbosity": "low",
                 "service_tier": "auto", "foo": {"bar": 1}, "safety_identifier": "x",
                 "truncation": "auto", "output_format": None, "output_config": None}
        for path, good in self.asks.items():
            status, answer = self.server.post(path, {**good, **unset})
            self.assertEqual(status, 200, answer)
            self.assertIn(TEXT, json.dumps(answer))

    def form(self, path, **fields):
        """The JSON that the answer is constrained to; by itself the model would say hello."""
        status, answer = self.server.post(path, {**self.asks[path], "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        found = {"/v1/chat/completions": lambda a: a["choices"][0]["message"]["content"],
                 "/v1/completions": lambda a: a["choices"][0]["text"],
                 "/v1/responses": lambda a: a["output"][0]["content"][0]["text"],
                 "/v1/messages": lambda a: a["content"][0]["text"]}[path](answer)
        return found

    def test_honoured(self):
        wanted = {"const": 12345678901234567890123}
        text = json.dumps(wanted["const"])
        for path in self.asks:
            more = {"max_tokens": 50} if path == "/v1/completions" else {}
            for fields in ({"json_schema": wanted}, {"guided_json": wanted},
                           {"guided_json": json.dumps(wanted)},
                           {"structured_outputs": {"json": wanted, "regex": None}}):
                self.assertEqual(self.form(path, **fields, **more), text)
        formats = [{"type": "json_object", "schema": wanted},
                   {"type": "json_schema", "schema": wanted},
                   {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}]
        for path, name in (("/v1/chat/completions", "response_format"),
                           ("/v1/messages", "output_format")):
            for value in formats:
                self.assertEqual(self.form(path, **{name: value}), text)
        for value in formats[:2]:
            self.assertEqual(self.form("/v1/messages", output_config={"format": value}), text)
            self.assertEqual(self.form("/v1/responses", text={"format": value}), text)
        for path in ("/v1/chat/completions", "/v1/completions"):
            for fields in ({"response_format": {"type": "json_object"}},
                           {"structured_outputs": {"json_object": True}}):
                self.assertEqual(self.form(path, **fields, max_tokens=5)[:1], "{")

    def test_bad_schemas_are_named(self):
        bad = {"type": "array", "uniqueItems": True}
        for path, name, fields in (
                ("/v1/chat/completions", "json_schema", {"json_schema": bad}),
                ("/v1/chat/completions", "guided_json", {"guided_json": "{"}),
                ("/v1/messages", "output_config.format",
                 {"output_config": {"format": {"type": "json_schema", "schema": bad}}}),
                ("/v1/messages", "output_format", {"output_format": {"type": "poem"}}),
                ("/v1/chat/completions", "response_format",
                 {"response_format": {"type": "json_object", "schema": "x"}}),
                ("/v1/responses", "text.format", {"text": {"format": {"type": "grammar"}}}),
                ("/v1/chat/completions", "response_format",
                 {"tools": TOOLS, "response_format": {"type": "json_schema",
                                                      "json_schema": {"schema": bad}}})):
            self.refused(path, {**self.asks[path], **fields}, name)

    def test_nulls(self):
        """What clients send for fields that are not set."""
        null = dict.fromkeys
        tool = {"type": "function", "function": {"name": "f", **null(
            ("description", "parameters", "strict"))}}
        call = {"id": None, "type": "function", "function": {"name": "f", "arguments": None}}
        chat = {"messages": [
            {"role": "user", "content": "x", "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None,
             "reasoning_content": None, "audio": None, "function_call": None},
            {"role": "tool", "content": "A", "tool_call_id": None}], "tools": [tool],
            **null(("audio", "frequency_penalty", "function_call", "functions", "logit_bias",
                    "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities",
                    "n", "parallel_tool_calls", "prediction", "presence_penalty",
                    "prompt_cache_key", "reasoning_effort",
                    "response_format", "seed", "stop", "store", "stream",
                    "stream_options", "temperature", "tool_choice", "top_logprobs", "top_p",
                    "user", "web_search_options", "model", "chat_template_kwargs"))}
        formats = ({"type": "text", "json_schema": None}, {"type": "text", "schema": None})
        status, answer = self.server.post("/v1/chat/completions", chat)
        self.assertEqual(status, 200, answer)
        for value in formats:
            status, answer = self.server.post("/v1/chat/completions",
                                              {**chat, "response_format": value})
            self.assertEqual(status, 200, answer)
        responses = {"input": [
            {"type": "message", "role": "user", "content": "x", "id": None, "status": None},
            {"type": "reasoning", "id": None, "summary": None, "content": None,
             "encrypted_content": None},
            {"type": "function_call", "name": "f", "call_id": None, "arguments": None,
             "id": None},
            {"type": "function_call_output", "call_id": None, "output": "A"}],
            "tools": [{"type": "function", "name": "f", **null(
                ("description", "parameters", "strict"))}],
            **null(("background", "conversation", "include", "instructions", "max_output_tokens",
                    "max_tool_calls", "metadata", "model", "parallel_tool_calls",
                    "previous_response_id", "prompt", "prompt_cache_key", "reasoning",
                    "service_tier", "store", "stream", "temperature", "text", "tool_choice",
                    "top_logprobs", "top_p", "truncation", "user"))}
        for more in ({}, {"text": {"format": None}}, {"text": {"format": None, "verbosity": None}},
                     {"reasoning": {"effort": None, "summary": None}},
                     {"text": {"format": {"type": "text", "schema": None}}}):
            status, answer = self.server.post("/v1/responses", {**responses, **more})
            self.assertEqual(status, 200, (more, answer))
        messages = {"max_tokens": 50, "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": None, "signature": None},
                {"type": "tool_use", "id": None, "name": "f", "input": None}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": None, "content": None, "is_error": None,
                 "cache_control": None},
                {"type": "text", "text": "A", "cache_control": None, "citations": None}]}],
            "tools": [{"name": "f", "description": None, "input_schema": None, "type": None,
                       "cache_control": None}],
            **null(("container", "context_management", "metadata", "output_config",
                    "output_format", "service_tier", "stop_sequences", "stream", "system",
                    "temperature", "thinking", "tool_choice", "top_k", "top_p", "mcp_servers"))}
        for more in ({}, {"output_config": {"format": None, "effort": None}},
                     {"thinking": {"type": None}}, {"metadata": {"user_id": None}},
                     {"tool_choice": {"type": "auto", "disable_parallel_tool_use": None}}):
            status, answer = self.server.post("/v1/messages", {**messages, **more})
            self.assertEqual(status, 200, (more, answer))


class Characters(Forms):
    """U+0000 and lone surrogates are replaced everywhere."""
    bad = ("\x00", "\ud83d", "\ude00", "a\x00b\udfffc")

    def test_everywhere(self):
        for bad in self.bad:
            shown = re.sub("[\x00\ud800-\udfff]", "\ufffd", bad)
            call = {"id": "c" + bad, "type": "function", "function": {
                "name": "f" + bad, "arguments": json.dumps({"k" + bad: "v" + bad})}}
            messages = [{"role": "system", "content": "s" + bad},
                        {"role": "user", "content": [{"type": "text", "text": "u" + bad}]},
                        {"role": "assistant", "content": bad, "reasoning_content": "r" + bad,
                         "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "c" + bad, "name": "f" + bad,
                         "content": "t" + bad},
                        {"role": "user", "content": bad + "A"}]
            tools = [{"type": "function", "function": {
                "name": "f" + bad, "description": "d" + bad,
                "parameters": {"type": "object", "properties": {"k" + bad: {"type": "string"}}}}}]
            body = {"messages": messages, "tools": tools, "user": bad, "metadata": {bad: bad},
                    "stop": ["never" + bad], "model": "m" + bad}
            status, answer = self.server.post("/apply-template", body)
            self.assertEqual(status, 200, answer)
            for text in ("s", "u", "t", "r"):
                self.assertIn(text + shown, answer["prompt"])
            self.assertIn('"k' + shown, answer["prompt"])
            status, answer = self.server.post("/v1/chat/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["message"]["content"], TEXT)
            status, answer = self.server.post("/v1/responses", {
                "instructions": "s" + bad, "input": [
                {"role": "user", "content": bad},
                {"type": "function_call", "call_id": "c" + bad, "name": "f",
                 "arguments": json.dumps({"a": bad})},
                {"type": "function_call_output", "call_id": "c" + bad, "output": bad + "A"}]})
            self.assertEqual((status, answer["output"][0]["content"][0]["text"]), (200, TEXT))
            status, answer = self.server.post("/v1/messages", {
                "max_tokens": 50, "system": "s" + bad, "metadata": {"user_id": bad}, "messages": [
                    {"role": "user", "content": bad},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": bad, "signature": bad},
                        {"type": "tool_use", "id": "c" + bad, "name": "f" + bad,
                         "input": {"k" + bad: bad}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c" + bad,
                                                  "content": bad + "A"}]}]})
            self.assertEqual((status, answer["content"][0]["text"]), (200, TEXT))
            status, answer = self.server.post("/v1/completions", {"prompt": bad + "A"})
            self.assertEqual((status, answer["choices"][0]["text"]), (200, TEXT))
            status, tokens = self.server.post("/tokenize", {"content": bad})
            status, back = self.server.post("/detokenize", tokens)
            self.assertEqual(back["content"], shown)

    def test_bytes(self):
        """Text that is not UTF-8 is repaired; invalid JSON is still an error."""
        raw = b'{"messages": [{"role": "user", "content": "x \xff \xed\xa0\x80 A"}]}'
        status, answer = self.server.post("/v1/chat/completions", raw)
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, TEXT))
        for raw in (b"\xff\xfe", b'{"messages": \xff}', b'{"a\x00b": 1}', b'{"a": "\\u00"}'):
            self.assertEqual(self.server.post("/v1/chat/completions", raw)[0], 400)


class Blame(Forms):
    """Errors caused by the request are answered with 400."""

    def test_bias_against_the_form(self):
        _, tokens = self.server.post("/tokenize", {"content": "".join(map(chr, range(32, 127)))})
        ids = {}
        for text in ("{", "-", "0", "7", "t"):
            _, found = self.server.post("/tokenize", {"content": text})
            ids[text] = str(found["tokens"][0])
        body = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 50}
        seven = {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}
        late = {"type": "json_schema", "json_schema": {"schema": {"const": 707}}}
        for stream in (False, True):
            self.refused("/v1/chat/completions",
                         {**body, "response_format": seven, "logit_bias": {ids["7"]: -100},
                          "stream": stream}, "logit_bias")
        conflict = {**body, "response_format": late, "logit_bias": {ids["0"]: -100}}
        status, answer = self.server.post("/v1/chat/completions", conflict)
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), answer)
        self.assertIn("logit_bias", answer["error"]["message"])
        events = self.server.stream("/v1/chat/completions", conflict)
        error = [e for n, e in events if n != ":" and e != "[DONE]"][-1]["error"]
        self.assertEqual(error["type"], "invalid_request_error")
        for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
            status, answer = self.server.post("/v1/chat/completions", {
                **body, "tools": TOOLS, "tool_choice": choice, "logit_bias": {ids["t"]: -100}})
            self.assertEqual(status, 400, answer)
        status, _ = self.server.post("/v1/chat/completions",
                                     {**body, "response_format": seven,
                                      "logit_bias": {ids["0"]: -100, ids["7"]: -99}})
        self.assertEqual(status, 200)

    def test_too_large(self):
        """Exceeds the limits of a template in number, depth and bytes."""
        many = [{"role": "user", "content": "A"}] * 60000
        long = [{"role": "user", "content": "word " * 400000}]
        for messages in (many, long):
            status, answer = self.server.post("/v1/chat/completions", {"messages": messages})
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
        for depth, statuses in ((300, (200,)), (1500, (400,))):
            call = {"id": "x", "type": "function", "function": {
                "name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
            status, answer = self.server.post("/v1/chat/completions", {"messages": [
                {"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
                {"role": "user", "content": "A"}]})
            self.assertIn(status, statuses, answer)
        status, answer = self.server.post("/v1/messages", {"max_tokens": 5, "messages": many})
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
        self.assertRegex(answer["error"]["message"], "^prompt is too long")
        status, answer = self.server.post("/apply-template", {"messages": many})
        self.assertIn(status, (200, 400, 413))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
