#!/usr/bin/env python3
"""Compares the chat formats of other families with programs that nobody here wrote.

usage: formats.py make SGLANG MLX TEMPLATES OUT.json [N [NAME...]]
       formats.py check MESSAGE_LINES [SAMPLES.json]

make: makes random tools and calls of them, N times per template (default 60), for all formats or
the named ones. TEMPLATES is llama.cpp's models/templates; jinja2 writes each answer with them, and
reading it must give the same calls, content and reasoning. The detectors of sglang (an unpacked
wheel), the parsers of mlx-lm (an unpacked wheel) and OpenAI's package openai-harmony read the
answers too. Needs jinja2, pydantic,
orjson, partial-json-parser, regex and openai-harmony, whose vocabulary is found through
TIKTOKEN_ENCODINGS_BASE.

check: compares the answers of make with the output of message_lines, by default for the frozen
samples. Needs only the standard library.
"""
import importlib.util
import json
import pathlib
import random
import subprocess
import sys

import toolcalls as base

HERE = pathlib.Path(__file__).resolve().parent

# name: template, dialects, begin and end of an answer, tags that strings may contain
FORMATS = {
    "glm46": ("GLM-4.6.jinja", ["glm", "qwen-json"], "<|assistant|>", None,
              ["</arg_value>.", "<arg_key>", "</think>", "<tool_call>"]),
    "glm47": ("GLM-4.7-Flash.jinja", ["glm", "qwen-json"], "<|assistant|>", None,
              ["</arg_value>.", "<arg_key>", "</think>", "<tool_call>"]),
    "kimi": ("Kimi-K2-Instruct.jinja", ["kimi"], "<|im_middle|>", "<|im_end|>",
             ["<|tool_call_end|>", "<|tool_calls_section_end|>", "</think>"]),
    "kimi_thinking": ("Kimi-K2-Thinking.jinja", ["kimi"], "<|im_middle|>", "<|im_end|>",
                      ["<|tool_call_end|>", "<|tool_calls_section_end|>", "</think>"]),
    "minimax": ("MiniMax-M2.jinja", ["minimax"], "]~b]ai\n", "[e~[\n",
                ["</parameter>.", "<parameter name=\"", "</invoke>", "</think>"]),
    "deepseek3": ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", ["deepseek-v3"],
                  "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
                  ["<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "\n```", "```json"]),
    "deepseek31": ("deepseek-ai-DeepSeek-V3.1.jinja", ["deepseek"], "<｜Assistant｜>",
                   "<｜end▁of▁sentence｜>", ["<｜tool▁call▁end｜>", "<｜tool▁sep｜>"]),
    "deepseek32": ("deepseek-ai-DeepSeek-V3.2.jinja", ["dsml-functions"], "<｜Assistant｜>",
                   "<｜end▁of▁sentence｜>", ["</｜DSML｜parameter>.", "</｜DSML｜invoke>"]),
    "deepseek4": ("deepseek-ai-DeepSeek-V4.jinja", ["dsml-tools"], "<｜Assistant｜>",
                  "<｜end▁of▁sentence｜>", ["</｜DSML｜parameter>.", "</｜DSML｜invoke>"]),
    "deepseek4_0731": ("deepseek-ai-DeepSeek-V4-Flash-0731.jinja", ["dsml-tools"],
                       "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
                       ["</｜DSML｜parameter>.", "</｜DSML｜invoke>"]),
    "gpt_oss": ("openai-gpt-oss-120b.jinja", ["harmony"], "Do it.<|end|><|start|>assistant", None,
                ["<|end|>", "<|call|>", "<|channel|>"]),
}
NO_REASONING = {"kimi", "deepseek3", "deepseek31"}
DETECTORS = {"glm46": ("glm4_moe_detector", "Glm4MoeDetector"),
             "glm47": ("glm47_moe_detector", "Glm47MoeDetector"),
             "kimi": ("kimik2_detector", "KimiK2Detector"),
             "minimax": ("minimax_m2", "MinimaxM2Detector"),
             "deepseek3": ("deepseekv3_detector", "DeepSeekV3Detector"),
             "deepseek31": ("deepseekv31_detector", "DeepSeekV31Detector"),
             "deepseek32": ("deepseekv32_detector", "DeepSeekV32Detector"),
             "deepseek4": ("deepseekv4_detector", "DeepSeekV4Detector")}
MLX = {"glm47": "glm47", "kimi": "kimi_k2", "minimax": "minimax_m2"}


# ---- answers -------------------------------------------------------------------------------------

def load_template(path):
    import jinja2.sandbox
    env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                              extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    env.globals["strftime_now"] = lambda _: "2026-01-01"
    return env.from_string(path.read_text(encoding="utf-8"))


def write_answer(template, name, calls, content, reasoning, tools):
    begin, end = FORMATS[name][2:4]
    user = {"role": "user", "content": "Do it."}
    last = {"role": "assistant", "content": content}
    if calls and name == "deepseek3":
        last["content"] = None # a message is content or calls
    if calls:
        last["tool_calls"] = [{"type": "function", "id": f"functions.{call['name']}:{i}",
                               "function": call} for i, call in enumerate(calls)]
    if reasoning:
        last["thinking" if name == "gpt_oss" else "reasoning_content"] = reasoning
    text = template.render(messages=[user, last], tools=tools, add_generation_prompt=False,
                           thinking=True, enable_thinking=True, bos_token="")
    text = text[text.index(begin, text.index("Do it.")) + len(begin):]
    return text[:text.rindex(end)] if end else text


def make_sample(rng, template, name):
    base.TAGS = FORMATS[name][4]
    is_xml = FORMATS[name][1][0] in ("glm", "minimax")
    tools = [base.make_tool(rng, tool, is_xml) for tool in ("read_file", "write", "do.it-2")]
    calls = base.make_calls(rng, tools, True) if rng.random() < 0.85 else []
    content = rng.choice(["", "Let me see.", "A\n\nB"])
    reasoning = "" if name in NO_REASONING else rng.choice(["", "Hm.", "a\n\nb <tool_call>\n{}"])
    if name == "gpt_oss" and calls: # one call per message, after either text
        calls, content = calls[:1], ""
    elif name == "gpt_oss":
        content = content or "Yes."
    if name == "deepseek3" and calls:
        content = ""
    if name == "kimi_thinking" and not calls:
        reasoning = "" # which the template drops
    content = content if calls else content or "Yes."
    answer = write_answer(template, name, calls, content, reasoning, tools)
    sample = {"by": name, "dialects": FORMATS[name][1], "tools": tools, "answer": answer,
              "calls": calls, "content": content, "reasoning": reasoning}
    if FORMATS[name][1] == ["kimi"]:
        sample["ids"] = [f"functions.{call['name']}:{i}" for i, call in enumerate(calls)]
    return sample


# ---- other parsers -------------------------------------------------------------------------------

def is_plain(value):
    """Says whether all parsers read the value alike. sglang and mlx-lm strip strings, and sglang
    reads null as "None" where a string is allowed too."""
    if isinstance(value, str):
        return value == value.strip() and value != "" and "<" not in value
    return value is not None


def has_unions(tools):
    """sglang and mlx-lm try the types of MiniMax's parameters in any order, null among them."""
    return any(isinstance(p["type"], list) for tool in tools
               for p in tool["function"]["parameters"]["properties"].values())


def are_plain(sample):
    return bool(sample["calls"]) and all(is_plain(v) for call in sample["calls"]
                                         for v in call["arguments"].values()) and not (
        sample["by"] == "minimax" and has_unions(sample["tools"]))


def ask_sglang(name, answer, tools):
    module, detector = DETECTORS[name]
    spec = importlib.import_module(f"sglang.srt.function_call.{module}")
    return base.ask_detector(getattr(spec, detector), answer, tools)


def load_mlx(folder, name):
    path = pathlib.Path(folder) / "mlx_lm" / "tool_parsers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"mlx_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask_mlx(module, answer, tools):
    calls = []
    start, end = module.tool_call_start, module.tool_call_end
    for part in answer.split(start)[1:]:
        found = module.parse_tool_call(part.split(end)[0], tools)
        calls += found if isinstance(found, list) else [found]
    return [{"name": call["name"], "arguments": call["arguments"]
             if isinstance(call["arguments"], dict) else json.loads(call["arguments"])}
            for call in calls]


def ask_harmony(encoding, answer):
    import openai_harmony as harmony
    ids = encoding.encode(answer, allowed_special="all")
    found = {"calls": [], "content": "", "reasoning": ""}
    for message in encoding.parse_messages_from_completion_tokens(ids, harmony.Role.ASSISTANT):
        text = "".join(part.text for part in message.content)
        if message.recipient is not None:
            found["calls"].append({"name": message.recipient.removeprefix("functions."),
                                   "arguments": json.loads(text)})
        else:
            found["reasoning" if message.channel == "analysis" else "content"] += text
    return found


def write_harmony(rng, encoding):
    """Lets the package write an answer of several messages."""
    import openai_harmony as harmony
    text = lambda: base.make_text(rng, False)
    messages = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.randrange(4)
        channel = ["analysis", "commentary", "final", "commentary"][kind]
        body = text() if kind < 3 else json.dumps(
            {text(): base.make_json(rng, 2) for _ in range(rng.randrange(4))})
        message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, body)
        message = message.with_channel(channel)
        if kind == 3:
            message = message.with_recipient(rng.choice(["functions.read_file", "functions.do-it"]))
            message = message.with_content_type("<|constrain|>json")
        messages.append(message)
    config = harmony.RenderConversationConfig(auto_drop_analysis=False)
    ids = encoding.render_conversation(harmony.Conversation.from_messages(messages), config)
    return encoding.decode(ids).removeprefix("<|start|>assistant")


