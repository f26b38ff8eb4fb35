#include "chat/message.h"

#include <assert.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "chat/dialect.h"
#include "chat/reasoning.h"
#include "text/text_buffer.h"
#include "text/unicode.h"

/* A longer run of newlines is text, whatever follows. */
#define NEWLINES_MAX 64
#define MARKERS_MAX 32
#define HEADER_BYTES 512 /* a longer header is content */

enum { IN_REASONING, IN_CONTENT, IN_CALL, IN_HEADER };

/* Kinds of markers. The end of reasoning number i is MARKER_END << i. */
enum {
    MARKER_CALL = 1,
    MARKER_STRAY = 2,
    MARKER_BEGIN = 4,
    MARKER_EARLY_CALL = 8,   /* also inside reasoning */
    MARKER_MESSAGE = 16,     /* ends a header (struct dialect_frames) */
    MARKER_FRAME_BEGIN = 32,
    MARKER_FRAME_END = 64,
    MARKER_END = 128,
};
#define MARKER_ANY_END (~0u & ~(MARKER_END - 1u))
#define MARKER_ANY_CALL (MARKER_CALL | MARKER_EARLY_CALL)

struct message {
    struct message_options options;
    message_fn *fn;
    void *ctx;

    struct text_buffer out; /* text of one kind that has not been delivered */
    enum message_kind out_kind;

    /* The markers for the options: begin and end of each reasoning, openers, strays. */
    struct marker markers[MARKERS_MAX + 1];
    size_t n_markers;
    struct marker plain[MARKERS_MAX + 1]; /* those that count in ordinary text */
    size_t n_plain;
    bool is_first[256]; /* bytes that a marker can begin with */
    bool is_marked;     /* the current text is that of special tokens */
    const struct dialect_frames *frames; /* NULL: the answer is one message */
    bool may_begin_closed; /* an end of reasoning at the very beginning is markup */

    uint8_t state;
    unsigned ends;     /* kinds of markers that end the reasoning */
    bool is_at_start;  /* only newlines so far: reasoning may begin */
    bool is_stripping; /* newlines are dropped here, after a reasoning marker */
    bool is_after_call; /* newlines at the end are dropped */
    bool is_after_bare; /* a stray tag may come */
    size_t n_newlines;  /* held back, before `pending` */
    char pending[MARKER_BYTES];
    size_t n_pending;

    struct toolcall call;
    struct text_buffer raw; /* the call as received, with the newlines before it; or a header */
    size_t raw_lead;
    size_t raw_header; /* bytes of the header before the call */
    size_t raw_marked; /* where text of the current kind (is_marked) begins */
    bool is_header_marked; /* the header began with the text of a special token */
    bool is_final;     /* the message is the answer itself */
    bool is_begun; /* MESSAGE_CALL_BEGIN was delivered */
    bool is_early; /* the call is inside reasoning, which goes on if the call breaks unseen */
    bool owes_end; /* a call has ended the reasoning: its end may come behind a call, as markup */
    unsigned n_calls;
    char id[MESSAGE_CALL_ID_BYTES];
    struct text_buffer ids; /* of all calls that the model has named, each with its NUL */
    bool is_out_of_memory;
};

/* ---- events ----------------------------------------------------------------------------- */

static void give(struct message *m, enum message_kind kind, const char *text, size_t bytes)
{
    if (m->is_out_of_memory)
        return; /* an earlier part could not be stored */
    struct message_event event = {.kind = kind, .text = text, .text_bytes = bytes};
    if (kind >= MESSAGE_CALL_BEGIN && kind <= MESSAGE_CALL_BROKEN) {
        event.call = m->n_calls - 1;
        event.id = m->id;
        event.name = m->call.name.data;
        event.lead_bytes = kind >= MESSAGE_CALL_END ? m->raw_lead : 0;
    }
    m->fn(m->ctx, &event);
}

