/* The markers that models put around their reasoning: the only list of them. Constant. */
#ifndef FLASHMOE_CHAT_REASONING_H
#define FLASHMOE_CHAT_REASONING_H

#ifdef __cplusplus
extern "C" {
#endif

struct reasoning {
    const char *begin, *end; /* as struct marker has it */
    const char *closing;     /* what a prompt ends reasoning with that it has begun */
};

/* Ends with an empty one. */
extern const struct reasoning reasoning_list[];

#ifdef __cplusplus
}
#endif
#endif
