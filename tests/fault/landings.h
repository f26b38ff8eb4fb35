/* Checksums that come as late as they can, and a cache that can never go on.
 *
 * The thread that drives an expert cache waits in pthread_cond_wait for reads to land. Checksums
 * that landings_hold holds are computed when it waits and nothing else can end the wait, since all
 * reads under way are held. No test waits for a time to pass.
 *
 * A wait while no read is under way would never end. It is reported, and the program exits with
 * status 1.
 *
 * Link with --wrap of pthread_cond_wait, expert_store_submit and expert_cache_close. */
#ifndef FLASHMOE_TESTS_FAULT_LANDINGS_H
#define FLASHMOE_TESTS_FAULT_LANDINGS_H

#include <stdbool.h>

/* Holds checksums from now on, or lets all go. A reader thread that is held serves no other expert:
 * a plan must not have more missing experts than there are readers. */
void landings_hold(bool holds);
/* Waits, on a reader thread before it computes a checksum, until the checksum is due. */
void landings_wait(void);

#endif
