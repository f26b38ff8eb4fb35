/* GBNF: what compiles, what does not and why, and what fits. tests/clients/gbnf_test.py compares
 * more with another implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* after the headers that it needs */
#include <cmocka.h>

#include "grammar/gbnf_machine.h"

static const struct token_trie no_tokens = {.longest = 1};

/* Returns 2 if the text fits as a whole, 1 if it may go on, 0 if it does not fit. */
static int fits(const char *grammar, const char *text)
{
    struct gbnf *g;
    struct gbnf_machine *m;
    struct fm_error err = {0};
    if (gbnf_compile(grammar, strlen(grammar), &g, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(gbnf_machine_open(g, &no_tokens, &m, &err), 0);
    int found = 0;
    for (int i = 0; i < 2; i++) { /* again after a reset */
        int rc = 0;
        for (const char *c = text; rc == 0 && *c != '\0'; c++)
            rc = gbnf_machine_accept_bytes(m, c, 1, &err);
        found = rc != 0 ? 0 : gbnf_machine_may_end(m) ? 2 : 1;
        gbnf_machine_reset(m);
    }
    gbnf_machine_close(m);
    return found;
}

static void refuses(const char *grammar, const char *why)
{
    struct gbnf *g = NULL;
    struct fm_error err = {0};
    assert_int_equal(gbnf_compile(grammar, strlen(grammar), &g, &err), FM_ERR_ARG);
    assert_null(g);
    if (strstr(err.text, why) == NULL)
        fail_msg("'%s' is not in: %s", why, err.text);
}

static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *grammar, *text;
        int fits;
    } cases[] = {
        {"root ::= \"ab\" | \"ac\"", "ab", 2},
        {"root ::= \"ab\" | \"ac\"", "a", 1},
        {"root ::= \"ab\" | \"ac\"", "ad", 0},
        {"root ::= \"\"", "", 2},
        {"root ::= [a-c]{2,3}", "ab", 2},
        {"root ::= [a-c]{2,3}", "abca", 0},
        {"root ::= [a-c]{2}", "abc", 0},
        {"root ::= [a-c]{2,}", "abcabc", 2},
        {"root ::= \"x\"{0}", "x", 0},
        {"root ::= . .", "\n\xe6\x97\xa5", 2},
        {"root ::= [^a]", "\xe6\x97", 1},
        {"root ::= [a-z]", "\xe6", 0},
        {"root ::= .", "\xed\xa0", 0},      /* a surrogate */
        {"root ::= [\\uD700-\\uE001]", "\xed\x9f\xbf", 2},
        {"root ::= [\\uD700-\\uE001]", "\xee\x80\x80", 2},
        {"root ::= [\\uD700-\\uE001]", "\xed\xa0", 0},
        {"root ::= \"a\" | \"b\" [\\uD800]", "b", 0}, /* nothing could follow */
        {"root ::= .", "\xc0", 0},          /* a second spelling */
        {"root ::= .", "\xf0\x80", 0},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\\"\\\\\"", "A\xc3\xa9\xf0\x9f\x98\x80\"\\", 2},
        {"root ::= [\\]\\[a-]+", "][-a", 2},
        {"root ::= (\"a\"? \"b\"?)*", "abba", 2},
        {"root ::= a* \"z\"\na ::= b?\nb ::= \"b\"", "bbz", 2},
        {"root ::= \"a\" root | \"b\"", "aaab", 2},
        {"root ::= \"a\" | \"b\" never\nnever ::= \"c\" never", "b", 0},
        {"# first\nroot ::= x # then\n\n  | y\nx ::= \"x\"\ny ::= (\n \"y\"\n)\n", "y", 2},
        {"root ::= x-1\r\nx-1 ::= \"q\"\r\n", "q", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (fits(cases[i].grammar, cases[i].text) != cases[i].fits)
            fail_msg("%s: '%s'", cases[i].grammar, cases[i].text);
}

static void test_refused(void **state)
{
    (void)state;
    refuses("", "no rule 'root'");
    refuses("root ::= other", "'other' is not defined");
    refuses("\nroot ::= \"a\"\nroot ::= \"b\"", "line 3 of the grammar: a rule is defined twice");
    refuses("root = \"a\"", "'::='");
    refuses("root ::= \"a", "no end");
    refuses("root ::= [a", "no end");
    refuses("root ::= (\"a\"", "lacks its ')'");
    refuses("root ::= \"a\")", "neither");
    refuses("root ::= * \"a\"", "nothing to repeat");
    refuses("root ::= \"a\"{2,1}", "m up to n");
    refuses("root ::= \"a\"{2001}", "beyond 2000");
    refuses("root ::= \"a\"{x}", "{m}");
    refuses("root ::= \"\\q\"", "escape is unknown");
    refuses("root ::= \"\\xg0\"", "hexadecimal");
    refuses("root ::= \"\\UFFFFFFFF\"", "U+10FFFF");
    refuses("root ::= [z-a]", "ends before");
    refuses("root ::= root \"a\" | \"b\"", "'root' refers to itself");
    refuses("root ::= a\na ::= b a \"x\" | \"y\"\nb ::= \"\"", "refers to itself");
    refuses("root ::= \"a\" root", "never ends");
    refuses("root ::= [^\\x00-\\U0010FFFF]", "never ends");
    refuses("root ::= [\\uD800]", "never ends");
    refuses("root ::= \"a\" [^\\x00-\\uD7FF\\uE000-\\U0010FFFF]", "never ends");
    refuses("root ::= ((\"a\"{0,2000}){0,2000}){0,2000}", "too large");
}

/* A long answer and an ambiguous grammar stay within their bounds. */
static void test_bounds(void **state)
{
    (void)state;
    static const char deep[] = "root ::= \"(\" root \")\" | [a-z]* \"!\"";
    static const char many[] = "root ::= (a b | b a | a a | b b | a)* \"!\"\n"
                               "a ::= [x-z]+ a | [w-z]?\nb ::= \"x\" b | \"x\" a | \"y\"";
    static char text[40001];
    memset(text, '(', 40000);
    text[40000] = '\0';
    assert_int_equal(fits(deep, text), 0); /* no room for so many brackets */
    text[10000] = '\0';
    assert_int_equal(fits(deep, text), 1);
    memset(text, 'a', 40000);
    assert_int_equal(fits(deep, text), 1);
    memset(text, 'x', 3000);
    text[3000] = '!';
    text[3001] = '\0';
    assert_int_equal(fits(many, text), 2);
}

/* ---- grammars of many parts ----------------------------------------------------------------- */

static char made[1 << 18];

/* Makes a text of numbered parts: each %u in `part` is its number. */
static const char *make(const char *begin, const char *part, unsigned n, const char *end)
{
    size_t at = (size_t)snprintf(made, sizeof made, "%s", begin);
    for (unsigned i = 0; i < n; i++)
        at += (size_t)snprintf(made + at, sizeof made - at, part, i, i + 1);
    assert_true(at + strlen(end) < sizeof made);
    (void)snprintf(made + at, sizeof made - at, "%s", end);
    return made;
}

/* Refuses to open a machine, as the grammar would lose choices. */
static void refuses_start(const char *grammar, const char *why)
{
    struct gbnf *g;
    struct gbnf_machine *m;
    struct fm_error err = {0};
    assert_int_equal(gbnf_compile(grammar, strlen(grammar), &g, &err), 0);
    assert_int_equal(gbnf_machine_open(g, &no_tokens, &m, &err), FM_ERR_ARG);
    assert_null(m);
    if (strstr(err.text, why) == NULL)
        fail_msg("'%s' is not in: %s", why, err.text);
}

static void test_many_alternatives(void **state)
{
    (void)state;
    const char *grammar = make("root ::= \"b\"", " | \"a%03u\"", 511, "");
    assert_int_equal(fits(grammar, "a000"), 2);
    assert_int_equal(fits(grammar, "a510"), 2);
    assert_int_equal(fits(grammar, "a511"), 0);
    grammar = make("root ::= (\"b\"", " | \"a%03u\"", 511, ")*");
    assert_int_equal(fits(grammar, "a510ba000a509"), 2);
    refuses_start(make("root ::= \"b\"", " | \"a%03u\"", 512, ""), "more than 512 ways");
}

/* Rules that only refer to the next one, and empty parts. */
static void test_far_characters(void **state)
{
    (void)state;
    const char *grammar = make("root ::= \"y\" a0\n", "a%u ::= a%u\n", 4000, "a4000 ::= \"x\"");
    assert_int_equal(fits(grammar, "yx"), 2);
    grammar = make("root ::= a0\n", "a%u ::= a%u \")\"\n", 4000, "a4000 ::= \"x\"");
    assert_int_equal(fits(grammar, "x))))"), 1);
    refuses_start(make("e ::= \"\"\nroot ::=", " e", 40000, " \"x\""), "too deep");
}

/* ---- masks ---------------------------------------------------------------------------------- */

#define LETTERS 42u
#define TOKENS (LETTERS + LETTERS * LETTERS + LETTERS * LETTERS * LETTERS)

static struct trie_node all_nodes[TOKENS];
static int32_t all_same[TOKENS];

/* Adds all tokens of one to three letters that begin with those before. */
static void add_tokens(struct token_trie *t, uint16_t depth)
{
    for (uint32_t i = 0; depth <= 3 && i < LETTERS; i++) {
        const uint32_t at = t->n_nodes++;
        all_nodes[at] = (struct trie_node){.token = (int32_t)at, .depth = depth,
                                           .byte = (uint8_t)('A' + i)};
        all_same[at] = -1;
        add_tokens(t, depth + 1);
        all_nodes[at].end = t->n_nodes;
    }
}

/* Opens a machine with these tokens. */
static struct gbnf_machine *open_with_tokens(const char *grammar)
{
    static struct token_trie trie;
    struct gbnf *g;
    struct gbnf_machine *m;
    struct fm_error err = {0};
    trie = (struct token_trie){.nodes = all_nodes, .same = all_same, .n_ids = TOKENS, .longest = 3};
    add_tokens(&trie, 1);
    assert_int_equal(gbnf_compile(grammar, strlen(grammar), &g, &err), 0);
    assert_int_equal(gbnf_machine_open(g, &trie, &m, &err), 0);
    return m;
}

static uint32_t count_bits(const uint32_t *mask)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= TOKENS / 32; i++)
        n += (uint32_t)__builtin_popcount(mask[i]);
    return n;
}

