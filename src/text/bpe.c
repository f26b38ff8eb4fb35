#include "text/bpe.h"

#include <string.h>

#include "base/mem.h"

/* Pieces up to this length are merged by searching for the lowest rank after every merge:
 * quadratic, but without a heap. Nearly all words of real text are shorter. */
#define SHORT_PIECE 32

#define NO_SYMBOL UINT32_MAX

struct bpe_symbol {
    uint32_t id;
    uint32_t prev, next;
    uint32_t rank;   /* of the merge with the next symbol, BPE_NO_RANK for none */
    uint32_t result; /* the id that the merge makes */
};

static uint32_t slot_of(const struct bpe_table *table, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return (uint32_t)((h >> 32) * table->n_slots >> 32);
}

int bpe_table_init(struct bpe_table *table, uint32_t n_merges, struct fm_error *err)
{
    /* Two thirds full: most lookups are misses and probe about five slots of 16 bytes. */
    const uint64_t n_slots = (uint64_t)n_merges * 3 / 2 + 1;
    *table = (struct bpe_table){0};
    if (n_slots > UINT32_MAX)
        return err_set(err, FM_ERR_ARG, "%u merges are too many", n_merges);
    table->slots = mem_new(n_slots, sizeof *table->slots, "merges", err);
    if (table->slots == NULL)
        return FM_ERR_NOMEM;
    table->n_slots = (uint32_t)n_slots;
    for (uint32_t i = 0; i < table->n_slots; i++)
        table->slots[i].rank = BPE_NO_RANK;
    return 0;
}

void bpe_table_clear(struct bpe_table *table)
{
    mem_free(table->slots);
    *table = (struct bpe_table){0};
}

/* Returns the slot of the pair, or the free slot where it belongs. */
static struct bpe_merge *probe(const struct bpe_table *table, uint32_t left, uint32_t right)
{
    uint32_t i = slot_of(table, left, right);
    for (;;) {
        struct bpe_merge *slot = &table->slots[i];
        if (slot->rank == BPE_NO_RANK || (slot->left == left && slot->right == right))
            return slot;
        i = i + 1 < table->n_slots ? i + 1 : 0;
    }
}

bool bpe_table_add(struct bpe_table *table, const struct bpe_merge *merge)
{
    struct bpe_merge *slot = probe(table, merge->left, merge->right);
    if (slot->rank != BPE_NO_RANK)
        return false;
    *slot = *merge;
    return true;
}

const struct bpe_merge *bpe_table_find(const struct bpe_table *table, uint32_t left,
                                       uint32_t right)
{
    const struct bpe_merge *slot = probe(table, left, right);
    return slot->rank == BPE_NO_RANK ? NULL : slot;
}

void bpe_work_clear(struct bpe_work *work)
{
    mem_free(work->ids);
    mem_free(work->input);
    mem_free(work->symbols);
    mem_free(work->heap);
    *work = (struct bpe_work){0};
}

static int reserve_ids(struct bpe_work *work, size_t n, struct fm_error *err)
{
    void *array = work->ids;
    const int rc = mem_grow(&array, &work->ids_capacity, work->n_ids + n, sizeof *work->ids,
                            "token ids", err);
    work->ids = array;
    return rc;
}

int bpe_push_id(struct bpe_work *work, uint32_t id, struct fm_error *err)
{
    const int rc = reserve_ids(work, 1, err);
    if (rc == 0)
        work->ids[work->n_ids++] = (int32_t)id;
    return rc;
}

int bpe_push_symbol(struct bpe_work *work, uint32_t id, struct fm_error *err)
{
    if (work->n_symbols == work->input_capacity) {
        void *array = work->input;
        const int rc = mem_grow(&array, &work->input_capacity, work->n_symbols + 1,
                                sizeof *work->input, "merging a long word", err);
        work->input = array;
        if (rc != 0)
            return rc;
    }
    work->input[work->n_symbols++] = id;
    return 0;
}

/* ---- short pieces ---------------------------------------------------------------------- */

struct short_piece {
    uint32_t ids[SHORT_PIECE];
    const struct bpe_merge *merges[SHORT_PIECE]; /* of i with i + 1, or NULL */
    size_t n;
};

static void update_pair(const struct bpe_table *table, struct short_piece *p, size_t i)
{
    p->merges[i] = i + 1 < p->n ? bpe_table_find(table, p->ids[i], p->ids[i + 1]) : NULL;
}

static void merge_short(const struct bpe_table *table, struct short_piece *p)
{
    for (size_t i = 0; i < p->n; i++)
        update_pair(table, p, i);
    for (;;) {
        const struct bpe_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < p->n; i++) {
            if (p->merges[i] != NULL && (best == NULL || p->merges[i]->rank < best->rank)) {
                best = p->merges[i];
                at = i;
            }
        }
        if (best == NULL)
            return;
        p->n--;
        memmove(p->ids + at + 1, p->ids + at + 2, (p->n - at - 1) * sizeof *p->ids);
        memmove(p->merges + at + 1, p->merges + at + 2, (p->n - at - 1) * sizeof *p->merges);
        p->ids[at] = best->result;
        update_pair(table, p, at);
        if (at > 0)
            update_pair(table, p, at - 1);
    }
}

/* ---- long pieces ----------------------------------------------------------------------- */

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t item = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= item)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

