"""Random templates: expressions, filters, tests, methods, slices, loops, scopes, white space.

Everything a template can say is drawn from tables, mostly with arguments that fit. Nothing is drawn
that depends on addresses, random numbers or integers of more than 64 bits.
"""
VARIABLES = {
    "s": "Hello World", "t": "  <b>x & 'y'</b>\n\tz ", "u": "Zürich ß ǅ İ ΑΣ 日本語 😀", "e": "",
    "n": 7, "m": -3, "z": 0, "f": 2.5, "g": 0.125, "h": 1e16, "b": True, "c": False,
    "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "x": [], "mixed": [1, "1", 1.0, None],
    "d": {"b": 1, "a": [1, 2], "C": {"k": "v"}}, "q": {},
    "rows": [{"k": "x", "v": 1, "deep": {"i": [4, 5]}}, {"k": "Y", "v": 2},
             {"k": "x", "v": 0, "deep": {"i": [6]}}],
    "nested": [[1, 2], [3, [4, "five"]]], "json": {"a": 1.5, "b": [True, None], "é": "\u2028\x7f"},
    "lines": "one\n\n  two\r\nthree\x0bfour", "num": "42", "real": " -3.75 ", "hex": "0x1F",
}
FILTERS = """abs|upper|lower|title|capitalize|trim|length|first|last|list|string|safe|escape
int|float|round|round(1)|round(1, 'floor')|round(0, 'ceil')|sort
sort(reverse=true)|sort(attribute='k')|sort(attribute='v,k')|unique|join
join(', ')|join('-', attribute='v')|reverse|default('D')|default('D', true)|d
tojson|tojson(indent=2)|tojson(sort_keys=true)|tojson(ensure_ascii=true)
tojson(separators=(',', ':'))|dictsort|dictsort(by='value')
dictsort(true, reverse=true)|items|items|list|replace('l', 'L')|replace('', '.')
replace('o', '0', 1)|indent|indent(2, true)|indent(width='> ', blank=true)
truncate(5)|truncate(6, true)|truncate(7, end='!', leeway=0)|urlencode
map('upper')|map('upper')|list|map(attribute='v')|map(attribute='deep.i.0')
map(attribute='zz', default=9)|list|map('int')|list|select|list|select('odd')
list|select('gt', 1)|list|reject('none')|list|reject('string')|list
selectattr('v')|list|selectattr('k', 'equalto', 'x')|list|rejectattr('deep')
list|rejectattr('v', 'lt', 2)|list|sum|sum(attribute='v')|sum(start=5)|min|max
max(attribute='v')|min(case_sensitive=true)|batch(2)|list|batch(2, '-')|list
slice(2)|list|slice(2, 0)|list|groupby('k')|groupby('k')|list|count|center(20)
format(1, 2)|filesizeformat|filesizeformat(true)|xmlattr|attr('k')|forceescape|e
int(5)|int(0, 16)|float(1.5)|list|tojson|string|length|string|upper|trim('H d')
list|length|first|string|groupby('k')|map(attribute='list')|list|unique|list
reverse|list|batch(3)|map('join')|list"""
TESTS = """defined|undefined|none|string|number|integer|float|boolean|true|false|mapping
sequence|iterable|callable|odd|even|divisibleby 3|divisibleby(2)|lower|upper
sameas none|sameas true|in l|in s|in d|eq 7|equalto 'x'|ne 1|lt 5|le 7|gt 2
ge 2.5|escaped|filter|test"""
METHODS = """upper()|lower()|title()|capitalize()|swapcase()|casefold()|strip()|strip('Hd ')
lstrip()|rstrip()|lstrip('He')|rstrip('\\n ')|split()|split('o')|split(' ', 1)
split(sep='l', maxsplit=1)|rsplit()|rsplit(' ', 1)|rsplit('l')|splitlines()
splitlines(true)|startswith('He')|endswith('d')|startswith(('x', 'H'))
startswith('l', 2)|endswith('o', 0, 5)|find('o')|find('o', 5)|rfind('o')
index('l')|rindex('l')|count('l')|count('')|replace('l', '_')
replace('o', '', 1)|join(w)|join(['a'])|partition(' ')|rpartition('o')
removeprefix('He')|removesuffix('ld')|center(15)|center(16, '*')|ljust(14, '.')
rjust(14)|zfill(5)|expandtabs()|expandtabs(4)|isalpha()|isdigit()|isalnum()
isspace()|isupper()|islower()|istitle()|isascii()|isprintable()|format(1, a=2)
get('a')|get('zz', 5)|get('b')|items()|keys()|values()|items()|list|copy()
index(1)|count(1)|append(1)|pop()|update(a=1)|zz|a|b|C.k|k|v|0|0.k|items|keys
split|deep.i|deep"""
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in",
             "not in", "and", "or"]
