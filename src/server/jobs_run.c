/* The passes of the runner thread: what is computed together, and how logits become answers. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe_lab.h"
#include "server/jobs_internal.h"
#include "session/between.h"

/* A prefix is shared if it saves computing at least so many tokens. */
#define SHARED_MIN 64
#define PROGRESS_NS 500000000u
/* A prompt with fewer tokens left is computed in a pass with the answers. */
#define LAYERED_MIN (2 * PACE_MIN)
/* A client that lets its stream wait for so long in all loses it when others wait for a turn. */
#define HELD_MAX_NS 30000000000u

static const struct job_prompt *prompt_of(const struct job *job)
{
    return &job->spec.prompts[job->prompt];
}

static bool is_reading(const struct job *job)
{
    return job->n_at < prompt_of(job)->n_ids;
}

/* ---- before every layer ------------------------------------------------------------------- */

static bool is_late(const struct job *job, uint64_t now_ns)
{
    return job->spec.limit_ns > 0 && now_ns - job->submitted_ns > job->spec.limit_ns;
}

static void tell_progress(struct job *job, uint64_t now_ns, uint64_t done, uint64_t total)
{
    if (!job->spec.is_stream || !is_reading(job) || now_ns - job->progress_ns < PROGRESS_NS)
        return;
    job->progress_ns = now_ns;
    const struct job_event like = {
        .kind = JOB_PROGRESS, .choice = job->choice, .n_prompt = prompt_of(job)->n_ids,
        .n_cached = job->n_cached, .n_done = job->n_at + done * job->n_piece / total};
    (void)job_emit(job, &like, "", 0, NULL); /* the next event reports a lack of memory */
}

static void before_layer(void *ctx, uint64_t done, uint64_t total)
{
    struct job *job = ctx;
    const uint64_t now_ns = plat_now_ns();
    if (!job->is_ending && (job_is_cancelled(job) || is_late(job, now_ns) ||
                            jobs_is_stopping_now(job->jobs))) {
        job->is_ending = true;
        fm_session_cancel(job->session);
    }
    tell_progress(job, now_ns, done, total);
    jobs_publish(job->jobs, false);
}

static void see_logits(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct job *job = ctx;
    (void)n;
    prompt_view_logits(&job->view, position, logits);
}

static void see_hidden(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct job *job = ctx;
    (void)position;
    prompt_view_hidden(&job->view, layer, x, n);
}

/* ---- a job's beginning and end ------------------------------------------------------------ */

static struct answer_options how_to_answer(const struct runner *e, struct job *job)
{
    return (struct answer_options){.model = e->model, .spec = &job->spec, .texts = e->texts,
                                   .prompt = job->prompt, .choice = job->choice, .fn = job_emit,
                                   .ctx = job};
}

static int begin_answer(struct runner *e, struct job *job, struct fm_error *err)
{
    const struct answer_options how = how_to_answer(e, job);
    return job->spec.is_prompt_only ? 0 : answer_open(&how, &job->answer, err);
}

static void observe(struct job *job, bool sees_prompt)
{
    const bool sees_hidden = sees_prompt && job->spec.wants_embedding;
    const struct fm_observer observer = {.size = sizeof observer, .ctx = job,
                                         .progress = before_layer,
                                         .logits = sees_prompt ? see_logits : NULL,
                                         .hidden = sees_hidden ? see_hidden : NULL};
    fm_session_observe(job->session, &observer);
}

static int tell_started(struct job *job, struct fm_error *err)
{
    const struct job_event like = {.kind = JOB_STARTED, .choice = job->choice,
                                   .n_prompt = job->n_prompt, .n_cached = job->n_cached};
    const int rc = job_emit(job, &like, "", 0, NULL);
    return rc == 0 ? 0 : err_set(err, rc, "out of memory for an event");
}

