#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "cache/empty_slots.h"
#include "cache/expert_cache_internal.h"

/* ---- reads ----------------------------------------------------------------------------------- */

/* Records how far the read of a slot has come and appends the slot to the landed list. The caller
 * holds the lock. */
static void list_landed(struct expert_cache *cache, uint32_t i, enum slot_state state)
{
    struct slot *slot = &cache->slots[i];
    assert(slot->state == SLOT_READING || (slot->state == SLOT_LANDED && state != SLOT_LANDED));
    slot->state = state;
    pthread_cond_signal(&cache->has_landed);
    if (slot->is_listed)
        return; /* already listed as landed, and not popped since */
    slot->is_listed = true;
    slot->next = NO_SLOT;
    if (cache->last_landed != NO_SLOT)
        cache->slots[cache->last_landed].next = i;
    else
        cache->first_landed = i;
    cache->last_landed = i;
}

/* Reports that all bytes of a slot are there but not verified. Runs on a reader thread. */
static void slot_landed(struct expert_read *read)
{
    struct expert_cache *cache = read->ctx;
    pthread_mutex_lock(&cache->lock);
    list_landed(cache, cache->read_slots[read - cache->reads], SLOT_LANDED);
    pthread_mutex_unlock(&cache->lock);
}

/* Reports the outcome of a read and starts the next one in the background. Runs on a reader
 * thread. */
static void slot_done(struct expert_read *read, bool ok)
{
    struct expert_cache *cache = read->ctx;
    const uint32_t number = (uint32_t)(read - cache->reads), i = cache->read_slots[number];
    uint32_t next = NO_SLOT;
    memory_close(tier_of(cache, i)->memory, slot_memory(cache, i),
                 cache->model->expert_slot_bytes);
    pthread_mutex_lock(&cache->lock);
    list_landed(cache, i, ok ? SLOT_READY : SLOT_FAILED);
    if (number >= READS_NEEDED)
        next = background_next(cache, number);
    pthread_mutex_unlock(&cache->lock);
    if (next != NO_SLOT)
        cache_submit(cache, number, next, READ_GUESSED);
}

void cache_submit(struct expert_cache *cache, uint32_t read, uint32_t i,
                  enum read_urgency urgency)
{
    struct expert_read *r = &cache->reads[read];
    const struct memory *memory = tier_of(cache, i)->memory;
    assert(read < N_READS && i < cache->n_max && cache->slots[i].state == SLOT_READING);
    cache->slots[i].read = read;
    cache->read_slots[read] = i;
    r->expert_layer = cache->slots[i].layer;
    r->expert = cache->slots[i].expert;
    r->dst = memory_open(memory, slot_memory(cache, i), cache->model->expert_slot_bytes,
                         MEMORY_FILL);
    r->urgency = urgency;
    r->landed = urgency == READ_NEEDED && memory->is_host ? slot_landed : NULL;
    r->done = slot_done;
    r->ctx = cache;
    expert_store_submit(cache->store, r);
}

/* ---- slots ----------------------------------------------------------------------------------- */

void cache_make_empty(struct expert_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    struct tier *tier = tier_of(cache, i);
    assert(!slot->is_wanted && !slot->is_current && !slot->is_unverified && !slot->is_listed);
    assert(*where_of(cache, slot->layer, slot->expert) == i);
    *where_of(cache, slot->layer, slot->expert) = NO_SLOT;
    victims_unassign(&tier->victims, i);
    empty_slots_part(cache, i);
    *slot = (struct slot){.state = SLOT_EMPTY, .last_use = slot->last_use,
                          .last_move = slot->last_move};
    empty_slots_add(cache, i, false);
}

void cache_drop_victim(struct expert_cache *cache, uint32_t i)
{
    victims_remove(&tier_of(cache, i)->victims, i);
    cache_make_empty(cache, i);
}

