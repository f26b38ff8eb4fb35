#include "backend/backend.h"

#include <string.h>

#include "backend/cpu/backend_cpu.h"
#include "base/fmath.h"

typedef int backend_open_fn(const struct backend_options *options, struct backend **out,
                            struct fm_error *err);

static const struct {
    const char *name;
    backend_open_fn *open;
} all_backends[] = {
#define BACKEND(name, open_fn) {name, open_fn},
#include "backend/backend_list.h"
#undef BACKEND
};

int backend_open(const char *name, const struct backend_options *options, struct backend **out,
                 struct fm_error *err)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof all_backends / sizeof all_backends[0]; i++)
        if (name == NULL || strcmp(name, all_backends[i].name) == 0)
            return all_backends[i].open(options, out, err);
    return err_set(err, FM_ERR_ARG, "there is no backend '%s'", name);
}

void backend_close(struct backend *be)
{
    if (be != NULL)
        be->ops->close(be);
}

uint64_t backend_scratch_bytes(const struct backend_options *options)
{
    return backend_cpu_scratch_bytes(options);
}

void backend_rope_frequencies(double theta, unsigned rotary_dim, float *out)
{
    /* Rounded to float where the reference models round: the power, then its reciprocal. */
    for (unsigned i = 0; i < rotary_dim / 2; i++) {
        float power = (float)fmath_pow_of(theta, (double)(2 * i) / rotary_dim);
        out[i] = 1.0f / power;
    }
}
