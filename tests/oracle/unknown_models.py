#!/usr/bin/env python3
"""Models with experts that this version does not run must be refused by name.

usage: unknown_models.py freeze
       unknown_models.py check FLASHMOE

`freeze` writes unknown_models.json next to this file: for every model type of transformers whose
configuration counts experts, the defaults of its configuration class with few layers and experts,
and the names and shapes of its parameters. It needs torch and transformers. `check` makes a
checkpoint without weights of each and opens it. The message must name the type, the nearest family
that this version runs, and what that family lacks. Types that this version runs are left out. It
needs only the standard library.
"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FROZEN = HERE / "unknown_models.json"
# The nearest families of types that were derived from one: a person would say the same.
DERIVED = {
    "qwen3_vl_moe": {"qwen3_moe"}, "qwen3_vl_moe_text": {"qwen3_moe"},
    "qwen3_omni_moe_text": {"qwen3_moe"}, "glm4v_moe": {"glm4_moe"}, "glm4v_moe_text": {"glm4_moe"},
    "solar_open": {"glm4_moe"}, "deepseek_v32": {"deepseek_v3"},
    "axk1": {"deepseek_v3", "glm4_moe_lite"},
    "glm_moe_dsa": {"deepseek_v3", "glm4_moe_lite"},
    "phimoe": {"mixtral"}, "minimax": {"mixtral", "minimax_m2"}, "flex_olmo": {"olmoe"},
    "qwen4_exp_text": {"qwen3_5_moe", "qwen3_next"}, "mistral4": {"deepseek_v3", "glm4_moe_lite"},
}
# What the message about a model of a family of ours ends with when only its type is unknown.
OWN = {name: f'the nearest family that it runs is "{name}"' for name in (
    "deepseek_v3", "glm4_moe", "glm4_moe_lite", "gpt_oss", "minimax_m2", "mixtral", "olmoe",
    "qwen2_moe", "qwen3_5_moe", "qwen3_moe", "qwen3_next")}
OWN["qwen3_5_moe_text"] = OWN["qwen3_5_moe"]
OWN["kimi_k25"] = OWN["deepseek_v3"]
# Beginnings of names whose checkpoints have others than transformers' parameters.
RENAMED = {"kimi_k25": (("model.language_model.", "language_model.model."),
                        ("model.vision_tower.", "vision_tower."),
                        ("model.mm_projector.", "mm_projector."),
                        ("lm_head.", "language_model.lm_head."))}
# Fields that a family computes otherwise, or not at all, and that must be among those it lacks.
LACKS = {"deepseek_v32": "index_", "glm_moe_dsa": "index_", "ernie4_5_moe": "moe_k",
         "granitemoe": "multiplier", "longcat_flash": "zero_expert_num", "dbrx": "ffn_config"}


def counts_experts(config, depth=0):
    for key, value in config.items():
        if "expert" in str(key) and isinstance(value, int) and not isinstance(value, bool):
            return True
        if isinstance(value, dict) and depth < 3 and counts_experts(value, depth + 1):
            return True
    return False


# ---- what is frozen ---------------------------------------------------------------------------


def shorten(config):
    """Sets two layers, also in the configurations inside. Per-layer lists must have as many."""
    inner = [config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))]
    for one in inner:
        n = getattr(one, "num_hidden_layers", None)
        if not isinstance(n, int):
            continue
        for name, value in list(vars(one).items()):
            if isinstance(value, list) and len(value) == n:
                setattr(one, name, value[:2])
        for name in ("num_hidden_layers", "first_k_dense_replace", "num_dense_layers"):
            if isinstance(getattr(one, name, None), int):
                setattr(one, name, min(getattr(one, name), 2 if name.startswith("num_h") else 1))


def parameters_of(config):
    """Returns the names of the model's parameters, or none where it cannot be made of defaults."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText
    for kind in (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModel):
        try:
            with torch.device("meta"):
                return sorted(name for name in kind.from_config(config).state_dict()
                              if not re.search(r"\.(?:[2-9]|\d\d+)\.", name) and
                              not re.search(r"visual|vision|audio|image", name))
        except Exception:  # another class may know it
            continue
    return []


def freeze():
    import logging
    import warnings
    import transformers
    from transformers import CONFIG_MAPPING
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    lines = []
    for name in sorted(CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # the class has no defaults
            continue
        if not counts_experts(config.to_dict()):
            continue
        shorten(config)
        if name == "glm4_moe":
            config.head_dim = 128  # as its checkpoints have it: the default is an odd number
        fields = json.loads(config.to_json_string(use_diff=False))
        for key in ("transformers_version", "id2label", "label2id", "vision_config",
                    "audio_config", "talker_config", "code2wav_config"):
            fields.pop(key, None)
        found = parameters_of(config)
        print(name, len(found), flush=True)
        lines.append(json.dumps([name, fields, found], separators=(",", ":")))
    FROZEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


# ---- the check --------------------------------------------------------------------------------


def write_model(folder, fields, tensors):
    """A checkpoint whose tensors have one element each."""
    header = {name: {"dtype": "BF16", "shape": [1, 1], "data_offsets": [2 * i, 2 * i + 2]}
              for i, name in enumerate(tensors or ["model.embed_tokens.weight"])}
    head = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head +
                                               bytes(2 * len(header)))


