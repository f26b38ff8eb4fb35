/* Unicode normalisation form C, as the official `tokenizers` package computes it. Its tables are
 * older than the newest Unicode version, so a general library would reorder or compose some newer
 * characters that the package leaves alone.
 *
 * The caller owns a buffer and may reuse it; one thread at a time per buffer. The only failure is
 * FM_ERR_NOMEM. */
#ifndef FLASHMOE_TEXT_NFC_H
#define FLASHMOE_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nfc_mark;

struct nfc_buffer {
    uint8_t *text; /* the result, `bytes` long; never NULL after nfc_normalize */
    size_t bytes, text_capacity;
    struct nfc_mark *segment; /* the characters being ordered and composed */
    size_t n_segment, segment_capacity;
    struct nfc_mark *sorted;
    size_t sorted_capacity;
};

/* Returns the offset of the first character that NFC might change; `bytes` if text is already
 * NFC. */
size_t nfc_find_active(const uint8_t *text, size_t bytes);

/* Writes NFC(text) to buffer->text. `text` must be valid UTF-8 outside the buffer. Linear time. A
 * new buffer is zeroed; free it with nfc_clear. */
int nfc_normalize(struct nfc_buffer *buffer, const uint8_t *text, size_t bytes,
                  struct fm_error *err);
void nfc_clear(struct nfc_buffer *buffer);

#ifdef __cplusplus
}
#endif
#endif
