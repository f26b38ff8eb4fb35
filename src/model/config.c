#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "model/probe.h"

/* ---- where a field stands ------------------------------------------------------------------- */

enum place { PLACE_NONE, PLACE_TEXT, PLACE_ROOT, PLACE_ROPE };

#define MAX_PLACES 2

/* Fields that may stand in two places or under two names. The first place that has the field
 * counts. Every other field counts in text_config alone where there is one, and at the root
 * otherwise. */
static const struct field {
    const char *name;
    const char *model_type; /* NULL: every family */
    struct {
        enum place place;
        const char *key;
    } from[MAX_PLACES];
} fields[] = {
    /* Of a multimodal checkpoint the root's value counts; text_config's is ignored. */
    {"tie_word_embeddings", NULL, {{PLACE_ROOT, "tie_word_embeddings"}}},
    {"eos_token_id", NULL, {{PLACE_TEXT, "eos_token_id"}, {PLACE_ROOT, "eos_token_id"}}},
    {"rope_theta", NULL, {{PLACE_ROPE, "rope_theta"}, {PLACE_TEXT, "rope_theta"}}},
    {"partial_rotary_factor",
     NULL,
     {{PLACE_ROPE, "partial_rotary_factor"}, {PLACE_TEXT, "partial_rotary_factor"}}},
    {"factor", NULL, {{PLACE_ROPE, "factor"}}},
    /* A length outside takes the place of the one in rope_parameters. */
    {"original_max_position_embeddings",
     NULL,
     {{PLACE_TEXT, "original_max_position_embeddings"},
      {PLACE_ROPE, "original_max_position_embeddings"}}},
    {"attention_factor", NULL, {{PLACE_ROPE, "attention_factor"}}},
    {"mscale", NULL, {{PLACE_ROPE, "mscale"}}},
    {"mscale_all_dim", NULL, {{PLACE_ROPE, "mscale_all_dim"}}},
    {"beta_fast", NULL, {{PLACE_ROPE, "beta_fast"}}},
    {"beta_slow", NULL, {{PLACE_ROPE, "beta_slow"}}},
    /* The root's: names other files than those this version opens. */
    {"transformers_weights", NULL, {{PLACE_ROOT, "transformers_weights"}}},
    {"num_experts",
     "qwen3_moe",
     {{PLACE_TEXT, "num_local_experts"}, {PLACE_TEXT, "num_experts"}}},
    {"num_experts",
     "mixtral",
     {{PLACE_TEXT, "num_local_experts"}, {PLACE_TEXT, "num_experts"}}},
    {"num_experts",
     "minimax_m2",
     {{PLACE_TEXT, "num_local_experts"}, {PLACE_TEXT, "num_experts"}}},
    {"num_experts",
     "glm4_moe",
     {{PLACE_TEXT, "n_routed_experts"}, {PLACE_TEXT, "num_local_experts"}}},
    {"num_experts",
     "deepseek_v3",
     {{PLACE_TEXT, "n_routed_experts"}, {PLACE_TEXT, "num_local_experts"}}},
    {"num_experts",
     "kimi_k2",
     {{PLACE_TEXT, "n_routed_experts"}, {PLACE_TEXT, "num_local_experts"}}},
    {"num_experts",
     "kimi_k25",
     {{PLACE_TEXT, "n_routed_experts"}, {PLACE_TEXT, "num_local_experts"}}},
    {"num_experts",
     "glm4_moe_lite",
     {{PLACE_TEXT, "n_routed_experts"}, {PLACE_TEXT, "num_local_experts"}}},
    {"num_experts", "gpt_oss", {{PLACE_TEXT, "num_local_experts"}, {PLACE_TEXT, "num_experts"}}},
    /* Families whose layers all have experts call their size so. */
    {"moe_intermediate_size", "olmoe", {{PLACE_TEXT, "intermediate_size"}}},
    {"moe_intermediate_size", "mixtral", {{PLACE_TEXT, "intermediate_size"}}},
    {"moe_intermediate_size", "minimax_m2", {{PLACE_TEXT, "intermediate_size"}}},
    {"moe_intermediate_size", "gpt_oss", {{PLACE_TEXT, "intermediate_size"}}},
};

