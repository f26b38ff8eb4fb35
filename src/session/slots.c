/* Decides which session continues which conversation. */
#include "base/log.h"
#include "base/mem.h"
#include "session/slots.h"
#include "session/snapshot.h"

struct slot {
    struct fm_session *session;
    bool is_taken;
    uint64_t key;
    uint64_t used;     /* the pool's clock when it was given back */
    unsigned n_kept;   /* tokens of it that a snapshot has */
    unsigned n_prompt; /* tokens it was taken for; what follows them is the answer */
};

struct slots {
    struct fm_snapshots *snapshots;
    unsigned keep_min;
    uint64_t clock;
    unsigned n;
    struct slot slots[];
};

int slots_open(struct fm_model *model, const struct slots_options *options,
                  struct slots **out, struct fm_error *err)
{
    *out = NULL;
    int rc = 0;
    const unsigned n = options->n_sessions > 0 ? options->n_sessions : 1;
    struct slots *pool =
        mem_new(1, sizeof *pool + (uint64_t)n * sizeof pool->slots[0], "the sessions", err);
    if (pool == NULL)
        return FM_ERR_NOMEM;
    pool->snapshots = options->snapshots;
    pool->keep_min = options->keep_min > 0 ? options->keep_min : 1;
    for (; rc == 0 && pool->n < n; pool->n += rc == 0)
        rc = fm_session_open(model, &pool->slots[pool->n].session, err);
    if (rc != 0) {
        slots_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void slots_close(struct slots *pool)
{
    if (pool == NULL)
        return;
    for (unsigned i = 0; i < pool->n; i++)
        fm_session_close(pool->slots[i].session);
    mem_free(pool);
}

bool slots_info(const struct slots *pool, unsigned i, struct slots_info *out)
{
    if (i >= pool->n)
        return false;
    const struct slot *slot = &pool->slots[i];
    *out = (struct slots_info){.is_taken = slot->is_taken, .key = slot->key,
                               .position = fm_session_position(slot->session)};
    return true;
}

uint64_t slots_owner(const struct slots *pool, unsigned i)
{
    return i < pool->n ? pool->slots[i].session->prefix_owner : 0;
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* Tokens of the prompt's end that the next turn may have otherwise: what only opens an answer. */
#define PROMPT_END 8

/* Whether these tokens go on with the session's conversation: they have its last prompt. Others
 * share no more than a beginning; with the same key, half of the prompt is enough: a message that
 * was changed. */
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
    struct slot *alike;  /* another one that begins like it, perhaps a taken one */
    struct slot *oldest; /* an empty one, or the one used longest ago */
    unsigned n_same, n_alike;
};

/* Sessions of another owner can only give way. */
static void look(struct slots *pool, const int32_t *ids, size_t n_ids, uint64_t key,
                 uint64_t owner, struct choice *c)
{
    *c = (struct choice){0};
    for (unsigned i = 0; i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
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
        } else if (!same && n > c->n_alike) {
            c->alike = slot;
            c->n_alike = n;
        }
    }
}

/* Its tokens that no snapshot has. */
static unsigned n_unkept(const struct slot *slot)
{
    const unsigned position = fm_session_position(slot->session);
    return position > slot->n_kept ? position - slot->n_kept : 0;
}

static int keep(struct slots *pool, struct slot *slot, struct fm_error *err)
{
    const int rc = fm_snapshots_keep(pool->snapshots, slot->session, err);
    slot->n_kept = fm_session_position(slot->session); /* after a failure too: once is enough */
    return rc;
}

static void keep_or_log(struct slots *pool, struct slot *slot)
{
    struct fm_error err = {0};
    if (keep(pool, slot, &err) != 0)
        log_info("slots", "a conversation is not kept: %s", err.text);
}

/* What the session holds gives way to other tokens, of which it has n_found itself. */
static void make_way(struct slots *pool, struct slot *slot, unsigned n_found)
{
    const unsigned position = fm_session_position(slot->session);
    if (pool->snapshots != NULL && position - n_found >= pool->keep_min &&
        n_unkept(slot) >= pool->keep_min)
        keep_or_log(pool, slot);
}

/* What is left of another owner's conversation is not what this one begins with. */
static void change_owner(struct slots *pool, struct slot *slot, uint64_t owner)
{
    if (slot->session->prefix_owner == owner)
        return;
    make_way(pool, slot, 0);
    fm_session_reset(slot->session);
    slot->n_kept = 0;
    slot->session->prefix_owner = owner;
}

/* What another conversation begins with is copied into a session of its own: both go on. */
static void copy_beginning(struct slot *slot, const struct choice *c, const int32_t *ids,
                           size_t n_ids)
{
    struct fm_error err = {0};
    if (c->alike == NULL || c->alike == slot ||
        c->n_alike <= fm_session_nearest(slot->session, ids, n_ids))
        return;
    if (session_copy(slot->session, c->alike->session, c->n_alike, &err) != 0)
        log_info("slots", "a beginning is computed again: %s", err.text);
    slot->n_kept = 0;
}

struct fm_session *slots_take(struct slots *pool, const int32_t *ids, size_t n_ids,
                                 uint64_t key, uint64_t owner, unsigned *n_found)
{
    struct choice c;
    *n_found = 0;
    look(pool, ids, n_ids, key, owner, &c);
    if (c.oldest == NULL)
        return NULL;
    struct slot *slot = c.same != NULL ? c.same : c.oldest;
    change_owner(pool, slot, owner);
    make_way(pool, slot, fm_session_nearest(slot->session, ids, n_ids));
    copy_beginning(slot, &c, ids, n_ids);
    *n_found = pool->snapshots != NULL
                   ? fm_snapshots_restore(pool->snapshots, slot->session, ids, n_ids)
                   : fm_session_rewind(slot->session, ids, n_ids);
    session_forget_cancel(slot->session); /* its last owner's */
    if (slot->n_kept > *n_found)
        slot->n_kept = *n_found;
    slot->is_taken = true;
    slot->key = key;
    slot->n_prompt = (unsigned)n_ids;
    return slot->session;
}

void slots_give(struct slots *pool, struct fm_session *session)
{
    for (unsigned i = 0; i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        if (slot->session != session)
            continue;
        slot->is_taken = false;
        slot->used = ++pool->clock;
        const unsigned position = fm_session_position(session); /* the prompt may be cut short */
        slot->n_prompt = slot->n_prompt < position ? slot->n_prompt : position;
    }
}

bool slots_drop_idle(struct slots *pool)
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
    make_way(pool, oldest, 0);
    fm_session_reset(oldest->session);
    oldest->n_kept = 0;
    return true;
}

int slots_keep(struct slots *pool, unsigned n_new, struct fm_error *err)
{
    const unsigned min = n_new > 0 ? n_new : 1;
    for (unsigned i = 0; pool->snapshots != NULL && i < pool->n; i++) {
        struct slot *slot = &pool->slots[i];
        if (slot->is_taken || fm_session_position(slot->session) < pool->keep_min ||
            n_unkept(slot) < min)
            continue;
        const int rc = keep(pool, slot, err);
        return rc == 0 ? 1 : rc;
    }
    return 0;
}