/* Opens a session for the prompt and restores its known prefix. */
static int open_prompt(struct runner *e, struct job *job, struct fm_error *err)
{
    const struct job_prompt *prompt = prompt_of(job);
    const bool sees_prompt = prompt_view_is_wanted(&job->spec);
    unsigned n_found = 0;
    /* A known prefix has no logits any more, so whoever wants those gets an empty session. */
    const size_t n_ids = sees_prompt ? 0 : prompt->n_ids;
    const size_t n_common = session_pool_common(e->sessions, prompt->ids, n_ids, job->spec.owner);
    job->waits = false;
    job->session = session_pool_take(e->sessions, prompt->ids, n_ids, job->spec.key,
                                     job->spec.owner, &n_found);
    if (job->session == NULL)
        return err_set(err, FM_ERR_BUDGET, "no session is free for the prompt");
    observe(job, sees_prompt);
    job->drafts_before.size = sizeof job->drafts_before;
    fm_session_draft_counts(job->session, &job->drafts_before);
    job->n_at = n_found;
    job->due += prompt->n_ids - n_found;
    /* Others that begin the same way will come: the next one finds a mark there. */
    job->n_fork = n_common >= n_found + SHARED_MIN ? n_common : 0;
    if (job->n_fork > 0)
        session_pool_keep_mark(job->session, (unsigned)job->n_fork);
    job->n_prompt += prompt->n_ids;
    job->n_cached += n_found;
    const int rc = tell_started(job, err);
    if (rc == 0 && sees_prompt) {
        const struct answer_options how = how_to_answer(e, job);
        prompt_view_begin(&job->view, &how);
    }
    return rc == 0 ? begin_answer(e, job, err) : rc;
}

/* Returns how many tokens two prompts begin with alike. The last one of a prompt is not counted:
 * it is always computed. */
static size_t common_prefix(const struct job_prompt *prompt, const struct job_prompt *other)
{
    size_t n = 0;
    while (n + 1 < prompt->n_ids && n < other->n_ids && prompt->ids[n] == other->ids[n])
        n++;
    return n;
}

/* Finds the job that is computing the longest beginning of this job's prompt. Returns its length;
 * 0: no job computes enough of it to wait for, or more of it than there is already. A job waits to
 * the end for what it began to wait for; any more must be worth waiting, too. */
static size_t find_source(const struct runner *e, const struct job *job, struct job **source)
{
    const struct job_prompt *prompt = prompt_of(job);
    const size_t n_there = session_pool_nearest(e->sessions, prompt->ids, prompt->n_ids,
                                                job->spec.owner);
    size_t longest = 0;
    for (unsigned i = 0; i < e->n_running; i++) {
        struct job *other = e->running[i];
        if (other == job || other->session == NULL || other->is_held || !is_reading(other) ||
            other->spec.owner != job->spec.owner)
            continue;
        const size_t n = common_prefix(prompt, prompt_of(other));
        const size_t n_gain = job->waits && n <= job->n_wait ? 1 : SHARED_MIN;
        if (n > other->n_at && n >= n_there + n_gain && n > longest) {
            longest = n;
            *source = other;
        }
    }
    return longest;
}

/* Begins the job's next prompt, or lets it wait for another job that computes its beginning. One
 * that wants to know the prompt's logits computes all of it. */
static int begin_prompt(struct runner *e, struct job *job, struct fm_error *err)
{
    struct job *source;
    job->n_at = 0;
    job->due = e->n_prompt;
    job->waits = false;
    job->n_wait = prompt_view_is_wanted(&job->spec) ? 0 : find_source(e, job, &source);
    job->waits = job->n_wait > 0;
    return job->waits ? 0 : open_prompt(e, job, err);
}

/* Adds what drafts of the job's session came to. */
static void count_drafts(struct job *job)
{
    const struct fm_draft_counts *before = &job->drafts_before;
    struct fm_draft_counts now = {.size = sizeof now};
    fm_session_draft_counts(job->session, &now);
    for (unsigned s = 0; s < FM_DRAFT_SOURCES; s++)
        for (unsigned i = 0; i < FM_DRAFTS_MAX; i++) {
            job->n_drafted += now.n_drafted_by[s][i] - before->n_drafted_by[s][i];
            job->n_accepted += now.n_drafts_accepted_by[s][i] - before->n_drafts_accepted_by[s][i];
        }
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        job->n_draft_passes += now.n_draft_passes[i] - before->n_draft_passes[i];
}

static void give_session(struct runner *e, struct job *job)
{
    if (job->session == NULL)
        return;
    fm_session_observe(job->session, NULL);
    count_drafts(job);
    session_pool_give(e->sessions, job->session);
    job->session = NULL;
}