#define N_FIELDS (sizeof fields / sizeof fields[0])

/* A rope_scaling that is not empty takes the place of all of rope_parameters. */
static const char *const rope_names[] = {"rope_scaling", "rope_parameters"};
static const char *const rope_type_names[] = {"rope_type", "type"}; /* the first counts */
/* transformers' max_position_embeddings where a configuration has none; without a family, of all
 * others. */
static const struct {
    const char *model_type;
    uint32_t positions;
} default_positions[] = {{"olmoe", 4096},
                         {"glm4_moe", 131072},
                         {"glm4_moe_lite", 202752},
                         {"deepseek_v3", 4096},
                         {"kimi_k2", 4096},
                         {"kimi_k25", 4096},
                         {"gpt_oss", 131072},
                         {"mixtral", 131072},
                         {"minimax_m2", 196608},
                         {NULL, 32768}};

struct found {
    const json_t *holder;
    const char *key; /* the field's name there */
};

static const json_t *holder_of(const struct config *config, enum place place)
{
    switch (place) {
    case PLACE_ROOT:
        return config->root;
    case PLACE_ROPE:
        return config->rope;
    case PLACE_TEXT:
    case PLACE_NONE:
        break;
    }
    return config->text;
}

static void note_read(const struct config *config, const char *key)
{
    if (config->probe != NULL)
        name_set_add(&config->probe->read_fields, key, strlen(key));
}

static struct found locate(const struct config *config, const char *name)
{
    struct found found = {config->text, name};
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (strcmp(f->name, name) != 0 ||
            (f->model_type != NULL && strcmp(f->model_type, config->model_type) != 0))
            continue;
        for (unsigned k = 0; k < MAX_PLACES && f->from[k].place != PLACE_NONE; k++) {
            found = (struct found){holder_of(config, f->from[k].place), f->from[k].key};
            note_read(config, found.key);
            if (jdoc_find(found.holder, found.key) != NULL)
                break;
        }
    }
    note_read(config, found.key);
    return found;
}

/* Notes a field that cannot be used, and goes on. Without a probe it stays a failure. */
static int settle(const struct config *config, struct found found, int rc)
{
    struct probe *probe = config->probe;
    if (rc == 0 || probe == NULL)
        return rc;
    const bool is_there = jdoc_find(found.holder, found.key) != NULL;
    name_set_add(is_there ? &probe->other_values : &probe->wanted_fields, found.key,
                 strlen(found.key));
    return 0;
}

const json_t *config_find(const struct config *config, const char *field)
{
    const struct found found = locate(config, field);
    return jdoc_find(found.holder, found.key);
}

/* ---- rope ----------------------------------------------------------------------------------- */

/* Returns the type of a rope_parameters or rope_scaling; NULL where it has none. */
static const json_t *rope_type(const json_t *rope)
{
    const json_t *type = NULL;
    for (unsigned i = 0; type == NULL && i < sizeof rope_type_names / sizeof rope_type_names[0];
         i++)
        type = jdoc_find(rope, rope_type_names[i]);
    return type;
}

/* False for a type that this version does not compute. */
static bool find_kind(const json_t *type, enum rope_kind *kind)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } known[] = {
        {"default", ROPE_DEFAULT},
        {"mrope", ROPE_DEFAULT}, /* differs from "default" for images only */
        {"linear", ROPE_LINEAR},
        {"yarn", ROPE_YARN},
    };
    const char *text = json_string_value(type);
    *kind = ROPE_DEFAULT;
    for (unsigned i = 0; text != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(text, known[i].name) == 0) {
            *kind = known[i].kind;
            return true;
        }
    return type == NULL;
}

/* The name under which the parameters that count stand, for messages. */
static const char *rope_name(const struct config *config)
{
    const bool is_scaling =
        config->rope != NULL && config->rope == jdoc_find(config->text, rope_names[0]);
    return rope_names[is_scaling ? 0 : 1];
}

