"""Writes a model that says what a script says, to test everything around a model.

make(DIR) writes a Hugging Face directory: a qwen3_moe of one layer whose attention and experts are
zero, so that the next token follows from the last one alone. The chat template ends a prompt with
the last character of the last message, and that character chooses the script: a list of pieces,
each a token of its own that leads to the next, then the end of the turn. A script that ends with
itself never ends. The checkpoint is like any other; nothing in the program knows of it.
"""
import json
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "format"))
import safetensors_file # pylint: disable=wrong-import-position

SCRIPTS = {
    "A": ["Hello", " there", ", world."],
    "R": ["<think>\nLet me", " think", ".\n</think>\n\n", "Forty", "-two."],
    "T": ['<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": "Par', 'is", "days": ',
          "3}}\n</tool_call>"],
    "U": ["<think>\nTwo calls", " are needed\n</think>\n\n", "I look it up.", "\n<tool_call>\n",
          '{"name": "get_weather", "arguments": {"city":', ' "Rome"}}\n</tool_call>',
          '\n<tool_call>\n{"name": "get_time"', ', "arguments": {}}', "\n</tool_call>"],
    "X": ["<tool_call>\n<function=get_weather>\n", "<parameter=city>\nOslo", "\n</parameter>\n",
          "<parameter=days>\n2\n</parameter>\n", "</function>\n</tool_call>"],
    "B": ['<tool_call>\n{"name": "get_weather", "arguments": {"city": ', "oops not JSON"],
    "F": ['<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", ',
          '"days": 0.1234567890123, "at": 123456789012345678901}}\n</tool_call>'],
    "J": ["\u00e9t\u00e9 ", "\u65e5\u672c", "\u8a9e \U0001f600"],
    "L": ["la ", None],
    "O": ['{"city": "Os', 'lo", "days": 2}'],
    "P": ['<tool_call>\n{"name": "get_weather", "arg', 'uments": {"city": "Kyiv", ',
          '"days": 3}}\n</', "tool_call>"],
    "W": ["<tool_call>", '\n{"name": "get_weather", "arguments": {"city": "Bo', 'nn"}}\n',
          "</tool_call>", '\n<tool_call>\n{"name": "get_time", "arguments": {}}',
          "\n</tool_call>\n", "And so on."],
    "Z": ["zigzag, " * 64, None],
}
# The pieces of these scripts are ordinary tokens, which an answer that must be JSON may contain.
# Those of the others are added tokens, so that a text is tokenized as it was written.
ORDINARY = "OPW"
TAGS = ("<tool_call>", "</tool_call>")
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>tools\\n' + (tools | length | string) + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > 0 %}"
    "{{- messages[loop.index0 - 1].content[-1:] }}{%- endif %}"
    "{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{{- m.content }}"
    "{%- if m.content == 'sum of unlike types' %}{{- m.content + 1 }}{%- endif %}"
    "{%- for c in m.tool_calls or [] %}"
    "{{- '\\n<tool_call>' + (c.function | tojson) + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' + messages[-1].content[-1:] }}{%- endif %}"
)
HIDDEN, EXPERTS, WIDTH, HEAD_DIM = 256, 4, 64, 32
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
PATTERN = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
           "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def byte_characters():
    """Returns the printable character for each byte in a byte-level vocabulary."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in kept:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def tokenizer(scripts, special):
    """Returns the file, the ids of the bytes, and the ids of the scripts' pieces."""
    characters = byte_characters()
    vocabulary = {text: i for i, text in enumerate(special)}
    bytes_ids = {byte: len(special) + byte for byte in range(256)}
    vocabulary.update({characters[byte]: i for byte, i in bytes_ids.items()})
    added = [{"id": i, "content": text, "special": True} for i, text in enumerate(special)]
    pieces = {}
    for key, script in scripts.items():
        for text in script:
            if text is None:
                continue
            assert (text not in pieces), text
            if text in special:
                pieces[text] = special.index(text)
                continue
            pieces[text] = len(special) + 256 + sum(text not in special for text in pieces)
            if key in ORDINARY and text not in TAGS:
                vocabulary["".join(characters[b] for b in text.encode())] = pieces[text]
                continue
            added.append({"id": pieces[text], "content": text, "special": False})
    for token in added:
        token.update(single_word=False, lstrip=False, rstrip=False, normalized=False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated",
             "invert": False}, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }
    return file, bytes_ids, pieces


def successors(scripts, bytes_ids, pieces):
    """Returns the token that follows each one."""
    follows = {}
    for key, script in scripts.items():
        ids = [bytes_ids[ord(key)], *(pieces[text] for text in script if text is not None)]
        for a, b in zip(ids, ids[1:]):
            follows[a] = b
        follows[ids[-1]] = ids[-1] if script[-1] is None else 1
    return follows


def bf16(values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def tensors(n_tokens, follows):
    source = random.Random(1)
    embedding = [[source.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(n_tokens)]
    head = [[0.0] * HIDDEN for _ in range(n_tokens)]
    for before, after in follows.items():
        head[after] = [a + b for a, b in zip(head[after], embedding[before])]
    flat = lambda rows: [value for row in rows for value in row]
    found = {"model.embed_tokens.weight": ([n_tokens, HIDDEN], flat(embedding)),
             "lm_head.weight": ([n_tokens, HIDDEN], flat(head)),
             "model.norm.weight": ([HIDDEN], [1.0] * HIDDEN)}
    layer = "model.layers.0."
    for name, shape in (("input_layernorm", [HIDDEN]), ("post_attention_layernorm", [HIDDEN]),
                        ("self_attn.q_norm", [HEAD_DIM]), ("self_attn.k_norm", [HEAD_DIM])):
        found[layer + name + ".weight"] = (shape, [1.0] * shape[0])
    for name in "qkvo":
        found[layer + f"self_attn.{name}_proj.weight"] = ([HIDDEN, HIDDEN], [0.0] * HIDDEN ** 2)
    found[layer + "mlp.gate.weight"] = ([EXPERTS, HIDDEN], [0.0] * EXPERTS * HIDDEN)
    for i in range(EXPERTS):
        for name, shape in (("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]),
                            ("down", [HIDDEN, WIDTH])):
            found[layer + f"mlp.experts.{i}.{name}_proj.weight"] = (shape,
                                                                   [0.0] * WIDTH * HIDDEN)
    return found


def write_safetensors(path, found):
    header, data = {}, b""
    for name, (shape, values) in found.items():
        more = bf16(values)
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    path.write_bytes(safetensors_file.framed(header, data))


def make(folder, context=4096, scripts=None, template=None, special=()):
    """scripts, template: other ones. special: more special tokens, which may be pieces."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scripts, special = scripts or SCRIPTS, [*SPECIAL, *special]
    file, bytes_ids, pieces = tokenizer(scripts, special)
    n_tokens = len(special) + 256 + sum(text not in special for text in pieces)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "attention_bias": False, "decoder_sparse_step": 1, "eos_token_id": 1,
        "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "max_position_embeddings": context, "mlp_only_layers": [],
        "moe_intermediate_size": WIDTH, "norm_topk_prob": True,
        "num_attention_heads": HIDDEN // HEAD_DIM, "num_key_value_heads": HIDDEN // HEAD_DIM,
        "num_experts_per_tok": 2, "num_experts": EXPERTS, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": n_tokens, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(template or TEMPLATE)
    write_safetensors(folder / "model.safetensors",
                      tensors(n_tokens, successors(scripts, bytes_ids, pieces)))
    return folder
