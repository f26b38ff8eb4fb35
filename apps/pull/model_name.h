/* What a user writes to name a model of the hub or a file of the web:
 *   ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE, hf.co/ORG/NAME, the hub's pages of any of these,
 *   or the URL of one GGUF file elsewhere.
 *
 * Names become folders, so every part is checked here: nothing else may come from a command line or
 * a server into a path. Any thread; no allocation. */
#ifndef FLASHMOE_APPS_PULL_MODEL_NAME_H
#define FLASHMOE_APPS_PULL_MODEL_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define MODEL_WORD_BYTES 100 /* the hub allows 96 characters */
#define MODEL_FILE_BYTES 512
#define MODEL_URL_BYTES 4096
#define MODEL_REVISION_BYTES 200
#define MODEL_MAIN "main"

struct model_name {
    char org[MODEL_WORD_BYTES], name[MODEL_WORD_BYTES];
    char revision[MODEL_REVISION_BYTES]; /* "main" unless another one is given */
    char file[MODEL_FILE_BYTES];         /* a path in the repository, or a part of one; or "" */
    char url[MODEL_URL_BYTES];           /* of a file that is not the hub's; "" otherwise */
};

/* Parses `text`. `endpoint` is the hub's URL; its pages are recognised like huggingface.co's. Fails
 * with FM_ERR_ARG and what is expected. */
int model_name_parse(const char *text, const char *endpoint, struct model_name *out,
                     struct fm_error *err);
/* Returns whether the text has the form ORG/NAME, with @REVISION and :FILE or without. */
bool model_name_is_plain(const char *text);

/* Returns whether a word can be a folder: letters, digits, '.', '_', '-', not beginning with a dot
 * or a dash. */
bool model_word_is_good(const char *word);
/* Returns whether a path that a server lists can be used: no absolute path, no "..", no control
 * characters. The last part is what is stored. */
bool model_file_is_good(const char *path);

/* Writes the model's folder below the models folder: "ORG/NAME" or "ORG/NAME@REVISION". */
#define MODEL_FOLDER_BYTES (2 * MODEL_WORD_BYTES + MODEL_REVISION_BYTES + 2)
void model_name_folder(const struct model_name *name, char out[MODEL_FOLDER_BYTES]);
/* Writes it as the user can write it again, with the file: "ORG/NAME@REVISION:FILE". */
#define MODEL_TEXT_BYTES (MODEL_FOLDER_BYTES + MODEL_FILE_BYTES + 1)
void model_name_text(const struct model_name *name, char out[MODEL_TEXT_BYTES]);

#endif
