/* The picture of the experts: which are in memory, and how hot they are. */
#include <string.h>

#include "base/mem.h"
#include "flashmoe_lab.h"
#include "server/jobs_internal.h"
#include "server/text_json.h"

static bool add_hex(struct text_buffer *out, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    bool is_good = text_add_string(out, "\"");
    for (size_t i = 0; is_good && i < n; i++) {
        const char two[2] = {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        is_good = text_buffer_add(out, two, 2);
    }
    return is_good && text_add_string(out, "\"");
}

/* Sets the bits of experts whose place is at least `place`. Expert 0 is the highest bit of the
 * first byte. */
static size_t pack_bits(const uint8_t *places, uint8_t place, unsigned n, uint8_t *bytes)
{
    const size_t n_bytes = (n + 7) / 8;
    memset(bytes, 0, n_bytes);
    for (unsigned i = 0; i < n; i++)
        if (places[i] >= place)
            bytes[i / 8] = (uint8_t)(bytes[i / 8] | 0x80u >> i % 8);
    return n_bytes;
}

/* The picture as it is made, with one list for each key. */
struct picture {
    unsigned n_experts;
    uint8_t *places, *levels, *bits; /* of a layer */
    struct text_buffer heats, gpu;
};

static bool add_layer(struct picture *p, struct text_buffer *out, unsigned layer)
{
    const unsigned n = p->n_experts;
    if (layer > 0 && !(text_add_string(out, ",") && text_add_string(&p->heats, ",") &&
                       text_add_string(&p->gpu, ",")))
        return false;
    return add_hex(out, p->bits, pack_bits(p->places, FM_PLACE_MEMORY, n, p->bits)) &&
           add_hex(&p->gpu, p->bits, pack_bits(p->places, FM_PLACE_GPU, n, p->bits)) &&
           add_hex(&p->heats, p->levels, n);
}

bool runner_picture(const struct runner *e, struct text_buffer *out)
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_info(e->model, &info);
    fm_model_stats(e->model, &stats);
    struct picture p = {.n_experts = info.n_experts,
                        .places = mem_new(info.n_experts + 1u, 1, "the picture", NULL),
                        .levels = mem_new(info.n_experts + 1u, 1, "the picture", NULL),
                        .bits = mem_new(info.n_experts / 8 + 1u, 1, "the picture", NULL)};
    bool is_good = p.places != NULL && p.levels != NULL && p.bits != NULL &&
                   text_add_format(out, "{\"n_layers\":%u,\"n_experts\":%u,\"resident\":[",
                                   info.n_moe_layers, info.n_experts);
    for (unsigned i = 0; is_good && i < info.n_moe_layers; i++)
        is_good = fm_model_experts(e->model, i, NULL, p.levels) &&
                  fm_model_places(e->model, i, p.places) && add_layer(&p, out, i);
    is_good = is_good && text_add_string(out, "],\"heat\":[") &&
              text_buffer_add(out, text_buffer_text(&p.heats), p.heats.n) &&
              text_add_string(out, "]");
    if (is_good && stats.gpu != NULL)
        is_good = text_add_string(out, ",\"gpu\":[") &&
                  text_buffer_add(out, text_buffer_text(&p.gpu), p.gpu.n) &&
                  text_add_string(out, "]");
    is_good = is_good && text_add_string(out, "}");
    text_buffer_clear(&p.heats);
    text_buffer_clear(&p.gpu);
    mem_free(p.places);
    mem_free(p.levels);
    mem_free(p.bits);
    return is_good;
}
