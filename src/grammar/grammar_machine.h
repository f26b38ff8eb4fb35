/* Runs the rules of a program over an answer, byte by byte.
 *
 * The answer so far may match the schema in several ways. Each way is a thread: a frame for the
 * value being written, and below it the frames that contain it. The answer can be completed from
 * every thread, so dropping threads beyond MACHINE_THREADS only removes choices.
 *
 * All threads have read the same bytes, so objects and arrays open and close in all of them at the
 * same time. Frames that contain others are nodes; a byte adds at most one node per thread.
 *
 * A machine belongs to one thread of the program and borrows everything. Nothing fails, but the
 * caller must provide MACHINE_THREADS free nodes per byte. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_MACHINE_H
#define FLASHMOE_GRAMMAR_GRAMMAR_MACHINE_H

#include "grammar/grammar_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MACHINE_THREADS 32u
#define NODE_NONE UINT32_MAX
#define NODE_UNKNOWN 0u /* stands for any node in a mask that is kept (grammar_mask.c) */
#define AT_UNKNOWN UINT32_MAX
#define MACHINE_NAMES 128u

enum frame_kind { FRAME_ANSWER, FRAME_RAW, FRAME_STRING, FRAME_ARRAY, FRAME_OBJECT };

enum frame_phase {
    PHASE_FIRST, /* after the opening bracket */
    PHASE_NEXT,  /* after a comma */
    PHASE_KEY,
    PHASE_COLON,
    PHASE_VALUE,
    PHASE_AFTER, /* after an item, a property or the whole answer */
    /* In an answer that is a call: in the text before the name, in the name, between name and
     * arguments, after the arguments, and after a call that another call may follow. */
    PHASE_LEAD,
    PHASE_NAME,
    PHASE_ARGUMENTS,
    PHASE_TAIL,
    PHASE_CALLED
};

/* Meaning of the numbers in a frame. */
enum {
    RAW_STATE = 0,
    STRING_STATE = 0, STRING_LENGTH = 1, STRING_PART = 2,
    STRING_EXTRA = 3, /* in the key of an extra property: its number plus one */
    ARRAY_N = 0,
    OBJECT_NEXT = 0, OBJECT_RANGE = 1, OBJECT_VALUE = 1, OBJECT_AT = 2, OBJECT_N = 3,
    OBJECT_N_EXTRAS = 4,
    ANSWER_AT = 0, ANSWER_RANGE = 1, ANSWER_VALUE = 2,
    FRAME_NUMBERS = 5
};

/* Without padding, because frames are compared as bytes. */
struct frame {
    uint8_t kind, phase;
    uint16_t blanks; /* 0: none; 1: a blank; 2 and more: a newline and blanks */
    uint32_t rule;   /* RULE_NONE for any string */
    uint32_t v[FRAME_NUMBERS];
    uint32_t at; /* offset in the text where an object or a key begins */
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
    struct node *nodes; /* the first one is NODE_UNKNOWN */
    size_t n_nodes, first_new;
    const uint8_t *text; /* the answer, including the byte that is being read */
    size_t n_text;
    size_t n_fixed; /* number of its bytes that will not be undone */
    bool has_left;  /* set when a thread continued to NODE_UNKNOWN */
    bool is_unsure; /* set when a thread was dropped because the object that contains it is
                     * unknown */
    bool is_tag;    /* the bytes are those of a tag's token */
    /* The names that an object has before a key, cached for the next call. */
    uint32_t names_object, names_key, n_names;
    uint32_t names[MACHINE_NAMES]; /* offsets in the text */
};

/* Sets the threads for the start of an answer. */
void machine_start(struct machine *m, struct threads *out);
/* Advances the threads by text[n_text - 1]. */
void machine_step(struct machine *m, const struct threads *in, struct threads *out);
/* Returns true if the answer is complete. */
bool machine_may_end(const struct machine *m, const struct threads *threads);
/* Returns true if nothing may follow. */
bool machine_must_end(const struct threads *threads);
/* Returns the tag of a call that may come next, or NULL. Many vocabularies have a token that stands
 * only for this tag. */
const char *machine_tag(const struct machine *m, const struct threads *threads);
/* Returns how many objects and arrays contain the top frame. */
uint32_t machine_depth(const struct machine *m, const struct thread *thread);
/* Returns true for a number that may end here. */
bool machine_is_whole_raw(const struct machine *m, const struct thread *thread);
/* Returns true if the key that was just closed differs from all others of its object. */
bool machine_name_is_new(struct machine *m, uint32_t object_at, uint32_t key_at);

#ifdef __cplusplus
}
#endif
#endif
