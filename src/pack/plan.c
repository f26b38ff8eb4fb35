/* Chooses the format and place of every tensor and expert. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "flashmoe_lab.h"
#include "pack/pack_internal.h"
#include "quant/interleave.h"

#define DEFAULT_EXPERTS "affine4-g64"
#define KEEP "keep"
/* Memory of all workers together. The program and the tables of a large model take about 200 MB
 * more. */
#define WORKERS_BYTES (512u << 20)
#define MAX_WORKERS 64
#define MAX_OUT_BYTES (48u << 20)
/* Approximate size of reads and writes; several small experts are handled together. */
#define ITEM_BYTES (4u << 20)
/* Minimum number of workers: I/O needs more threads than there are processors. */
#define IO_WORKERS 4

/* ---- formats -------------------------------------------------------------------------------- */

struct choice {
    const char *option;       /* "experts" */
    const struct quant *to;   /* NULL: keep the format */
    bool is_default;          /* only floats are converted */
    bool is_warned;
    const struct quant *from, *made; /* formats of the first matrix, routers excepted */
};

struct choices {
    struct choice experts, dense, embed, head;
    unsigned n_too_narrow;
};

static bool is_encodable(const struct quant *quant)
{
    for (unsigned p = 0; p < quant->n_parts; p++)
        if (quant->part_rows[p] > 1)
            return false;
    return quant->encode_row != NULL;
}

static int unknown_format(const char *option, const char *name, struct fm_error *err)
{
    char list[FM_ERROR_BYTES / 2] = KEEP;
    for (unsigned i = 0; quant_at(i) != NULL; i++)
        if (is_encodable(quant_at(i)) && strstr(quant_at(i)->name, "-f16") == NULL) {
            size_t used = strlen(list);
            (void)snprintf(list + used, sizeof list - used, ", %s", quant_at(i)->name);
        }
    return err_set(err, FM_ERR_ARG, "%s '%.60s': %s; these can be written: %s", option, name,
                   quant_find(name) == NULL ? "there is no such format"
                                            : "this version reads that format only",
                   list);
}

static int choose(struct choice *c, const char *option, const char *name, const char *fallback,
                  struct fm_error *err)
{
    *c = (struct choice){.option = option, .is_default = name == NULL};
    name = name != NULL ? name : fallback;
    if (strcmp(name, KEEP) == 0)
        return 0;
    c->to = quant_find(name);
    return c->to != NULL && is_encodable(c->to) ? 0 : unknown_format(option, name, err);
}

static int choose_all(const struct pack *pack, struct choices *c, struct fm_error *err)
{
    const struct fm_pack_options *o = pack->options;
    int rc = choose(&c->experts, "experts", o->experts, DEFAULT_EXPERTS, err);
    if (rc == 0)
        rc = choose(&c->dense, "dense", o->dense, KEEP, err);
    if (rc == 0)
        rc = choose(&c->embed, "embed", o->embed, KEEP, err);
    if (rc == 0)
        rc = choose(&c->head, "head", o->head, KEEP, err);
    if (rc != 0 || !pack->model->shape.has_tied_head)
        return rc;
    /* A tied head is the same tensor as the embedding. */
    if (!c->head.is_default && !c->embed.is_default && c->head.to != c->embed.to)
        return err_set(err, FM_ERR_ARG, "embed '%s' and head '%s' differ, but the head of this "
                       "model is tied to the embedding: they are one tensor", o->embed, o->head);
    if (c->head.is_default)
        c->head = c->embed;
    return 0;
}

/* Routers keep 8 bits: wrong choices are costly, and routers are small. */
static const struct quant *gate_format(const struct quant *to)
{
    if (to->kind == QUANT_FLOAT || to->bits >= 8)
        return to;
    char name[64];
    const bool has_f16 = to->kind == QUANT_AFFINE && to->scale == &quant_f16;
    (void)snprintf(name, sizeof name, "affine8-g%u%s", to->block, has_f16 ? "-f16" : "");
    return quant_find(name);
}

