/* Packs a model while it is downloaded: a source file is fetched when the packer needs it, and
 * removed after that. The files lie in a hidden folder beside the pack. */
#ifndef FLASHMOE_APPS_PULL_PULL_PACK_H
#define FLASHMOE_APPS_PULL_PULL_PACK_H

#include "apps/pull/pull.h"

struct pull_pack_options {
    const struct pull_options *pull; /* its progress shows both: downloading and packing */
    const struct fm_pack_options *pack; /* formats and threads */
    const char *dst;
};

/* Packs the files of `list` to dst. `dir` is the open folder of store_pack_source, which was
 * compared with the list. */
int pull_pack(const struct pull_pack_options *options, const struct store_dir *dir,
              struct pull_list *list, struct fm_pack_result *result, struct fm_error *err);

#endif
