/* The files besides the weights: a tokenizer with the 256 bytes and ChatML's special tokens. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "flashmoe_lab.h"
#include "lab/synth_internal.h"

const char *const synth_special_tokens[3] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

const char synth_chat_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* Words, single digits, runs of punctuation, line ends, spaces. */
const struct pretok *synth_pattern(void)
{
    static const char name[] = "qwen2";
    return pretok_find_gguf(name, sizeof name - 1);
}

/* Printable Latin-1 bytes represent themselves; the others are mapped in order from U+0100 on. */
static bool is_shown(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

void synth_byte_character(unsigned byte, char utf8[4])
{
    unsigned code = byte;
    if (!is_shown(byte)) {
        code = 0x100;
        for (unsigned b = 0; b < byte; b++)
            code += !is_shown(b);
    }
    if (code < 0x80) {
        (void)snprintf(utf8, 4, "%c", (char)code);
        return;
    }
    utf8[0] = (char)(0xc0 | code >> 6);
    utf8[1] = (char)(0x80 | (code & 0x3f));
    utf8[2] = '\0';
}

static json_t *tokenizer_json(void)
{
    json_t *vocab = json_object(), *added = json_array();
    for (unsigned b = 0; b < 256; b++) {
        char utf8[4];
        synth_byte_character(b, utf8);
        (void)json_object_set_new(vocab, utf8, json_integer(b));
    }
    for (int i = 0; i < 3; i++)
        (void)json_array_append_new(
            added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", SYNTH_END_OF_TEXT + i,
                             "content", synth_special_tokens[i], "single_word", 0, "lstrip", 0,
                             "rstrip", 0, "normalized", 0, "special", 1));
    return json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]},"
        " s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
        "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
        synth_pattern()->regexes[0], "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "post_processor", "decoder",
        "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "model",
        "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges");
}

int synth_plan_tokenizer(struct synth_plan *plan, struct fm_error *err)
{
    int rc = synth_plan_json(plan, "tokenizer.json", tokenizer_json(), err);
    if (rc == 0)
        rc = synth_plan_json(plan, "tokenizer_config.json",
                             json_pack("{s:s, s:s, s:s, s:s, s:b, s:n, s:i}", "tokenizer_class",
                                       "Qwen2Tokenizer", "eos_token", synth_special_tokens[2],
                                       "pad_token", synth_special_tokens[0], "chat_template",
                                       synth_chat_template, "add_bos_token", 0, "bos_token",
                                       "model_max_length", (int)plan->shape.n[FM_SYNTH_CONTEXT]),
                             err);
    if (rc == 0)
        rc = synth_plan_json(plan, "generation_config.json",
                             json_pack("{s:i, s:[i,i], s:i, s:b}", "bos_token_id",
                                       SYNTH_END_OF_TEXT, "eos_token_id", SYNTH_IM_END,
                                       SYNTH_END_OF_TEXT, "pad_token_id", SYNTH_END_OF_TEXT,
                                       "do_sample", 0), err);
    return rc;
}