int runner_begin(struct runner *e, struct job *job, struct fm_error *err)
{
    job->started_ns = job->progress_ns = plat_now_ns();
    job->before.size = sizeof job->before;
    fm_model_stats(e->model, &job->before);
    job->order = e->n_begun++;
    e->running[e->n_running++] = job;
    return begin_prompt(e, job, err);
}

void runner_end(struct runner *e, struct job *job, int code, const char *why)
{
    for (unsigned i = 0; i < e->n_running; i++)
        if (e->running[i] == job) {
            memmove(&e->running[i], &e->running[i + 1],
                    (e->n_running - i - 1) * sizeof e->running[0]);
            e->n_running--;
            e->n_held -= job->is_held;
            break;
        }
    if (job->answer != NULL) {
        job->n_answer += answer_n_tokens(job->answer);
        job->n_reasoning += answer_n_reasoning(job->answer);
        answer_close(job->answer);
        job->answer = NULL;
    }
    prompt_view_clear(&job->view);
    give_session(e, job);
    job_leave(job, code, why);
}

/* ---- answers ------------------------------------------------------------------------------ */

/* Finishes the answer, or reports that none was wanted: it has its maximum of 0 tokens. */
static int finish_answer(struct job *job, struct fm_error *err)
{
    if (job->answer == NULL) {
        const struct job_event like = {.kind = JOB_CHOICE_END, .choice = job->choice,
                                       .end = JOB_END_LENGTH,
                                       .n_prompt = prompt_of(job)->n_ids};
        return job_emit(job, &like, "", 0, NULL) == 0
                   ? 0 : err_set(err, JOB_ERR_MEMORY, "%s", JOB_MEMORY_TEXT);
    }
    const int rc = answer_finish(job->answer, err);
    job->n_answer += answer_n_tokens(job->answer);
    job->n_reasoning += answer_n_reasoning(job->answer);
    answer_close(job->answer);
    job->answer = NULL;
    return rc;
}

/* Continues after a complete answer: with the next one to this prompt, the next prompt, or the
 * end. */
static int end_answer(struct runner *e, struct job *job, struct fm_error *err)
{
    int rc = finish_answer(job, err);
    if (rc != 0)
        return rc;
    job->choice++;
    job->token_ns = 0;
    if (job->choice % job->spec.n_choices != 0) {
        job->n_at = fm_session_rewind(job->session, prompt_of(job)->ids, prompt_of(job)->n_ids);
        rc = tell_started(job, err);
        return rc == 0 ? begin_answer(e, job, err) : rc;
    }
    if (job->prompt + 1 < job->spec.n_prompts) {
        give_session(e, job);
        job->prompt++;
        return begin_prompt(e, job, err);
    }
    runner_end(e, job, 0, "");
    return 0;
}

/* Counts the time since the answer's last token. */
static void note_token(struct job *job, uint64_t now_ns)
{
    const uint64_t gap_ns = job->token_ns > 0 ? now_ns - job->token_ns : 0;
    job->gap_ns = gap_ns > job->gap_ns ? gap_ns : job->gap_ns;
    job->token_ns = now_ns;
}

static int take_logits(struct runner *e, struct job *job, struct fm_error *err)
{
    int32_t id = -1;
    note_token(job, plat_now_ns());
    if (job->answered_ns == 0)
        job->answered_ns = job->token_ns;
    if (job->spec.is_prompt_only)
        return end_answer(e, job, err);
    int rc = answer_step(job->answer, job->session, &id, err);
    e->n_answer++;
    if (rc != 0)
        return rc;
    if (id < 0)
        return end_answer(e, job, err);
    job->id = id;
    return 0;
}

/* ---- the pass ------------------------------------------------------------------------------ */

static void note_held(struct job *job, bool is_held, uint64_t now_ns)
{
    if (is_held)
        job->token_ns = 0; /* its client makes the gap */
    if (is_held && !job->is_held)
        job->held_since_ns = now_ns;
    if (!is_held && job->is_held)
        job->held_ns += now_ns - job->held_since_ns;
    job->is_held = is_held;
}

/* Moves the jobs that can be computed next to the beginning: not those that are under way or wait
 * for their clients. Returns how many these are. */
