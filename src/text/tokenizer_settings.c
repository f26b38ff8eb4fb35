/* Checks the settings of a tokenizer.json. Every setting that could change an id must be supported;
 * all others are refused by name. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_impl.h"

#define SHOWN_BYTES 80
#define MAX_SPLITS 8

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

/* ---- text as bytes ----------------------------------------------------------------------- */

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
        if (pretok_at(i)->regexes[0] != NULL)
            used += snprintf(text + used, bytes - (size_t)used, "%s of %s",
                             i == 0 ? "" : pretok_at(i + 1) != NULL ? "," : " or",
                             pretok_at(i)->models);
    return text;
}

/* Returns the first of `n` expressions after which no pattern fits. */
static size_t find_unknown(const char *const *regexes, size_t n)
{
    size_t longest = 0;
    for (unsigned i = 0; pretok_at(i) != NULL; i++) {
        const struct pretok *pattern = pretok_at(i);
        size_t k = 0;
        while (k + 1 < n && pattern->regexes[k] != NULL &&
               strcmp(pattern->regexes[k], regexes[k]) == 0)
            k++;
        longest = k > longest ? k : longest;
    }
    return longest;
}

static const char *split_field(char *text, size_t bytes, size_t i, const char *field)
{
    (void)snprintf(text, bytes, "pre_tokenizer.pretokenizers[%zu]%s", i, field);
    return text;
}

/* Checks Split number i and returns its expression. */
static int check_split(const struct jdoc *doc, const json_t *split, size_t i, const char **regex,
                       struct fm_error *err)
{
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const known_pattern[] = {"Regex", NULL};
    char field[SHOWN_BYTES];
    if (!has_type(split, "Split"))
        return refuse(doc, split_field(field, sizeof field, i, ""), split, "Split", err);
    int rc = check_fields(doc, split, split_field(field, sizeof field, i, "."), known, err);
    if (rc != 0)
        return rc;
    const json_t *pattern = json_object_get(split, "pattern");
    *regex = json_string_value(json_object_get(pattern, "Regex"));
    rc = check_fields(doc, pattern, split_field(field, sizeof field, i, ".pattern."),
                      known_pattern, err);
    if (rc == 0 && *regex == NULL)
        rc = refuse(doc, split_field(field, sizeof field, i, ".pattern"), pattern, "a Regex", err);
    return rc;
}

/* Isolated keeps matches and the rest. Where everything matches, removing the rest is the same. */
static int check_behavior(const struct jdoc *doc, const json_t *split, size_t i, bool matches_all,
                          struct fm_error *err)
{
    char field[SHOWN_BYTES];
    const json_t *behavior = json_object_get(split, "behavior");
    const json_t *invert = json_object_get(split, "invert");
    const char *text = json_is_string(behavior) ? json_string_value(behavior) : "";
    if (matches_all && strcmp(text, "Removed") == 0 && json_is_true(invert))
        return 0;
    if (strcmp(text, "Isolated") != 0)
        return refuse(doc, split_field(field, sizeof field, i, ".behavior"), behavior, "Isolated",
                      err);
    if (invert != NULL && !json_is_false(invert))
        return refuse(doc, split_field(field, sizeof field, i, ".invert"), invert, "false", err);
    return 0;
}

static int check_splits(struct tokenizer *tok, const struct jdoc *doc, const json_t *list,
                        size_t n, struct fm_error *err)
{
    const char *regexes[MAX_SPLITS];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = check_split(doc, json_array_get(list, i), i, &regexes[i], err);
    if (rc != 0)
        return rc;
    tok->pretok = pretok_find(regexes, n);
    if (tok->pretok == NULL) {
        char patterns[256], field[SHOWN_BYTES];
        const size_t i = find_unknown(regexes, n);
        return refuse(doc, split_field(field, sizeof field, i, ".pattern"),
                      json_object_get(json_array_get(list, i), "pattern"),
                      known_patterns(patterns, sizeof patterns), err);
    }
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = check_behavior(doc, json_array_get(list, i), i, tok->pretok->matches_all, err);
    return rc;
}

