#include "apps/cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define GIB (1024ull * 1024 * 1024)

/* ---- sizes ----------------------------------------------------------------------------- */

static void check_bytes(const char *text, uint64_t expected)
{
    struct fm_error err = {0};
    uint64_t bytes = 0;
    assert_int_equal(bytes_parse(text, 1000, &bytes, &err), 0);
    if (bytes != expected)
        fail_msg("'%s' gave %llu, not %llu", text, (unsigned long long)bytes,
                 (unsigned long long)expected);
}

static void test_sizes(void **state)
{
    (void)state;
    check_bytes("0", 0);
    check_bytes("4096", 4096);
    check_bytes("12B", 12);
    check_bytes("1K", 1024);
    check_bytes("1KiB", 1024);
    check_bytes("1KB", 1000);
    check_bytes("1kB", 1000);
    check_bytes("512M", 512ull * 1024 * 1024);
    check_bytes("3MB", 3000000);
    check_bytes("8G", 8 * GIB);
    check_bytes("8g", 8 * GIB);
    check_bytes("8 GiB", 8 * GIB);
    check_bytes("1.5GiB", GIB + GIB / 2);
    check_bytes("8GB", 8000000000ull);
    check_bytes("2T", 2048 * GIB);
    check_bytes("2TB", 2000000000000ull);
    check_bytes("70%", 700);
    check_bytes("12.5%", 125);
    check_bytes("100%", 1000);
}

static void test_bad_sizes(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     "G",   "-1G",   "+1G",  "8Q",  "8GG",  "1e9", "0x10",
                                      "inf",  "nan", ".5G",   "1..5G", "1 2", "8G ", "0%",  "101%",
                                      "8388608T", "99999999999999999999999", "8  G", "G8"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fm_error err = {0};
        uint64_t bytes;
        if (bytes_parse(bad[i], 1000, &bytes, &err) != FM_ERR_ARG || err.text[0] == '\0')
            fail_msg("'%s' was taken, or refused without a sentence", bad[i]);
    }
    struct fm_error err = {0};
    uint64_t bytes;
    assert_int_equal(bytes_parse("70%", 0, &bytes, &err), FM_ERR_ARG);
}

/* ---- nearest word ---------------------------------------------------------------------- */

static void test_nearest(void **state)
{
    (void)state;
    static const char *const words[] = {"temp", "top-k", "top-p", "threads", "memory", "n-tokens",
                                        "prefill-chunk", NULL};
    assert_string_equal(nearest_word("tmep", words), "temp");
    assert_string_equal(nearest_word("temperature", (const char *const[]){"temperatur", NULL}),
                        "temperatur");
    assert_string_equal(nearest_word("mem", words), "memory");
    assert_string_equal(nearest_word("memroy", words), "memory");
    assert_string_equal(nearest_word("ntokens", words), "n-tokens");
    assert_string_equal(nearest_word("prefil-chunk", words), "prefill-chunk");
    assert_null(nearest_word("zzz", words));
    assert_null(nearest_word("x", words));
    assert_null(nearest_word("something-else-entirely", words));
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(nearest_word(longest, words));
}

/* ---- the command line ------------------------------------------------------------------ */

static const struct option test_options[] = {
    {.name = "count", .letter = 'n', .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 100,
     .value = "7", .help = "A number"},
    {.name = "ratio", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 1,
     .help = "A ratio"},
    {.name = "text", .letter = 't', .kind = OPTION_STRING, .metavar = "TEXT", .help = "A text"},
    {.name = "size", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1024, .help = "A size"},
    {.name = "fast", .letter = 'f', .kind = OPTION_FLAG, .excludes = "ratio text", .help = "Fast"},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, .help = "Quiet"},
    {.name = "help", .letter = 'h', .kind = OPTION_FLAG, .help = "Help"},
    {.name = "many", .kind = OPTION_STRING, .metavar = "X", .is_many = true, .help = "Many"},
    {.name = NULL},
};
static const struct option_group test_group = {"Options", test_options};
static const struct command test_command = {
    .name = "test",
    .operands = (const struct operand[]){{.name = "ONE", .help = "The first"},
                                         {.name = "TWO", .help = "The second",
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&test_group, NULL},
};
static const struct option other_list[] = {
    {.name = "porch", .letter = 'p', .kind = OPTION_UINT, .metavar = "N", .help = "A porch"},
    {.name = "parallel", .kind = OPTION_UINT, .metavar = "N", .help = "At a time"},
    {.name = NULL},
};
static const struct option_group other_group = {"Others", other_list};
static const struct command other_command = {
    .name = "other", .groups = (const struct option_group *const[]){&other_group, NULL}};
static const struct command *const test_commands_list[] = {&test_command, &other_command, NULL};

/* `line` is split at single blanks. */
static int parse(const char *line, struct args *args, struct fm_error *err)
{
    static char copy[256];
    char *argv[16];
    int argc = 0;
    assert_true(strlen(line) < sizeof copy);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return args_parse(test_commands_list, &test_command, argc, argv, args, err);
}

static void test_forms(void **state)
{
    (void)state;
    static const char *const same[] = {"one -n 32", "one -n32", "-n32 one", "one --count 32",
                                       "one --count=32", "-q --count 32 -- one", "-qn32 one",
                                       "-n 5 -n 32 one"};
    struct args args;
    struct fm_error err = {0};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (parse(same[i], &args, &err) != 0)
            fail_msg("'%s': %s", same[i], err.text);
        assert_int_equal(args_uint(&args, "count"), 32);
        assert_true(args_given(&args, "count"));
        assert_int_equal(args.n_operands, 1);
        assert_string_equal(args_operand(&args, 0), "one");
        assert_null(args_operand(&args, 1));
    }
    assert_int_equal(parse("one -- --fast", &args, &err), 0);
    assert_false(args_flag(&args, "fast"));
    assert_string_equal(args_operand(&args, 1), "--fast");
    assert_int_equal(parse("one --text=a=b --ratio 0.5 --size 4K -", &args, &err), 0);
    assert_string_equal(args_text(&args, "text"), "a=b");
    assert_true(args_float(&args, "ratio") == 0.5);
    assert_int_equal(args_uint(&args, "size"), 4096);
    assert_string_equal(args_operand(&args, 1), "-");
    assert_int_equal(parse("one -t -q", &args, &err), 0);
    assert_string_equal(args_text(&args, "text"), "-q");
    assert_false(args_flag(&args, "quiet"));
}

