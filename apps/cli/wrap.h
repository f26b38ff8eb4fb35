/* Breaks text between words at the edge of a terminal while it arrives piece by piece.
 *
 * The cursor never moves back: a word that begins near the edge is held until it ends or cannot
 * fit any more, and the blanks before it become a newline if it does not fit. Everything else is
 * written at once. A word that begins further from the edge than WRAP_HOLD columns, or that is
 * longer than a line, is broken by the terminal, so that copying it gives it back whole. So are
 * lines of code between two ``` or ~~~. Chinese and Japanese text breaks between characters, but
 * not before closing punctuation and not after opening punctuation.
 *
 * Where terminals disagree about the width of a character, this assumes the larger one: a line then
 * breaks a little early. The text must be free of control characters except newline and tab
 * (foreign_text.h). The caller owns the struct. One thread per struct. Cannot fail. */
#ifndef FLASHMOE_APPS_CLI_WRAP_H
#define FLASHMOE_APPS_CLI_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WRAP_HOLD 32 /* columns before the edge in which a word is held */
#define WRAP_MIN_COLUMNS 10 /* a narrower terminal breaks its lines itself */
#define WRAP_WORD_BYTES 512
#define WRAP_BLANK_BYTES 64

struct wrap { /* initialize to zeros */
    unsigned columns; /* of the terminal; 0: unknown, nothing is wrapped */
    unsigned column;  /* of the cursor; equal to `columns` after the last character that fits */
    char word[WRAP_WORD_BYTES]; /* held */
    size_t n_word;
    unsigned word_columns;
    bool is_in_word, is_shown; /* the word's beginning is written already */
    char blanks[WRAP_BLANK_BYTES]; /* held before the word */
    size_t n_blanks;
    unsigned blank_columns;
    bool has_text;    /* the line has something besides indentation */
    uint32_t last;    /* the last character of the word */
    bool is_code;     /* between two fences */
    uint32_t fence;   /* the character of the fence that opened the code */
    uint32_t marker;  /* the character that the line began with */
    unsigned n_marks; /* how often in a row */
    bool is_marked;   /* the line may be a fence */
};

/* Sets the terminal's width, which may change at any time. */
void wrap_set_columns(struct wrap *w, unsigned columns);

/* Maximum output size for n bytes of input. */
#define WRAP_BYTES(n) (2 * (n) + WRAP_WORD_BYTES + WRAP_BLANK_BYTES + 8)

/* Writes what can be written of the text to `out`, which has room for WRAP_BYTES(bytes). Returns
 * the number of bytes written. */
size_t wrap_text(struct wrap *w, const char *text, size_t bytes, char *out);
/* Writes what is held. `out` has room for WRAP_BYTES(0). */
size_t wrap_flush(struct wrap *w, char *out);

#endif