/* Returns how many bytes at the end of the text belong to an incomplete character. */
static size_t cut_bytes(const char *text, size_t bytes)
{
    for (size_t n = 1; n <= 3 && n <= bytes; n++) {
        const uint8_t *at = (const uint8_t *)text + bytes - n;
        if ((*at & 0xc0) == 0x80)
            continue;
        uint32_t code_point;
        size_t used;
        return utf8_step(at, n, &code_point, &used) == UTF8_CUT ? n : 0;
    }
    return 0;
}

/* Delivers the text so far; includes an incomplete character only if `all`. */
static void flush(struct message *m, bool all)
{
    struct text_buffer *out = &m->out;
    const size_t n_kept = all ? 0 : cut_bytes(text_buffer_text(out), out->n);
    const size_t n = out->n - n_kept;
    if (n == 0)
        return;
    give(m, m->out_kind, text_buffer_text(out), n);
    memmove(out->data, (const char *)out->data + n, n_kept);
    out->n = n_kept;
}

static void add(struct message *m, struct text_buffer *buffer, const char *text, size_t bytes)
{
    if (!text_buffer_add(buffer, text, bytes))
        m->is_out_of_memory = true;
}

static void emit(struct message *m, enum message_kind kind, const char *text, size_t bytes)
{
    if (bytes == 0)
        return;
    if (m->out_kind != kind)
        flush(m, true);
    m->out_kind = kind;
    add(m, &m->out, text, bytes);
}

static void emit_newlines(struct message *m, enum message_kind kind)
{
    for (; m->n_newlines > 0; m->n_newlines--)
        emit(m, kind, "\n", 1);
}

/* ---- reasoning and content -------------------------------------------------------------- */

static enum message_kind content_kind(const struct message *m)
{
    return m->options.is_call ? MESSAGE_MARKUP : MESSAGE_CONTENT;
}

static enum message_kind text_kind(const struct message *m)
{
    return m->state == IN_REASONING ? MESSAGE_REASONING : content_kind(m);
}

static void take_header(struct message *m, char byte);

/* Adds text of the current state that is not part of a marker. Its newlines may still be
 * stripped. */
static void take_text(struct message *m, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const enum message_kind kind = text_kind(m);
        if (m->state == IN_HEADER) {
            take_header(m, text[i]);
            continue;
        }
        if (text[i] == '\n' && m->is_stripping) {
            emit(m, MESSAGE_MARKUP, "\n", 1);
            continue;
        }
        if (text[i] == '\n') {
            if (++m->n_newlines > NEWLINES_MAX) {
                emit_newlines(m, kind);
                m->is_at_start = m->is_after_call = m->is_after_bare = false;
            }
            continue;
        }
        emit_newlines(m, kind);
        emit(m, kind, text + i, 1);
        m->is_at_start = m->is_stripping = m->is_after_call = m->is_after_bare = false;
    }
}

static void take_pending(struct message *m)
{
    const size_t n = m->n_pending;
    m->n_pending = 0;
    take_text(m, m->pending, n);
}

static unsigned markers_here(const struct message *m)
{
    if (m->state == IN_HEADER)
        return MARKER_MESSAGE | MARKER_FRAME_END;
    if (m->frames != NULL)
        return MARKER_FRAME_BEGIN | MARKER_FRAME_END;
    if (m->state == IN_REASONING)
        return m->ends | MARKER_EARLY_CALL;
    return MARKER_ANY_CALL | (m->is_at_start ? MARKER_BEGIN : 0) |
           (m->is_after_bare ? MARKER_STRAY : 0) |
           (m->is_at_start && m->may_begin_closed ? MARKER_ANY_END : 0) |
           (m->is_after_call && m->owes_end ? MARKER_ANY_END : 0);
}

/* Returns true if the vocabulary has a special token with this text. */
static bool is_special(const struct message *m, const char *text)
{
    return m->options.is_special != NULL && m->options.is_special(m->options.special_ctx, text);
}

