/* Opens the model with a budget and answers prompts; compares answers. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "apps/cli/interrupt.h"
#include "apps/validate/validate.h"
#include "base/mem.h"
#include "base/plat.h"

#define SEED 1
#define BARE_PROMPT 16 /* tokens of a prompt without a tokenizer */
#define GUARDED_TOKENS 16 /* of a prompt, between two looks at the free memory */

static const unsigned prompt_list[VALIDATE_PROMPTS] = {
    TOPIC_PROSE, TOPIC_PYTHON, TOPIC_VERSE, TOPIC_TURNS, TOPIC_REACT, TOPIC_MATHS,
    TOPIC_RUST, TOPIC_JAPANESE, TOPIC_LOGIC, TOPIC_C, TOPIC_STORY, TOPIC_CHAT,
};

int spoken_new(struct spoken *s, unsigned n, struct fm_error *err)
{
    *s = (struct spoken){.n = n};
    s->ids = mem_new(n, sizeof *s->ids, "the tokens", err);
    s->hashes = mem_new(n + 1, sizeof *s->hashes, "the hashes", err);
    return s->ids != NULL && s->hashes != NULL ? 0 : FM_ERR_NOMEM;
}

void spoken_free(struct spoken *s)
{
    mem_free(s->ids);
    mem_free(s->hashes);
    *s = (struct spoken){0};
}

struct spoken reference_spoken(const struct validation *v, unsigned prompt)
{
    const struct reference *r = &v->references[prompt];
    return (struct spoken){.ids = r->ids, .hashes = r->hashes, .n = v->n_tokens};
}

int spoken_differs(const struct spoken *a, const struct spoken *b)
{
    const unsigned n = a->n < b->n ? a->n : b->n;
    for (unsigned i = 0; i <= n; i++) {
        if (strcmp(a->hashes[i], b->hashes[i]) != 0)
            return (int)i;
        if (i < n && a->ids[i] != b->ids[i])
            return (int)i;
    }
    return -1;
}

static unsigned choose(const struct args *args, const char *option, unsigned otherwise)
{
    return args_given(args, option) ? (unsigned)args_uint(args, option) : otherwise;
}

int validation_new(struct validation **out, const struct args *args, struct fm_error *err)
{
    struct validation *v = mem_new(1, sizeof *v, "the results", err);
    *out = v;
    if (v == NULL)
        return FM_ERR_NOMEM;
    v->args = args;
    v->is_quick = args_flag(args, "quick");
    v->n_prompts = v->is_quick ? 4 : VALIDATE_PROMPTS;
    v->n_tokens = choose(args, "tokens", v->is_quick ? 8 : 32);
    v->n_long = choose(args, "long", v->is_quick ? 64 : 1000);
    v->n_cycles = choose(args, "cycles", v->is_quick ? 6 : 20);
    v->machine.size = sizeof v->machine;
    fm_machine_info(&v->machine);
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < v->n_prompts; i++) {
        struct reference *r = &v->references[i];
        struct spoken s;
        r->topic = prompt_list[i];
        r->name = topic_name(r->topic);
        rc = spoken_new(&s, v->n_tokens, err);
        r->ids = s.ids;
        r->hashes = s.hashes;
    }
    return rc;
}

void validation_free(struct validation *v)
{
    for (unsigned i = 0; v != NULL && i < VALIDATE_PROMPTS; i++) {
        struct spoken s = reference_spoken(v, i);
        spoken_free(&s);
        trail_free(&v->references[i].trail);
        mem_free(v->references[i].text);
    }
    if (v != NULL)
        json_decref(v->against.report);
    mem_free(v);
}

void validation_fail(struct validation *v, const struct failure *where, const char *fmt, ...)
{
    va_list args;
    if (v->n_failures == VALIDATE_FAILURES)
        return;
    struct failure *f = &v->failures[v->n_failures++];
    *f = *where;
    va_start(args, fmt);
    (void)vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
    steps_pause(&v->steps);
    say("validate: FAILED: %s", f->text);
}

