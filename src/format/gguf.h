/* GGUF, one file or a split set, as a source. */
#ifndef FLASHMOE_FORMAT_GGUF_H
#define FLASHMOE_FORMAT_GGUF_H

#include "format/source.h"

int gguf_open(struct source *source, const char *path, const char *spare_dir,
              struct fm_error *err);
#endif
