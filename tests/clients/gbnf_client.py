"""Runs the grammars of a file with PyPI's llguidance; run by gbnf_test.py. Prints what gbnf_lines
prints, as one list."""
import json
import sys

import llguidance
import llguidance.gbnf_to_lark

TOKENIZER = llguidance.LLTokenizer("byte")


def run(grammar, text):
    matcher = llguidance.LLMatcher(TOKENIZER, grammar)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    n = matcher.try_consume_tokens(data) if data else 0
    return [n, matcher.is_accepting()]


found = []
with open(sys.argv[1], encoding="utf-8") as file:
    for line in file:
        case = json.loads(line)
        lark = llguidance.gbnf_to_lark.gbnf_to_lark(case["grammar"])
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        found.append([run(grammar, text) for text in case["texts"]])
print("RESULT " + json.dumps(found))
