#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "flashmoe_lab.h"
#include "lab/synth_internal.h"
#include "lab/synth_rng.h"

/* ---- the generator --------------------------------------------------------------------------- */

static void rng_is_splitmix64(void **state)
{
    (void)state;
    /* The published outputs of splitmix64 for seed 1234567. */
    static const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u,
                                        9817491932198370423u, 4593380528125082431u,
                                        16408922859458223821u};
    for (uint64_t i = 0; i < 5; i++)
        assert_true(splitmix_at(1234567, i) == expected[i]);
    /* Names and seeds must give the same keys forever, because files are compared by checksum. */
    assert_true(synth_rng_key(1, "model.norm.weight") == 0x376fab51997987adu);
    assert_true(synth_rng_key(2, "model.norm.weight") != synth_rng_key(1, "model.norm.weight"));
}

static void rng_fills_any_piece(void **state)
{
    (void)state;
    uint8_t whole[8 * 64 + 1], piece[8 * 16];
    synth_rng_fill(42, 100, 64, whole + 1);
    synth_rng_fill(42, 117, 16, piece);
    assert_memory_equal(whole + 1 + 8 * 17, piece, sizeof piece);
}

/* Each byte value occurs about equally often, and each bit about half the time. */
static void rng_is_uniform(void **state)
{
    (void)state;
    enum { WORDS = 1 << 16 };
    uint8_t *bytes = malloc(8 * WORDS);
    assert_non_null(bytes);
    for (uint64_t key = 0; key < 4; key++) {
        synth_rng_fill(key, 0, WORDS, bytes);
        unsigned counts[256] = {0}, bits[64] = {0};
        for (size_t i = 0; i < 8 * WORDS; i++) {
            counts[bytes[i]]++;
            for (unsigned b = 0; b < 8; b++)
                bits[8 * (i % 8) + b] += bytes[i] >> b & 1;
        }
        double chi2 = 0;
        for (unsigned v = 0; v < 256; v++) {
            const double expected = 8.0 * WORDS / 256, d = counts[v] - expected;
            chi2 += d * d / expected;
        }
        assert_true(chi2 > 160 && chi2 < 360); /* 255 degrees of freedom, 4.5 sigma */
        for (unsigned b = 0; b < 64; b++)
            assert_true(fabs(bits[b] - WORDS / 2.0) < 5 * sqrt(WORDS / 4.0));
    }
    free(bytes);
}

/* ---- weights --------------------------------------------------------------------------------- */

#define ROWS 128
#define COLS 1024

static struct synth_tensor tensor(const char *format, double std)
{
    struct synth_tensor t = {.stem = "model.layers.0.mlp.experts.", .matrix = "up_proj",
                             .std = (float)std, .n_experts = 4, .n_rows = ROWS, .n_cols = COLS,
                             .quant = quant_find(format)};
    assert_non_null(t.quant);
    return t;
}

static void check_spread(const struct quant *quant, double std)
{
    const struct source_conventions none = {.has_final_norms = false};
    struct synth_tensor t = tensor(quant->name, std);
    struct synth_matrix m;
    synth_matrix_init(&m, &t, 3, &none, 7);
    uint8_t *parts[QUANT_MAX_PARTS] = {NULL};
    for (unsigned p = 0; p < quant->n_parts; p++) {
        const uint64_t bytes = quant_part_bytes(quant, p, ROWS, COLS);
        parts[p] = malloc(bytes);
        assert_non_null(parts[p]);
        synth_fill(&m, p, 0, bytes, parts[p]);
    }
    double sum = 0, squares = 0;
    for (unsigned r = 0; r < ROWS; r++) {
        float row[COLS];
        const void *at[QUANT_MAX_PARTS];
        for (unsigned p = 0; p < quant->n_parts; p++)
            at[p] = parts[p] + r * quant_part_row_bytes(quant, p, COLS);
        quant->decode_row(quant, at, row, COLS);
        for (unsigned c = 0; c < COLS; c++) {
            assert_true(isfinite(row[c]));
            sum += row[c];
            squares += (double)row[c] * row[c];
        }
    }
    const double n = (double)ROWS * COLS, mean = sum / n, found = sqrt(squares / n - mean * mean);
    /* The scale of mxfp4 is a power of two; a float's exponent is every second one. */
    const double slack = quant->kind == QUANT_FLOAT || strncmp(quant->name, "mxfp4", 5) == 0 ? 1.45
                                                                                        : 1.05;
    if (found > std * slack || found < std / slack || fabs(mean) > 0.02 * std)
        fail_msg("%s: mean %g, deviation %g, expected 0 and %g", quant->name, mean, found, std);
    for (unsigned p = 0; p < quant->n_parts; p++)
        free(parts[p]);
}

