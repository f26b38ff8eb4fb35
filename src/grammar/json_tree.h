/* A JSON document as a tree that keeps what schemas need: numbers with all their digits, members in
 * their order, keys and strings with any character, and where each value stands.
 *
 * Everything lives in the arena that is handed in. Any number of threads may read a tree. Reading
 * fails on what is no JSON, on two members of one name, and on more than the limits. */
#ifndef FLASHMOE_GRAMMAR_JSON_TREE_H
#define FLASHMOE_GRAMMAR_JSON_TREE_H

#include "base/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

#define JSON_TREE_BYTES (1u << 20) /* of text; the schemas of real tools are below 64 KiB */
#define JSON_TREE_VALUES 100000u
#define JSON_TREE_NUMBER_BYTES 1000u /* of one number, so that comparing two is cheap */

enum json_kind { JSON_IS_NULL, JSON_IS_BOOL, JSON_IS_NUMBER, JSON_IS_STRING, JSON_IS_ARRAY,
                 JSON_IS_OBJECT };

struct json_node {
    enum json_kind kind;
    bool is_true;
    uint32_t id;       /* from 0 in the order of the text */
    uint32_t n;        /* members or elements */
    uint32_t place;    /* among its parent's */
    const char *key;   /* UTF-8, NUL-terminated; NULL unless it is a member */
    size_t key_bytes;
    const char *text;  /* of a string, decoded, or of a number as it is written; NUL-terminated */
    size_t text_bytes;
    struct json_node *first, *next, *parent;
    struct json_node **by_key; /* [n] of an object: its members sorted by key */
};

/* FM_ERR_ARG: it is no such document. `what` names it in the error: "the schema". */
int json_tree_parse(struct arena *arena, const char *what, const char *text, size_t bytes,
                    struct json_node **root, uint32_t *n_nodes, struct fm_error *err);

/* The member of that name, or NULL, in O(log n). Accepts nodes that are no objects. */
const struct json_node *json_node_find(const struct json_node *object, const char *key,
                                       size_t key_bytes);
const struct json_node *json_node_get(const struct json_node *object, const char *key);

/* "#/properties/a", cut to fit. */
#define JSON_POINTER_BYTES 160
const char *json_node_pointer(const struct json_node *node, char out[JSON_POINTER_BYTES]);

/* What the fragment "#/a/b" names (text/json_pointer.h), or NULL. Adds the values it has looked at
 * to *n_steps. */
const struct json_node *json_node_follow(const struct json_node *root, const char *fragment,
                                         size_t bytes, uint64_t *n_steps);

/* The same value: numbers by what they are worth, objects whatever their order. As deep as the
 * flatter of both, and takes time linear in the smaller. */
bool json_node_equal(const struct json_node *a, const struct json_node *b);

#ifdef __cplusplus
}
#endif
#endif
