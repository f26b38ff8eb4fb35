#!/usr/bin/env python3
"""Takes the recorded answers of model families out of llama.cpp's own tests.

usage: record.py TEST_CHAT_CPP OUT.json

TEST_CHAT_CPP is tests/test-chat.cpp of llama.cpp, which the source package of llama-cpp-python
contains. Each record has the template, the answer as a model wrote it, the tools, whether the
template was told to think, and what must be read: content, reasoning, calls. Tests of unfinished
answers, of answers that go on with a given text, of schemas and of other ways to show reasoning are
left out. So are calls without tools: llama.cpp drops them, and here they are text.
"""
import json
import pathlib
import re
import sys

TEMPLATES = {"GLM-4.6", "GLM-4.7-Flash", "Kimi-K2-Thinking", "Kimi-K2-Instruct",
             "moonshotai-Kimi-K2", "MiniMax-M2", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
             "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4",
             "deepseek-ai-DeepSeek-V4-Flash-0731", "openai-gpt-oss-120b", "Qwen-QwQ-32B",
             "Qwen3-Coder", "Qwen3.5-4B"}
LEFT_OUT = {"is_partial", "messages", "json_schema", "continue_final_message", "tool_choice"}
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((.*?)\)\1"|("(?:[^"\\]|\\.)*")|([\w:]+)|(\S)',
                   re.S)
PLAIN = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def tokens_of(source):
    """Yields (kind, text): s for strings, w for words, p for punctuation."""
    for found in TOKEN.finditer(source):
        if found.group(2) is not None:
            yield "s", found.group(2)
        elif found.group(3) is not None:
            yield "s", re.sub(r"\\(.)", lambda m: PLAIN.get(m.group(1), m.group(1)),
                              found.group(3)[1:-1])
        elif found.group(4) is not None:
            yield "w", found.group(4)
        elif found.group(5) is not None:
            yield "p", found.group(5)


class Unknown(Exception):
    """An expression that is more than values and the helpers below."""


class Reader:
    def __init__(self, tokens, names):
        self.tokens, self.at, self.names = list(tokens), 0, names

    def peek(self, *wanted):
        return self.at < len(self.tokens) and self.tokens[self.at] in wanted

    def take(self, *wanted):
        if self.at == len(self.tokens) or wanted and self.tokens[self.at] not in wanted:
            raise Unknown(self.tokens[self.at:self.at + 3])
        self.at += 1
        return self.tokens[self.at - 1]

    def several(self, end):
        found = []
        while not self.peek(("p", end)):
            found.append(self.value())
            if not self.peek(("p", end)):
                self.take(("p", ","))
        self.take(("p", end))
        return found

    def value(self):
        kind, text = self.take()
        if kind == "s":
            while self.at < len(self.tokens) and self.tokens[self.at][0] == "s":
                text += self.take()[1]
            return text
        if (kind, text) == ("p", "{"):
            return self.several("}")
        if kind == "w" and self.peek(("p", "(")):
            self.take()
            return call(text, self.several(")"))
        if kind == "w" and text in self.names:
            return self.names[text]
        raise Unknown(text)

    def chain(self):
        """Reads .name(values).name(values)... up to `run`."""
        found = []
        while True:
            self.take(("p", "."))
            name = self.take()[1]
            self.take(("p", "("))
            if name == "run":
                return found
            found.append((name, self.several(")")))


# ---- the helpers of the tests --------------------------------------------------------------------

def message(content="", reasoning="", calls=()):
    return {"content": content, "reasoning": reasoning,
            "calls": [{"name": c[0], "arguments": c[1] or "{}"} for c in calls]}


def simple(content="", reasoning="", name="", arguments="", _=""):
    return message(content, reasoning, [(name, arguments)] if name else [])


HELPERS = {
    "simple_assist_msg": simple,
    "message_with_tool_calls": lambda name, arguments: message(calls=[(name, arguments)]),
    "message_with_tool_calls_and_reasoning":
        lambda name, arguments, reasoning: message("", reasoning, [(name, arguments)]),
    "message_with_reasoning_content_and_multiple_tool_calls":
        lambda reasoning, content, calls: message(content, reasoning, calls),
    "message_with_content_and_tool_call":
        lambda content, name, arguments: message(content, "", [(name, arguments)]),
    "message_with_reasoning_and_tool_call":
        lambda reasoning, name, arguments: message("", reasoning, [(name, arguments)]),
}


def call(name, given):
    if name not in HELPERS:
        raise Unknown(name)
    return HELPERS[name](*given)


def constants(source):
    names = {"true": True, "false": False, "COMMON_REASONING_FORMAT_AUTO": True,
             "COMMON_REASONING_FORMAT_DEEPSEEK": True, "COMMON_REASONING_FORMAT_NONE": False}
    pattern = r"(common_chat_tool|common_chat_msg|auto) (\w+)\s*(=|(?=\{))(.*?);\n"
    for found in re.finditer(pattern, source, re.S):
        try:
            names[found.group(2)] = Reader(tokens_of(found.group(4)), names).value()
        except (Unknown, TypeError):
            pass
    return names


# ---- records -------------------------------------------------------------------------------------

def tool(parts):
    name, description, schema = parts
    return {"name": name, "description": description,
            "parameters": json.loads(schema) if schema else {"type": "object", "properties": {}}}


def record(template, answer, chain):
    """Returns a record, or None for a test that is left out."""
    given = dict(chain)
    wants_reasoning = given.get("reasoning_format", [True])[0]
    if LEFT_OUT & set(given) or not wants_reasoning:
        return None
    wanted = {**message(), **(given["expect"][0] if "expect" in given else {})}
    for name, key in (("expect_content", "content"), ("expect_reasoning", "reasoning")):
        if name in given:
            wanted[key] = given[name][0]
    if "expect_tool_calls" in given:
        wanted["calls"] = message(calls=given["expect_tool_calls"][0])["calls"]
    tools = [tool(parts) for parts in given.get("tools", [[]])[0]]
    found = {"template": template, "answer": answer, "tools": tools, **wanted}
    if not tools and not wanted["calls"] and not wanted["content"]:
        return None
    if "enable_thinking" in given:
        found["thinking"] = given["enable_thinking"][0]
    return found


def records(source):
    names = constants(source)
    template, tester = None, None
    for found in re.finditer(r'(\w+) = peg_tester\((?:"models/templates/([^"]*)\.jinja")?|'
                             r"(\w+)(?=\.test\()", source):
        if found.group(1):
            tester, template = found.group(1), found.group(2)
        if found.group(1) or found.group(3) != tester or template not in TEMPLATES:
            continue
        end = source.index("run()", found.end()) + 5
        try:
            chain = Reader(tokens_of(source[found.end():end]), names).chain()
            one = record(template, chain[0][1][0], chain[1:])
        except (Unknown, TypeError, ValueError) as why:
            print(f"{template}: left out: {why!r}"[:120])
            continue
        if one is not None:
            yield one


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    found = list(records(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
    text = ",\n".join(json.dumps(one, ensure_ascii=False) for one in found)
    pathlib.Path(sys.argv[2]).write_text(f"[\n{text}\n]\n", encoding="utf-8")
    for template in sorted(TEMPLATES):
        print(template, sum(one["template"] == template for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
