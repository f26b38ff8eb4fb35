/* Fuzzes safetensors headers. The input is the beginning of a file and is run twice: first as it
 * is, as a file of that size, then with the correct header length and 1 TiB of data after it, so
 * that a change to the JSON text need not also change the length. What is accepted must keep the
 * promises of the parser's header. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LENGTH_BYTES 8
#define PRETENDED_BYTES (UINT64_C(1) << 40)

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_tensor(const struct tensor_info *t, uint64_t file_bytes)
{
    uint64_t n_elements = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        n_elements *= t->dims[d];
    require(t->name != NULL && t->dtype != NULL, "a tensor has a name and a dtype");
    require(t->n_dims <= LIMIT_TENSOR_DIMS, "the number of dimensions is bounded");
    const uint64_t offset = t->parts[0].offset, bytes = t->parts[0].bytes;
    require(offset <= file_bytes && bytes <= file_bytes - offset,
            "a tensor lies inside its file");
    require(n_elements == 0 ? t->parts[0].bytes == 0 : t->parts[0].bytes % n_elements == 0,
            "bytes are a multiple of the elements");
    if (t->quant != NULL)
        require(bytes == quant_row_bytes(t->quant, n_elements), "bytes follow from the shape");
    char shape[64];
    require(strlen(tensor_info_shape(t, shape, sizeof shape)) < sizeof shape, "the shape fits");
}

static void run(const void *head, size_t head_bytes, uint64_t file_bytes)
{
    struct safetensors st;
    struct fm_error err = {0};
    int rc = safetensors_parse(&st, "fuzz.safetensors", head, head_bytes, file_bytes, &err);
    if (rc != 0) {
        require(rc < 0 && err.code == rc && err.text[0] != '\0', "an error has code and text");
        require(st.tensors == NULL && st.n_tensors == 0, "nothing is left after an error");
        return;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < st.n_tensors; i++) {
        const struct tensor_info *t = &st.tensors[i];
        check_tensor(t, file_bytes);
        require(t->parts[0].bytes == 0 || t->parts[0].offset >= end, "no two tensors overlap");
        end = t->parts[0].bytes > 0 ? t->parts[0].offset + t->parts[0].bytes : end;
    }
    safetensors_clear(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run(data, size, size);
    if (size <= LENGTH_BYTES)
        return 0;
    uint8_t *framed = malloc(size);
    if (framed == NULL)
        return 0;
    uint64_t header_bytes = size - LENGTH_BYTES;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        framed[i] = (uint8_t)(header_bytes >> (8 * i));
    memcpy(framed + LENGTH_BYTES, data + LENGTH_BYTES, size - LENGTH_BYTES);
    run(framed, size, size + PRETENDED_BYTES);
    free(framed);
    return 0;
}
