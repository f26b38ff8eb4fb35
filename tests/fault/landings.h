/* Checksums that complete as late as possible, and detection of a cache that waits forever.
 *
 * The thread that drives an expert cache waits in pthread_cond_wait for reads to land. Checksums
 * held by landings_hold are computed when that thread waits and nothing else can end the wait,
 * because all pending reads are held. No test waits for time to pass.
 *
 * A wait without a pending read would never end. It is reported, and the program exits with status
 * 1.
 *
 * Link with --wrap of pthread_cond_wait, expert_store_submit and expert_cache_close. */
#ifndef FLASHMOE_TESTS_FAULT_LANDINGS_H
#define FLASHMOE_TESTS_FAULT_LANDINGS_H

#include <stdbool.h>

/* Holds checksums from now on, or releases all. A held reader thread serves no other expert, so a
 * plan must not have more missing experts than there are readers. */
void landings_hold(bool holds);
/* Waits, on a reader thread before it computes a checksum, until the checksum is due. */
void landings_wait(void);

#endif
