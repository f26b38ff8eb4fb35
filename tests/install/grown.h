/* What the grown library writes into the field `grown` of results, and accepts in options. */
#ifndef FLASHMOE_TESTS_INSTALL_GROWN_H
#define FLASHMOE_TESTS_INSTALL_GROWN_H

#define GROWN_VALUE 4711u

#endif
