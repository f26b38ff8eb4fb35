"""Schemas that refer to themselves in every place of every keyword, and schemas that demand too
much work, for the tests of the schema compiler and of the server."""
import itertools
import json
import pathlib
import re

VET = pathlib.Path(__file__).resolve().parents[2] / "src" / "grammar" / "schema_vet.c"
# Refused today; a compiler that supports one of them later must pass the same tests.
REFUSED = ["not", "if", "then", "else", "contains", "minContains", "maxContains",
           "dependentSchemas", "dependentRequired", "dependencies", "unevaluatedItems",
           "unevaluatedProperties",
           "$dynamicRef", "$recursiveRef", "nullable", "uniqueItems", "$id", "$vocabulary"]
REFERENCES = ["#", "#/$defs/x", "#/$defs/y", "#/%24defs/x", "#/{0}", "#/{0}/0", "#/{0}/a",
              "#/$defs/none"]


def keywords():
    """Returns all keywords in the compiler's table, and those that it refuses."""
    table = re.search(r"keywords\[\] = \{(.*?)\n\};", VET.read_text(), re.S).group(1)
    known = re.findall(r'\{"([^"]+)", \w+\}', table)
    assert len(known) > 40 and "propertyNames" in known, known
    return known + [name for name in REFUSED if name not in known]


def places(reference):
    """Yields forms in which a keyword may contain schemas, valid or not."""
    r = {"$ref": reference}
    return [r, [r], [{"type": "null"}, r], {"a": r}, {"^a": r, "b": {"type": "integer"}}, [[r]],
            {"a": {"b": r}}, {"a": [r]}, {"allOf": [r]}, {"anyOf": [r, {"type": "null"}]},
            {"type": "array", "items": r}, {"type": "object", "additionalProperties": r}]


def roots(keyword, place):
    """Yields schemas with the keyword at the root, alone and next to types."""
    yield {keyword: place}
    for kind in ("object", "array", "string"):
        yield {"type": kind, keyword: place}


def wraps(keyword, place):
    """Yields schemas with the keyword inside each other one."""
    inner = {keyword: place}
    yield {"type": "object", "propertyNames": inner}
    yield {"type": "object", "properties": {"p": inner}, "required": ["p"]}
    yield {"type": "object", "patternProperties": {"^p": inner}}
    yield {"type": "object", "additionalProperties": inner}
    yield {"type": "array", "items": inner}
    yield {"prefixItems": [inner], "items": False}
    for choice in ("anyOf", "allOf", "oneOf"):
        yield {choice: [inner, {"type": "null"}]}


def definitions(keyword, place):
    """x refers to itself or to y, and y to x, through the keyword."""
    yield {"x": {keyword: place}, "y": {"$ref": "#/$defs/x"}}
    yield {"x": {"$ref": "#/$defs/y"}, "y": {"type": "object", keyword: place}}


def with_definitions(keyword, place, schema):
    if "defs/" not in json.dumps(place):
        yield keyword, schema
        return
    for defs in definitions(keyword, place):
        yield keyword, {"$defs": defs, **schema}


def references():
    """Yields (keyword, schema): about ten thousand."""
    for keyword, reference in itertools.product(keywords(), REFERENCES):
        is_main = reference in REFERENCES[:2]
        if not is_main and keyword in REFUSED:
            continue
        for i, place in enumerate(places(reference.format(keyword))):
            n_types = 4 if is_main and i < 4 else 1
            for schema in itertools.islice(roots(keyword, place), n_types):
                yield from with_definitions(keyword, place, schema)
        for place in places(reference)[:4] if is_main else []:
            for schema in wraps(keyword, place):
                yield from with_definitions(keyword, place, schema)


def deep(n, opening, closing, inner="{}"):
    return opening * n + inner + closing * n


