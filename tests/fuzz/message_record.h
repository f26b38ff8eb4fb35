/* The events of a model's answer, and what they promise, for the fuzz targets toolcall and formats.
 * An input begins with HEAD_BYTES that choose options and cuts. Aborts when a promise is broken. */
#ifndef FLASHMOE_TESTS_FUZZ_MESSAGE_RECORD_H
#define FLASHMOE_TESTS_FUZZ_MESSAGE_RECORD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/message.h"
#include "text/json_scan.h"
#include "text/unicode.h"

enum { HEAD_BYTES = 4 };

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* A sequence of events: a kind, its text, and the number of bytes after each. */
struct bytes {
    uint8_t *data;
    size_t n, capacity;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n) + 64;
        b->data = realloc(b->data, b->capacity);
        require(b->data != NULL, "there is memory");
    }
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

struct record {
    struct bytes events, answer, args;
    int last;        /* kind of the last event if more of its text may follow */
    uint64_t n_text; /* bytes of its text so far */
    bool is_utf8, is_in_call, is_over;
    unsigned n_calls;
};

static void end_text(struct record *r)
{
    if (r->last >= 0)
        put(&r->events, &r->n_text, sizeof r->n_text);
    r->last = -1;
    r->n_text = 0;
}

static void check_call(struct record *r, const struct message_event *e)
{
    if (e->kind == MESSAGE_CALL_BEGIN) {
        require(!r->is_in_call && e->call == r->n_calls && e->name[0] != '\0' &&
                    e->id[0] != '\0' && strlen(e->id) < MESSAGE_CALL_ID_BYTES,
                "calls come one after the other");
        put(&r->events, e->id, strlen(e->id));
        put(&r->events, e->name, strlen(e->name));
        r->n_calls++;
        r->args.n = 0;
    }
    require(e->call == r->n_calls - 1, "an event belongs to the last call");
    if (e->kind == MESSAGE_CALL_ARGUMENTS)
        put(&r->args, e->text, e->text_bytes);
    if (e->kind == MESSAGE_CALL_END)
        require(json_scan_text((const char *)r->args.data, r->args.n) == '{',
                "the arguments of a whole call are an object");
    if (e->kind == MESSAGE_CALL_END) {
        json_t *object = json_loadb((const char *)r->args.data, r->args.n, JSON_ALLOW_NUL, NULL);
        json_decref(object); /* NULL: it may have numbers or keys that jansson refuses */
    }
    r->is_in_call = e->kind == MESSAGE_CALL_BEGIN || e->kind == MESSAGE_CALL_ARGUMENTS;
}

static void record_event(void *ctx, const struct message_event *e)
{
    struct record *r = ctx;
    require(!r->is_over, "nothing follows the end");
    const bool is_call = e->kind >= MESSAGE_CALL_BEGIN && e->kind <= MESSAGE_CALL_BROKEN;
    require(is_call || !r->is_in_call, "a call is ended");
    if (r->last != (int)e->kind) {
        const uint8_t kind = (uint8_t)e->kind;
        end_text(r);
        put(&r->events, &kind, 1);
        r->last = (int)e->kind;
    }
    if (is_call)
        check_call(r, e);
    put(&r->events, e->text, e->text_bytes);
    r->n_text += e->text_bytes;
    if (e->kind != MESSAGE_CALL_ARGUMENTS)
        put(&r->answer, e->text, e->text_bytes);
    if (e->kind == MESSAGE_CALL_BEGIN || e->kind >= MESSAGE_CALL_END)
        end_text(r);
    r->is_utf8 = r->is_utf8 && utf8_count_bad((const uint8_t *)e->text, e->text_bytes) == 0;
    r->is_over = e->kind == MESSAGE_END;
}

/* Feeds pieces of 1 to `longest` bytes; 0 means all at once. kinds[i] is true for bytes of special
 * tokens; NULL: there are none. A piece has one kind. */
static void run(struct record *r, const struct message_options *options, const uint8_t *answer,
                const bool *kinds, size_t n, uint32_t seed, size_t longest)
{
    r->events.n = r->answer.n = r->args.n = 0;
    r->last = -1;
    r->n_text = 0;
    r->is_utf8 = true;
    r->is_in_call = r->is_over = false;
    r->n_calls = 0;
    struct message *m;
    require(message_open(options, record_event, r, &m, NULL) == 0, "a message opens");
    for (size_t at = 0; at < n;) {
        seed = seed * 1664525u + 1013904223u;
        size_t piece = longest == 0 ? n : 1 + (seed >> 16) % longest;
        piece = piece < n - at ? piece : n - at;
        size_t same = 1;
        while (kinds != NULL && same < piece && kinds[at + same] == kinds[at])
            same++;
        piece = kinds != NULL ? same : piece;
        const char *text = (const char *)answer + at;
        require((kinds != NULL && kinds[at] ? message_push_marked(m, text, piece, NULL)
                                            : message_push(m, text, piece, NULL)) == 0,
                "bytes are taken");
        at += piece;
    }
    require(message_finish(m, NULL) == 0, "an answer ends");
    message_close(m);
    require(r->is_over, "the end is told");
    require(r->answer.n == n && (n == 0 || memcmp(r->answer.data, answer, n) == 0),
            "no byte is lost");
}

/* Compares the events of several cuts with those of the whole. */
static void check_cuts(const struct message_options *options, const uint8_t *head,
                       const uint8_t *answer, const bool *kinds, size_t n)
{
    static struct record whole, other;
    const uint32_t seed = head[1] | (uint32_t)head[2] << 8;
    run(&whole, options, answer, kinds, n, 0, 0);
    const size_t longest[] = {1, 2 + head[3] % 16, 64};
    const bool is_valid = utf8_count_bad(answer, n) == 0;
    for (size_t i = 0; i < sizeof longest / sizeof longest[0]; i++) {
        run(&other, options, answer, kinds, n, seed, longest[i]);
        require(whole.events.n == other.events.n &&
                    memcmp(whole.events.data, other.events.data, whole.events.n) == 0,
                "the pieces do not matter");
        require(!is_valid || (whole.is_utf8 && other.is_utf8), "characters stay in one piece");
    }
}

#endif
