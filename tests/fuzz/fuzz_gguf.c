/* Fuzzes GGUF headers, and the source made from them. The input is the beginning of a file and is
 * run twice: first as it is, as a file of that size, then with 1 TiB of data after it, so that the
 * tensors fit. What is accepted must keep the promises of the parser's and the source's headers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "format/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PRETENDED_BYTES (UINT64_C(1) << 40)

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_error(int rc, const struct fm_error *err)
{
    require(rc < 0 && err->code == rc && err->text[0] != '\0', "an error has code and text");
}

static uint64_t n_elements(unsigned n_dims, const uint64_t *dims)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < n_dims; d++)
        n *= dims[d];
    return n;
}

static void check_tensor(const struct gguf_tensor *t, uint64_t file_bytes)
{
    require(t->name_bytes > 0 && memchr(t->name, '\0', t->name_bytes) == NULL,
            "a tensor has a name");
    require(t->n_dims <= LIMIT_TENSOR_DIMS, "the number of dimensions is bounded");
    require(t->offset <= file_bytes && t->bytes <= file_bytes - t->offset,
            "a tensor lies inside its file");
    const uint64_t n = n_elements(t->n_dims, t->dims);
    require(t->bytes == n / t->format->block * t->format->block_bytes,
            "bytes follow from the shape");
    require(t->n_dims == 0 || t->dims[t->n_dims - 1] % t->format->block == 0,
            "rows are whole blocks");
}

static void check_source(const struct source *s, uint64_t file_bytes)
{
    require(json_is_object(s->config.root) && s->config.file != NULL, "there is a configuration");
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor_info *t = &s->tensors[i];
        const struct tensor_part *part = &t->parts[0];
        require(i == 0 || strcmp(s->tensors[i - 1].name, t->name) < 0, "names are sorted");
        require(source_find(s, t->name) == t, "a tensor is found by its name");
        require(t->n_parts == 1 && part->file == 0 && part->offset <= file_bytes &&
                    part->bytes <= file_bytes - part->offset,
                "a part lies inside its file");
        require(t->quant == NULL ||
                    part->bytes == quant_row_bytes(t->quant, n_elements(t->n_dims, t->dims)),
                "bytes follow from the shape");
    }
    for (unsigned i = 0; i < s->n_texts; i++)
        require(s->texts[i].text[s->texts[i].bytes] == '\0' &&
                    strlen(s->texts[i].text) == s->texts[i].bytes,
                "a text is NUL-terminated");
    for (unsigned i = 1; i < s->n_texts; i++) { /* the first may have the same token twice */
        struct jdoc doc;
        struct fm_error err = {0};
        require(jdoc_parse(&doc, s->texts[i].name, s->texts[i].text, s->texts[i].bytes, &err) == 0,
                "a text is JSON");
        jdoc_clear(&doc);
    }
}

static void run(const void *head, size_t head_bytes, uint64_t file_bytes)
{
    struct gguf g;
    struct fm_error err = {0};
    int rc = gguf_parse(&g, "fuzz.gguf", head, head_bytes, file_bytes, &err);
    if (rc != 0) {
        check_error(rc, &err);
        require(g.values == NULL && g.tensors == NULL, "nothing is left after an error");
        return;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < g.n_tensors; i++) {
        const struct gguf_tensor *t = &g.tensors[i];
        check_tensor(t, file_bytes);
        require(t->bytes == 0 || t->offset >= end, "no two tensors overlap");
        end = t->bytes > 0 ? t->offset + t->bytes : end;
    }
    struct source *s = mem_new(1, sizeof *s, "a source", NULL);
    require(s != NULL, "there is memory");
    struct model_gguf gguf;
    model_gguf_init(&gguf, arch_families());
    rc = gguf_fill_source(s, &g, &gguf.names, &err);
    if (rc == 0)
        check_source(s, file_bytes);
    else
        check_error(rc, &err);
    source_close(s);
    gguf_clear(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run(data, size, size);
    run(data, size, size + PRETENDED_BYTES);
    return 0;
}