static const struct quant *resolve(struct choices *all, struct choice *c, enum tensor_role role,
                                   const struct quant *from, uint64_t n_cols)
{
    const struct quant *to = c->to;
    if (to != NULL && role == TENSOR_GATE)
        to = gate_format(to);
    if (to == NULL || to == from || (c->is_default && from->kind != QUANT_FLOAT))
        return from;
    if (n_cols % to->block != 0) {
        all->n_too_narrow++;
        return from;
    }
    if (from->kind != QUANT_FLOAT && to != &quant_f32 && !c->is_warned) {
        log_warn("pack", "%s: %s is quantised already; making %s of it loses precision a second "
                 "time", c->option, from->name, to->name);
        c->is_warned = true;
    }
    if (c->made == NULL && role != TENSOR_GATE) {
        c->from = from;
        c->made = to;
    }
    return to;
}

static struct choice *choice_of(struct choices *c, enum tensor_role role)
{
    switch (role) {
    case TENSOR_MATRIX:
    case TENSOR_GATE:
        return &c->dense;
    case TENSOR_EMBEDDING:
        return &c->embed;
    case TENSOR_HEAD:
        return &c->head;
    default:
        return NULL;
    }
}

/* ---- dense.bin ------------------------------------------------------------------------------ */

static bool is_dense(const struct tensor_use *use)
{
    return use->role == TENSOR_VECTOR || use->role == TENSOR_MATRIX || use->role == TENSOR_GATE ||
           use->role == TENSOR_EMBEDDING || use->role == TENSOR_HEAD ||
           use->role == TENSOR_TABLE;
}

static int plan_tensor(struct pack *pack, struct choices *choices, const struct tensor_info *t,
                       const struct tensor_use *use, struct fm_error *err)
{
    struct packed *packed = &pack->packed;
    struct packed_tensor *out = &packed->tensors[packed->n_tensors];
    struct choice *choice = choice_of(choices, use->role);
    *out = (struct packed_tensor){.name = t->name, .quant = use->quant, .n_dims = t->n_dims,
                                  .offset = packed->dense_bytes};
    memcpy(out->dims, t->dims, sizeof out->dims);
    if (t->n_dims == 0)
        out->dims[out->n_dims++] = 1;
    if (t->scale != NULL)
        out->dims[out->n_dims - 1] = use->n_cols; /* MLX counts words */
    const uint64_t n_rows = packed_tensor_rows(out), n_cols = out->dims[out->n_dims - 1];
    for (unsigned p = 0; p < use->quant->n_parts; p++)
        if (t->parts[p].bytes != quant_part_bytes(use->quant, p, n_rows, n_cols) ||
            t->parts[p].stride != 0)
            return err_set(err, FM_ERR_UNSUPPORTED, "tensor '%s' cannot be packed: its parts are "
                           "not contiguous", t->name);
    if (choice != NULL)
        out->quant = resolve(choices, choice, use->role, use->quant, n_cols);
    if (out->quant != use->quant)
        encoder_needs_add(&pack->needs, use->quant, n_cols);
    uint64_t part_offset[QUANT_MAX_PARTS];
    if (!packed_tensor_layout(out, &out->bytes, part_offset))
        return err_set(err, FM_ERR_UNSUPPORTED, "tensor '%s' cannot be packed as %s", t->name,
                       out->quant->name);
    pack->tensors[packed->n_tensors++] = t;
    packed->dense_bytes += out->bytes;
    return 0;
}

static int plan_dense(struct pack *pack, struct choices *choices, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    pack->packed.tensors =
        mem_new(source->n_tensors, sizeof *pack->packed.tensors, "the tensor list", err);
    pack->tensors = mem_new(source->n_tensors, sizeof *pack->tensors, "the tensor list", err);
    if (pack->packed.tensors == NULL || pack->tensors == NULL)
        return FM_ERR_NOMEM;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < source->n_tensors; i++)
        if (is_dense(&pack->model->uses[i]))
            rc = plan_tensor(pack, choices, &source->tensors[i], &pack->model->uses[i], err);
    return rc;
}

/* ---- experts -------------------------------------------------------------------------------- */

/* Returns whether packing changes no byte of a layer's records: their checksums stay. */
static bool is_same_record(const struct record *a, const struct record *b)
{
    bool is_same = a->bytes == b->bytes && record_is_settled(a);
    for (unsigned m = 0; m < EXPERT_MATRICES; m++)
        is_same = is_same && a->matrices[m].quant == b->matrices[m].quant &&
                  a->matrices[m].lies_interleaved == b->matrices[m].lies_interleaved;
    return is_same;
}