void cache_assign(struct expert_cache *cache, uint32_t i, uint32_t layer, uint32_t expert,
                  enum slot_state state)
{
    struct tier *tier = tier_of(cache, i);
    assert(i - tier->first < tier->n_target && cache->slots[i].state == SLOT_EMPTY);
    assert(*where_of(cache, layer, expert) == NO_SLOT);
    empty_slots_remove(cache, i);
    empty_slots_part(cache, i);
    memory_wait(tier->memory, cache->slots[i].last_use); /* its bytes may change from here on */
    cache->slots[i] = (struct slot){.state = state, .layer = layer, .expert = expert,
                                    .last_move = cache->slots[i].last_move};
    *where_of(cache, layer, expert) = i;
    cache->generations[layer]++;
    victims_assign(&tier->victims, i, layer, expert);
}

uint32_t cache_assign_empty(struct expert_cache *cache, struct tier *tier, uint32_t layer,
                            uint32_t expert, enum slot_state state)
{
    const uint32_t i = tier->first_empty;
    assert(i != NO_SLOT);
    cache_assign(cache, i, layer, expert, state);
    return i;
}

uint32_t cache_fill_empty(struct expert_cache *cache, struct tier *tier, uint32_t layer,
                          uint32_t expert, enum slot_state state)
{
    const uint32_t i = cache_assign_empty(cache, tier, layer, expert, state);
    memory_wait(cache->tiers[0].memory, cache->last_use);
    if (tiers_is_moving(cache, i))
        tiers_settle(cache);
    tiers_pin(cache, i);
    return i;
}

void cache_release(struct expert_cache *cache, uint32_t i)
{
    assert(cache->slots[i].state == SLOT_READY && !cache->slots[i].is_evictable);
    assert(!cache->slots[i].is_wanted && !cache->slots[i].is_current);
    cache->slots[i].is_evictable = true;
    victims_add(&tier_of(cache, i)->victims, i);
}

/* Keeps an expert that has landed and that the plan does not wait for. */
static void keep_guess(struct expert_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    const struct expert_layer *layer = &cache->model->expert_layers[slot->layer];
    if (slot->state == SLOT_FAILED) {
        log_info("cache", "cannot prefetch expert %u of layer %u", slot->expert,
                 layer->layer);
        cache_make_empty(cache, i);
        return;
    }
    cache->stats.bytes_read += layer->read_bytes;
    if (slot->is_guess)
        cache->stats.n_guesses++;
    else
        cache->stats.n_warmed++;
    cache_release(cache, i);
}

/* Makes a slot evictable once nobody uses its expert. Empties it when the expert is damaged. */
static void release_or_empty(struct expert_cache *cache, uint32_t i)
{
    assert(cache->slots[i].state == SLOT_READY || cache->slots[i].state == SLOT_FAILED);
    if (cache->slots[i].state == SLOT_READY)
        cache_release(cache, i);
    else
        cache_make_empty(cache, i);
}

/* Takes the checksum's outcome for a slot that was handed out before it was known. */
static void end_check(struct expert_cache *cache, uint32_t i)
{
    struct plan *plan = &cache->plan;
    struct slot *slot = &cache->slots[i];
    assert(plan->n_unverified > 0 && plan->n_damaged < READS_NEEDED);
    assert(slot->state == SLOT_READY || slot->state == SLOT_FAILED);
    slot->is_unverified = false;
    plan->n_unverified--;
    if (slot->state == SLOT_READY)
        cache->idle_reads[cache->n_idle_reads++] = slot->read;
    else
        plan->damage[plan->n_damaged++] = (struct damage){slot->plan_index, slot->read};
    if (!slot->is_current)
        release_or_empty(cache, i);
}

/* Removes the first slot of the landed list; NO_SLOT when it is empty. *is_unverified: its checksum
 * is not known yet. The caller holds the lock. */
static uint32_t pop_landed(struct expert_cache *cache, bool *is_unverified)
{
    const uint32_t i = cache->first_landed;
    if (i == NO_SLOT)
        return i;
    assert(cache->slots[i].is_listed && cache->slots[i].state >= SLOT_LANDED);
    cache->slots[i].is_listed = false;
    *is_unverified = cache->slots[i].state == SLOT_LANDED;
    cache->first_landed = cache->slots[i].next;
    if (cache->first_landed == NO_SLOT)
        cache->last_landed = NO_SLOT;
    return i;
}

