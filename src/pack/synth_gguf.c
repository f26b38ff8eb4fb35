#include "pack/synth_internal.h"

int synth_plan_gguf(struct synth_plan *plan, const char *path, uint64_t split_bytes,
                    struct fm_error *err)
{
    (void)plan, (void)path, (void)split_bytes;
    return err_set(err, FM_ERR_UNSUPPORTED, "GGUF is not written yet");
}