def load_harmony():
    import openai_harmony as harmony
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def make(sglang, mlx, templates, n, names):
    rng = random.Random(45)
    base.load_detectors(sglang)
    encoding = load_harmony() if "gpt_oss" in names else None
    samples, counts = [], {}
    for name, form in FORMATS.items():
        if name not in names:
            continue
        template = load_template(templates / form[0])
        parser = load_mlx(mlx, MLX[name]) if name in MLX else None
        for _ in range(n):
            sample = make_sample(rng, template, name)
            samples.append(sample)
            if not are_plain(sample):
                continue
            others = []
            if name in DETECTORS:
                others.append(("sglang", lambda s: ask_sglang(name, s["answer"], s["tools"])))
            if parser is not None:
                others.append(("mlx-lm", lambda s: ask_mlx(parser, s["answer"], s["tools"])))
            # They get what follows the reasoning.
            answer = sample["answer"].split("</think>")[-1].lstrip("\n")
            rest = {**sample, "answer": answer, "reasoning": ""}
            for who, ask in others:
                samples.append({**rest, "by": f"{who} {name}", "calls": ask(rest)})
                counts[who, name] = counts.get((who, name), 0) + 1
        if name != "gpt_oss":
            continue
        answers = [sample["answer"] for sample in samples[-n:]
                   if "<|" not in json.dumps(sample["calls"])] # the package would see tokens there
        for answer in answers + [write_harmony(rng, encoding) for _ in range(n)]:
            samples.append({"by": "openai-harmony", "dialects": ["harmony"], "tools": [],
                            "answer": answer, **ask_harmony(encoding, answer)})
    print(*(f"{who} read {n} answers of {name}" for (who, name), n in counts.items()), sep="\n")
    return samples


# ---- checking ------------------------------------------------------------------------------------

def differences(sample, got):
    yield from base.differences(sample, got)
    ids = [call["id"] for call in got["calls"]]
    if sample.get("ids", ids) != ids:
        yield f"ids: expected {sample['ids']}\n  got {ids}"


def check(program, path):
    samples = json.loads(path.read_text(encoding="utf-8"))
    lines = [json.dumps({"answer": s["answer"], "tools": s["tools"], "hold": bool(i % 2),
                         "dialects": s["dialects"]}) for i, s in enumerate(samples)]
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
    if len(sys.argv) >= 6 and sys.argv[1] == "make":
        n = int(sys.argv[6]) if len(sys.argv) > 6 else 60
        samples = make(*map(pathlib.Path, sys.argv[2:5]), n, sys.argv[7:] or list(FORMATS))
        text = ",\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples)
        pathlib.Path(sys.argv[5]).write_text(f"[\n{text}\n]\n", encoding="utf-8")
        return 0
    if len(sys.argv) in (3, 4) and sys.argv[1] == "check":
        path = sys.argv[3] if len(sys.argv) == 4 else HERE / "formats.json"
        return check(sys.argv[2], pathlib.Path(path))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