/* Removes a slot from the landed list. Waits for one unless `polls`; then it may return NO_SLOT. */
static uint32_t wait_for_landed(struct expert_cache *cache, bool polls, bool *is_unverified)
{
    pthread_mutex_lock(&cache->lock);
    if (!polls && cache->first_landed == NO_SLOT) {
        const uint64_t begin_ns = plat_now_ns();
        while (cache->first_landed == NO_SLOT)
            pthread_cond_wait(&cache->has_landed, &cache->lock);
        if (cache->plan.is_open || cache->plan.n_unverified > 0)
            cache->stats.wait_ns += plat_now_ns() - begin_ns;
    }
    const uint32_t i = pop_landed(cache, is_unverified);
    pthread_mutex_unlock(&cache->lock);
    return i;
}

/* Handles a landed slot that is not to be handed out: a guess becomes evictable, and a slot that
 * was handed out earlier is verified now. Returns false when the plan waits for the slot. */
static bool put_away(struct expert_cache *cache, uint32_t i, bool is_unverified)
{
    struct slot *slot = &cache->slots[i];
    if (slot->is_unverified) {
        end_check(cache, i);
        return true;
    }
    if (slot->read < READS_NEEDED && !is_unverified)
        cache->idle_reads[cache->n_idle_reads++] = slot->read;
    if (slot->is_wanted)
        return false;
    keep_guess(cache, i);
    return true;
}

/* Returns a slot of the plan that has landed, in the order of landing. Waits for one unless
 * `polls`; then it may return NO_SLOT. */
static uint32_t take_landed(struct expert_cache *cache, bool polls)
{
    bool is_unverified = false;
    uint32_t i;
    do {
        i = wait_for_landed(cache, polls, &is_unverified);
        if (i == NO_SLOT)
            return i;
    } while (put_away(cache, i, is_unverified));
    assert(cache->plan.is_open && cache->plan.n_in_flight > 0);
    cache->plan.n_in_flight--;
    cache->slots[i].is_wanted = false;
    cache->slots[i].is_unverified = is_unverified;
    cache->plan.n_unverified += is_unverified;
    return i;
}

void cache_collect_guesses(struct expert_cache *cache)
{
    const uint32_t none = take_landed(cache, true);
    assert(none == NO_SLOT); /* no plan waits for anything */
    (void)none;
}

/* Waits until a slot that the plan does not wait for has landed, and handles it. */
void cache_wait_for_other(struct expert_cache *cache)
{
    bool is_unverified = false;
    const uint32_t i = wait_for_landed(cache, false, &is_unverified);
    const bool is_put_away = put_away(cache, i, is_unverified);
    assert(is_put_away);
    (void)is_put_away;
    cache_collect_guesses(cache);
}

#ifndef NDEBUG

/* Checks one slot against the tables that refer to it. The caller holds the lock. */
static void check_slot(struct expert_cache *cache, uint32_t i)
{
    const struct slot *slot = &cache->slots[i];
    const struct tier *tier = tier_of(cache, i);
    const bool is_busy = slot->is_wanted || slot->is_current || slot->is_unverified;
    assert(slot->is_evictable == (tier->victims.slots[i].place != NO_VICTIM));
    assert(!slot->is_evictable || (slot->state == SLOT_READY && !is_busy && !slot->is_listed));
    assert(slot->state != SLOT_EMPTY || (!is_busy && !slot->is_listed));
    assert(slot->state == SLOT_EMPTY ||
           (i - tier->first < tier->n_slots &&
            *where_of(cache, slot->layer, slot->expert) == i));
}

/* Checks that the slots of a tier, its list and its eviction order agree: each counts every slot
 * exactly once. The caller holds the lock. */
