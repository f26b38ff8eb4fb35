#include <stdio.h>
#include <string.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"

/* Returns the bytes of a session's first KV block. */
static uint64_t first_kv_bytes(const struct fm_model_info *info)
{
    return info->kv_position_bytes * info->kv_block_positions;
}

/* Excludes scratch, which depends on the threads and the prefill chunk. */
static uint64_t min_bytes(const struct fm_model_info *info)
{
    return info->dense_bytes + info->expert_token_bytes + info->state_bytes + first_kv_bytes(info);
}

/* ---- text ------------------------------------------------------------------------------ */

static void print_size(const char *what, uint64_t bytes)
{
    char human[UNIT_BYTES], exact[UNIT_BYTES];
    (void)printf("  %-36s %11s  %19s bytes\n", what, human_bytes(bytes, human),
                 grouped_digits(bytes, exact));
}

/* The block for multi-token prediction, as the model has it when it is opened with drafts. */
static void print_mtp(const struct fm_model_info *mtp)
{
    char dense[UNIT_BYTES], experts[UNIT_BYTES];
    if (mtp->n_mtp_layers > 0)
        (void)printf("Prediction    %u layer that drafts tokens with --draft auto or mtp: %s "
                     "dense,\n              %s of experts\n", mtp->n_mtp_layers,
                     human_bytes(mtp->mtp_dense_bytes, dense),
                     human_bytes(mtp->mtp_experts_bytes, experts));
    if (mtp->has_large_mtp)
        (void)printf("Prediction    1 layer for drafts, not used: its experts are larger than the\n"
                     "              model's. 'flashmoe pack' gives all the same format\n");
}

/* Returns how many tensors are not used with drafts either. */
static unsigned n_never_used(const struct fm_model_info *info, const struct fm_model_info *mtp)
{
    return mtp->n_mtp_layers > 0 ? mtp->n_ignored_tensors : info->n_ignored_tensors;
}

static void print_shape(const char *path, const struct fm_model_info *info,
                        const struct fm_model_info *mtp)
{
    char human[UNIT_BYTES], exact[UNIT_BYTES], name[NAME_BYTES];
    (void)printf("Model         %s\n", out_name(path, name));
    (void)printf("Form          %s\n", info->container);
    (void)printf("Architecture  %s\n", info->architecture);
    (void)printf("Parameters    %s (%s)\n", human_count(info->n_parameters, human),
                 grouped_digits(info->n_parameters, exact));
    (void)printf("Layers        %u: %u with experts, %u with full attention\n", info->n_layers,
                 info->n_moe_layers, info->n_attention_layers);
    (void)printf("Experts       %u per layer, %u per token\n", info->n_experts,
                 info->n_experts_per_token);
    (void)printf("Hidden size   %s\n", grouped_digits(info->hidden, exact));
    (void)printf("Vocabulary    %s tokens%s\n", grouped_digits(info->vocabulary, exact),
                 info->has_tied_head ? ", head tied to the embedding" : "");
    (void)printf("Context       up to %s positions\n", grouped_digits(info->max_context, exact));
    if (info->rope_scaling != NULL)
        (void)printf("Rope scaling  %s: %s positions times %g\n", info->rope_scaling,
                     grouped_digits(info->original_context, exact), info->rope_factor);
    (void)printf("Tokenizer     %s\n",
                 info->has_tokenizer ? "yes" : "none: put tokenizer.json into the directory");
    (void)printf("Checksums     %s\n",
                 info->has_checksums
                     ? "every expert and tensor, verified when read"
                     : "none: damaged weights go undetected; 'flashmoe pack' adds them");
    if (info->layers_here[0] != '\0')
        (void)printf("Part          the experts of layers %s; other machines have the others\n",
                     info->layers_here);
    print_mtp(mtp);
    const unsigned n_ignored = n_never_used(info, mtp);
    if (n_ignored > 0)
        (void)printf("Not used      %u tensors (%s)\n", n_ignored,
                     mtp->n_mtp_layers > 0 ? "vision" : "vision, multi-token prediction");
}

static void print_formats(const struct fm_model *model)
{
    struct fm_format_info format = {.size = sizeof format};
    (void)printf("\nFormats\n  %-18s %-8s %9s %11s  %19s\n", "name", "used by", "tensors", "size",
                 "bytes");
    for (unsigned i = 0; fm_model_format(model, i, &format); i++) {
        char n[UNIT_BYTES], human[UNIT_BYTES], exact[UNIT_BYTES];
        (void)printf("  %-18s %-8s %9s %11s  %19s\n", format.name,
                     format.is_expert ? "experts" : "dense", grouped_digits(format.n_tensors, n),
                     human_bytes(format.n_bytes, human), grouped_digits(format.n_bytes, exact));
    }
}

static void print_sizes(const struct fm_model_info *info, const char *kv)
{
    char what[64], human[UNIT_BYTES];
    (void)printf("\nSizes\n");
    print_size("dense weights, always in memory", info->dense_bytes);
    print_size("all experts, on disk", info->experts_bytes);
    print_size("largest expert", info->expert_bytes);
    if (info->table_bytes > 0)
        print_size("tables of n-grams, on disk", info->table_bytes);
    (void)printf("\nOne token reads\n");
    print_size("expert weights", info->expert_token_bytes);
    print_size("dense weights", info->dense_token_bytes);
    (void)printf("\nOne session uses\n");
    (void)snprintf(what, sizeof what, "KV per position, %s", kv);
    print_size(what, info->kv_position_bytes);
    (void)snprintf(what, sizeof what, "KV of %u positions, %s", info->max_context, kv);
    print_size(what, info->kv_position_bytes * info->max_context);
    print_size("recurrent state", info->state_bytes);
    (void)printf("\n--memory must be at least %s plus scratch and the program itself. The rest\n"
                 "caches experts and shrinks as positions are used.\n",
                 human_bytes(min_bytes(info), human));
}