/* Returns the markers that count in the current text. */
static const struct marker *list_here(const struct message *m)
{
    return m->is_marked ? m->markers : m->plain;
}

/* Drops the newlines and the pending marker, which are neither text nor call. */
static void drop_marker(struct message *m)
{
    emit_newlines(m, MESSAGE_MARKUP);
    emit(m, MESSAGE_MARKUP, m->pending, m->n_pending);
    m->n_pending = 0;
}

static void begin_call(struct message *m, const char *opening)
{
    m->raw.n = m->raw_header = m->raw_marked = 0;
    m->raw_lead = m->n_newlines;
    for (; m->n_newlines > 0; m->n_newlines--)
        add(m, &m->raw, "\n", 1);
    add(m, &m->raw, m->pending, m->n_pending);
    m->n_pending = 0;
    m->is_begun = false;
    m->is_early = m->state == IN_REASONING;
    m->is_at_start = m->is_stripping = m->is_after_call = m->is_after_bare = false;
    toolcall_begin(&m->call, opening, m->is_early);
    m->state = IN_CALL;
}

/* ---- frames ----------------------------------------------------------------------------- */

static void emit_raw(struct message *m, enum message_kind kind)
{
    emit(m, kind, text_buffer_text(&m->raw), m->raw.n);
    m->raw.n = 0;
}

static void begin_header(struct message *m)
{
    m->raw.n = 0;
    m->state = IN_HEADER;
}

/* Returns true if a header may begin like this. Sets *is_sure if it can be nothing else. */
static bool may_be_header(const struct message *m, const char *text, size_t bytes, bool *is_sure)
{
    const char *to = m->frames->recipient;
    bool may_be = false;
    *is_sure = false;
    for (const char *const *b = m->frames->begins; *b != NULL; b++) {
        const size_t n = strlen(*b);
        if (!m->is_header_marked && is_special(m, *b))
            continue;
        may_be = may_be || memcmp(*b, text, bytes < n ? bytes : n) == 0;
        *is_sure = *is_sure || (bytes >= n && memcmp(*b, text, n) == 0);
    }
    const size_t blank = bytes > 0 && text[0] == ' ', n_to = strlen(to);
    const size_t n = bytes - blank;
    may_be = may_be || memcmp(to, text + blank, n < n_to ? n : n_to) == 0;
    *is_sure = *is_sure || (n >= n_to && memcmp(to, text + blank, n_to) == 0);
    return may_be;
}

static void take_header(struct message *m, char byte)
{
    bool is_sure;
    m->is_header_marked = m->raw.n == 0 ? m->is_marked : m->is_header_marked;
    add(m, &m->raw, &byte, 1);
    if (m->is_out_of_memory || (m->raw.n <= HEADER_BYTES &&
                                may_be_header(m, text_buffer_text(&m->raw), m->raw.n, &is_sure)))
        return;
    /* Text without a header. */
    m->state = IN_CONTENT;
    m->is_final = true;
    struct text_buffer raw = m->raw;
    m->raw = (struct text_buffer){0};
    take_text(m, text_buffer_text(&raw), raw.n);
    text_buffer_clear(&raw);
}

/* Ends a header with the pending marker: a body follows. */
static void end_header(struct message *m)
{
    struct frame_header header;
    m->frames->read(text_buffer_text(&m->raw), m->raw.n, &header);
    m->is_final = header.is_final && header.name == NULL;
    if (header.name == NULL || m->options.is_without_calls) {
        add(m, &m->raw, m->pending, m->n_pending);
        m->n_pending = 0;
        emit_raw(m, MESSAGE_MARKUP);
        m->state = header.is_reasoning && header.name == NULL ? IN_REASONING : IN_CONTENT;
        return;
    }
    toolcall_begin(&m->call, m->frames->message, false);
    const bool is_good = toolcall_set_name(&m->call, header.name, header.name_bytes);
    m->is_out_of_memory = m->is_out_of_memory || m->call.is_out_of_memory;
    add(m, &m->raw, m->pending, m->n_pending);
    m->n_pending = 0;
    m->raw_lead = m->raw_marked = 0;
    m->raw_header = m->raw.n;
    m->is_begun = m->is_early = false;
    m->state = IN_CALL;
    if (!is_good) {
        emit_raw(m, MESSAGE_MARKUP);
        m->state = IN_CONTENT;
    }
}