static void check_tier(struct expert_cache *cache, const struct tier *tier)
{
    uint32_t n_full = 0, n_ordered = 0, n_empty = 0;
    for (uint32_t i = tier->first; i < tier->first + tier->n_max; i++) {
        const struct slot *slot = &cache->slots[i];
        check_slot(cache, i);
        n_full += slot->state != SLOT_EMPTY;
        n_empty += slot->state == SLOT_EMPTY && i - tier->first < tier->n_target;
        n_ordered += slot->is_evictable;
    }
    for (uint32_t i = tier->first_empty; i != NO_SLOT; i = cache->slots[i].next, n_empty--)
        assert(n_empty > 0 && i - tier->first < tier->n_target);
    for (uint32_t i = 0; i < tier->victims.n_layers; i++) {
        n_full -= tier->victims.n_held[i];
        n_ordered -= tier->victims.n_in_heap[i];
    }
    assert(n_empty == 0 && n_full == 0 && n_ordered == 0);
}

/* Checks that tiers, lists and plan agree. */
static void check_slots(struct expert_cache *cache)
{
    const struct plan *plan = &cache->plan;
    uint32_t n_wanted = 0, n_unverified = 0, n_listed = 0;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < cache->n_tiers; i++)
        check_tier(cache, &cache->tiers[i]);
    for (uint32_t i = 0; i < cache->n_max; i++) {
        const struct slot *slot = &cache->slots[i];
        n_wanted += slot->is_wanted;
        n_unverified += slot->is_unverified;
        n_listed += slot->is_listed;
    }
    for (uint32_t i = cache->first_landed; i != NO_SLOT; i = cache->slots[i].next, n_listed--)
        assert(n_listed > 0 && (cache->slots[i].next != NO_SLOT || i == cache->last_landed));
    pthread_mutex_unlock(&cache->lock);
    assert(n_listed == 0);
    assert(n_wanted == plan->n_in_flight && n_unverified == plan->n_unverified);
}

#else

static void check_slots(struct expert_cache *cache)
{
    (void)cache;
}

#endif

/* ---- plans ----------------------------------------------------------------------------------- */

/* Makes sure that there is an empty slot for the plan. Returns false when every slot is pinned or
 * being read. While the cache shrinks, an evicted slot may be one that is not filled again. */
static bool make_room(struct expert_cache *cache)
{
    const struct tier *tier;
    while ((tier = cache_tier_to_fill(cache))->first_empty == NO_SLOT) {
        const uint32_t coldest = victims_coldest(&tier->victims, cache->plan.layer);
        if (coldest != NO_VICTIM)
            cache_drop_victim(cache, coldest);
        else if (!background_cancel_last(cache))
            return false;
    }
    return true;
}

/* Returns whether another read may begin into the tier that is filled next. */
static bool has_idle_read(struct expert_cache *cache)
{
    const bool is_host = cache_tier_to_fill(cache)->memory->is_host;
    return cache->n_idle_reads > (is_host ? 0 : READS_NEEDED - READS_TO_DEVICE);
}

uint64_t expert_cache_piece_bytes(const struct model *model)
{
    return READS_AT_ONCE * mem_round_up(model->expert_slot_bytes + 1, MEM_PAGE);
}

/* Starts reads of missing experts while there are slots to read into. */
static void start_reads(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    while (plan->next_missing < plan->n_missing && has_idle_read(cache) && make_room(cache)) {
        const uint32_t index = plan->missing[plan->next_missing++];
        const uint32_t i = cache_fill_empty(cache, cache_tier_to_fill(cache), plan->layer,
                                            plan->uses[index].expert, SLOT_READING);
        cache->slots[i].plan_index = index;
        cache->slots[i].is_wanted = true;
        plan->n_in_flight++;
        cache_submit(cache, cache->idle_reads[--cache->n_idle_reads], i, READ_NEEDED);
    }
}

/* Makes the plan wait for an expert that has a slot and is not ready. If its read has not begun,
 * the plan reads it as a missing one. */
static void want_slot(struct expert_cache *cache, uint32_t i, uint32_t index)
{
    struct slot *slot = &cache->slots[i];
    if (background_cancel(cache, i)) {
        cache->plan.missing[cache->plan.n_missing++] = index;
        return;
    }
    assert(!slot->is_wanted && !slot->is_unverified && !slot->is_current);
    slot->is_wanted = true;
    slot->plan_index = index;
    cache->stats.n_guesses += slot->is_guess;
    cache->stats.n_guesses_used += slot->is_guess;
    slot->is_guess = false;
    cache->plan.n_in_flight++;
    cache->stats.n_late++;
}

