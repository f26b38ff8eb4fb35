#!/usr/bin/env python3
"""Sends a conversation with reasoning, calls and results to servers with the published templates of
model families, and checks that each reads it as the family's documentation shows it.

usage: real_templates_test.py PROGRAM --cache DIR

The templates are those of llama.cpp, in the source package of llama-cpp-python, which is fetched
into the cache. Exits with 77 if it cannot be had.
"""
import json
import pathlib
import sys
import tempfile

import scripted_model
from served import Server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "text"))
import compare_templates # pylint: disable=wrong-import-position

CALLS = [("get_weather", {"city": "Rome", "days": 3}, "call_a", "warm"),
         ("get_time", {}, "call_b", "late")]
HISTORY = [
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": "", "reasoning_content": "Why not", "tool_calls": [
        {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given, i, _ in CALLS]},
    *({"role": "tool", "tool_call_id": i, "content": result} for _, _, i, result in CALLS)]
D = "｜DSML｜"
DSML = [f'<{D}invoke name="get_weather">\n<{D}parameter name="city" string="true">Rome'
        f'</{D}parameter>\n<{D}parameter name="days" string="false">3</{D}parameter>\n'
        f"</{D}invoke>\n",
        "<think>Why not</think>"]
# file: what the rendered history has; how a prompt ends with high effort, and with none
TEMPLATES = {
    "openai-gpt-oss-120b": (
        ["<|start|>developer<|message|># Instructions\n\nBe kind.",
         "<|start|>assistant<|channel|>analysis<|message|>Why not<|end|><|start|>assistant "
         'to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Rome", "days": 3}'
         "<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
         '"warm"<|end|><|start|>assistant to=functions.get_time<|channel|>commentary json'
         "<|message|>{}<|call|><|start|>functions.get_time to=assistant<|channel|>commentary"
         '<|message|>"late"<|end|><|start|>assistant', "Reasoning: high"],
        "<|start|>assistant", "<|start|>assistant"),
    "GLM-4.6": (
        ["<think>Why not</think>", "<tool_call>get_weather\n<arg_key>city</arg_key>\n"
         "<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
         "</tool_call>",
         "<|observation|>\n<tool_response>\nwarm\n</tool_response>"],
        "<|assistant|>", "/nothink<|assistant|>\n<think></think>"),
    "moonshotai-Kimi-K2": (
        ['<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Rome", '
         '"days": 3}<|tool_call_end|>', "## Return of functions.get_time:1"],
        "<|im_middle|>", "<|im_middle|>"),
    "MiniMax-M2": (
        ["<think>\nWhy not\n</think>", '<invoke name="get_weather">\n<parameter name="city">Rome'
         '</parameter>\n<parameter name="days">3</parameter>\n</invoke>',
         "]~b]tool\n<response>warm</response>\n<response>late</response>[e~["],
        "]~b]ai\n<think>\n", "]~b]ai\n<think>\n"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
         '{"city": "Rome", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
         "<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
         "<｜end▁of▁sentence｜>"
         "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>warm<｜tool▁output▁end｜>"],
        "<｜Assistant｜><think>", "<｜Assistant｜><think>\n</think>"),
    "Kimi-K2-Instruct": (
        ['<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Rome", '
         '"days": 3}<|tool_call_end|>', "## Return of functions.get_time:1"],
        "<|im_middle|>", "<|im_middle|>"),
    "deepseek-ai-DeepSeek-V3.1": (
        ['<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome", "days": 3}<｜tool▁call▁end｜>',
         "<｜tool▁output▁begin｜>warm<｜tool▁output▁end｜>"],
        "<｜Assistant｜><think>", "<｜Assistant｜><think></think>"),
    "deepseek-ai-DeepSeek-V3.2": (
        [f"<{D}function_calls>\n", *DSML, "<result>late</result>\n</function_results>"],
        "<｜Assistant｜><think>", "<｜Assistant｜><think></think>"),
    "deepseek-ai-DeepSeek-V4": (
        [f"<{D}tool_calls>\n", *DSML, "<tool_result>warm</tool_result>"],
        "<｜Assistant｜><think>", "<｜Assistant｜></think>"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": (
        [f"<{D}tool_calls>\n", *DSML, "Reasoning Effort: Absolute maximum"],
        "<｜Assistant｜><think>", "<｜Assistant｜></think>"),
}


def rendered(server, messages, effort):
    status, answer = server.post("/apply-template", {"messages": messages,
                                                     "reasoning_effort": effort})
    return answer["prompt"] if status == 200 else f"{status}: {answer}"


def differences(server, parts, high, none):
    text = rendered(server, HISTORY, "high")
    for part in parts:
        if part not in text:
            yield f"missing: {part!r}\nin: {text!r}"
    for effort, end in (("high", high), ("none", none)):
        text = rendered(server, [{"role": "user", "content": "x"}], effort)
        if not text.rstrip("\n").endswith(end.rstrip("\n")):
            yield f"effort {effort}: expected an end like {end!r}, got {text[-80:]!r}"


def main():
    program, cache = sys.argv[1], pathlib.Path(sys.argv[3])
    spec = compare_templates.SDISTS[0]
    folder = compare_templates.fetch(cache, spec, [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary",
        spec.partition("==")[0], "--quiet", spec])
    if folder is None:
        print(f"skipped: {spec} is not there and cannot be fetched")
        return 77
    found = {path.stem: path for path in folder.rglob("*.jinja")}
    n_bad = 0
    for name, (parts, high, none) in TEMPLATES.items():
        template = found[name].read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as model:
            scripted_model.make(model, template=template)
            with Server(program, model) as server:
                bad = list(differences(server, parts, high, none))
        n_bad += len(bad)
        print(f"{name}: {len(bad)} differences", *bad, sep="\n")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
