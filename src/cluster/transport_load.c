#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/plat_module.h"
#include "cluster/transport.h"

#define MODULE_NAME "libflashmoe_mpi.so"

int transport_open_mpi(struct transport **out, struct fm_error *err)
{
    char why[PLAT_MODULE_WHY_BYTES];
    transport_open_fn *open;
    transport_version_fn *version;
    *out = NULL;
    /* Components of MPI look for the library's symbols in the whole process. */
    void *module = plat_load_module(MODULE_NAME, true, "it is built where Open MPI is found; "
                                    "Debian: libopenmpi-dev", why);
    if (module == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "several ranks need Open MPI: %s", why);
    void *found[] = {dlsym(module, "transport_mpi_open"), dlsym(module, "transport_mpi_version")};
    memcpy(&open, &found[0], sizeof open);
    memcpy(&version, &found[1], sizeof version);
    if (found[0] == NULL || found[1] == NULL || strcmp(version(), FLASHMOE_VERSION) != 0)
        return err_set(err, FM_ERR_UNSUPPORTED, MODULE_NAME " is of version %s, and this is %s",
                       found[1] != NULL ? version() : "unknown", FLASHMOE_VERSION);
    return open(out, err);
}
