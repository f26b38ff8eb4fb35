/* For LD_PRELOAD: a rank that leaves MPI waits for ever, as it does when another rank hangs. It
 * creates the file FAULT_SEEN before that. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "preload.h"

int MPI_Finalize(void);

PRELOAD_EXPORTED int MPI_Finalize(void)
{
    (void)close(open(getenv("FAULT_SEEN"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (;;)
        (void)pause();
}
