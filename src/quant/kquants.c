/* GGUF's "K" formats: 256 columns with one or two f16 factors and small integer scales, one per 16
 * or 32 columns. codes.h has their layout. */
#include "quant/block_internal.h"

enum { COLUMNS = 256 };

CODE_FORMAT(q2_k, COLUMNS, 84, 2, NULL, .codes = QUANT_CODES_Q2_K, .group = 16, .has_bias = true)
CODE_FORMAT(q3_k, COLUMNS, 110, 3, NULL, .codes = QUANT_CODES_Q3_K, .group = 16, .zero = 4)
CODE_FORMAT(q4_k, COLUMNS, 144, 4, NULL, .codes = QUANT_CODES_Q4_K, .group = 32, .has_bias = true)
CODE_FORMAT(q5_k, COLUMNS, 176, 5, NULL, .codes = QUANT_CODES_Q5_K, .group = 32, .has_bias = true)
CODE_FORMAT(q6_k, COLUMNS, 210, 6, NULL, .codes = QUANT_CODES_Q6_K, .group = 16, .zero = 32)
