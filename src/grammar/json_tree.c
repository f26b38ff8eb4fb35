#include "grammar/json_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/decimal.h"
#include "text/json_pointer.h"
#include "text/json_scan.h"

struct reader {
    struct arena *arena;
    const char *what;
    struct json_scan scan;
    struct json_node *root, *open; /* the innermost open object or array */
    struct json_node *last;        /* the value that started last */
    struct json_node *tails[JSON_SCAN_DEPTH + 1]; /* the last value of each open container */
    const char *key;
    size_t key_bytes;
    char *bytes;    /* of the string being read */
    size_t n_bytes;
    uint32_t n_nodes;
};

static int add_node(struct reader *r, enum json_kind kind, unsigned depth, struct fm_error *err)
{
    if (r->n_nodes == JSON_TREE_VALUES)
        return err_set(err, FM_ERR_ARG, "%s has more than %u values", r->what, JSON_TREE_VALUES);
    struct json_node *node = arena_new(r->arena, sizeof *node, err);
    if (node == NULL)
        return FM_ERR_NOMEM;
    node->kind = kind;
    node->id = r->n_nodes++;
    node->parent = r->open;
    r->last = node;
    if (r->open == NULL) {
        r->root = node;
        return 0;
    }
    node->place = r->open->n++;
    if (r->open->kind == JSON_IS_OBJECT) {
        node->key = r->key;
        node->key_bytes = r->key_bytes;
    }
    if (r->open->first == NULL)
        r->open->first = node;
    else
        r->tails[depth]->next = node;
    r->tails[depth] = node;
    return 0;
}

/* Shorter keys come first: any order will do, and this one is cheap for long keys. */
static int compare_key(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    if (a_bytes != b_bytes)
        return a_bytes < b_bytes ? -1 : 1;
    return memcmp(a, b, a_bytes);
}

static int compare_keys(const void *a, const void *b)
{
    const struct json_node *x = *(struct json_node *const *)a, *y = *(struct json_node *const *)b;
    return compare_key(x->key, x->key_bytes, y->key, y->key_bytes);
}

static int check_keys(struct reader *r, struct json_node *object, struct fm_error *err)
{
    struct json_node **members = arena_new(r->arena, object->n * sizeof(void *), err);
    if (members == NULL)
        return FM_ERR_NOMEM;
    size_t n = 0;
    for (struct json_node *m = object->first; m != NULL; m = m->next)
        members[n++] = m;
    qsort(members, n, sizeof *members, compare_keys);
    object->by_key = members;
    for (size_t i = 1; i < n; i++)
        if (compare_keys(&members[i - 1], &members[i]) == 0) {
            char at[JSON_POINTER_BYTES];
            return err_set(err, FM_ERR_ARG, "%s has the name '%.60s' twice in %s", r->what,
                           members[i]->key, json_node_pointer(object, at));
        }
    return 0;
}

static int end_string(struct reader *r, struct fm_error *err)
{
    char *copy = arena_new(r->arena, r->n_bytes + 1, err);
    if (copy == NULL)
        return FM_ERR_NOMEM;
    memcpy(copy, r->bytes, r->n_bytes);
    if (r->scan.is_key) {
        r->key = copy;
        r->key_bytes = r->n_bytes;
    } else {
        r->last->text = copy;
        r->last->text_bytes = r->n_bytes;
    }
    return 0;
}

static int begin_scalar(struct reader *r, const char *text, size_t bytes, struct fm_error *err)
{
    const bool is_number = r->scan.kind == '0';
    const int rc = add_node(r, is_number ? JSON_IS_NUMBER
                               : r->scan.kind == 'n' ? JSON_IS_NULL : JSON_IS_BOOL,
                            r->scan.depth, err);
    if (rc != 0)
        return rc;
    r->last->is_true = r->scan.kind == 't';
    if (!is_number)
        return 0;
    size_t n = 0;
    while (n < bytes && strchr("+-.0123456789eE", text[n]) != NULL && text[n] != '\0')
        n++;
    if (n > JSON_TREE_NUMBER_BYTES) {
        char at[JSON_POINTER_BYTES];
        return err_set(err, FM_ERR_ARG, "%s has a number of %zu characters at %s; the limit is %u",
                       r->what, n, json_node_pointer(r->last, at), JSON_TREE_NUMBER_BYTES);
    }
    char *copy = arena_new(r->arena, n + 1, err);
    if (copy == NULL)
        return FM_ERR_NOMEM;
    memcpy(copy, text, n);
    r->last->text = copy;
    r->last->text_bytes = n;
    return 0;
}

/* `text` is the rest, starting with the byte that was just scanned. */
static int take_byte(struct reader *r, const char *text, size_t bytes, struct fm_error *err)
{
    switch (r->scan.event) {
    case JSON_OPENED: {
        const int rc = add_node(r, text[0] == '{' ? JSON_IS_OBJECT : JSON_IS_ARRAY,
                                r->scan.depth - 1u, err);
        r->open = r->last;
        return rc;
    }
    case JSON_CLOSED: {
        struct json_node *closed = r->open;
        r->open = closed->parent;
        return closed->kind == JSON_IS_OBJECT ? check_keys(r, closed, err) : 0;
    }
    case JSON_STRING_BEGAN:
        r->n_bytes = 0;
        return r->scan.is_key ? 0 : add_node(r, JSON_IS_STRING, r->scan.depth, err);
    case JSON_STRING_ENDED:
        return end_string(r, err);
    case JSON_SCALAR_BEGAN:
        return begin_scalar(r, text, bytes, err);
    default:
        memcpy(r->bytes + r->n_bytes, r->scan.decoded, r->scan.n_decoded);
        r->n_bytes += r->scan.n_decoded;
        return 0;
    }
}

