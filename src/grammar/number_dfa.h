/* Builds an automaton that accepts the decimal texts of the numbers in a range. Bounds are exact,
 * however many digits they have. Threads and failures as in dfa.h. */
#ifndef FLASHMOE_GRAMMAR_NUMBER_DFA_H
#define FLASHMOE_GRAMMAR_NUMBER_DFA_H

#include "grammar/decimal.h"
#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds with more digits than this before or after the point are refused. */
#define NUMBER_BOUND_DIGITS 400
/* Maximum digits written: for integers (or as many as the bounds have); in total for other numbers
 * with an exclusive bound, which must also hold for readers that round to doubles; and in total for
 * all other numbers. */
#define NUMBER_INTEGER_DIGITS 18
#define NUMBER_EXCLUSIVE_DIGITS 15
#define NUMBER_DIGITS 17
#define NUMBER_MULTIPLE 10000u /* the largest divisor */

struct number_bound {
    struct decimal value;
    bool is_set, is_exclusive;
};

struct number_range {
    struct number_bound min, max;
    bool is_integer;   /* without point and exponent */
    uint32_t multiple; /* must be a multiple of this integer, hence an integer; 0 for any number */
};

/* Without bounds, an exponent of two digits may follow; with bounds, none. The result may accept
 * nothing. */
int number_dfa(struct dfa_maker *maker, const struct number_range *range, const struct dfa **out,
               struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