/* ---- JSON ------------------------------------------------------------------------------ */

static json_t *formats_json(const struct fm_model *model)
{
    json_t *array = json_array();
    struct fm_format_info format = {.size = sizeof format};
    for (unsigned i = 0; fm_model_format(model, i, &format); i++)
        (void)json_array_append_new(
            array, json_pack("{s:s, s:b, s:I, s:I}", "name", format.name, "is_expert",
                             (int)format.is_expert, "n_tensors", (json_int_t)format.n_tensors,
                             "n_bytes", (json_int_t)format.n_bytes));
    return array;
}

static json_t *rope_json(const struct fm_model_info *info)
{
    if (info->rope_scaling == NULL)
        return json_null();
    return json_pack("{s:s, s:f, s:i, s:f}", "type", info->rope_scaling, "factor",
                     info->rope_factor, "original_context", (int)info->original_context,
                     "attention_factor", info->attention_factor);
}

static json_t *mtp_json(const struct fm_model_info *mtp)
{
    if (mtp->n_mtp_layers == 0 && !mtp->has_large_mtp)
        return json_null();
    return json_pack("{s:i, s:I, s:I, s:b}", "n_layers", 1, "dense_bytes",
                     (json_int_t)mtp->mtp_dense_bytes, "experts_bytes",
                     (json_int_t)mtp->mtp_experts_bytes, "is_usable", !mtp->has_large_mtp);
}

static json_t *model_json(const char *path, const struct fm_model *model,
                          const struct fm_model_info *info, const struct fm_model_info *mtp,
                          const char *kv)
{
    return json_pack(
        "{s:o, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:I, s:I, s:I, s:I, s:I,"
        " s:I, s:s, s:I, s:I, s:I, s:i, s:o, s:b, s:b, s:b, s:o, s:o}",
        "model", json_text(path, strlen(path)),
        "container", info->container,
        "architecture", info->architecture,
        "n_parameters", (json_int_t)info->n_parameters,
        "n_layers", (int)info->n_layers,
        "n_moe_layers", (int)info->n_moe_layers,
        "n_attention_layers", (int)info->n_attention_layers,
        "hidden", (int)info->hidden,
        "vocabulary", (int)info->vocabulary,
        "n_experts", (int)info->n_experts,
        "n_experts_per_token", (int)info->n_experts_per_token,
        "max_context", (int)info->max_context,
        "rope_scaling", rope_json(info),
        "dense_bytes", (json_int_t)info->dense_bytes,
        "table_bytes", (json_int_t)info->table_bytes,
        "experts_bytes", (json_int_t)info->experts_bytes,
        "expert_bytes", (json_int_t)info->expert_bytes,
        "expert_token_bytes", (json_int_t)info->expert_token_bytes,
        "dense_token_bytes", (json_int_t)info->dense_token_bytes,
        "kv", kv, "kv_position_bytes", (json_int_t)info->kv_position_bytes,
        "state_bytes", (json_int_t)info->state_bytes,
        "memory_min_bytes", (json_int_t)min_bytes(info),
        "n_ignored_tensors", (int)n_never_used(info, mtp), "mtp", mtp_json(mtp),
        "has_tokenizer", (int)info->has_tokenizer,
        "has_tied_head", (int)info->has_tied_head,
        "has_checksums", (int)info->has_checksums,
        "layers_here", json_label(info->layers_here[0] != '\0' ? info->layers_here : NULL),
        "formats", formats_json(model));
}

/* Looks at the model as drafts would have it. */
static int look_at_mtp(const struct args *args, struct fm_model_info *mtp, struct fm_error *err)
{
    const struct fm_model_options options = {.size = sizeof options, .metadata_only = true,
                                             .n_drafts = 1};
    struct fm_model *model = NULL;
    const int rc = fm_model_open(app_model_path(args), &options, &model, err);
    if (rc == 0)
        fm_model_info(model, mtp);
    fm_model_close(model);
    return rc;
}

static int run_inspect(const struct args *args)
{
    const char *path = app_model_path(args), *kv = args_text(args, "kv");
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    if (app_model_open_metadata(args, kv, &model, &err) != 0)
        return say_failed(&err, STATUS_FAILED);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    struct fm_model_info mtp = {.size = sizeof mtp};
    int status = STATUS_OK;
    if (look_at_mtp(args, &mtp, &err) != 0) {
        status = say_failed(&err, STATUS_FAILED);
    } else if (args_flag(args, "json")) {
        status = out_json(model_json(path, model, &info, &mtp, kv)) ? STATUS_OK : STATUS_FAILED;
    } else {
        print_shape(path, &info, &mtp);
        print_formats(model);
        print_sizes(&info, kv);
    }
    fm_model_close(model);
    return status;
}

const struct command cmd_inspect = {
    .name = "inspect",
    .summary = "Show the structure of a model and what it needs",
    .description = "Reads headers only, so it is fast for a model of any size.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_kv, &group_json, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe inspect MODEL", "Architecture, formats, sizes, bytes per token"},
        {NULL, NULL}},
    .run = run_inspect,
};
