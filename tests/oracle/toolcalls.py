#!/usr/bin/env python3
"""Compares tool calls with two independent programs: sglang's parsers and the models' templates.

usage: toolcalls.py make SGLANG TEMPLATES OUT.json [N]
       toolcalls.py check MESSAGE_LINES [SAMPLES.json]

make: makes random tools and calls of them, N times (default 300). SGLANG is an unpacked sglang
wheel, whose detectors read each answer. TEMPLATES is llama.cpp's models/templates, which write the
answer; reading it must give the same calls again. Needs jinja2, pydantic, orjson and
partial-json-parser.

check: compares the answers of make with the output of message_lines, by default for the frozen
samples. Needs only the standard library.
"""
import json
import pathlib
import random
import re
import subprocess
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = {"qwen3": "Qwen-Qwen3-0.6B.jinja", "coder": "Qwen3-Coder.jinja",
             "qwen35": "Qwen3.5-4B.jinja"}
PIECES = ["a", "Zürich", " ", "\n", "\n\n", "\t", '"', "'", "\\", "{", "}", "[", "]", "<", ">", "&",
          "你好", "\U0001f600", "<b>", "</b>", "%d", "\\n", "x < y", "é", ":", ",", "3", "null ",
          "True ", "</para", "<tool", "</", "```c\n", "/* */"]
TAGS = ["</parameter>", "<parameter=x>", "</think>", "<tool_call>", "<function=f>"]


def make_text(rng, with_tags):
    """with_tags: also uses tags of the format itself, as long as they do not end the value."""
    pieces = PIECES + (TAGS if with_tags else [])
    text = "".join(rng.choice(pieces) for _ in range(rng.randrange(12)))
    return re.sub(r"</parameter>(?=\s*<parameter=)", "</parameter>.", text)


