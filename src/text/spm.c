#include "text/spm.h"

#include <string.h>

#include "base/mem.h"
#include "text/unicode.h"

#define SPACE 0x2581
#define SPACE_BYTES 3

int spm_init(struct spm *spm, uint32_t n, struct fm_error *err)
{
    const uint64_t n_slots = (uint64_t)n * 2 + 1;
    memset(spm->ascii, 0xff, sizeof spm->ascii);
    if (n_slots > UINT32_MAX)
        return err_set(err, FM_ERR_ARG, "%u characters are too many", n);
    spm->slots = mem_new(n_slots, sizeof *spm->slots, "characters", err);
    if (spm->slots == NULL)
        return FM_ERR_NOMEM;
    spm->n_slots = (uint32_t)n_slots;
    for (uint32_t i = 0; i < spm->n_slots; i++)
        spm->slots[i].id = SPM_NO_ID;
    return 0;
}

void spm_clear(struct spm *spm)
{
    mem_free(spm->slots);
    *spm = (struct spm){0};
}

/* Returns the slot of a character, or the free slot where it belongs. */
static struct spm_character *probe(const struct spm *spm, uint32_t code_point)
{
    uint32_t i = (uint32_t)((uint64_t)(code_point * 0x9e3779b1u) * spm->n_slots >> 32);
    for (;;) {
        struct spm_character *slot = &spm->slots[i];
        if (slot->id == SPM_NO_ID || slot->code_point == code_point)
            return slot;
        i = i + 1 < spm->n_slots ? i + 1 : 0;
    }
}

void spm_add(struct spm *spm, uint32_t code_point, uint32_t id)
{
    if (code_point < 0x80)
        spm->ascii[code_point] = id;
    *probe(spm, code_point) = (struct spm_character){code_point, id};
}

void spm_note_merge(struct spm *spm, const char *left, size_t left_bytes, const char *right)
{
    char copy[8] = {0};
    uint8_t byte;
    memcpy(copy, left, left_bytes < sizeof copy ? left_bytes : sizeof copy - 1);
    const uint8_t first = (uint8_t)right[0];
    /* The text of a byte token does not show the byte. */
    if (spm_is_byte(copy, &byte) || spm_is_byte(right, &byte))
        memset(spm->joins, 0xff, sizeof spm->joins);
    if (left_bytes > 0)
        spm->joins[(uint8_t)left[left_bytes - 1]][first / 32] |= 1u << first % 32;
}

static bool joins(const struct spm *spm, uint8_t last, uint8_t first)
{
    return spm->joins[last][first / 32] >> first % 32 & 1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool spm_is_byte(const char *text, uint8_t *byte)
{
    if (strlen(text) != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return false;
    const int high = hex_digit(text[3]), low = hex_digit(text[4]);
    if (high < 0 || low < 0)
        return false;
    *byte = (uint8_t)(high << 4 | low);
    return true;
}

/* Appends the symbols of a character to the piece. */
static int push_character(const struct spm *spm, const uint32_t byte_ids[256],
                          struct bpe_work *work, uint32_t c, struct fm_error *err)
{
    const uint32_t id = c < 0x80 ? spm->ascii[c] : probe(spm, c)->id;
    if (id != SPM_NO_ID)
        return bpe_push_symbol(work, id, err);
    uint8_t text[4];
    const size_t bytes = utf8_put(c, text);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < bytes; i++)
        rc = bpe_push_symbol(work, byte_ids[text[i]], err);
    return rc;
}

static bool has_prefix(const struct spm *spm, const uint8_t *text, size_t bytes, bool is_start)
{
    const bool is_spaced = text[0] == ' ' || (bytes >= SPACE_BYTES &&
                                              memcmp(text, SPM_SPACE, SPACE_BYTES) == 0);
    return spm->prefix == SPM_ALWAYS || (spm->prefix == SPM_UNLESS_SPACED && !is_spaced) ||
           (spm->prefix == SPM_AT_START && is_start && !is_spaced);
}

int spm_encode(const struct spm *spm, const struct bpe_table *table, const uint32_t byte_ids[256],
               struct bpe_work *work, const uint8_t *text, size_t bytes, bool is_start,
               struct fm_error *err)
{
    if (bytes == 0)
        return 0;
    const bool is_prefixed = has_prefix(spm, text, bytes, is_start);
    uint8_t last = (uint8_t)SPM_SPACE[SPACE_BYTES - 1]; /* byte of the character before */
    int rc = is_prefixed ? push_character(spm, byte_ids, work, SPACE, err) : 0;
    for (size_t at = 0; rc == 0 && at < bytes;) {
        uint32_t c;
        const size_t step = utf8_get(text + at, &c);
        const bool is_space = c == ' ' || c == SPACE;
        const uint8_t first = is_space ? (uint8_t)SPM_SPACE[0] : text[at];
        if (work->n_symbols > 0 && ((spm->splits && is_space) || !joins(spm, last, first)))
            rc = bpe_encode_symbols(table, work, err);
        if (rc == 0)
            rc = push_character(spm, byte_ids, work, is_space ? SPACE : c, err);
        at += step;
        last = is_space ? (uint8_t)SPM_SPACE[SPACE_BYTES - 1] : text[at - 1];
    }
    return rc != 0 ? rc : bpe_encode_symbols(table, work, err);
}
