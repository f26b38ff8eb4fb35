/* Hard limits, each with the reason for its value. A buffer and the check that guards it use
 * the same name. */
#ifndef FLASHMOE_BASE_LIMITS_H
#define FLASHMOE_BASE_LIMITS_H

/* A safetensors header of 36,000 tensors is 4.7 MB; the official reader stops at 100 MB. */
#define LIMIT_SAFETENSORS_HEADER_BYTES (100u * 1000 * 1000)
/* The largest public tokenizer.json is about 20 MB. */
#define LIMIT_TOKENIZER_JSON_BYTES (64u * 1024 * 1024)
/* config.json, generation_config.json, tokenizer_config.json: kilobytes in practice. */
#define LIMIT_CONFIG_JSON_BYTES (16u * 1024 * 1024)
/* model.safetensors.index.json: one line per tensor. */
#define LIMIT_INDEX_JSON_BYTES (64u * 1024 * 1024)
/* A routing trace: 4096 tokens of 48 layers and 10 experts are about 50 MB. */
#define LIMIT_ROUTES_BYTES (256u * 1024 * 1024)
/* The metadata of 248,000 tokens with their merges is 11 MB. */
#define LIMIT_GGUF_HEADER_BYTES (256u * 1024 * 1024)
/* Real files have about 50 entries of metadata and 1,900 tensors. */
#define LIMIT_GGUF_VALUES 65536
#define LIMIT_GGUF_TENSORS (1u << 20)
/* ggml itself stops at 63 or 127. */
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
#define LIMIT_CONTEXT (1u << 24)
#define LIMIT_STOP_TOKENS 32
/* Every byte of an answer is compared with each stop string; clients send at most 16. */
#define LIMIT_STOP_STRINGS 64
#define LIMIT_STOP_STRING_BYTES 4096
#define LIMIT_THREADS 256

#endif
