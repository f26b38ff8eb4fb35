#include "model/unknown.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/binder_internal.h"
#include "model/probe.h"

/* Names in a message of each kind. */
#define MAX_SHOWN_FIELDS 5
#define MAX_SHOWN_TENSORS 3
/* A field that a family needs says more than one that it does not look at. */
#define WEIGHT_WANTED 3
/* As many tensors as a family wants that is not a near one. */
#define WEIGHT_STOPPED 10

/* Fields that configurations of all kinds have and that change no logits, or that config_init
 * reads. */
static const char *const neutral_fields[] = {
    "architectures", "attention_dropout", "attn_implementation", "auto_map", "aux_loss_alpha",
    "bos_token_id", "chunk_size_feed_forward", "dtype", "embd_pdrop", "eos_token_id", "ep_size",
    "hidden_dropout", "id2label", "initializer_range", "is_encoder_decoder", "label2id",
    "max_window_layers", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "quantization",
    "quantization_config", "resid_pdrop", "return_dict", "rope_parameters", "rope_scaling",
    "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef", "seq_aux", "torch_dtype",
    "transformers_version", "use_cache",
    /* Families that do not look at these have no use for them. */
    "head_dim", "intermediate_size", "num_key_value_heads", "num_nextn_predict_layers",
    "qk_head_dim",
};

static bool is_neutral(const char *field, const json_t *value)
{
    size_t i = 0;
    while (i < sizeof neutral_fields / sizeof neutral_fields[0] &&
           strcmp(field, neutral_fields[i]) != 0)
        i++;
    return i < sizeof neutral_fields / sizeof neutral_fields[0] || field[0] == '_' ||
           json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* ---- experts -------------------------------------------------------------------------------- */

#define MAX_DEPTH 3

/* Returns whether a field of the configuration, or of an object in it, counts experts. */
static bool has_experts(const json_t *config, unsigned depth)
{
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)config, field, value)
        if ((json_is_object(value) && depth < MAX_DEPTH && has_experts(value, depth + 1)) ||
            (strstr(field, "expert") != NULL && json_integer_value(value) > 0))
            return true;
    return false;
}

/* ---- trying a family ------------------------------------------------------------------------ */

/* Notes the fields that the family did not look at. */
static void note_other_fields(struct probe *probe, const json_t *config)
{
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)config, field, value)
        if (!is_neutral(field, value) && !name_set_has(&probe->read_fields, field, strlen(field)))
            name_set_add(&probe->other_fields, field, strlen(field));
}

/* Keeps why the family stopped, without the name of the file. */
static void note_stop(struct probe *probe, const char *file, const char *text)
{
    const size_t n = strlen(file);
    const bool is_named = strncmp(text, file, n) == 0 && strncmp(text + n, ": ", 2) == 0;
    (void)snprintf(probe->stop, sizeof probe->stop, "%.*s", (int)sizeof probe->stop - 1,
                   text + (is_named ? n + 2 : 0));
}

/* Lets the family open the model as if it were one of its own. A failure is not passed on: what was
 * noted before it says enough. */
static int try_family(struct source *source, const struct config *config,
                      const struct model_family *family, struct probe *probe,
                      struct fm_error *err)
{
    struct fm_error ignored = {0};
    struct model model = {.source = source, .family = family};
    struct config own = *config;
    struct binder b;
    memset(probe, 0, sizeof *probe);
    own.model_type = family->model_types[0];
    own.probe = probe;
    int rc = binder_init(&b, &model, err);
    if (rc == 0) {
        b.probe = probe;
        b.err = &ignored;
        probe->is_whole = family->open(&own, &b, &model.shape, &model.arch, &ignored) == 0;
        (void)binder_finish(&b);
        note_stop(probe, config->file, ignored.text);
        note_other_fields(probe, config->text);
    }
    family->close(model.arch);
    binder_clear(&b);
    mem_free(model.uses);
    return rc;
}