/* Refuses what is not computed, and a scaling where transformers would not look, unless it says
 * what the parameters that count say. */
static int check_rope(const struct config *config, const char *prefix, const char *name,
                      const json_t *rope, struct fm_error *err)
{
    char shown[80];
    const char *key;
    const json_t *value;
    enum rope_kind kind;
    if (!json_is_object(rope))
        return err_set(err, FM_ERR_FORMAT, "%s: field '%s%s' is not an object", config->file,
                       prefix, name);
    const json_t *type = rope_type(rope);
    if (!find_kind(type, &kind))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field '%s%s.rope_type' is %s; this version computes \"default\", "
                       "\"linear\" and \"yarn\" only: use the checkpoint's configuration without "
                       "rope scaling, for contexts up to the length the model was trained for",
                       config->file, prefix, name, jdoc_show(type, shown, sizeof shown));
    if (kind != ROPE_DEFAULT && rope != config->rope && !json_equal(rope, config->rope))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field '%s%s.rope_type' is %s, which has no effect there: '%s%s' takes "
                       "its place; put the scaling into that, or remove it",
                       config->file, prefix, name, jdoc_show(type, shown, sizeof shown),
                       config->text != config->root ? "text_config." : "", rope_name(config));
    json_object_foreach((json_t *)rope, key, value)
        if (json_is_object(value))
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field '%s%s.%.64s' is %s; this version computes the same rotation "
                           "in every layer",
                           config->file, prefix, name, key, jdoc_show(value, shown, sizeof shown));
    return 0;
}

int config_check(const struct config *config, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < sizeof rope_names / sizeof rope_names[0]; i++) {
        const char *name = rope_names[i];
        const json_t *in_root = jdoc_find(config->root, name);
        const json_t *in_text = jdoc_find(config->text, name);
        if (in_root != NULL)
            rc = check_rope(config, "", name, in_root, err);
        if (rc == 0 && in_text != NULL && config->text != config->root)
            rc = check_rope(config, "text_config.", name, in_text, err);
    }
    return rc;
}

static int read_theta(const struct config *config, double *theta, struct fm_error *err)
{
    const char *field = "rope_theta";
    int rc = config_number_or(config, field, 1.0, 1e12, 0, theta, err);
    if (rc != 0 || *theta != 0)
        return rc;
    const bool is_hidden = config->rope == jdoc_find(config->text, "rope_scaling") &&
                           jdoc_find(jdoc_find(config->text, "rope_parameters"), field) != NULL;
    return err_set(err, FM_ERR_FORMAT, "%s: field '%s' is missing%s", config->file, field,
                   is_hidden ? ": rope_scaling takes the place of rope_parameters, so put it "
                               "into rope_scaling, or remove rope_scaling"
                             : "");
}

/* Larger than in any model; beyond it a value is refused. */
#define MAX_ROPE_VALUE 1e6
#define MIN_ROPE_VALUE 1e-6

/* A factor of null is the quotient of the two lengths, in YaRN alone. */
static int read_factor(const struct config *config, const struct rope *rope, uint32_t positions,
                       double *factor, struct fm_error *err)
{
    const json_t *value = json_object_get(config->rope, "factor");
    if (rope->kind == ROPE_YARN && json_is_null(value)) {
        *factor = (double)positions / rope->original_context;
        if (*factor >= 1)
            return 0;
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field '%s.factor' is null, and max_position_embeddings %u is less "
                       "than original_max_position_embeddings %u: expected a factor of at least 1",
                       config->file, rope_name(config), positions, rope->original_context);
    }
    if (value == NULL || json_is_null(value))
        return err_set(err, FM_ERR_FORMAT, "%s: field '%s.factor' is missing: the rope_type %s "
                       "needs it", config->file, rope_name(config), rope_kind_name(rope->kind));
    return config_number_or(config, "factor", 1, MAX_ROPE_VALUE, 1, factor, err);
}

