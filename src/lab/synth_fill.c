/* Generates the bytes of synthetic weights. Codes are random words; only scales, minimums and the
 * like are patched. So nothing is quantised, and generation is as fast as the random generator.
 *
 * A part is made in units: the smallest number of whole blocks that is a whole number of words.
 * Unit u begins with word u * unit_bytes / 8 of the part's random sequence. */
#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "lab/synth_internal.h"
#include "lab/synth_rng.h"

#define UNIT_MAX_BYTES 2048
#define SLICE_BYTES 16384 /* generated and patched while in the first-level cache */
#define PAIRS 16          /* scales that an affine tensor chooses from; half of them are negative */

/* Where a block format stores fields that must not be random. */
struct synth_block {
    const char *name;
    float unit_std;   /* standard deviation of a weight when d is 1 */
    uint8_t d_at;     /* offset of the f16 scale; its sign stays random if has_sign */
    bool has_sign;    /* the codes' mean is not exactly 0; a random sign compensates */
    bool is_exponent; /* one byte, a power of two */
    uint8_t min_at;   /* offset of the f16 minimum; 0: none */
    float min_of_d;   /* the minimum in units of d */
    uint8_t fixed_at, n_fixed;
    uint8_t fixed[16];
};

/* Scales and minimums of eight groups, all 32, packed as in q4_k and q5_k. */
#define K_SCALES {0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0, 0, 0, 0}
#define SIXTEEN(x) {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}

static const struct synth_block blocks[] = {
    {.name = "q4_0", .unit_std = 4.637f, .has_sign = true},
    {.name = "q4_1", .unit_std = 4.610f, .min_at = 2, .min_of_d = -7.5f},
    {.name = "q5_0", .unit_std = 9.247f, .has_sign = true},
    {.name = "q5_1", .unit_std = 9.233f, .min_at = 2, .min_of_d = -15.5f},
    {.name = "q8_0", .unit_std = 73.90f, .has_sign = true},
    {.name = "iq4_nl", .unit_std = 67.44f, .has_sign = true},
    {.name = "mxfp4", .unit_std = 5.852f, .is_exponent = true},
    {.name = "mxfp4-g32", .unit_std = 5.852f, .is_exponent = true},
    {.name = "int4-g32", .unit_std = 4.637f, .has_sign = true},
    {.name = "int4-g32-f16", .unit_std = 4.637f, .has_sign = true},
    {.name = "q2_k", .unit_std = 8 * 1.118f, .d_at = 80, .min_at = 82, .min_of_d = 1.5f,
     .n_fixed = 16, .fixed = SIXTEEN(0x88)},
    {.name = "q3_k", .unit_std = 43.35f, .d_at = 108, .has_sign = true},
    {.name = "q4_k", .unit_std = 32 * 4.610f, .min_at = 2, .min_of_d = 7.5f, .fixed_at = 4,
     .n_fixed = 12, .fixed = K_SCALES},
    {.name = "q5_k", .unit_std = 32 * 9.233f, .min_at = 2, .min_of_d = 15.5f, .fixed_at = 4,
     .n_fixed = 12, .fixed = K_SCALES},
    {.name = "q6_k", .unit_std = 64 * 18.48f, .d_at = 208, .has_sign = true, .fixed_at = 192,
     .n_fixed = 16, .fixed = SIXTEEN(64)},
    {.name = "iq4_xs", .unit_std = 18.48f * 67.44f, .has_sign = true},
    {.name = "iq2_xxs", .unit_std = 54.00f},
    {.name = "iq3_xxs", .unit_std = 144.0f},
};

static const struct synth_block *block_find(const char *name)
{
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (strcmp(blocks[i].name, name) == 0)
            return &blocks[i];
    return NULL;
}

bool synth_can_fill(const struct quant *quant)
{
    return quant->kind == QUANT_FLOAT || quant->kind == QUANT_AFFINE ||
           block_find(quant->name) != NULL;
}

/* ---- constants of a matrix ------------------------------------------------------------------- */

/* A float has a random sign, a random mantissa and one of two neighbouring exponents, the upper one
 * odd: magnitudes from 2^e to 2^(e+2), standard deviation 2.416 * 2^e. */
static void init_floats(struct synth_matrix *m, double std)
{
    int e = -1;
    while (2.416 * ldexp(1, e) / 2 > std && e > -13)
        e -= 2;
    if (m->quant == &quant_f32) {
        m->keep = 0x80ffffff80ffffffu;
        m->put = (uint64_t)(127 + e) << 23 | (uint64_t)(127 + e) << 55;
        return;
    }
    const bool is_half = m->quant == &quant_f16;
    const uint64_t four = 0x0001000100010001u;
    m->keep = four * (is_half ? 0x87ffu : 0x80ffu);
    m->put = four * (is_half ? (unsigned)(15 + e) << 10 : (unsigned)(127 + e) << 7);
}