static const char *const byte_level_fields[] = {"type", "add_prefix_space", "trim_offsets",
                                                "use_regex", NULL};

/* Checks a ByteLevel at `where`, "pre_tokenizer" or an item of it. */
static int check_byte_level(const struct jdoc *doc, const json_t *value, const char *where,
                            bool has_splits, struct fm_error *err)
{
    char field[SHOWN_BYTES];
    if (!has_type(value, "ByteLevel"))
        return refuse(doc, where, value, "ByteLevel", err);
    (void)snprintf(field, sizeof field, "%s.", where);
    const int rc = check_fields(doc, value, field, byte_level_fields, err);
    if (rc != 0)
        return rc;
    const json_t *prefix = json_object_get(value, "add_prefix_space");
    (void)snprintf(field, sizeof field, "%s.add_prefix_space", where);
    if (!json_is_false(prefix))
        return refuse(doc, field, prefix, "false", err);
    const json_t *regex = json_object_get(value, "use_regex");
    (void)snprintf(field, sizeof field, "%s.use_regex", where);
    if (has_splits && !json_is_false(regex))
        return refuse(doc, field, regex, "false", err);
    if (!has_splits && regex != NULL && !json_is_true(regex))
        return refuse(doc, field, regex, "true", err);
    return 0;
}

static int check_pre_tokenizer(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                               struct fm_error *err)
{
    static const char *const known[] = {"type", "pretokenizers", NULL};
    if (has_type(value, "ByteLevel")) {
        tok->pretok = pretok_find(NULL, 0);
        return check_byte_level(doc, value, "pre_tokenizer", false, err);
    }
    const json_t *list = json_object_get(value, "pretokenizers");
    const size_t n = json_array_size(list);
    if (!has_type(value, "Sequence") || n < 2 || n > MAX_SPLITS)
        return refuse(doc, "pre_tokenizer", value,
                      "ByteLevel or a Sequence of Split and ByteLevel", err);
    int rc = check_fields(doc, value, "pre_tokenizer.", known, err);
    if (rc == 0)
        rc = check_splits(tok, doc, list, n - 1, err);
    char field[SHOWN_BYTES];
    return rc != 0 ? rc : check_byte_level(doc, json_array_get(list, n - 1),
                                           split_field(field, sizeof field, n - 1, ""), true, err);
}

static int check_decoder(const struct jdoc *doc, const json_t *value, struct fm_error *err)
{
    if (!has_type(value, "ByteLevel"))
        return refuse(doc, "decoder", value, "ByteLevel", err);
    return check_fields(doc, value, "decoder.", byte_level_fields, err);
}

/* ---- text as characters: SentencePiece --------------------------------------------------- */

static bool has_text(const json_t *object, const char *field, const char *text)
{
    const char *found = json_string_value(json_object_get(object, field));
    return found != NULL && strcmp(found, text) == 0;
}

static bool replaces(const json_t *value, const char *from, const char *to)
{
    const json_t *pattern = json_object_get(value, "pattern");
    return has_type(value, "Replace") && json_object_size(value) == 3 &&
           json_object_size(pattern) == 1 && has_text(pattern, "String", from) &&
           has_text(value, "content", to);
}

static int check_spm_normalizer(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                                struct fm_error *err)
{
    if (value == NULL)
        return 0;
    const json_t *list = json_object_get(value, "normalizers");
    const json_t *prepend = json_array_get(list, 0);
    tok->spm.prefix = SPM_ALWAYS;
    if (has_type(value, "Sequence") && json_object_size(value) == 2 &&
        json_array_size(list) == 2 && has_type(prepend, "Prepend") &&
        json_object_size(prepend) == 2 && has_text(prepend, "prepend", SPM_SPACE) &&
        replaces(json_array_get(list, 1), " ", SPM_SPACE))
        return 0;
    return refuse(doc, "normalizer", value,
                  "null, or a Sequence of Prepend and Replace with U+2581, with byte_fallback",
                  err);
}

