/* The only list of markers that models put around their reasoning. Constant; any thread. */
#ifndef FLASHMOE_CHAT_REASONING_H
#define FLASHMOE_CHAT_REASONING_H

#ifdef __cplusplus
extern "C" {
#endif

struct reasoning {
    const char *begin, *end; /* follow the rules of struct marker */
    const char *closing;     /* text with which a prompt ends the reasoning that it has started */
};

/* Ends with an empty entry. */
extern const struct reasoning reasoning_list[];

#ifdef __cplusplus
}
#endif
#endif
