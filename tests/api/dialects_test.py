#!/usr/bin/env python3
"""Tests the chat formats of model families through all three APIs and `flashmoe run`: a scripted
model for each, with a small template of its own that shows the format and what it was given.

usage: dialects_test.py PROGRAM [PART...]
"""
import json
import pathlib
import subprocess
import sys
import unittest

import scripted_model
from forms_test import Forms

# The prompt ends with a character that chooses the script: the last one of the last message, or of
# what the template was given if that is "V".
TEMPLATE = (
    "{#- MARKERS -#}"
    "{%- set given = (reasoning_effort | default('-')) ~ (enable_thinking | default('-')) ~"
    " (thinking | default('-')) %}"
    "{%- for m in messages %}{{- '[' ~ m.role ~ '|' ~ m.content }}"
    "{%- if m.reasoning_content %}{{- '|r:' ~ m.reasoning_content }}{%- endif %}"
    "{%- if m.thinking %}{{- '|t:' ~ m.thinking }}{%- endif %}"
    "{%- for c in m.tool_calls or [] %}"
    "{{- '|' ~ c.id ~ ':' ~ c.function.name ~ (c.function.arguments | tojson) }}{%- endfor %}"
    "{%- if m.tool_call_id %}{{- '|for ' ~ m.tool_call_id }}{%- endif %}{{- ']' }}{%- endfor %}"
    "{%- set last = messages[-1] %}"
    "{%- if last.role == 'tool' %}{{- '2' if 'EXPECTED' in last.tool_call_id else '3' }}"
    "{%- elif last.content[-1:] != 'V' %}{{- last.content[-1:] }}"
    "{%- else %}{{- given ~ ('2' if given == 'highTrueTrue' else '3' if given == 'lowFalseFalse'"
    " else '4' if given == '-TrueTrue' else '5' if given == '-FalseFalse'"
    " else '6' if given == '---' else '7' if given == 'noneFalseFalse' else '8') }}{%- endif %}")
VIEWS = {"2": ["effort high"], "3": ["effort low"], "4": ["on"], "5": ["off"],
         "6": ["by default"], "7": ["effort none"], "8": ["something else"]}
ONLY = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"],
        "additionalProperties": False}
ENDS = {"chat": ("stop", "tool_calls"), "responses": ("completed", "completed"),
        "messages": ("end_turn", "tool_use")}
CALL = [("get_weather", {"city": "Paris", "days": 3})]


def views(wrap=lambda text: text):
    return {key: [wrap(script[0])] for key, script in VIEWS.items()}