/* Equal alternatives cost as much as there are, not their square. Each byte is tried once from each
 * state, of which there are few, and not once for each token. */
static void test_equal_alternatives(void **state)
{
    (void)state;
    static const char *const ends[] = {")*", "){0,2000}"};
    for (int i = 0; i < 2; i++) {
        struct gbnf_machine *m = open_with_tokens(make("root ::= (.", " | .", 63, ends[i]));
        assert_int_equal(count_bits(gbnf_machine_mask(m)), TOKENS);
        assert_in_range(gbnf_machine_steps(m), LETTERS * 64, 4 * LETTERS * 64 * 6);
        assert_int_equal(gbnf_machine_check(m, NULL), 0);
        gbnf_machine_close(m);
    }
}

/* Returns `begin (...)*` with alternatives of three sets, each without one of `one_of` letters and
 * the first letter: nearly every text of three letters leads to a state of its own. */
static const char *make_many_states(const char *begin, int n_alternatives, uint32_t one_of)
{
    uint32_t seed = 1;
    size_t n = (size_t)snprintf(made, sizeof made, "%s(", begin);
    for (int i = 0; i < n_alternatives; i++) {
        n += (size_t)snprintf(made + n, sizeof made - n, "%s", i > 0 ? " | " : "");
        for (int k = 0; k < 3; k++) {
            n += (size_t)snprintf(made + n, sizeof made - n, "[^A");
            for (uint32_t c = 1; c < LETTERS; c++) {
                seed = seed * 1664525 + 1013904223;
                if ((seed >> 16) % one_of == 0)
                    n += (size_t)snprintf(made + n, sizeof made - n, "\\x%02x", 'A' + c);
            }
            n += (size_t)snprintf(made + n, sizeof made - n, "]");
        }
    }
    n += (size_t)snprintf(made + n, sizeof made - n, ")*");
    assert_true(n < sizeof made);
    return made;
}

