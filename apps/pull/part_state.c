#include "apps/pull/part_state.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/jdoc.h"
#include "base/mem.h"
#include "apps/pull/work_file.h"

#define STATE_BYTES (256 * 1024)

void part_ranges_add(struct part_ranges *ranges, uint64_t first, uint64_t end)
{
    if (ranges->n > 0 && ranges->end[ranges->n - 1] == first) {
        ranges->end[ranges->n - 1] = end;
    } else if (ranges->n < PART_MAX_RANGES) {
        ranges->first[ranges->n] = first;
        ranges->end[ranges->n++] = end;
    }
}

static void name_of(const struct part_item *item, const char *suffix,
                    char out[PARTS_NAME_BYTES + 16])
{
    (void)snprintf(out, PARTS_NAME_BYTES + 16, "%s%s", item->name, suffix);
}

/* Returns what identifies the content: other bytes are never continued with these. */
static const char *content_of(const struct part_item *item)
{
    return item->sha256[0] != '\0' ? item->sha256
           : item->git_id[0] != '\0' ? item->git_id
                                     : item->version;
}

static bool is_same_content(const struct part_item *item, const json_t *root)
{
    const char *content = json_string_value(json_object_get(root, "content"));
    const json_int_t bytes = json_integer_value(json_object_get(root, "bytes"));
    return content != NULL && content[0] != '\0' && strcmp(content, content_of(item)) == 0 &&
           bytes >= 0 && (uint64_t)bytes == item->bytes;
}

static void read_ranges(const json_t *root, uint64_t bytes, part_range_fn *fn, void *ctx)
{
    const json_t *list = json_object_get(root, "ranges"), *range;
    size_t i;
    uint64_t before = 0;
    json_array_foreach(list, i, range) {
        const json_int_t first = json_integer_value(json_array_get(range, 0));
        const json_int_t end = json_integer_value(json_array_get(range, 1));
        if (first < 0 || end <= first || (uint64_t)first < before || (uint64_t)end > bytes)
            return;
        fn(ctx, (uint64_t)first, (uint64_t)end);
        before = (uint64_t)end;
    }
}

int part_state_load(const struct plat_dir *work, const struct part_item *item, part_range_fn *fn,
                    void *ctx, struct fm_error *err)
{
    char state[PARTS_NAME_BYTES + 16], part[PARTS_NAME_BYTES + 16], *text = NULL;
    struct plat_file_info is;
    struct jdoc doc = {0};
    size_t bytes = 0;
    name_of(item, ".state", state);
    name_of(item, ".part", part);
    /* A state that cannot be read is as good as none. */
    const bool is_there =
        plat_dir_info(work, part, &is) && is.is_file && is.bytes == item->bytes &&
        plat_dir_info(work, state, &is) && is.is_file &&
        plat_dir_read_file(work, state, STATE_BYTES, &text, &bytes, NULL) == 0 &&
        jdoc_parse(&doc, state, text, bytes, NULL) == 0 && is_same_content(item, doc.root);
    int rc = 0;
    if (is_there)
        read_ranges(doc.root, item->bytes, fn, ctx);
    else
        rc = plat_dir_remove(work, state, NULL, err);
    if (rc == 0 && !is_there)
        rc = plat_dir_remove(work, part, NULL, err);
    jdoc_clear(&doc);
    mem_free(text);
    return rc;
}

int part_state_save(const struct plat_dir *work, const struct part_item *item,
                    const struct part_ranges *ranges, struct fm_error *err)
{
    char name[PARTS_NAME_BYTES + 16];
    json_t *list = json_array();
    for (size_t i = 0; i < ranges->n; i++)
        (void)json_array_append_new(list, json_pack("[I, I]", (json_int_t)ranges->first[i],
                                                    (json_int_t)ranges->end[i]));
    json_t *root = json_pack("{s:s, s:I, s:o}", "content", content_of(item), "bytes",
                             (json_int_t)item->bytes, "ranges", list);
    name_of(item, ".state", name);
    const int rc = work_file_write(work, name, root, false, err);
    json_decref(root);
    return rc;
}

int part_state_drop(const struct plat_dir *work, const struct part_item *item,
                    struct fm_error *err)
{
    char name[PARTS_NAME_BYTES + 16];
    name_of(item, ".state.tmp", name); /* a killed process may have left it */
    (void)plat_dir_remove(work, name, NULL, NULL);
    name_of(item, ".state", name);
    return plat_dir_remove(work, name, NULL, err);
}
