/* Reads the documents of an evaluation file one by one.
 *
 * NAME.jsonl has one JSON object per line. {"text": ...} is a plain text. {"prompt": ...,
 * "response": ...} is rendered as ChatML; a prompt that begins with "User: " has several turns:
 * "User: ...\nAssistant: ...\nUser: ...". <|endoftext|> ends every record. Empty lines are skipped.
 * A last line without a newline that is not valid JSON was cut off and is skipped; any other
 * invalid line is an error that names it. Any other file is one document.
 *
 * The corpus owns the file's text; the caller owns the documents. One thread. */
#ifndef FLASHMOE_APPS_BENCH_CORPUS_H
#define FLASHMOE_APPS_BENCH_CORPUS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* The special tokens that the model's tokenizer knows; others are left out. */
struct corpus_marks {
    bool has_chat; /* <|im_start|>, <|im_end|> */
    bool has_end;  /* <|endoftext|> */
};

struct corpus {
    const char *path; /* borrowed */
    struct corpus_marks marks;
    bool is_jsonl;
    bool has_cut_line; /* the last line was cut off and skipped */
    char *text;
    size_t text_bytes, at;
    unsigned line;
};

int corpus_open(struct corpus *corpus, const char *path, struct corpus_marks marks,
                struct fm_error *err);
void corpus_close(struct corpus *corpus); /* accepts a zeroed one */

/* Returns 1 and the next document, 0 at the end, or an error. Free *text with mem_free. */
int corpus_next(struct corpus *corpus, char **text, size_t *text_bytes, struct fm_error *err);

#endif
