"""nano, configured for more positions, with a chat template that writes tools out.

Agents send prompts of up to 30,000 of nano's tokens. nano was trained on 4,096 positions, and its
own template leaves tools out. Its answers beyond that are nonsense, but computed like any other
answer. They would rarely end, so the first full stop or end of line ends them. Everything except
three files is a link to the model in the repository.
"""
import ctypes
import ctypes.util
import json
import os
import pathlib

NANO = pathlib.Path(__file__).resolve().parents[2] / "models" / "nano.fmoe"
POSITIONS = 131072
# "\n", ".", ".\n", ".\n\n"
ENDS = [198, 13, 280, 411]

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Functions, one per line:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is written <tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def checksum(data):
    """Returns the checksum that PACKED.md describes, from the library that the program uses."""
    library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


def make(target, n_positions=POSITIONS, template=TEMPLATE):
    """Writes the model into `target`, which must not exist."""
    target = pathlib.Path(target)
    target.mkdir()
    model = json.loads((NANO / "model.json").read_text())
    del model["self"]
    model["config"]["max_position_embeddings"] = n_positions
    generation = json.loads((NANO / "generation_config.json").read_text())
    generation["eos_token_id"] += ENDS
    changed = {"chat_template.jinja": template.encode(),
               "generation_config.json": json.dumps(generation).encode()}
    for entry in os.scandir(NANO):
        if entry.name in changed:
            (target / entry.name).write_bytes(changed[entry.name])
        elif entry.name != "model.json":
            (target / entry.name).symlink_to(entry.path)
    for file in model["files"]:
        if file["name"] in changed:
            data = changed[file["name"]]
            file.update(bytes=len(data), xxh3_128=checksum(data))
    body = json.dumps(model, indent=1)[:-len("\n}")].encode()
    (target / "model.json").write_bytes(body + b',\n "self": "%s"\n}\n' %
                                        checksum(body).encode())
    return target
