/* Writes standard input as an answer appears on a terminal of COLUMNS columns when it arrives in
 * pieces of PIECE bytes.
 *
 * Usage: wrap_lines COLUMNS PIECE */
#include <stdio.h>
#include <stdlib.h>

#include "apps/cli/foreign_text.h"
#include "apps/cli/wrap.h"

#define PIECE_MAX 4096

int main(int argc, char **argv)
{
    static char text[PIECE_MAX], clean[FOREIGN_BYTES(PIECE_MAX)], out[WRAP_BYTES(sizeof clean)];
    struct foreign_text foreign = {0};
    struct wrap wrap = {0};
    const size_t piece = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    if (piece == 0 || piece > PIECE_MAX)
        return 2;
    for (size_t n; (n = fread(text, 1, piece, stdin)) > 0;) {
        wrap_set_columns(&wrap, (unsigned)strtoul(argv[1], NULL, 10));
        n = foreign_clean(&foreign, text, n, clean);
        (void)fwrite(out, 1, wrap_text(&wrap, clean, n, out), stdout);
    }
    (void)fwrite(out, 1, wrap_flush(&wrap, out), stdout);
    return 0;
}
