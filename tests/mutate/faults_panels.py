"""Faults of products with many tokens: panels in slices, gathered tokens, tiles."""
from fault import Fault

CODES = 'src/backend/cpu/lanes_codes.h'
GATHER = 'src/backend/cpu/lanes_gather.h'
FAULTS = [
    Fault('a slice forgets the sums of those before it', CODES,
          'p->begin == 0 ? vf_zero() : vf_load(', 'p->begin == 0 || true ? vf_zero() : vf_load(',
          ['kernels.check']),
    Fault('a slice is multiplied with the tokens of the first one', CODES,
          'tokens.codes + p->begin * n_tokens;', 'tokens.codes;', ['kernels.check']),
    Fault('tiles of a product are all as small as the smallest', CODES,
          'sizes->n_each + (tile < sizes->n_larger)', 'sizes->n_each', ['kernels.check']),
    Fault('a block that repeats another is written, too', CODES,
          '            else if (b < p->n_blocks)\n', '            else\n', ['kernels.check']),
    Fault('gathered tokens have the factors of the first one', GATHER,
          'fold_inputs_of(m, t0 + t, n_groups', 'fold_inputs_of(m, t0, n_groups',
          ['kernels.check']),
    Fault('sums of wide codes begin with zero', GATHER,
          'const int32_t start = -excess * f.x_sum[g];', 'const int32_t start = 0 * excess;',
          ['kernels.check']),
    Fault('tiles start with the wrong sign', 'src/backend/cpu/k_amx.c',
          'to->start[at] = -(int32_t)quant->zero', 'to->start[at] = (int32_t)quant->zero',
          ['kernels.check_tiles']),
    Fault('what is kept of the input serves weights of another layout',
          'src/backend/cpu/cpu_products.c',
          'now.is_interleaved == last->is_interleaved && ', '', ['unit.cpu_products_test']),
    Fault('only every second part of the next rows is prefetched',
          'src/backend/cpu/lanes_ahead.h',
          '            a->n_rest--;\n', '            a->n_rest -= a->n_rest > 1 ? 2 : 1;\n',
          ['unit.lanes_ahead_test']),
]