static int read_attention_factor(const struct config *config, struct rope *rope,
                                 struct fm_error *err)
{
    double mscale, mscale_all_dim;
    int rc = config_number_or(config, "mscale", 0, MAX_ROPE_VALUE, 0, &mscale, err);
    if (rc == 0)
        rc = config_number_or(config, "mscale_all_dim", 0, MAX_ROPE_VALUE, 0, &mscale_all_dim,
                              err);
    if (rc == 0)
        rc = config_number_or(config, "attention_factor", MIN_ROPE_VALUE, MAX_ROPE_VALUE,
                              rope_attention_factor(rope->factor, mscale, mscale_all_dim),
                              &rope->attention_factor, err);
    return rc;
}

/* A beta of 0 is the default. */
static int read_ramp(const struct config *config, struct rope *rope, struct fm_error *err)
{
    int rc = config_number_or(config, "beta_fast", 0, MAX_ROPE_VALUE, 0, &rope->beta_fast, err);
    if (rc == 0)
        rc = config_number_or(config, "beta_slow", 0, MAX_ROPE_VALUE, 0, &rope->beta_slow, err);
    if (rc != 0)
        return rc;
    rope->beta_fast = rope->beta_fast != 0 ? rope->beta_fast : 32;
    rope->beta_slow = rope->beta_slow != 0 ? rope->beta_slow : 1;
    if (rope->beta_slow < MIN_ROPE_VALUE || rope->beta_fast < rope->beta_slow)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: in '%s' beta_fast is %g and beta_slow %g: expected beta_slow of at "
                       "least %g and beta_fast no smaller",
                       config->file, rope_name(config), rope->beta_fast, rope->beta_slow,
                       MIN_ROPE_VALUE);
    /* null means false here, unlike everywhere else. */
    rope->truncates = !json_is_null(json_object_get(config->rope, "truncate"));
    if (rope->truncates)
        rc = jdoc_bool_or(config->rope, config->file, "truncate", true, &rope->truncates, err);
    return rc;
}

static int read_yarn(const struct config *config, struct rope *rope, struct fm_error *err)
{
    const uint32_t positions = rope->original_context;
    int rc = config_uint_or(config, "original_max_position_embeddings", 1, LIMIT_CONTEXT,
                            positions, &rope->original_context, err);
    if (rc == 0 && rope->theta <= 1)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: field 'rope_theta' is %g, expected more than 1 with the rope_type yarn",
                     config->file, rope->theta);
    if (rc == 0)
        rc = read_factor(config, rope, positions, &rope->factor, err);
    if (rc == 0)
        rc = read_attention_factor(config, rope, err);
    return rc != 0 ? rc : read_ramp(config, rope, err);
}

static uint32_t default_positions_of(const struct config *config)
{
    unsigned i = 0;
    while (default_positions[i].model_type != NULL &&
           strcmp(default_positions[i].model_type, config->model_type) != 0)
        i++;
    return default_positions[i].positions;
}

int config_rope(const struct config *config, struct rope *rope, struct fm_error *err)
{
    *rope = (struct rope){.factor = 1, .attention_factor = 1};
    (void)find_kind(rope_type(config->rope), &rope->kind); /* config_check knows it */
    int rc = read_theta(config, &rope->theta, err);
    if (rc == 0)
        rc = config_uint_or(config, "max_position_embeddings", 1, LIMIT_CONTEXT,
                            default_positions_of(config), &rope->original_context, err);
    if (rc == 0 && rope->kind == ROPE_LINEAR)
        rc = read_factor(config, rope, 0, &rope->factor, err);
    if (rc == 0 && rope->kind == ROPE_YARN)
        rc = read_yarn(config, rope, err);
    return rc;
}

/* ---- opening -------------------------------------------------------------------------------- */

