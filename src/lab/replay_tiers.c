/* A replay of two tiers of slots. Plans are driven as expert_cache.c and tiers.c drive them for
 * decode; heat, victims and the policy of moves are the cache's own. */
#include <assert.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "cache/tier_policy.h"
#include "lab/replay.h"

#define NO_SLOT UINT32_MAX

static const char *const names[N_REPLAY_MOVES] = {
    [REPLAY_MOVES_NONE] = "none",
    [REPLAY_MOVES_DROP] = "drop",
    [REPLAY_MOVES_DOWN] = "down",
};

const char *replay_moves_name(enum replay_moves moves)
{
    return names[moves];
}

/* The slots of both tiers are numbered together. */
struct level {
    struct victims victims;
    uint32_t first_empty, last_empty; /* a list */
};

struct place {
    uint32_t next, before; /* in the list of empty slots */
    uint32_t twin; /* the slot of the other tier with the same bytes; NO_SLOT: none */
};

struct two_tiers {
    enum replay_moves policy;
    struct heat heat;
    struct level levels[2];
    uint32_t n_above; /* slots of the first tier */
    struct tier_moves moves;
    uint32_t *where; /* [n_layers, n_experts]: slot or NO_SLOT */
    struct place *places; /* [slots] */
    /* The plan. */
    uint32_t layer;
    uint32_t n_hits, n_pinned, n_missing, next_missing;
    uint16_t hits[LIMIT_TOP_K], missing[LIMIT_TOP_K]; /* experts */
    uint32_t pinned[LIMIT_TOP_K];
    struct replay_tier_counts *counts;
};

static uint32_t *where_of(struct two_tiers *t, uint32_t layer, uint32_t expert)
{
    return &t->where[(size_t)layer * t->heat.n_experts + expert];
}

