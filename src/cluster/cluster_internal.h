/* What the files of the cluster share. */
#ifndef FLASHMOE_CLUSTER_CLUSTER_INTERNAL_H
#define FLASHMOE_CLUSTER_CLUSTER_INTERNAL_H

#include <signal.h>

#include "cluster/cluster.h"
#include "cluster/wire.h"
#include "engine/identity.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HOST_BYTES 64
#define TEXT_BYTES FM_ERROR_BYTES

/* ---- control: beside the ring (link.c) */

enum control_kind { CONTROL_PING = 1, CONTROL_PONG, CONTROL_CANCEL, CONTROL_FAIL, CONTROL_BEAT };

struct control {
    uint32_t kind, segment;
    uint64_t number; /* of a pass; of a ping */
    char text[TEXT_BYTES];
};

/* A message of a few bytes that is sent when the one before has left. */
struct control_slot {
    struct control message;
    struct transport_send send;
};

/* What the first rank knows of another one. */
struct peer {
    char host[HOST_BYTES];
    struct control in;
    struct control_slot ping, cancel;
    bool is_here;        /* it has said so after it was told to end */
    bool is_asked;       /* a ping has no answer yet, for silent_ns */
    uint64_t n_pings, silent_ns;
    uint64_t heard_ns;   /* when it last answered */
    struct cluster_rank_stats stats;
};

/* Waits a little longer each time. */
struct pause {
    uint64_t begin_ns;
};

/* ---- questions to all ranks */

enum question_kind {
    ASK_NOTHING = 1, /* takes operations along */
    ASK_NEW,         /* sequence */
    ASK_REACH,       /* sequence, positions */
    ASK_STATS,
    ASK_EXPERTS, /* expert layer */
    ASK_MEMORY,  /* rank; bytes */
    ASK_IDENTITY,
    ASK_SAVE, /* sequence, positions; struct part_request and a path */
    ASK_LOAD,
    ASK_DROP, /* a path */
    ASK_TIDY, /* a folder */
};

struct question {
    uint32_t kind, a, b, bytes; /* bytes behind it */
    uint64_t c;
};

/* Of ASK_SAVE and ASK_LOAD; tokens and the path follow. */
struct part_request {
    uint64_t identity, stamp;
    uint32_t n_marks, slot;
    uint32_t marks[SEQUENCE_MARKS]; /* which of the sequence's marks, in the file's order */
};

/* ---- a note: what an observer of the first rank sees of another one's layers */

enum note_kind { NOTE_HIDDEN = 1, NOTE_ROUTE, NOTE_TIMES };

struct note {
    uint32_t kind, segment, row, layer;
    uint64_t number;
    struct batch_times times;
};
#define NOTES_AHEAD 4

/* ---- the other ranks' part of a sequence */

struct member_sequence {
    struct sequence *sequence; /* NULL: the first rank has none of this number */
    int32_t *ids;              /* [n_context] */
    uint32_t *drafts;          /* [n_drafts, own expert layers, k]: experts of the last drafts */
    bool is_broken; /* a pass left it: later passes do too, until an evaluation begins */
};

#define RECENT_CANCELS 32
/* Passes under way, at most: two for each rank. Every other rank computes one and has two to send,
 * and the first one has two to send: 3 (n - 1) + 2, which is no less. So the ring cannot come to a
 * stop with all of them full. */
#define CLUSTER_PASSES (2 * CLUSTER_RANKS)

struct member {
    struct member_sequence *sequences; /* [max_segments] */
    struct batch_segment *segments;    /* [max_segments], of the pass at hand */
    bool *is_left;                     /* [max_segments], likewise */
    struct wire out;                   /* likewise: faults are added to it */
    uint64_t number;                   /* likewise */
    uint64_t n_notes;
    struct {
        uint64_t number;
        uint32_t segment;
    } cancels[RECENT_CANCELS];
    uint32_t n_cancels;
    uint64_t looked_ns; /* at the control channel */
    char *notes;        /* [NOTES_AHEAD, note_bytes] */
    uint64_t note_bytes;
    struct transport_send note_sends[NOTES_AHEAD];
    uint32_t next_note;
    uint64_t told_ns; /* when it last told its numbers */
};

/* A pass whose rows other ranks have. */
struct away {
    const struct pass *pass;
    uint64_t number, sent_ns;
    bool is_alone;  /* no other was away meanwhile */
    bool *was_told; /* [max_segments]: the others know that a segment is cancelled */
};

enum join_step { STEP_NONE, STEP_MODEL, STEP_LIMITS, STEP_READY, STEP_OPEN };