static void take_frame_marker(struct message *m, const struct marker *marker)
{
    if (marker->kind == MARKER_MESSAGE) {
        end_header(m);
        return;
    }
    if (m->state == IN_HEADER)
        emit_raw(m, MESSAGE_MARKUP);
    else
        emit_newlines(m, text_kind(m));
    begin_header(m);
    if (marker->kind == MARKER_FRAME_END)
        emit(m, MESSAGE_MARKUP, m->pending, m->n_pending);
    else
        add(m, &m->raw, m->pending, m->n_pending);
    m->is_header_marked = m->is_marked;
    m->n_pending = 0;
}

/* Delivers a header that the answer ends in. */
static void drop_header(struct message *m)
{
    bool is_sure = false;
    (void)may_be_header(m, text_buffer_text(&m->raw), m->raw.n, &is_sure);
    emit_raw(m, is_sure ? MESSAGE_MARKUP : content_kind(m));
}

/* Returns the kind of marker that ends the reasoning that `begin` begins. */
static unsigned end_of(const char *begin)
{
    unsigned end = MARKER_END;
    for (const struct reasoning *r = reasoning_list; strcmp(r->begin, begin) != 0; r++)
        end <<= 1;
    return end;
}

static void take_marker(struct message *m, const struct marker *marker)
{
    if ((marker->kind & MARKER_ANY_CALL) != 0) {
        begin_call(m, marker->text);
        return;
    }
    if (m->frames != NULL) {
        take_frame_marker(m, marker);
        return;
    }
    drop_marker(m);
    m->is_at_start = m->is_after_bare = false;
    if (marker->kind == MARKER_STRAY)
        return;
    m->owes_end = false;
    m->is_stripping = true;
    m->state = marker->kind == MARKER_BEGIN ? IN_REASONING : IN_CONTENT;
    if (m->state == IN_REASONING)
        m->ends = end_of(marker->text);
}

static void push_text(struct message *m, uint8_t byte)
{
    const char c = (char)byte;
    const struct marker *whole;
    if (m->n_pending > 0 || m->is_first[byte]) {
        m->pending[m->n_pending++] = c;
        if (marker_begins(list_here(m), markers_here(m), m->pending, m->n_pending, &whole)) {
            if (whole != NULL)
                take_marker(m, whole);
            return;
        }
        m->n_pending--;
        take_pending(m);
    }
    if (m->is_first[byte] && marker_begins(list_here(m), markers_here(m), &c, 1, &whole))
        m->pending[m->n_pending++] = c;
    else
        take_text(m, &c, 1);
}

/* ---- calls ------------------------------------------------------------------------------ */

void message_call_id(uint64_t seed, unsigned call, char id[MESSAGE_ID_BYTES])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    memcpy(id, "call_", 5);
    uint64_t state = seed + (uint64_t)call * 0xd1342543de82ef95ull;
    for (size_t i = 5; i < MESSAGE_ID_BYTES - 1;) {
        uint64_t z = splitmix_next(&state);
        for (int k = 0; k < 8; k++, z /= 62)
            id[i++] = letters[z % 62];
    }
    id[MESSAGE_ID_BYTES - 1] = '\0';
}

/* Returns true if the model has given an earlier call of the answer this id. */
static bool has_id(const struct message *m, const char *id)
{
    const char *ids = text_buffer_text(&m->ids), *end = ids + m->ids.n;
    for (; ids != end; ids += strlen(ids) + 1)
        if (strcmp(ids, id) == 0)
            return true;
    return false;
}

