/* Hashes that say which model this is. The files of one run are compared with those of another by
 * them, and the ranks of a cluster with each other. Any thread; nothing is kept. They fail when
 * bytes cannot be read. */
#ifndef FLASHMOE_ENGINE_IDENTITY_H
#define FLASHMOE_ENGINE_IDENTITY_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Add to *hash: every field of the configuration; the dense weights, which are loaded; samples of
 * the experts and tables of the loaded layers, where they have no checksums. */
int identity_add_config(const struct model *model, uint64_t *hash, struct fm_error *err);
int identity_add_dense(const struct model *model, uint64_t *hash, struct fm_error *err);
int identity_add_samples(const struct model *model, uint64_t *hash, struct fm_error *err);

/* Of a model of which only the headers are read: configuration, sizes, and the checksums of a
 * packed model or samples of every tensor. */
int identity_of_model(const struct model *model, uint64_t *identity, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