/* Much work is done up to the limit. */
static void test_ambiguous(void **state)
{
    (void)state;
    struct gbnf_machine *m = open_with_tokens(make_many_states("root ::= \"A\" ", 250, 4));
    assert_int_equal(gbnf_machine_accept_bytes(m, "A", 1, NULL), 0);
    const uint32_t n_allowed = count_bits(gbnf_machine_mask(m));
    assert_in_range(n_allowed, TOKENS * 9 / 10, TOKENS);
    assert_in_range(gbnf_machine_steps(m), 1 << 25, 1 << 27);
    assert_int_equal(gbnf_machine_check(m, NULL), 0);
    gbnf_machine_close(m);
}

/* Too much work fails, and a reset makes the machine usable again. */
static void test_too_ambiguous(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct gbnf_machine *m = open_with_tokens(make_many_states("root ::= \"A\" ", 500, 10));
    for (int i = 0; i < 2; i++) {
        const uint32_t n_first = count_bits(gbnf_machine_mask(m));
        assert_in_range(n_first, 1 + 40, 1 + LETTERS + LETTERS * LETTERS);
        assert_int_equal(gbnf_machine_accept_bytes(m, "A", 1, &err), 0);
        assert_true(gbnf_machine_may_end(m));
        assert_int_equal(count_bits(gbnf_machine_mask(m)), 0);
        assert_false(gbnf_machine_may_end(m));
        assert_in_range(gbnf_machine_steps(m), 1 << 27, (1 << 27) + (1 << 20));
        assert_int_equal(gbnf_machine_check(m, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "the grammar is too ambiguous"));
        assert_int_equal(gbnf_machine_accept_bytes(m, "A", 1, &err), FM_ERR_ARG);
        gbnf_machine_reset(m);
    }
    gbnf_machine_close(m);
}

