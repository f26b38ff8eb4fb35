#!/usr/bin/env python3
"""Sends the server schemas that refer to themselves, are too deep or demand too much; tools,
messages and bodies that are too many or too deep; also tests `run --json-schema`.

usage: schema_limits_test.py PROGRAM [PART...]

Each is answered with 200 or 400, and the server is alive afterwards. It runs on a small stack.
"""
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

import scripted_model
from served import Server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "text"))
import schema_places  # noqa: E402 (found through the line above)

PROGRAM = sys.argv[1]
STACK_BYTES = 512 << 10
KILLER = '{"type":"object","propertyNames":{"$ref":"#"}}'


def with_small_stack(program, arguments):
    """Returns the command line that runs it on a small stack; a sanitizer needs more."""
    needed = subprocess.run(["nm", "-D", program], capture_output=True, text=True, check=False)
    if "__asan_init" in needed.stdout or "__tsan_init" in needed.stdout:
        return [program, *arguments]
    return ["prlimit", f"--stack={STACK_BYTES}:{resource.RLIM_INFINITY}", program, *arguments]


def chat(schema):
    return "/v1/chat/completions", '{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}],' \
        '"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":' + schema + \
        "}}}"


def responses(schema):
    return "/v1/responses", '{"max_output_tokens":2,"input":"Hi","text":{"format":{"type":' \
        '"json_schema","name":"a","schema":' + schema + "}}}"


def openai_tool(schema):
    return "/v1/chat/completions", '{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}],' \
        '"tool_choice":"required","tools":[{"type":"function","function":{"name":"a",' \
        '"parameters":' + schema + "}}]}"


def anthropic_tool(schema):
    return "/v1/messages", '{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}],' \
        '"tool_choice":{"type":"any"},"tools":[{"name":"a","input_schema":' + schema + "}]}"


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        scripted_model.make(cls.folder.name)
        script = pathlib.Path(cls.folder.name) / "small_stack"
        line = " ".join(f"'{a}'" for a in with_small_stack(PROGRAM, []))
        script.write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        cls.server = Server(str(script), cls.folder.name, "--request-limit", "40M")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def send(self, path, body):
        """Returns the status; after that the server must be alive."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        status, _, text = self.server.request("POST", path, data,
                                              {"Content-Type": "application/json"})
        self.assertIn(status, (200, 400, 413), (text[:300], data[:300]))
        self.assertIsNone(self.server.process.poll())
        return status, text.decode()

    def refused(self, path, body, *words):
        status, text = self.send(path, body)
        self.assertIn(status, (400, 413), text[:500])
        message = json.loads(text)["error"]["message"]
        for word in words:
            self.assertIn(word, message)


class Schemas(Served):
    def test_killer(self):
        for form in (chat, responses, openai_tool, anthropic_tool):
            self.assertEqual(self.send(*form(KILLER))[0], 200, form)

    def test_references(self):
        """Some places of every keyword, each through another dialect."""
        forms = (chat, responses, openai_tool, anthropic_tool)
        seen = {}
        for keyword, schema in schema_places.references():
            seen[keyword] = seen.get(keyword, 0) + 1
            if seen[keyword] % 61 == 1:
                self.send(*forms[seen[keyword] // 61 % 4](json.dumps(schema)))
        self.assertGreater(len(seen), 50)

    def test_too_much(self):
        for name, schema in schema_places.too_much():
            with self.subTest(name):
                self.send(*chat(schema))

    def test_percent(self):
        schema = '{"$ref":"#/%24defs/a~1b%7E0c","$defs":{"a/b~c":{"const":"yes"}}}'
        self.assertEqual(self.send(*chat(schema))[0], 200)
        self.refused(*chat('{"$ref":"#/%24defs/none","$defs":{"a":{}}}'), "$ref", "names nothing")

    def test_too_deep(self):
        for depth in (125, 127, 128, 129, 200, 245):
            schema = schema_places.deep(depth, '{"items":', "}")
            for form in (chat, responses):
                if depth < 128:
                    self.send(*form(schema))
                else:
                    self.refused(*form(schema), "schema", "deep")
            for form in (openai_tool, anthropic_tool):
                self.send(*form(schema))
        for depth in (300, 3000, 100000):
            for form in (chat, responses, openai_tool, anthropic_tool):
                self.refused(*form(schema_places.deep(depth, '{"items":', "}")), "within each")

    def test_run(self):
        """The program itself reports an error and does not crash."""
        cases = [(KILLER, 0, ""), (schema_places.deep(200, '{"items":', "}"), 1, "deep"),
                 ('{"pattern":"((a{1,1000}){1,1000}){1,1000}"}', 1, "too many repetitions"),
                 ('{"$ref":"#/%24defs/a","$defs":{"a":{"const":1}}}', 0, "")]
        for schema, status, word in cases:
            file = pathlib.Path(self.folder.name) / "schema.json"
            file.write_text(schema, encoding="utf-8")
            done = subprocess.run(
                with_small_stack(PROGRAM, ["run", self.folder.name, "-p", "Hi", "-n", "8",
                                           "--no-heat", "--json-schema", str(file)]),
                capture_output=True, text=True, timeout=1800, check=False)
            self.assertEqual(done.returncode != 0, status != 0, done.stderr)
            self.assertIn(word, done.stderr)


class Bodies(Served):
    def test_deep_bodies(self):
        deep = schema_places.deep(100000, "[", "]", "1")
        user = '{"role":"user","content":"Hi"}'
        for field in ("messages", "tools", "stop", "logit_bias", "model", "unknown", "metadata"):
            self.refused("/v1/chat/completions", f'{{"messages":[{user}],"{field}":{deep}}}')
        for content in (deep, f'[{{"type":"text","text":{deep}}}]'):
            self.refused("/v1/chat/completions",
                         f'{{"messages":[{{"role":"user","content":{content}}}]}}')
            self.refused("/v1/responses", f'{{"input":[{{"role":"user","content":{content}}}]}}')
            self.refused("/v1/messages", '{"max_tokens":2,"messages":[{"role":"user","content":'
                         f"{content}}}]}}")

    def test_deep_arguments(self):
        """Calls attributed to the assistant, as text of the maximum depth."""
        for depth in (100, 127, 128, 200, 252, 300, 5000):
            call = {"id": "c", "type": "function", "function": {
                "name": "a", "arguments": schema_places.deep(depth, '{"a":', "}", "1")}}
            self.send("/v1/chat/completions", {"max_tokens": 2, "messages": [
                {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "x"}]})

    def test_many_messages(self):
        message = '{"role":"user","content":"a"}'
        body = '{"max_tokens":2,"messages":[' + ",".join([message] * 500000) + "]}"
        self.refused("/v1/chat/completions", body)

    def test_many_tools(self):
        """More tools than calls can be enforced for. Where nothing is forced, only the template
        decides."""
        tool = '{"type":"function","function":{"name":"t%d","parameters":' + KILLER + "}}"
        for n, choice, is_refused in ((300, "required", False), (2000, "required", True),
                                      (100000, "auto", False), (100000, "required", True)):
            body = '{"max_tokens":2,"messages":[{"role":"user","content":"Hi"}],"tool_choice":' \
                f'"{choice}","tools":[' + ",".join(tool % i for i in range(n)) + "]}"
            (self.refused if is_refused else self.send)("/v1/chat/completions", body)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