class Dialect(Forms):
    """What every dialect must do. A subclass has its scripts: A reasons and answers, T calls. What
    follows the token that ends a turn is not computed."""
    markers, scripts, special, expected = "", {}, (), "call_b"
    endless = "<think>Round"
    stops = ("<|observation|>", "[e~[", "<｜end▁of▁sentence｜>", "<|call|>")

    @classmethod
    def setUpClass(cls):
        if cls is Dialect:
            raise unittest.SkipTest("the base of others")
        template = TEMPLATE.replace("MARKERS", cls.markers).replace("EXPECTED", cls.expected)
        cls.scripts = {**cls.scripts, "E": [cls.endless, " and round, ", None]}
        make = scripted_model.make
        scripted_model.make = lambda folder: make(folder, scripts=cls.scripts, template=template,
                                                  special=cls.special)
        try:
            super().setUpClass()
        finally:
            scripted_model.make = make

    def test_answers(self):
        for dialect, _, ask in self.each():
            text, calls, end, _ = ask("A")
            self.assertEqual((text, calls, end), ("Forty-two.", [], ENDS[dialect][0]))
        message = self.server.ask("A")["choices"][0]["message"] # also without tools
        self.assertEqual((message["content"], message["reasoning_content"]), ("Forty-two.", "Hm"))

    def test_calls(self):
        for dialect, _, ask in self.each():
            text, calls, end, _ = ask("T")
            self.assertEqual((text, [(name, json.loads(a)) for name, a in calls], end),
                             ("I look.", CALL, ENDS[dialect][1]))

    def ask_forced(self, dialect, choice, stream):
        body = self.body(dialect, "A", choice=choice, n_tokens=300, stream=stream)
        tool = {"name": "get_weather"}
        if dialect == "chat":
            body["tools"] = [{"type": "function", "function": {**tool, "parameters": ONLY}}]
        elif dialect == "responses":
            body["tools"] = [{"type": "function", **tool, "parameters": ONLY}]
        else:
            body["tools"] = [{**tool, "input_schema": ONLY}]
        path = {"chat": "/v1/chat/completions", "responses": "/v1/responses",
                "messages": "/v1/messages"}[dialect]
        if stream:
            events = [(n, e) for n, e in self.server.stream(path, body) if n != ":"]
            return getattr(self, "stream_" + dialect)(events)
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, answer)
        return getattr(self, "whole_" + dialect)(answer)

    def test_forced(self):
        """The grammar writes the call; the model has never seen the format."""
        for dialect in self.dialects:
            for choice in ("required", "get_weather"):
                for stream in (False, True):
                    text, calls, end, _ = self.ask_forced(dialect, choice, stream)
                    self.assertEqual((text, [(name, json.loads(a)) for name, a in calls], end),
                                     ("", [("get_weather", {"city": "Oslo"})], ENDS[dialect][1]))
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": ONLY}}
        message = self.server.ask("A", tools=[tool], tool_choice="required",
                                  max_tokens=300)["choices"][0]["message"]
        self.assertEqual(message["content"], None)
        self.assertTrue(message["tool_calls"][0]["id"].startswith("call_"))

    def test_cut(self):
        """A call that is cut off is sent once: as a call if it has begun, otherwise as text."""
        whole, cut = "".join(self.scripts["T"]), {"chat": "length", "responses": "incomplete",
                                                  "messages": "max_tokens"}
        for dialect, stream, ask in self.each():
            for n in range(1, len(self.scripts["T"])):
                text, calls, end, _ = ask("T", n_tokens=n)
                self.assertLessEqual(len(calls), 1, (n, text, calls))
                self.assertIn(text, whole)
                self.assertIn(end, (cut[dialect], ENDS[dialect][1]))
                if calls:
                    self.assertEqual((text, calls[0][0]), ("I look.", "get_weather"))
                if calls and (stream or dialect != "messages"): # a whole one needs an object
                    self.assertTrue('{"city": "Paris", "days": 3}'.startswith(calls[0][1]), calls)

    def test_endless(self):
        """Reasoning that never ends is reasoning, and the answer is empty."""
        for dialect, _, ask in self.each():
            self.assertEqual(ask("E", n_tokens=9)[:2], ("", []))
        message = self.server.ask("E", max_tokens=9)["choices"][0]["message"]
        self.assertTrue(message["reasoning_content"].startswith("Round and round,  and round, "))
        self.assertFalse(message["content"])

    def test_odd_names(self):
        """A tool whose name holds markup is called by that name, or refused."""
        n_called = 0
        for name in ("a<b", "<|call|>", "a b", 'a"b', "a>b", "a:0", "functions.f", "a\u00e9",
                     "a=b", "user", "</invoke>", "<\uff5ctool\u2581sep\uff5c>", "```json",
                     "x\\y"):
            tool = {"type": "function", "function": {"name": name, "parameters": ONLY}}
            status, answer = self.server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "A"}], "tools": [tool],
                "tool_choice": "required", "max_tokens": 300, "temperature": 0})
            if status != 200:
                self.assertEqual(status, 400, answer)
                self.assertIn(name, answer["error"]["message"])
                continue
            n_called += 1
            self.assertEqual([(c["function"]["name"], json.loads(c["function"]["arguments"]))
                              for c in answer["choices"][0]["message"].get("tool_calls", [])],
                             [(name, {"city": "Oslo"})], answer)
        self.assertGreater(n_called, 4)

    def run_program(self, *args):
        return subprocess.run([sys.argv[1], "run", self.folder.name, "--greedy", "--no-heat",
                               *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8", check=True)

    @classmethod
    def shown_call(cls):
        """Returns what `run` prints of T: a call is text, as the model wrote it."""
        script = cls.scripts["T"]
        ends = [i for i, text in enumerate(script) if text in cls.stops]
        return "".join(script[:ends[0]] if ends else script)

    def test_run(self):
        """The program shows the answer alone, and reasoning beside it."""
        answer = json.loads(self.run_program("-p", "A", "--json").stdout)
        self.assertEqual((answer["text"], answer["reasoning"]), ("Forty-two.", "Hm"))
        shown = self.run_program("-p", "A")
        self.assertEqual(shown.stdout, "Forty-two.\n")
        self.assertTrue(shown.stderr.startswith("Hm\n") or "\nHm\n" in shown.stderr, shown.stderr)
        shown = self.run_program("-p", "A", "-q")
        self.assertEqual((shown.stdout, shown.stderr), ("Forty-two.\n", ""))
        self.assertEqual(self.run_program("-p", "T", "-q").stdout, self.shown_call() + "\n")

    def view(self, dialect, **fields):
        body = {"model": "m", "temperature": 0, "max_tokens": 20, **fields}
        if dialect == "chat":
            body["messages"] = [{"role": "user", "content": "V"}]
            answer = self.server.post("/v1/chat/completions", body)[1]
            return answer["choices"][0]["message"]["content"]
        if dialect == "messages":
            body["messages"] = [{"role": "user", "content": "V"}]
            return self.whole_messages(self.server.post("/v1/messages", body)[1])[0]
        body["input"] = "V"
        return self.whole_responses(self.server.post("/v1/responses", body)[1])[0]

    def test_effort(self):
        self.assertEqual(self.view("chat"), "by default")
        self.assertEqual(self.view("chat", reasoning_effort="high"), "effort high")
        self.assertEqual(self.view("chat", reasoning_effort="\u00e9" * 20), "something else")
        self.assertEqual(self.view("responses", reasoning={"effort": "high"}), "effort high")
        self.assertEqual(self.view("messages", output_config={"effort": "high"}), "effort high")
        self.assertEqual(self.view("messages", thinking={"type": "enabled"}), "on")
        self.assertEqual(self.view("messages", thinking={"type": "disabled"}), "off")
        self.assertEqual(self.view("messages", thinking={"type": "adaptive"}), "by default")
        for dialect, fields in (("chat", {"reasoning_effort": "none"}),
                                ("responses", {"reasoning": {"effort": "none"}})):
            self.assertEqual(self.view(dialect, **fields), "effort none")
        for name in ("enable_thinking", "thinking"): # either name sets both
            for dialect in self.dialects:
                self.assertEqual(self.view(dialect, chat_template_kwargs={name: True}), "on")
                self.assertEqual(self.view(dialect, chat_template_kwargs={name: False}), "off")
        self.assertEqual(self.view("chat", reasoning_effort="high", chat_template_kwargs={
            "enable_thinking": False}), "something else")

    HISTORY = [("get_weather", {"city": "Rome"}, "call_a", "warm"),
               ("get_time", {}, "call_b", "late")]

    def rendered(self, messages):
        status, answer = self.server.post("/apply-template", {"messages": messages})
        self.assertEqual(status, 200, answer)
        return answer["prompt"]

    def history(self):
        calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                 for n, a, i, _ in self.HISTORY]
        return [{"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "reasoning_content": "Why",
                 "tool_calls": calls},
                *({"role": "tool", "tool_call_id": i, "content": r}
                  for _, _, i, r in self.HISTORY)]

    def test_history(self):
        self.assertIn('[assistant||r:Why|call_a:get_weather{"city": "Rome"}|call_b:get_time{}]'
                      "[tool|warm|for call_a][tool|late|for call_b]",
                      self.rendered(self.history()))

    def test_results(self):
        """The id of a result reaches the template from every API."""
        chat = {"messages": self.history(), "max_tokens": 20, "temperature": 0}
        answer = self.server.post("/v1/chat/completions", chat)[1]
        self.assertEqual(self.whole_chat(answer)[0], "effort high")
        uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for n, a, i, _ in self.HISTORY]
        results = [{"type": "tool_result", "tool_use_id": i, "content": r}
                   for _, _, i, r in self.HISTORY]
        answer = self.server.post("/v1/messages", {**chat, "messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "content": uses},
            {"role": "user", "content": results}]})[1]
        self.assertEqual(self.whole_messages(answer)[0], "effort high")
        items = [{"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)}
                 for n, a, i, _ in self.HISTORY]
        items += [{"type": "function_call_output", "call_id": i, "output": r}
                  for _, _, i, r in self.HISTORY]
        answer = self.server.post("/v1/responses", {
            "input": [{"role": "user", "content": "x"}, *items], "temperature": 0})[1]
        self.assertEqual(self.whole_responses(answer)[0], "effort high")


class Glm(Dialect):
    markers = "<tool_call><arg_key>"
    scripts = {**views(), "A": ["\n<think>", "Hm", "</think>\n", "Forty", "-two."],
               "T": ["I look.", "\n<tool_call>get_", "weather\n<arg_key>city</arg_key>\n",
                     "<arg_value>Paris</arg_", "value>\n<arg_key>days</arg_key>",
                     "\n<arg_value>3</arg_value>\n",
                     "</tool_call>", "<|observation|>", " and more"]}
    special = ["<|observation|>", "<|user|>"]


class Minimax(Dialect):
    markers = "<minimax:tool_call>"
    scripts = {**views(), "A": ["<think>\n", "Hm", "\n</think>\n\n", "Forty", "-two."],
               "T": ["I look.", "\n<minimax:tool_call>\n<invoke name=", '"get_weather">\n',
                     '<parameter name="city">Paris</parameter>\n',
                     '<parameter name="days">3</parameter>\n',
                     "</invoke>\n", "</minimax:tool_call>", "[e~[", " and more"]}
    special = ["[e~["]

    def test_opened(self):
        """The prompt opens the reasoning."""
        with_think = scripted_model.TEMPLATE.replace("messages[-1].content[-1:] }}",
                                                     "messages[-1].content[-1:] + '<think>\\n' }}")
        self.assertNotEqual(with_think, scripted_model.TEMPLATE)
        path = self.folder.name + "/opened"
        scripted_model.make(path, scripts=self.scripts, special=self.special,
                            template="{#- <minimax:tool_call> -#}" + with_think)
        from served import Server
        with Server(sys.argv[1], path) as server:
            message = server.ask("A")["choices"][0]["message"]
            self.assertEqual((message["content"], message["reasoning_content"]),
                             ("Forty-two.", "Hm"))


class DsmlFunctions(Dialect):
    block = "function_calls"
    markers = f"｜DSML｜ {block}>"
    special = ["<｜end▁of▁sentence｜>"]

    @classmethod
    def setUpClass(cls):
        cls.scripts = {**views(lambda text: f"</think>{text}"),
                       "A": ["<think>", "Hm", "</think>", "Forty", "-two."],
                       "T": ["I look.", f"\n\n<｜DSML｜{cls.block}>\n<｜DSML｜invoke name=",
                             '"get_weather">\n<｜DSML｜parameter name="city" string="true">Par',
                             'is</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">',
                             "3</｜DSML｜parameter>\n</｜DSML｜invoke>\n", f"</｜DSML｜{cls.block}>",
                             "<｜end▁of▁sentence｜>", " and more"]}
        super().setUpClass()


class DsmlTools(DsmlFunctions):
    block = "tool_calls"
    markers = f"｜DSML｜ {block}>"


class Deepseek(Dialect):
    markers = "<｜tool▁calls▁begin｜>"
    scripts = {**views(), "A": ["<think>", "Hm", "</think>", "Forty", "-two."],
               "T": ["I look.", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "get_weather",
                     "<｜tool▁sep｜>", '{"city": "Par', 'is", "days": 3}', "<｜tool▁call▁end｜>",
                     "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>", " and more"]}
    special = ["<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
               "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"]


class DeepseekV3(Dialect):
    markers = Deepseek.markers + "```json"
    scripts = {**Deepseek.scripts,
               "T": ["I look.", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function",
                     "<｜tool▁sep｜>", "get_weather\n```js", 'on\n{"city": "Par',
                     'is", "days": 3}\n`', "``", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
                     "<｜end▁of▁sentence｜>", " and more"]}
    special = Deepseek.special

    def test_history(self):
        """Its template writes only calls of messages whose content is null."""
        self.assertIn('[assistant|None|r:Why|call_a:get_weather{"city": "Rome"}|call_b:get_time{}]'
                      "[tool|warm|for call_a][tool|late|for call_b]",
                      self.rendered(self.history()))
        messages = self.history()
        messages[1]["content"] = "I look."
        self.assertIn('[assistant|I look.|r:Why][assistant|None|call_a:get_weather',
                      self.rendered(messages))


class Spelled(Forms):
    """A template that adds the arguments of a call to a text gets them as text."""

    @classmethod
    def setUpClass(cls):
        make = scripted_model.make
        scripted_model.make = lambda folder: make(folder, template=TEMPLATE.replace(
            "MARKERS", Deepseek.markers).replace(
                "(c.function.arguments | tojson)", "('=' + c.function.arguments)"))
        try:
            super().setUpClass()
        finally:
            scripted_model.make = make

    def test_arguments(self):
        call = {"id": "a", "type": "function",
                "function": {"name": "f", "arguments": '{"x": [1, "y"]}'}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
                    {"role": "user", "content": "A"}]
        status, answer = self.server.post("/apply-template", {"messages": messages})
        self.assertEqual(status, 200, answer)
        self.assertIn('|a:f={"x": [1, "y"]}]', answer["prompt"])
        status, answer = self.server.post("/v1/chat/completions", {"messages": messages})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]),
                         (200, "Hello there, world."))