static struct level *level_of(struct two_tiers *t, uint32_t slot)
{
    return &t->levels[slot >= t->n_above];
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void add_empty(struct two_tiers *t, uint32_t slot, bool is_last)
{
    struct level *level = level_of(t, slot);
    struct place *p = &t->places[slot];
    p->before = is_last ? level->last_empty : NO_SLOT;
    p->next = is_last ? NO_SLOT : level->first_empty;
    *(p->before != NO_SLOT ? &t->places[p->before].next : &level->first_empty) = slot;
    *(p->next != NO_SLOT ? &t->places[p->next].before : &level->last_empty) = slot;
}

static void remove_empty(struct two_tiers *t, uint32_t slot)
{
    struct level *level = level_of(t, slot);
    const struct place *p = &t->places[slot];
    *(p->before != NO_SLOT ? &t->places[p->before].next : &level->first_empty) = p->next;
    *(p->next != NO_SLOT ? &t->places[p->next].before : &level->last_empty) = p->before;
}

static void part(struct two_tiers *t, uint32_t slot)
{
    if (t->places[slot].twin != NO_SLOT)
        t->places[t->places[slot].twin].twin = NO_SLOT;
    t->places[slot].twin = NO_SLOT;
}

static void make_empty(struct two_tiers *t, uint32_t slot)
{
    struct level *level = level_of(t, slot);
    const struct victim *expert = &level->victims.slots[slot];
    *where_of(t, expert->layer, expert->expert) = NO_SLOT;
    victims_remove(&level->victims, slot);
    victims_unassign(&level->victims, slot);
    part(t, slot);
    add_empty(t, slot, false);
}

static void fill(struct two_tiers *t, uint32_t slot, uint32_t layer, uint32_t expert)
{
    remove_empty(t, slot);
    part(t, slot);
    *where_of(t, layer, expert) = slot;
    victims_assign(&level_of(t, slot)->victims, slot, layer, expert);
}

static uint32_t fill_empty(struct two_tiers *t, struct level *level, uint32_t layer,
                           uint32_t expert)
{
    const uint32_t slot = level->first_empty;
    assert(slot != NO_SLOT);
    fill(t, slot, layer, expert);
    return slot;
}

/* ---- up and down ----------------------------------------------------------------------------- */

/* Takes an expert out of the first tier: it moves down, or is dropped. Its bytes may still be in
 * the second. */
static void leave_above(struct two_tiers *t, uint32_t slot)
{
    const struct victim expert = t->levels[0].victims.slots[slot];
    const uint32_t twin = t->places[slot].twin;
    struct level *below = &t->levels[1];
    if (twin != NO_SLOT) {
        make_empty(t, slot);
        fill(t, twin, expert.layer, expert.expert);
        victims_add(&below->victims, twin);
        return;
    }
    if (t->policy == REPLAY_MOVES_DOWN && below->first_empty == NO_SLOT) {
        const uint32_t coldest = tier_slot_below(&below->victims, &expert);
        if (coldest != NO_VICTIM)
            make_empty(t, coldest);
    }
    make_empty(t, slot);
    if (t->policy == REPLAY_MOVES_DROP || below->first_empty == NO_SLOT)
        return;
    victims_add(&below->victims, fill_empty(t, below, expert.layer, expert.expert));
    t->counts->n_moved_down++;
}

static bool make_room_above(struct two_tiers *t, uint32_t slot)
{
    const struct level *above = &t->levels[0];
    if (above->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest = victims_spare(&above->victims);
    if (coldest == NO_VICTIM)
        return false;
    const uint32_t n_transfers = t->places[coldest].twin != NO_SLOT ? 1 : 2;
    if (t->moves.n_left < n_transfers ||
        !tier_is_worth_a_move(&t->heat, &t->levels[1].victims.slots[slot],
                              &above->victims.slots[coldest]))
        return false;
    t->moves.n_left -= n_transfers;
    leave_above(t, coldest);
    return true;
}

static void move_up(struct two_tiers *t, uint32_t expert)
{
    const uint32_t *where = where_of(t, t->layer, expert), slot = *where;
    if (slot == NO_SLOT || slot < t->n_above || !make_room_above(t, slot) || *where != slot)
        return;
    make_empty(t, slot);
    const uint32_t to = fill_empty(t, &t->levels[0], t->layer, expert);
    victims_add(&t->levels[0].victims, to);
    remove_empty(t, slot); /* its bytes are kept as long as possible */
    add_empty(t, slot, true);
    t->places[slot].twin = to;
    t->places[to].twin = slot;
    t->counts->n_moved_up++;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool make_room(struct two_tiers *t)
{
    struct level *below = &t->levels[1];
    if (t->levels[0].first_empty != NO_SLOT || below->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest = victims_coldest(&below->victims, t->layer);
    if (coldest != NO_VICTIM)
        make_empty(t, coldest);
    return coldest != NO_VICTIM;
}

static void start_reads(struct two_tiers *t)
{
    while (t->next_missing < t->n_missing && make_room(t)) {
        struct level *level = &t->levels[t->levels[0].first_empty == NO_SLOT];
        t->pinned[t->n_pinned++] =
            fill_empty(t, level, t->layer, t->missing[t->next_missing++]);
    }
}

/* Makes the first n of the experts that were handed out evictable. */
static void release(struct two_tiers *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        victims_add(&level_of(t, t->pinned[i])->victims, t->pinned[i]);
    t->n_pinned -= n;
    memmove(t->pinned, t->pinned + n, t->n_pinned * sizeof *t->pinned);
}

static void begin_plan(struct two_tiers *t, uint32_t layer, const uint16_t *ids, uint32_t n)
{
    t->layer = layer;
    t->n_hits = t->n_pinned = t->n_missing = t->next_missing = 0;
    heat_advance(&t->heat, layer, 1);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = *where_of(t, layer, ids[i]);
        if (slot == NO_SLOT) {
            t->missing[t->n_missing++] = ids[i];
        } else {
            victims_remove(&level_of(t, slot)->victims, slot);
            t->pinned[t->n_pinned++] = slot;
            t->hits[t->n_hits++] = ids[i];
            *(slot < t->n_above ? &t->counts->n_above : &t->counts->n_below) += 1;
        }
        heat_use(&t->heat, layer, ids[i], 1, 0);
    }
    victims_refresh(&t->levels[0].victims, layer);
    victims_refresh(&t->levels[1].victims, layer);
}

static void run_plan(struct two_tiers *t, uint32_t layer, const uint16_t *ids, uint32_t n)
{
    begin_plan(t, layer, ids, n);
    start_reads(t);
    release(t, t->n_hits);
    start_reads(t);
    while (t->n_pinned > 0) {
        release(t, t->n_pinned);
        start_reads(t);
    }
    assert(t->next_missing == t->n_missing);
    tier_moves_earn(&t->moves);
    for (uint32_t i = 0; t->policy != REPLAY_MOVES_NONE && i < t->n_hits; i++)
        move_up(t, t->hits[i]);
}

/* ---- all tokens ------------------------------------------------------------------------------ */

static int open_tiers(struct two_tiers *t, const struct replay_routes *r, uint32_t n_above,
                      uint32_t n_below, struct fm_error *err)
{
    const uint64_t n_all = (uint64_t)r->n_layers * r->n_experts;
    const uint32_t n_slots[2] = {n_above, n_below}, share = n_below / r->n_layers;
    t->n_above = n_above;
    t->where = mem_new(n_all, sizeof *t->where, "a replay", err);
    t->places = mem_new(n_above + n_below, sizeof *t->places, "a replay", err);
    int rc = t->where != NULL && t->places != NULL
                 ? heat_init(&t->heat, HEAT_LCP, r->n_layers, r->n_experts, err)
                              : FM_ERR_NOMEM;
    for (uint32_t i = 0; rc == 0 && i < 2; i++) {
        struct level *level = &t->levels[i];
        const uint32_t floor = i == 0 ? 0 : r->n_used < share ? r->n_used : share;
        level->first_empty = level->last_empty = NO_SLOT;
        rc = victims_init(&level->victims, &t->heat, n_above + n_below, floor, err);
        for (uint32_t n = 0; rc == 0 && n < n_slots[i]; n++) {
            const uint32_t slot = (i == 0 ? 0 : n_above) + n;
            t->places[slot].twin = NO_SLOT;
            add_empty(t, slot, true);
        }
    }
    if (rc == 0)
        memset(t->where, 0xff, n_all * sizeof *t->where); /* NO_SLOT */
    return rc;
}

static void close_tiers(struct two_tiers *t)
{
    for (uint32_t i = 0; i < 2; i++)
        victims_clear(&t->levels[i].victims);
    heat_clear(&t->heat);
    mem_free(t->places);
    mem_free(t->where);
}

int replay_tiers(const struct replay_routes *r, enum replay_moves moves, uint32_t n_above,
                 uint32_t n_below, struct replay_tier_counts *counts, struct fm_error *err)
{
    struct replay_tier_counts warm;
    struct two_tiers t = {.policy = moves, .counts = &warm};
    assert(n_above > 0 && n_below >= r->n_layers && r->n_used <= LIMIT_TOP_K);
    *counts = (struct replay_tier_counts){0};
    const int rc = open_tiers(&t, r, n_above, n_below, err);
    for (uint32_t token = 0; rc == 0 && token < r->n_warm + r->n_tokens; token++) {
        t.counts = token < r->n_warm ? &warm : counts;
        for (uint32_t layer = 0; layer < r->n_layers; layer++)
            run_plan(&t, layer,
                     r->ids + ((size_t)(token % r->n_positions) * r->n_layers + layer) * r->n_used,
                     r->n_used);
    }
    close_tiers(&t);
    return rc;
}