static void every_format_has_the_spread(void **state)
{
    (void)state;
    unsigned n = 0;
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        if (!synth_can_fill(quant_at(i)))
            continue;
        check_spread(quant_at(i), 0.02);
        check_spread(quant_at(i), 1);
        n++;
    }
    assert_true(n >= 3 + 36 + 17); /* all but FP8 */
}

/* Any cut of a part gives the bytes of the whole. */
static void pieces_fit_together(void **state)
{
    (void)state;
    const struct source_conventions none = {.has_final_norms = false};
    static const char *const formats[] = {"bf16", "affine3-g64", "q4_0", "q6_k", "mxfp4",
                                          "mxfp4-g32", "int4-g32"};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct synth_tensor t = tensor(formats[f], 0.02);
        struct synth_matrix m;
        synth_matrix_init(&m, &t, 0, &none, 1);
        for (unsigned p = 0; p < t.quant->n_parts; p++) {
            uint8_t whole[5000], piece[5000];
            synth_fill(&m, p, 0, sizeof whole, whole);
            for (uint64_t at = 0, n = 1; at < sizeof whole; at += n, n = n * 3 % 1009) {
                n = n < sizeof whole - at ? n : sizeof whole - at;
                synth_fill(&m, p, at, n, piece);
                assert_memory_equal(whole + at, piece, n);
            }
        }
    }
}

static void vectors_follow_the_conventions(void **state)
{
    (void)state;
    for (int is_final = 0; is_final < 2; is_final++) {
        const struct source_conventions c = {.has_final_norms = is_final,
                                             .has_final_decay = is_final};
        struct synth_tensor t = {.stem = "model.norm.weight", .values = SYNTH_CENTRED_ONE,
                                 .n_rows = 1, .n_cols = 64, .quant = &quant_f32};
        struct synth_matrix m;
        float x[64];
        synth_matrix_init(&m, &t, 0, &c, 1);
        synth_fill(&m, 0, 0, sizeof x, x);
        assert_true(x[0] == (is_final ? 1.0f : 0.0f) && x[63] == x[0]);
        t.values = SYNTH_DECAY;
        synth_matrix_init(&m, &t, 0, &c, 1);
        synth_fill(&m, 0, 0, sizeof x, x);
        for (unsigned i = 0; i < 64; i++)
            assert_true(is_final ? x[i] < -0.04f && x[i] > -8 : x[i] >= -3 && x[i] <= 2);
    }
}

/* Every allocation that can fail while a plan is made returns an error, and nothing leaks. */
static void no_memory_is_an_error(void **state)
{
    (void)state;
    for (int form = FM_SYNTH_PACKED; form <= FM_SYNTH_GGUF; form++) {
        struct fm_synth_options options = {.size = sizeof options};
        options.form = form;
        options.plan_only = true;
        options.split_bytes = 1 << 20;
        int rc = FM_ERR_NOMEM;
        long n = 0;
        while (rc != 0) {
            struct fm_error err = {0};
            mem_fail_at(++n);
            rc = fm_synth("tiny-next", "nowhere", &options, NULL, &err);
            mem_fail_at(0);
            assert_true(rc == 0 || (rc == FM_ERR_NOMEM && err.text[0] != '\0'));
            assert_true(n < 5000);
        }
        assert_true(n > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rng_is_splitmix64),
        cmocka_unit_test(rng_fills_any_piece),
        cmocka_unit_test(rng_is_uniform),
        cmocka_unit_test(every_format_has_the_spread),
        cmocka_unit_test(pieces_fit_together),
        cmocka_unit_test(vectors_follow_the_conventions),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
