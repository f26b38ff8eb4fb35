/* Hard limits, with the reason for each value that needs one. A buffer and the check that guards it
 * use the same name. */
#ifndef FLASHMOE_BASE_LIMITS_H
#define FLASHMOE_BASE_LIMITS_H

/* A header with 36,000 tensors has 4.7 MB; the official reader accepts up to 100 MB. */
#define LIMIT_SAFETENSORS_HEADER_BYTES (100u * 1000 * 1000)
/* The largest public tokenizer.json is about 20 MB. */
#define LIMIT_TOKENIZER_JSON_BYTES (64u * 1024 * 1024)
/* config.json, generation_config.json, tokenizer_config.json: kilobytes in practice. */
#define LIMIT_CONFIG_JSON_BYTES (16u * 1024 * 1024)
/* model.safetensors.index.json: one line per tensor. */
#define LIMIT_INDEX_JSON_BYTES (64u * 1024 * 1024)
/* A routing trace of 4,096 tokens, 48 layers and 10 experts has about 50 MB. */
#define LIMIT_ROUTES_BYTES (256u * 1024 * 1024)
/* The metadata of 248,000 tokens with their merges has 11 MB. */
#define LIMIT_GGUF_HEADER_BYTES (256u * 1024 * 1024)
/* Real files have about 50 metadata entries and 1,900 tensors. */
#define LIMIT_GGUF_VALUES 65536
#define LIMIT_GGUF_TENSORS (1u << 20)
/* ggml accepts up to 63 or 127 bytes, depending on its version. */
#define LIMIT_GGUF_NAME_BYTES 255
#define LIMIT_TENSOR_DIMS 8
#define LIMIT_PATH_BYTES 4096
#define LIMIT_SHARDS 4096

#define LIMIT_LAYERS 1024
#define LIMIT_HIDDEN (1u << 17)
#define LIMIT_INTERMEDIATE (1u << 20)
#define LIMIT_VOCAB (1u << 22)
#define LIMIT_HEADS 4096
#define LIMIT_HEAD_DIM 4096
#define LIMIT_EXPERTS 65535
/* Experts chosen per token: choosing k of n takes k * n steps. */
#define LIMIT_TOP_K 64
#define LIMIT_CONV_KERNEL 16
/* Streams of a residual. */
#define LIMIT_STREAMS 16
/* Positions of a block that sparse attention chooses, and of all that it chooses. */
#define LIMIT_INDEX_RATIO 256
#define LIMIT_INDEX_BUDGET (1u << 16)
#define LIMIT_CONTEXT (1u << 24)
#define LIMIT_STOP_TOKENS 32
/* Every byte of an answer is compared with each stop string; clients send at most 16. */
#define LIMIT_STOP_STRINGS 64
#define LIMIT_STOP_STRING_BYTES 4096
#define LIMIT_THREADS 256

#endif
