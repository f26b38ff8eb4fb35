/* The progress of a long command with several parts: a bar on a terminal, lines otherwise, with the
 * time that is left. Steps are tokens. One thread. */
#ifndef FLASHMOE_APPS_VALIDATE_STEPS_H
#define FLASHMOE_APPS_VALIDATE_STEPS_H

#include "apps/cli/term.h"

struct steps {
    struct progress bar;
    uint64_t done, total;
    uint64_t begin_ns, said_ns;
    bool is_quiet;
    char note[96];
};

void steps_begin(struct steps *steps, bool is_quiet);
/* Names the part that begins. */
void steps_part(struct steps *steps, const char *fmt, ...) ERR_PRINTF(2, 3);
void steps_add(struct steps *steps, uint64_t n);
/* Erases the bar while something else is drawn; the next step draws it again. */
void steps_pause(struct steps *steps);
void steps_end(struct steps *steps);

#endif
