/* fm_slots chooses the session that continues a conversation. */
#include <assert.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sized.h"
#include "session/slots.h"
#include "session/snapshot.h"

struct slot {
    struct fm_session *session;
    bool is_taken;
    uint64_t key;
    uint64_t used;     /* the pool's clock when it was returned */
    unsigned n_saved;   /* leading tokens that a snapshot has */
    unsigned n_prompt; /* tokens it was taken for; the answer follows them */
};

struct fm_slots {
    struct fm_snapshots *snapshots;
    unsigned keep_min;
    uint64_t clock;
    unsigned n;
    struct slot slots[];
};

int fm_slots_open(struct fm_model *model, const struct fm_slots_options *options,
                  struct fm_slots **out, struct fm_error *err)
{
    *out = NULL;
    struct fm_slots_options own;
    int rc = sized_take(&own, sizeof own, options, "fm_slots_options", err);
    if (rc != 0)
        return rc;
    const unsigned n = own.n_sessions > 0 ? own.n_sessions : 1;
    struct fm_slots *pool =
        mem_new(1, sizeof *pool + (uint64_t)n * sizeof pool->slots[0], "the sessions", err);
    if (pool == NULL)
        return FM_ERR_NOMEM;
    pool->snapshots = own.snapshots;
    pool->keep_min = own.keep_min > 0 ? own.keep_min : 1;
    for (; rc == 0 && pool->n < n; pool->n += rc == 0)
        rc = fm_session_open(model, &pool->slots[pool->n].session, err);
    if (rc != 0) {
        fm_slots_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void fm_slots_close(struct fm_slots *pool)
{
    if (pool == NULL)
        return;
    for (unsigned i = 0; i < pool->n; i++)
        fm_session_close(pool->slots[i].session);
    mem_free(pool);
}

bool fm_slot_info(const struct fm_slots *pool, unsigned i, struct fm_slot_info *out)
{
    if (i >= pool->n)
        return false;
    const struct slot *slot = &pool->slots[i];
    const struct fm_slot_info info = {.is_taken = slot->is_taken, .key = slot->key,
                                      .position = fm_session_position(slot->session)};
    return sized_give(out, &info, sizeof info) == 0;
}

uint64_t slots_owner(const struct fm_slots *pool, unsigned i)
{
    return i < pool->n ? pool->slots[i].session->prefix_owner : 0;
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* Number of tokens at the end of a prompt that may differ in the next turn, because they only open
 * an answer. */
#define PROMPT_END 8

/* Returns whether the tokens continue the session's conversation: they contain its last prompt.
 * Different conversations share only a beginning. With the same key half of the prompt is enough,
 * because a message may have been edited. */
static bool is_same(const struct slot *slot, const int32_t *ids, size_t n_ids, uint64_t key)
{
    const int32_t *own = fm_session_ids(slot->session);
    const unsigned position = fm_session_position(slot->session);
    size_t n = 0;
    while (n < position && n < n_ids && own[n] == ids[n])
        n++;
    return n > 0 && (n + PROMPT_END >= slot->n_prompt ||
                     (key != 0 && key == slot->key && n >= slot->n_prompt / 2));
}

struct choice {
    struct slot *same;   /* the conversation itself; NULL: no session has it */
    struct slot *similar;  /* the one with the longest common beginning, even if taken */
    struct slot *oldest; /* an empty one, or the least recently used */
    unsigned n_same, n_similar;
};

/* Compares all sessions with the tokens. A session of another owner can only be reused. */
static void compare_all(struct fm_slots *pool, const int32_t *ids, size_t n_ids, uint64_t key,
                        uint64_t owner, struct choice *c)
{
    *c = (struct choice){0};
    for (unsigned i = 0; i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        assert(slot->used <= pool->clock);
        if (fm_session_position(slot->session) == 0)
            slot->used = 0;
        if (!slot->is_taken && (c->oldest == NULL || slot->used < c->oldest->used))
            c->oldest = slot;
        if (slot->session->prefix_owner != owner)
            continue;
        const unsigned n = fm_session_nearest(slot->session, ids, n_ids);
        const bool same = !slot->is_taken && is_same(slot, ids, n_ids, key);
        if (same && (c->same == NULL || n > c->n_same)) {
            c->same = slot;
            c->n_same = n;
        } else if (!same && n > c->n_similar) {
            c->similar = slot;
            c->n_similar = n;
        }
    }
}

/* Returns the number of its tokens that no snapshot has. */
static unsigned n_unsaved(const struct slot *slot)
{
    const unsigned position = fm_session_position(slot->session);
    return position > slot->n_saved ? position - slot->n_saved : 0;
}

static int save(struct fm_slots *pool, struct slot *slot, struct fm_error *err)
{
    const int rc = fm_snapshots_keep(pool->snapshots, slot->session, err);
    /* after a failure too: it is not tried again */
    slot->n_saved = fm_session_position(slot->session);
    return rc;
}

static void save_or_log(struct fm_slots *pool, struct slot *slot)
{
    struct fm_error err = {0};
    if (save(pool, slot, &err) != 0)
        log_info("slots", "cannot save a conversation: %s", err.text);
}

/* Saves a snapshot before the session's tokens are replaced, if it would lose enough of them. It
 * keeps n_found tokens itself. */
static void save_before_reuse(struct fm_slots *pool, struct slot *slot, unsigned n_found)
{
    const unsigned position = fm_session_position(slot->session);
    if (pool->snapshots != NULL && position - n_found >= pool->keep_min &&
        n_unsaved(slot) >= pool->keep_min)
        save_or_log(pool, slot);
}

/* Empties a session of another owner, so that no tokens are shared between owners. */
static void change_owner(struct fm_slots *pool, struct slot *slot, uint64_t owner)
{
    if (slot->session->prefix_owner == owner)
        return;
    save_before_reuse(pool, slot, 0);
    fm_session_reset(slot->session);
    slot->n_saved = 0;
    slot->session->prefix_owner = owner;
}

/* Copies the common beginning of another conversation, so that both can go on. */
static void copy_beginning(struct slot *slot, const struct choice *c, const int32_t *ids,
                           size_t n_ids)
{
    struct fm_error err = {0};
    if (c->similar == NULL || c->similar == slot ||
        c->n_similar <= fm_session_nearest(slot->session, ids, n_ids))
        return;
    assert(!slot->is_taken && slot->session->prefix_owner == c->similar->session->prefix_owner);
    if (session_copy(slot->session, c->similar->session, c->n_similar, &err) != 0)
        log_info("slots", "cannot copy a common prefix, computing it again: %s", err.text);
    slot->n_saved = 0;
}

struct fm_session *fm_slots_take(struct fm_slots *pool, const int32_t *ids, size_t n_ids,
                                 uint64_t key, uint64_t owner, unsigned *n_found)
{
    struct choice c;
    *n_found = 0;
    compare_all(pool, ids, n_ids, key, owner, &c);
    if (c.oldest == NULL)
        return NULL;
    struct slot *slot = c.same != NULL ? c.same : c.oldest;
    change_owner(pool, slot, owner);
    save_before_reuse(pool, slot, fm_session_nearest(slot->session, ids, n_ids));
    copy_beginning(slot, &c, ids, n_ids);
    *n_found = pool->snapshots != NULL
                   ? fm_snapshots_restore(pool->snapshots, slot->session, ids, n_ids)
                   : fm_session_rewind(slot->session, ids, n_ids);
    session_forget_cancel(slot->session); /* the last user's request */
    assert(!slot->is_taken && *n_found == fm_session_position(slot->session));
    if (slot->n_saved > *n_found)
        slot->n_saved = *n_found;
    slot->is_taken = true;
    slot->key = key;
    slot->n_prompt = (unsigned)n_ids;
    return slot->session;
}

void fm_slots_give(struct fm_slots *pool, struct fm_session *session)
{
    for (unsigned i = 0; i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        if (slot->session != session)
            continue;
        slot->is_taken = false;
        slot->used = ++pool->clock;
        const unsigned position = fm_session_position(session); /* a cancelled prompt is shorter */
        slot->n_prompt = slot->n_prompt < position ? slot->n_prompt : position;
    }
}

bool fm_slots_drop_idle(struct fm_slots *pool)
{
    struct slot *oldest = NULL;
    for (unsigned i = 0; i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        if (!slot->is_taken && fm_session_position(slot->session) > 0 &&
            (oldest == NULL || slot->used < oldest->used))
            oldest = slot;
    }
    if (oldest == NULL)
        return false;
    save_before_reuse(pool, oldest, 0);
    fm_session_reset(oldest->session);
    oldest->n_saved = 0;
    return true;
}

int fm_slots_keep(struct fm_slots *pool, unsigned n_new, struct fm_error *err)
{
    const unsigned min = n_new > 0 ? n_new : 1;
    for (unsigned i = 0; pool->snapshots != NULL && i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        if (slot->is_taken || fm_session_position(slot->session) < pool->keep_min ||
            n_unsaved(slot) < min)
            continue;
        const int rc = save(pool, slot, err);
        return rc == 0 ? 1 : rc;
    }
    return 0;
}