static unsigned find_ready(struct runner *e)
{
    const uint64_t now_ns = plat_now_ns();
    unsigned n = 0;
    e->n_held = 0;
    for (unsigned i = 0; i < e->n_running; i++) {
        struct job *job = e->running[i];
        if (!job->is_under_way)
            note_held(job, job_is_held(job), now_ns);
        e->n_held += job->is_held;
        if (job->is_held || job->is_under_way || job->waits)
            continue;
        memmove(&e->running[n + 1], &e->running[n], (i - n) * sizeof e->running[0]);
        e->running[n++] = job;
    }
    return n;
}

static struct schedule_entry entry_of(const struct job *job)
{
    /* Whoever waits for this prompt may be due before it. */
    const uint64_t due = job->wanted_due < job->due ? job->wanted_due : job->due;
    struct schedule_entry entry = {.due = due, .order = job->order};
    if (!is_reading(job))
        return entry;
    entry.n_left = prompt_of(job)->n_ids - job->n_at;
    entry.n_stop = job->n_stop > job->n_at ? job->n_stop - job->n_at : 0;
    if (job->n_fork > job->n_at && (entry.n_stop == 0 || job->n_fork - job->n_at < entry.n_stop))
        entry.n_stop = job->n_fork - job->n_at;
    return entry;
}

/* Returns whether somebody waits for the next token of an answer. */
static bool any_answers(const struct runner *e)
{
    for (unsigned i = 0; i < e->n_running; i++) {
        const struct schedule_entry entry = entry_of(e->running[i]);
        if (!e->running[i]->is_held && !e->running[i]->waits && schedule_is_single(&entry))
            return true;
    }
    return false;
}

/* Moves the jobs whose next token is computed already, as a draft, to the front of the first n.
 * Returns how many they are. */
static unsigned put_computed_first(struct runner *e, unsigned n)
{
    unsigned n_computed = 0;
    for (unsigned i = 0; i < n; i++) {
        struct job *job = e->running[i];
        if (is_reading(job) || !fm_session_has_computed(job->session, job->id))
            continue;
        memmove(&e->running[n_computed + 1], &e->running[n_computed],
                (i - n_computed) * sizeof e->running[0]);
        e->running[n_computed++] = job;
    }
    return n_computed;
}

/* Returns whether a group computes only prompts, with answers between its layers. */
static bool is_layered(const struct runner *e, const struct group *g)
{
    size_t n_left = 0;
    for (unsigned i = 0; i < g->n; i++)
        n_left += schedule_is_single(&e->entries[i]) ? 0 : e->entries[i].n_left - 1;
    return e->can_pause && g->is_mixed && n_left > LAYERED_MIN;
}

/* Leaves only those jobs in a group that get tokens in its pass. */
static void choose(struct runner *e, struct group *g)
{
    unsigned n = 0;
    for (unsigned i = 0; i < g->n; i++)
        e->entries[i] = entry_of(g->jobs[i]);
    g->is_mixed = any_answers(e);
    g->is_layered = is_layered(e, g);
    g->n_prompt = 0;
    schedule_pass(e->entries, g->n, !g->is_mixed      ? e->prefill_chunk
                                    : g->is_layered ? e->layer_pace.n_tokens
                                                    : e->pace.n_tokens);
    for (unsigned i = 0; i < g->n; i++) {
        if (e->entries[i].n_piece == 0 || (g->is_layered && schedule_is_single(&e->entries[i])))
            continue;
        g->n_prompt += schedule_is_single(&e->entries[i]) ? 0 : e->entries[i].n_piece;
        g->jobs[n] = g->jobs[i];
        g->jobs[n++]->n_piece = e->entries[i].n_piece;
    }
    g->n = n;
}

/* Sets up the pass of a group's jobs, n_piece tokens of each. */
static void fill(struct runner *e, struct group *g)
{
    double positions = 0;
    for (unsigned i = 0; i < g->n; i++) {
        struct job *job = g->jobs[i];
        g->items[i] = (struct fm_batch_item){
            .session = job->session,
            .ids = is_reading(job) ? prompt_of(job)->ids + job->n_at : &job->id,
            .n_ids = job->n_piece};
        positions += fm_session_position(job->session);
        job->is_under_way = true;
    }
    e->position = positions / g->n;
}

/* Tells a job that another one goes on after n tokens of its prompt, and when that one is due. */
static void note_wanted(struct job *source, const struct job *job, size_t n)
{
    const uint64_t due = job->due + prompt_of(job)->n_ids;
    if (due < source->wanted_due)
        source->wanted_due = due;
    if (source->n_stop > 0 && source->n_stop <= n)
        return;
    source->n_stop = n;
    session_pool_keep_mark(source->session, (unsigned)n);
}

