/* Strings with origins, lists and dicts. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "jinja/run.h"
#include "text/unicode.h"

/* ---- faults and limits ----------------------------------------------------------------------- */

struct value run_fail(struct run *r, const char *fmt, ...)
{
    if (r->rc != 0)
        return v_undefined();
    char text[FM_ERROR_BYTES / 2];
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    r->rc = err_set(r->err, FM_ERR_FORMAT, "%s: line %u: %s", r->jinja->name, r->line, text);
    return v_undefined();
}

void run_exceeds(struct run *r, const char *fmt, ...)
{
    char text[FM_ERROR_BYTES / 2];
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    if (r->rc == 0)
        r->rc = err_set(r->err, FM_ERR_ARG, "%s: line %u: %s: the conversation is too large, or "
                        "the template does not end", r->jinja->name, r->line, text);
}

bool run_work(struct run *r, uint64_t bytes)
{
    r->n_steps += 1 + bytes / 64;
    if (r->n_steps > r->max_steps)
        run_exceeds(r, "it takes more than %llu steps", (unsigned long long)r->max_steps);
    return r->rc == 0;
}

bool run_enter(struct run *r)
{
    if (++r->depth > JINJA_DEPTH)
        run_exceeds(r, "nested more than %d levels deep", JINJA_DEPTH);
    return r->rc == 0;
}

void run_leave(struct run *r)
{
    r->depth--;
}

void *run_new(struct run *r, size_t n, size_t bytes)
{
    uint64_t all;
    if (r->rc != 0)
        return NULL;
    if (!mem_mul(n, bytes, &all) || all > r->arena.limit)
        all = r->arena.limit + 1;
    struct fm_error why = {0};
    void *found = arena_new(&r->arena, (size_t)all, &why);
    if (found == NULL && why.code == FM_ERR_NOMEM)
        r->rc = err_set(r->err, FM_ERR_NOMEM, "%s", why.text);
    else if (found == NULL)
        run_exceeds(r, "%s", why.text);
    return found;
}

struct value run_put_off(struct run *r, struct list *generator)
{
    if (r->rc != FM_ERR_FORMAT || r->n_steps > r->max_steps || r->depth > JINJA_DEPTH)
        return v_list(generator);
    char *why = arena_new(&r->arena, sizeof r->err->text, NULL);
    if (why == NULL || generator == &r->sink_list)
        return v_list(generator);
    memcpy(why, r->err->text, sizeof r->err->text);
    generator->why = why;
    r->rc = 0;
    return v_list(generator);
}

const char *value_type(struct value v)
{
    static const char *const names[] = {
        "undefined", "undefined", "None", "bool", "int", "float", "str", "list", "dict",
        "namespace", "macro", "loop", "function", "method", "cycler", "joiner",
    };
    static const char *const lists[] = {
        "list", "tuple", "range", "dict_items", "dict_keys", "dict_values", "tuple", "generator",
        "reversed",
    };
    return v.kind == V_LIST ? lists[v.u.list->kind] : names[v.kind];
}

/* ---- strings --------------------------------------------------------------------------------- */

size_t utf8_characters(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((uint8_t)text[i] & 0xc0) != 0x80;
    return n;
}

struct value v_text(struct run *r, const char *text)
{
    struct sbuf b = {0};
    sbuf_text(r, &b, text);
    return v_str(sbuf_take(r, &b));
}

const struct str *str_part(struct run *r, const struct str *s, size_t begin, size_t end)
{
    if (begin == 0 && end == s->bytes)
        return s;
    struct str *part = run_new(r, 1, sizeof *part);
    if (part == NULL || !run_work(r, end - begin))
        return &r->sink_str;
    *part = *s;
    part->text = s->text + begin;
    part->bytes = end - begin;
    part->origins = s->origins != NULL ? s->origins + begin : NULL;
    part->n_chars = s->n_chars == s->bytes ? part->bytes : utf8_characters(part->text, part->bytes);
    return part;
}

size_t str_offset(const struct str *s, size_t n_chars)
{
    if (s->n_chars == s->bytes || n_chars >= s->n_chars)
        return n_chars < s->n_chars ? n_chars : s->bytes;
    size_t at = 0;
    while (n_chars > 0) {
        at++;
        while (at < s->bytes && ((uint8_t)s->text[at] & 0xc0) == 0x80)
            at++;
        n_chars--;
    }
    return at;
}