/* Reads prepend_scheme, or add_prefix_space of older files. */
static int read_scheme(struct tokenizer *tok, const struct jdoc *doc, const json_t *metaspace,
                       struct fm_error *err)
{
    const json_t *scheme = json_object_get(metaspace, "prepend_scheme");
    const json_t *adds = json_object_get(metaspace, "add_prefix_space");
    if (adds != NULL && !json_is_boolean(adds))
        return refuse(doc, "pre_tokenizer.add_prefix_space", adds, "true or false", err);
    tok->spm.prefix = adds != NULL && json_is_false(adds) ? SPM_NO_PREFIX : SPM_UNLESS_SPACED;
    if (scheme == NULL)
        return 0;
    if (has_text(metaspace, "prepend_scheme", "always"))
        tok->spm.prefix = SPM_UNLESS_SPACED;
    else if (has_text(metaspace, "prepend_scheme", "first"))
        tok->spm.prefix = SPM_AT_START;
    else if (has_text(metaspace, "prepend_scheme", "never"))
        tok->spm.prefix = SPM_NO_PREFIX;
    else
        return refuse(doc, "pre_tokenizer.prepend_scheme", scheme,
                      "\"always\", \"first\" or \"never\"", err);
    return 0;
}

static int check_metaspace(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                           struct fm_error *err)
{
    static const char *const known[] = {"type", "replacement", "prepend_scheme", "split",
                                        "add_prefix_space", "str_rep", NULL};
    const json_t *normalizer = jdoc_find(doc->root, "normalizer");
    if (value == NULL && normalizer != NULL)
        return 0;
    if (!has_type(value, "Metaspace") || normalizer != NULL)
        return refuse(doc, "pre_tokenizer", value,
                      normalizer != NULL ? "null beside this normalizer" : "Metaspace", err);
    int rc = check_fields(doc, value, "pre_tokenizer.", known, err);
    if (rc == 0)
        rc = read_scheme(tok, doc, value, err);
    if (rc != 0)
        return rc;
    if (!has_text(value, "replacement", SPM_SPACE))
        return refuse(doc, "pre_tokenizer.replacement", json_object_get(value, "replacement"),
                      "U+2581", err);
    const json_t *split = json_object_get(value, "split");
    if (split != NULL && !json_is_boolean(split))
        return refuse(doc, "pre_tokenizer.split", split, "true or false", err);
    tok->spm.splits = !json_is_false(split);
    return 0;
}

/* Accepts Replace, ByteFallback, Fuse and, optionally, Strip of one leading space. */
static int check_spm_decoder(struct tokenizer *tok, const struct jdoc *doc, const json_t *value,
                             struct fm_error *err)
{
    const json_t *list = json_object_get(value, "decoders");
    const json_t *strip = json_array_get(list, 3);
    const size_t n = json_array_size(list);
    tok->strips_space = n == 4;
    const bool strips = has_type(strip, "Strip") && has_text(strip, "content", " ") &&
                        json_integer_value(json_object_get(strip, "start")) == 1 &&
                        json_integer_value(json_object_get(strip, "stop")) == 0;
    if (has_type(value, "Sequence") && (n == 3 || (n == 4 && strips)) &&
        replaces(json_array_get(list, 0), SPM_SPACE, " ") &&
        has_type(json_array_get(list, 1), "ByteFallback") &&
        has_type(json_array_get(list, 2), "Fuse"))
        return 0;
    return refuse(doc, "decoder", value,
                  "a Sequence of Replace, ByteFallback, Fuse and Strip, with byte_fallback,", err);
}

/* ------------------------------------------------------------------------------------------ */

