/* Checks the settings of a tokenizer.json. Every setting that could change an id must be supported;
 * all others are refused by name. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_impl.h"

#define SHOWN_BYTES 80

static int refuse(const struct jdoc *doc, const char *field, const json_t *value,
                  const char *expected, struct fm_error *err)
{
    char shown[SHOWN_BYTES];
    return err_set(err, FM_ERR_UNSUPPORTED, "%s: field '%s' is %s; only %s is supported",
                   doc->file, field,
                   value == NULL ? "absent" : jdoc_show(value, shown, sizeof shown), expected);
}

/* Refuses fields of `object` that are not in the NULL-terminated list `known`. */
static int check_fields(const struct jdoc *doc, const json_t *object, const char *where,
                        const char *const *known, struct fm_error *err)
{
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)object, field, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], field) != 0)
            i++;
        if (known[i] == NULL) {
            char shown[SHOWN_BYTES];
            return err_set(err, FM_ERR_UNSUPPORTED, "%s: field '%s%s' (%s) is not supported",
                           doc->file, where, field, jdoc_show(value, shown, sizeof shown));
        }
    }
    return 0;
}

static bool has_type(const json_t *object, const char *type)
{
    const char *found = json_string_value(json_object_get(object, "type"));
    return found != NULL && strcmp(found, type) == 0;
}

static int check_normalizer(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                            struct fm_error *err)
{
    static const char *const known[] = {"type", NULL};
    static const char *const known_sequence[] = {"type", "normalizers", NULL};
    static const char expected[] = "NFC, a Sequence of NFC, or null";
    if (value == NULL)
        return 0;
    if (has_type(value, "NFC")) {
        tok->has_nfc = true;
        return check_fields(doc, value, "normalizer.", known, err);
    }
    const json_t *list = json_object_get(value, "normalizers");
    if (!has_type(value, "Sequence") || !json_is_array(list))
        return refuse(doc, "normalizer", value, expected, err);
    int rc = check_fields(doc, value, "normalizer.", known_sequence, err);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!has_type(item, "NFC"))
            return refuse(doc, "normalizer.normalizers", item, expected, err);
        rc = check_fields(doc, item, "normalizer.normalizers.", known, err);
        tok->has_nfc = true;
    }
    return rc;
}

/* Writes "the regex of A, of B or of C". */
static const char *known_patterns(char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "the regex");
    for (unsigned i = 0; pretok_at(i) != NULL && used > 0 && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, "%s of %s",
                         i == 0 ? "" : pretok_at(i + 1) != NULL ? "," : " or",
                         pretok_at(i)->models);
    return text;
}

static int check_split(struct tokenizer *tok, const struct jdoc *doc, const json_t *split,
                       struct fm_error *err)
{
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const known_pattern[] = {"Regex", NULL};
    if (!has_type(split, "Split"))
        return refuse(doc, "pre_tokenizer.pretokenizers[0]", split, "Split", err);
    int rc = check_fields(doc, split, "pre_tokenizer.pretokenizers[0].", known, err);
    if (rc != 0)
        return rc;
    const json_t *pattern = json_object_get(split, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    rc = check_fields(doc, pattern, "pre_tokenizer.pretokenizers[0].pattern.", known_pattern, err);
    if (rc != 0)
        return rc;
    tok->pretok = regex != NULL ? pretok_find(regex) : NULL;
    if (tok->pretok == NULL) {
        char patterns[256];
        return refuse(doc, "pre_tokenizer.pretokenizers[0].pattern", pattern,
                      known_patterns(patterns, sizeof patterns), err);
    }
    const json_t *behavior = json_object_get(split, "behavior");
    if (!json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0)
        return refuse(doc, "pre_tokenizer.pretokenizers[0].behavior", behavior, "Isolated", err);
    const json_t *invert = json_object_get(split, "invert");
    if (invert != NULL && !json_is_false(invert))
        return refuse(doc, "pre_tokenizer.pretokenizers[0].invert", invert, "false", err);
    return 0;
}

static const char *const byte_level_fields[] = {"type", "add_prefix_space", "trim_offsets",
                                                "use_regex", NULL};

static int check_pre_tokenizer(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                               struct fm_error *err)
{
    static const char *const known[] = {"type", "pretokenizers", NULL};
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!has_type(value, "Sequence") || json_array_size(list) != 2)
        return refuse(doc, "pre_tokenizer", value, "a Sequence of Split and ByteLevel", err);
    int rc = check_fields(doc, value, "pre_tokenizer.", known, err);
    if (rc == 0)
        rc = check_split(tok, doc, json_array_get(list, 0), err);
    if (rc != 0)
        return rc;
    const json_t *bytes = json_array_get(list, 1);
    if (!has_type(bytes, "ByteLevel"))
        return refuse(doc, "pre_tokenizer.pretokenizers[1]", bytes, "ByteLevel", err);
    rc = check_fields(doc, bytes, "pre_tokenizer.pretokenizers[1].", byte_level_fields, err);
    if (rc != 0)
        return rc;
    const json_t *prefix = json_object_get(bytes, "add_prefix_space");
    if (!json_is_false(prefix))
        return refuse(doc, "pre_tokenizer.pretokenizers[1].add_prefix_space", prefix, "false",
                      err);
    const json_t *regex = json_object_get(bytes, "use_regex");
    if (!json_is_false(regex))
        return refuse(doc, "pre_tokenizer.pretokenizers[1].use_regex", regex, "false", err);
    return 0;
}

