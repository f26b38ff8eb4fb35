#!/usr/bin/env python3
"""GBNF grammars accept what PyPI's llguidance accepts of them, byte by byte.

usage: gbnf_test.py GBNF_LINES [--cache DIR]

Its lexer is greedy and its "." is no newline, so the grammars do not depend on that. Texts that
fit are made from pieces and then changed at random, always in the same way. The exit
status is 77 when the package cannot be installed.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from packages import HERE, python_of

JSON = r'''
# any JSON value
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
'''
SUMS = '''root ::= (expr "=" ws term "\\n")+
expr ::= term ([-+*/] ws term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \\t]*
'''
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'
NESTED = 'root ::= "(" root ")" | "[" root "]" | "x"\n'
MOVES = ('root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+\n'
         'move ::= (pawn | piece | castle) [+#]?\n'
         'piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\n'
         'pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\ncastle ::= "O-O" "-O"?\n')
JAPANESE = 'root ::= ([\u3041-\u309f] | [\u30a1-\u30ff] | "\u6f22\u5b57"){2,4} "\U0001f600"?\n'
SIMPLE = 'root ::= "a" [b-d]* ("x" | "yz"){1,2} [^a-y]? [!-~]\n'
CASES = [
    (JSON, ['{"a": [1, -2.5e3, {"b": null}], "c": "\\u00e9\\n \u65e5"}', "{}", '{"a": 012}',
            '{"a": tru}', '{ "x":[true,false ] }', '{"k":"\x01"}', '{"a":1,}', "[1]"]),
    (SUMS, ["a=1\n", "(a+b)*3 = c_1\nx=y\n", "a +\tb= 2\n", "1+=2\n", "((a))=1\n", "A=1\n"]),
    (LIST, ["- one\n- two\n", "- \n", "- \u65e5\u672c\n", "-one\n"]),
    (NESTED, ["((([x])))", "(x", "[(x])", "x", ""]),
    (MOVES, ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O O-O-O+\n10. exd8=Q# Ka1\n", "1. e9 e5\n"]),
    (JAPANESE, ["\u3042\u30a2", "\u6f22\u5b57\u3042\u3044\U0001f600", "\u3042a", "\u3042",
                "\u6f22\u3042", "\u3042\u3044\u3046\u3048\u304a"]),
    (SIMPLE, ["abcdxyz1!", "ax.", "azz", "ayzx\u65e5\u65e5", "abx"]),
]


def changed(text, rng):
    """The text with one character taken out, doubled, replaced or swapped."""
    at = rng.randrange(len(text) + 1)
    other = rng.choice(text + "a1 \"\n\u65e5")
    return rng.choice([text[:at] + text[at + 1:], text[:at] + other + text[at:],
                       text[:at] + other + text[at + 1:], text[:at]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("gbnf_lines")
    parser.add_argument("--cache", type=pathlib.Path)
    options = parser.parse_args()
    python = python_of("llguidance", ["llguidance<2"], options.cache)
    rng = random.Random(1)
    cases = [(grammar, texts + [changed(text, rng) for text in texts for _ in range(25)])
             for grammar, texts in CASES]
    lines = "".join(json.dumps({"grammar": g, "texts": t}) + "\n" for g, t in cases)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "cases.jsonl"
        file.write_text(lines)
        done = subprocess.run([python, HERE / "gbnf_client.py", file], check=True,
                              stdout=subprocess.PIPE, encoding="utf-8")
    theirs = json.loads(done.stdout.split("RESULT ", 1)[1])
    done = subprocess.run([options.gbnf_lines], input=lines, check=True, stdout=subprocess.PIPE,
                          encoding="utf-8")
    ours = [json.loads(line) for line in done.stdout.splitlines()]
    n = n_whole = 0
    for (grammar, texts), a, b in zip(cases, ours, theirs, strict=True):
        for text, one, other in zip(texts, a, b, strict=True):
            assert one[0] == other[0], (grammar, text, one, other)
            if one[0] == len(text.encode()): # behind a refused byte, states are not compared
                assert one == other, (grammar, text, one, other)
                n_whole += one[1]
            n += 1
    print(f"{n} texts, {n_whole} of which fit, are read alike")
    assert n_whole > 50
    return 0


if __name__ == "__main__":
    sys.exit(main())
