/* Splits the text into segments: a character at which NFC may start over, and the active characters
 * after it. A segment is decomposed, its marks are ordered, and it is composed again. Everything
 * else is copied. */
#include "text/nfc.h"

#include <string.h>

#include "base/mem.h"
#include "text/unicode.h"

struct nfc_mark {
    uint32_t code_point;
    uint32_t combining_class;
};

struct decomposition {
    uint32_t code_point;
    uint16_t at; /* index into decomposed[] */
    uint8_t n;
};

struct class_range {
    uint32_t first, last;
    uint8_t combining_class;
};

struct composition {
    uint32_t first, second, composite;
};

#include "text/nfc_tables.inc"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum {
    HANGUL_S = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7, /* one before the first: T index 0 means none */
    N_HANGUL_L = 19,
    N_HANGUL_V = 21,
    N_HANGUL_T = 28,
    N_HANGUL_S = N_HANGUL_L * N_HANGUL_V * N_HANGUL_T,
};

static uint32_t combining_class(uint32_t code_point)
{
    size_t low = 0, high = COUNT(class_ranges);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (class_ranges[middle].last < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(class_ranges) || class_ranges[low].first > code_point)
        return 0;
    return class_ranges[low].combining_class;
}

static const struct decomposition *find_decomposition(uint32_t code_point)
{
    size_t low = 0, high = COUNT(decompositions);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (decompositions[middle].code_point < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(decompositions) || decompositions[low].code_point != code_point)
        return NULL;
    return &decompositions[low];
}

/* Returns the composite of two characters, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    const uint32_t l = first - HANGUL_L, v = second - HANGUL_V, s = first - HANGUL_S;
    const uint32_t t = second - HANGUL_T;
    if (l < N_HANGUL_L && v < N_HANGUL_V)
        return HANGUL_S + (l * N_HANGUL_V + v) * N_HANGUL_T;
    if (s < N_HANGUL_S && s % N_HANGUL_T == 0 && t > 0 && t < N_HANGUL_T)
        return first + t;
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct composition *c = &compositions[middle];
        if (c->first < first || (c->first == first && c->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(compositions) || compositions[low].first != first ||
        compositions[low].second != second)
        return 0;
    return compositions[low].composite;
}

static int append_mark(struct nfc_buffer *buffer, uint32_t code_point, struct fm_error *err)
{
    void *array = buffer->segment;
    const int rc = mem_grow(&array, &buffer->segment_capacity, buffer->n_segment + 1,
                            sizeof *buffer->segment, "normalising text", err);
    buffer->segment = array;
    if (rc != 0)
        return rc;
    buffer->segment[buffer->n_segment++] =
        (struct nfc_mark){code_point, combining_class(code_point)};
    return 0;
}

static int append_decomposed(struct nfc_buffer *buffer, uint32_t code_point,
                             struct fm_error *err)
{
    const uint32_t s = code_point - HANGUL_S;
    if (s < N_HANGUL_S) {
        const uint32_t t = s % N_HANGUL_T;
        int rc = append_mark(buffer, HANGUL_L + s / (N_HANGUL_V * N_HANGUL_T), err);
        if (rc == 0)
            rc = append_mark(buffer, HANGUL_V + s / N_HANGUL_T % N_HANGUL_V, err);
        if (rc == 0 && t > 0)
            rc = append_mark(buffer, HANGUL_T + t, err);
        return rc;
    }
    const struct decomposition *d = find_decomposition(code_point);
    if (d == NULL)
        return append_mark(buffer, code_point, err);
    for (size_t i = 0; i < d->n; i++) {
        const int rc = append_mark(buffer, decomposed[d->at + i], err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Sorts stably by class: by insertion if short, otherwise by counting, so that a megabyte of marks
 * takes linear time. `sorted` has room for n. */
static void sort_marks(struct nfc_mark *marks, size_t n, struct nfc_mark *sorted)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const struct nfc_mark mark = marks[i];
            size_t j = i;
            for (; j > 0 && marks[j - 1].combining_class > mark.combining_class; j--)
                marks[j] = marks[j - 1];
            marks[j] = mark;
        }
        return;
    }
    size_t begin[257] = {0};
    for (size_t i = 0; i < n; i++)
        begin[marks[i].combining_class + 1]++;
    for (size_t i = 1; i < COUNT(begin); i++)
        begin[i] += begin[i - 1];
    for (size_t i = 0; i < n; i++)
        sorted[begin[marks[i].combining_class]++] = marks[i];
    memcpy(marks, sorted, n * sizeof *marks);
}

