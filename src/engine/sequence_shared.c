/* Blocks of KV that several sequences use. */
#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/sequence.h"

struct shared_block {
    char *at;
    uint32_t n_users;
};

bool sequence_can_share(const struct sequence *s)
{
    bool can = s->far == NULL;
    for (uint32_t i = 0; i < s->n_parts; i++)
        can &= s->parts[i].memory->is_host && s->parts[i].blocks.bytes > 0 &&
               s->parts[i].blocks.bytes % MEM_PAGE == 0;
    return can;
}

static uint64_t n_blocks_of(const struct sequence_part *part)
{
    return part->kv.all_bytes / part->blocks.bytes;
}

/* Makes the lists of a part, which stay until the sequence goes. */
static int make_lists(struct sequence_part *part, struct fm_error *err)
{
    if (part->shared == NULL)
        part->shared = mem_new(n_blocks_of(part), sizeof *part->shared, "shared blocks", err);
    if (part->block_shift == NULL)
        part->block_shift =
            mem_new(n_blocks_of(part), sizeof *part->block_shift, "shared blocks", err);
    return part->shared == NULL || part->block_shift == NULL ? FM_ERR_NOMEM : 0;
}

/* Makes the next block of a part one that is shared. */
static void take_block(struct sequence_part *part, struct shared_block *block)
{
    const uint32_t b = part->n_shared;
    part->shared[b] = block;
    part->block_shift[b] =
        block->at - ((const char *)part->kv.at + b * part->blocks.bytes);
    part->n_shared++;
    block->n_users++;
}

/* Moves the next block of a part to memory of its own, so that others can use it. */
static int move_out(struct sequence_part *part, struct fm_error *err)
{
    const struct memory *memory = part->memory;
    const uint64_t bytes = part->blocks.bytes;
    char *place = (char *)part->kv.at + part->n_shared * bytes;
    struct shared_block *block = mem_new(1, sizeof *block, "a shared block", err);
    if (block == NULL)
        return FM_ERR_NOMEM;
    block->at = memory_make(memory, bytes, "a shared block", err);
    if (block->at == NULL) {
        mem_free(block);
        return FM_ERR_NOMEM;
    }
    memory_copy(memory, block->at, place, bytes);
    memory->ops->give_back(memory, place, bytes);
    take_block(part, block);
    return 0;
}

/* Gives back the places of the first n blocks, which earlier tokens may have filled. */
static void empty_places(const struct sequence_part *part, uint32_t n)
{
    const uint64_t bytes = n * part->blocks.bytes, used = part->kv.used_bytes;
    part->memory->ops->give_back(part->memory, part->kv.at, bytes < used ? bytes : used);
}

/* Gives up the last block that a part shares. If others use it, too, they keep it. */
static void drop_last(struct sequence_part *part)
{
    struct shared_block *block = part->shared[--part->n_shared];
    part->block_shift[part->n_shared] = 0;
    assert(block->n_users > 0);
    if (--block->n_users > 0)
        return;
    memory_free(part->memory, block->at);
    mem_free(block);
}

int sequence_share(struct sequence *to, struct sequence *from, uint32_t n_positions,
                   struct fm_error *err)
{
    uint32_t end = 0;
    int rc = 0;
    assert(to->position == 0 && to->n_parts == from->n_parts && sequence_can_share(to));
    for (uint32_t i = 0; i < to->n_parts; i++)
        if (to->parts[i].n_shared != 0) /* of another conversation */
            return err_set(err, FM_ERR_ARG, "a session that is to share a prefix still shares %u "
                           "block(s) of another one", to->parts[i].n_shared);
    for (uint32_t i = 0; rc == 0 && i < to->n_parts; i++) {
        struct sequence_part *dst = &to->parts[i], *src = &from->parts[i];
        const uint32_t n = n_positions / src->blocks.n_positions;
        assert(sequence_holds(from, n * src->blocks.n_positions));
        rc = make_lists(dst, err);
        if (rc == 0)
            rc = make_lists(src, err);
        while (rc == 0 && src->n_shared < n)
            rc = move_out(src, err);
        if (rc == 0)
            empty_places(dst, n);
        for (uint32_t b = 0; rc == 0 && b < n; b++)
            take_block(dst, src->shared[b]);
        end = n * src->blocks.n_positions;
    }
    if (rc != 0)
        sequence_drop_shared(to);
    else
        to->position = end;
    return rc;
}

uint32_t sequence_keeps_shared(const struct sequence *s, const struct sequence_part *part,
                               uint32_t n_positions)
{
    const uint32_t size = part->blocks.n_positions;
    const uint32_t n = n_positions > s->position ? s->position / size
                                                 : (s->position + size - 1) / size;
    return n < part->n_shared ? n : part->n_shared;
}

void sequence_unshare(struct sequence *s, uint32_t n_positions)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        struct sequence_part *part = &s->parts[i];
        const uint32_t n = sequence_keeps_shared(s, part, n_positions);
        while (part->n_shared > n) {
            const uint32_t b = part->n_shared - 1;
            if (b * part->blocks.n_positions < s->position)
                memory_copy(part->memory, (char *)part->kv.at + b * part->blocks.bytes,
                            sequence_block(part, b), part->blocks.bytes);
            drop_last(part);
        }
    }
}

uint64_t sequence_own_bytes(const struct sequence_part *part, uint32_t n_shared)
{
    const uint64_t shared = n_shared * part->blocks.bytes, used = part->kv.used_bytes;
    const uint64_t least = sequence_kv_bytes(&part->blocks, 0);
    return used > shared + least ? used - shared : least;
}

uint64_t sequence_unshared_bytes(const struct sequence_part *part, uint32_t first)
{
    uint64_t bytes = 0;
    for (uint32_t b = first; b < part->n_shared; b++)
        bytes += part->shared[b]->n_users == 1 ? part->blocks.bytes : 0;
    return bytes;
}

void sequence_drop_shared(struct sequence *s)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        struct sequence_part *part = &s->parts[i];
        while (part->n_shared > 0)
            drop_last(part);
        mem_free(part->shared);
        mem_free(part->block_shift);
        part->shared = NULL;
        part->block_shift = NULL;
    }
}
