#!/usr/bin/env python3
"""Constrains answers to JSON schemas and checks them with the jsonschema package.

usage: grammar_test.py GRAMMAR_LINES TOKENIZER.JSON [--schemas N] [--seed S] [--ajv DIR]
       grammar_test.py JSON_LINES MODEL --model [...]

1. Of N random schemas, tokens drawn at random from those allowed: every answer is JSON without a
   name twice, and jsonschema, formats included, finds nothing wrong with it.
2. Instances made for the same schemas, which jsonschema has passed, are accepted when they are
   written in the schema's order, compact or indented.
3. What must be refused is, with a sentence that names the keyword and where it stands; a hostile
   schema is refused in bounded time.

With --model only the first is done, of one answer each that the model gives at a high temperature.

With --ajv the answers are checked by npm's ajv as well, whose patterns are ECMA's own; DIR is where
its packages are (`npm install ajv ajv-formats` there).
"""
import argparse
import datetime
import json
import random
import re
import subprocess
import sys
import time
import urllib.parse

import jsonschema


class Grammar:
    def __init__(self, program, tokenizer):
        self.process = subprocess.Popen([program, tokenizer], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)

    def ask(self, schema, **request):
        request["schema"] = schema if schema is None or isinstance(schema, str) \
            else json.dumps(schema)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the program died with {self.process.wait()} on {json.dumps(request)}")
        return json.loads(line)


# ---- random schemas -----------------------------------------------------------------------------

NAMES = ["a", "b", "ab", "name", "näme", "a\"b", "x\\y", "日本", "id", "type", "x y", "\u0001"]
FORMATS = {
    "date": "2024-02-29", "time": "23:59:59.5+01:30", "date-time": "1999-12-31T00:00:00Z",
    "email": "a.b+c@mail.example.com", "uuid": "123e4567-E89b-12d3-a456-426614174000",
    "ipv4": "255.0.10.199", "ipv6": "2001:db8::1", "hostname": "a-1.example", "duration": "P1DT2H",
    "uri": "https://example.com:8080/a%20b/?q=1#x",
}
FREE_CHARACTERS = "abcXYZ 019_-.,:;'\"\\/\n\t\u0007éß日本語🙂\u2028\ud7ff\ue000"