/* Begins the prompts of jobs that waited for others to compute a prefix, when it is there or will
 * not come. Tells those that compute one where others go on from. */
static void see_waiting(struct runner *e)
{
    for (unsigned i = 0; i < e->n_running; i++) {
        e->running[i]->n_stop = 0;
        e->running[i]->wanted_due = UINT64_MAX;
    }
    for (unsigned i = 0; i < e->n_running; i++) {
        struct job *job = e->running[i], *source = NULL;
        struct fm_error err = {0};
        const size_t n = job->waits ? find_source(e, job, &source) : 0;
        if (n > 0) {
            job->n_wait = n;
            note_wanted(source, job, n);
        }
        if (!job->waits || n > 0)
            continue;
        const int rc = open_prompt(e, job, &err);
        if (rc != 0) {
            runner_end(e, job, rc, err.text);
            i--; /* another job is here now */
        }
    }
}

static bool is_in_the_way(const struct job *job, uint64_t now_ns)
{
    return job->is_held && job->held_ns + (now_ns - job->held_since_ns) > HELD_MAX_NS &&
           jobs_has_waiting(job->jobs);
}

/* Ends jobs whose client disconnected or reads too slowly for the others, or whose time limit has
 * passed, before computing them. */
static void drop_the_gone(struct runner *e)
{
    const uint64_t now_ns = plat_now_ns();
    for (unsigned i = e->n_running; i-- > 0;) {
        struct job *job = e->running[i];
        if (job->is_under_way)
            continue;
        if (job_is_cancelled(job))
            runner_end(e, job, FM_ERR_CANCELLED, "cancelled");
        else if (is_late(job, now_ns))
            runner_end(e, job, JOB_ERR_TIME, "the time limit of the request has passed");
        else if (is_in_the_way(job, now_ns))
            runner_end(e, job, JOB_ERR_TIME, "the answer was read too slowly while other requests "
                       "waited");
    }
}

void runner_end_stopped(struct runner *e, struct job *job)
{
    const char *lost = fm_model_lost(e->model);
    runner_end(e, job, lost != NULL ? FM_ERR_IO : JOB_ERR_SHUTDOWN,
               lost != NULL ? lost : "the server is shutting down");
}

static void end_failed(struct runner *e, struct job *job, int rc, const char *why)
{
    if (job_is_cancelled(job))
        runner_end(e, job, FM_ERR_CANCELLED, "cancelled");
    else if (is_late(job, plat_now_ns()))
        runner_end(e, job, JOB_ERR_TIME, "the time limit of the request has passed");
    else if (jobs_is_stopping_now(job->jobs))
        runner_end_stopped(e, job);
    else
        runner_end(e, job, rc, why);
}

/* Fails a job whose session could not be computed. The client gets no file paths; the log has the
 * whole message. */
static void end_faulty(struct runner *e, struct job *job, int rc, const struct fm_error *err)
{
    const struct fm_failure *failure = fm_session_failure(job->session);
    char why[FM_ERROR_BYTES + 64];
    if (failure->code != rc) { /* the whole batch was refused */
        end_failed(e, job, rc, err->text);
        return;
    }
    if (failure->layer >= 0 || rc == FM_ERR_IO || rc == FM_ERR_FORMAT)
        log_warn("server", "a request failed: %s", failure->text);
    (void)snprintf(why, sizeof why, "%s%s", failure->summary,
                   failure->expert >= 0 ? "; the server's log names the file" : "");
    end_failed(e, job, rc, why);
}

static int end_prompt(struct job *job, struct fm_error *err)
{
    if (!prompt_view_is_wanted(&job->spec))
        return 0;
    observe(job, false);
    return prompt_view_end(&job->view, err);
}

static void advance(struct runner *e, struct job *job)
{
    struct fm_error err = {0};
    int rc = 0;
    if (is_reading(job)) {
        job->n_at += job->n_piece;
        e->n_prompt += job->n_piece;
        rc = job->view.rc;
        if (rc == 0 && is_reading(job))
            return;
        rc = end_prompt(job, &err);
    }
    if (rc == 0)
        rc = take_logits(e, job, &err);
    if (rc != 0)
        end_failed(e, job, rc, err.text);
}