static void pin(struct expert_cache *cache, uint32_t i, uint32_t index)
{
    struct slot *slot = &cache->slots[i];
    assert(slot->state == SLOT_READY && slot->is_evictable);
    victims_remove(&tier_of(cache, i)->victims, i);
    slot->is_evictable = false;
    slot->plan_index = index;
    cache->stats.n_guesses_used += slot->is_guess;
    slot->is_guess = false;
    cache->plan.hit_slots[cache->plan.n_hits++] = i;
}

void expert_cache_begin(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n)
{
    struct plan *plan = &cache->plan;
    assert(!plan->is_open && n <= cache->n_experts);
    assert(plan->n_unverified == 0 && plan->n_damaged == 0 && plan->n_current == 0);
    assert(cache->n_idle_reads == READS_NEEDED);
    expert_cache_catch_up(cache);
    cache_collect_guesses(cache);
    tiers_look(cache);
    check_slots(cache);
    uint32_t *hit_slots = plan->hit_slots, *missing = plan->missing;
    *plan = (struct plan){.is_open = true, .layer = layer, .uses = uses, .hit_slots = hit_slots,
                          .missing = missing, .current = plan->current};
    cache_count_tokens(cache, layer, n_tokens, uses, n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = *where_of(cache, layer, uses[i].expert);
        if (at == NO_SLOT)
            missing[plan->n_missing++] = i;
        else if (cache->slots[at].is_evictable)
            pin(cache, at, i);
        else
            want_slot(cache, at, i);
        /* The slot is not in the eviction order now, so its key may change. */
        cache_count_use(cache, layer, &uses[i]);
    }
    assert(plan->n_hits + plan->n_missing + plan->n_in_flight == n);
    for (uint32_t i = 0; i < cache->n_tiers; i++)
        victims_refresh(&cache->tiers[i].victims, layer);
    tiers_sort_hits(cache);
    cache->stats.n_hits += plan->n_hits;
    cache->stats.n_misses += n - plan->n_hits;
    cache->stats.n_plans_read += plan->n_hits < n;
    background_end_guesses(cache);
    start_reads(cache);
}

static void end_use(struct expert_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    slot->is_current = false;
    slot->last_use = memory_fence(tier_of(cache, i)->memory);
    if (!slot->is_unverified)
        release_or_empty(cache, i);
}

static void release_current(struct expert_cache *cache)
{
    for (uint32_t i = 0; i < cache->plan.n_current; i++)
        end_use(cache, cache->plan.current[i]);
    cache->plan.n_current = 0;
}

static void hand_out(struct expert_cache *cache, uint32_t slot, struct expert_item *items,
                     uint32_t *n)
{
    assert(cache->plan.n_current < cache->n_experts && !cache->slots[slot].is_current);
    cache->plan.current[cache->plan.n_current++] = slot;
    cache->slots[slot].is_current = true;
    items[(*n)++] = (struct expert_item){.index = cache->slots[slot].plan_index,
                                         .slot = slot_memory(cache, slot),
                                         .tier = tier_number(cache, slot),
                                         .is_arriving = tiers_is_moving(cache, slot)};
}

/* Hands out a slot that has landed. If its read failed, explains why and stores the expert in
 * items[*n]. A guess that failed is read again, so that the error is that of a needed read. */
static int take_outcome(struct expert_cache *cache, uint32_t i, struct expert_item *items,
                        uint32_t *n, struct fm_error *err)
{
    struct slot *slot = &cache->slots[i];
    const bool has_failed = !slot->is_unverified && slot->state == SLOT_FAILED;
    if (has_failed && slot->read >= READS_NEEDED) {
        cache->plan.missing[cache->plan.n_missing++] = slot->plan_index;
        cache_make_empty(cache, i);
        start_reads(cache);
        return 0;
    }
    if (has_failed) {
        items[*n] = (struct expert_item){.index = slot->plan_index};
        int rc = expert_store_explain(cache->store, &cache->reads[slot->read], err);
        cache_make_empty(cache, i);
        return rc;
    }
    cache->stats.bytes_read += cache->model->expert_layers[slot->layer].read_bytes;
    hand_out(cache, i, items, n);
    return 0;
}