/* Checks the settings of the model that must be off. */
static int check_model(const struct jdoc *doc, const json_t *model, struct fm_error *err)
{
    static const char *const known[] = {
        "type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges", NULL};
    if (!json_is_object(model))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'model' is not an object", doc->file);
    if (!has_type(model, "BPE"))
        return refuse(doc, "model.type", json_object_get(model, "type"), "\"BPE\"", err);
    const int rc = check_fields(doc, model, "model.", known, err);
    if (rc != 0)
        return rc;
    const json_t *value = jdoc_find(model, "unk_token");
    if (value != NULL)
        return refuse(doc, "model.unk_token", value, "null", err);
    value = jdoc_find(model, "dropout");
    if (value != NULL && !(json_is_number(value) && json_number_value(value) == 0))
        return refuse(doc, "model.dropout", value, "null or 0", err);
    value = jdoc_find(model, "continuing_subword_prefix");
    if (value != NULL && !(json_is_string(value) && json_string_length(value) == 0))
        return refuse(doc, "model.continuing_subword_prefix", value, "null or \"\"", err);
    value = jdoc_find(model, "end_of_word_suffix");
    if (value != NULL && !(json_is_string(value) && json_string_length(value) == 0))
        return refuse(doc, "model.end_of_word_suffix", value, "null or \"\"", err);
    value = jdoc_find(model, "byte_fallback");
    if (value != NULL && !json_is_false(value))
        return refuse(doc, "model.byte_fallback", value, "false", err);
    value = jdoc_find(model, "ignore_merges");
    if (value != NULL && !json_is_false(value))
        return refuse(doc, "model.ignore_merges", value, "false", err);
    return 0;
}

/* Returns whether a template for one text adds nothing to the text. */
static bool adds_nothing(const json_t *template)
{
    const json_t *single = jdoc_find(template, "single");
    const json_t *piece = json_array_get(single, 0);
    return has_type(template, "TemplateProcessing") && json_array_size(single) == 1 &&
           json_object_size(piece) == 1 && jdoc_find(piece, "Sequence") != NULL;
}

/* A ByteLevel post-processor trims offsets and does not change ids. */
static int check_post_processor(const struct jdoc *doc, const json_t *value, struct fm_error *err)
{
    if (value == NULL || adds_nothing(value))
        return 0;
    if (!has_type(value, "ByteLevel"))
        return refuse(doc, "post_processor", value,
                      "ByteLevel, a template that adds no token, or null", err);
    return check_fields(doc, value, "post_processor.", byte_level_fields, err);
}

int tokenizer_check_settings(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err)
{
    static const char *const known[] = {
        "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
        "post_processor", "decoder", "model", NULL};
    int rc = check_fields(doc, doc->root, "", known, err);
    if (rc != 0)
        return rc;
    const json_t *version = jdoc_find(doc->root, "version");
    if (version != NULL &&
        !(json_is_string(version) && strcmp(json_string_value(version), "1.0") == 0))
        return refuse(doc, "version", version, "\"1.0\"", err);
    const json_t *value = jdoc_find(doc->root, "truncation");
    if (value != NULL)
        return refuse(doc, "truncation", value, "null", err);
    value = jdoc_find(doc->root, "padding");
    if (value != NULL)
        return refuse(doc, "padding", value, "null", err);
    rc = check_model(doc, jdoc_find(doc->root, "model"), err);
    if (rc == 0)
        rc = check_normalizer(tok, doc, jdoc_find(doc->root, "normalizer"), err);
    if (rc == 0)
        rc = check_pre_tokenizer(tok, doc, jdoc_find(doc->root, "pre_tokenizer"), err);
    if (rc != 0)
        return rc;
    rc = check_post_processor(doc, jdoc_find(doc->root, "post_processor"), err);
    value = jdoc_find(doc->root, "decoder");
    if (rc == 0 && !has_type(value, "ByteLevel"))
        return refuse(doc, "decoder", value, "ByteLevel", err);
    return rc != 0 ? rc : check_fields(doc, value, "decoder.", byte_level_fields, err);
}