int config_init(struct config *config, const struct jdoc *doc, struct fm_error *err)
{
    *config = (struct config){.file = doc->file, .root = doc->root, .text = doc->root};
    const json_t *text = jdoc_find(doc->root, "text_config");
    if (text != NULL && !json_is_object(text))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'text_config' is not an object", doc->file);
    if (text != NULL)
        config->text = text;
    int rc = jdoc_string(config->root, config->file, "model_type", &config->root_type, err);
    config->model_type = config->root_type;
    if (rc == 0 && jdoc_find(config->text, "model_type") != NULL)
        rc = jdoc_string(config->text, config->file, "model_type", &config->model_type, err);
    for (size_t i = 0; i < sizeof rope_names / sizeof rope_names[0]; i++)
        if (config->rope == NULL && json_object_size(jdoc_find(config->text, rope_names[i])) > 0)
            config->rope = jdoc_find(config->text, rope_names[i]);
    return rc;
}

/* ---- values --------------------------------------------------------------------------------- */

int config_uint(const struct config *config, const char *field, uint64_t min, uint64_t max,
                uint32_t *out, struct fm_error *err)
{
    uint64_t value = min; /* what a probe goes on with */
    const struct found found = locate(config, field);
    int rc = jdoc_uint(found.holder, config->file, found.key, min, max, &value, err);
    *out = (uint32_t)value;
    return settle(config, found, rc);
}

int config_uint_or(const struct config *config, const char *field, uint64_t min, uint64_t max,
                   uint32_t fallback, uint32_t *out, struct fm_error *err)
{
    uint64_t value = fallback;
    const struct found found = locate(config, field);
    int rc = jdoc_uint_or(found.holder, config->file, found.key, min, max, fallback, &value, err);
    *out = (uint32_t)value;
    return settle(config, found, rc);
}

int config_number_or(const struct config *config, const char *field, double min, double max,
                     double fallback, double *out, struct fm_error *err)
{
    const struct found found = locate(config, field);
    *out = fallback;
    return settle(config, found, jdoc_number_or(found.holder, config->file, found.key, min, max,
                                                fallback, out, err));
}

int config_bool_or(const struct config *config, const char *field, bool fallback, bool *out,
                   struct fm_error *err)
{
    const struct found found = locate(config, field);
    *out = fallback;
    return settle(config, found, jdoc_bool_or(found.holder, config->file, found.key, fallback, out,
                                              err));
}

int config_experts_per_token(const struct config *config, const char *field, uint64_t max,
                             uint32_t *trained, uint32_t *used, struct fm_error *err)
{
    int rc = config_uint(config, field, 1, max, trained, err);
    const uint32_t asked = config->experts_per_token;
    *used = asked > 0 ? asked : *trained;
    if (rc == 0 && asked > *trained)
        rc = err_set(err, FM_ERR_ARG,
                     "%u experts per token were requested, but the model uses %u (%s, field "
                     "'%s'): expected 1 to %u",
                     asked, *trained, config->file, field, *trained);
    return rc;
}

/* ---- what is refused ------------------------------------------------------------------------ */

int config_refuse_unless(const struct config *config, const char *field, const char *supported,
                         struct fm_error *err)
{
    const json_t *value = config_find(config, field);
    if (value == NULL)
        return 0;
    char shown[80];
    (void)jdoc_show(value, shown, sizeof shown);
    if (strcmp(shown, supported) == 0)
        return 0;
    return settle(config, locate(config, field),
                  err_set(err, FM_ERR_UNSUPPORTED,
                          "%s: field '%s' is %s; this version computes %s only", config->file,
                          field, shown, supported));
}

int config_refuse_general(const struct config *config, struct fm_error *err)
{
    static const struct {
        const char *field, *supported;
    } general[] = {
        {"per_layer_config", "null"},
        {"attention_chunk_size", "null"},
        {"transformers_weights", "null"},
        {"num_kv_shared_layers", "0"},
        {"use_sliding_window", "false"},
    };
    int rc = 0;
    /* null means false here, unlike everywhere else. */
    const json_t *is_causal = json_object_get(config->text, "is_causal");
    if (is_causal != NULL && !json_is_true(is_causal)) {
        char shown[80];
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: field 'is_causal' is %s; this version computes true only", config->file,
                     jdoc_show(is_causal, shown, sizeof shown));
    }
    for (size_t i = 0; rc == 0 && i < sizeof general / sizeof general[0]; i++)
        rc = config_refuse_unless(config, general[i].field, general[i].supported, err);
    return rc;
}
