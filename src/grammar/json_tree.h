/* A JSON document as a tree with everything that schemas need: numbers with all digits, members in
 * order, keys and strings with any character, and the position of each value.
 *
 * Everything lives in the caller's arena. Any number of threads may read a tree. Parsing fails with
 * FM_ERR_ARG on text that is not JSON, on duplicate member names and above the limits. */
#ifndef FLASHMOE_GRAMMAR_JSON_TREE_H
#define FLASHMOE_GRAMMAR_JSON_TREE_H

#include "base/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

#define JSON_TREE_BYTES (1u << 20) /* maximum size of the text; schemas of real tools are below 64
                                    * KiB */
#define JSON_TREE_VALUES 100000u
#define JSON_TREE_NUMBER_BYTES 1000u /* maximum length of a number, so that comparing two is
                                      * cheap */

enum json_kind { JSON_IS_NULL, JSON_IS_BOOL, JSON_IS_NUMBER, JSON_IS_STRING, JSON_IS_ARRAY,
                 JSON_IS_OBJECT };

struct json_node {
    enum json_kind kind;
    bool is_true;
    uint32_t id;       /* from 0, in text order */
    uint32_t n;        /* number of members or elements */
    uint32_t place;    /* its index in the parent */
    const char *key;   /* UTF-8, NUL-terminated; NULL unless it is a member of an object */
    size_t key_bytes;
    const char *text;  /* decoded text of a string, or a number as written; NUL-terminated */
    size_t text_bytes;
    struct json_node *first, *next, *parent;
    struct json_node **by_key; /* [n] members of an object sorted by key */
};

/* Parses a document. Fails with FM_ERR_ARG. `what` names the document in the error, for example
 * "the schema". */
int json_tree_parse(struct arena *arena, const char *what, const char *text, size_t bytes,
                    struct json_node **root, uint32_t *n_nodes, struct fm_error *err);

/* Returns the member of that name, or NULL, in O(log n). Accepts nodes that are not objects. */
const struct json_node *json_node_find(const struct json_node *object, const char *key,
                                       size_t key_bytes);
const struct json_node *json_node_get(const struct json_node *object, const char *key);

/* Size of a buffer for "#/properties/a"; longer pointers are cut. */
#define JSON_POINTER_BYTES 160
const char *json_node_pointer(const struct json_node *node, char out[JSON_POINTER_BYTES]);

/* Returns the node that the fragment "#/a/b" names (text/json_pointer.h), or NULL. Adds the number
 * of nodes visited to *n_steps. */
const struct json_node *json_node_follow(const struct json_node *root, const char *fragment,
                                         size_t bytes, uint64_t *n_steps);

/* Returns true if both have the same value: numbers compare by value, objects regardless of order.
 * Takes time linear in the smaller tree and stack for the flatter one. */
bool json_node_equal(const struct json_node *a, const struct json_node *b);

#ifdef __cplusplus
}
#endif
#endif