class Kimi(Dialect):
    markers = "<|tool_calls_section_begin|>"
    expected = "functions.get_time:1"
    scripts = {**views(), "A": ["<think>", "Hm", "</think>", "Forty", "-two."],
               "T": ["I look.", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
                     "functions.get_wea", "ther:0", "<|tool_call_argument_begin|>", '{"city": "Par',
                     'is", "days": 3}', "<|tool_call_end|>", "<|tool_calls_section_end|>"]}
    special = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>",
               "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"]

    def test_ids(self):
        """The model's id goes to the client and back."""
        tools = [{"type": "function", "function": {"name": "get_weather"}}]
        message = self.server.ask("T", tools=tools)["choices"][0]["message"]
        call = message["tool_calls"][0]
        self.assertEqual(call["id"], "functions.get_weather:0")
        text = self.rendered([{"role": "user", "content": "x"}, message, {
            "role": "tool", "tool_call_id": call["id"], "content": "warm"}])
        self.assertIn('[assistant|I look.|functions.get_weather:0:get_weather{"city": "Paris", '
                      '"days": 3}][tool|warm|for functions.get_weather:0]', text)

    def test_functions(self):
        """Calls of the older form have no ids: a result belongs to the call before it."""
        def turn(name, result):
            return [{"role": "assistant", "content": "", "function_call": {
                "name": name, "arguments": "{}"}},
                    {"role": "function", "name": name, "content": result}]
        text = self.rendered([{"role": "user", "content": "x"}, *turn("get_weather", "warm"),
                              *turn("get_time", "late")])
        self.assertIn("[assistant||functions.get_weather:0:get_weather{}]"
                      "[tool|warm|for functions.get_weather:0]"
                      "[assistant||functions.get_time:1:get_time{}]"
                      "[tool|late|for functions.get_time:1]", text)

    def test_history(self):
        again = [*self.history(), *self.history()]
        text = self.rendered(again)
        for i in (0, 2):
            self.assertIn(f'|functions.get_weather:{i}:get_weather{{"city": "Rome"}}'
                          f"|functions.get_time:{i + 1}:get_time{{}}]"
                          f"[tool|warm|for functions.get_weather:{i}]"
                          f"[tool|late|for functions.get_time:{i + 1}]", text)


