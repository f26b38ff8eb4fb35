#!/usr/bin/env python3
"""Writes the seed corpus of the formats fuzz target.

usage: make_formats_corpus.py [DIR]      (default: corpus/formats next to this script)

An input is four bytes, which choose dialect, options and cuts, and an answer. In it a byte 1 begins
and ends the text of special tokens. The seeds are small and always the same. Inputs added by hand,
such as a fixed finding, are kept.
"""
import pathlib
import sys

(HARMONY, GLM, MINIMAX, DSML_FUNCTIONS, DSML_TOOLS, KIMI, DEEPSEEK, BOTH,
 DEEPSEEK_V3) = range(9)
# A format takes three bits of the first byte and bit 6 of the fourth.
THINKING, HELD, SPECIAL, SHORT, NO_CALLS, MUST_CALL = 256, 16, 32, 64, 128, 192
OBJECT = '{"s": "x", "o": [1, {"b": "}\\"\\ud83d\\ude00"}], "c": null}'


def glm(**values):
    inner = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"
                    for k, v in values.items())
    return f"<tool_call>f\n{inner}</tool_call>"


def minimax(**values):
    inner = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
    return f'<minimax:tool_call>\n<invoke name="f">\n{inner}</invoke>\n</minimax:tool_call>'


def dsml(block, **values):
    d = "\uff5cDSML\uff5c"
    inner = "".join(f'<{d}parameter name="{k}" string="{v[0]}">{v[1]}</{d}parameter>\n'
                    for k, v in values.items())
    return f'<{d}{block}>\n<{d}invoke name="f">\n{inner}</{d}invoke>\n</{d}{block}>'


def kimi(*calls):
    inner = "".join(f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
                    for name, text in calls)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def deepseek(*calls):
    text = kimi(*calls)
    for ours, theirs in (("tool_calls_section_begin", "tool_calls_begin"),
                         ("tool_calls_section_end", "tool_calls_end"),
                         ("tool_call_argument_begin", "tool_sep"),
                         ("tool_call_begin", "tool_call_begin"),
                         ("tool_call_end", "tool_call_end")):
        theirs = theirs.replace("_", "\u2581")
        text = text.replace(f"<|{ours}|>", f"<\uff5c{theirs}\uff5c>")
    return text


def deepseek_v3(*calls, fence="```json\n"):
    return deepseek(*(("function", f"{name}\n{fence}{text}\n```") for name, text in calls))


def seeds():
    analysis = "<|channel|>analysis<|message|>hm\n<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    marked = analysis.replace("<|", "\1<|").replace("|>", "|>\1")
    calls = kimi(("functions.f:0", OBJECT), ("functions.g:1", "{}"))
    return {
        "harmony": (HARMONY, analysis + "<|channel|>final<|message|>yes \u4f60\n<|return|>"),
        "harmony-call": (HARMONY, analysis + call + OBJECT + "<|call|>"),
        "harmony-role": (HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}<|end|>"),
        "harmony-held": (HARMONY | HELD, call + OBJECT[:20] + "]<|call|>"),
        "harmony-python": (HARMONY, "<|channel|>analysis to=python<|message|>print(1)<|call|>x"),
        "harmony-text": (HARMONY, "to be <|end|> or"),
        "harmony-special": (HARMONY | SPECIAL, marked +
         "\1<|channel|>\1final\1<|message|>\1<|end|>"),
        "harmony-short": (HARMONY | SHORT, call + OBJECT + "<|call|>" + call),
        "harmony-must": (HARMONY | MUST_CALL, call + OBJECT),
        "harmony-none": (HARMONY | NO_CALLS, call + OBJECT),
        "glm": (GLM, "\n<think>a</think>\nYes.\n" + glm(s="a</arg_value>\n", i="3", o="{}")),
        "glm-json": (GLM, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        "glm-two": (GLM | HELD, glm() + glm(sn="null").replace("\n", "")),
        "minimax": (MINIMAX | THINKING, "hm\n</think>\n\nYes.\n" + minimax(s="</parameter> x",
         i="1")),
        "minimax-json": (MINIMAX, minimax().replace('"f">', '"f">' + OBJECT)),
        "minimax-two": (MINIMAX, minimax(s="x").replace(
            "</invoke>", '</invoke><invoke name="g"></invoke>')),
        "dsml-functions": (DSML_FUNCTIONS, "</think>a\n\n" + dsml("function_calls", s=("true",
         "1"))),
        "dsml-tools": (DSML_TOOLS, dsml("tool_calls", i=("false", "[1]"), z=("false", "no"))),
        "kimi": (KIMI, "Yes." + calls),
        "kimi-thinking": (KIMI | THINKING, "hm" + calls + "x"),
        "kimi-special": (KIMI | SPECIAL, calls.replace("<|", "\1<|").replace("|>", "|>\1") + calls),
        "kimi-same": (KIMI, kimi(("functions.f:0", ""), ("functions.f:0", " {}"), ("f", "oh"))),
        "deepseek": (DEEPSEEK, "</think>" + deepseek(("f", OBJECT), ("g", "{}")) + "\n"),
        "deepseek-cut": (DEEPSEEK, deepseek(("f", OBJECT))[:90]),
        "deepseek-v3": (DEEPSEEK_V3, "a</think>\n\n" + deepseek_v3(("f", OBJECT), ("g", "{}"))),
        "deepseek-v3-bare": (DEEPSEEK_V3, deepseek_v3(("f", OBJECT), fence="")),
        "deepseek-v3-cut": (DEEPSEEK_V3 | HELD, deepseek_v3(("f", OBJECT))[:95]),
        "deepseek-v3-must": (DEEPSEEK_V3 | MUST_CALL, deepseek_v3(("f", ""), ("g", "oh"))),
        "deepseek-v3-named": (DEEPSEEK_V3, deepseek(("f", OBJECT))),
        "both": (BOTH, calls + minimax(s="x")),
    }


def main():
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (options, answer)) in enumerate(seeds().items()):
        first = options & 0xf0 | (options & THINKING and 8) | options & 7
        head = bytes([first, number, 7 * number % 256,
                      number | number % 2 << 7 | (options & DEEPSEEK_V3) << 3])
        (folder / name).write_bytes(head + answer.encode())


if __name__ == "__main__":
    main()
