#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/plat.h"
#include "server/access.h"

#define FILE_BYTES ((size_t)1 << 20)

int access_keys_add(struct access_keys *keys, const char *text, size_t bytes, const char *source,
                    struct fm_error *err)
{
    if (bytes == 0)
        return err_set(err, FM_ERR_ARG, "%s is empty: give a key, or leave it out", source);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return err_set(err, FM_ERR_ARG, "%s has the byte 0x%02x, which a key in a header "
                           "cannot have: use letters, digits and punctuation", source,
                           (unsigned char)text[i]);
    for (size_t i = 0; i < keys->n; i++)
        if (strlen(keys->list[i].text) == bytes && memcmp(keys->list[i].text, text, bytes) == 0)
            return 0;
    const int rc = mem_grow((void **)&keys->list, &keys->cap, keys->n + 1, sizeof *keys->list,
                            "the API keys", err);
    if (rc != 0)
        return rc;
    struct access_key key = {.text = mem_new(bytes + 1, 1, "an API key", err),
                             .owner = XXH3_64bits(text, bytes)};
    if (key.text == NULL)
        return FM_ERR_NOMEM;
    memcpy(key.text, text, bytes);
    key.owner += key.owner == 0;
    keys->list[keys->n++] = key;
    return 0;
}

/* Reads the file. Checks the mode of the opened file, not of whatever has its path by now. */
static int read_file(const char *path, char **text, uint64_t *bytes, bool *is_exposed,
                     struct fm_error *err)
{
    struct stat st;
    int fd;
    *text = NULL;
    int rc = plat_open(path, &fd, bytes, err);
    if (rc != 0)
        return rc;
    if (fstat(fd, &st) != 0)
        rc = err_set(err, FM_ERR_IO, "cannot stat '%s': %s", path, strerror(errno));
    else if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        rc = err_set(err, FM_ERR_ARG, "%s may write the API keys '%s', and so add one: run chmod "
                     "600 on it", (st.st_mode & S_IWOTH) != 0 ? "every user" : "its group", path);
    else if (*bytes > FILE_BYTES)
        rc = err_set(err, FM_ERR_ARG, "the API keys '%s' have %llu bytes, more than the limit of "
                     "%zu", path, (unsigned long long)*bytes, FILE_BYTES);
    *is_exposed = rc == 0 && (st.st_mode & S_IROTH) != 0;
    if (rc == 0) {
        *text = mem_new(*bytes + 1, 1, path, err);
        rc = *text == NULL ? FM_ERR_NOMEM : plat_read_at(fd, path, *text, *bytes, 0, err);
    }
    plat_close(fd);
    if (rc != 0)
        mem_free(*text);
    return rc;
}

static int add_line(struct access_keys *keys, const char *line, size_t bytes, const char *path,
                    unsigned number, struct fm_error *err)
{
    char source[512];
    while (bytes > 0 && strchr(" \t\r", line[bytes - 1]) != NULL)
        bytes--;
    while (bytes > 0 && strchr(" \t", line[0]) != NULL) {
        line++;
        bytes--;
    }
    if (bytes == 0 || line[0] == '#')
        return 0;
    (void)snprintf(source, sizeof source, "line %u of the API keys '%s'", number, path);
    return access_keys_add(keys, line, bytes, source, err);
}

int access_keys_read(struct access_keys *keys, const char *path, bool *is_exposed,
                     struct fm_error *err)
{
    char *text;
    uint64_t bytes;
    int rc = read_file(path, &text, &bytes, is_exposed, err);
    if (rc != 0)
        return rc;
    const size_t n_before = keys->n;
    unsigned number = 0;
    for (size_t at = 0; rc == 0 && at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t n = end != NULL ? (size_t)(end - text) - at : bytes - at;
        rc = add_line(keys, text + at, n, path, number + 1, err);
        at += n + 1;
    }
    memset(text, 0, bytes);
    mem_free(text);
    if (rc == 0 && keys->n == n_before)
        rc = err_set(err, FM_ERR_ARG, "the API keys '%s' have no key: write one per line", path);
    return rc;
}

/* Compares every byte of the key, whatever was sent, so that timing reveals nothing. */
static bool is_same_key(const char *sent, size_t n_sent, const char *key)
{
    const size_t n = strlen(key);
    volatile unsigned char differs = n != n_sent;
    for (size_t i = 0; i < n; i++)
        differs = (unsigned char)(differs | (key[i] ^ (i < n_sent ? sent[i] : 0)));
    return differs == 0;
}

bool access_keys_find(const struct access_keys *keys, const char *sent, uint64_t *owner)
{
    const size_t n_sent = strlen(sent);
    uint64_t found = 0;
    for (size_t i = 0; i < keys->n; i++)
        found |= is_same_key(sent, n_sent, keys->list[i].text) ? keys->list[i].owner : 0;
    *owner = found;
    return found != 0;
}

void access_keys_clear(struct access_keys *keys)
{
    for (size_t i = 0; i < keys->n; i++) {
        memset(keys->list[i].text, 0, strlen(keys->list[i].text));
        mem_free(keys->list[i].text);
    }
    mem_free(keys->list);
    *keys = (struct access_keys){0};
}
