/* The C side of compare_tokenizers.py and check_frozen.py.
 *
 * usage: tokenize_lines TOKENIZER.json|FILE.gguf|tiktoken.model encode|plain|decode|speed|json
 *        tokenize_lines qwen2|gpt-4o|... pieces
 *
 * encode, plain: reads texts, each a 32-bit length and its bytes; writes for each a 32-bit count
 * and the ids, with added tokens recognised or not. decode: reads lists of ids, each a 32-bit
 * count and 32-bit ids; pushes them through the streaming decoder and writes for each a 32-bit
 * length and the text; a piece that is not whole UTF-8 ends the program with status 2. pieces:
 * reads texts; writes for each a 32-bit count and the 32-bit lengths of the pieces, of its NFC
 * form if the pattern has one. Integers are in machine order. speed: encodes all of stdin and
 * reports to stderr. json: writes the tokenizer.json that a GGUF file gives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "base/jdoc.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/gguf_internal.h"
#include "text/nfc.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static void fail(const char *text)
{
    (void)fprintf(stderr, "tokenize_lines: %s\n", text);
    exit(2);
}

static void put(const void *data, size_t bytes)
{
    if (bytes > 0 && fwrite(data, 1, bytes, stdout) != bytes)
        fail("cannot write");
}

/* Reads one record of n items. Returns false at the end of the input. */
static bool get_record(void **data, size_t *capacity, size_t item_bytes, uint32_t *n)
{
    if (fread(n, sizeof *n, 1, stdin) != 1)
        return false;
    if (mem_grow(data, capacity, (size_t)*n * item_bytes + 1, 1, "a record", NULL) != 0)
        fail("out of memory");
    if (*n > 0 && fread(*data, item_bytes, *n, stdin) != *n)
        fail("the input ends inside a record");
    return true;
}

static void encode_all(const struct tokenizer *tok, bool with_special)
{
    void *text = NULL;
    size_t capacity = 0;
    uint32_t bytes;
    while (get_record(&text, &capacity, 1, &bytes)) {
        int32_t *ids;
        size_t n_ids;
        struct fm_error err;
        if (tokenizer_encode(tok, text, bytes, with_special, &ids, &n_ids, &err) != 0)
            fail(err.text);
        const uint32_t n = (uint32_t)n_ids;
        put(&n, sizeof n);
        put(ids, n_ids * sizeof *ids);
        mem_free(ids);
    }
    mem_free(text);
}

static void decode_all(const struct tokenizer *tok)
{
    struct fm_error err;
    struct token_decoder decoder;
    if (token_decoder_init(&decoder, tok, &err) != 0)
        fail(err.text);
    void *ids = NULL, *out = NULL;
    size_t ids_capacity = 0, out_capacity = 0;
    uint32_t n;
    while (get_record(&ids, &ids_capacity, sizeof(int32_t), &n)) {
        size_t n_out = 0;
        for (uint32_t i = 0; i <= n; i++) {
            const char *text;
            size_t bytes;
            if (i == n)
                token_decoder_finish(&decoder, &text, &bytes);
            else if (token_decoder_push(&decoder, ((int32_t *)ids)[i], &text, &bytes, &err) != 0)
                fail(err.text);
            if (utf8_count_bad((const uint8_t *)text, bytes) > 0)
                fail("a decoded piece is not whole UTF-8");
            if (mem_grow(&out, &out_capacity, n_out + bytes + 1, 1, "text", NULL) != 0)
                fail("out of memory");
            memcpy((char *)out + n_out, text, bytes);
            n_out += bytes;
        }
        const uint32_t out_bytes = (uint32_t)n_out;
        put(&out_bytes, sizeof out_bytes);
        put(out, n_out);
    }
    mem_free(ids);
    mem_free(out);
    token_decoder_clear(&decoder);
}

static void split_all(const struct pretok *pattern)
{
    struct nfc_buffer nfc = {0};
    void *text = NULL, *lengths = NULL;
    size_t capacity = 0, lengths_capacity = 0;
    uint32_t bytes;
    while (get_record(&text, &capacity, 1, &bytes)) {
        const uint8_t *normal = text;
        size_t n_normal = bytes;
        if (pattern->gguf_has_nfc) {
            if (nfc_normalize(&nfc, text, bytes, NULL) != 0)
                fail("out of memory");
            normal = nfc.text;
            n_normal = nfc.bytes;
        }
        if (mem_grow(&lengths, &lengths_capacity, n_normal + 1, sizeof bytes, "pieces", NULL) != 0)
            fail("out of memory");
        uint32_t n = 0;
        for (size_t at = 0; at < n_normal; n++) {
            const size_t length = pattern->next(normal + at, n_normal - at);
            ((uint32_t *)lengths)[n] = (uint32_t)length;
            at += length;
        }
        put(&n, sizeof n);
        put(lengths, n * sizeof n);
    }
    nfc_clear(&nfc);
    mem_free(text);
    mem_free(lengths);
}