int json_tree_parse(struct arena *arena, const char *what, const char *text, size_t bytes,
                    struct json_node **root, uint32_t *n_nodes, struct fm_error *err)
{
    struct reader r = {.arena = arena, .what = what};
    if (bytes > JSON_TREE_BYTES)
        return err_set(err, FM_ERR_ARG, "%s has %zu bytes; the limit is %u", what, bytes,
                       JSON_TREE_BYTES);
    r.bytes = arena_new(arena, bytes + 4, err);
    if (r.bytes == NULL)
        return FM_ERR_NOMEM;
    json_scan_init(&r.scan);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < bytes; i++) {
        if (!json_scan_push(&r.scan, (uint8_t)text[i]))
            return err_set(err, FM_ERR_ARG, "%s is not JSON: byte %zu is not expected, or it is "
                           "nested more than %d levels deep", what, i + 1, JSON_SCAN_DEPTH);
        rc = take_byte(&r, text + i, bytes - i, err);
    }
    if (rc == 0 && !json_scan_is_whole(&r.scan))
        rc = err_set(err, FM_ERR_ARG, "%s is not JSON: it ends too early", what);
    *root = r.root;
    *n_nodes = r.n_nodes;
    return rc;
}

const struct json_node *json_node_find(const struct json_node *object, const char *key,
                                       size_t key_bytes)
{
    if (object == NULL || object->kind != JSON_IS_OBJECT)
        return NULL;
    uint32_t lo = 0, hi = object->n;
    while (lo < hi) {
        const uint32_t middle = lo + (hi - lo) / 2;
        const struct json_node *m = object->by_key[middle];
        const int order = compare_key(m->key, m->key_bytes, key, key_bytes);
        if (order == 0)
            return m;
        if (order < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return NULL;
}

const struct json_node *json_node_get(const struct json_node *object, const char *key)
{
    return json_node_find(object, key, strlen(key));
}

const char *json_node_pointer(const struct json_node *node, char out[JSON_POINTER_BYTES])
{
    const struct json_node *path[JSON_SCAN_DEPTH + 1];
    size_t n = 0, used = 1;
    for (; node->parent != NULL; node = node->parent)
        path[n++] = node;
    (void)snprintf(out, JSON_POINTER_BYTES, "#");
    while (n-- > 0 && used < JSON_POINTER_BYTES - 1) {
        const int added = path[n]->key != NULL
            ? snprintf(out + used, JSON_POINTER_BYTES - used, "/%s", path[n]->key)
            : snprintf(out + used, JSON_POINTER_BYTES - used, "/%u", path[n]->place);
        used += (size_t)added;
    }
    return out;
}

/* Returns the array element that a pointer part names: digits without a leading zero. */
static const struct json_node *find_element(const struct json_node *array, const char *part,
                                            size_t bytes, uint64_t *n_steps)
{
    uint32_t place = 0;
    if (bytes == 0 || bytes > 6 || (part[0] == '0' && bytes > 1))
        return NULL;
    for (size_t i = 0; i < bytes; i++) {
        if (part[i] < '0' || part[i] > '9')
            return NULL;
        place = place * 10 + (uint32_t)(part[i] - '0');
    }
    const struct json_node *found = place < array->n ? array->first : NULL;
    for (uint32_t i = 0; found != NULL && i < place; i++)
        found = found->next;
    *n_steps += found != NULL ? place : 0;
    return found;
}

const struct json_node *json_node_follow(const struct json_node *root, const char *fragment,
                                         size_t bytes, uint64_t *n_steps)
{
    struct json_pointer p;
    const struct json_node *node = json_pointer_open(&p, fragment, bytes) ? root : NULL;
    while (node != NULL && json_pointer_next(&p)) {
        *n_steps += 1 + p.n_part;
        node = node->kind == JSON_IS_ARRAY ? find_element(node, p.part, p.n_part, n_steps)
                                           : json_node_find(node, p.part, p.n_part);
    }
    return node;
}

bool json_node_equal(const struct json_node *a, const struct json_node *b)
{
    if (a->kind != b->kind || a->n != b->n)
        return false;
    struct decimal x, y;
    switch (a->kind) {
    case JSON_IS_NULL:
        return true;
    case JSON_IS_BOOL:
        return a->is_true == b->is_true;
    case JSON_IS_NUMBER:
        x = decimal_read(a->text);
        y = decimal_read(b->text);
        return decimal_compare(&x, &y) == 0;
    case JSON_IS_STRING:
        return a->text_bytes == b->text_bytes && memcmp(a->text, b->text, a->text_bytes) == 0;
    case JSON_IS_ARRAY:
        for (a = a->first, b = b->first; a != NULL; a = a->next, b = b->next)
            if (!json_node_equal(a, b))
                return false;
        return true;
    case JSON_IS_OBJECT:
        for (uint32_t i = 0; i < a->n; i++)
            if (compare_keys(&a->by_key[i], &b->by_key[i]) != 0 ||
                !json_node_equal(a->by_key[i], b->by_key[i]))
                return false;
        return true;
    }
    return false;
}
