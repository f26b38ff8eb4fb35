/* Fuzzes what a hub says about a repository. The input is cut at NUL bytes: the file that is wanted
 * ("" for the whole model), the answer about the revision, then pages of the list of files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "apps/pull/hub_files.h"

#define URL "https://hub.example/api"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void check_error(int rc, const struct fm_error *err)
{
    require(rc == 0 || (rc < 0 && err->code == rc && err->text[0] != '\0'),
            "an error has code and text");
}

static bool is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static void check_files(const struct hub_repo *repo)
{
    for (size_t i = 0; i < repo->n_files; i++) {
        const struct hub_file *file = &repo->files[i];
        require(model_file_is_good(file->path), "a path stays within the folder");
        require(file->path[0] != '/' && file->path[0] != '.', "nor is it hidden");
        require(file->bytes <= 1ull << 46, "a size that can be");
        require(is_hex(file->sha256, 64) || is_hex(file->git_id, 40), "a digest");
    }
}

static const char *next_part(const char **at, const char *end, size_t *bytes)
{
    const char *part = *at;
    const char *zero = part < end ? memchr(part, '\0', (size_t)(end - part)) : NULL;
    *bytes = (size_t)((zero != NULL ? zero : end) - part);
    *at = zero != NULL ? zero + 1 : end;
    return part;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    struct model_name name = {.org = "org", .name = "name", .revision = "main"};
    struct hub_repo repo = {0};
    struct fm_error err = {0};
    size_t bytes, n_chosen = 0;
    const char *part = next_part(&at, end, &bytes);
    (void)snprintf(name.file, sizeof name.file, "%.*s", (int)(bytes < 200 ? bytes : 200), part);
    part = next_part(&at, end, &bytes);
    int rc = hub_read_commit(URL, part, bytes, &repo, &err);
    check_error(rc, &err);
    require(rc != 0 || is_hex(repo.commit, HUB_COMMIT_BYTES - 1), "a commit");
    for (rc = 0; rc == 0 && at < end;) {
        part = next_part(&at, end, &bytes);
        rc = hub_read_page(URL, part, bytes, &repo, &err);
        check_error(rc, &err);
    }
    check_files(&repo);
    if (rc == 0) {
        rc = hub_choose(&repo, &name, &err);
        check_error(rc, &err);
    }
    for (size_t i = 0; i < repo.n_files; i++)
        n_chosen += repo.files[i].is_chosen;
    require(rc != 0 || n_chosen > 0, "something is chosen");
    hub_clear(&repo);
    return 0;
}
