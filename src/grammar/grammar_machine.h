/* A program of rules at work on an answer, byte by byte.
 *
 * The answer so far may fit the schema in several ways; each is a thread: what is being written
 * (its frame) and, below that, what it stands in. From every thread the answer can be finished, so
 * leaving one out, as happens past MACHINE_THREADS, takes choices away and no more.
 *
 * All threads have read the same bytes, so objects and arrays open and close in all of them
 * together. Frames that others stand on are nodes; a byte adds at most one for each thread.
 *
 * A machine belongs to one thread of the program and borrows everything. Nothing here fails but for
 * room: the caller provides MACHINE_THREADS free nodes for each byte. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_MACHINE_H
#define FLASHMOE_GRAMMAR_GRAMMAR_MACHINE_H

#include "grammar/grammar_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MACHINE_THREADS 32u
#define NODE_NONE UINT32_MAX
#define NODE_UNKNOWN 0u /* a node that is not known: what a mask is kept for (grammar_mask.c) */
#define AT_UNKNOWN UINT32_MAX
#define MACHINE_NAMES 128u

enum frame_kind { FRAME_ANSWER, FRAME_RAW, FRAME_STRING, FRAME_ARRAY, FRAME_OBJECT };

enum frame_phase {
    PHASE_FIRST, /* behind the opening bracket */
    PHASE_NEXT,  /* behind a comma */
    PHASE_KEY,
    PHASE_COLON,
    PHASE_VALUE,
    PHASE_AFTER, /* an item, a property or the answer */
    /* Of an answer that is a call: in the text before the name, in the name, between it and the
     * arguments, behind these, and behind a call that another one may follow. */
    PHASE_LEAD,
    PHASE_NAME,
    PHASE_ARGUMENTS,
    PHASE_TAIL,
    PHASE_CALLED
};

/* What the numbers of a frame mean. */
enum {
    RAW_STATE = 0,
    STRING_STATE = 0, STRING_LENGTH = 1, STRING_PART = 2,
    STRING_EXTRA = 3, /* of the key of an extra property: its number plus one */
    ARRAY_N = 0,
    OBJECT_NEXT = 0, OBJECT_RANGE = 1, OBJECT_VALUE = 1, OBJECT_AT = 2, OBJECT_N = 3,
    OBJECT_N_EXTRAS = 4,
    ANSWER_AT = 0, ANSWER_RANGE = 1, ANSWER_VALUE = 2,
    FRAME_NUMBERS = 5
};

/* No padding: frames are compared as bytes. */
struct frame {
    uint8_t kind, phase;
    uint16_t blanks; /* 0: none, 1: a blank, 2 and more: a newline and blanks */
    uint32_t rule;   /* RULE_NONE: any string */
    uint32_t v[FRAME_NUMBERS];
    uint32_t at; /* where an object or a key begins in the text */
};

struct node {
    struct frame frame;
    uint32_t parent, depth;
};

struct thread {
    struct frame top;
    uint32_t parent;
};

struct threads {
    struct thread at[MACHINE_THREADS];
    uint32_t n;
};

struct machine {
    const struct grammar_program *program;
    struct node *nodes; /* the first is NODE_UNKNOWN */
    size_t n_nodes, first_new;
    const uint8_t *text; /* the answer, with the byte that is being taken */
    size_t n_text;
    size_t n_fixed; /* bytes of it that stay */
    bool has_left;  /* set where a thread went on to NODE_UNKNOWN */
    bool is_unsure; /* set where a thread was left out for want of knowing the object it is in */
    /* The names that an object has before a key, kept for the next question. */
    uint32_t names_object, names_key, n_names;
    uint32_t names[MACHINE_NAMES]; /* where they begin */
};

/* The beginning of an answer. */
void machine_start(struct machine *m, struct threads *out);
/* What becomes of them with text[n_text - 1]. */
void machine_step(struct machine *m, const struct threads *in, struct threads *out);
/* The answer is whole. */
bool machine_may_end(const struct machine *m, const struct threads *threads);
/* Nothing may follow. */
bool machine_must_end(const struct threads *threads);
/* Returns the tag of a call that may come now; NULL: none. Many vocabularies have a token for it
 * that stands for no other text. */
const char *machine_tag(const struct machine *m, const struct threads *threads);
/* Objects and arrays that the top is in. */
uint32_t machine_depth(const struct machine *m, const struct thread *thread);
/* A number that may end where it is. */
bool machine_is_whole_raw(const struct machine *m, const struct thread *thread);
/* The key that was just closed differs from the others of its object. */
bool machine_name_is_new(struct machine *m, uint32_t object_at, uint32_t key_at);

#ifdef __cplusplus
}
#endif
#endif
