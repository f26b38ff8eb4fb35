"""The reference for chat templates: Python's jinja2 as transformers configures it.

An immutable sandbox with trim_blocks, lstrip_blocks, loop controls and {% generation %}; tojson is
json.dumps without ASCII escapes; raise_exception and strftime_now are there. The clock is held.
Unlike in transformers, append and pop of a list work: llama.cpp's templates of Kimi-K2 use them.
"""
import copy
import datetime
import functools
import json
import struct
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = 1_790_000_123
TRUSTED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Generation(jinja2.ext.Extension):
    """{% generation %}: its text, which transformers marks for training."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("text_of")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def text_of(self, caller):
        return caller()


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj, attr, value):
        return (type(obj) is list and attr in ("append", "pop")) or \
            super().is_safe_attribute(obj, attr, value)


def environment():
    env = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.utcfromtimestamp(NOW).strftime(form)

    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=4)
def compiled(source):
    return ENVIRONMENT.from_string(source)


def render(source, variables):
    """Returns (True, text) or (False, reason)."""
    try:
        # Some filters of jinja2 change their argument list by mistake.
        text = compiled(source).render(**{**TRUSTED, **copy.deepcopy(variables)})
        text.encode()
        return True, text
    except Exception as error:  # pylint: disable=broad-except
        return False, f"{type(error).__name__}: {error}"


def ours(program, cases):
    """Renders many (source, variables) with render_templates."""
    records = []
    for source, variables in cases:
        document = {"variables": variables, "trusted": TRUSTED, "now": NOW}
        for text in (source.encode(), json.dumps(document).encode()):
            records.append(struct.pack("=I", len(text)) + text)
    done = subprocess.run([program], input=b"".join(records), stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed with status {done.returncode}")
    results, at = [], 0
    while at < len(done.stdout):
        status, n = struct.unpack_from("=II", done.stdout, at)
        at += 8
        results.append((status == 0, done.stdout[at:at + n].decode()))
        at += n
    return results


def agree(official, own):
    """Returns whether both give the same text or both refuse."""
    return official == own if official[0] and own[0] else official[0] == own[0]