class Harmony(Dialect):
    markers = "<|channel|><|message|>"
    endless = "<|channel|>analysis<|message|>Round"
    scripts = {**views(lambda text: "<|channel|>final<|message|>" + text),
               "A": ["<|channel|>analysis<|message|>", "Hm", "<|end|>",
                     "<|start|>assistant<|channel|>final<|message|>", "Forty", "-two."],
               "T": ["<|channel|>commentary<|message|>I look.<|end|>", "<|start|>assistant to=",
                     "functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
                     '{"city": "Par', 'is", "days": 3}', "<|call|>",
                     "<|start|>assistant<|channel|>final<|message|> and more"],
               "O": ["<|channel|>analysis<|message|>So {}", "<|end|><|start|>assistant",
                     "<|channel|>final<|message|>", "Seven ", '{"a": ', "7}"],
               "Q": ["<|channel|>commentary<|message|>I say ",
                     "<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>",
                     '{"a":', " 7}"]}
    for_schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"],
                  "additionalProperties": False}
    special = ["<|call|>", "<|return|>"]

    def test_effort(self):
        """Its template knows low, medium and high, and no switch."""
        self.assertEqual(self.view("chat", reasoning_effort="xhigh"), "effort high")
        self.assertEqual(self.view("chat", reasoning_effort="minimal"), "effort low")
        self.assertEqual(self.view("responses", reasoning={"effort": "none"}), "effort low")
        self.assertEqual(self.view("messages", thinking={"type": "disabled"}), "effort low")
        self.assertEqual(self.view("messages", thinking={"type": "enabled"}), "on")

    def test_history(self):
        """One call per message, each before its result; reasoning in 'thinking'."""
        self.assertIn('[assistant||r:Why|t:Why|call_a:get_weather{"city": "Rome"}]'
                      "[tool|warm|for call_a][assistant||call_b:get_time{}][tool|late|for call_b]",
                      self.rendered(self.history()))
        messages = self.history()
        messages[2], messages[3] = messages[3], messages[2] # results in another order, and one more
        messages.append({"role": "tool", "tool_call_id": "call_c", "content": "odd"})
        self.assertIn("][tool|warm|for call_a][assistant||call_b:get_time{}][tool|late|for call_b]"
                      "[tool|odd|for call_c]", self.rendered(messages))
        for message in messages: # ids that say nothing: in order
            message.pop("tool_call_id", None)
        self.assertRegex(self.rendered(messages),
                         r"\[tool\|late\]\[assistant.*\[tool\|warm\]\[tool")
        messages = self.history()
        messages[1]["content"] = "I look."
        self.assertIn("[assistant||r:Why|t:Why\n\nI look.|call_a:", self.rendered(messages))

    def test_many(self):
        """Thousands of calls in one message take no time."""
        calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                 for i in range(3000)]
        text = self.rendered([{"role": "user", "content": "x"},
                              {"role": "assistant", "tool_calls": calls}, *(
                                  {"role": "tool", "tool_call_id": f"c{i}", "content": str(i)}
                                  for i in reversed(range(3000)))])
        self.assertIn("[assistant||c7:f{}][tool|7|for c7][assistant||c8:f{}][tool|8|for c8]", text)

    def test_stops(self):
        """Stop strings look at text, not at the frames."""
        for text, stop in (("Forty-two.", ["final", "analysis", "assistant"]), ("Fort", ["y-t"])):
            choice = self.server.ask("A", stop=stop)["choices"][0]
            self.assertEqual(choice["message"]["content"], text)

    def reasoning(self, dialect, text, schema):
        """Returns the reasoning and the text of a whole answer."""
        body = self.body(dialect, text, schema=schema, n_tokens=60)
        if dialect == "chat":
            message = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]
            return message["reasoning_content"], message["content"]
        if dialect == "messages":
            answer = self.server.post("/v1/messages", body)[1]
            return ("".join(b["thinking"] for b in answer["content"] if b["type"] == "thinking"),
                    self.whole_messages(answer)[0])
        answer = self.server.post("/v1/responses", body)[1]
        return ("".join(p["text"] for i in answer["output"] if i["type"] == "reasoning"
                        for p in i["content"]), self.whole_responses(answer)[0])

    def test_schema(self):
        """A schema constrains the final message, not the frames around it."""
        message = self.server.ask("O", max_tokens=60)["choices"][0]["message"]
        self.assertEqual(message["content"], 'Seven {"a": 7}')
        message = self.server.ask("Q", max_tokens=60)["choices"][0]["message"]
        self.assertEqual(message["content"], 'I say {"a": 7}')
        for dialect, _, ask in self.each():
            for text in "OQ":
                self.assertEqual(json.loads(ask(text, schema=self.for_schema, n_tokens=600)[0]),
                                 {"a": 7})
            self.assertEqual(self.reasoning(dialect, "O", self.for_schema)[0], "So {}")
            # Text before the final message is not part of the value.
            self.assertEqual(self.reasoning(dialect, "Q", self.for_schema)[0], "I say ")
        path = pathlib.Path(self.folder.name) / "schema"
        path.write_text(json.dumps(self.for_schema))
        answer = json.loads(self.run_program("-p", "O", "--json", "-n", "600", "--json-schema",
                                             path).stdout)
        self.assertEqual((json.loads(answer["text"]), answer["reasoning"]), ({"a": 7}, "So {}"))

    @classmethod
    def shown_call(cls):
        return 'I look.{"city": "Paris", "days": 3}'


class HarmonySpecial(Forms):
    """With the special tokens of Harmony, their characters in ordinary text are text."""
    special = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
    scripts = {"A": ["<|channel|>", "final", "<|message|>", "See <|end|> and <|channel|>analysis",
                     "<|return|>"]}

    @classmethod
    def setUpClass(cls):
        make = scripted_model.make
        scripted_model.make = lambda folder: make(
            folder, scripts=cls.scripts, special=cls.special,
            template=TEMPLATE.replace("MARKERS", Harmony.markers))
        try:
            super().setUpClass()
        finally:
            scripted_model.make = make

    def test_text(self):
        for _, _, ask in self.each():
            self.assertEqual(ask("A")[0], "See <|end|> and <|channel|>analysis")
        for stop, text in (("d <|ch", "See <|end|> an"), ("analysis<|return|>", None)):
            content = self.server.ask("A", stop=stop)["choices"][0]["message"]["content"]
            self.assertEqual(content, text or "See <|end|> and <|channel|>analysis")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