static int order_segment(struct nfc_buffer *buffer, struct fm_error *err)
{
    void *array = buffer->sorted;
    const int rc = mem_grow(&array, &buffer->sorted_capacity, buffer->n_segment,
                            sizeof *buffer->sorted, "normalising text", err);
    buffer->sorted = array;
    if (rc != 0)
        return rc;
    size_t begin = 0;
    for (size_t i = 0; i <= buffer->n_segment; i++) {
        if (i < buffer->n_segment && buffer->segment[i].combining_class != 0)
            continue;
        sort_marks(buffer->segment + begin, i - begin, buffer->sorted);
        begin = i + 1;
    }
    return 0;
}

static void compose_segment(struct nfc_buffer *buffer)
{
    struct nfc_mark *segment = buffer->segment;
    size_t n = 0;
    struct nfc_mark *starter = NULL;
    for (size_t i = 0; i < buffer->n_segment; i++) {
        const struct nfc_mark mark = segment[i];
        /* Blocked if a kept character of class 0 or of at least this class lies between. */
        const bool is_adjacent = starter != NULL && &segment[n - 1] == starter;
        const bool is_free =
            starter != NULL &&
            (is_adjacent || segment[n - 1].combining_class < mark.combining_class);
        const uint32_t composite = is_free ? compose(starter->code_point, mark.code_point) : 0;
        if (composite != 0) {
            starter->code_point = composite;
            continue;
        }
        segment[n] = mark;
        if (mark.combining_class == 0)
            starter = &segment[n];
        n++;
    }
    buffer->n_segment = n;
}

static int append_text(struct nfc_buffer *buffer, const uint8_t *text, size_t bytes,
                       struct fm_error *err)
{
    void *array = buffer->text;
    const int rc = mem_grow(&array, &buffer->text_capacity, buffer->bytes + bytes + 1, 1,
                            "normalised text", err);
    buffer->text = array;
    if (rc != 0)
        return rc;
    memcpy(buffer->text + buffer->bytes, text, bytes);
    buffer->bytes += bytes;
    return 0;
}

static int normalize_segment(struct nfc_buffer *buffer, const uint8_t *text, size_t bytes,
                             struct fm_error *err)
{
    buffer->n_segment = 0;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < bytes;) {
        uint32_t code_point;
        at += utf8_get(text + at, &code_point);
        rc = append_decomposed(buffer, code_point, err);
    }
    if (rc == 0)
        rc = order_segment(buffer, err);
    if (rc != 0)
        return rc;
    compose_segment(buffer);
    for (size_t i = 0; rc == 0 && i < buffer->n_segment; i++) {
        uint8_t out[4];
        const size_t n = utf8_put(buffer->segment[i].code_point, out);
        rc = append_text(buffer, out, n, err);
    }
    return rc;
}

/* Returns the first active character at or after `from`. *before is where the character before it
 * begins, or the same place if `from` is active. */
static size_t find_active_from(const uint8_t *text, size_t bytes, size_t from, size_t *before)
{
    uint32_t code_point;
    size_t step;
    *before = from;
    for (size_t at = from; at < bytes; at += step) {
        step = utf8_get(text + at, &code_point);
        if (code_point >= 0x80 && (unicode_bits(code_point) & UNICODE_NFC))
            return at;
        *before = at;
    }
    return bytes;
}

size_t nfc_find_active(const uint8_t *text, size_t bytes)
{
    size_t before;
    return find_active_from(text, bytes, 0, &before);
}

int nfc_normalize(struct nfc_buffer *buffer, const uint8_t *text, size_t bytes,
                  struct fm_error *err)
{
    buffer->bytes = 0;
    int rc = append_text(buffer, text, 0, err);
    size_t done = 0;
    while (rc == 0 && done < bytes) {
        size_t begin;
        size_t end = find_active_from(text, bytes, done, &begin);
        if (end == bytes)
            return append_text(buffer, text + done, bytes - done, err);
        rc = append_text(buffer, text + done, begin - done, err);
        while (end < bytes) {
            uint32_t code_point;
            const size_t step = utf8_get(text + end, &code_point);
            if (!(unicode_bits(code_point) & UNICODE_NFC))
                break;
            end += step;
        }
        if (rc == 0)
            rc = normalize_segment(buffer, text + begin, end - begin, err);
        done = end;
    }
    return rc;
}

void nfc_clear(struct nfc_buffer *buffer)
{
    mem_free(buffer->text);
    mem_free(buffer->segment);
    mem_free(buffer->sorted);
    *buffer = (struct nfc_buffer){0};
}
