/* Fuzzes disks.json, which lies in a folder that anybody may have made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/disks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "broken: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct disks disks, again;
    struct fm_error err = {0};
    char *text;
    size_t bytes;
    int rc = disks_parse("disks.json", (const char *)data, size, &disks, &err);
    if (rc != 0) {
        require(rc < 0 && err.code == rc && err.text[0] != '\0', "an error has code and text");
        require(disks.n == 0 && disks.folders[0] == NULL, "nothing is left after an error");
        return 0;
    }
    require(disks.n >= 2 && disks.n <= SOURCE_MAX_DISKS && disks.here < disks.n, "counts");
    for (unsigned i = 0; i < disks.n; i++)
        require(disks.folders[i][0] != '\0' && strlen(disks.folders[i]) < LIMIT_PATH_BYTES,
                "a folder has a path");
    require(disks_text(&disks, &text, &bytes, &err) == 0, "what is read can be written");
    require(disks_parse("again", text, bytes, &again, &err) == 0, "and read again");
    require(again.n == disks.n && again.here == disks.here &&
                again.is_mirrored == disks.is_mirrored, "nothing changes");
    mem_free(text);
    disks_clear(&again);
    disks_clear(&disks);
    return 0;
}