/* Checks the settings of the model. byte_fallback decides whether symbols are characters. */
static int check_model(struct tokenizer *tok, const struct jdoc *doc, const json_t *model,
                       struct fm_error *err)
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
    const json_t *value = jdoc_find(model, "byte_fallback");
    if (value != NULL && !json_is_boolean(value))
        return refuse(doc, "model.byte_fallback", value, "true or false", err);
    tok->is_spm = json_is_true(value);
    value = jdoc_find(model, "unk_token"); /* with all bytes in the vocabulary nothing is unknown */
    if (value != NULL && !tok->is_spm)
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
    value = jdoc_find(model, "ignore_merges");
    if (value != NULL && !json_is_boolean(value))
        return refuse(doc, "model.ignore_merges", value, "true or false", err);
    if (tok->is_spm && json_is_true(value))
        return refuse(doc, "model.ignore_merges", value, "false, with byte_fallback,", err);
    return 0;
}

/* Adds the ids of one special token of a template to the prefix. */
static int add_prefix(struct tokenizer *tok, const struct jdoc *doc, const json_t *template,
                      const json_t *special, struct fm_error *err)
{
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *entry = name != NULL ? json_object_get(json_object_get(template,
                                                                         "special_tokens"), name)
                                       : NULL;
    const json_t *ids = json_object_get(entry, "ids");
    if (json_array_size(ids) == 0)
        return refuse(doc, "post_processor.special_tokens", special, "a token with ids", err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX || tok->n_prefix == TOKENIZER_MAX_PREFIX)
            return refuse(doc, "post_processor.special_tokens", entry, "a list of a few ids", err);
        tok->prefix[tok->n_prefix++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

/* Reads a template for one text: special tokens, then the text. */
static int check_template(struct tokenizer *tok, const struct jdoc *doc, const json_t *template,
                          struct fm_error *err)
{
    const json_t *single = jdoc_find(template, "single");
    const size_t n = json_array_size(single);
    if (n == 0 || jdoc_find(json_array_get(single, n - 1), "Sequence") == NULL)
        return refuse(doc, "post_processor.single", single,
                      "a template that ends with the text", err);
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        if (special == NULL)
            return refuse(doc, "post_processor.single", single, "special tokens and one text", err);
        const int rc = add_prefix(tok, doc, template, special, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* A ByteLevel post-processor trims offsets and does not change ids. */
static int check_post_processor(struct tokenizer *tok, const struct jdoc *doc,
                                const json_t *value, struct fm_error *err)
{
    if (value == NULL)
        return 0;
    if (has_type(value, "TemplateProcessing"))
        return check_template(tok, doc, value, err);
    if (has_type(value, "ByteLevel"))
        return check_fields(doc, value, "post_processor.", byte_level_fields, err);
    const json_t *list = json_object_get(value, "processors");
    if (!has_type(value, "Sequence") || !json_is_array(list))
        return refuse(doc, "post_processor", value, "ByteLevel, TemplateProcessing or null", err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (has_type(item, "Sequence"))
            return refuse(doc, "post_processor.processors", item,
                          "ByteLevel or TemplateProcessing", err);
        rc = check_post_processor(tok, doc, item, err);
    }
    return rc;
}

static int check_pipeline(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err)
{
    const json_t *normalizer = jdoc_find(doc->root, "normalizer");
    const json_t *pre = jdoc_find(doc->root, "pre_tokenizer");
    const json_t *decoder = jdoc_find(doc->root, "decoder");
    int rc = check_post_processor(tok, doc, jdoc_find(doc->root, "post_processor"), err);
    if (rc != 0)
        return rc;
    rc = tok->is_spm ? check_spm_normalizer(tok, doc, normalizer, err)
                     : check_normalizer(tok, doc, normalizer, err);
    if (rc == 0)
        rc = tok->is_spm ? check_metaspace(tok, doc, pre, err)
                         : check_pre_tokenizer(tok, doc, pre, err);
    if (rc == 0)
        rc = tok->is_spm ? check_spm_decoder(tok, doc, decoder, err)
                         : check_decoder(doc, decoder, err);
    return rc;
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
    rc = check_model(tok, doc, jdoc_find(doc->root, "model"), err);
    return rc != 0 ? rc : check_pipeline(tok, doc, err);
}
