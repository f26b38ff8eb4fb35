#include "format/gguf.h"

int gguf_open(struct source *source, const char *path, const char *spare_dir,
              struct fm_error *err)
{
    (void)source, (void)spare_dir;
    return err_set(err, FM_ERR_UNSUPPORTED, "'%s' is a GGUF file", path);
}