static uint16_t to_half(const struct quant *format, double x)
{
    return format == &quant_f16 ? quant_f32_to_f16((float)x) : quant_f32_to_bf16((float)x);
}

static double of_half(const struct quant *format, uint16_t bits)
{
    return format == &quant_f16 ? quant_f16_to_f32(bits) : quant_bf16_to_f32(bits);
}

/* Scales are 0.65 to 1.35 times the mean, so that groups differ. Every bias centres its group. */
static void init_affine(struct synth_matrix *m, double std)
{
    const struct quant *scale = m->quant->scale;
    const double max = (double)((1u << m->quant->bits) - 1);
    const double mean = std / (sqrt((max + 1) * (max + 1) - 1) / sqrt(12)) / 1.026;
    for (unsigned i = 0; i < PAIRS; i++) {
        const double factor = 0.65 + 0.1 * (i % (PAIRS / 2));
        m->pairs[0][i] = to_half(scale, (i < PAIRS / 2 ? mean : -mean) * factor);
        m->pairs[1][i] = to_half(scale, -of_half(scale, m->pairs[0][i]) * max / 2);
    }
}

static void init_block(struct synth_matrix *m, double std)
{
    m->block = block_find(m->quant->name);
    const double d = std / m->block->unit_std;
    m->d = to_half(m->quant->scale != NULL ? m->quant->scale : &quant_f16, d);
    m->min = quant_f32_to_f16((float)(d * m->block->min_of_d));
    if (!m->block->is_exponent)
        return;
    int e = 128; /* 2^(e - 128) is the scale */
    while (e > 1 && ldexp(1.4142135623730951, e - 129) > d)
        e--;
    m->d = (uint16_t)e;
}

void synth_matrix_init(struct synth_matrix *m, const struct synth_tensor *t, uint32_t expert,
                       const struct source_conventions *conventions, uint64_t seed)
{
    char name[SYNTH_NAME_BYTES];
    synth_tensor_name(t, expert, name);
    *m = (struct synth_matrix){.quant = t->quant, .values = t->values,
                                .conventions = *conventions};
    const uint64_t key = synth_rng_key(seed, name);
    m->keys[0] = key;
    /* A bias belongs to its scale: both use the same words. */
    m->keys[1] = m->keys[2] = splitmix_at(key, UINT64_MAX);
    if (t->quant->kind == QUANT_FLOAT)
        init_floats(m, t->std);
    else if (t->quant->kind == QUANT_AFFINE)
        init_affine(m, t->std);
    else
        init_block(m, t->std);
}

/* ---- units ----------------------------------------------------------------------------------- */

static uint64_t unit_bytes(const struct synth_matrix *m, unsigned part)
{
    if (m->block == NULL)
        return part == 0 ? 8 : PAIRS * 2; /* one word chooses sixteen scales */
    uint64_t bytes = m->quant->part_block_bytes[part];
    while (bytes % 8 != 0)
        bytes *= 2;
    return bytes;
}

/* Returns a value of a small vector. */
static float vector_value(const struct synth_matrix *m, uint64_t i)
{
    const float u = (float)(splitmix_at(m->keys[0], i) >> 40) * 0x1p-24f;
    switch (m->values) {
    case SYNTH_ONE:
        return 1;
    case SYNTH_CENTRED_ONE:
        return m->conventions.has_final_norms ? 1 : 0;
    case SYNTH_DECAY: { /* a state that decays within one to about fifty tokens */
        const float a_log = 5 * u - 3;
        return m->conventions.has_final_decay ? -fmath_exp_of(a_log) : a_log;
    }
    case SYNTH_STEP:
        return 3 * u - 1.5f;
    case SYNTH_SMALL:
        return 0.1f * u - 0.05f;
    default:
        return 0;
    }
}

static void make_vector(const struct synth_matrix *m, uint64_t first, size_t n, uint8_t *dst)
{
    const unsigned per_unit = 8 / m->quant->part_block_bytes[0];
    for (size_t i = 0; i < n * per_unit; i++) {
        const float x = vector_value(m, first * per_unit + i);
        void *const at = dst + i * m->quant->part_block_bytes[0];
        m->quant->encode_row(m->quant, &x, &at, 1);
    }
}

static void make_floats(const struct synth_matrix *m, uint64_t first, size_t n, uint8_t *dst)
{
    const uint64_t key = m->keys[0], keep = m->keep, put = m->put;
    for (size_t i = 0; i < n; i++) {
        const uint64_t word = (splitmix_at(key, first + i) & keep) | put;
        memcpy(dst + 8 * i, &word, sizeof word);
    }
}

