#include "format/disks.h"

#include <string.h>

#include "base/mem.h"
#include "format/directory.h"

#define MAX_BYTES (1u << 20)

static int wrong(const char *label, const char *field, const json_t *value, const char *expected,
                 struct fm_error *err)
{
    char shown[80];
    return err_set(err, FM_ERR_FORMAT, "%s: field '%s' is %s, expected %s", label, field,
                   value == NULL ? "missing" : jdoc_show(value, shown, sizeof shown), expected);
}

static int read_folders(const json_t *root, const char *label, struct disks *disks,
                        struct fm_error *err)
{
    const json_t *list = json_object_get(root, "folders");
    const size_t n = json_array_size(list);
    if (n < 2 || n > SOURCE_MAX_DISKS)
        return wrong(label, "folders", list, "a list of 2 to 8 folders", err);
    for (size_t i = 0; i < n; i++) {
        const char *folder = json_string_value(json_array_get(list, i));
        if (folder == NULL || folder[0] == '\0' || strlen(folder) >= LIMIT_PATH_BYTES)
            return wrong(label, "folders", list, "the paths of folders", err);
        disks->folders[i] = mem_strdup(folder, err);
        if (disks->folders[i] == NULL)
            return FM_ERR_NOMEM;
    }
    disks->n = (unsigned)n;
    return 0;
}

static int read_fields(const json_t *root, const char *label, struct disks *disks,
                       struct fm_error *err)
{
    const char *format = NULL, *layout = NULL;
    uint64_t version, here = 0;
    int rc = jdoc_string(root, label, "format", &format, err);
    if (rc == 0 && strcmp(format, DISKS_FORMAT) != 0)
        rc = wrong(label, "format", json_object_get(root, "format"), "\"" DISKS_FORMAT "\"", err);
    if (rc == 0)
        rc = jdoc_uint(root, label, "version", 1, 1, &version, err);
    if (rc == 0)
        rc = jdoc_string(root, label, "layout", &layout, err);
    if (rc == 0 && strcmp(layout, DISKS_SPLIT) != 0 && strcmp(layout, DISKS_MIRROR) != 0)
        rc = wrong(label, "layout", json_object_get(root, "layout"),
                   "\"" DISKS_SPLIT "\" or \"" DISKS_MIRROR "\"", err);
    disks->is_mirrored = rc == 0 && strcmp(layout, DISKS_MIRROR) == 0;
    if (rc == 0)
        rc = read_folders(root, label, disks, err);
    if (rc == 0)
        rc = jdoc_uint(root, label, "here", 0, disks->n - 1, &here, err);
    disks->here = (unsigned)here;
    return rc;
}

int disks_parse(const char *label, const char *text, size_t bytes, struct disks *disks,
                struct fm_error *err)
{
    struct jdoc doc = {0};
    *disks = (struct disks){0};
    int rc = jdoc_parse(&doc, label, text, bytes, err);
    if (rc == 0)
        rc = read_fields(doc.root, label, disks, err);
    jdoc_clear(&doc);
    if (rc != 0)
        disks_clear(disks);
    return rc;
}

int disks_load(const char *dir, struct disks *disks, struct fm_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    *disks = (struct disks){0};
    if (!directory_has(dir, DISKS_NAME))
        return 0;
    char *path = source_join(dir, DISKS_NAME, err);
    int rc = path == NULL ? FM_ERR_NOMEM : plat_read_file(path, MAX_BYTES, &text, &bytes, err);
    if (rc == 0)
        rc = disks_parse(path, text, bytes, disks, err);
    mem_free(text);
    mem_free(path);
    return rc;
}

void disks_clear(struct disks *disks)
{
    for (unsigned i = 0; i < SOURCE_MAX_DISKS; i++)
        mem_free(disks->folders[i]);
    *disks = (struct disks){0};
}

char *disks_folder(const struct disks *disks, const char *dir, unsigned i, struct fm_error *err)
{
    const char *folder = disks->folders[i];
    return folder[0] == '/' ? mem_strdup(folder, err) : source_join(dir, folder, err);
}

int disks_text(const struct disks *disks, char **text, size_t *bytes, struct fm_error *err)
{
    json_t *folders = json_array();
    for (unsigned i = 0; i < disks->n; i++)
        (void)json_array_append_new(folders, json_string(disks->folders[i]));
    if (json_array_size(folders) != disks->n) {
        json_decref(folders);
        return err_set(err, FM_ERR_ARG, "a folder's path cannot be written to " DISKS_NAME
                       ": it is not UTF-8");
    }
    json_t *root = json_pack("{s:s, s:i, s:s, s:i, s:o}", "format", DISKS_FORMAT, "version", 1,
                             "layout", disks->is_mirrored ? DISKS_MIRROR : DISKS_SPLIT, "here",
                             (int)disks->here, "folders", folders);
    const size_t n = root != NULL ? json_dumpb(root, NULL, 0, JSON_INDENT(1)) : 0;
    *bytes = n + 1;
    *text = n > 0 ? mem_new(n + 2, 1, DISKS_NAME, err) : NULL;
    if (*text != NULL) {
        (void)json_dumpb(root, *text, n, JSON_INDENT(1));
        (*text)[n] = '\n';
    }
    json_decref(root);
    return *text != NULL ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory: " DISKS_NAME);
}