/* Reports one expert that was handed out and then found damaged. */
static int report_damaged(struct expert_cache *cache, uint32_t *index, struct fm_error *err)
{
    const struct damage *damage = &cache->plan.damage[--cache->plan.n_damaged];
    assert(damage->read < READS_NEEDED && cache->n_idle_reads < READS_NEEDED);
    *index = damage->plan_index;
    cache->idle_reads[cache->n_idle_reads++] = damage->read;
    return expert_store_explain(cache->store, &cache->reads[damage->read], err);
}

int expert_cache_next(struct expert_cache *cache, bool polls, struct expert_item *items,
                      uint32_t max, uint32_t *n, struct fm_error *err)
{
    struct plan *plan = &cache->plan;
    assert(plan->is_open && max > 0);
    *n = 0;
    release_current(cache);
    if (plan->n_damaged > 0)
        return report_damaged(cache, &items[0].index, err);
    start_reads(cache);
    while (*n < max && plan->next_hit < plan->n_hits)
        hand_out(cache, plan->hit_slots[plan->next_hit++], items, n);
    while (*n < max && (plan->n_in_flight > 0 || plan->next_missing < plan->n_missing)) {
        const bool waits = !polls && *n == 0;
        if (plan->n_in_flight == 0 && waits) {
            if (plan->n_damaged > 0)
                return report_damaged(cache, &items[0].index, err);
            /* Guesses hold all other slots; one of them becomes evictable. */
            cache_wait_for_other(cache);
            start_reads(cache);
            continue;
        }
        const uint32_t i = take_landed(cache, !waits);
        if (i == NO_SLOT)
            break;
        int rc = take_outcome(cache, i, items, n, err);
        if (rc != 0)
            return rc;
    }
    return *n > 0 || plan->n_in_flight > 0 || plan->next_missing < plan->n_missing;
}

/* Closes the plan. The slots handed out last stay where they are. */
static void close_plan(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    assert(plan->is_open);
    while (plan->next_hit < plan->n_hits)
        cache_release(cache, plan->hit_slots[plan->next_hit++]);
    while (plan->n_in_flight > 0) {
        const uint32_t i = take_landed(cache, false);
        if (!cache->slots[i].is_unverified)
            release_or_empty(cache, i);
    }
    for (uint32_t i = 0; i < plan->n_hits; i++) /* tiers_move_up: slots may get others */
        plan->hit_slots[i] = cache->slots[plan->hit_slots[i]].expert;
    plan->is_open = false;
    assert(cache->n_idle_reads + plan->n_unverified + plan->n_damaged == READS_NEEDED);
}

void expert_cache_end(struct expert_cache *cache)
{
    release_current(cache);
    close_plan(cache);
    expert_cache_let_go(cache);
}

/* What the device reads is guarded by a fence from now on. */
void expert_cache_end_in_use(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    uint32_t *kept = plan->current, n_kept = 0;
    assert(expert_cache_is_verified(cache));
    for (uint32_t i = 0; i < plan->n_current; i++)
        if (tier_number(cache, plan->current[i]) == 1)
            kept[n_kept++] = plan->current[i];
        else
            end_use(cache, plan->current[i]);
    plan->n_current = n_kept;
    close_plan(cache);
}

bool expert_cache_is_over(const struct expert_cache *cache)
{
    const struct plan *plan = &cache->plan;
    return plan->next_hit == plan->n_hits && plan->next_missing == plan->n_missing &&
           plan->n_in_flight == 0 && plan->n_damaged == 0;
}

