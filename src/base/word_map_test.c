#include "base/word_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

enum { N_WORDS = 2000, WORD_BYTES = 8 };

/* Fills the map with words whose hash without a seed lies in the first 64th of the slots. */
static void add_colliding(struct word_map *map, char *texts, uint32_t *begin)
{
    uint32_t n = 0;
    for (unsigned i = 0; n < N_WORDS; i++) {
        char word[WORD_BYTES + 1];
        (void)snprintf(word, sizeof word, "%08x", i);
        if (XXH3_64bits(word, WORD_BYTES) >> 58 == 0)
            memcpy(texts + n++ * WORD_BYTES, word, WORD_BYTES);
    }
    for (uint32_t i = 0; i <= N_WORDS; i++)
        begin[i] = i * WORD_BYTES;
    assert_int_equal(word_map_init(map, N_WORDS, (const uint8_t *)texts, begin, NULL), 0);
    for (uint32_t i = 0; i < N_WORDS; i++)
        assert_true(word_map_add(map, i));
}

static void test_hostile_words(void **state)
{
    (void)state;
    struct word_map map;
    char *texts = malloc(N_WORDS * WORD_BYTES);
    uint32_t *begin = malloc((N_WORDS + 1) * sizeof *begin);
    assert_true(texts != NULL && begin != NULL);
    add_colliding(&map, texts, begin);
    assert_in_range(word_map_max_probes(&map), 1, 100);
    for (uint32_t i = 0; i < N_WORDS; i++)
        assert_int_equal(word_map_find(&map, (uint8_t *)texts + i * WORD_BYTES, WORD_BYTES), i);
    assert_false(word_map_add(&map, 7));
    assert_int_equal(word_map_find(&map, (const uint8_t *)"no", 2), WORD_MAP_NONE);
    word_map_clear(&map);
    free(begin);
    free(texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