/* Takes the id that the model wrote, or makes one. */
static void choose_id(struct message *m)
{
    const struct text_buffer *own = &m->call.id;
    message_call_id(m->options.id_seed, m->n_calls++, m->id);
    if (own->n == 0 || own->n >= sizeof m->id || m->options.is_call)
        return;
    char id[MESSAGE_CALL_ID_BYTES] = {0};
    memcpy(id, own->data, own->n);
    if (has_id(m, id))
        return;
    memcpy(m->id, id, sizeof id);
    add(m, &m->ids, id, own->n + 1);
}

static void give_call_begin(struct message *m)
{
    flush(m, true);
    choose_id(m);
    m->is_begun = true;
    give(m, MESSAGE_CALL_BEGIN, "", 0);
}

static void take_arguments(struct message *m)
{
    if (!m->is_begun && m->call.is_ready && !m->options.hold_calls)
        give_call_begin(m);
    if (!m->is_begun)
        return;
    emit(m, MESSAGE_CALL_ARGUMENTS, text_buffer_text(&m->call.args), m->call.args.n);
    m->call.args.n = 0;
}

static void end_call(struct message *m)
{
    if (!m->is_begun)
        give_call_begin(m);
    take_arguments(m);
    flush(m, true);
    give(m, MESSAGE_CALL_END, text_buffer_text(&m->raw), m->raw.n);
    m->raw.n = 0;
    m->owes_end |= m->is_early;
    m->state = m->frames != NULL ? IN_HEADER : IN_CONTENT;
    m->is_after_call = m->frames == NULL;
    m->is_after_bare = m->call.opener->stray != NULL;
}

/* Breaks the call in `raw`. Its end may be the beginning of a marker, which then becomes
 * pending. */
static void break_call(struct message *m, bool is_end)
{
    const char *raw = text_buffer_text(&m->raw);
    size_t n = m->raw.n, n_marker = 0;
    m->state = m->is_early && !m->is_begun ? IN_REASONING : IN_CONTENT;
    const size_t begin = m->raw_marked > m->raw_header ? m->raw_marked : m->raw_header;
    const size_t n_max = begin > m->raw_lead ? n - begin + 1 : n - m->raw_lead;
    for (size_t k = 1; !is_end && k < MARKER_BYTES && k < n_max; k++) {
        const struct marker *whole;
        if (marker_begins(list_here(m), markers_here(m), raw + n - k, k, &whole) && whole == NULL)
            n_marker = k;
    }
    if (m->options.is_call && !m->is_begun && m->call.is_ready) {
        m->state = IN_CONTENT;
        give_call_begin(m);
    }
    if (m->is_begun) {
        /* A character that the break has cut is content, with its other bytes. */
        const size_t n_whole = n - n_marker - (is_end ? 0 : cut_bytes(raw, n - n_marker));
        take_arguments(m);
        flush(m, false);
        m->out.n = 0; /* of a cut character */
        give(m, MESSAGE_CALL_BROKEN, raw, n_whole);
        take_text(m, raw + n_whole, n - n_marker - n_whole);
    } else {
        emit(m, MESSAGE_MARKUP, raw, m->raw_header);
        take_text(m, raw + m->raw_header, n - n_marker - m->raw_header);
    }
    memcpy(m->pending, raw + n - n_marker, n_marker);
    m->n_pending = n_marker;
    m->raw.n = 0;
}

static void push_byte(struct message *m, uint8_t byte);

/* Ends a call before the opener of the next one. */
static void next_call(struct message *m)
{
    const char *opening = m->call.next;
    const size_t n = strlen(opening);
    m->raw.n -= n;
    end_call(m);
    memcpy(m->pending, opening, n);
    m->n_pending = n;
    begin_call(m, opening);
}