def too_much():
    """Yields (name, text of a schema): each is refused or compiled within seconds."""
    dump = json.dumps
    wide = "".join(chr(0x4e00 + 2 * i) for i in range(400))
    members = {f"k{i}": i for i in range(20000)}
    turned = dict(reversed(members.items()))
    yield "deep items", deep(200, '{"items":', "}")
    yield "very deep", deep(100000, '{"items":', "}")
    yield "deep anyOf", deep(60, '{"anyOf":[', "]}")
    yield "choices", dump({"allOf": [{"anyOf": [{"minimum": i}, {"type": "null"}]}
                                     for i in range(63)]})
    yield "choices without a value", dump({"type": "object", "$defs": {"n": {}}, "allOf": [
        {"anyOf": [{"type": "null", "$ref": "#/$defs/n"}, {"type": "null"}]}] * 30})
    yield "chain of references", dump({"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"}
                                                 for i in range(5000)}, "$ref": "#/$defs/d0"})
    yield "references to late members", dump(
        {"$defs": {f"a{i}": {"type": "null"} for i in range(18000)},
         "anyOf": [{"$ref": f"#/$defs/a{i}"} for i in range(18000)]})
    yield "references at every choice", dump(
        {"$defs": {f"a{i}": True for i in range(50000)} | {"z": {"type": "null"}},
         "anyOf": [{"anyOf": [{"$ref": "#/$defs/z"}]}] * 3000})
    yield "oneOf of references", dump({"$defs": {f"a{i}": {"const": i} for i in range(9000)},
                                       "oneOf": [{"$ref": f"#/$defs/a{i}"} for i in range(9000)]})
    yield "equal objects", dump({"const": members, "allOf": [{"const": turned}]})
    yield "enum and enum", dump({"enum": [f"a{i}" for i in range(40000)],
                                 "allOf": [{"enum": [f"b{i}" for i in range(30000)]}]})
    yield "long number", '{"const":' + "1" * 200000 + ',"multipleOf":7}'
    yield "large exponents", '{"enum":[' + ",".join(f"1e{999000 + i}" for i in range(5000)) + \
        '],"multipleOf":7}'
    yield "many values", dump({"enum": list(range(99000))})
    yield "long enum", dump({"enum": [f"value number {i}" for i in range(40000)]})
    yield "too many values", "[" + "0," * 400000 + "0]"
    yield "long name", dump({"properties": {"x" * 200000: {}}, "required": ["x" * 200000]})
    for count in ("minLength", "maxLength"):
        yield f"{count} with a pattern", dump({"type": "string", "pattern": "^a*$",
                                               count: 1000000000})
    for count in ("minItems", "maxItems", "minProperties", "maxProperties", "minLength",
                  "maxLength"):
        for n in ("1e9", "4294967295", "1e999999", "18446744073709551616"):
            yield f"{count} {n}", f'{{"{count}": {n}}}'
    yield "names of a length", dump({"type": "object", "propertyNames": {"maxLength": 1000000000},
                                     "minProperties": 900})
    for pattern in ("((a{1,1000}){1,1000}){1,1000}", "((((){10000}){10000}){10000}){10000}",
                    "(" * 8000 + ")" * 8000, "a" + "*" * 16000, "a" + "{1}" * 5000,
                    f"^(?:[{wide}]?){{9000}}$", f"^([{wide}](" + "|" * 3000 + ")){30}$",
                    "(a|b)*a(a|b){30}", "^(.*a){60}$", "[^a]" * 4000, "|" * 16000,
                    "^(" + "|".join("a" * i for i in range(1, 170)) + "){1,100}$"):
        yield f"pattern {pattern[:20]}", dump({"type": "string", "pattern": pattern})
        yield f"names {pattern[:20]}", dump({"type": "object", "propertyNames": {
            "pattern": pattern}, "patternProperties": {pattern: {}}})
    yield "five patterns", dump({"patternProperties": {f"^(.*a){{{i + 6}}}": {}
                                                       for i in range(5)}})
    yield "many properties", dump({"type": "object", "minProperties": 500, "properties": {
        f"p{i:04}": {"type": "null"} for i in range(1000)}})
    yield "alternatives with many properties", dump({"anyOf": [
        {"type": "object", "minProperties": 50 + k, "additionalProperties": False,
         "properties": {f"p{i:03}": {"type": "null"} for i in range(100)}} for k in range(32)]})
    yield "a literal against itself", dump(
        {"$defs": {"t": {"anyOf": [{"items": {"$ref": "#/$defs/t"}}] * 8}}, "allOf": [
            {"$ref": "#/$defs/t"}], "const": json.loads(deep(90, "[", "]", "1"))})
    yield "long annotation", dump({"title": "x" * 900000, "type": "null"})