/* Puts n running jobs into a group, from the first one on. */
static void set_group(struct runner *e, struct group *g, unsigned first, unsigned n)
{
    g->n = n;
    memcpy(g->jobs, e->running + first, n * sizeof g->jobs[0]);
    g->begin_ns = plat_now_ns();
    g->between_ns = 0;
    choose(e, g);
    fill(e, g);
}

/* Begins to compute n running jobs from the first one on. */
static void begin_group(struct runner *e, unsigned first, unsigned n)
{
    struct group *g = &e->groups[(e->first_group + e->n_under_way++) % e->n_groups];
    set_group(e, g, first, n);
    e->is_computing = true;
    e->layered = g->is_layered ? g : NULL;
    turns_begin(&e->turns);
    /* Each item has its rc. */
    (void)fm_eval_begin(e->model, g->items, g->n, &g->evaluation, &g->err);
    e->layered = NULL;
    e->is_computing = false;
}

/* Divides the jobs among the groups that are free, so that all groups get about as many. */
static void begin_groups(struct runner *e, unsigned n_ready)
{
    unsigned n_active = n_ready, done = 0;
    for (unsigned i = 0; i < e->n_running; i++)
        n_active += e->running[i]->is_under_way;
    const unsigned share = (n_active + e->n_groups - 1) / e->n_groups;
    while (done < n_ready && e->n_under_way < e->n_groups) {
        const unsigned left = n_ready - done, n = share < left ? share : left;
        begin_group(e, done, n);
        done += n;
    }
}

/* Counts the time since the group began. What groups share counts once. */
static uint64_t count_time(struct runner *e, const struct group *g)
{
    const uint64_t now_ns = plat_now_ns();
    e->pass_ns += now_ns - (g->begin_ns > e->ended_ns ? g->begin_ns : e->ended_ns);
    e->ended_ns = now_ns;
    return now_ns;
}

static void count_pass(struct runner *e, const struct group *g)
{
    const uint64_t now_ns = count_time(e, g), took_ns = now_ns - g->begin_ns;
    e->n_passes++;
    if (!g->is_layered)
        pace_note(&e->pace, g->n_prompt, g->is_mixed, took_ns);
    if (g->is_layered || !g->is_mixed) {
        e->layer_pace.limit_ns = turns_layer_max_ns(&e->turns);
        pace_note(&e->layer_pace, g->n_prompt, g->is_mixed,
                  (took_ns - g->between_ns) / e->n_layers);
    }
    if (g->is_mixed && !g->is_layered)
        e->turns.answered_ns = now_ns;
    if (g->is_mixed && g->n_prompt == 0)
        turns_note(&e->turns, g->begin_ns, now_ns);
}

/* Continues the jobs of a group that was computed. */
static void take_results(struct runner *e, struct group *g)
{
    for (unsigned i = 0; i < g->n; i++)
        g->jobs[i]->is_under_way = false;
    for (unsigned i = g->n; i-- > 0;) {
        struct job *job = g->jobs[i];
        if (g->items[i].rc == 0)
            advance(e, job);
        else if (g->items[i].rc == FM_ERR_BUDGET && session_pool_drop_idle(e->sessions))
            continue; /* a waiting session makes room; the next pass tries again */
        else
            end_faulty(e, job, g->items[i].rc, &g->err);
    }
}

/* Ends the group that began first. */
static void end_group(struct runner *e)
{
    struct group *g = &e->groups[e->first_group];
    e->is_computing = true;
    if (g->evaluation != NULL)
        (void)fm_eval_end(g->evaluation, &g->err);
    e->is_computing = false;
    e->first_group = (e->first_group + 1) % e->n_groups;
    e->n_under_way--;
    count_pass(e, g);
    take_results(e, g);
}

/* Takes tokens that were computed as drafts. They need no pass, so they do not wait for that of the
 * others. Returns how many jobs are ready then. */
static unsigned take_computed(struct runner *e)
{
    unsigned n_ready, n_computed;
    while ((n_computed = put_computed_first(e, n_ready = find_ready(e))) > 0) {
        set_group(e, &e->computed, 0, n_computed);
        (void)fm_eval_batch(e->model, e->computed.items, n_computed, &e->computed.err);
        take_results(e, &e->computed);
    }
    return n_ready;
}

/* ---- answers between the layers of a prompt ------------------------------------------------ */

