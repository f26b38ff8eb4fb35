/* Splits paths into folder and name. Any thread; no allocation. */
#ifndef FLASHMOE_BASE_PATH_H
#define FLASHMOE_BASE_PATH_H

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the part after the last slash, within `path`. */
const char *path_base(const char *path);
/* Writes the folder that contains `path` to `out` (LIMIT_PATH_BYTES). */
void path_folder(const char *path, char out[]);

#ifdef __cplusplus
}
#endif
#endif