/* Decides what becomes of a layer's file: it is written, or only its checksums are made. */
static int plan_place(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    const struct expert_layer *from = file->from;
    const struct source_file *source = &pack->model->source->files[from->extents[0].file];
    file->is_elsewhere = file->to->is_elsewhere = !layers_has(pack, from->layer);
    if (file->is_elsewhere && from->sums != NULL &&
        is_same_record(&from->record, &file->to->record)) {
        memcpy(file->to->sums, from->sums, from->n_experts * sizeof *from->sums);
        file->step = PACK_DONE;
        return 0;
    }
    return source->fd >= 0 ? 0 : err_set(err, FM_ERR_ARG, "'%s' is missing: '%s' is part of a "
                                         "model; pack only layers that it has (--layers), in the "
                                         "formats that it has (--experts keep)",
                                         path_base(source->path), pack->src);
}

/* Decides what each folder gets of a file: a part of every record, or a copy. The dense part of a
 * split model is in the first folder. */
static void plan_outs(struct pack *pack, uint32_t f)
{
    struct pack_file *file = &pack->files[f];
    const bool is_split = pack->packed.n_parts > 1;
    file->outs = pack->outs + (size_t)f * pack->n_folders;
    file->n_outs = is_split && f == 0 ? 1 : pack->n_folders;
    for (unsigned i = 0; i < file->n_outs; i++)
        file->outs[i].bytes = is_split && f > 0 ? file->to->n_experts * file->to->part_bytes[i]
                                                : file->bytes;
    file->n_copies = is_split ? 1 : pack->n_folders;
}

static int plan_layer(struct pack *pack, struct choices *choices, uint32_t index,
                      struct fm_error *err)
{
    const struct expert_layer *from = &pack->model->expert_layers[index];
    struct packed_layer *to = &pack->packed.layers[index];
    struct pack_file *file = &pack->files[index + 1];
    to->layer = from->layer;
    to->n_experts = from->n_experts;
    to->prefix = mem_strdup(from->prefix, err);
    to->sums = mem_new(from->n_experts, sizeof *to->sums, "checksums", err);
    if (to->prefix == NULL || to->sums == NULL)
        return FM_ERR_NOMEM;
    if (index > 0 && to[-1].layer >= to->layer)
        return err_set(err, FM_ERR_UNSUPPORTED, "layer %u comes after layer %u: layers out of "
                       "order cannot be packed", to->layer, to[-1].layer);
    to->record = from->record;
    to->record.lies_zipped = to->record.lies_transposed = false;
    if (!record_is_settled(&from->record) && from->record.bytes > pack->needs.slot_bytes)
        pack->needs.slot_bytes = from->record.bytes;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        struct record_matrix *matrix = &to->record.matrices[m];
        const struct quant *quant = matrix->quant;
        matrix->quant = resolve(choices, &choices->experts, TENSOR_EXPERT, quant, matrix->n_cols);
        matrix->lies_interleaved = interleave_suits(matrix->quant, matrix->n_rows, matrix->n_cols);
        if (matrix->quant != quant)
            encoder_needs_add(&pack->needs, quant, matrix->n_cols);
    }
    uint64_t all;
    if (!record_layout(&to->record) || !mem_mul(to->record.bytes, to->n_experts, &all))
        return err_set(err, FM_ERR_UNSUPPORTED, "the experts of layer %u overflow 64 bits",
                       to->layer);
    int rc = folders_cut(pack, to, err);
    if (rc != 0)
        return rc;
    *file = (struct pack_file){.bytes = all, .from = from, .to = to};
    plan_outs(pack, index + 1);
    (void)snprintf(file->name, sizeof file->name, PACKED_EXPERTS_NAME, to->layer);
    file->item_experts = (uint32_t)(ITEM_BYTES / to->record.bytes);
    file->item_experts = file->item_experts > 0 ? file->item_experts : 1;
    file->n_items = (to->n_experts + (uint64_t)file->item_experts - 1) / file->item_experts;
    return plan_place(pack, file, err);
}

