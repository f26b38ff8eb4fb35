/* The decimal texts of the numbers in a range, as an automaton: bounds hold digit by digit, however
 * long they are. Threads and failures as in dfa.h. */
#ifndef FLASHMOE_GRAMMAR_NUMBER_DFA_H
#define FLASHMOE_GRAMMAR_NUMBER_DFA_H

#include "grammar/decimal.h"
#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds beyond this many digits before or behind the point are refused. */
#define NUMBER_BOUND_DIGITS 400
/* Digits that are written: of integers, or bounds with more; of other numbers in all, where an
 * exclusive bound must hold for readers that round to doubles; and otherwise. */
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
    bool is_integer;   /* no point, no exponent */
    uint32_t multiple; /* of this integer, which makes it one; 0: any */
};

/* Without bounds an exponent of two digits may follow, with bounds none. The result may accept
 * nothing. */
int number_dfa(struct dfa_maker *maker, const struct number_range *range, const struct dfa **out,
               struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
