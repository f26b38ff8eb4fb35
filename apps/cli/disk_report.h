/* The disks that a model lies on, as text and JSON. With one disk there is no list of them. One
 * thread. */
#ifndef FLASHMOE_APPS_CLI_DISK_REPORT_H
#define FLASHMOE_APPS_CLI_DISK_REPORT_H

#include <jansson.h>

#include "flashmoe_lab.h"

/* Says for each disk what was read from it, and how fast. */
void disk_report_say(const struct fm_stats *stats);
/* Adds "disks" to an object: a list with what was read from each disk. */
void disk_report_put(json_t *object, const struct fm_stats *stats);

/* Prints the measured speed of few experts at a time, in a line below "disk read". */
void disk_report_print_few(const struct fm_disk_speeds *speeds);
/* Prints the measured speed of each disk, in lines below "disk read". */
void disk_report_print_speeds(const struct fm_disk_speeds *speeds);
/* Adds "disks" to an object, a list with the measured speed of each disk, and the speeds of few
 * experts at a time. */
void disk_report_put_speeds(json_t *object, const struct fm_disk_speeds *speeds);

#endif
