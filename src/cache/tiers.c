/* Two tiers: experts that move between a device's memory and the host's. Transfers run beside the
 * device's queue, in the order in which they were started (base/link.h). So a slot that a transfer
 * reads may be the target of a later one at once; only the host must wait before it reads or writes
 * a slot that is moving. */
#include <assert.h>
#include <string.h>

#include "base/link.h"
#include "base/mem.h"
#include "cache/empty_slots.h"
#include "cache/expert_cache_internal.h"

/* Pages are locked so many bytes at a time, when the first of them is used. */
#define CHUNK_BYTES (64ull << 20)

static const struct memory *device_memory(const struct expert_cache *cache)
{
    return cache->tiers[0].memory;
}

/* ---- locked pages ---------------------------------------------------------------------------- */

static uint64_t pool_bytes(const struct expert_cache *cache, const struct tier *tier)
{
    return tier->n_max * cache->model->expert_slot_bytes;
}

int transfers_init(struct expert_cache *cache, struct fm_error *err)
{
    struct transfers *t = &cache->transfers;
    if (cache->n_tiers < 2)
        return 0;
    assert(device_memory(cache)->link != NULL && cache->tiers[1].memory->is_host);
    t->n_chunks = (pool_bytes(cache, &cache->tiers[1]) - 1) / CHUNK_BYTES + 1;
    t->chunks = mem_new(t->n_chunks, sizeof *t->chunks, "the expert cache", err);
    return t->chunks != NULL ? 0 : FM_ERR_NOMEM;
}

/* The pages of a chunk. The last one ends with the last whole page of the pool. */
static uint64_t chunk_bytes(const struct expert_cache *cache, uint64_t chunk)
{
    const uint64_t all = pool_bytes(cache, &cache->tiers[1]) / MEM_PAGE * MEM_PAGE;
    const uint64_t begin = chunk * CHUNK_BYTES;
    return all - begin < CHUNK_BYTES ? all - begin : CHUNK_BYTES;
}

static void set_chunk(struct transfers *t, uint64_t chunk, enum chunk_state state)
{
    t->n_plain += (state == CHUNK_PLAIN) - (t->chunks[chunk] == CHUNK_PLAIN);
    t->chunks[chunk] = state;
}

static void lock_chunk(struct expert_cache *cache, uint64_t chunk)
{
    const struct memory *m = device_memory(cache);
    const struct tier *tier = &cache->tiers[1];
    const uint64_t bytes = chunk_bytes(cache, chunk);
    const uint64_t used = tier->n_slots * cache->model->expert_slot_bytes;
    /* Locking takes memory: not that of slots which are not in use. */
    const bool is_whole = tier->n_slots == tier->n_max || chunk * CHUNK_BYTES + bytes <= used;
    if (cache->transfers.chunks[chunk] == CHUNK_LOCKED)
        return;
    const bool is_locked =
        bytes > 0 && is_whole && m->link->pin(m, tier->pool + chunk * CHUNK_BYTES, bytes);
    set_chunk(&cache->transfers, chunk, is_locked ? CHUNK_LOCKED : CHUNK_PLAIN);
}

static void unlock_chunk(struct expert_cache *cache, uint64_t chunk)
{
    const struct memory *m = device_memory(cache);
    const struct tier *tier = &cache->tiers[1];
    const bool is_used = chunk * CHUNK_BYTES < tier->n_slots * cache->model->expert_slot_bytes;
    if (cache->transfers.chunks[chunk] == CHUNK_LOCKED)
        m->link->unpin(m, tier->pool + chunk * CHUNK_BYTES, chunk_bytes(cache, chunk));
    set_chunk(&cache->transfers, chunk, is_used ? CHUNK_PLAIN : CHUNK_UNUSED);
}

void tiers_pin(struct expert_cache *cache, uint32_t slot)
{
    if (tier_number(cache, slot) == 0)
        return;
    const uint64_t bytes = cache->model->expert_slot_bytes;
    const uint64_t at = (slot - cache->tiers[1].first) * bytes;
    for (uint64_t i = at / CHUNK_BYTES; i <= (at + bytes - 1) / CHUNK_BYTES; i++)
        lock_chunk(cache, i);
}

