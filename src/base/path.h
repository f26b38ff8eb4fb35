/* The halves of a path. */
#ifndef FLASHMOE_BASE_PATH_H
#define FLASHMOE_BASE_PATH_H

#ifdef __cplusplus
extern "C" {
#endif

/* What is behind the last slash. */
const char *path_base(const char *path);
/* The directory it lies in, into `out` (LIMIT_PATH_BYTES). */
void path_folder(const char *path, char out[]);

#ifdef __cplusplus
}
#endif
#endif
