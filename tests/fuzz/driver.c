/* Runs a fuzz target over files and folders of inputs, so that a corpus is an ordinary test with
 * any compiler. `driver CORPUS...`; fails if there is no input at all. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_inputs;

static int run_file(const char *path, size_t size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(size); /* exact, so that a sanitizer sees an overrun */
    if (f == NULL || (data == NULL && size > 0) || fread(data, 1, size, f) != size) {
        fprintf(stderr, "cannot read '%s'\n", path);
        if (f != NULL)
            (void)fclose(f);
        free(data);
        return 1;
    }
    (void)fclose(f);
    printf("%s: %zu bytes\n", path, size);
    (void)fflush(stdout); /* the last line names the input that crashed */
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
    n_inputs++;
    return 0;
}

static int run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "no such input: '%s'\n", path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode))
        return run_file(path, (size_t)st.st_size);
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, alphasort);
    int failed = n < 0;
    for (int i = 0; i < n; i++) {
        char inner[4096];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        if (length < 0 || (size_t)length >= sizeof inner)
            failed = 1;
        else if (entries[i]->d_name[0] != '.')
            failed |= run_path(inner);
        free(entries[i]);
    }
    free(entries);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_path(argv[i]);
    printf("%u inputs\n", n_inputs);
    return failed || n_inputs == 0;
}
