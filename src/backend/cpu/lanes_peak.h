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

#endif