static void push_call(struct message *m, uint8_t byte)
{
    const bool has_room = m->raw.n < m->options.call_bytes;
    const enum toolcall_status status = has_room ? toolcall_push(&m->call, byte) : TOOLCALL_BROKEN;
    m->is_out_of_memory = m->is_out_of_memory || m->call.is_out_of_memory;
    if (status == TOOLCALL_BROKEN) {
        break_call(m, false);
        push_byte(m, byte);
        return;
    }
    add(m, &m->raw, (const char *)&byte, 1);
    take_arguments(m);
    if (status == TOOLCALL_WHOLE)
        end_call(m);
    else if (status == TOOLCALL_NEXT)
        next_call(m);
}

static void push_byte(struct message *m, uint8_t byte)
{
    if (m->state == IN_CALL)
        push_call(m, byte);
    else
        push_text(m, byte);
}

/* ---- the message ------------------------------------------------------------------------ */

/* Adds a marker unless it is in the list. */
static void add_marker(struct message *m, const char *text, unsigned kind)
{
    for (size_t i = 0; i < m->n_markers; i++)
        if (m->markers[i].kind == kind && strcmp(m->markers[i].text, text) == 0)
            return;
    assert(m->n_markers < MARKERS_MAX && strlen(text) < MARKER_BYTES);
    m->markers[m->n_markers++] = (struct marker){text, kind};
    if (!is_special(m, text))
        m->plain[m->n_plain++] = (struct marker){text, kind};
    m->is_first[(uint8_t)text[0]] = true;
}

static void add_frame_markers(struct message *m)
{
    add_marker(m, m->frames->message, MARKER_MESSAGE);
    for (const char *const *text = m->frames->begins; *text != NULL; text++)
        add_marker(m, *text, MARKER_FRAME_BEGIN);
    for (const char *const *text = m->frames->ends; *text != NULL; text++)
        add_marker(m, *text, MARKER_FRAME_END);
}

static void add_markers(struct message *m)
{
    unsigned end = MARKER_END;
    if (m->frames != NULL) {
        add_frame_markers(m);
        return;
    }
    for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++, end <<= 1) {
        add_marker(m, r->begin, MARKER_BEGIN);
        add_marker(m, r->end, end);
    }
    for (const struct dialect *const *d = m->options.dialects;
         *d != NULL && !m->options.is_without_calls; d++)
        for (const struct dialect_opener *o = (*d)->openers; o->text != NULL; o++) {
            if (!o->is_inner)
                add_marker(m, o->text, o->ends_reasoning ? MARKER_EARLY_CALL : MARKER_CALL);
            if (o->stray != NULL)
                add_marker(m, o->stray, MARKER_STRAY);
        }
}

int message_open(const struct message_options *options, message_fn *fn, void *ctx,
                 struct message **out, struct fm_error *err)
{
    *out = NULL;
    struct message *m = mem_new(1, sizeof *m, "an answer", err);
    if (m == NULL)
        return FM_ERR_NOMEM;
    static const struct dialect *const none[] = {NULL};
    m->options = *options;
    if (m->options.dialects == NULL)
        m->options.dialects = none;
    if (m->options.call_bytes == 0)
        m->options.call_bytes = MESSAGE_CALL_BYTES;
    m->fn = fn;
    m->ctx = ctx;
    m->frames = dialect_frames_of(m->options.dialects);
    for (const struct dialect *const *d = m->options.dialects; *d != NULL; d++)
        m->may_begin_closed = m->may_begin_closed || (*d)->may_begin_closed;
    const bool has_header = m->frames != NULL && !options->is_continued;
    m->state = has_header ? IN_HEADER : options->is_thinking ? IN_REASONING : IN_CONTENT;
    m->is_stripping = options->is_thinking && m->frames == NULL && !options->is_continued;
    m->is_at_start = !options->is_thinking && !options->is_continued;
    m->is_final = options->is_continued;
    m->ends = MARKER_ANY_END;
    add_markers(m);
    toolcall_init(&m->call, m->options.dialects, options->tools);
    *out = m;
    return 0;
}

void message_close(struct message *m)
{
    if (m == NULL)
        return;
    toolcall_clear(&m->call);
    text_buffer_clear(&m->out);
    text_buffer_clear(&m->raw);
    text_buffer_clear(&m->ids);
    mem_free(m);
}