bool validation_is_over(const struct validation *v)
{
    return v->n_failures == VALIDATE_FAILURES || v->files.n_bad > 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Prompts for a model without a tokenizer, or with replaced routes. */
static int make_bare_prompts(struct runner *r, struct fm_error *err)
{
    for (unsigned i = 0; i < r->v->n_prompts; i++) {
        const unsigned topic = r->v->references[i].topic;
        int32_t *ids = mem_new(BARE_PROMPT, sizeof *ids, "a prompt", err);
        if (ids == NULL)
            return FM_ERR_NOMEM;
        for (unsigned k = 0; k < BARE_PROMPT; k++) {
            const uint32_t both[2] = {topic, k};
            ids[k] = (int32_t)(XXH3_64bits(both, sizeof both) % r->topics.vocabulary);
        }
        r->topics.openings[topic].ids = ids;
        r->topics.openings[topic].n_ids = BARE_PROMPT;
    }
    return 0;
}

int runner_open(struct runner *r, struct validation *v, uint64_t memory_bytes,
                struct fm_error *err)
{
    *r = (struct runner){.v = v, .min_free_bytes = UINT64_MAX};
    const struct app_model_options how = {.n_context = v->n_context,
                                          .routes = args_text(v->args, "routes"),
                                          .memory_bytes = memory_bytes, .is_again = v->is_again};
    steps_pause(&v->steps);
    const uint64_t begin_ns = plat_now_ns();
    int rc = interrupt_seen() ? FM_ERR_CANCELLED : app_model_open(v->args, &how, &r->model, err);
    r->open_s = (double)(plat_now_ns() - begin_ns) * 1e-9;
    v->is_again = true;
    if (rc == 0)
        rc = topics_open(&r->topics, v->args, r->model, err);
    if (rc == 0 && !r->topics.is_text)
        rc = make_bare_prompts(r, err);
    return rc;
}

void runner_close(struct runner *r)
{
    topics_close(&r->topics);
    fm_model_close(r->model);
    *r = (struct runner){0};
}

/* ---- an answer ------------------------------------------------------------------------------- */

static void take_stats(const struct runner *r, struct fm_stats *stats)
{
    stats->size = sizeof *stats;
    fm_model_stats(r->model, stats);
}

static void count(struct counts *c, const struct fm_stats *before, const struct fm_stats *after,
                  uint64_t begin_ns, uint64_t n_tokens)
{
    *c = (struct counts){.seconds = (double)(plat_now_ns() - begin_ns) * 1e-9,
                         .n_tokens = n_tokens,
                         .n_hits = after->n_expert_hits - before->n_expert_hits,
                         .n_misses = after->n_expert_misses - before->n_expert_misses,
                         .bytes_read = after->bytes_read - before->bytes_read};
}

/* Returns whether enough memory is free, if somebody wants to know. */
static bool is_safe(struct runner *r, struct fm_error *err)
{
    if (r->guard_bytes == 0)
        return true;
    const uint64_t left = plat_memory_available();
    r->min_free_bytes = left < r->min_free_bytes ? left : r->min_free_bytes;
    if (left >= r->guard_bytes)
        return true;
    r->is_low = true;
    (void)err_set(err, FM_ERR_BUDGET, "hardly any memory is free");
    return false;
}

static int speak(struct runner *r, struct spoken *out, struct fm_error *err)
{
    struct fm_session *session = r->topics.session;
    int rc = 0;
    fm_session_logits_hash(session, out->hashes[0]);
    for (unsigned i = 0; rc == 0 && i < out->n; i++) {
        rc = is_safe(r, err) ? topics_pick(&r->topics, &out->ids[i], err) : FM_ERR_BUDGET;
        if (rc == 0)
            rc = interrupt_seen() ? FM_ERR_CANCELLED
                                  : fm_session_eval(session, &out->ids[i], 1, err);
        fm_session_logits_hash(session, out->hashes[i + 1]);
        steps_add(&r->v->steps, 1);
    }
    return rc;
}

/* Evaluates a prompt; in pieces if the free memory is watched. A session's hash has the logits at
 * the end of every call, so it starts again after each piece: the bits are those of one call. */
static int read_prompt(struct runner *r, const int32_t *ids, size_t n, struct fm_error *err)
{
    struct fm_session *session = r->topics.session;
    size_t at = 0;
    int rc = 0;
    while (rc == 0 && at < n) {
        const bool is_last = r->guard_bytes == 0 || n - at <= GUARDED_TOKENS;
        const size_t n_now = is_last ? n - at : GUARDED_TOKENS;
        if (interrupt_seen())
            return FM_ERR_CANCELLED;
        rc = is_safe(r, err) ? fm_session_eval(session, ids + at, n_now, err) : FM_ERR_BUDGET;
        at += n_now;
        if (rc == 0 && !is_last && fm_session_rewind(session, ids, n) != at)
            rc = err_set(err, FM_ERR_IO, "the session lost tokens of the prompt");
    }
    return rc;
}

int runner_answer(struct runner *r, unsigned prompt, struct spoken *out, struct answer *answer,
                  struct fm_error *err)
{
    const unsigned topic = r->v->references[prompt].topic;
    struct fm_stats opened;
    *answer = (struct answer){0};
    int rc = topics_restart(&r->topics, SEED + prompt, err); /* resets the session */
    take_stats(r, &opened);
    uint64_t begin_ns = plat_now_ns();
    if (rc == 0)
        rc = read_prompt(r, r->topics.openings[topic].ids, r->topics.openings[topic].n_ids, err);
    if (rc != 0)
        return rc;
    take_stats(r, &answer->before);
    count(&answer->prompt, &opened, &answer->before, begin_ns, r->topics.openings[topic].n_ids);
    steps_add(&r->v->steps, r->topics.openings[topic].n_ids);
    begin_ns = plat_now_ns();
    rc = speak(r, out, err);
    take_stats(r, &answer->after);
    count(&answer->decode, &answer->before, &answer->after, begin_ns, out->n);
    answer->was_run = rc == 0;
    return rc;
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct counts point_sum(const struct validation *v, const struct point *p, unsigned after,
                        bool is_prompt)
{
    struct counts sum = {0};
    for (unsigned i = 0; i < v->n_prompts; i++) {
        const struct answer *a = &p->answers[i][after];
        const struct counts *c = is_prompt ? &a->prompt : &a->decode;
        if (!a->was_run)
            continue;
        sum.seconds += c->seconds;
        sum.n_tokens += c->n_tokens;
        sum.n_hits += c->n_hits;
        sum.n_misses += c->n_misses;
        sum.bytes_read += c->bytes_read;
    }
    return sum;
}

double point_open_s(const struct validation *v, const struct point *p)
{
    double sum = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < v->n_prompts; i++)
        if (p->answers[i][AFTER_OPENING].open_s > 0) {
            sum += p->answers[i][AFTER_OPENING].open_s;
            n++;
        }
    return n > 0 ? sum / n : 0;
}

double counts_hit_rate(const struct counts *c)
{
    const uint64_t n = c->n_hits + c->n_misses;
    return n > 0 ? (double)c->n_hits / (double)n : 0;
}