void tiers_unpin(struct expert_cache *cache, const struct tier *tier, uint64_t begin, uint64_t end)
{
    if (tier != &cache->tiers[1] || begin == end)
        return;
    for (uint64_t i = begin / CHUNK_BYTES; i <= (end - 1) / CHUNK_BYTES; i++)
        unlock_chunk(cache, i);
}

void transfers_clear(struct expert_cache *cache)
{
    struct transfers *t = &cache->transfers;
    if (t->chunks == NULL)
        return;
    tiers_settle(cache);
    for (uint64_t i = 0; i < t->n_chunks; i++)
        unlock_chunk(cache, i);
    mem_free(t->chunks);
}

/* ---- transfers ------------------------------------------------------------------------------- */

bool tiers_is_moving(const struct expert_cache *cache, uint32_t slot)
{
    return cache->slots[slot].last_move > cache->transfers.n_settled;
}

/* So many transfers are over. */
static void note_settled(struct expert_cache *cache, uint64_t n)
{
    struct transfers *t = &cache->transfers;
    uint32_t n_left = 0;
    t->n_settled = n;
    for (uint32_t i = 0; i < t->n_arriving; i++) {
        const uint32_t slot = t->arriving[i];
        if (tiers_is_moving(cache, slot))
            t->arriving[n_left++] = slot;
        else
            cache->generations[cache->slots[slot].layer]++; /* maybe another one's by now */
    }
    t->n_arriving = n_left;
}

void tiers_settle(struct expert_cache *cache)
{
    struct transfers *t = &cache->transfers;
    if (t->n_settled == t->n_started)
        return;
    device_memory(cache)->link->settle(device_memory(cache));
    note_settled(cache, t->n_started);
}

void expert_cache_join(struct expert_cache *cache)
{
    struct transfers *t = &cache->transfers;
    if (t->n_joined == t->n_started)
        return;
    device_memory(cache)->link->join(device_memory(cache));
    t->n_joined = t->n_started;
}

void expert_cache_await(struct expert_cache *cache)
{
    tiers_settle(cache);
}

void tiers_look(struct expert_cache *cache)
{
    struct transfers *t = &cache->transfers;
    const struct memory *m = device_memory(cache);
    if (memory_fence(m) == 0)
        cache->last_use = 0;
    if (t->n_settled < t->n_joined && memory_fence(m) == 0)
        note_settled(cache, t->n_joined);
    if (t->n_settled < t->n_started && t->n_arriving > 0 && m->link->is_settled(m))
        note_settled(cache, t->n_started);
}

const void *tiers_bytes(struct expert_cache *cache, uint32_t slot)
{
    const struct slot *s = &cache->slots[slot];
    const bool is_here = s->last_move <= cache->transfers.n_joined || !tiers_is_moving(cache, slot);
    if (!is_here && tier_number(cache, slot) == 0 && s->twin != 0)
        return slot_memory(cache, s->twin - 1);
    if (!is_here)
        expert_cache_join(cache);
    return slot_memory(cache, slot);
}

struct transfer_kind {
    bool is_send;
    uint64_t mark;
};

/* Moves keep their order. They wait for queued operations that use whole layers: these may use the
 * bytes that are written over. */
static struct transfer_kind a_move(struct expert_cache *cache)
{
    const struct memory *m = device_memory(cache);
    const bool has_users = cache->last_use != 0 && memory_fence(m) != 0; /* maybe */
    return (struct transfer_kind){.mark = has_users ? m->link->mark(m) : 0};
}

/* Starts a transfer of an expert between the host's memory at `host` and the device's. A chunk is
 * locked as a whole, so a transfer has a part in each. */
