/* The documents of an evaluation file, one after the other.
 *
 * NAME.jsonl holds one JSON object per line. {"text": ...} is that text; {"prompt": ...,
 * "response": ...} is rendered in the ChatML form, and a prompt that begins with "User: " holds
 * several turns, "User: ...\nAssistant: ...\nUser: ...". <|endoftext|> ends every record.
 * Empty lines are skipped. A last line without a newline that is no valid JSON was cut off and is
 * skipped; any other bad line is an error that names it. Every other file is one document.
 *
 * The corpus owns the file's text; a document belongs to the caller. One thread. */
#ifndef FLASHMOE_APPS_BENCH_CORPUS_H
#define FLASHMOE_APPS_BENCH_CORPUS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Which marks the model's tokenizer knows; the others are left out. */
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

/* 1 and the next document, 0 at the end, or an error. Free *text with mem_free. */
int corpus_next(struct corpus *corpus, char **text, size_t *text_bytes, struct fm_error *err);

#endif
