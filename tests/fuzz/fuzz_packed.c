/* Fuzzes model.json of a packed model. The seal is not checked, because any change to the text
 * would break it. What is accepted must keep the promises of the parser's header. Written out
 * again, it must be read back the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_parts(const struct tensor_info *t, uint64_t file_bytes)
{
    for (unsigned p = 0; p < t->n_parts; p++) {
        const struct tensor_part *part = &t->parts[p];
        const uint64_t n = part->stride > 0 ? t->dims[0] : 1;
        const uint64_t slab = part->bytes / n;
        require(part->bytes % n == 0, "slabs are equal");
        require(part->stride == 0 || slab <= part->stride, "slabs do not overlap");
        require(part->offset <= file_bytes && slab <= file_bytes - part->offset,
                "the first slab lies inside its file");
        require((n - 1) <= (file_bytes - part->offset - slab) / (part->stride + (n == 1)),
                "the last slab lies inside its file");
    }
}

static void check_dense(const struct packed *packed)
{
    uint64_t at = 0;
    for (size_t i = 0; i < packed->n_tensors; i++) {
        const struct packed_tensor *t = &packed->tensors[i];
        uint64_t bytes, part_offset[QUANT_MAX_PARTS];
        require(t->offset == at && t->offset % RECORD_PART_ALIGN == 0, "tensors lie end to end");
        require(packed_tensor_layout(t, &bytes, part_offset), "a format can hold its shape");
        require(bytes == t->bytes && bytes % RECORD_PART_ALIGN == 0, "bytes follow from the shape");
        at += bytes;
    }
    require(at == packed->dense_bytes, "every byte of dense.bin belongs to a tensor");
}

static void check_layers(const struct packed *packed)
{
    for (uint32_t i = 0; i < packed->n_layers; i++) {
        const struct packed_layer *layer = &packed->layers[i];
        struct record record = layer->record;
        uint64_t all;
        require(i == 0 || layer[-1].layer < layer->layer, "layers ascend");
        require(layer->n_experts > 0 && layer->sums != NULL, "an expert has a checksum");
        require(record_layout(&record) && record.bytes == layer->record.bytes,
                "a record follows from its formats");
        require(mem_mul(record.bytes, layer->n_experts, &all), "a file's size does not overflow");
    }
}

static void check_files(const struct packed *packed)
{
    for (size_t i = 0; i < packed->n_files; i++) {
        const char *name = packed->files[i].name;
        require(name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL,
                "a file lies in the same directory");
    }
}

static void check_again(const struct source *source)
{
    char *text, *again;
    size_t bytes, again_bytes;
    struct fm_error err = {0};
    json_t *provenance = json_object();
    int rc = packed_model_text(source->packed, source->config.root, &source->conventions,
                               provenance, &text, &bytes, &err);
    if (rc != 0) {
        json_decref(provenance);
        return; /* no memory, or text that JSON cannot hold */
    }
    struct source *copy = calloc(1, sizeof *copy);
    require(packed_parse(copy, "again", text, bytes, &err) == 0, "what is written can be read");
    require(packed_model_text(copy->packed, copy->config.root, &copy->conventions, provenance,
                              &again, &again_bytes, &err) == 0 &&
            again_bytes == bytes && memcmp(text, again, bytes) == 0,
            "reading and writing change nothing");
    json_decref(provenance);
    mem_free(text);
    mem_free(again);
    source_close(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source *source = calloc(1, sizeof *source);
    struct fm_error err = {0};
    if (source == NULL)
        return 0;
    int rc = packed_parse_unsealed(source, "model.json", (const char *)data, size, &err);
    if (rc != 0) {
        require(rc < 0 && err.code == rc && err.text[0] != '\0', "an error has code and text");
        source_close(source);
        return 0;
    }
    const struct packed *packed = source->packed;
    require(source->config.root != NULL, "there is a configuration");
    check_dense(packed);
    check_layers(packed);
    check_files(packed);
    for (size_t i = 0; i < source->n_tensors; i++) {
        const struct tensor_info *t = &source->tensors[i];
        require(t->name != NULL && t->quant != NULL && t->n_dims > 0, "a tensor is described");
        require((t->parts[0].file == 0) == (t->records == NULL), "experts lie in their layer");
        check_parts(t, t->records == NULL ? packed->dense_bytes
                                          : t->records->n_experts * t->records->record.bytes);
    }
    check_again(source);
    source_close(source);
    return 0;
}
