#include "grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct token {
    const uint8_t *bytes;
    uint32_t n;
    int32_t id;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order != 0)
        return order;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static uint32_t common_bytes(const struct token *a, const struct token *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Lists the tokens that stand for nothing but text. */
static size_t list_tokens(const struct tokenizer *tok, uint32_t n_ids, struct token *tokens)
{
    size_t n = 0;
    char name[TRIE_TOKEN_BYTES + 1];
    for (uint32_t id = 0; id < n_ids; id++) {
        size_t bytes;
        int32_t added;
        const char *piece = tokenizer_piece(tok, (int32_t)id, &bytes);
        if (piece == NULL || bytes == 0 || bytes > TRIE_TOKEN_BYTES ||
            tokenizer_is_special(tok, (int32_t)id))
            continue;
        memcpy(name, piece, bytes);
        name[bytes] = '\0';
        if (strlen(name) == bytes && tokenizer_find(tok, name, &added) && added == (int32_t)id)
            continue;
        tokens[n++] = (struct token){(const uint8_t *)piece, (uint32_t)bytes, (int32_t)id};
    }
    return n;
}

static void add_nodes(struct token_trie *t, const struct token *tokens, size_t n)
{
    uint32_t open[TRIE_TOKEN_BYTES + 1]; /* the node of each byte of the previous token */
    uint32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t kept = i > 0 ? common_bytes(&tokens[i - 1], &tokens[i]) : 0;
        while (depth > kept)
            t->nodes[open[depth--]].end = t->n_nodes;
        while (depth < tokens[i].n) {
            t->nodes[t->n_nodes] = (struct trie_node){.token = -1, .byte = tokens[i].bytes[depth],
                                                      .depth = (uint16_t)(depth + 1)};
            open[++depth] = t->n_nodes++;
        }
        struct trie_node *node = &t->nodes[open[depth]];
        t->same[tokens[i].id] = node->token;
        node->token = tokens[i].id;
        uint32_t n_opened = 0;
        for (uint32_t k = 0; k < tokens[i].n; k++)
            n_opened += tokens[i].bytes[k] == '{' || tokens[i].bytes[k] == '[';
        t->max_opened = n_opened > t->max_opened ? n_opened : t->max_opened;
        t->longest = tokens[i].n > t->longest ? tokens[i].n : t->longest;
    }
    while (depth > 0)
        t->nodes[open[depth--]].end = t->n_nodes;
}

static int check_bytes(const struct token_trie *t, struct fm_error *err)
{
    bool has[256] = {false};
    for (uint32_t i = 0; i < t->n_nodes; i = t->nodes[i].end)
        has[t->nodes[i].byte] = t->nodes[i].token >= 0;
    for (unsigned b = 0x20; b < 0xf5; b++)
        if (!has[b] && b != 0x7f && b != 0xc0 && b != 0xc1)
            return err_set(err, FM_ERR_UNSUPPORTED, "the vocabulary has no token for the single "
                           "byte 0x%02x, so answers cannot be constrained to a schema", b);
    return 0;
}

int token_trie_open(const struct tokenizer *tok, uint32_t n_ids, struct token_trie **out,
                    struct fm_error *err)
{
    *out = NULL;
    struct token_trie *t = mem_new(1, sizeof *t, "a vocabulary", err);
    struct token *tokens = mem_new(n_ids, sizeof *tokens, "a vocabulary", err);
    int rc = t != NULL && tokens != NULL ? 0 : FM_ERR_NOMEM;
    size_t n = 0;
    uint64_t n_nodes = 0;
    if (rc == 0) {
        t->tok = tok;
        t->n_ids = n_ids;
        n = list_tokens(tok, n_ids, tokens);
        qsort(tokens, n, sizeof *tokens, compare_tokens);
        for (size_t i = 0; i < n; i++)
            n_nodes += tokens[i].n - (i > 0 ? common_bytes(&tokens[i - 1], &tokens[i]) : 0);
        t->nodes = mem_new(n_nodes, sizeof *t->nodes, "a vocabulary", err);
        t->same = mem_new(n_ids, sizeof *t->same, "a vocabulary", err);
        rc = t->nodes != NULL && t->same != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (rc == 0) {
        add_nodes(t, tokens, n);
        rc = check_bytes(t, err);
    }
    mem_free(tokens);
    if (rc != 0) {
        token_trie_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void token_trie_close(struct token_trie *t)
{
    if (t == NULL)
        return;
    mem_free(t->nodes);
    mem_free(t->same);
    mem_free(t);
}