static int plan_layers(struct pack *pack, struct choices *choices, struct fm_error *err)
{
    const uint32_t n = pack->model->n_expert_layers;
    pack->packed.layers = mem_new(n, sizeof *pack->packed.layers, "layers", err);
    pack->files = mem_new((uint64_t)n + 1, sizeof *pack->files, "the files", err);
    pack->outs = mem_new(((uint64_t)n + 1) * pack->n_folders, sizeof *pack->outs, "the files", err);
    if (pack->packed.layers == NULL || pack->files == NULL || pack->outs == NULL)
        return FM_ERR_NOMEM;
    for (uint64_t i = 0; i < ((uint64_t)n + 1) * pack->n_folders; i++)
        pack->outs[i].fd = pack->outs[i].device.fd = -1;
    pack->files[0] = (struct pack_file){
        .name = PACKED_DENSE_NAME, .bytes = pack->packed.dense_bytes,
        .n_items = pack->packed.n_tensors};
    plan_outs(pack, 0);
    pack->n_files = n + 1;
    pack->packed.n_layers = n;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = plan_layer(pack, choices, i, err);
    if (pack->options->remote != NULL) { /* dense tensors are in all source files: they come last */
        const struct pack_file dense = pack->files[0];
        memmove(pack->files, pack->files + 1, n * sizeof *pack->files);
        pack->files[n] = dense;
    }
    return rc;
}

/* ---- last use of each source file ----------------------------------------------------------- */

/* Source files with experts that are not written stay: they may be the only copy. */
static void plan_keep(struct pack *pack)
{
    for (uint32_t i = 0; i < pack->n_files; i++) {
        const struct expert_layer *from = pack->files[i].from;
        for (size_t x = 0; from != NULL && x < (size_t)from->n_experts * from->n_extents; x++)
            if (pack->files[i].is_elsewhere && from->extents[x].bytes > 0)
                pack->last_use[from->extents[x].file] = -1;
    }
}

static int plan_uses(struct pack *pack, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    const int64_t dense = pack->files[0].from == NULL ? 0 : pack->n_files - 1;
    pack->last_use = mem_new(source->n_files, sizeof *pack->last_use, "the files", err);
    pack->is_stub = mem_new(source->n_files, sizeof *pack->is_stub, "the files", err);
    pack->has_dense = mem_new(source->n_files, sizeof *pack->has_dense, "the files", err);
    pack->opened = mem_new(source->n_files, sizeof *pack->opened, "the files", err);
    if (pack->last_use == NULL || pack->is_stub == NULL || pack->has_dense == NULL ||
        pack->opened == NULL)
        return FM_ERR_NOMEM;
    for (unsigned f = 0; f < source->n_files; f++) {
        pack->last_use[f] = -1;
        if (source->files[f].fd >= 0 &&
            !plat_open_file_info(source->files[f].fd, &pack->opened[f]))
            return err_set(err, FM_ERR_IO, "cannot get the status of '%s'", source->files[f].path);
        pack->is_stub[f] = strncmp(source->files[f].path, pack->stubs,
                                   strlen(pack->stubs)) == 0;
        pack->has_dense[f] = pack->opened[f].bytes == source->files[f].bytes + SOURCE_SPARE_BYTES;
    }
    for (size_t i = 0; i < pack->packed.n_tensors; i++)
        for (unsigned p = 0; p < pack->tensors[i]->n_parts; p++)
            pack->last_use[pack->tensors[i]->parts[p].file] = dense;
    for (uint32_t i = 0; i < pack->n_files; i++) {
        const struct expert_layer *from = pack->files[i].from;
        for (size_t x = 0; from != NULL && x < (size_t)from->n_experts * from->n_extents; x++)
            if (from->extents[x].bytes > 0)
                pack->last_use[from->extents[x].file] = i;
    }
    plan_keep(pack);
    return 0;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Sizes the buffers so that the largest matrix is encoded in one pass if possible. */
static void plan_memory(struct pack *pack)
{
    const unsigned n_threads = pack->options->n_threads > 0 ? pack->options->n_threads
                                                            : plat_n_cpus();
    struct encoder_needs *needs = &pack->needs;
    unsigned n = n_threads + IO_WORKERS;
    n = n < MAX_WORKERS ? n : MAX_WORKERS;
    needs->max_cols = needs->max_cols > 0 ? needs->max_cols : 1;
    uint64_t out = WORKERS_BYTES / n;
    out = out < MAX_OUT_BYTES ? out : MAX_OUT_BYTES;
    uint64_t rest = needs->raw_bytes + needs->max_cols * 2 * sizeof(float) + needs->slot_bytes;
    out = out > rest + ITEM_BYTES + 2 * MEM_PAGE ? out - rest : ITEM_BYTES + 2 * MEM_PAGE;
    needs->out_bytes = out - out % MEM_PAGE;
    while (n > 1 && n * encoder_bytes(needs) > WORKERS_BYTES)
        n--;
    pack->n_workers = n;
}

/* ---- files besides the weights -------------------------------------------------------------- */

/* Sorted as by strcmp. */
static const char *const beside[] = {
    "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "README.md", "chat_template.jinja",
    "chat_template.json", "generation_config.json", "special_tokens_map.json", "tiktoken.model",
    "tokenizer.json", "tokenizer_config.json",
};
_Static_assert(sizeof beside / sizeof beside[0] <= PACK_MAX_FILES, "room for every file");

static int plan_texts(struct pack *pack, struct fm_error *err)
{
    struct packed *packed = &pack->packed;
    packed->files = mem_new(PACK_MAX_FILES, sizeof *packed->files, "the files", err);
    if (packed->files == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        char label[LIMIT_PATH_BYTES], *text;
        size_t bytes;
        int rc = source_read_text(pack->model->source, beside[i], LIMIT_TOKENIZER_JSON_BYTES,
                                  &text, &bytes, label, err);
        if (rc != 0)
            return rc;
        if (text == NULL)
            continue;
        struct packed_file *file = &packed->files[packed->n_files];
        pack->texts[packed->n_files++] = text;
        file->bytes = bytes;
        packed_sum_of(text, bytes, &file->sum);
        file->name = mem_strdup(beside[i], err);
        if (file->name == NULL)
            return FM_ERR_NOMEM;
        pack->result->packed_bytes += (pack->options->mirror ? pack->n_folders : 1) * bytes;
    }
    return 0;
}

/* Writes the conversions as text: "experts: bf16 becomes affine4-g64; head: ...". */
static void list_changes(const struct choices *c, struct fm_pack_result *result)
{
    const struct choice *const all[] = {&c->experts, &c->dense, &c->embed, &c->head};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t used = strlen(result->changes);
        if (all[i]->made != NULL)
            (void)snprintf(result->changes + used, sizeof result->changes - used,
                           "%s%s: %s becomes %s", used > 0 ? "; " : "", all[i]->option,
                           all[i]->from->name, all[i]->made->name);
    }
}

