/* Copies everything that the program refers to. Compiling takes several times as much memory. */
#include <string.h>

#include "grammar/schema_internal.h"

struct keeper {
    struct arena *arena;
    struct fm_error *err;
    int rc;
};

static void *keep(struct keeper *k, const void *from, size_t bytes)
{
    void *copy = k->rc == 0 && from != NULL ? arena_new(k->arena, bytes, k->err) : NULL;
    if (copy == NULL) {
        k->rc = from != NULL && k->rc == 0 ? FM_ERR_NOMEM : k->rc;
        return NULL;
    }
    if (bytes > 0)
        memcpy(copy, from, bytes);
    return copy;
}

/* Several rules may share an automaton, which is copied once. */
static const struct dfa *keep_dfa(struct keeper *k, const struct dfa *from)
{
    if (from == NULL || from->kept != NULL)
        return from != NULL ? from->kept : NULL;
    struct dfa *copy = keep(k, from, sizeof *from);
    if (copy == NULL)
        return NULL;
    const size_t n_edges = from->n_states > 0 ? from->states[from->n_states].first : 0;
    copy->states = keep(k, from->states, (from->n_states + 1u) * sizeof *from->states);
    copy->edges = keep(k, from->edges, n_edges * sizeof *from->edges);
    copy->n_words = keep(k, from->n_words, from->n_states * sizeof *from->n_words);
    ((struct dfa *)(uintptr_t)from)->kept = copy; /* cast away const: the compiler owns it and is
                                                   * about to free it */
    return copy;
}

static void keep_object(struct keeper *k, struct rule *r)
{
    const size_t n = r->n_properties;
    r->properties = keep(k, r->properties, n * sizeof *r->properties);
    for (size_t i = 0; k->rc == 0 && r->properties != NULL && i < n; i++) {
        struct rule_property *p = &r->properties[i];
        p->key = keep(k, p->key, p->key_bytes);
        p->name = NULL; /* the key is enough for running */
        p->name_bytes = 0;
    }
    r->by_key = keep(k, r->by_key, n * sizeof *r->by_key);
    r->n_required = keep(k, r->n_required, (n + 1) * sizeof *r->n_required);
    r->next_required = keep(k, r->next_required, (n + 1) * sizeof *r->next_required);
    r->extras = keep(k, r->extras, r->n_extras * sizeof *r->extras);
    for (uint32_t i = 0; k->rc == 0 && r->extras != NULL && i < r->n_extras; i++)
        r->extras[i].names = keep_dfa(k, r->extras[i].names);
}

int schema_keep(struct schema *s)
{
    struct grammar_program *p = s->program;
    struct keeper k = {.arena = &p->arena, .err = s->err};
    for (size_t i = 0; k.rc == 0 && i < p->n_rules; i++) {
        struct rule *r = &p->rules[i];
        r->dfa = keep_dfa(&k, r->dfa);
        r->items = keep(&k, r->items, r->n_items * sizeof *r->items);
        if (r->kind == RULE_OBJECT)
            keep_object(&k, r);
    }
    for (size_t i = 0; k.rc == 0 && i < p->n_values; i++)
        p->values[i].rules = keep(&k, p->values[i].rules,
                                  p->values[i].n * sizeof *p->values[i].rules);
    return k.rc;
}

/* Joins texts in the program's memory. */
static char *join(struct keeper *k, const char *const texts[], size_t n)
{
    size_t bytes = 1, at = 0;
    for (size_t i = 0; i < n; i++)
        bytes += strlen(texts[i]);
    char *out = k->rc == 0 ? arena_new(k->arena, bytes, k->err) : NULL;
    if (out == NULL) {
        k->rc = FM_ERR_NOMEM;
        return NULL;
    }
    for (size_t i = 0; i < n; at += strlen(texts[i++]))
        memcpy(out + at, texts[i], strlen(texts[i]));
    return out;
}

/* Finds the tags in a text, and stores them if `out` is not NULL. Returns how many there are. */
static uint32_t find_tags(struct keeper *k, const char *text, struct call_tag *out)
{
    uint32_t n = 0;
    for (const char *at = text; (at = strpbrk(at, "<[")) != NULL; at++) {
        const char *end = strchr(at, *at == '<' ? '>' : ']');
        if (end == NULL)
            break;
        if (out != NULL)
            out[n] = (struct call_tag){.in = text, .at = (uint32_t)(at - text),
                                       .text = keep(k, at, (size_t)(end - at) + 2)};
        if (out != NULL && k->rc == 0)
            out[n].text[end - at + 1] = '\0';
        n++;
        at = end;
    }
    return n;
}

static void keep_tags(struct keeper *k, struct grammar_program *p)
{
    const char *const texts[] = {p->call.lead, p->call.arguments, p->call.tail};
    uint32_t n = 0;
    for (unsigned i = 0; k->rc == 0 && i < 3; i++)
        n += find_tags(k, texts[i], NULL);
    p->call.tags = k->rc == 0 ? arena_new(k->arena, (n + 1) * sizeof *p->call.tags, k->err) : NULL;
    k->rc = k->rc == 0 && p->call.tags == NULL ? FM_ERR_NOMEM : k->rc;
    for (unsigned i = 0; k->rc == 0 && i < 3; i++)
        p->call.n_tags += find_tags(k, texts[i], p->call.tags + p->call.n_tags);
}

int schema_keep_call(struct schema *s, const struct grammar_call *call)
{
    struct grammar_program *p = s->program;
    struct keeper k = {.arena = &p->arena, .err = s->err};
    p->call.lead = join(&k, (const char *const[]){call->separator, call->open, call->open_end,
                                                  call->before_name}, 4);
    const char *middle = call->middle != NULL ? call->middle : "";
    p->call.arguments = join(&k, (const char *const[]){middle, call->before_arguments}, 2);
    p->call.is_bare = call->is_bare;
    p->call.tail = join(&k, (const char *const[]){call->after_arguments, call->close_begin,
                                                  call->close}, 3);
    p->call.open_at = (uint32_t)strlen(call->separator);
    p->call.body_at = p->call.open_at + (uint32_t)(strlen(call->open) + strlen(call->open_end));
    p->call.body_end = (uint32_t)strlen(call->after_arguments);
    keep_tags(&k, p);
    return k.rc;
}
