/* Fuzzes schemas. The first two bytes of the input are a seed, the rest is the schema. */
#include "schema_answers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_BYTES = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES)
        return 0;
    (void)try_schema((const char *)data + HEAD_BYTES, size - HEAD_BYTES,
                     data[0] | (uint32_t)data[1] << 8, 2);
    return 0;
}