def inspect(program, fields, tensors):
    with tempfile.TemporaryDirectory() as folder:
        write_model(pathlib.Path(folder), fields, tensors)
        done = subprocess.run([program, "inspect", folder], capture_output=True, text=True)
        return done.returncode, done.stderr


def fault_of(name, fields, status, said, families):
    """Returns what is wrong with a message; None if nothing is."""
    if status != 1 or said.count("\n") != 1:
        return f"status {status}: {said}"
    if f"field 'model_type' is \"{name}\"" not in said:
        return f"does not name the type: {said}"
    nearest = re.search(r'nearest family that it runs is "(\w+)"', said)
    if not nearest or nearest[1] not in families:
        return f"names no family that this version runs: {said}"
    if nearest[1] not in DERIVED.get(name, families):
        return f"{nearest[1]} is not the nearest: {said}"
    parts = dict(re.findall(r"; ((?:fields|tensors) [^:]*): ([^;\n]*)", said))
    if not parts:
        return f"says nothing that is missing: {said}"
    text = fields.get("text_config", fields)
    for field in re.split(r", | and (?:at least )?\d+ more", parts.get("fields it does not know",
                                                                         "")):
        if field and field not in text:
            return f"'{field}' is not a field of the model: {said}"
    if LACKS.get(name, "") not in said:
        return f"does not name {LACKS[name]}: {said}"
    return None


def renamed(fields):
    """The same model under a type that nobody knows."""
    inner = fields.get("text_config")
    return {**fields, "model_type": "no_such_type",
            **({"text_config": {**inner, "model_type": "no_such_type"}} if inner else {})}


# Shapes of GGUF files, their architectures and what the files call them here.
GGUF = {"tiny-qwen3": (b"qwen3moe", b"qwen3mox"), "tiny-next": (b"qwen3next", b"qwen9next"),
        "tiny-qwen3.5": (b"qwen35moe", b"qwen99moe"), "tiny-glm": (b"glm4moe", b"glm9moe"),
        "tiny-minimax": (b"minimax-m2", b"minimax-m9"), "tiny-qwen2": (b"qwen2moe", b"qwen9moe"),
        "tiny-gpt-oss": (b"gpt-oss", b"gpt-ass"), "tiny-olmoe": (b"olmoe", b"olmox")}


def check_gguf(program):
    """A GGUF file whose architecture has another name is nearest to what it is. A tensor that no
    family names is listed."""
    faults = 0
    for shape, (own, other) in GGUF.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.gguf"
            subprocess.run([program, "synth", shape, path, "--headers-only", "-q"], check=True)
            data = path.read_bytes().replace(own, other)
            for change, end in (((b"", b""), ""), ((b"attn_q.weight", b"attn_x.weight"),
                                                   "; tensors it does not know: "
                                                   "blk.N.attn_x.weight")):
                path.write_bytes(data.replace(*change) if change[0] else data)
                said = subprocess.run([program, "inspect", path], capture_output=True,
                                      text=True).stderr
                if (f"'general.architecture' is \"{other.decode()}\"" not in said or
                        not said.endswith(f"\"{own.decode()}\" is the nearest{end}\n")):
                    faults += 1
                    print(f"{shape}: {said}")
    print(f"GGUF: {2 * len(GGUF) - faults} of {2 * len(GGUF)} as they should be")
    return faults


def check(program):
    status, said = inspect(program, {"model_type": "no_such_type"}, [])
    families = set(re.search(r"models with experts only: (.*)\n", said)[1].split(", "))
    faults, n = 0, 0
    for name, fields, tensors in json.loads(FROZEN.read_text()):
        if name in families and name not in OWN:
            continue
        n += 1
        if name in families:
            for old, new in RENAMED.get(name, ()):
                tensors = [t.replace(old, new, 1) if t.startswith(old) else t for t in tensors]
            said = inspect(program, renamed(fields), tensors)[1]
            fault = None if said.endswith(OWN[name] + "\n") else f"as another type: {said}"
        else:
            fault = fault_of(name, fields, *inspect(program, fields, tensors), families)
        if fault:
            faults += 1
            print(f"{name}: {fault}")
    print(f"{n - faults} of {n} types are refused as they should be")
    return faults + check_gguf(program) > 0 or n < 40


if __name__ == "__main__":
    if sys.argv[1:2] == ["freeze"]:
        freeze()
    elif sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2]))
    else:
        sys.exit(__doc__)
