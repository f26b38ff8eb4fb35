/* The plots of the page of `flashmoe validate`. Each function writes one or more SVG elements. */
#ifndef FLASHMOE_APPS_VALIDATE_REPORT_PLOTS_H
#define FLASHMOE_APPS_VALIDATE_REPORT_PLOTS_H

#include "apps/validate/validate.h"

void plots_budgets(const struct validation *v, FILE *out);
void plots_long(const struct validation *v, FILE *out);
void plots_cliff(const struct validation *v, FILE *out);
/* Returns whether all answers beside little memory were right. */
bool plots_cliff_is_same(const struct validation *v);

#endif