static int heap_push(struct bpe_work *work, uint64_t item, struct fm_error *err)
{
    void *array = work->heap;
    const int rc = mem_grow(&array, &work->heap_capacity, work->n_heap + 1, sizeof *work->heap,
                            "merging a long word", err);
    work->heap = array;
    if (rc != 0)
        return rc;
    size_t i = work->n_heap++;
    while (i > 0 && work->heap[(i - 1) / 2] > item) {
        work->heap[i] = work->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    work->heap[i] = item;
    return 0;
}

static uint64_t heap_pop(struct bpe_work *work)
{
    const uint64_t top = work->heap[0];
    work->heap[0] = work->heap[--work->n_heap];
    if (work->n_heap > 0)
        sift_down(work->heap, work->n_heap, 0);
    return top;
}

/* Looks up the merge of symbol i with its successor. */
static void update_symbol(const struct bpe_table *table, struct bpe_symbol *symbols, uint32_t i)
{
    struct bpe_symbol *s = &symbols[i];
    const struct bpe_merge *merge =
        s->next == NO_SYMBOL ? NULL : bpe_table_find(table, s->id, symbols[s->next].id);
    s->rank = merge != NULL ? merge->rank : BPE_NO_RANK;
    s->result = merge != NULL ? merge->result : 0;
}

/* The symbols of a piece: bytes, or ids if `ids` is not NULL. */
struct piece {
    const uint32_t *byte_ids;
    const uint8_t *bytes;
    const uint32_t *ids;
    uint32_t n;
};

static uint32_t piece_id(const struct piece *piece, uint32_t i)
{
    return piece->ids != NULL ? piece->ids[i] : piece->byte_ids[piece->bytes[i]];
}

static int init_symbols(const struct bpe_table *table, struct bpe_work *work,
                        const struct piece *piece, struct fm_error *err)
{
    const uint32_t n = piece->n;
    void *array = work->symbols;
    int rc = mem_grow(&array, &work->symbols_capacity, n, sizeof *work->symbols,
                      "merging a long word", err);
    work->symbols = array;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        work->symbols[i].id = piece_id(piece, i);
        work->symbols[i].prev = i > 0 ? i - 1 : NO_SYMBOL;
        work->symbols[i].next = i + 1 < n ? i + 1 : NO_SYMBOL;
    }
    work->n_heap = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        update_symbol(table, work->symbols, i);
        if (work->symbols[i].rank != BPE_NO_RANK)
            rc = heap_push(work, (uint64_t)work->symbols[i].rank << 32 | i, err);
    }
    return rc;
}

static int merge_long(const struct bpe_table *table, struct bpe_work *work, struct fm_error *err)
{
    struct bpe_symbol *symbols = work->symbols;
    while (work->n_heap > 0) {
        const uint64_t top = heap_pop(work);
        const uint32_t i = (uint32_t)top;
        struct bpe_symbol *s = &symbols[i];
        if (s->rank != top >> 32) /* the pair has changed since it was pushed */
            continue;
        struct bpe_symbol *gone = &symbols[s->next];
        s->id = s->result;
        s->next = gone->next;
        gone->rank = BPE_NO_RANK;
        if (s->next != NO_SYMBOL)
            symbols[s->next].prev = i;
        const uint32_t changed[2] = {i, s->prev};
        for (unsigned k = 0; k < 2 && changed[k] != NO_SYMBOL; k++) {
            update_symbol(table, symbols, changed[k]);
            const uint32_t rank = symbols[changed[k]].rank;
            if (rank == BPE_NO_RANK)
                continue;
            const int rc = heap_push(work, (uint64_t)rank << 32 | changed[k], err);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

static int encode_long(const struct bpe_table *table, struct bpe_work *work,
                       const struct piece *piece, struct fm_error *err)
{
    int rc = init_symbols(table, work, piece, err);
    if (rc == 0)
        rc = merge_long(table, work, err);
    for (uint32_t i = 0; rc == 0 && i != NO_SYMBOL; i = work->symbols[i].next)
        rc = bpe_push_id(work, work->symbols[i].id, err);
    return rc;
}

static int encode_piece(const struct bpe_table *table, struct bpe_work *work,
                        const struct piece *piece, struct fm_error *err)
{
    if (piece->n > SHORT_PIECE)
        return encode_long(table, work, piece, err);
    struct short_piece p;
    p.n = piece->n;
    for (uint32_t i = 0; i < piece->n; i++)
        p.ids[i] = piece_id(piece, i);
    merge_short(table, &p);
    const int rc = reserve_ids(work, p.n, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < p.n; i++)
        work->ids[work->n_ids++] = (int32_t)p.ids[i];
    return 0;
}

int bpe_encode(const struct bpe_table *table, const uint32_t byte_ids[256], struct bpe_work *work,
               const uint8_t *piece, size_t bytes, struct fm_error *err)
{
    const struct piece p = {.byte_ids = byte_ids, .bytes = piece, .n = (uint32_t)bytes};
    return encode_piece(table, work, &p, err);
}

int bpe_encode_symbols(const struct bpe_table *table, struct bpe_work *work, struct fm_error *err)
{
    const struct piece p = {.ids = work->input, .n = (uint32_t)work->n_symbols};
    work->n_symbols = 0;
    return p.n > 0 ? encode_piece(table, work, &p, err) : 0;
}