static bool wants_turn(void *ctx)
{
    struct runner *e = ctx;
    return e->layered != NULL && turns_look(&e->turns, plat_now_ns());
}

/* Computes the next tokens of all answers. A prompt is on its way through the layers. */
static void give_turn(void *ctx)
{
    struct runner *e = ctx;
    struct group *g = &e->between, *prompt = e->layered;
    const unsigned n_ready = take_computed(e);
    g->begin_ns = count_time(e, prompt);
    g->n = 0;
    for (unsigned i = 0; i < n_ready; i++) {
        const struct schedule_entry entry = entry_of(e->running[i]);
        if (!schedule_is_single(&entry))
            continue;
        e->running[i]->n_piece = 1;
        g->jobs[g->n++] = e->running[i];
    }
    if (g->n > 0) {
        fill(e, g);
        (void)fm_eval_batch(e->model, g->items, g->n, &g->err); /* each item has its rc */
        e->n_passes++;
        take_results(e, g);
    }
    const uint64_t now_ns = count_time(e, g);
    prompt->between_ns += now_ns - g->begin_ns;
    turns_note(&e->turns, g->begin_ns, now_ns);
}

void runner_open_pace(struct runner *e, uint64_t stall_ns)
{
    struct fm_model_info info = {.size = sizeof info};
    const struct session_between between = {.ctx = e, .wants = wants_turn, .run = give_turn};
    fm_model_info(e->model, &info);
    e->n_layers = info.n_layers;
    e->turns = (struct turns){.limit_ns = stall_ns};
    pace_init(&e->pace, stall_ns, e->prefill_chunk);
    /* Answers need rows beside those of the prompt. */
    e->can_pause = session_can_pause(e->model) && e->prefill_chunk >= 2 * e->n_parallel;
    if (!e->can_pause)
        return;
    pace_init(&e->layer_pace, stall_ns, e->prefill_chunk - e->n_parallel);
    session_set_between(e->model, &between);
}

void runner_close_pace(struct runner *e)
{
    if (e->can_pause)
        session_set_between(e->model, NULL);
}

/* Tells clients whose prompts are not part of every pass that the server is at work. */
static void tell_waiting(struct runner *e)
{
    const uint64_t now_ns = plat_now_ns();
    for (unsigned i = 0; i < e->n_running; i++) {
        struct job *job = e->running[i];
        if (job->is_under_way || job->session == NULL)
            continue;
        job->n_piece = 0;
        tell_progress(job, now_ns, 0, 1);
    }
}

bool runner_pass(struct runner *e)
{
    drop_the_gone(e);
    see_waiting(e);
    tell_waiting(e);
    begin_groups(e, take_computed(e));
    if (e->n_under_way == 0)
        return e->n_running == 0;
    end_group(e);
    return true;
}

void runner_land(struct runner *e)
{
    while (e->n_under_way > 0)
        end_group(e);
}

static int open_group(const struct runner *e, struct group *g, struct fm_error *err)
{
    g->items = mem_new(e->n_parallel, sizeof *g->items, "the requests", err);
    g->jobs = mem_new(e->n_parallel, sizeof *g->jobs, "the requests", err);
    return g->items == NULL || g->jobs == NULL ? FM_ERR_NOMEM : 0;
}

static void close_group(struct group *g)
{
    mem_free(g->items);
    mem_free(g->jobs);
}

int runner_open_groups(struct runner *e, struct fm_error *err)
{
    e->n_groups = fm_model_evaluations(e->model);
    e->groups = mem_new(e->n_groups, sizeof *e->groups, "the requests", err);
    e->entries = mem_new(e->n_parallel, sizeof *e->entries, "the requests", err);
    int rc = e->groups == NULL || e->entries == NULL ? FM_ERR_NOMEM
                                                     : open_group(e, &e->computed, err);
    if (rc == 0)
        rc = open_group(e, &e->between, err);
    for (unsigned i = 0; rc == 0 && i < e->n_groups; i++)
        rc = open_group(e, &e->groups[i], err);
    return rc;
}

void runner_close_groups(struct runner *e)
{
    for (unsigned i = 0; e->groups != NULL && i < e->n_groups; i++)
        close_group(&e->groups[i]);
    close_group(&e->computed);
    close_group(&e->between);
    mem_free(e->entries);
    mem_free(e->groups);
}