static void measure(const struct tokenizer *tok)
{
    void *text = NULL;
    size_t capacity = 0, bytes = 0;
    for (;;) {
        if (mem_grow(&text, &capacity, bytes + (1 << 20), 1, "text", NULL) != 0)
            fail("out of memory");
        const size_t got = fread((char *)text + bytes, 1, 1 << 20, stdin);
        if (got == 0)
            break;
        bytes += got;
    }
    struct fm_error err;
    int32_t *ids;
    size_t n_ids;
    const uint64_t begin = plat_now_ns();
    if (tokenizer_encode(tok, text, bytes, true, &ids, &n_ids, &err) != 0)
        fail(err.text);
    const double seconds = (double)(plat_now_ns() - begin) / 1e9;
    (void)fprintf(stderr, "%zu bytes, %zu ids, %.3f s, %.1f MB/s\n", bytes, n_ids, seconds,
                  (double)bytes / 1e6 / seconds);
    mem_free(ids);
    mem_free(text);
}

/* Opens the tokenizer of a GGUF file and ignores its tensors. */
static struct tokenizer *open_gguf(const char *path, bool prints)
{
    int fd;
    uint64_t bytes;
    struct fm_error err;
    struct gguf g;
    struct source source = {.path = NULL};
    struct tokenizer *tok = NULL;
    struct model_gguf names;
    model_gguf_init(&names, arch_families());
    if (plat_open(path, &fd, &bytes, &err) != 0 || gguf_read(&g, fd, path, bytes, &err) != 0 ||
        gguf_add_texts(&source, &g, names.patterns, NULL, &err) != 0)
        fail(err.text);
    if (source.n_texts == 0)
        fail("the file has no tokenizer");
    if (prints)
        put(source.texts[0].text, source.texts[0].bytes);
    else if (tokenizer_parse(path, source.texts[0].text, source.texts[0].bytes, &tok, &err) != 0)
        fail(err.text);
    for (unsigned i = 0; i < source.n_texts; i++)
        mem_free(source.texts[i].text);
    gguf_clear(&g);
    plat_close(fd);
    return tok;
}

/* Opens Kimi's tiktoken.model with the tokenizer_config.json beside it. */
static struct tokenizer *open_tiktoken(const char *path)
{
    struct fm_error err;
    struct tokenizer *tok = NULL;
    struct jdoc config;
    char name[4096];
    const char *slash = strrchr(path, '/');
    (void)snprintf(name, sizeof name, "%.*stokenizer_config.json",
                   slash != NULL ? (int)(slash + 1 - path) : 0, path);
    void *text = NULL;
    size_t capacity = 0, bytes = 0, got = 1;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail("cannot open tiktoken.model");
    for (; got > 0; bytes += got) {
        if (mem_grow(&text, &capacity, bytes + (1 << 20), 1, "text", NULL) != 0)
            fail("out of memory");
        got = fread((char *)text + bytes, 1, 1 << 20, file);
    }
    (void)fclose(file);
    if (jdoc_load(&config, name, 1 << 20, &err) != 0 ||
        tokenizer_parse_tiktoken(path, text, bytes, &config, &tok, &err) != 0)
        fail(err.text);
    jdoc_clear(&config);
    mem_free(text);
    return tok;
}

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), n_end = strlen(end);
    return n > n_end && strcmp(path + n - n_end, end) == 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage: tokenize_lines TOKENIZER.json|FILE.gguf|tiktoken.model|PATTERN "
             "encode|plain|decode|speed|pieces|json");
    if (strcmp(argv[2], "pieces") == 0) {
        const struct pretok *pattern = pretok_find_gguf(argv[1], strlen(argv[1]));
        if (pattern == NULL)
            fail("there is no such pattern");
        split_all(pattern);
        return fflush(stdout) == 0 ? 0 : 2;
    }
    struct tokenizer *tok = NULL;
    struct fm_error err;
    const bool prints = strcmp(argv[2], "json") == 0;
    const uint64_t begin = plat_now_ns();
    if (ends_in(argv[1], ".gguf"))
        tok = open_gguf(argv[1], prints);
    else if (ends_in(argv[1], ".model"))
        tok = open_tiktoken(argv[1]);
    else if (tokenizer_open(argv[1], &tok, &err) != 0)
        fail(err.text);
    const double seconds = (double)(plat_now_ns() - begin) / 1e9;
    if (prints)
        return fflush(stdout) == 0 ? 0 : 2;
    if (strcmp(argv[2], "encode") == 0)
        encode_all(tok, true);
    else if (strcmp(argv[2], "plain") == 0)
        encode_all(tok, false);
    else if (strcmp(argv[2], "decode") == 0)
        decode_all(tok);
    else if (strcmp(argv[2], "speed") == 0) {
        (void)fprintf(stderr, "opened in %.3f s, %.1f MB resident, %.1f MB at most\n", seconds,
                      (double)plat_resident_bytes() / 1e6,
                      (double)plat_resident_peak_bytes() / 1e6);
        measure(tok);
    } else
        fail("unknown mode");
    tokenizer_close(tok);
    return fflush(stdout) == 0 ? 0 : 2;
}
