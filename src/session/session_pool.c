/* Chooses the session that continues a conversation. */
#include <assert.h>

#include "base/log.h"
#include "base/mem.h"
#include "session/session_pool.h"
#include "session/snapshot.h"

struct pooled {
    struct fm_session *session;
    bool is_taken;
    uint64_t key;
    uint64_t used;     /* the pool's clock when it was returned */
    unsigned n_saved;   /* leading tokens that a snapshot has */
    unsigned n_prompt; /* tokens it was taken for; the answer follows them */
};

struct session_pool {
    struct fm_snapshots *snapshots;
    unsigned keep_min;
    uint64_t clock;
    unsigned n;
    struct pooled sessions[];
};

int session_pool_open(struct fm_model *model, const struct session_pool_options *options,
                  struct session_pool **out, struct fm_error *err)
{
    *out = NULL;
    int rc = 0;
    const unsigned n = options->n_sessions > 0 ? options->n_sessions : 1;
    struct session_pool *pool =
        mem_new(1, sizeof *pool + (uint64_t)n * sizeof pool->sessions[0], "the sessions", err);
    if (pool == NULL)
        return FM_ERR_NOMEM;
    pool->snapshots = options->snapshots;
    pool->keep_min = options->keep_min > 0 ? options->keep_min : 1;
    for (; rc == 0 && pool->n < n; pool->n += rc == 0)
        rc = fm_session_open(model, &pool->sessions[pool->n].session, err);
    if (rc != 0) {
        session_pool_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void session_pool_close(struct session_pool *pool)
{
    if (pool == NULL)
        return;
    for (unsigned i = 0; i < pool->n; i++)
        fm_session_close(pool->sessions[i].session);
    mem_free(pool);
}

bool session_pool_info(const struct session_pool *pool, unsigned i, struct session_pool_info *out)
{
    if (i >= pool->n)
        return false;
    const struct pooled *one = &pool->sessions[i];
    *out = (struct session_pool_info){.is_taken = one->is_taken, .key = one->key,
                                      .position = fm_session_position(one->session)};
    return true;
}

uint64_t session_pool_owner(const struct session_pool *pool, unsigned i)
{
    return i < pool->n ? pool->sessions[i].session->prefix_owner : 0;
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* Number of tokens at the end of a prompt that may differ in the next turn, because they only open
 * an answer. */
#define PROMPT_END 8

/* Returns how many leading tokens a session has. */
static unsigned n_alike(const struct pooled *one, const int32_t *ids, size_t n_ids)
{
    const int32_t *own = fm_session_ids(one->session);
    const unsigned position = fm_session_position(one->session);
    unsigned n = 0;
    while (n < position && n < n_ids && own[n] == ids[n])
        n++;
    return n;
}

unsigned session_pool_common(const struct session_pool *pool, const int32_t *ids, size_t n_ids,
                             uint64_t owner)
{
    unsigned longest = 0;
    for (unsigned i = 0; i < pool->n; i++) {
        const struct pooled *one = &pool->sessions[i];
        const unsigned n =
            one->session->prefix_owner == owner ? n_alike(one, ids, n_ids) : 0;
        longest = n > longest ? n : longest;
    }
    return longest;
}

unsigned session_pool_nearest(const struct session_pool *pool, const int32_t *ids, size_t n_ids,
                              uint64_t owner)
{
    unsigned longest = 0;
    for (unsigned i = 0; i < pool->n; i++) {
        const struct fm_session *session = pool->sessions[i].session;
        const unsigned n =
            session->prefix_owner == owner ? fm_session_nearest(session, ids, n_ids) : 0;
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Returns whether the tokens continue the session's conversation: they contain its last prompt.
 * Different conversations share only a beginning. With the same key half of the prompt is enough,
 * because a message may have been edited. */
static bool is_same(const struct pooled *one, const int32_t *ids, size_t n_ids, uint64_t key)
{
    const unsigned n = n_alike(one, ids, n_ids);
    return n > 0 && (n + PROMPT_END >= one->n_prompt ||
                     (key != 0 && key == one->key && n >= one->n_prompt / 2));
}

struct choice {
    struct pooled *same;   /* the conversation itself; NULL: no session has it */
    struct pooled *similar;  /* the one with the longest common beginning, even if taken */
    struct pooled *oldest; /* an empty one, or the least recently used */
    unsigned n_same, n_similar;
};

/* Compares all sessions with the tokens. A session of another owner can only be reused. */
static void compare_all(struct session_pool *pool, const int32_t *ids, size_t n_ids, uint64_t key,
                        uint64_t owner, struct choice *c)
{
    *c = (struct choice){0};
    for (unsigned i = 0; i < pool->n; i++) {
        struct pooled *one = &pool->sessions[i];
        assert(one->used <= pool->clock);
        if (fm_session_position(one->session) == 0)
            one->used = 0;
        if (!one->is_taken && (c->oldest == NULL || one->used < c->oldest->used))
            c->oldest = one;
        if (one->session->prefix_owner != owner)
            continue;
        const unsigned n = fm_session_nearest(one->session, ids, n_ids);
        const bool same = !one->is_taken && is_same(one, ids, n_ids, key);
        if (same && (c->same == NULL || n > c->n_same)) {
            c->same = one;
            c->n_same = n;
        } else if (!same && n > c->n_similar) {
            c->similar = one;
            c->n_similar = n;
        }
    }
}

/* Returns the number of its tokens that no snapshot has. */
static unsigned n_unsaved(const struct pooled *one)
{
    const unsigned position = fm_session_position(one->session);
    return position > one->n_saved ? position - one->n_saved : 0;
}

static int save(struct session_pool *pool, struct pooled *one, struct fm_error *err)
{
    const int rc = fm_snapshots_keep(pool->snapshots, one->session, err);
    /* after a failure too: it is not tried again */
    one->n_saved = fm_session_position(one->session);
    return rc;
}

static void save_or_log(struct session_pool *pool, struct pooled *one)
{
    struct fm_error err = {0};
    if (save(pool, one, &err) != 0)
        log_info("sessions", "cannot save a conversation: %s", err.text);
}

/* Saves a snapshot before the session's tokens are replaced, if it would lose enough of them. It
 * keeps n_found tokens itself. */
static void save_before_reuse(struct session_pool *pool, struct pooled *one, unsigned n_found)
{
    const unsigned position = fm_session_position(one->session);
    if (pool->snapshots != NULL && position - n_found >= pool->keep_min &&
        n_unsaved(one) >= pool->keep_min)
        save_or_log(pool, one);
}

/* Empties a session of another owner, so that no tokens are shared between owners. */
static void change_owner(struct session_pool *pool, struct pooled *one, uint64_t owner)
{
    if (one->session->prefix_owner == owner)
        return;
    save_before_reuse(pool, one, 0);
    fm_session_reset(one->session);
    one->n_saved = 0;
    one->session->prefix_owner = owner;
}

/* Copies another session's state at a position that it can rewind to. Both use the same memory for
 * keys and values where they can. Fails for lack of memory; `to` is empty then. */
static int copy_session(struct fm_session *to, struct fm_session *from, uint32_t position,
                        struct fm_error *err)
{
    struct engine *engine = &to->owner->engine;
    int rc = 0;
    assert(to != from && to->owner == from->owner && position <= from->sequence->position);
    fm_session_reset(to);
    if (engine_can_share(engine, to->sequence))
        rc = engine_share(engine, to->sequence, from->sequence, position, err);
    if (rc == 0)
        rc = session_reach(to, position, err);
    if (rc != 0) {
        fm_session_reset(to);
        return rc;
    }
    memcpy(to->ids, from->ids, position * sizeof *to->ids);
    sequence_copy(to->sequence, from->sequence, position);
    if (to->owner->engine.model->has_mtp)
        mtp_state_copy(&to->mtp, &from->mtp, to->owner->engine.model->shape.hidden);
    mtp_state_go(&to->mtp, position);
    return 0;
}

/* Copies the common beginning of another conversation, so that both can go on. */
static void copy_beginning(struct pooled *one, const struct choice *c, const int32_t *ids,
                           size_t n_ids)
{
    struct fm_error err = {0};
    if (c->similar == NULL || c->similar == one ||
        c->n_similar <= fm_session_nearest(one->session, ids, n_ids))
        return;
    assert(!one->is_taken && one->session->prefix_owner == c->similar->session->prefix_owner);
    if (copy_session(one->session, c->similar->session, c->n_similar, &err) != 0)
        log_info("sessions", "cannot copy a common prefix, computing it again: %s", err.text);
    one->n_saved = 0;
}

struct fm_session *session_pool_take(struct session_pool *pool, const int32_t *ids, size_t n_ids,
                                 uint64_t key, uint64_t owner, unsigned *n_found)
{
    struct choice c;
    *n_found = 0;
    compare_all(pool, ids, n_ids, key, owner, &c);
    if (c.oldest == NULL)
        return NULL;
    struct pooled *one = c.same != NULL ? c.same : c.oldest;
    change_owner(pool, one, owner);
    save_before_reuse(pool, one, fm_session_nearest(one->session, ids, n_ids));
    copy_beginning(one, &c, ids, n_ids);
    *n_found = pool->snapshots != NULL
                   ? fm_snapshots_restore(pool->snapshots, one->session, ids, n_ids)
                   : fm_session_rewind(one->session, ids, n_ids);
    session_forget_cancel(one->session); /* the last user's request */
    assert(!one->is_taken && *n_found == fm_session_position(one->session));
    if (one->n_saved > *n_found)
        one->n_saved = *n_found;
    one->is_taken = true;
    one->key = key;
    one->n_prompt = (unsigned)n_ids;
    return one->session;
}

void session_pool_keep_mark(struct fm_session *session, unsigned position)
{
    session->sequence->kept_mark = position;
}

void session_pool_give(struct session_pool *pool, struct fm_session *session)
{
    for (unsigned i = 0; i < pool->n; i++) {
        struct pooled *one = &pool->sessions[i];
        if (one->session != session)
            continue;
        one->is_taken = false;
        one->used = ++pool->clock;
        const unsigned position = fm_session_position(session); /* a cancelled prompt is shorter */
        one->n_prompt = one->n_prompt < position ? one->n_prompt : position;
    }
}

bool session_pool_drop_idle(struct session_pool *pool)
{
    struct pooled *oldest = NULL;
    for (unsigned i = 0; i < pool->n; i++) {
        struct pooled *one = &pool->sessions[i];
        if (!one->is_taken && fm_session_position(one->session) > 0 &&
            (oldest == NULL || one->used < oldest->used))
            oldest = one;
    }
    if (oldest == NULL)
        return false;
    save_before_reuse(pool, oldest, 0);
    fm_session_reset(oldest->session);
    oldest->n_saved = 0;
    return true;
}

int session_pool_keep(struct session_pool *pool, unsigned n_new, struct fm_error *err)
{
    const unsigned min = n_new > 0 ? n_new : 1;
    for (unsigned i = 0; pool->snapshots != NULL && i < pool->n; i++) {
        struct pooled *one = &pool->sessions[i];
        if (one->is_taken || fm_session_position(one->session) < pool->keep_min ||
            n_unsaved(one) < min)
            continue;
        const int rc = save(pool, one, err);
        return rc == 0 ? 1 : rc;
    }
    return 0;
}