static void start_transfer(struct expert_cache *cache, char *to, const char *from,
                           const char *host, uint32_t layer, const struct transfer_kind *kind)
{
    const struct memory *m = device_memory(cache);
    const struct memory_link *link = m->link;
    const uint64_t bytes = cache->model->expert_layers[layer].record.bytes;
    const uint64_t at = (uint64_t)(host - cache->tiers[1].pool);
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t to_border = CHUNK_BYTES - (at + done) % CHUNK_BYTES;
        const uint64_t n = bytes - done < to_border ? bytes - done : to_border;
        (kind->is_send ? link->send : link->transfer)(m, to + done, from + done, n, kind->mark);
        done += n;
    }
    cache->transfers.n_started++;
}

static void send_slot(struct expert_cache *cache, uint32_t i, void *to, uint64_t mark)
{
    struct slot *slot = &cache->slots[i];
    const char *from = slot_memory(cache, i);
    start_transfer(cache, to, from, from, slot->layer,
                   &(struct transfer_kind){.is_send = true, .mark = mark});
    slot->last_move = cache->transfers.n_started;
    cache->stats.n_sent++;
}

void expert_cache_send(struct expert_cache *cache, const struct expert_item *item, void *to,
                       uint64_t mark)
{
    const struct tier *below = &cache->tiers[1];
    const uint64_t at =
        (uint64_t)((const char *)item->slot - below->pool) / cache->model->expert_slot_bytes;
    assert(item->tier == 1 && cache->slots[below->first + at].is_current);
    send_slot(cache, below->first + (uint32_t)at, to, mark);
}

bool expert_cache_is_below(struct expert_cache *cache, uint32_t layer, uint32_t expert)
{
    const uint32_t i = *where_of(cache, layer, expert);
    assert(!cache->plan.is_open);
    return i != NO_SLOT && tier_number(cache, i) == 1 && cache->slots[i].is_evictable;
}

void expert_cache_send_ahead(struct expert_cache *cache, uint32_t layer, uint32_t expert, void *to,
                             uint64_t mark)
{
    assert(expert_cache_is_below(cache, layer, expert));
    send_slot(cache, *where_of(cache, layer, expert), to, mark);
}

/* ---- up and down ----------------------------------------------------------------------------- */

