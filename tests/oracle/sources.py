"""The checkpoints that the oracles convert, staged as complete Hugging Face directories.

A golden has no tokenizer_config.json and its tokenizer.json is a link; converters need both as
files. qwen3_moe_sparse is the qwen3_moe golden without its dense layer 1, because llama.cpp's
converter and loader do not support a qwen3moe with dense layers. wide is made here from random
weights. All its widths are 256, so that every tensor can have every GGUF format (nano's 384 and 128
columns fit no block of 256). small_* are a few layers and experts of the goldens, for the frozen
files. ahead_* have a layer for multi-token prediction behind their last one. gpt_oss_mxfp4 is
made by the goldens' own script. kimi_k2 has Kimi-K2's layers in widths of whole groups of 32;
kimi_k25 is the same below a wrapper with a tiny vision tower.
blocks_deepseek_v3 has columns of whole blocks of 128, and rows and heads that end inside of them.
"""
import json
import pathlib
import shutil
import sys
import tarfile


HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
GOLDENS = ["qwen3_moe", "qwen3_moe_sparse", "qwen3_next", "qwen3_5_moe_text", "wide"]
GOLDENS += ["small_qwen3_moe", "small_qwen3_next", "small_qwen3_5_moe"]
ATTENTION = ["glm4_moe", "minimax_m2", "mixtral", "olmoe", "qwen2_moe"]
GOLDENS += [*(f"small_{name}" for name in ATTENTION), "ahead_glm4_moe", "groups_glm4_moe"]
GOLDENS += ["gpt_oss", "gpt_oss_mxfp4", "yarn_deepseek_v3", "ahead_glm4_moe_lite"]
GOLDENS += ["small_qwen4_exp"]
BASE = {
    "qwen3_moe_sparse": "qwen3_moe",
    "small_qwen3_moe": "qwen3_moe",
    "small_qwen3_next": "qwen3_next",
    "small_qwen3_5_moe": "qwen3_5_moe_text",
    "wide": "qwen3_5_moe_text",
    **{f"small_{name}": name for name in ATTENTION},
    "small_qwen4_exp": "qwen4_exp_text",
    "ahead_glm4_moe": "glm4_moe",
    "groups_glm4_moe": "glm4_moe",
    "ahead_glm4_moe_lite": "glm4_moe_lite",
    **dict.fromkeys(("yarn_deepseek_v3", "kimi_k2", "kimi_k25", "blocks_deepseek_v3"),
                    "deepseek_v3"),
}
# Changes of the first shape of tests/golden/families.py.
CHANGED = {
    "kimi_k2": {
        "moe_intermediate_size": 64, "n_group": 1, "n_routed_experts": 16,
        "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
        "topk_group": 1,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                         "beta_fast": 1, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "blocks_deepseek_v3": {
        "first_k_dense_replace": 0, "hidden_size": 128, "kv_lora_rank": 128, "n_group": 2,
        "moe_intermediate_size": 128, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "num_hidden_layers": 2, "num_nextn_predict_layers": 0, "q_lora_rank": 128,
        "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "topk_group": 1, "v_head_dim": 32,
        "vocab_size": 320,
    },
}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
          "num_hidden_layers": 1, "patch_size": 2, "pos_emb_height": 2, "pos_emb_width": 2}
# Which shape of tests/golden/families.py.
SHAPED = {"ahead_glm4_moe": 2, "groups_glm4_moe": 3, "yarn_deepseek_v3": 1,
          "ahead_glm4_moe_lite": 2}
CUTS = {  # layers, experts
    "qwen3_moe_sparse": ([0, 2, 3], 16),
    "small_qwen3_moe": ([0, 2, 3], 4),
    "small_qwen3_next": ([2, 3], 4),
    "small_qwen3_5_moe": ([2, 3], 4),
    **{f"small_{name}": ([0, 1], 4) for name in ATTENTION},
    "small_qwen2_moe": ([0, 2], 4),  # llama.cpp has no dense layers of this family
    "small_qwen4_exp": ([0, 1, 3], 4),
    "ahead_glm4_moe": ([0, 1, 4], 4),
    "ahead_glm4_moe_lite": ([0, 1, 4], 8),
    "yarn_deepseek_v3": ([0, 1], 4),
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "Qwen2TokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "bos_token": None,
    "unk_token": None,
    "add_bos_token": False,
    "add_prefix_space": False,
    "model_max_length": 2048,
    "clean_up_tokenization_spaces": False,
    "chat_template": "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
    "message.content + '<|im_end|>' + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}",
}


class Joined:
    """Reads the parts of a split file as one stream."""

    def __init__(self, paths):
        self.files = [open(path, "rb") for path in paths]

    def read(self, n):
        while self.files:
            data = self.files[0].read(n)
            if data:
                return data
            self.files.pop(0).close()
        return b""


def make_wide(folder):
    """Makes a random Qwen3.5 of 2 layers, linear and full attention, whose matrices have 256
    columns."""
    import torch
    from transformers import AutoModelForCausalLM, AutoConfig

    config = json.load(open(folder / "config.json"))
    config.update(
        hidden_size=256,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        full_attention_interval=2,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        num_experts=8,
        num_experts_per_tok=2,
        initializer_range=0.06,
    )
    json.dump(config, open(folder / "config.json", "w"), indent=2)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and "A_log" not in name:
                weight += 0.2 * torch.randn_like(weight)
    model.to(torch.bfloat16).save_pretrained(folder)