static int check_memory(const struct message *m, struct fm_error *err)
{
    return m->is_out_of_memory ? err_set(err, FM_ERR_NOMEM, "out of memory: the answer is too long")
                               : 0;
}

/* Takes text of one kind. A marker lies in text of one kind. */
static int push(struct message *m, const char *text, size_t bytes, bool is_marked,
                struct fm_error *err)
{
    if (m->is_marked != is_marked && !m->is_out_of_memory) {
        take_pending(m);
        m->is_marked = is_marked;
        m->raw_marked = m->state == IN_CALL ? m->raw.n : 0;
    }
    for (size_t i = 0; i < bytes && !m->is_out_of_memory; i++)
        push_byte(m, (uint8_t)text[i]);
    if (!m->is_out_of_memory)
        flush(m, false);
    return check_memory(m, err);
}

int message_push(struct message *m, const char *text, size_t bytes, struct fm_error *err)
{
    return push(m, text, bytes, false, err);
}

int message_push_marked(struct message *m, const char *text, size_t bytes, struct fm_error *err)
{
    return push(m, text, bytes, true, err);
}

enum message_place message_place(const struct message *m)
{
    if (m->frames == NULL)
        return MESSAGE_ANYWHERE;
    return m->state == IN_REASONING                ? MESSAGE_IN_REASONING
           : m->state == IN_HEADER                 ? MESSAGE_IN_HEADER
           : m->state == IN_CONTENT && m->is_final ? MESSAGE_IN_ANSWER
                                                   : MESSAGE_BETWEEN;
}

static int finish(struct message *m, bool is_cut, struct fm_error *err)
{
    if (m->is_out_of_memory)
        return check_memory(m, err);
    if (m->state == IN_CALL && !m->is_begun && m->call.is_ready && is_cut)
        give_call_begin(m);
    if (m->state == IN_CALL && m->call.is_complete)
        end_call(m);
    else if (m->state == IN_CALL)
        break_call(m, true);
    take_pending(m);
    if (m->state == IN_HEADER)
        drop_header(m);
    const bool is_text = m->frames != NULL || (m->state == IN_CONTENT && !m->is_after_call);
    emit_newlines(m, is_text ? text_kind(m) : MESSAGE_MARKUP);
    if (m->is_out_of_memory)
        return check_memory(m, err);
    flush(m, true);
    give(m, MESSAGE_END, "", 0);
    return 0;
}

int message_finish(struct message *m, struct fm_error *err)
{
    return finish(m, false, err);
}

int message_cut(struct message *m, struct fm_error *err)
{
    return finish(m, true, err);
}

/* ---- names ------------------------------------------------------------------------------ */

struct name_check {
    const char *name;
    bool is_read;
};

static void check_name(void *ctx, const struct message_event *event)
{
    struct name_check *check = ctx;
    if (event->kind == MESSAGE_CALL_END)
        check->is_read = strcmp(event->name, check->name) == 0;
}

bool message_can_name(const struct dialect *const *dialects, const char *name)
{
    const struct grammar_call *call = dialect_forced_call(dialects);
    if (call == NULL || !call->is_bare)
        return true;
    const char *const parts[] = {call->open, call->open_end, call->before_name, name,
                                 call->middle != NULL ? call->middle : "", call->before_arguments,
                                 "{}", call->after_arguments, call->close_begin, call->close};
    struct name_check check = {.name = name};
    const struct message_options options = {.dialects = dialects, .is_call = true};
    struct message *m;
    int rc = message_open(&options, check_name, &check, &m, NULL);
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof parts[0]; i++)
        rc = message_push_marked(m, parts[i], strlen(parts[i]), NULL);
    if (rc == 0)
        rc = message_finish(m, NULL);
    message_close(m);
    return rc != 0 || check.is_read; /* without memory, a later step says so */
}