/* A family that stopped has not noted all that it would. */
static size_t score(const struct probe *p)
{
    return (p->is_whole ? 0 : WEIGHT_STOPPED) + WEIGHT_WANTED * (size_t)p->wanted_fields.n +
           p->other_values.n + p->other_fields.n + p->wanted_tensors.n + p->other_tensors.n;
}

/* Leaves the probe of the nearest family in *nearest, and returns the family in *found. */
static int find_nearest(struct source *source, const struct config *config,
                        const char *model_type, const struct model_family *const *families,
                        struct probe **nearest, const struct model_family **found,
                        struct fm_error *err)
{
    struct probe *probe = mem_new(1, sizeof *probe, "the comparison of families", err);
    size_t min = SIZE_MAX, min_distance = SIZE_MAX;
    int rc = probe == NULL ? FM_ERR_NOMEM : 0;
    for (; rc == 0 && *families != NULL; families++) {
        rc = try_family(source, config, *families, probe, err);
        const size_t n = score(probe);
        const size_t distance = name_distance(model_type, (*families)->model_types[0]);
        if (rc != 0 || n > min || (n == min && distance >= min_distance))
            continue;
        struct probe *worse = *nearest;
        *nearest = probe;
        *found = *families;
        probe = worse;
        min = n;
        min_distance = distance;
    }
    mem_free(probe);
    return rc;
}

/* ---- the message ---------------------------------------------------------------------------- */

/* Appends "; WHAT: a, b and 7 more" if there are any. */
static void append(char *text, size_t bytes, const char *what, const struct name_set *names,
                   unsigned max)
{
    char shown[MAX_SHOWN_FIELDS * NAME_SET_BYTES + 32];
    const size_t used = strlen(text);
    if (names->n > 0)
        (void)snprintf(text + used, bytes - used, "; %s: %s", what,
                       name_set_text(names, max, shown, sizeof shown));
}

/* A family that stopped has looked at no tensor. */
static void describe(const struct probe *p, char *text, size_t bytes)
{
    const unsigned fields = MAX_SHOWN_FIELDS, tensors = MAX_SHOWN_TENSORS;
    append(text, bytes, "fields it does not know", &p->other_fields, fields);
    append(text, bytes, "fields with other values", &p->other_values, fields);
    append(text, bytes, "fields it needs", &p->wanted_fields, fields);
    if (p->is_whole) {
        append(text, bytes, "tensors it does not know", &p->other_tensors, tensors);
        append(text, bytes, "tensors it needs", &p->wanted_tensors, tensors);
        return;
    }
    const size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "; it stops where %s", p->stop);
}

static void list_families(const struct model_family *const *families, char *text, size_t bytes)
{
    size_t used = 0;
    for (; *families != NULL; families++)
        for (const char *const *type = (*families)->model_types; *type != NULL; type++)
            if (used < bytes)
                used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                                         *type);
}

int model_refuse_unknown(struct source *source, const struct config *config,
                         const char *model_type, const struct model_family *const *families,
                         struct fm_error *err)
{
    char known[256], lacks[FM_ERROR_BYTES] = "";
    const struct model_family *family = NULL;
    list_families(families, known, sizeof known);
    if (!has_experts(config->root, 0))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field 'model_type' is \"%.64s\", and no field says that it has "
                       "experts: this version runs models with experts only: %s",
                       config->file, model_type, known);
    struct probe *p = mem_new(1, sizeof *p, "the comparison of families", err);
    int rc = p == NULL ? FM_ERR_NOMEM
                       : find_nearest(source, config, model_type, families, &p, &family, err);
    if (rc == 0) {
        describe(p, lacks, sizeof lacks);
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: field 'model_type' is \"%.64s\", which this version does not run; the "
                     "nearest family that it runs is \"%s\"%s", config->file, model_type,
                     family != NULL ? family->model_types[0] : "", lacks);
    }
    mem_free(p);
    return rc;
}
