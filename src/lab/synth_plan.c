#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lab/synth_internal.h"

#define PIECE_BYTES (8u << 20)

struct synth_file *synth_plan_file(struct synth_plan *plan, struct fm_error *err)
{
    if (mem_grow((void **)&plan->files, &plan->cap_files, plan->n_files + 1, sizeof *plan->files,
                 "the files", err) != 0)
        return NULL;
    struct synth_file *file = &plan->files[plan->n_files++];
    *file = (struct synth_file){.piece_bytes = PIECE_BYTES};
    return file;
}

int synth_file_add(struct synth_file *file, struct synth_span span, struct fm_error *err)
{
    int rc = mem_grow((void **)&file->spans, &file->cap_spans, file->n_spans + 1,
                      sizeof *file->spans, "the files", err);
    if (rc == 0)
        file->spans[file->n_spans++] = span;
    return rc;
}

int synth_file_add_matrix(struct synth_plan *plan, struct synth_file *file, uint32_t tensor,
                          uint32_t expert, uint64_t *at, struct fm_error *err)
{
    const struct synth_tensor *t = &plan->tensors[tensor];
    int rc = 0;
    for (unsigned p = 0; rc == 0 && p < t->quant->n_parts; p++) {
        const uint64_t bytes = quant_part_bytes(t->quant, p, t->n_rows, t->n_cols);
        rc = synth_file_add(file, (struct synth_span){.offset = *at, .bytes = bytes,
                                                      .tensor = tensor, .expert = expert,
                                                      .part = p}, err);
        *at += bytes;
    }
    return rc;
}

int synth_plan_text(struct synth_plan *plan, const char *name, char *text, size_t bytes,
                    struct fm_error *err)
{
    int rc = mem_grow((void **)&plan->texts, &plan->cap_texts, plan->n_texts + 1,
                      sizeof *plan->texts, "the files", err);
    if (rc != 0) {
        mem_free(text);
        return rc;
    }
    plan->texts[plan->n_texts++] =
        (struct source_text){.name = name, .text = text, .bytes = bytes};
    return 0;
}

int synth_json_text(json_t *value, size_t flags, char **text, size_t *bytes, struct fm_error *err)
{
    *text = NULL;
    *bytes = value != NULL ? json_dumpb(value, NULL, 0, flags) : 0;
    char *out = *bytes > 0 ? mem_new(*bytes + 1, 1, "a JSON text", err) : NULL;
    if (out != NULL)
        (void)json_dumpb(value, out, *bytes, flags);
    json_decref(value);
    if (out == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot create a JSON text");
    *text = out;
    return 0;
}

int synth_plan_json(struct synth_plan *plan, const char *name, json_t *value,
                    struct fm_error *err)
{
    char *text;
    size_t bytes;
    int rc = synth_json_text(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17), &text, &bytes, err);
    return rc != 0 ? rc : synth_plan_text(plan, name, text, bytes, err);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Returns the first span that ends after `offset`. */
static size_t find_span(const struct synth_file *file, uint64_t offset)
{
    size_t low = 0, high = file->n_spans;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (file->spans[middle].offset + file->spans[middle].bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void synth_file_fill(const struct synth_plan *plan, const struct synth_file *file, uint64_t offset,
                     uint64_t bytes, void *dst)
{
    uint8_t *out = dst;
    uint64_t at = offset;
    const uint64_t end = offset + bytes;
    if (at < file->head_bytes) {
        const uint64_t n = min64(end, file->head_bytes) - at;
        memcpy(out, file->head + at, n);
        at += n;
    }
    struct synth_matrix m;
    uint32_t tensor = UINT32_MAX, expert = 0;
    for (size_t i = find_span(file, at); at < end; i++) {
        const struct synth_span *span = i < file->n_spans ? &file->spans[i] : NULL;
        const uint64_t gap_end = span != NULL ? min64(end, span->offset) : end;
        if (at < gap_end) {
            memset(out + (at - offset), 0, gap_end - at);
            at = gap_end;
        }
        if (at == end || span == NULL)
            return;
        if (span->tensor != tensor || span->expert != expert) {
            tensor = span->tensor;
            expert = span->expert;
            synth_matrix_init(&m, &plan->tensors[tensor], expert, &plan->conventions,
                              plan->seed);
        }
        const uint64_t n = min64(end, span->offset + span->bytes) - at;
        synth_fill(&m, span->part, at - span->offset, n, out + (at - offset));
        at += n;
    }
}

void synth_plan_clear(struct synth_plan *plan)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        mem_free(plan->files[i].head);
        mem_free(plan->files[i].spans);
    }
    for (size_t i = 0; i < plan->n_texts; i++)
        mem_free(plan->texts[i].text);
    mem_free(plan->files);
    mem_free(plan->texts);
    mem_free(plan->tensors);
    packed_free(plan->packed);
    json_decref(plan->config);
}
