/* Experts in the host's memory beside a device (forward_far.c, far_split.c). Part of the forward
 * pass, and used by it alone. */
#ifndef FLASHMOE_ENGINE_FORWARD_FAR_H
#define FLASHMOE_ENGINE_FORWARD_FAR_H

#include "engine/forward.h"

#ifdef __cplusplus
extern "C" {
#endif

struct forward;
struct pool;

/* Places for experts that are sent, and how many are sent together, at most: some are computed
 * while the next ones travel. And how many the processor computes together. */
#define FAR_MAX_PLACES 64
#define FAR_TOGETHER 8
#define FAR_JOB 16
/* Rows of a batch that the processor may compute beside a device. With more of them an expert is
 * worth sending. */
#define FAR_ROWS 8

/* Experts that the processor computes while the device and the thread that drives both go on. */
struct far_job {
    uint32_t number;   /* counted round */
    bool is_running;   /* or done, and nobody has looked */
    bool has_rows;     /* of the layer at hand: host_be has taken them in */
    uint32_t layer, n_rows;
    struct step_expert experts[FAR_JOB];
    uint32_t n;
    uint64_t n_expert_rows, ns; /* what was computed, and how long it took */
};

/* Experts of a layer that were sent before its rows are known, ascending. */
struct far_ahead {
    uint32_t layer; /* of those with experts */
    uint64_t place; /* of the first one */
    uint32_t experts[FAR_MAX_PLACES];
    uint32_t first, n; /* those that nobody has asked for yet: [first, n) */
    bool is_joined;    /* operations that are queued now wait for them */
};

/* Experts in the host's memory beside a device: sent to the device for one use, or computed where
 * they are, whichever is over earlier. */
struct far {
    struct step step;  /* of host_be: rows and results lie in the host's memory */
    void *host_block;  /* both of them, and the gate */
    bool is_pinned;
    struct pool *beside; /* a thread that drives host_be */
    struct far_job job;
    /* The number of the last job whose results are there; the device watches it. */
    uint32_t *gate;
    bool has_gate;
    bool holds_slots; /* of the last plan: the cache gets them back when the job is done */
    /* Places for experts that are sent, in the device's memory. They are counted on and on: place p
     * is number p % n_places of the ring. */
    char *ring;
    uint32_t n_places, n_together; /* so many are sent at a time */
    uint64_t marks[FAR_MAX_PLACES]; /* behind the operations that use each; 0: nobody knows */
    uint64_t next;  /* place */
    uint64_t first; /* place that was used since the device was last waited for */
    struct far_ahead ahead;
    double send_ns, compute_ns; /* of an expert, and of an expert with one row; as measured */
    uint64_t n_looks, n_computed;
};

/* ---- forward_far.c ---- */

uint64_t far_row_bytes(const struct model *model);
uint64_t far_host_bytes(const struct model *model);
int far_open(struct forward *f, struct fm_error *err);
void far_close(struct forward *f); /* accepts one that was not opened */

/* Experts that are in the host's memory, on their way through the two functions that follow. */
struct far_work {
    const struct expert_item *items;
    uint32_t n, n_left;    /* those at hand, and all that are left */
    uint32_t n_sent;       /* of those at hand: the first ones are sent, the others computed */
    uint64_t places[FAR_TOGETHER]; /* where they are sent to */
};

/* Queues that the host gets the rows of a layer. It has them when it has waited for the router's
 * choice. */
void far_ask_for_rows(struct forward *f);
/* Has the processor start to compute some of the experts, and starts to send the others. */
void far_begin(struct forward *f, uint32_t layer, struct far_work *work,
               const struct expert_item *items, uint32_t n);
/* Queues the device's part: what was sent, and the results of the processor, which may still
 * compute. */
void far_end(struct forward *f, uint32_t layer, struct far_work *work);
/* Waits for the processor. */
void far_wait(struct forward *f);
/* Ends the plan of a layer, which may leave slots to the processor. */
void far_end_plan(struct forward *f);
/* Waits for the processor, and gives the cache its slots back: before the host waits for the
 * device, at the end of a pass. */
void far_settle(struct forward *f);
/* The device has done all that was queued. */
void far_note_waited(struct forward *f);
/* Starts to send experts of the layer that comes next, as many as there are places. Many rows use
 * nearly all of them, and nothing else travels while the rows are mixed. */
void far_send_ahead(struct forward *f, uint32_t expert_layer);

/* ---- far_split.c ---- */

/* Returns how many of the items are sent, the first ones; the processor computes the rest. All are
 * sent if there are more than FAR_ROWS rows. */
uint32_t far_choose_split(struct forward *f, const struct expert_item *items, uint32_t n);
/* Begins with times for experts of so many bytes, before any is measured. */
void far_split_init(struct far *far, uint64_t expert_bytes);
/* Learn what took so long: sending n experts, and computing them on n rows in all. */
void far_note_sending(struct far *far, uint32_t n, uint64_t ns);
void far_note_computing(struct far *far, uint64_t n_rows, uint64_t ns);
/* Returns whether to measure the next sending, which waits for it. */
bool far_wants_sending(const struct far *far);

#ifdef __cplusplus
}
#endif
#endif
