#!/usr/bin/env python3
"""Writes the seed corpus of the toolcall fuzz target.

usage: make_toolcall_corpus.py [DIR]      (default: corpus/toolcall next to this script)

An input is four bytes, which choose options and cuts, and an answer. The seeds are small and always
the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import pathlib
import sys

THINKING, HELD, TOOLS, XML_ONLY, JSON_ONLY, SHORT = 1, 2, 4, 8, 16, 32


def json_call(text):
    return f"<tool_call>\n{text}\n</tool_call>"


def xml_call(**values):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


def seeds():
    arguments = '{"a": [1, -2.5e3, {"b": "}\\"\\ud83d\\ude00"}], "c": null}'
    one = json_call(f'{{"name": "f", "arguments": {arguments}}}')
    return {
        "empty": (0, ""),
        "text": (0, "Hello <b>you</b>\n\n"),
        "think": (0, "<think>\nhm\n\n</think>\n\nyes \u4f60\U0001f600"),
        "thinking": (THINKING, "hm\n</think>\n\nyes"),
        "thinking-open": (THINKING, "a\n<tool_call>\nb</thi"),
        "json": (0, "Well.\n" + one + "\n" + one + "\n"),
        "json-held": (HELD, one + "\n\nDone."),
        "json-late-name": (0, json_call('{"arguments": {"a": 1}, "id": [true], "name": "g"}')),
        "json-string": (0, json_call('{"name":"f","arguments":"{\\"a\\": \\"\\\\n\\"}"}')),
        "json-none": (0, json_call('{"name": "f"}') + json_call('{"name":"f","arguments":null}')),
        "json-open": (0, one[:-12]),
        "json-cut": (0, one[:60]),
        "json-extra": (0, one.replace("}}", "}}}")),
        "json-twice": (0, json_call('{"name":"f","name":"g"}')),
        "json-nested": (0, "<tool_call>\n" + one),
        "json-only": (JSON_ONLY, one + xml_call(s="x")),
        "xml": (0, "Well.\n\n" + xml_call(s="a\n<b>\"\\", i="3") + "\n" + xml_call()),
        "xml-types": (TOOLS, xml_call(s="1", i="1", b="True", a="[1]", o='{"a": 1}', z="None")),
        "xml-unions": (TOOLS, xml_call(sn="null", **{"is": "5"}) + xml_call(sn="nothing")),
        "xml-held": (TOOLS | HELD, xml_call(s="x", i="x")),
        "xml-bare": (0, "<function=f>\n<parameter=s>x</parameter></function>\n</tool_call>\nok"),
        "xml-two": (0, "<tool_call><function=f></function><function=g></function></tool_call>"),
        "xml-tags": (0, xml_call(s="</parameter>\n</parameter> <parameter=q> </function>")),
        "xml-twice": (0, xml_call(s="1").replace("</function>", "<parameter=s>2</parameter>")),
        "xml-only": (XML_ONLY, one + xml_call(s="x")),
        "no-calls": (XML_ONLY | JSON_ONLY, one + xml_call(s="x")),
        "short": (SHORT, xml_call(s="x" * 50) + one),
        "bad-utf8": (0, b"\xff<tool_call>\n<function=f>\n<parameter=s>\xc3</parameter></function>"),
    }


def main():
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "toolcall"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (options, answer)) in enumerate(seeds().items()):
        answer = answer if isinstance(answer, bytes) else answer.encode()
        (folder / name).write_bytes(bytes([options, number, 7 * number, number]) + answer)


if __name__ == "__main__":
    main()