struct cluster {
    struct transport *t;
    uint32_t rank, n_ranks;
    uint64_t timeout_ns;
    bool is_process;
    bool is_lost;
    struct fm_error lost;
    struct peer peers[CLUSTER_RANKS]; /* of the first rank */
    uint64_t heard_ns;  /* when the rank last looked for control messages */
    uint64_t silent_ns; /* for so long another rank has heard nothing of the first one */
    struct beat *beat;  /* of a process */
    volatile sig_atomic_t alarm; /* CLUSTER_LOOKS or CLUSTER_ENDS; set by signal handlers */
    uint64_t roll_ns;            /* when the first rank saw it; 0: it has not */
    struct join_slot *join_slots; /* [n_ranks], of join.c */
    /* A model that is open, or is being opened. */
    enum join_step step;
    struct engine *engine;
    struct engine_remote remote;
    struct sequence_far far;
    struct wire_limits limits;
    uint64_t max_bytes;
    char *in, *out[2]; /* messages of the ring */
    struct transport_send out_sends[2];
    unsigned next_out;
    uint64_t number;
    uint64_t busy_ns, bytes_sent, n_messages;
    uint64_t away_ns, refreshed_ns;
    uint64_t landed_ns; /* when a pass last came back */
    uint64_t network_ns, n_lone; /* of passes that were away alone */
    uint64_t looked_ns; /* while this rank computed */
    /* The first rank's. */
    struct wire_op ops[WIRE_OPS];
    uint32_t n_ops;
    bool *has_sequence; /* [max_segments] */
    struct away away[CLUSTER_PASSES]; /* in the order in which they were sent */
    uint32_t n_away;
    bool *told; /* [CLUSTER_PASSES, max_segments], of these */
    char *note;         /* one that arrives */
    uint64_t note_bytes;
    struct member member;
    /* Another rank's messages to the first one. They may be on their way while models change. */
    struct control_slot pong, fail;
    struct control control_in;
};

/* Time in which a rank did not look counts little: an answer may have been there. */
#define MAX_STEP_NS 100000000ull

/* ---- beat.c */

/* A process gives signs of life until beat_end, which accepts that it does not. */
int beat_begin(struct cluster *c, struct fm_error *err);
void beat_end(struct cluster *c);
/* What the rank does. A rank that opens a model, or measures its machine, and stops working says
 * that it hangs. The functions accept a rank that gives no signs of life. */
enum beat_phase { BEAT_IDLE, BEAT_OPENING, BEAT_OPEN };
void beat_set_phase(struct cluster *c, enum beat_phase phase);
/* The first rank finds out who is there; a rank is lost. */
void beat_set_roll(struct cluster *c, bool is_called);
void beat_set_lost(struct cluster *c);
/* The rank looks for messages: it does not hang. */
void beat_looked(struct cluster *c);
/* Another rank: whether it has heard the first one. After too long a silence that one is lost. */
void beat_watch(struct cluster *c, bool was_heard);

/* ---- link.c */

void pause_a_little(struct pause *pause);
/* Nothing can be computed any more. The first reason counts. */
void cluster_lose(struct cluster *c, uint32_t rank, const char *why);
int cluster_explain(const struct cluster *c, struct fm_error *err);
/* The first rank: hears the others and asks those that are silent. Returns false if one is lost. */
bool link_hear(struct cluster *c);
/* Another rank: answers the first one. */
void link_answer(struct cluster *c);
/* Does one of the two. */
bool link_tend(struct cluster *c);
/* Returns a buffer for a message of the ring; waits until the one before has left. NULL: lost. */
char *link_buffer(struct cluster *c);
/* Sends it to the next rank. */
int link_send(struct cluster *c, char *bytes, uint64_t n, struct fm_error *err);
/* Looks for a message of the rank before in c->in. *n is 0: there is none. */
int link_receive(struct cluster *c, uint64_t *n, struct fm_error *err);
/* Has the other ranks give up a segment of a pass. Returns false if that has to be tried again. */
bool link_cancel(struct cluster *c, uint64_t number, uint32_t segment);

/* ---- buffers of an open model (link.c) */
int link_open(struct cluster *c, struct fm_error *err);
void link_close(struct cluster *c);

/* ---- first.c, member.c */
void first_init(struct cluster *c);
int member_open(struct cluster *c, struct fm_error *err);
void member_close(struct cluster *c);
void member_stats(const struct cluster *c, struct cluster_rank_stats *stats);

/* ---- part_file.c */

int part_save(struct cluster *c, const struct sequence *s, const struct part_request *request,
              uint32_t n_positions, const char *path, struct fm_error *err);
int part_load(struct cluster *c, struct sequence *s, const struct part_request *request,
              uint32_t n_positions, const char *path, struct fm_error *err);
void part_drop(struct cluster *c, const char *path);
void part_tidy(struct cluster *c, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