/* A table that other states have filled is emptied, also for a state that it knows: "AAA" has a
 * number by the first mask, which ends there; those behind it have none. */
static void test_full_of_others(void **state)
{
    (void)state;
    static char begin[1024];
    size_t n = (size_t)snprintf(begin, sizeof begin, "root ::= \"AAA\" . (.");
    for (int i = 0; i < 199; i++)
        n += (size_t)snprintf(begin + n, sizeof begin - n, " | .");
    (void)snprintf(begin + n, sizeof begin - n, ")* | ");
    struct gbnf_machine *m = open_with_tokens(make_many_states(begin, 200, 4));
    (void)gbnf_machine_mask(m);
    assert_int_equal(gbnf_machine_accept_bytes(m, "AAA", 3, NULL), 0);
    assert_int_equal(count_bits(gbnf_machine_mask(m)), TOKENS);
    assert_in_range(gbnf_machine_steps(m), LETTERS, 4 * LETTERS * 200 * 6);
    gbnf_machine_close(m);
}

/* An answer that cannot go on, because what follows is out of reach. */
static void test_stuck(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct gbnf_machine *m = open_with_tokens(
        make("e ::= \"\"\nroot ::= \"A\"", " e", 40000, " \"B\""));
    assert_int_equal(count_bits(gbnf_machine_mask(m)), 0);
    assert_int_equal(gbnf_machine_check(m, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "no token can follow"));
    gbnf_machine_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_many_alternatives),
        cmocka_unit_test(test_far_characters), cmocka_unit_test(test_equal_alternatives),
        cmocka_unit_test(test_ambiguous), cmocka_unit_test(test_too_ambiguous),
        cmocka_unit_test(test_full_of_others), cmocka_unit_test(test_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