class Maker:
    """Makes random schemas, and instances that may match them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def chance(self, percent):
        return self.random.random() * 100 < percent

    def pattern(self, depth=0):
        """Returns a pattern and a text that it matches."""
        kind = self.random.choice(["literal", "class", "dot", "digit", "repeat", "group", "chain",
                                   "choice"] if depth < 3 else ["literal", "class", "digit"])
        if kind == "literal":
            c = self.random.choice("abcé日1-")
            return c, c
        if kind == "class":
            source, members = self.random.choice([("[a-c]", "abc"), ("[^a-y\"]", "z1Z é"),
                                                  ("[0-9a-f]", "09af"), ("[\\w-]", "a_-9")])
            return source, self.random.choice(members)
        if kind == "dot":
            return ".", self.random.choice("a1 é🙂")
        if kind == "digit":
            return "\\d", self.random.choice("0123456789")
        if kind == "repeat":
            source, _ = inner = self.pattern(depth + 1)
            mark, n = self.random.choice([("*", 0), ("*", 3), ("+", 1), ("+", 2), ("?", 0),
                                          ("{2}", 2), ("{1,3}", 3), ("{2,}", 4)])
            source = source if len(source) == 1 else f"(?:{source})"
            return source + mark, inner[1] * n
        parts = [self.pattern(depth + 1) for _ in range(self.random.randint(1, 3))]
        if kind == "choice":
            return "(" + "|".join(p[0] for p in parts) + ")", self.random.choice(parts)[1]
        joined = "".join(p[0] for p in parts), "".join(p[1] for p in parts)
        return (f"({joined[0]})", joined[1]) if kind == "group" else joined

    def integer(self):
        return self.random.choice([0, 1, -1, 7, -13, 100, 12345, 2**31, -2**63, 2**64 - 1, 10**20,
                                   self.random.randint(-1000, 1000)])

    def number(self):
        return self.random.choice([self.integer(), 0.5, -0.25, 3.75, 1e-3, 99.99, -1e6, 1.5e10,
                                   3.14159265358979, 1234567890.5])

    def number_schema(self):
        schema = {"type": self.random.choice(["integer", "number"])}
        low = self.number()
        if self.chance(50):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(50):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = \
                low + self.random.choice([1, 2, 10, 1000, 0.75])
        if self.chance(15):
            schema["multipleOf"] = self.random.choice([1, 2, 3, 7, 10, 64])
        return schema

    def string_schema(self):
        schema = {"type": "string"}
        if self.chance(20):
            schema["format"] = self.random.choice(list(FORMATS))
            return schema
        if self.chance(40):
            source, example = self.pattern()
            source = ("^" if self.chance(70) else "") + source + ("$" if self.chance(70) else "")
            schema["pattern"] = source
            schema["examples"] = [example]
        if self.chance(30):
            schema["minLength"] = self.random.choice([0, 1, 2, 5])
        if self.chance(30):
            schema["maxLength"] = self.random.choice([0, 1, 3, 8, 40])
        return schema

    def value(self, depth=0):
        kind = self.random.randrange(8 if depth < 2 else 6)
        if kind < 2:
            return self.random.choice([None, True, False])
        if kind < 4:
            return self.random.choice([self.integer(), self.number()])
        if kind < 6:
            return self.text()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {name: self.value(depth + 1)
                for name in self.random.sample(NAMES, self.random.randint(0, 3))}

    def text(self):
        return "".join(self.random.choices(FREE_CHARACTERS, k=self.random.randint(0, 6)))

    def array_schema(self, depth):
        schema = {"type": "array"}
        if self.chance(75):
            schema["items"] = self.schema(depth + 1)
        if self.chance(20):
            schema["prefixItems"] = [self.schema(depth + 1)
                                     for _ in range(self.random.randint(1, 3))]
        if self.chance(30):
            schema["minItems"] = self.random.choice([0, 1, 2, 4])
        if self.chance(40):
            schema["maxItems"] = self.random.choice([0, 1, 2, 3, 6])
        return schema

    def object_schema(self, depth):
        names = self.random.sample(NAMES, self.random.randint(0, 5))
        schema = {"type": "object", "properties": {n: self.schema(depth + 1) for n in names}}
        if self.chance(60):
            schema["required"] = [n for n in NAMES if self.chance(30)]
        if self.chance(70):
            schema["additionalProperties"] = False if self.chance(60) else self.schema(depth + 1)
        if self.chance(10):
            schema["patternProperties"] = {self.random.choice(["^x", "b$", "^[a-c]+$", "é"]):
                                           self.schema(depth + 1)}
        if self.chance(15):
            schema["propertyNames"] = self.random.choice([
                {"pattern": "^[a-z]+$"}, {"enum": ["a", "b", "name", "zz"]}, {"maxLength": 3},
                {"pattern": "^[ab]{1,3}$"}, {"minLength": 2}, {"pattern": "^(x|y.*)$"}])
        if self.chance(15):
            schema["minProperties"] = self.random.choice([0, 1, 2, 4])
        if self.chance(15):
            schema["maxProperties"] = self.random.choice([0, 1, 2, 4])
        return schema

    def schema(self, depth=0):
        if depth >= 4 or self.chance(4):
            return self.random.choice([True, {}, {"type": "null"}, {"type": "boolean"},
                                       {"type": "integer"}])
        kind = self.random.choice(["number", "string", "string", "object", "object", "array",
                                   "enum", "const", "types", "any", "all", "one", "ref"])
        if kind == "number":
            return self.number_schema()
        if kind == "string":
            return self.string_schema()
        if kind == "object":
            return self.object_schema(depth)
        if kind == "array":
            return self.array_schema(depth)
        if kind == "enum":
            schema = {"enum": [self.value() for _ in range(self.random.randint(1, 5))]}
            return {**self.number_schema(), **schema} if self.chance(10) else schema
        if kind == "const":
            return {"const": self.value()}
        if kind == "types":
            types = ["null", "boolean", "integer", "number", "string", "array", "object"]
            schema = self.random.choice([{}, self.string_schema(), self.array_schema(depth)])
            return {**schema, "type": self.random.sample(types, self.random.randint(1, 3))}
        if kind == "any":
            return {"anyOf": [self.schema(depth + 1) for _ in range(self.random.randint(1, 3))]}
        if kind == "all":
            return {"allOf": [self.schema(depth + 2) for _ in range(self.random.randint(1, 2))],
                    **self.random.choice([{}, self.object_schema(depth + 1)])}
        if kind == "one":
            return {"oneOf": [
                {"type": "object",
                 "properties": {"type": {"const": c}, "v": self.schema(depth + 2)},
                 "required": ["type"], "additionalProperties": False} for c in "abc"]}
        name = self.random.choice("pq")
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.random.choice([self.object_schema, self.array_schema])(
                depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def root(self):
        self.definitions = {}
        schema = self.schema()
        if self.definitions and isinstance(schema, dict):
            schema = {**schema, "$defs": self.definitions}
        elif self.definitions:
            schema = {"$defs": self.definitions, "allOf": [schema]}
        return schema


class Instances:
    """Makes values that may match a schema, with members in the order in which they are written."""

    def __init__(self, root, maker):
        self.root, self.maker, self.random = root, maker, maker.random
        self.order = {}
        self.room = 0  # values that the current one may still have
        self.number(root)

    def number(self, node):
        self.order[id(node)] = len(self.order)
        for child in node.values() if isinstance(node, dict) else \
                node if isinstance(node, list) else ():
            self.number(child)

    def active(self, schema, out):
        """Returns the schemas that apply together, with one choice of each kind."""
        if not isinstance(schema, dict) or any(schema is s for s in out):
            return
        out.append(schema)
        if "$ref" in schema:
            self.active(self.root["$defs"][schema["$ref"].rsplit("/", 1)[1]], out)
        for part in schema.get("allOf", []):
            self.active(part, out)
        for kind in ("anyOf", "oneOf"):
            if kind in schema:
                self.active(self.random.choice(schema[kind]), out)

    def make(self, schemas, depth=0):
        self.room = 2000 if depth == 0 else self.room - 1
        active = []
        for schema in schemas:
            self.active(schema, active)
        active.sort(key=lambda s: self.order[id(s)])
        for schema in active:
            if "const" in schema:
                return schema["const"]
            if schema.get("enum"):
                return self.random.choice(schema["enum"])
        types = ["null", "boolean", "integer", "number", "string", "array", "object"]
        for schema in active:
            own = schema.get("type", types)
            own = [own] if isinstance(own, str) else own
            types = [t for t in types if t in own or (t == "integer" and "number" in own)]
        if not types or depth > 8 or self.room < 0:
            return None
        return getattr(self, "make_" + self.random.choice(types))(active, depth)

    def make_null(self, active, depth):
        return None

    def make_boolean(self, active, depth):
        return self.random.random() < 0.5

    def make_integer(self, active, depth):
        low = max([s[k] for s in active for k in ("minimum", "exclusiveMinimum") if k in s],
                  default=-1000)
        step = max([s.get("multipleOf", 1) for s in active], default=1)
        return (int(low) // step + self.random.randint(0, 3)) * step

    def make_number(self, active, depth):
        if any("multipleOf" in s for s in active):
            return self.make_integer(active, depth)
        low = max([s[k] for s in active for k in ("minimum", "exclusiveMinimum") if k in s],
                  default=-10)
        if abs(low) > 1e9:
            return self.make_integer(active, depth)  # Python would write an exponent
        return round(low + self.random.random() * 2, 3)

    def make_string(self, active, depth):
        for schema in active:
            if "format" in schema:
                return FORMATS[schema["format"]]
            if "examples" in schema and self.random.random() < 0.8:
                return schema["examples"][0]
        least = max([s.get("minLength", 0) for s in active], default=0)
        text = self.maker.text()
        return text + "p" * (least - len(text))

    def make_array(self, active, depth):
        least = max([s.get("minItems", 0) for s in active], default=0)
        n = least + (self.random.randint(0, 2) if depth < 4 else 0)
        items = []
        for i in range(n):
            parts = [s["prefixItems"][i] if i < len(s.get("prefixItems", [])) else
                     s.get("items", True) for s in active]
            items.append(self.make(parts, depth + 1))
        return items

    def make_object(self, active, depth):
        names = []
        for schema in active:
            names += [n for n in schema.get("properties", {}) if n not in names]
        for schema in active:
            names += [n for n in schema.get("required", []) if n not in names]
        required = {n for s in active for n in s.get("required", [])}
        extra = self.random.sample(["a", "ab", "b", "zz", "xq", "new one"], 2) if depth < 4 else []
        extra = sorted(n for n in extra if n not in names)
        chance = 0.6 if depth < 4 else 0
        chosen = [n for n in names if n in required or self.random.random() < chance]
        chosen += extra if self.random.random() < 0.4 else []
        return {n: self.make([p for s in active for p in self.parts(s, n)], depth + 1)
                for n in chosen}

    @staticmethod
    def parts(schema, name):
        found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        found += [s for p, s in schema.get("patternProperties", {}).items() if re.search(p, name)]
        return found or [schema.get("additionalProperties", True)]


# ---- checks -------------------------------------------------------------------------------------

def format_checker():
    """Returns jsonschema's own checks, and those for which it would need other packages."""
    def has_zone(parse):
        return lambda text: parse(text).tzinfo is not None

    def matches(expression):
        return lambda text: re.fullmatch(expression, text) is not None

    own = {
        "time": has_zone(datetime.time.fromisoformat),
        "date-time": has_zone(datetime.datetime.fromisoformat),
        "duration": matches(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)"),
        "hostname": matches(r"(?=.{1,253}$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
                            r"(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*"),
        "uri": lambda text: bool(urllib.parse.urlsplit(text).scheme),
    }
    checker = jsonschema.FormatChecker()
    for name, check in own.items():
        checker.checks(name, raises=ValueError)(
            lambda text, check=check: not isinstance(text, str) or check(text))
    return checker


