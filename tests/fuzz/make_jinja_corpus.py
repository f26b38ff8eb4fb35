#!/usr/bin/env python3
"""Writes the seeds of fuzz_jinja: corpus/jinja.

usage: make_jinja_corpus.py

The project's own templates from tests/text/templates, one small template for every filter, test,
method and statement, and broken ones.
"""
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "text"))
import template_conversations  # noqa: E402
import template_random  # noqa: E402

BROKEN = ["{{", "{%", "{#", "{{ x", "{% if %}", "{% for x %}", "{% endfor %}", "{{ ) }}",
          "{{ 'a }}", "{% raw %}", "{{ 1 + }}", "{{ a.b.1 }}", "{{ '\\x4' }}", "{% set 1 = 2 %}",
          "{% break %}", "{% include 'x' %}", "{{ x|nosuch }}", "{{ 99999999999999999999 }}",
          "{{ (((((1))))) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
          "{{ 'x' * 999999999 }}",
          "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"]


def main():
    folder = HERE / "corpus" / "jinja"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not old.name.startswith("found"):
            old.unlink()
    seeds = {f"own_{p.stem}": p.read_text() for p in (HERE.parent / "text/templates").glob("*")}
    seeds.update({f"broken_{i:02d}": text for i, text in enumerate(BROKEN)})
    filters = sorted(set(template_random.FILTER_WORDS))
    for i in range(0, len(filters), 8):
        seeds[f"filters_{i:03d}"] = "".join("{{ s|%s }}{{ l|%s }}" % (f, f)
                                            for f in filters[i:i + 8])
    seeds["tests"] = "".join("{{ n is %s }}" % t for t in template_random.TEST_WORDS)
    methods = template_random.METHOD_WORDS
    for i in range(0, len(methods), 12):
        seeds[f"methods_{i:03d}"] = "".join("{{ s.%s }}" % m for m in methods[i:i + 12])
    generator = template_random.Generator(random.Random(3))
    variables = json.dumps(template_random.VARIABLES)
    for i in range(12):
        seeds[f"random_{i:02d}"] = generator.template() + "\0" + variables
    weather = json.dumps({"tools": [template_conversations.WEATHER]})
    seeds["tojson"] = "{{ tools|tojson(indent=1) }}{{ tools }}\0" + weather
    for name, text in seeds.items():
        (folder / name).write_bytes(text.encode())
    print(f"{len(seeds)} seeds")


if __name__ == "__main__":
    main()
