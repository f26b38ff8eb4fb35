/* Messages of the ring: what was written is read, and nothing that cannot be one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cluster/wire.h"

static const struct wire_limits limits = {.max_rows = 8, .max_segments = 3, .n_context = 64,
                                          .n_marks = 2, .n_drafts = 2, .n_ranks = 3,
                                          .row_floats = 4, .vocabulary = 100};

/* Writes a pass with two segments, one of which was given up, a fault and an operation. */
static uint64_t write_one(char *bytes)
{
    struct wire w;
    const struct wire_fault facts = {1, 2, 3};
    const struct wire_result fault = {.kind = RESULT_FAULT, .rank = 1, .code = FM_ERR_IO,
                                      .bytes = sizeof facts + 5};
    struct wire_head *h = (struct wire_head *)(void *)bytes;
    *h = (struct wire_head){.magic = WIRE_MAGIC, .kind = WIRE_RUN, .number = 7, .n_ops = 1,
                            .n_segments = 2, .n_tokens = 5};
    wire_begin(&w, bytes);
    w.ops[0] = (struct wire_op){WIRE_CLEAR, 1, 0, 0, 0};
    w.segments[0] = (struct wire_segment){.position = 10, .n_tokens = 3};
    w.segments[1] = (struct wire_segment){.n_tokens = 2, .flags = SEGMENT_LEFT};
    for (int32_t i = 0; i < 5; i++)
        w.tokens[i] = 90 + i;
    assert_true(wire_add(&w, &limits, &fault, &facts, sizeof facts, "gone!"));
    const uint64_t n = wire_end(&w, 3, limits.row_floats);
    for (unsigned i = 0; i < 12; i++)
        w.rows[i] = (float)i;
    assert_true(n <= wire_max_bytes(&limits));
    return n;
}

static char *new_buffer(void)
{
    char *bytes = aligned_alloc(64, (wire_max_bytes(&limits) + 63) / 64 * 64);
    assert_non_null(bytes);
    return bytes;
}

static void test_round_trip(void **state)
{
    (void)state;
    char *bytes = new_buffer();
    struct wire w;
    struct wire_fault facts;
    const uint64_t n = write_one(bytes);
    uint32_t at = 0;
    assert_int_equal(wire_read(&w, bytes, n, &limits, NULL), 0);
    assert_int_equal(w.head->number, 7);
    assert_int_equal(w.ops[0].a, 1);
    assert_int_equal(w.segments[0].position, 10);
    assert_int_equal(w.tokens[4], 94);
    assert_true(w.rows[11] == 11);
    const struct wire_result *r = wire_next(&w, &at);
    assert_true(r != NULL && r->kind == RESULT_FAULT && r->code == FM_ERR_IO && r->rank == 1);
    memcpy(&facts, r + 1, sizeof facts);
    assert_true(facts.segment == 1 && facts.layer == 2 && facts.expert == 3);
    assert_memory_equal((const char *)(r + 1) + sizeof facts, "gone!", 5);
    assert_null(wire_next(&w, &at));
    free(bytes);
}

/* Every field that a message could be cut or blown up with. */
static void test_refused(void **state)
{
    (void)state;
    char *bytes = new_buffer();
    struct wire w;
    struct fm_error err;
    struct wire_head *h = (struct wire_head *)(void *)bytes;
#define REFUSED(change, says)                                                                      \
    do {                                                                                           \
        const uint64_t n_bytes = write_one(bytes);                                                 \
        wire_begin(&w, bytes);                                                                     \
        (void)write_one(bytes);                                                                    \
        change;                                                                                    \
        assert_int_equal(wire_read(&w, bytes, n_bytes, &limits, &err), FM_ERR_FORMAT);             \
        assert_non_null(strstr(err.text, says));                                                   \
    } while (0)
    REFUSED(h->magic = 0, "begin");
    REFUSED(h->kind = 9, "begin");
    REFUSED(h->n_ops = WIRE_OPS + 1, "agreed on");
    REFUSED(h->n_ops = UINT32_MAX, "agreed on");
    REFUSED(h->n_segments = 4, "agreed on");
    REFUSED(h->n_tokens = 9, "agreed on");
    REFUSED(h->n_rows = 6, "agreed on");
    REFUSED(h->result_bytes = 3, "agreed on");
    REFUSED(h->result_bytes = UINT32_MAX - 7, "agreed on");
    REFUSED(h->question_bytes = UINT32_MAX, "agreed on");
    REFUSED(h->n_rows = 2, "size");
    REFUSED(h->n_ops = 0, "size");
    REFUSED(w.segments[0].n_tokens = 4, "rows");
    REFUSED(w.segments[1].flags = 0, "rows");
    REFUSED(w.segments[0].position = 62, "segment");
    REFUSED(w.segments[0].position = UINT32_MAX, "segment");
    REFUSED(w.segments[0].n_drafts = 3, "segment");
    REFUSED(w.segments[0].next_position = 10, "mark");
    REFUSED((w.segments[0].next_position = 11, w.segments[0].next_mark = 2), "mark");
    REFUSED(w.tokens[0] = -1, "token");
    REFUSED(w.tokens[0] = 100, "token");
    REFUSED(((struct wire_result *)(void *)w.results)->rank = 3, "result");
    REFUSED(((struct wire_result *)(void *)w.results)->bytes = 1000, "result");
    for (uint64_t n = 0; n < write_one(bytes); n++)
        assert_int_equal(wire_read(&w, bytes, n, &limits, &err), FM_ERR_FORMAT);
    free(bytes);
}

/* Results have a limit; the message stays whole. */
static void test_full(void **state)
{
    (void)state;
    char *bytes = new_buffer();
    struct wire w;
    char text[700];
    memset(text, 'a', sizeof text);
    const struct wire_result one = {.kind = RESULT_ANSWER, .bytes = sizeof text};
    (void)write_one(bytes);
    wire_begin(&w, bytes);
    unsigned n = 0;
    while (wire_add(&w, &limits, &one, NULL, 0, text))
        n++;
    assert_true(n > 10 && n < 1000);
    const uint64_t end = wire_end(&w, 3, limits.row_floats);
    assert_true(end <= wire_max_bytes(&limits));
    assert_int_equal(wire_read(&w, bytes, end, &limits, NULL), 0);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