static void test_many(void **state)
{
    (void)state;
    struct args args;
    struct fm_error err = {0};
    assert_int_equal(parse("one", &args, &err), 0);
    assert_int_equal(args_count(&args, "many"), 0);
    assert_int_equal(parse("--many a one --many=b,c --many a", &args, &err), 0);
    assert_int_equal(args_count(&args, "many"), 3);
    assert_string_equal(args_text_at(&args, "many", 0), "a");
    assert_string_equal(args_text_at(&args, "many", 1), "b,c");
    assert_string_equal(args_text_at(&args, "many", 2), "a");
}

static void test_defaults(void **state)
{
    (void)state;
    struct args args;
    struct fm_error err = {0};
    assert_int_equal(parse("one", &args, &err), 0);
    assert_int_equal(args_uint(&args, "count"), 7);
    assert_false(args_given(&args, "count"));
    assert_true(args_has(&args, "count"));
    assert_false(args_has(&args, "text"));
    assert_null(args_text(&args, "text"));
    assert_int_equal(args_uint(&args, "size"), 0);
}

static void test_help_wins(void **state)
{
    (void)state;
    struct args args;
    struct fm_error err = {0};
    assert_int_equal(parse("--help", &args, &err), 0);
    assert_true(args.wants_help);
    assert_int_equal(parse("one -h --nonsense", &args, &err), 0);
    assert_true(args.wants_help);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "ONE is missing"},
        {"one two three", "unexpected argument 'three'"},
        {"one --cuont 3", "unknown option '--cuont'; did you mean '--count'?"},
        {"one --cuont=3", "unknown option '--cuont'; did you mean '--count'?"},
        {"one -count 3", "unknown option '-count'; did you mean '--count'?"},
        {"one --zzz", "'flashmoe help test' lists the options"},
        {"one --porch 3", "'--porch' is an option of 'flashmoe other', not of 'flashmoe test'"},
        {"one --porch=3", "'--porch' is an option of 'flashmoe other'"},
        {"one -np 3", "unknown option '-np'"},
        {"one -x", "unknown option '-x'"},
        {"one -qx", "unknown option '-x'"},
        {"one --count", "--count needs a value: --count N"},
        {"one -n", "--count needs a value"},
        {"one --count 0", "0 is out of range: 1 to 100"},
        {"one --count 101", "out of range"},
        {"one --count 18446744073709551616", "out of range"},
        {"one --count -1", "-1 is out of range: 1 to 100"},
        {"one --count 1x", "'1x' is not a whole number"},
        {"one --count=", "'' is not a whole number"},
        {"one --ratio 2", "2 is out of range: 0 to 1"},
        {"one --ratio nan", "'nan' is not a number"},
        {"one --ratio 0.5x", "'0.5x' is not a number"},
        {"one --size 8", "8 is 8 bytes"},
        {"one --quiet=yes", "--quiet takes no value"},
        {"one --fast --ratio 1", "--fast and --ratio cannot be used together"},
        {"one -f -tx", "--fast and --text cannot be used together"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct args args;
        struct fm_error err = {0};
        if (parse(cases[i].line, &args, &err) != FM_ERR_ARG ||
            strstr(err.text, cases[i].says) == NULL)
            fail_msg("'%s' gave '%s', not '%s'", cases[i].line, err.text, cases[i].says);
    }
}

static void test_commands(void **state)
{
    (void)state;
    static const struct command run = {.name = "run"}, nll = {.name = "eval nll"},
                                facts = {.name = "eval facts"};
    const struct command *const list[] = {&run, &nll, &facts, NULL};
    const struct command *found = NULL;
    struct fm_error err = {0};
    int n_words = 0;
    char w_run[] = "run", w_eval[] = "eval", w_facts[] = "facts", w_rnu[] = "rnu", w_x[] = "x";
    char *one[] = {w_run, w_eval}, *two[] = {w_eval, w_facts};
    assert_int_equal(command_find(list, 2, one, &found, &n_words, &err), 0);
    assert_ptr_equal(found, &run);
    assert_int_equal(n_words, 1);
    assert_int_equal(command_find(list, 2, two, &found, &n_words, &err), 0);
    assert_ptr_equal(found, &facts);
    assert_int_equal(n_words, 2);
    assert_int_equal(command_find(list, 1, two, &found, &n_words, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "'flashmoe eval nll', 'flashmoe eval facts'"));
    char *half[] = {w_eval, w_x}, *typo[] = {w_rnu};
    assert_int_equal(command_find(list, 2, half, &found, &n_words, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "unknown command 'eval x'"));
    assert_int_equal(command_find(list, 1, typo, &found, &n_words, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "did you mean 'run'?"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_nearest),   cmocka_unit_test(test_forms),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_help_wins),
        cmocka_unit_test(test_mistakes),  cmocka_unit_test(test_commands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