def as_ecma(pattern):
    """Translates the patterns made here from ECMA-262 to Python, for re.ASCII."""
    return pattern.replace("$", r"\Z").replace(".", "[^\n\r\u2028\u2029]")


def check_pattern(_validator, pattern, instance, _schema):
    if isinstance(instance, str) and not re.search(as_ecma(pattern), instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern}")


VALIDATOR = jsonschema.validators.extend(jsonschema.Draft202012Validator,
                                         {"pattern": check_pattern})


def no_name_twice(pairs):
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError(f"a name twice: {[name for name, _ in pairs]}")
    return dict(pairs)


def check_answers(schema, answers, validator):
    for text in answers:
        if text is None:
            continue
        value = json.loads(text, object_pairs_hook=no_name_twice)
        errors = [e.message for e in validator.iter_errors(value)]
        if errors:
            sys.exit(f"not valid: {text}\nschema: {json.dumps(schema)}\n{errors[0]}")


def has_plain_names(value):
    """Names are written without unnecessary escapes."""
    if isinstance(value, dict):
        return all(n.isascii() and has_plain_names(v) for n, v in value.items())
    return not isinstance(value, list) or all(has_plain_names(v) for v in value)


def writings(value):
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value, ensure_ascii=has_plain_names(value))
    yield json.dumps(value, indent=2, ensure_ascii=False)