int plan_make(struct pack *pack, struct fm_error *err)
{
    struct choices choices = {0};
    int rc = choose_all(pack, &choices, err);
    if (rc == 0)
        rc = plan_dense(pack, &choices, err);
    if (rc == 0)
        rc = plan_layers(pack, &choices, err);
    if (rc == 0)
        rc = plan_uses(pack, err);
    if (rc == 0)
        rc = plan_texts(pack, err);
    if (rc != 0)
        return rc;
    plan_memory(pack);
    list_changes(&choices, pack->result);
    pack->result->n_too_narrow = choices.n_too_narrow;
    pack->result->n_left_out = pack->model->n_ignored_tensors;
    for (uint32_t i = 0; i < pack->n_files; i++) {
        pack->result->packed_bytes +=
            pack->files[i].is_elsewhere ? 0 : pack->files[i].n_copies * pack->files[i].bytes;
        pack->result->n_layers_here +=
            pack->files[i].from != NULL && !pack->files[i].is_elsewhere;
        pack->result->n_layers_elsewhere += pack->files[i].is_elsewhere;
    }
    return 0;
}

void plan_clear(struct pack *pack)
{
    for (uint32_t i = 0; pack->packed.layers != NULL && i < pack->packed.n_layers; i++) {
        mem_free(pack->packed.layers[i].prefix);
        mem_free(pack->packed.layers[i].sums);
    }
    for (size_t i = 0; i < pack->packed.n_files; i++) {
        mem_free(pack->packed.files[i].name);
        mem_free(pack->texts[i]);
    }
    mem_free(pack->packed.files);
    mem_free(pack->packed.layers);
    mem_free(pack->packed.tensors);
    mem_free(pack->tensors);
    mem_free(pack->files);
    mem_free(pack->outs);
    mem_free(pack->last_use);
    mem_free(pack->is_stub);
    mem_free(pack->has_dense);
    mem_free(pack->opened);
}