void expert_cache_let_go(struct expert_cache *cache)
{
    assert(!cache->plan.is_open);
    const struct plan *plan = &cache->plan;
    release_current(cache);
    /* A prompt uses nearly all experts: moving them would only drive out the hot ones. */
    if (cache->n_tiers > 1 && plan->n_hits + plan->n_missing <= READS_NEEDED)
        tiers_move_up(cache, plan->layer, plan->hit_slots, plan->n_hits); /* experts by now */
    check_slots(cache);
}

bool expert_cache_is_verified(const struct expert_cache *cache)
{
    return cache->plan.n_unverified == 0;
}

int expert_cache_verify(struct expert_cache *cache, uint32_t *index, struct fm_error *err)
{
    assert(!cache->plan.is_open);
    while (cache->plan.n_unverified > 0)
        cache_wait_for_other(cache);
    return cache->plan.n_damaged > 0 ? report_damaged(cache, index, err) : 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

static uint32_t max_experts(const struct model *model)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        max = model->expert_layers[i].n_experts > max ? model->expert_layers[i].n_experts : max;
    return max;
}

uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots)
{
    const uint32_t n_layers = model->n_expert_layers, n_experts = max_experts(model);
    return n_slots * (model->expert_slot_bytes + sizeof(struct slot) + 2 * sizeof(uint32_t)) +
           (n_layers + 3) * (uint64_t)n_experts * sizeof(uint32_t) + n_layers * sizeof(uint64_t) +
           N_READS * sizeof(struct expert_read) + heat_bytes(n_layers, n_experts) +
           ghosts_bytes(n_layers, n_experts) + victims_bytes(n_layers, n_experts, n_slots);
}

static int allocate_log(struct expert_cache *cache, struct fm_error *err)
{
    struct use_log *log = &cache->log;
    const uint32_t n_layers = cache->model->n_expert_layers;
    log->max_uses = n_layers * LOG_ROWS * cache->model->shape.n_experts_per_token;
    log->layers = mem_new(n_layers, sizeof *log->layers, "the expert cache", err);
    log->uses = mem_new(log->max_uses, sizeof *log->uses, "the expert cache", err);
    return log->layers == NULL || log->uses == NULL ? FM_ERR_NOMEM : 0;
}

static int allocate(struct expert_cache *cache, struct fm_error *err)
{
    const struct model *model = cache->model;
    const uint64_t n_where = (uint64_t)model->n_expert_layers * cache->n_experts;
    for (uint32_t i = 0; i < cache->n_tiers; i++) {
        struct tier *tier = &cache->tiers[i];
        uint64_t bytes;
        if (!mem_mul(tier->n_max, model->expert_slot_bytes, &bytes))
            return err_set(err, FM_ERR_NOMEM, "size overflow: the expert cache");
        tier->pool = memory_make(tier->memory, bytes, "the expert cache", err);
        if (tier->pool == NULL)
            return FM_ERR_NOMEM;
    }
    cache->slots = mem_new(cache->n_max, sizeof *cache->slots, "the expert cache", err);
    cache->where = mem_new(n_where, sizeof *cache->where, "the expert cache", err);
    cache->generations = mem_new(model->n_expert_layers, sizeof(uint64_t), "the expert cache", err);
    cache->reads = mem_new(N_READS, sizeof *cache->reads, "the expert cache", err);
    struct background *b = &cache->background;
    b->guesses.slots = mem_new(cache->n_max, sizeof(uint32_t), "the expert cache", err);
    b->bulk.slots = mem_new(cache->n_max, sizeof(uint32_t), "the expert cache", err);
    cache->plan.hit_slots = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    cache->plan.missing = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    cache->plan.current = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    if (cache->slots == NULL || cache->where == NULL || cache->generations == NULL ||
        cache->reads == NULL || b->guesses.slots == NULL || b->bulk.slots == NULL ||
        cache->plan.hit_slots == NULL || cache->plan.missing == NULL ||
        cache->plan.current == NULL)
        return FM_ERR_NOMEM;
    memset(cache->where, 0xff, n_where * sizeof *cache->where); /* NO_SLOT */
    return cache->tiers[0].memory->is_host ? 0 : allocate_log(cache, err);
}