def cut(folder, layers, n_experts):
    """Keeps only these layers and the first n_experts experts. Half of them are used per token."""
    from safetensors.torch import load_file, save_file  # numpy has no bfloat16

    kept = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        parts = name.split(".")
        if parts[1] == "layers":
            if int(parts[2]) not in layers:
                continue
            parts[2] = str(layers.index(int(parts[2])))
        if "experts" in parts and int(parts[5]) >= n_experts:
            continue
        if name.endswith((".gate.weight", "e_score_correction_bias")):
            tensor = tensor[:n_experts].clone()
        kept[".".join(parts)] = tensor
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    config = json.load(open(folder / "config.json"))
    if "full_attention_interval" in config and "layer_types" not in config:
        config["layer_types"] = [
            "linear_attention" if (i + 1) % config["full_attention_interval"] else "full_attention"
            for i in range(config["num_hidden_layers"])]
    config["num_hidden_layers"] = sum(i < config["num_hidden_layers"] for i in layers)
    if "layer_types" in config:
        config["layer_types"] = [config["layer_types"][i] for i in layers]
        config["full_attention_interval"] = config["layer_types"].index("full_attention") + 1
    if "mlp_only_layers" in config:
        dense = set(config["mlp_only_layers"])
        config["mlp_only_layers"] = [i for i, old in enumerate(layers) if old in dense]
    if n_experts < 16:
        config["num_experts_per_tok"] = n_experts // 2
        for field in ("num_local_experts", "n_routed_experts", "num_experts"):
            if field in config:
                config[field] = n_experts
    json.dump(config, open(folder / "config.json", "w"), indent=2)


def write_changed(name, folder):
    """Writes a checkpoint of CHANGED: weights from a seed, public names."""
    sys.path.insert(0, str(GOLDEN))
    import families
    import variants

    config = {**families.BASE[BASE[name]], **CHANGED[name], "model_type": BASE[name]}
    tensors = {key: families.values(name, key, shape, kind)
               for key, shape, kind in families.tensors_of(config, "hub")}
    variants.write_file(folder / "model.safetensors", tensors, None, ())
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def wrap_kimi(text, folder):
    """Puts a text model below Kimi-K2.5's wrapper, beside a vision tower of transformers."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForImageTextToText, Kimi_K25Config

    inner = json.load(open(text / "config.json"))
    config = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
              "text_config": inner, "vision_config": {**VISION, "model_type": "kimi_k25_vision"},
              "tie_word_embeddings": False, "projection_hidden_size": 32,
              "image_token_id": 300, "dtype": "bfloat16",
              "eos_token_id": inner["eos_token_id"]}
    torch.manual_seed(5)
    model = AutoModelForImageTextToText.from_config(
        Kimi_K25Config(**json.loads(json.dumps(config)))).to(torch.bfloat16)
    made = {name.removeprefix("model."): value.clone().contiguous()
            for name, value in model.state_dict().items()
            if name.startswith(("model.vision_tower.", "model.mm_projector."))}
    assert made
    for name, value in load_file(text / "model.safetensors").items():
        made["language_model." + name] = value
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def golden_folder(name, out=None):
    """Returns the folder with the checkpoint and its golden.json."""
    if name != "gpt_oss_mxfp4":
        return GOLDEN / BASE.get(name, name)
    made = pathlib.Path(out) / "made" / name
    if not made.exists():
        sys.path.insert(0, str(GOLDEN))
        import gpt_oss

        made.parent.mkdir(parents=True, exist_ok=True)
        gpt_oss.make(name, made)
        shutil.copyfile(GOLDEN / "tiny_tokenizer.json", made / "tokenizer.json")
    return made


def stage(name, out, nano_data=None):
    """Returns the folder of the complete checkpoint `name` under `out`. Makes it if it is
    missing."""
    folder = pathlib.Path(out) / "hf" / name
    if folder.exists():
        return folder
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    if name == "nano":
        parts = sorted(pathlib.Path(nano_data).glob("nano-hf.tar.xz.*"))
        with tarfile.open(fileobj=Joined(parts), mode="r|xz") as archive:
            archive.extractall(part)
        (part / "hf").rename(folder)
        part.rmdir()
        return folder
    part.mkdir(parents=True)
    source = golden_folder(name, out)
    for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(source / file, part / file)
    if name in SHAPED:
        sys.path.insert(0, str(GOLDEN))
        import families
        families.write(BASE[name], SHAPED[name], part)
    json.dump(TOKENIZER_CONFIG, open(part / "tokenizer_config.json", "w"), indent=1)
    if name in CHANGED:
        write_changed(name, part)
    if name == "kimi_k25":
        wrap_kimi(stage("kimi_k2", out), part)
    if name in CUTS:
        cut(part, *CUTS[name])
    if name == "wide":
        make_wide(part)
    part.rename(folder)
    return folder


def prompts(name, nano_data=None, out=None):
    """Returns the prompts whose logits are compared: [(label, ids, number of tokens to continue
    with)]."""
    if name == "nano":
        golden = json.load(open(pathlib.Path(nano_data) / "nano_golden.json"))
        chosen = ("English: story", "Code: C", "Math: word problem", "Chinese: poem")
        return [
            (case["name"], case["ids"], len(case["greedy"]))
            for case in golden["prompts"]
            if case["name"] in chosen
        ]
    golden = json.load(open(golden_folder(name, out) / "golden.json"))
    return [("input_ids", golden["input_ids"], 0), ("greedy_prompt", golden["greedy_prompt"], 40)]
