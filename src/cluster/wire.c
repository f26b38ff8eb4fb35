#include "cluster/wire.h"

#include <assert.h>
#include <string.h>

#define RESULT_TEXT 800 /* of a fault, with its facts */
#define RANK_RESULTS 1024
#define QUESTION_BYTES (64u << 10)
#define ROW_ALIGN 64

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

uint64_t wire_small_bytes(const struct wire_limits *l)
{
    return QUESTION_BYTES + (uint64_t)l->n_context * sizeof(int32_t) +
           (uint64_t)l->max_segments * RESULT_TEXT + (uint64_t)l->n_ranks * RANK_RESULTS;
}

uint64_t wire_max_bytes(const struct wire_limits *l)
{
    return sizeof(struct wire_head) + WIRE_OPS * sizeof(struct wire_op) +
           l->max_segments * sizeof(struct wire_segment) +
           (uint64_t)l->max_rows * sizeof(int32_t) + 2 * wire_small_bytes(l) + ROW_ALIGN +
           (uint64_t)l->max_rows * l->row_floats * sizeof(float);
}

uint64_t wire_pass_bytes(uint32_t n_segments, uint32_t n_rows, uint32_t row_floats)
{
    const uint64_t head = sizeof(struct wire_head) +
                          (uint64_t)n_segments * sizeof(struct wire_segment) +
                          (uint64_t)n_rows * sizeof(int32_t);
    return round_up(round_up(head, 8), ROW_ALIGN) +
           (uint64_t)n_rows * row_floats * sizeof(float);
}

/* Sets the pointers up to the results. */
static void point(struct wire *w, void *bytes)
{
    struct wire_head *h = bytes;
    w->head = h;
    w->ops = (struct wire_op *)(h + 1);
    w->segments = (struct wire_segment *)(w->ops + h->n_ops);
    w->tokens = (int32_t *)(w->segments + h->n_segments);
    w->question = (char *)(w->tokens + h->n_tokens);
    w->results = (char *)bytes + round_up((uint64_t)(w->question - (char *)bytes) +
                                          h->question_bytes, 8);
    w->rows = NULL;
}

void wire_begin(struct wire *w, void *bytes)
{
    point(w, bytes);
    w->head->result_bytes = w->head->n_rows = 0;
}

bool wire_add(struct wire *w, const struct wire_limits *limits, const struct wire_result *result,
              const void *facts, uint32_t facts_bytes, const void *text)
{
    assert(facts_bytes <= result->bytes);
    const uint32_t n = (uint32_t)round_up(result->bytes, 8);
    if (w->head->result_bytes + sizeof *result + n > wire_small_bytes(limits))
        return false;
    char *at = w->results + w->head->result_bytes;
    memcpy(at, result, sizeof *result);
    at += sizeof *result;
    memset(at, 0, n);
    if (facts_bytes > 0)
        memcpy(at, facts, facts_bytes);
    if (result->bytes > facts_bytes)
        memcpy(at + facts_bytes, text, result->bytes - facts_bytes);
    w->head->result_bytes += (uint32_t)sizeof *result + n;
    return true;
}

static uint64_t rows_at(const struct wire *w)
{
    const char *begin = (const char *)w->head;
    return round_up((uint64_t)(w->results - begin) + w->head->result_bytes, ROW_ALIGN);
}

uint64_t wire_end(struct wire *w, uint32_t n_rows, uint32_t row_floats)
{
    const uint64_t at = rows_at(w);
    w->head->n_rows = n_rows;
    w->rows = (float *)((char *)w->head + at);
    return at + (uint64_t)n_rows * row_floats * sizeof(float);
}

static int refuse(const struct wire_head *h, const char *what, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT, "message %llu of the cluster is damaged: %s",
                   (unsigned long long)h->number, what);
}

static int check_segments(const struct wire *w, const struct wire_limits *l, struct fm_error *err)
{
    uint64_t n_tokens = 0, n_rows = 0;
    for (uint32_t i = 0; i < w->head->n_segments; i++) {
        const struct wire_segment *s = &w->segments[i];
        if (s->n_tokens == 0 || s->n_tokens > l->max_rows || s->position > l->n_context ||
            s->n_tokens > l->n_context - s->position || s->n_drafts >= s->n_tokens ||
            s->n_drafts > l->n_drafts)
            return refuse(w->head, "the size of a segment", err);
        if (s->next_position > 0 &&
            (s->next_mark >= l->n_marks || s->next_position <= s->position ||
             s->next_position >= s->position + s->n_tokens))
            return refuse(w->head, "the mark of a segment", err);
        n_tokens += s->n_tokens;
        n_rows += (s->flags & SEGMENT_LEFT) != 0 ? 0 : s->n_tokens;
    }
    if (n_tokens != w->head->n_tokens || n_rows != w->head->n_rows)
        return refuse(w->head, "the number of rows", err);
    for (uint32_t i = 0; i < w->head->n_tokens; i++)
        if (w->tokens[i] < 0 || (uint32_t)w->tokens[i] >= l->vocabulary)
            return refuse(w->head, "a token", err);
    return 0;
}

static int check_results(const struct wire *w, const struct wire_limits *l, struct fm_error *err)
{
    uint64_t at = 0;
    const uint64_t end = w->head->result_bytes;
    while (at < end) {
        struct wire_result r;
        if (end - at < sizeof r)
            return refuse(w->head, "a result", err);
        memcpy(&r, w->results + at, sizeof r);
        at += sizeof r;
        if (r.rank >= l->n_ranks || round_up(r.bytes, 8) > end - at)
            return refuse(w->head, "the size of a result", err);
        at += round_up(r.bytes, 8);
    }
    return 0;
}

int wire_read(struct wire *w, void *bytes, uint64_t n, const struct wire_limits *l,
              struct fm_error *err)
{
    struct wire_head none = {0};
    const struct wire_head *h = n >= sizeof *h ? bytes : &none;
    if (h->magic != WIRE_MAGIC || h->kind < WIRE_RUN || h->kind > WIRE_QUIT)
        return refuse(h, "it does not begin like one", err);
    if (h->n_ops > WIRE_OPS || h->n_segments > l->max_segments || h->n_tokens > l->max_rows ||
        h->n_rows > h->n_tokens || h->question_bytes > wire_small_bytes(l) ||
        h->result_bytes > wire_small_bytes(l) || h->result_bytes % 8 != 0)
        return refuse(h, "a count is larger than anything that was agreed on", err);
    point(w, bytes);
    if (n != rows_at(w) + (uint64_t)h->n_rows * l->row_floats * sizeof(float))
        return refuse(h, "its size", err);
    w->rows = (float *)((char *)bytes + rows_at(w));
    const int rc = check_segments(w, l, err);
    return rc != 0 ? rc : check_results(w, l, err);
}

const struct wire_result *wire_next(const struct wire *w, uint32_t *at)
{
    if (*at >= w->head->result_bytes)
        return NULL;
    const struct wire_result *r = (const struct wire_result *)(const void *)(w->results + *at);
    *at += (uint32_t)(sizeof *r + round_up(r->bytes, 8));
    return r;
}