static void fill_lists(struct expert_cache *cache)
{
    cache->first_landed = cache->last_landed = NO_SLOT;
    for (uint32_t t = 0; t < cache->n_tiers; t++) /* all are empty */
        empty_slots_list(cache, &cache->tiers[t]);
    for (uint32_t i = 0; i < READS_NEEDED; i++)
        cache->idle_reads[cache->n_idle_reads++] = i;
    background_init(cache);
}

static void place_tiers(struct expert_cache *cache, const struct cache_tier *tiers, uint32_t n)
{
    cache->n_tiers = n;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_slots = tiers[i].n_slots;
        cache->tiers[i] = (struct tier){.memory = tiers[i].memory, .first = cache->n_max,
                                        .n_max = n_slots, .n_slots = n_slots,
                                        .n_target = n_slots};
        cache->n_max += n_slots;
    }
    cache->stats.n_slots = cache->n_max;
}

static int init_orders(struct expert_cache *cache, enum heat_policy policy, struct fm_error *err)
{
    const uint32_t n_layers = cache->model->n_expert_layers;
    int rc = heat_init(&cache->heat, policy, n_layers, cache->n_experts, err);
    if (rc == 0)
        rc = ghosts_init(&cache->ghosts, &cache->heat,
                         cache->model->shape.n_experts_per_token * n_layers, err);
    for (uint32_t i = 0; rc == 0 && i < cache->n_tiers; i++) {
        struct tier *tier = &cache->tiers[i];
        rc = victims_init(&tier->victims, &cache->heat, cache->n_max,
                          cache_floor(cache, tier, tier->n_max), err);
    }
    return rc;
}

int expert_cache_open(const struct model *model, struct expert_store *store,
                      const struct cache_tier *tiers, uint32_t n_tiers, enum heat_policy policy,
                      struct expert_cache **out, struct fm_error *err)
{
    assert(n_tiers >= 1 && n_tiers <= CACHE_TIERS);
    *out = NULL;
    struct expert_cache *cache = mem_new(1, sizeof *cache, "the expert cache", err);
    if (cache == NULL)
        return FM_ERR_NOMEM;
    cache->model = model;
    cache->store = store;
    cache->n_experts = max_experts(model);
    place_tiers(cache, tiers, n_tiers);
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->has_landed, NULL);
    int rc = allocate(cache, err);
    if (rc == 0)
        rc = init_orders(cache, policy, err);
    if (rc == 0)
        rc = transfers_init(cache, err);
    if (rc == 0)
        rc = memory_reserve(tiers[0].memory, READS_AT_ONCE, model->expert_slot_bytes, err);
    if (rc != 0) {
        expert_cache_close(cache);
        return rc;
    }
    fill_lists(cache);
    *out = cache;
    return 0;
}

void expert_cache_close(struct expert_cache *cache)
{
    if (cache == NULL)
        return;
    pthread_cond_destroy(&cache->has_landed);
    pthread_mutex_destroy(&cache->lock);
    transfers_clear(cache);
    for (uint32_t i = 0; i < cache->n_tiers; i++) {
        victims_clear(&cache->tiers[i].victims);
        memory_free(cache->tiers[i].memory, cache->tiers[i].pool);
    }
    ghosts_clear(&cache->ghosts);
    heat_clear(&cache->heat);
    mem_free(cache->plan.hit_slots);
    mem_free(cache->plan.missing);
    mem_free(cache->plan.current);
    mem_free(cache->background.guesses.slots);
    mem_free(cache->background.bulk.slots);
    mem_free(cache->reads);
    mem_free(cache->log.layers);
    mem_free(cache->log.uses);
    mem_free(cache->generations);
    mem_free(cache->where);
    mem_free(cache->slots);
    mem_free(cache);
}

struct heat *expert_cache_heat(struct expert_cache *cache)
{
    expert_cache_catch_up(cache);
    return &cache->heat;
}

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats)
{
    *stats = cache->stats;
}

double expert_cache_hits_with(struct expert_cache *cache, uint64_t n_slots)
{
    expert_cache_catch_up(cache);
    return ghosts_hit_rate(&cache->ghosts, n_slots);
}
