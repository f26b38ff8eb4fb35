/* Part of lanes.h: the maximum multiply throughput of the level, with its operands in registers. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_PEAK_H
#define FLASHMOE_BACKEND_CPU_LANES_PEAK_H

#ifndef PEAK_CHAINS
#define PEAK_CHAINS 4 /* independent sums: enough to hide latency, few enough for registers */
#endif

static uint64_t int8_peak(uint64_t n_rounds)
{
    uint8_t codes[64];
    int8_t x[16];
    for (unsigned i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i + n_rounds % 3);
    for (unsigned i = 0; i < sizeof x; i++)
        x[i] = (int8_t)(i + n_rounds % 5);
    vc rows = vc_load(codes);
    const vx token = vx_load(x);
    vi acc[PEAK_CHAINS];
    UNROLL for (unsigned k = 0; k < PEAK_CHAINS; k++)
        acc[k] = vi_set1((int32_t)k); /* all different, or the compiler merges them */
    for (uint64_t i = 0; i < n_rounds; i++) {
        HIDE(rows); /* or the compiler hoists the products out of the loop */
        UNROLL for (unsigned k = 0; k < PEAK_CHAINS; k++) {
            acc[k] = vi_dot4_of(acc[k], rows, token, k % 4, false);
            HIDE(acc[k]); /* or the compiler moves sums between registers and spills some */
        }
    }
    UNROLL for (unsigned k = 1; k < PEAK_CHAINS; k++)
        acc[0] = vi_add(acc[0], acc[k]);
    volatile int32_t keep = vi_reduce_add(acc[0]); /* every lane, or the compiler drops some */
    (void)keep;
    return n_rounds * PEAK_CHAINS * LANES * 4 * 2;
}

#define FMA_CHAINS 12 /* any level has registers for them, and they hide the latency */

static uint64_t fma_peak(uint64_t n_rounds)
{
    const volatile float factor = 0.5f; /* or the compiler computes the loop in advance */
    const vp term = vp_set1((float)(n_rounds % 3));
    vp acc[FMA_CHAINS];
    UNROLL for (unsigned k = 0; k < FMA_CHAINS; k++)
        acc[k] = vp_set1((float)k); /* all different, or the compiler merges them */
    for (uint64_t i = 0; i < n_rounds; i++) {
        const vp x = vp_set1(factor);
        UNROLL for (unsigned k = 0; k < FMA_CHAINS; k++)
            acc[k] = vp_fma(acc[k], x, term);
    }
    float sums[FMA_CHAINS][PART_LANES];
    UNROLL for (unsigned k = 0; k < FMA_CHAINS; k++)
        vp_store(sums[k], acc[k]);
    volatile float keep = 0;
    for (unsigned k = 0; k < FMA_CHAINS * PART_LANES; k++)
        keep += sums[k / PART_LANES][k % PART_LANES];
    return n_rounds * FMA_CHAINS * PART_LANES * 2;
}

#endif
