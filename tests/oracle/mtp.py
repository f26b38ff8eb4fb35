"""The block for multi-token prediction of a checkpoint, in float64 and by transformers' own layers.

transformers leaves mtp.* out. The definition here is that of vLLM and SGLang: a row of the block
is fc([norm_e(embedding of token i + 1), norm_h(h_i)]), where h_i is what the final norm of the
model gives at position i. A decoder layer with full attention over the rows before it follows, then
a norm of its own and the head of the model. The row predicts token i + 2. A further token is
predicted by a row of the drafted token and of what the block's norm gave before.

With what the final norm gets as h_i, nano's block predicts worse: 2.26 nats per token of C instead
of 2.22, 3.61 of English prose instead of 3.59.
"""
import copy
import json
import pathlib

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def read_block(folder):
    """The tensors below "mtp." in float64."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name[4:]: file.get_tensor(name).double()
                      for name in file.keys() if name.startswith("mtp.")}
    return found


def stack_experts(tensors, layer):
    """Names and stacks the tensors of experts as this version of transformers has them."""
    names = set(layer.state_dict())
    if "mlp.experts.gate_up_proj" not in names or "mlp.experts.gate_up_proj" in tensors:
        return tensors
    n = 1 + max(int(k.split(".")[2]) for k in tensors if k.startswith("mlp.experts."))
    one = lambda e, m: tensors.pop(f"mlp.experts.{e}.{m}_proj.weight")
    pairs = [torch.cat([one(e, "gate"), one(e, "up")]) for e in range(n)]
    tensors["mlp.experts.gate_up_proj"] = torch.stack(pairs)
    tensors["mlp.experts.down_proj"] = torch.stack([one(e, "down") for e in range(n)])
    return tensors


class Predictor:
    """A model and its block."""

    def __init__(self, folder):
        torch.set_grad_enabled(False)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, experts_implementation="eager",
            attn_implementation="eager").eval()
        # The models use float32 inside norms, softmax and the delta rule: give them float64.
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
        tensors = read_block(folder)
        trunk = self.model.model
        full = next(l for l in trunk.layers if hasattr(l, "self_attn"))
        self.layer = copy.deepcopy(full)
        below = {k[9:]: v for k, v in tensors.items() if k.startswith("layers.0.")}
        self.layer.load_state_dict(stack_experts(below, self.layer))
        self.norms = {}
        for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
            self.norms[name] = copy.deepcopy(trunk.norm)
            self.norms[name].weight.data = tensors[f"{name}.weight"]
        self.fc = tensors["fc.weight"]

    def hidden(self, ids, is_normed=True):
        """What the final norm gives, or gets, at every position."""
        got = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda m, a: got.append(a[0]))
        normed = self.model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        hook.remove()
        return normed if is_normed else got[0][0]

    def rows(self, hidden, tokens):
        embedded = self.model.model.embed_tokens(tokens)
        both = [self.norms["pre_fc_norm_embedding"](embedded),
                self.norms["pre_fc_norm_hidden"](hidden)]
        return torch.nn.functional.linear(torch.cat(both, dim=-1), self.fc)

    def run(self, rows, n, depth):
        """The layer over depth * n rows: those of depth 1 see what is before them; those of a
        further depth see what the row of depth 1 that they began with sees, and their own."""
        position = torch.arange(n).repeat(depth) + torch.arange(depth).repeat_interleave(n)
        at, level = torch.arange(n).repeat(depth), torch.arange(depth).repeat_interleave(n)
        sees = (level[None, :] == 0) & (at[None, :] <= at[:, None])
        sees |= (at[None, :] == at[:, None]) & (level[None, :] <= level[:, None])
        mask = torch.zeros(sees.shape).double().masked_fill(~sees, -1e300)[None, None]
        angles = self.model.model.rotary_emb(rows[None], position[None])
        out = self.layer(rows[None], position_embeddings=angles, attention_mask=mask,
                         past_key_values=None)
        out = out[0] if isinstance(out, tuple) else out
        return self.norms["norm"](out.reshape(depth * n, -1))

    def drafts(self, ids, depth, is_normed=True):
        """Drafts behind each of ids[1:]: [len(ids) - 1, depth], and their logits."""
        ids = [int(i) for i in ids]
        n = len(ids) - 1
        hidden, tokens = self.hidden(ids, is_normed)[:n], torch.tensor(ids[1:])
        rows, drafts, all_logits = torch.zeros(0, hidden.shape[1]).double(), [], []
        for d in range(1, depth + 1):
            rows = torch.cat([rows, self.rows(hidden, tokens)])
            hidden = self.run(rows, n, d)[-n:]
            logits = self.model.lm_head(hidden)
            tokens = logits.argmax(-1)
            drafts.append(tokens.numpy())
            all_logits.append(logits.numpy())
        return np.stack(drafts, 1), np.stack(all_logits, 1)


def count_accepted(ids, first, drafts):
    """Goes through ids from position `first` on as a session does: each pass takes a token and its
    drafts, the next one begins behind those that were right. Returns how many passes there were,
    and in how many of them the drafts up to each depth were right."""
    right = np.zeros(drafts.shape[1], int)
    at, n_passes = first, 0
    while at < len(ids):
        n_passes += 1
        n = 0
        while n < len(right) and at + 1 + n < len(ids) and drafts[at - 1][n] == ids[at + 1 + n]:
            right[n] += 1
            n += 1
        at += 1 + n
    return n_passes, right


def read_lines(path):
    for line in open(path, encoding="utf-8"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # the last line may be cut
            return


def prompts(folder, domain, tokenizer, n):
    """The first n prompts of a held-out text and their ids: a question, or the beginning of a
    text."""
    found = []
    for line in read_lines(pathlib.Path(folder) / f"{domain}.jsonl"):
        if "prompt" in line:
            text = f"<|im_start|>user\n{line['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        else:
            text = line["text"][:150]
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if 0 < len(ids) <= 256:
            found.append((text, ids))
        if len(found) == n:
            break
    return found
