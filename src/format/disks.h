/* disks.json: the folders that the files of one packed model lie in, each on a disk of its own.
 * docs/PACKED.md describes it. The file has no checksum, because a disk may be mounted elsewhere
 * tomorrow: it says only where to look. What is found there must have the same model.json.
 *
 * The caller owns struct disks and clears it. Any thread. Errors name the file and the field. */
#ifndef FLASHMOE_FORMAT_DISKS_H
#define FLASHMOE_FORMAT_DISKS_H

#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DISKS_NAME "disks.json"
#define DISKS_FORMAT "flashmoe-disks"
#define DISKS_SPLIT "split"
#define DISKS_MIRROR "mirror"

struct disks {
    unsigned n;
    unsigned here; /* the folder that has the file */
    bool is_mirrored;
    char *folders[SOURCE_MAX_DISKS]; /* absolute, or relative to the folder that has the file */
};

/* Reads DIR/disks.json. *disks has n = 0 when there is none. */
int disks_load(const char *dir, struct disks *disks, struct fm_error *err);
int disks_parse(const char *label, const char *text, size_t bytes, struct disks *disks,
                struct fm_error *err);
void disks_clear(struct disks *disks); /* accepts a zeroed one */
/* Returns the path of a folder, seen from DIR. Free with mem_free. */
char *disks_folder(const struct disks *disks, const char *dir, unsigned i, struct fm_error *err);
/* Returns the text of the file. Free with mem_free. */
int disks_text(const struct disks *disks, char **text, size_t *bytes, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