bool str_equal(const struct str *a, const struct str *b)
{
    return a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->text, b->text, a->bytes) == 0);
}

bool str_is(const struct str *s, const char *text)
{
    return s->bytes == strlen(text) && memcmp(s->text, text, s->bytes) == 0;
}

/* Byte order of UTF-8 equals code point order. */
int str_compare(const struct str *a, const struct str *b)
{
    const size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    const int order = n > 0 ? memcmp(a->text, b->text, n) : 0;
    return order != 0 ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

size_t str_find(struct run *r, const struct str *s, const struct str *part, size_t from)
{
    if (from > s->bytes || part->bytes > s->bytes - from)
        return SIZE_MAX;
    if (part->bytes == 0)
        return from;
    const char *found = memmem(s->text + from, s->bytes - from, part->text, part->bytes);
    const size_t at = found != NULL ? (size_t)(found - s->text) : SIZE_MAX;
    return run_work(r, (found != NULL ? at : s->bytes) - from) ? at : SIZE_MAX;
}

/* ---- texts that grow ------------------------------------------------------------------------- */

static void *grown(struct run *r, void *old, size_t n, size_t capacity)
{
    void *made = run_new(r, capacity, 1);
    if (made != NULL && n > 0)
        memcpy(made, old, n);
    return made;
}

static bool sbuf_reserve(struct run *r, struct sbuf *b, size_t more)
{
    if (r->rc != 0)
        return false;
    if (more <= b->capacity - b->n)
        return true;
    if (more > r->arena.limit) {
        (void)run_new(r, more, 2);
        return false;
    }
    const size_t min = b->n + more, capacity = min < 64 ? 64 : min + min / 2;
    if (b->origins == NULL && arena_extend(&r->arena, b->text, b->capacity, capacity)) {
        b->capacity = capacity;
        return true;
    }
    char *text = grown(r, b->text, b->n, capacity);
    uint8_t *origins = b->origins != NULL ? grown(r, b->origins, b->n, capacity) : NULL;
    if (text == NULL || (b->origins != NULL && origins == NULL))
        return false;
    b->text = text;
    b->origins = origins;
    b->capacity = capacity;
    return true;
}

/* Switches to one origin per byte. */
static bool sbuf_mix(struct run *r, struct sbuf *b)
{
    if (b->origins != NULL)
        return true;
    uint8_t *origins = run_new(r, b->capacity, 1);
    if (origins == NULL)
        return false;
    memset(origins, b->origin, b->n);
    b->origins = origins;
    return true;
}

void sbuf_add(struct run *r, struct sbuf *b, const char *text, size_t bytes, uint8_t origin)
{
    if (bytes == 0 || !sbuf_reserve(r, b, bytes) || !run_work(r, bytes))
        return;
    if (b->n == 0)
        b->origin = origin;
    if (origin != b->origin && !sbuf_mix(r, b))
        return;
    memcpy(b->text + b->n, text, bytes);
    if (b->origins != NULL)
        memset(b->origins + b->n, origin, bytes);
    b->n += bytes;
}

void sbuf_text(struct run *r, struct sbuf *b, const char *text)
{
    sbuf_add(r, b, text, strlen(text), JINJA_TEMPLATE);
}

void sbuf_part(struct run *r, struct sbuf *b, const struct str *s, size_t begin, size_t end)
{
    if (s->origins == NULL) {
        sbuf_add(r, b, s->text + begin, end - begin, s->origin);
        return;
    }
    if (begin == end || !sbuf_reserve(r, b, end - begin) || !run_work(r, end - begin) ||
        !sbuf_mix(r, b))
        return;
    memcpy(b->text + b->n, s->text + begin, end - begin);
    memcpy(b->origins + b->n, s->origins + begin, end - begin);
    b->n += end - begin;
}

void sbuf_str(struct run *r, struct sbuf *b, const struct str *s)
{
    sbuf_part(r, b, s, 0, s->bytes);
}

void sbuf_char(struct run *r, struct sbuf *b, uint32_t code_point, uint8_t origin)
{
    uint8_t utf8[4];
    sbuf_add(r, b, (const char *)utf8, utf8_put(code_point, utf8), origin);
}

void sbuf_fill(struct run *r, struct sbuf *b, const struct str *fill, size_t n)
{
    if (fill->bytes > 0 && n > r->arena.limit / fill->bytes) {
        (void)run_new(r, n, fill->bytes);
        return;
    }
    if (!sbuf_reserve(r, b, n * fill->bytes))
        return;
    for (size_t i = 0; i < n && r->rc == 0; i++)
        sbuf_str(r, b, fill);
}

const struct str *sbuf_take(struct run *r, struct sbuf *b)
{
    struct str *s = run_new(r, 1, sizeof *s);
    if (s == NULL)
        return &r->sink_str;
    *s = (struct str){.text = b->n > 0 ? b->text : "", .bytes = b->n, .origins = b->origins,
                      .origin = b->origin};
    s->n_chars = utf8_characters(s->text, s->bytes);
    return s;
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

struct list *list_new(struct run *r, enum list_kind kind)
{
    struct list *l = run_new(r, 1, sizeof *l);
    if (l == NULL) {
        r->sink_list = (struct list){0};
        return &r->sink_list;
    }
    l->kind = kind;
    return l;
}

void list_push(struct run *r, struct list *l, struct value v)
{
    if (!run_work(r, 0))
        return;
    if (l->n == l->capacity) {
        const size_t capacity = l->capacity > 0 ? 2 * l->capacity : 4;
        struct value *items = run_new(r, capacity, sizeof *items);
        if (items == NULL)
            return;
        if (l->n > 0)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = v;
}

struct dict *dict_new(struct run *r)
{
    struct dict *d = run_new(r, 1, sizeof *d);
    if (d == NULL) {
        r->sink_dict = (struct dict){0};
        return &r->sink_dict;
    }
    return d;
}

static struct dict_entry *find_entry(struct run *r, const struct dict *d, struct value key,
                                     uint64_t hash)
{
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && value_equal(r, d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    for (size_t at = hash & (d->n_index - 1);; at = (at + 1) & (d->n_index - 1)) {
        if (d->index[at] == 0 || !run_work(r, 0))
            return NULL;
        struct dict_entry *entry = &d->entries[d->index[at] - 1];
        if (entry->hash == hash && value_equal(r, entry->key, key))
            return entry;
    }
}

struct value *dict_find(struct run *r, const struct dict *d, struct value key)
{
    uint64_t hash;
    if (!value_hash(r, key, &hash))
        return NULL;
    struct dict_entry *entry = find_entry(r, d, key, hash);
    return entry != NULL && r->rc == 0 ? &entry->value : NULL;
}

struct value *dict_find_str(struct run *r, const struct dict *d, const struct str *key)
{
    return dict_find(r, d, v_str(key));
}

struct value *dict_find_text(struct run *r, const struct dict *d, const char *key)
{
    const struct str s = {.text = key, .bytes = strlen(key), .n_chars = strlen(key)};
    return dict_find_str(r, d, &s);
}

static void index_entry(struct dict *d, size_t i)
{
    size_t at = d->entries[i].hash & (d->n_index - 1);
    while (d->index[at] != 0)
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)(i + 1);
}

static bool dict_grow(struct run *r, struct dict *d)
{
    const size_t capacity = d->capacity > 0 ? 2 * d->capacity : 8;
    struct dict_entry *entries = run_new(r, capacity, sizeof *entries);
    uint32_t *index = capacity > 8 ? run_new(r, 2 * capacity, sizeof *index) : NULL;
    if (entries == NULL || (capacity > 8 && index == NULL))
        return false;
    if (d->n > 0)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->capacity = capacity;
    d->index = index;
    d->n_index = index != NULL ? 2 * capacity : 0;
    for (size_t i = 0; index != NULL && i < d->n; i++)
        index_entry(d, i);
    return true;
}

void dict_set(struct run *r, struct dict *d, struct value key, struct value value)
{
    uint64_t hash;
    if (!value_hash(r, key, &hash) || !run_work(r, 0))
        return;
    struct dict_entry *entry = find_entry(r, d, key, hash);
    if (entry != NULL) {
        entry->value = value;
        return;
    }
    if (r->rc != 0 || (d->n == d->capacity && !dict_grow(r, d)))
        return;
    d->entries[d->n] = (struct dict_entry){.key = key, .value = value, .hash = hash};
    if (d->index != NULL)
        index_entry(d, d->n);
    d->n++;
}