/* Makes the second tier have an empty slot for an expert that leaves the first. */
static bool make_room_below(struct expert_cache *cache, uint32_t leaving)
{
    const struct tier *below = &cache->tiers[1];
    if (below->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest =
        tier_slot_below(&below->victims, &cache->tiers[0].victims.slots[leaving]);
    if (coldest == NO_VICTIM)
        return false;
    cache_drop_victim(cache, coldest);
    return below->first_empty != NO_SLOT; /* the slot may be one that is given back */
}

/* Moves an expert down into the slot that still has its bytes. */
static void come_back(struct expert_cache *cache, uint32_t from)
{
    const struct slot old = cache->slots[from];
    const uint32_t to = old.twin - 1;
    cache_drop_victim(cache, from);
    cache_assign(cache, to, old.layer, old.expert, SLOT_READY);
    cache->slots[to].is_guess = old.is_guess;
    cache_release(cache, to);
}

bool tiers_move_down(struct expert_cache *cache, uint32_t from)
{
    const struct slot old = cache->slots[from];
    if (old.twin != 0) {
        come_back(cache, from);
        return true;
    }
    const bool has_room = make_room_below(cache, from);
    cache_drop_victim(cache, from);
    if (!has_room)
        return false;
    const uint32_t to = cache_assign_empty(cache, &cache->tiers[1], old.layer, old.expert,
                                           SLOT_READY);
    tiers_pin(cache, to);
    memory_wait(device_memory(cache), old.last_use); /* who fills it does not wait for it */
    const struct transfer_kind move = a_move(cache);
    start_transfer(cache, slot_memory(cache, to), slot_memory(cache, from), slot_memory(cache, to),
                   old.layer, &move);
    cache->slots[from].last_move = cache->slots[to].last_move = cache->transfers.n_started;
    cache->slots[to].is_guess = old.is_guess;
    cache_release(cache, to);
    cache->stats.n_moved_down++;
    return true;
}

/* Makes the first tier have an empty slot for an expert of the second. */
static bool make_room_above(struct expert_cache *cache, uint32_t below)
{
    const struct tier *above = &cache->tiers[0];
    if (above->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest = victims_spare(&above->victims);
    if (coldest == NO_VICTIM)
        return false;
    const uint32_t n_transfers = cache->slots[coldest].twin != 0 ? 1 : 2;
    if (cache->transfers.moves.n_left < n_transfers ||
        !tier_is_worth_a_move(&cache->heat, &cache->tiers[1].victims.slots[below],
                              &above->victims.slots[coldest]))
        return false;
    cache->transfers.moves.n_left -= n_transfers;
    (void)tiers_move_down(cache, coldest);
    return above->first_empty != NO_SLOT; /* as above */
}

/* Keeps the bytes that an expert has left behind as long as nobody needs the slot. */
static void keep_bytes(struct expert_cache *cache, uint32_t above, uint32_t below)
{
    const struct tier *tier = &cache->tiers[1];
    if (below - tier->first >= tier->n_target)
        return; /* its memory goes */
    empty_slots_remove(cache, below);
    empty_slots_add(cache, below, true);
    empty_slots_pair(cache, above, below);
}

/* Moves an evictable expert of the second tier to the first. */
static void move_up(struct expert_cache *cache, uint32_t from)
{
    const struct slot old = cache->slots[from];
    cache_drop_victim(cache, from);
    const uint32_t to = cache_assign_empty(cache, &cache->tiers[0], old.layer, old.expert,
                                           SLOT_READY);
    const struct transfer_kind move = a_move(cache);
    struct transfers *t = &cache->transfers;
    start_transfer(cache, slot_memory(cache, to), slot_memory(cache, from),
                   slot_memory(cache, from), old.layer, &move);
    cache->slots[from].last_move = cache->slots[to].last_move = t->n_started;
    keep_bytes(cache, to, from);
    if (t->n_arriving < TIER_MAX_ARRIVING)
        t->arriving[t->n_arriving++] = to;
    else
        empty_slots_part(cache, to); /* then operations wait for it */
    cache_release(cache, to);
    cache->stats.n_moved_up++;
}

/* The first tier's experts can be computed at once, the second's are computed elsewhere meanwhile
 * or sent, and those that are on their way come last. */
static unsigned order_of(const struct expert_cache *cache, uint32_t slot)
{
    return tier_number(cache, slot) == 1 ? 1 : tiers_is_moving(cache, slot) ? 2 : 0;
}

void tiers_sort_hits(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    uint32_t n = 0;
    for (uint32_t i = 0; cache->n_tiers > 1 && i < plan->n_hits; i++)
        cache->stats.n_hits_below += tier_number(cache, plan->hit_slots[i]);
    for (unsigned order = 0; cache->n_tiers > 1 && order < 2; order++)
        for (uint32_t i = n; i < plan->n_hits; i++)
            if (order_of(cache, plan->hit_slots[i]) == order) {
                const uint32_t slot = plan->hit_slots[i];
                memmove(plan->hit_slots + n + 1, plan->hit_slots + n, (i - n) * sizeof slot);
                plan->hit_slots[n++] = slot; /* the others keep their order */
            }
}

void tiers_fill_above(struct expert_cache *cache)
{
    const struct tier *below = &cache->tiers[1];
    for (uint32_t i = 0; cache->n_tiers > 1 && i < below->n_slots; i++)
        if (cache->slots[below->first + i].is_evictable && cache->tiers[0].first_empty != NO_SLOT)
            move_up(cache, below->first + i);
}

void tiers_move_up(struct expert_cache *cache, uint32_t layer, const uint32_t *experts,
                   uint32_t n)
{
    const struct transfers *t = &cache->transfers;
    tier_moves_earn(&cache->transfers.moves);
    for (uint32_t i = 0; i < n && t->n_arriving < TIER_MAX_ARRIVING; i++) {
        const uint32_t *where = where_of(cache, layer, experts[i]), slot = *where;
        /* Making room may take the very slot. */
        if (slot != NO_SLOT && tier_number(cache, slot) == 1 && cache->slots[slot].is_evictable &&
            make_room_above(cache, slot) && *where == slot)
            move_up(cache, slot);
    }
}
