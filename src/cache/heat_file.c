#include "cache/heat_file.h"

#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat_dir.h"

/* Little-endian, which is the byte order of every supported processor. */
struct heat_header {
    char magic[8];
    uint32_t n_layers, n_experts;
    uint64_t model;    /* model_identity */
    uint64_t checksum; /* XXH3 of the entries */
};

struct heat_entry {
    uint32_t count, idle;
};

static const char magic[8] = {'F', 'M', 'H', 'E', 'A', 'T', '1', '\n'};

/* Maximum count that is saved, so that years of use do not outweigh an afternoon. */
#define COUNT_KEPT 256

/* The block for multi-token prediction is left out: the file is the same with and without it. */
static size_t file_bytes(const struct model *model, const struct heat *heat)
{
    return sizeof(struct heat_header) + (size_t)model_n_own_expert_layers(model) *
                                            heat->n_experts * sizeof(struct heat_entry);
}

static const char *find_fault(const char *bytes, size_t n, const struct model *model,
                              const struct heat *heat)
{
    struct heat_header h;
    if (n != file_bytes(model, heat))
        return "it has the wrong size";
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return "it is not a heat file";
    if (h.n_layers != model_n_own_expert_layers(model) || h.n_experts != heat->n_experts ||
        h.model != model_identity(model))
        return "it belongs to another model";
    if (h.checksum != XXH3_64bits(bytes + sizeof h, n - sizeof h))
        return "it is damaged";
    return NULL;
}

bool heat_file_load(const char *path, const struct model *model, struct heat *heat)
{
    struct fm_error err;
    char *bytes;
    size_t n;
    if (!plat_file_exists(path))
        return false;
    plat_make_path_private(path); /* earlier versions made it readable for other users */
    if (plat_read_file(path, file_bytes(model, heat), &bytes, &n, &err) != 0) {
        log_info("cache", "ignoring the heat file: %s", err.text);
        return false;
    }
    const char *fault = find_fault(bytes, n, model, heat);
    if (fault != NULL)
        log_info("cache", "ignoring the heat file '%s': %s", path, fault);
    for (uint32_t l = 0; fault == NULL && l < model_n_own_expert_layers(model); l++)
        for (uint32_t e = 0; e < model->expert_layers[l].n_experts; e++) {
            struct heat_entry entry;
            memcpy(&entry, bytes + sizeof(struct heat_header) +
                               ((size_t)l * heat->n_experts + e) * sizeof entry, sizeof entry);
            heat_restore(heat, l, e, entry.count, entry.idle);
        }
    mem_free(bytes);
    return fault == NULL;
}

static void fill(char *bytes, const struct model *model, const struct heat *heat)
{
    struct heat_header h = {.n_layers = model_n_own_expert_layers(model),
                            .n_experts = heat->n_experts, .model = model_identity(model)};
    memcpy(h.magic, magic, sizeof magic);
    for (uint32_t l = 0; l < model_n_own_expert_layers(model); l++)
        for (uint32_t e = 0; e < heat->n_experts; e++) {
            const size_t at = (size_t)l * heat->n_experts + e;
            const float max = heat->counts[at] < COUNT_KEPT ? heat->counts[at] : COUNT_KEPT;
            const uint32_t count = (uint32_t)(max + 0.5f);
            const struct heat_entry entry = {count, heat->clocks[l] - heat->lasts[at]};
            memcpy(bytes + sizeof h + at * sizeof entry, &entry, sizeof entry);
        }
    h.checksum = XXH3_64bits(bytes + sizeof h, file_bytes(model, heat) - sizeof h);
    memcpy(bytes, &h, sizeof h);
}

int heat_file_save(const char *path, const struct model *model, const struct heat *heat,
                   struct fm_error *err)
{
    if (heat->n_uses == 0)
        return 0;
    char *bytes = mem_new(file_bytes(model, heat), 1, "the heat file", err);
    if (bytes == NULL)
        return FM_ERR_NOMEM;
    fill(bytes, model, heat);
    int rc = plat_replace_file(path, bytes, file_bytes(model, heat), err);
    mem_free(bytes);
    return rc;
}