def make_json(rng, depth):
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [make_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {make_text(rng, False): make_json(rng, depth - 1) for _ in range(rng.randrange(4))}
    return [rng.randrange(-1000, 1000), rng.random() * 10 ** rng.randrange(-5, 9), True, None,
            make_text(rng, False)][kind]


def make_value(rng, schema, with_tags):
    kind = schema["type"]
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "string":
        return make_text(rng, with_tags)
    if kind == "array":
        return [make_json(rng, 2) for _ in range(rng.randrange(4))]
    if kind == "object":
        return {make_text(rng, False): make_json(rng, 2) for _ in range(rng.randrange(4))}
    return {"integer": rng.randrange(-10 ** 9, 10 ** 9), "number": rng.uniform(-1e6, 1e6),
            "boolean": rng.random() < 0.5, "null": None}[kind]


def make_tool(rng, name, unions):
    kinds = ["string", "string", "integer", "number", "boolean", "array", "object"]
    kinds += [["string", "null"], ["integer", "null"]] if unions else []
    properties = {f"{rng.choice(['path', 'n', 'größe', 'old_str'])}{i}": {"type": rng.choice(kinds)}
                  for i in range(rng.randrange(5))}
    return {"type": "function", "function": {
        "name": name, "description": "", "parameters": {"type": "object",
                                                        "properties": properties}}}


def make_calls(rng, tools, with_tags):
    calls = []
    for _ in range(rng.randrange(1, 4)):
        function = rng.choice(tools)["function"]
        properties = function["parameters"]["properties"]
        chosen = [key for key in properties if rng.random() < 0.8]
        calls.append({"name": function["name"], "arguments": {
            key: make_value(rng, properties[key], with_tags) for key in chosen}})
    return calls


def as_xml(value):
    if isinstance(value, (dict, list)) or value is None or isinstance(value, bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def write_answer(calls, is_xml):
    """Writes the two formats as the models are told to write them."""
    blocks = []
    for call in calls:
        inner = json.dumps(call, ensure_ascii=False)
        if is_xml:
            inner = "".join(f"<parameter={key}>\n{as_xml(value)}\n</parameter>\n"
                            for key, value in call["arguments"].items())
            inner = f"<function={call['name']}>\n{inner}</function>"
        blocks.append(f"<tool_call>\n{inner}\n</tool_call>")
    return "\n".join(blocks)


def load_detectors(folder):
    """Loads sglang's detectors without the server."""
    sys.path.insert(0, str(folder))
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai",
                 "sglang.srt.entrypoints.openai.protocol", "sglang.srt.environ",
                 "sglang.srt.function_call"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.function_call"].__path__ = [f"{folder}/sglang/srt/function_call"]
    protocol = sys.modules["sglang.srt.entrypoints.openai.protocol"]
    protocol.Tool = protocol.ToolChoice = object
    sys.modules["sglang.srt.environ"].envs = None
    from sglang.srt.function_call.qwen25_detector import Qwen25Detector
    from sglang.srt.function_call.qwen3_coder_detector import Qwen3CoderDetector
    return Qwen25Detector, Qwen3CoderDetector


def as_object(tool):
    function = types.SimpleNamespace(**tool["function"])
    return types.SimpleNamespace(type="function", function=function)


def ask_detector(detector, answer, tools):
    result = detector().detect_and_parse(answer, [as_object(tool) for tool in tools])
    return [{"name": call.name, "arguments": json.loads(call.parameters)} for call in result.calls]


def load_template(path):
    import jinja2.sandbox
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = None
    return env.from_string(path.read_text(encoding="utf-8"))


def render(template, calls, content, reasoning, tools):
    user = {"role": "user", "content": "Do it."}
    last = {"role": "assistant", "content": content, "reasoning_content": reasoning,
            "tool_calls": [{"type": "function", "function": call} for call in calls]}
    text = template.render(messages=[user, last], tools=tools, add_generation_prompt=False)
    begin, end = "<|im_start|>assistant", "<|im_end|>"
    return text[text.rindex(begin) + len(begin):text.rindex(end)].removeprefix("\n")


def make(sglang, templates, n):
    rng = random.Random(20)
    detectors = load_detectors(sglang)
    loaded = {name: load_template(templates / file) for name, file in TEMPLATES.items()}
    samples = []
    for i in range(n):
        tools = [make_tool(rng, name, False) for name in ("read_file", "write", "天气")]
        calls, is_xml = make_calls(rng, tools, False), i % 2 == 1
        before = rng.choice(["", "Let me see.\n", "Ü\n\n"])
        answer = before + write_answer(calls, is_xml)
        samples.append({"by": "sglang", "tools": tools, "answer": answer, "calls":
                        ask_detector(detectors[is_xml], answer, tools), "content": before.strip()})
    for i in range(n):
        name = list(loaded)[i % len(loaded)]
        tools = [make_tool(rng, tool, True) for tool in ("read_file", "write", "天气")]
        calls = make_calls(rng, tools, name != "qwen3")
        content = rng.choice(["", "Let me see.", "A\n\nB"])
        reasoning = "" if name == "coder" else rng.choice(["", "Hm.", "a\n\nb <tool_call>\n{}"])
        answer = render(loaded[name], calls, content, reasoning, tools)
        samples.append({"by": name, "tools": tools, "answer": answer, "calls": calls,
                        "content": content, "reasoning": reasoning})
    return samples


def differences(sample, got):
    calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])}
             for call in got["calls"]]
    for key, want, have in (("calls", sample["calls"], calls),
                            ("content", sample["content"], got["content"]),
                            ("reasoning", sample.get("reasoning", ""), got["reasoning"]),
                            ("broken", [], got["broken"])):
        if json.dumps(want, sort_keys=True) != json.dumps(have, sort_keys=True):
            yield f"{key}: expected {want!r}\n  got {have!r}"


def check(program, path):
    samples = json.loads(path.read_text(encoding="utf-8"))
    lines = [json.dumps({"answer": s["answer"], "tools": s["tools"], "hold": bool(i % 2)})
             for i, s in enumerate(samples)]
    done = subprocess.run([program], input="\n".join(lines) + "\n", stdout=subprocess.PIPE,
                          encoding="utf-8", check=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    n_bad = abs(len(results) - len(samples))
    for sample, got in zip(samples, results):
        found = list(differences(sample, got))
        n_bad += bool(found)
        if found and n_bad <= 5:
            print(f"{sample['by']}: {sample['answer']!r}", *found, sep="\n")
    n_calls = sum(len(sample["calls"]) for sample in samples)
    print(f"{len(samples)} answers with {n_calls} calls, {n_bad} different")
    return 1 if n_bad or not samples else 0


def main():
    if len(sys.argv) >= 5 and sys.argv[1] == "make":
        n = int(sys.argv[5]) if len(sys.argv) > 5 else 300
        samples = make(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), n)
        text = ",\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples)
        pathlib.Path(sys.argv[4]).write_text(f"[\n{text}\n]\n", encoding="utf-8")
        return 0
    if len(sys.argv) in (3, 4) and sys.argv[1] == "check":
        path = sys.argv[3] if len(sys.argv) == 4 else HERE / "toolcalls.json"
        return check(sys.argv[2], pathlib.Path(path))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
