/* Another process that takes memory, to see what a model does under pressure.
 *
 * It takes a little at a time and never lets the free memory fall below a floor. If others take
 * more, it gives back. The system kills it first when memory runs out, and it ends with its parent.
 * Start it while no other thread runs. One thread. */
#ifndef FLASHMOE_APPS_VALIDATE_HOLDER_H
#define FLASHMOE_APPS_VALIDATE_HOLDER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define HOLDER_PIECE_BYTES ((uint64_t)16 << 20) /* taken at a time */

struct holder {
    pid_t pid; /* 0: not running */
    int to, from;
};

struct holder_report {
    uint64_t held_bytes, max_held_bytes, min_free_bytes;
    bool gave_back; /* it had to release memory */
};

int holder_start(struct holder *holder, uint64_t floor_bytes, struct fm_error *err);
/* Asks it to hold so many bytes in the end, and gives what it holds now. False: it is gone. */
bool holder_ask(struct holder *holder, uint64_t bytes, struct holder_report *report);
void holder_stop(struct holder *holder); /* accepts one that is not running */

#endif
