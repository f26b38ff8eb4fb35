/* The row store reads single rows of tables that stay on the disk (struct row_table), through the
 * page cache: rows are smaller than a page, and which ones come next is known, so they are asked
 * for before the layer that uses them begins.
 *
 * One thread asks and waits; a reader's threads read. The store owns the bytes of one batch: at
 * most max_slots tokens, n_per_token rows for each. Its lock is held only to count. */
#ifndef FLASHMOE_STORE_ROW_STORE_H
#define FLASHMOE_STORE_ROW_STORE_H

#include "model/model.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

struct row_store;

/* Returns the memory that a store takes; 0 if the model has no tables. */
uint64_t row_store_bytes(const struct model *model, uint32_t max_slots);

/* Sets *out to NULL if the model has no tables. The model must outlive the store. With `checks` a
 * wait fails if a file was modified since the model was opened. */
int row_store_open(const struct model *model, uint32_t max_slots, bool checks,
                   struct row_store **out, struct fm_error *err);
void row_store_close(struct row_store *store); /* accepts NULL; waits for all reads */

/* Forgets the batch before, whose reads it waits for. */
void row_store_begin(struct row_store *store);
/* Asks for the rows of a token: rows [n_per_token]. Does not wait for the disk. */
void row_store_ask(struct row_store *store, uint32_t table, uint32_t slot, const uint64_t *rows);
/* Waits for all rows of a table that were asked for. Those that a mirror's disk could not give are
 * read from another. Fails if a file of the tables has changed. */
int row_store_wait(struct row_store *store, uint32_t table, struct fm_error *err);
/* Fails if a row of this token could not be read, and names it. After row_store_wait. */
int row_store_check(const struct row_store *store, uint32_t table, uint32_t slot,
                    struct fm_error *err);
/* Decodes the rows of a token, one after the other: to [n_per_token * n_cols]. They are there. */
void row_store_decode(const struct row_store *store, uint32_t table, uint32_t slot, float *to);

#ifdef __cplusplus
}
#endif
#endif