LITERALS = ["0", "1", "2", "3.5", "1e3", "0x10", "1_000", "'a'", "'lo'", "\"it's\"",
            "'%s-%s'", "'%(b)s'", "'%5.2f|%-4d|%x'", "'{}{1}'", "'{0:>5}|{a!r}'",
            "'\\n\\t\\x41\\u00e9'", "[]", "[1, 'x']", "()", "(1,)", "(1, 2)", "{}",
            "{'a': 1, 2: [3]}", "true", "False", "none", "undef", "'a' 'b'", "range(3)",
            "range(1, 10, 4)", "range(5, 0, -2)", "dict(a=1)"]
SLICES = ["0", "1", "-1", "5", "'a'", "'k'", "n", ":", "1:", ":-1", "::2", "::-1", "-3:-1",
          "5:1:-2", ":2:", "1:100", "none"]
TEXTS = ["text", " ", "\n", "  \n", "\n  ", "a\n b\n", "{{ '' }}", "{# note #}", " {#- x -#} ",
         "{% raw %} {{ no }} {% endraw %}", "\t", "x\r\ny", "{{- n -}}", "{{+ n }}"]


def words(table):
    return [word for line in table.split("\n") for word in line.split("|")]


# words() has split filters that contain a pipe; the parts are filters too.
FILTER_WORDS, TEST_WORDS, METHOD_WORDS = words(FILTERS), words(TESTS), words(METHODS)


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.names = []

    def name(self):
        return self.rng.choice(list(VARIABLES) + self.names + self.names)

    def atom(self):
        return self.rng.choice(LITERALS) if self.rng.random() < 0.35 else self.name()

    def expression(self, depth=3):
        rng = self.rng
        if depth == 0:
            return self.atom()
        inner = lambda: self.expression(rng.randrange(depth))
        kind = rng.randrange(12)
        if kind < 4:
            return f"{inner()}|{rng.choice(FILTER_WORDS)}"
        if kind == 4:
            return f"{self.atom()} is {rng.choice(['', 'not '])}{rng.choice(TEST_WORDS)}"
        if kind == 5:
            return f"{self.atom()}.{rng.choice(METHOD_WORDS)}"
        if kind == 6:
            # jinja2 evaluates constants in advance, with other errors
            return f"({self.name()})[{rng.choice(SLICES)}]"
        if kind == 7:
            return f"({inner()} if {inner()} else {inner()})"
        if kind == 8:
            return f"{rng.choice(['not ', '-', '+', ''])}({inner()})"
        if kind == 9:
            return f"[{inner()}, {inner()}]"
        return f"({inner()}) {rng.choice(OPERATORS)} ({inner()})"

    def tag(self, text):
        opening = self.rng.choice(["{%", "{%", "{%", "{%-", "{%+"])
        closing = self.rng.choice(["%}", "%}", "%}", "-%}", "+%}"])
        return f"{opening} {text} {closing}"

    def fresh(self):
        return self.rng.choice(["v1", "v2", "v3", "n", "s", "loop", "ns"])

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))

    def loop(self, depth):
        rng, name = self.rng, self.rng.choice(["i", "v1", "n"])
        over = rng.choice(["l", "w", "rows", "x", "d", "range(3)", "undef", "s[:3]", "d.items()",
                           self.expression(1)])
        target = f"{name}, v2" if over == "d.items()" else name
        where = rng.choice(["", "", f" if {name}", f" if {self.expression(1)}"])
        kept, self.names = self.names, self.names + [name, "loop.index", "loop.last", "loop.first",
                                                     "loop.length", "loop.revindex0", "v2",
                                                     "loop.previtem", "loop.nextitem",
                                                     "loop.cycle('a', 'b')", "loop.changed(n)"]
        body = self.block(depth - 1)
        if rng.random() < 0.2:
            body += self.tag(f"if {self.expression(1)}") + self.tag(
                rng.choice(["break", "continue"])) + self.tag("endif")
        self.names = kept
        other = self.tag("else") + self.block(depth - 1) if rng.random() < 0.2 else ""
        return self.tag(f"for {target} in {over}{where}") + body + other + self.tag("endfor")

    def macro(self, depth):
        rng = self.rng
        kept, self.names = self.names, self.names + ["p1", "p2", "varargs", "kwargs"]
        body = self.block(depth - 1)
        if rng.random() < 0.3:
            body += "{{ caller() }}"
        self.names = kept
        call = rng.choice(["mac()", "mac(1)", "mac(n, s)", "mac(p2=l)", "mac(1, 2, 3)", "mac(q=1)",
                           "mac(*l)", "mac(**{'p1': 5})"])
        made = self.tag(f"macro mac(p1, p2={self.expression(1)})") + body + self.tag("endmacro")
        if rng.random() < 0.3:
            return made + self.tag(f"call {call}") + self.block(depth - 1) + self.tag("endcall")
        return made + "{{ " + call + " }}"

    def statement(self, depth):
        rng = self.rng
        kind = rng.randrange(14)
        if depth == 0 or kind < 4:
            return rng.choice(TEXTS) + "{{ " + self.expression() + " }}"
        if kind < 6:
            return rng.choice(TEXTS)
        if kind == 6:
            parts = [self.tag(f"if {self.expression(2)}"), self.block(depth - 1)]
            if rng.random() < 0.4:
                parts += [self.tag(f"elif {self.expression(1)}"), self.block(depth - 1)]
            if rng.random() < 0.5:
                parts += [self.tag("else"), self.block(depth - 1)]
            return "".join(parts) + self.tag("endif")
        if kind < 9:
            return self.loop(depth)
        if kind == 9:
            name = self.fresh()
            value = self.expression(2)
            self.names.append(name)
            if rng.random() < 0.3:
                names = rng.choice(["v1, v2", "(v1, v2)"])
                return self.tag(f"set {names} = {value}, {self.expression(1)}")
            return self.tag(f"set {name} = {value}")
        if kind == 10:
            body = self.block(depth - 1)
            self.names.append("v3")
            return self.tag(f"set v3{rng.choice(['', ' | upper', ' | trim | length'])}") + body + \
                self.tag("endset")
        if kind == 11:
            self.names.append("ns.a")
            return self.tag(f"set ns = namespace(a={self.expression(1)})") + self.tag(
                f"set ns.a = {self.expression(1)}")
        if kind == 12:
            return self.macro(depth)
        opening, closing = rng.choice([
            (f"with v1 = {self.expression(1)}, v2 = v1", "endwith"), ("filter upper", "endfilter"),
            ("filter replace('l', '1') | trim", "endfilter"), ("generation", "endgeneration")])
        return self.tag(opening) + self.block(depth - 1) + self.tag(closing)

    def template(self):
        self.names = []
        return self.block(3) + self.rng.choice(["", "\n", "\n\n", " "])

    def one_expression(self):
        self.names = []
        return "{{ " + self.expression(3) + " }}"