def has_short_numbers(value):
    """Longer numbers are written only where bounds demand them."""
    if isinstance(value, (dict, list)):
        return all(map(has_short_numbers, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, (int, float)) or abs(value) < 1e15


def check_emptiness(schema, error, maker, validator):
    """If no value satisfies the schema, no instance made for it does."""
    instances = Instances(schema, maker)
    for _ in range(30 if "no value satisfies" in error else 0):
        value = instances.make([schema])
        if validator.is_valid(value):
            sys.exit(f"refused though {json.dumps(value)} fits\nschema: {json.dumps(schema)}")


def check_instances(grammar, schema, maker, validator):
    """Returns how many were accepted; all must be."""
    instances, found = Instances(schema, maker), []
    for _ in range(12):
        value = instances.make([schema])
        try:
            if validator.is_valid(value):
                found.append(value)
        except (TypeError, OverflowError):
            continue
    texts = [text for value in found[:4] for text in writings(value)]
    accepted = grammar.ask(schema, accept=texts)["accepted"] if texts else []
    for text, is_accepted in zip(texts, accepted):
        if not is_accepted and has_short_numbers(json.loads(text)):
            sys.exit(f"valid but not accepted: {text}\nschema: {json.dumps(schema)}")
    return len(texts)


REFUSED = [
    ('{"type": "array", "uniqueItems": true}', "uniqueItems", "#"),
    ('{"properties": {"a": {"not": {}}}}', "not", "#/properties/a"),
    ('{"if": {}}', "if", "#"), ('{"contains": {}}', "contains", "#"),
    ('{"nullable": true}', "nullable", "#"),
    ('{"items": {"dependentRequired": {}}}', "dependentRequired", "#/items"),
    ('{"unevaluatedProperties": false}', "unevaluatedProperties", "#"),
    ('{"$ref": "other.json"}', "$ref", "#"), ('{"$ref": "#/$defs/none"}', "$ref", "#"),
    ('{"$ref": "#"}', "$ref", "#"),
    ('{"anyOf": [{"$ref": "#"}, {"type": "null"}]}', "$ref", "#"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf", "#"),
    ('{"pattern": "(?=a)"}', "pattern", "#"), ('{"pattern": "\\\\bfoo"}', "pattern", "#"),
    ('{"pattern": "(a)\\\\1"}', "pattern", "#"), ('{"pattern": "("}', "pattern", "#"),
    ('{"pattern": "\\\\p{L}"}', "pattern", "#"),
    ('{"pattern": "(a|b)*a(a|b){30}"}', "pattern", "#"),
    ('{"multipleOf": 0.01}', "multipleOf", "#"), ('{"type": "text"}', "type", "#"),
    ('{"minLength": -1}', "minLength", "#"),
    ('{"exclusiveMinimum": true}', "exclusiveMinimum", "#"),
    ('{"allOf": []}', "allOf", "#"), ('{"properties": {"a": 1}}', "properties", "#"),
    ("false", "no value satisfies", ""),
    ('{"type": "integer", "minimum": 3, "maximum": 2}', "no value", ""),
    ('{"type": "object", "required": ["a"], "additionalProperties": false}', "no value", ""),
    ('{"$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "required": '
     '["t"]}}, "$ref": "#/$defs/t"}', "no value", ""),
    ('{"a": 1, "a": 2}', "twice", "#"), ("{", "not JSON", ""), ("[1]", "not a schema", "#"),
]


def hostile():
    deep = '{"items":' * 120 + "{}" + "}" * 120
    yield deep
    yield '{"items":' * 200 + "{}" + "}" * 200
    yield '{"allOf":[' * 60 + "{}" + "]}" * 60
    yield json.dumps({"allOf": [{"anyOf": [{"minimum": i * 10 + j} for j in range(10)]}
                                for i in range(12)]})
    yield json.dumps({"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 10}
                                for i in range(50)} | {"d50": {"type": "null"}},
                      "$ref": "#/$defs/d0"})
    yield json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(5000)}})
    yield json.dumps({"enum": [f"value {i}" for i in range(20000)]})
    yield json.dumps({"type": "string", "pattern": "a{1000}{1000}"})
    yield json.dumps({"type": "string", "pattern": "(" * 3000 + ")" * 3000})
    yield json.dumps({"type": "string", "pattern": "^(.*a){60}$"})
    yield json.dumps({"type": "string", "pattern": "[^a]" * 4000})
    yield json.dumps({"type": "string", "pattern": "^.{1,9000}$", "maxLength": 9000})
    yield '{"minimum": 1e999999999, "type": "number"}'
    yield '{"type": "integer", "minimum": ' + "9" * 100000 + "}"
    yield json.dumps({"type": "object", "patternProperties": {f"a.{{{i}}}b": {} for i in
                                                               range(5)}})
    yield json.dumps({"$defs": {"n": {"type": "object", "properties": {
        c: {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}]} for c in "abc"}},
        "m": {"type": "object", "properties": {
            c: {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/m"}]} for c in "abc"}}},
        "$ref": "#/$defs/n"})
    yield "[" * 1000000


def check_refusals(grammar):
    for schema, keyword, where in REFUSED:
        error = grammar.ask(schema, accept=[]).get("error", "")
        if keyword not in error or where not in error:
            sys.exit(f"{schema}: expected an error with '{keyword}' and '{where}', got '{error}'")
    slowest = 0
    for schema in hostile():
        start = time.time()
        grammar.ask(schema, seeds=1, first_seed=1, tokens=10, bias=50)
        slowest = max(slowest, time.time() - start)
    if slowest > 600:  # without a limit it takes days
        sys.exit(f"a hostile schema takes {slowest:.1f} s")
    return slowest


AJV = """
const Ajv = require("ajv/dist/2020").default, formats = require("ajv-formats").default;
const lines = require("readline").createInterface({input: process.stdin});
lines.on("line", line => {
    const [schema, answers] = JSON.parse(line);
    const ajv = new Ajv({strict: false, validateFormats: true});
    formats(ajv);
    const validate = ajv.compile(schema);
    for (const text of answers)
        if (text !== null && !validate(JSON.parse(text)))
            console.log(text + " " + JSON.stringify(schema) + ajv.errorsText(validate.errors));
});
"""


def check_with_ajv(folder, cases):
    """Skips schemas with numbers that a double cannot hold, because ajv rounds them."""
    def is_small(node):
        if isinstance(node, (dict, list)):
            return all(is_small(c) for c in (node.values() if isinstance(node, dict) else node))
        return not isinstance(node, int) or abs(node) < 2**50
    lines = "".join(json.dumps(case) + "\n" for case in cases if is_small(case[0]))
    done = subprocess.run(["node", "-e", AJV], cwd=folder, input=lines, capture_output=True,
                          text=True, check=False)
    if done.returncode or done.stdout:
        sys.exit(f"ajv: {done.stdout[:2000]}{done.stderr[:2000]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("--schemas", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ajv")
    parser.add_argument("--model", action="store_true")
    options = parser.parse_args()
    grammar = Grammar(options.program, options.tokenizer)
    slowest = 0 if options.model else check_refusals(grammar)
    counts = {"schemas": 0, "refused": 0, "answers": 0, "unfinished": 0, "instances": 0}
    cases = []
    for i in range(options.schemas):
        maker = Maker(options.seed * 1000003 + i)
        schema = maker.root()
        reply = grammar.ask(schema, seeds=1 if options.model else 4, first_seed=i * 10, tokens=60,
                            bias=maker.random.choice([1, 10, 200]))
        validator = VALIDATOR(schema, format_checker=format_checker())
        if "error" in reply:
            if "no value satisfies" not in reply["error"] and "oneOf" not in reply["error"]:
                sys.exit(f"{json.dumps(schema)}\nis refused: {reply['error']}")
            counts["refused"] += 1
            check_emptiness(schema, reply["error"], maker, validator)
            continue
        check_answers(schema, reply["answers"], validator)
        cases.append([schema, reply["answers"]])
        counts["schemas"] += 1
        counts["answers"] += sum(a is not None for a in reply["answers"])
        counts["unfinished"] += sum(a is None for a in reply["answers"])
        if not options.model:
            counts["instances"] += check_instances(grammar, schema, maker, validator)
    if options.ajv:
        check_with_ajv(options.ajv, cases)
    print(", ".join(f"{n} {name}" for name, n in counts.items()),
          f"; the slowest hostile schema takes {slowest:.2f} s")
    wanted = options.schemas // 3 if options.model else options.schemas
    if counts["answers"] < wanted or (counts["instances"] < wanted and not options.model):
        sys.exit("too few answers or instances to mean anything")


if __name__ == "__main__":
    main()
