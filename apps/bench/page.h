/* The frame of a report: one page with its own style, no script and nothing from elsewhere, light
 * and dark, for wide and narrow windows. The caller checks the stream for errors. */
#ifndef FLASHMOE_APPS_BENCH_PAGE_H
#define FLASHMOE_APPS_BENCH_PAGE_H

#include <stdio.h>

/* Begins a box that scrolls where its table is too wide; a keyboard can reach it. */
#define PAGE_WIDE "<div class=\"wide\" tabindex=\"0\">"

/* Writes everything up to the first heading. The title is the name, as it is, and `what`, which is
 * HTML. */
void page_begin(FILE *out, const char *name, const char *what);
void page_end(FILE *out);
/* Writes a row of a table with two columns. */
void page_row(FILE *out, const char *title, const char *text);

#endif