static void make_scales(const struct synth_matrix *m, unsigned part, uint64_t first, size_t n,
                        uint8_t *dst)
{
    const uint16_t *table = m->pairs[part - 1];
    for (size_t i = 0; i < n; i++) {
        const uint64_t word = splitmix_at(m->keys[part], first + i);
        uint16_t sixteen[PAIRS];
        for (unsigned k = 0; k < PAIRS; k++)
            sixteen[k] = table[word >> 4 * k & 15];
        memcpy(dst + sizeof sixteen * i, sixteen, sizeof sixteen);
    }
}

static void patch_blocks(const struct synth_matrix *m, size_t n, uint8_t *block)
{
    const struct synth_block rule = *m->block;
    const unsigned bytes = m->quant->part_block_bytes[0];
    const uint8_t low = (uint8_t)m->d, high = (uint8_t)(m->d >> 8);
    const uint8_t sign = rule.has_sign ? 0x80 : 0;
    for (size_t i = 0; i < n; i++, block += bytes) {
        block[rule.d_at] = low;
        if (rule.is_exponent)
            continue;
        block[rule.d_at + 1] = (uint8_t)(high | (block[rule.d_at + 1] & sign));
        if (rule.min_at > 0)
            memcpy(block + rule.min_at, &m->min, sizeof m->min);
        if (rule.n_fixed > 0) { /* 12 or 16 bytes, as two overlapping words */
            memcpy(block + rule.fixed_at, rule.fixed, 8);
            memcpy(block + rule.fixed_at + rule.n_fixed - 8, rule.fixed + rule.n_fixed - 8, 8);
        }
    }
}

static void make_blocks(const struct synth_matrix *m, uint64_t first, size_t n, uint8_t *dst)
{
    const uint64_t unit = unit_bytes(m, 0);
    const uint64_t per_unit = unit / m->quant->part_block_bytes[0];
    const size_t slice = SLICE_BYTES / unit;
    for (size_t done = 0; done < n;) {
        const size_t now = n - done < slice ? n - done : slice;
        synth_rng_fill(m->keys[0], (first + done) * (unit / 8), now * (unit / 8), dst);
        patch_blocks(m, now * per_unit, dst);
        dst += now * unit;
        done += now;
    }
}

/* Scales of any sign, because the mean of the codes is not 0. */
static void make_signs(const struct synth_matrix *m, uint64_t first, size_t n, uint8_t *dst)
{
    for (uint64_t i = first; i < first + n; i++, dst += 2) {
        const uint64_t sign = splitmix_at(m->keys[1], i / 64) >> i % 64 & 1;
        dst[0] = (uint8_t)m->d;
        dst[1] = (uint8_t)(m->d >> 8 | sign << 7);
    }
}

/* A format with its codes in one part, and scales or powers of two in the other. */
static void make_split(const struct synth_matrix *m, unsigned part, uint64_t first, size_t n,
                       uint8_t *dst)
{
    const uint64_t unit = unit_bytes(m, part);
    if (part == 0)
        synth_rng_fill(m->keys[0], first * (unit / 8), n * (unit / 8), dst);
    else if (m->block->is_exponent)
        memset(dst, m->d, n * unit);
    else
        make_signs(m, first * (unit / 2), n * (unit / 2), dst);
}

static void make_units(const struct synth_matrix *m, unsigned part, uint64_t first, size_t n,
                       uint8_t *dst)
{
    if (m->values != SYNTH_WEIGHTS)
        make_vector(m, first, n, dst);
    else if (m->block != NULL && m->quant->n_parts > 1)
        make_split(m, part, first, n, dst);
    else if (m->block != NULL)
        make_blocks(m, first, n, dst);
    else if (part > 0)
        make_scales(m, part, first, n, dst);
    else if (m->quant->kind == QUANT_AFFINE)
        synth_rng_fill(m->keys[0], first, n, dst);
    else
        make_floats(m, first, n, dst);
}

void synth_fill(const struct synth_matrix *m, unsigned part, uint64_t at, uint64_t bytes,
                void *dst)
{
    const uint64_t unit = unit_bytes(m, part);
    uint8_t *out = dst, edge[UNIT_MAX_BYTES];
    while (bytes > 0) {
        const uint64_t skip = at % unit;
        uint64_t n = bytes - bytes % unit;
        if (skip == 0 && n > 0) {
            make_units(m, part, at / unit, n / unit, out);
        } else { /* a unit that is cut at one or both ends */
            n = unit - skip < bytes ? unit - skip : bytes;
            make_units(m, part, at / unit, 1, edge);
            memcpy(out, edge + skip, n);
        }
        at += n;
        out += n;
        bytes -= n;
    }
}
