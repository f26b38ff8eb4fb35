#!/usr/bin/env python3
"""Tests tools with 'strict'.

usage: strict_test.py PROGRAM [PART...]
"""
import copy
import json
import sys
import unittest

import scripted_model
from forms_test import ARGUMENTS, SCHEMA, Forms
from served import Server


class Strict(Forms):
    """Where calls are constrained to schemas, a strict tool is too, or the request is refused."""
    PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses",
             "messages": "/v1/messages"}
    UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}

    def post(self, dialect, parameters, strict, **how):
        """Returns (status, JSON); get_time has these parameters and get_weather its own."""
        body = copy.deepcopy(self.body(dialect, "A", **how))
        for tool in body["tools"]:
            function = tool["function"] if dialect == "chat" else tool
            if function["name"] == "get_time":
                function["input_schema" if dialect == "messages" else "parameters"] = parameters
                if strict is not None:
                    function["strict"] = strict
        return self.server.post(self.PATHS[dialect], body)

    @staticmethod
    def tool(name, parameters, strict=True):
        return {"type": "function", "function": {"name": name, "parameters": parameters,
                                                 "strict": strict}}

    def chat(self, tools, server=None, **more):
        """Returns (status, JSON)."""
        return (server or self.server).post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "A"}], "temperature": 0, "max_tokens": 5,
            "tools": tools, **more})

    @classmethod
    def dated(cls, n_tools, n_each):
        return [cls.tool(f"t{i}", {"type": "object", "properties": {
            f"p{k}": {"type": "string", "format": "date-time"} for k in range(n_each)}})
            for i in range(n_tools)]

    @classmethod
    def nested(cls, n_tools):
        """Each has about 200 places for values."""
        return [cls.tool(f"t{i}", {"type": "object", "properties": {
            f"p{k}": {"type": "object", "properties": {f"q{j}": {"const": j} for j in range(20)}}
            for k in range(10)}}) for i in range(n_tools)]

    def test_auto(self):
        """Optional calls are not constrained, so no schema is compiled or refused."""
        number = {"type": "number", "multipleOf": 0.01}
        for parameters in (self.UNIQUE, {"type": "object", "properties": {"a": number}},
                           {"type": "object", "nullable": True}, {"type": "string"}, 5,
                           {"type": "object", "properties": {"a": {"pattern": "\\bword\\b"}}}):
            for dialect in self.dialects:
                status, answer = self.post(dialect, parameters, True, n_tokens=5)
                self.assertEqual(status, 200, (dialect, parameters, answer))
        for tools in (self.dated(10, 20), self.nested(32),
                      [self.tool("x" * 300, {}, False), self.tool("f", self.UNIQUE)]):
            status, answer = self.chat(tools)
            self.assertEqual(status, 200, answer)

    def test_annotations(self):
        """Keywords that only describe are no reason to refuse."""
        for more in ({"x-order": 1}, {"x-": [1]}, {"example": "b"}, {"markdownDescription": "b"},
                     {"enumDescriptions": ["b"]}, {"markdownEnumDescriptions": ["b"]},
                     {"enumNames": ["b"]}, {"discriminator": {"propertyName": "k"}},
                     {"externalDocs": {"url": "b"}}, {"xml": {"name": "b"}},
                     {"deprecationMessage": "b"}, {"errorMessage": "b"},
                     {"patternErrorMessage": "b"}, {"defaultSnippets": []}):
            tool = self.tool("f", {"type": "object", "required": ["a"], **more, "properties": {
                "a": {"enum": ["b"], **more}}, "additionalProperties": False})
            status, answer = self.chat([tool], tool_choice="required", max_tokens=100)
            self.assertEqual(status, 200, (more, answer))
            self.assertEqual(json.loads(self.whole_chat(answer)[1][0][1]), {"a": "b"})
        for name in ("nullable", "X-order", "xorder", "x_order", "exampl", "discriminators"):
            status, answer = self.chat([self.tool("f", {"type": "object", name: True})],
                                       tool_choice="required")
            self.assertEqual(status, 400, answer)
            self.assertIn(f"'f': '{name}' at #", answer["error"]["message"])

    def test_many(self):
        """Equal formats are compiled once, however many tools have them."""
        with Server(sys.argv[1], scripted_model.make(self.folder.name), "--request-memory",
                    "8M") as server:
            for how in ({"tool_choice": "required"}, {"json_schema": SCHEMA}):
                status, answer = self.chat(self.dated(10, 20), server, **how)
                self.assertEqual(status, 200, answer)

    def test_limits(self):
        """Exceeding a limit is reported for the tools' schemas, and they count together."""
        wide = [self.tool(f"t{i}", {"type": "object", "properties": {
            "a": {"type": "string", "pattern": f"^([a-z]{{0,60}}{i}){{0,60}}$"}}})
            for i in range(40)]
        for tools, words in ((self.nested(32), ("4096 distinct places", "together")),
                             (wide, ("too much work", "together"))):
            for how in ({"tool_choice": "required"}, {"json_schema": SCHEMA}):
                status, answer = self.chat(tools, **how)
                self.assertEqual(status, 400, answer)
                for word in ("'tools': the schema of tool 't", "'strict'", *words):
                    self.assertIn(word, answer["error"]["message"])
                self.assertEqual(answer["error"]["param"], "tools")
            self.assertEqual(self.chat(tools)[0], 200)
            loose = [self.tool(t["function"]["name"], t["function"]["parameters"], False)
                     for t in tools]
            self.assertEqual(self.chat(loose, tool_choice="required")[0], 200)
        with Server(sys.argv[1], scripted_model.make(self.folder.name), "--request-memory",
                    "8M") as server:
            status, answer = self.chat(wide, server, tool_choice="required")
            self.assertEqual((status, answer["error"]["param"]), (413, "tools"), answer)
            self.assertIn("schema of 'tools'", answer["error"]["message"])
            self.assertEqual(self.chat(wide, server)[0], 200)
            status, answer = self.chat(None, server, functions=[t["function"] for t in wide],
                                       json_schema=SCHEMA)
            self.assertEqual((status, answer["error"]["param"]), (413, "functions"), answer)
            self.assertIn("schema of 'functions'", answer["error"]["message"])

    def test_same_name(self):
        """Only the strict tool is strict, not another one with its name."""
        loose, strict = self.tool("f", self.UNIQUE, False), self.tool("f", ARGUMENTS)
        other = {"type": "function", "function": {"name": "g"}}
        some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "f"}}]}}
        for tools in ([loose, strict], [strict, loose], [other, loose, strict]):
            for choice in ("required", {"type": "function", "function": {"name": "f"}}, some):
                status, answer = self.chat(tools, tool_choice=choice)
                self.assertEqual(status, 200, answer)
        strict = self.tool("f", self.UNIQUE)
        for tools in ([self.tool("f", ARGUMENTS, False), strict], [other, strict]):
            self.assertEqual(self.chat(tools, tool_choice=some)[0], 400)

    def test_refused(self):
        """Wherever a call is constrained by it, the error names the tool and the keyword."""
        deep = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"],
                                                     "properties": {"a": {"$ref": "#/$defs/a"}}}}}
        for parameters, word in ((self.UNIQUE, "'uniqueItems' at #/properties/a"),
                                 ({"type": "object", "not": {}}, "'not' at #"),
                                 ({"type": "string"}, "no object satisfies"),
                                 (deep, "no object satisfies")):
            for dialect in self.dialects:
                for how in ({"choice": "required"}, {"choice": "get_time"}, {"schema": SCHEMA}):
                    status, answer = self.post(dialect, parameters, True, **how)
                    self.assertEqual(status, 400, (dialect, how, answer))
                    for part in ("'tools'", "'get_time'", word, "'strict'"):
                        self.assertIn(part, answer["error"]["message"])
                    if dialect != "messages":
                        self.assertEqual(answer["error"]["param"], "tools")

    def test_not_asked(self):
        """Without 'strict', with an enforceable schema, or where the tool cannot be called."""
        for dialect in self.dialects:
            for parameters, strict, how in (
                    (self.UNIQUE, None, {}), (self.UNIQUE, False, {"choice": "required"}),
                    (self.UNIQUE, False, {"choice": "get_time"}),
                    (ARGUMENTS, True, {"choice": "get_time"}), (ARGUMENTS, True, {}),
                    (self.UNIQUE, True, {"choice": "get_weather"}),
                    (self.UNIQUE, True, {"choice": "none"})):
                status, answer = self.post(dialect, parameters, strict, n_tokens=5, **how)
                self.assertEqual(status, 200, (dialect, strict, how, answer))

    def test_no_boolean(self):
        for dialect in self.dialects:
            status, answer = self.post(dialect, ARGUMENTS, "yes")
            self.assertEqual(status, 400, answer)
            self.assertIn("strict' must be true or false", answer["error"]["message"])
            self.assertIn("tools[1]", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
