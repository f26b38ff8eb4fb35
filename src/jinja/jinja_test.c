#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "jinja/jinja.h"
#include "small_stack.h"

static const char variables[] =
    "{\"name\": \"Z\\u00fcrich\", \"n\": 7, \"f\": 0.1, \"list\": [3, 1, 2], \"none\": null,"
    " \"d\": {\"b\": 1, \"a\": [true, 1e22]}, \"rows\": [{\"k\": \"x\"}, {\"k\": \"y\"}]}";

static int render(const char *source, const struct jinja_limits *limits, char **text,
                  struct fm_error *err)
{
    struct jinja *jinja;
    struct jinja_rendering rendering = {0};
    json_t *json = json_loads(variables, 0, NULL);
    struct jinja_input input = {.variables = json, .now_s = 86400 + 3661, .now_offset_s = 60};
    if (limits != NULL)
        input.limits = *limits;
    int rc = jinja_compile("t", source, strlen(source), &jinja, err);
    if (rc == 0)
        rc = jinja_render(jinja, &input, &rendering, err);
    *text = rendering.text;
    rendering.text = NULL;
    jinja_rendering_clear(&rendering);
    jinja_free(jinja);
    json_decref(json);
    return rc;
}

static void check(const char *source, const char *want)
{
    char *text;
    struct fm_error err = {0};
    if (render(source, NULL, &text, &err) != 0)
        print_error("%s: %s\n", source, err.text);
    assert_int_equal(err.code, 0);
    assert_string_equal(text, want);
    mem_free(text);
}

static void check_fails(const char *source, int code, const char *part)
{
    char *text;
    struct fm_error err = {0};
    assert_int_equal(render(source, NULL, &text, &err), code);
    assert_int_equal(err.code, code);
    if (strstr(err.text, part) == NULL)
        print_error("%s: %s\n", source, err.text);
    assert_non_null(strstr(err.text, part));
    assert_null(text);
}

static void test_expressions(void **state)
{
    (void)state;
    check("{{ 1 + 2 * 3 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1 / 4 }}",
          "7 -4 2 1024 0.25");
    check("{{ f }} {{ 1e16 }} {{ 1.5e-7 }} {{ 100.0 }} {{ 1e22 }}",
          "0.1 1e+16 1.5e-07 100.0 1e+22");
    check("{{ d }} {{ [none, 'it\\'s', (1,)] }}",
          "{'b': 1, 'a': [True, 1e+22]} [None, \"it's\", (1,)]");
    check("{{ name[1:-1] }} {{ name[::-1] }} {{ name|length }} {{ name[1] }}", "üric hcirüZ 6 ü");
    check("{{ 1 < 2 < 3 }} {{ 3 in list }} {{ 'x' not in 'abc' }} {{ n if false }}",
          "True True True ");
    check("{{ '%s is %03d' % ('a', 5) }} {{ '{:>4}|{0}'.format(1) if false else 'ok' }}",
          "a is 005 ok");
    check("{{ missing }}{{ missing is defined }} {{ d.zz is undefined }} {{ d['a'][0] }}",
          "False True True");
}

static void test_statements(void **state)
{
    (void)state;
    check("{% for x in list if x > 1 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}"
          "{% else %}none{% endfor %}", "1:3,2:2");
    check("{% set x = 1 %}{% for i in list %}{% set x = 2 %}{% endfor %}{{ x }}", "1");
    check("{% set ns = namespace(x=1) %}{% for i in list %}{% set ns.x = i %}{% endfor %}"
          "{{ ns.x }}", "2");
    check("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }} "
          "{{ m(1, 3, 4) }}",
          "12() 13(4,)");
    check("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}"
          "{% endif %}{{ i }}{% endfor %}", "013");
    check("{% set t %} a {% endset %}{{ t|trim }}{% filter upper %}b{% endfilter %}", "aB");
    check("{% generation %}x{% endgeneration %}{% raw %}{{ y }}{% endraw %}", "x{{ y }}");
    check("a\n  {% if true %}\n  b\n  {%- endif %}\n c\n", "a\n  b c");
    check("{{ rows|map(attribute='k')|join('-') }} {{ d|tojson }} {{ list|sort|tojson(indent=1) }}",
          "x-y {\"b\": 1, \"a\": [true, 1e+22]} [\n 1,\n 2,\n 3\n]");
    check("{% set a = [1] %}{% set b = a %}{% set ns = namespace(q=[]) %}{{ b.append('x') }}"
          "{% for i in a %}{% set _ = ns.q.append(i) %}{% endfor %}"
          "{{ a }}{{ ns.q }}{{ [].append(1) }}", "None[1, 'x'][1, 'x']None");
    check("{% set a = [1, 2, 3, 4] %}{{ a.pop() }}{{ a.pop(0) }}{{ a.pop(-2) }}{{ a }}", "412[3]");
    check("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}", "1970-01-02 01:02:01");
}

static void test_faults(void **state)
{
    (void)state;
    check_fails("\n{{ missing.x }}", FM_ERR_FORMAT, "t: line 2:");
    check_fails("{% for x in list %}", FM_ERR_FORMAT, "endfor");
    check_fails("{{ 'a' + 1 }}", FM_ERR_FORMAT, "str and int");
    check_fails("{{ list.extend([1]) }}", FM_ERR_FORMAT, "called");
    check_fails("{{ [].pop() }}", FM_ERR_FORMAT, "pop: the list has 0 elements");
    check_fails("{{ [1].pop(-2) }}", FM_ERR_FORMAT, "pop: the list has 1 elements");
    check_fails("{{ [1].pop('0') }}", FM_ERR_FORMAT, "pop");
    check_fails("{{ (1, 2).pop() }}", FM_ERR_FORMAT, "");
    check_fails("{% for x in list %}{{ list.pop() }}{% endfor %}", FM_ERR_FORMAT, "loop");
    check_fails("{% for x in list %}{{ list.append(1) }}{% endfor %}", FM_ERR_FORMAT, "loop");
    check_fails("{% for x in list if list.append(1) %}{% endfor %}", FM_ERR_FORMAT, "loop");
    check_fails("{% set a = [] %}{{ a.append(a) }}{{ a }}", FM_ERR_ARG, "deep");
    check_fails("{% set a = [] %}{{ a.append(a) }}{{ a | tojson }}", FM_ERR_ARG, "deep");
    check_fails("{% set a = [] %}{% set b = [a] %}{{ a.append(b) }}{{ a == b }}", FM_ERR_ARG,
                "deep");
    check_fails("{{ x|nosuch }}", FM_ERR_FORMAT, "nosuch");
    check_fails("{% include 'a' %}", FM_ERR_UNSUPPORTED, "include");
    check_fails("\n\n{{ raise_exception('no ' ~ n) }}", FM_ERR_ARG, "no 7");
    check_fails("{{ 9223372036854775807 + 1 }}", FM_ERR_FORMAT, "64 bits");
}

static void test_limits(void **state)
{
    (void)state;
    const struct jinja_limits few = {.n_steps = 100000, .memory_bytes = 16 << 20,
                                     .output_bytes = 1000};
    static const char *const cases[][2] = {
        {"{% for a in range(999) %}{% for b in range(99) %}{% endfor %}{% endfor %}", "steps"},
        {"{{ 'x' * 99999999 }}", "memory"},
        {"{% for a in range(200) %}0123456789{% endfor %}", "writes more than 1000 bytes"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels"},
        {"{% set ns = namespace(a=[]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}"
         "{% endfor %}{{ ns.a == ns.a|list }}{{ ns.a|tojson|length }}", "more than"},
        {"{{ range(100001) }}", "100001"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text;
        struct fm_error err = {0};
        const bool is_range = strstr(cases[i][0], "100001") != NULL;
        assert_int_equal(render(cases[i][0], &few, &text, &err),
                         is_range ? FM_ERR_FORMAT : FM_ERR_ARG);
        if (strstr(err.text, cases[i][1]) == NULL)
            print_error("%s: %s\n", cases[i][0], err.text);
        assert_non_null(strstr(err.text, cases[i][1]));
    }
}

static void test_deep_sources(void **state)
{
    (void)state;
    static const char *const units[] = {"(", "[", "{% if 1 %}", "not ", "-", "{% for i in 1 %}",
                                        "1+", "a.", "x|upper|", "'a' if 1 else ", "{1:"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t n = strlen(units[i]), times = 20000 / n;
        const bool is_tag = units[i][0] == '{' && units[i][1] == '%';
        char *source = calloc(n * times + 16, 1);
        assert_non_null(source);
        memcpy(source, is_tag ? "" : "{{ ", is_tag ? 0 : 3);
        for (size_t k = 0; k < times; k++)
            memcpy(source + strlen(source), units[i], n + 1);
        char *text;
        struct fm_error err = {0};
        assert_int_equal(render(source, NULL, &text, &err), FM_ERR_FORMAT);
        free(source);
    }
}

static char *repeated(char *to, const char *text, size_t times)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i < times; i++, to += n)
        memcpy(to, text, n + 1);
    return to;
}

/* Sources whose trees or calls are deep without nested brackets, and deeply nested values. Each
 * ends in an error and needs little stack. */
static void *run_deep_trees(void *arg)
{
    (void)arg;
    static char sources[5][400000];
    static const int wanted[] = {FM_ERR_ARG, FM_ERR_FORMAT, FM_ERR_ARG, FM_ERR_ARG, FM_ERR_ARG};
    char *at = repeated(sources[0], "{{ 'a'|map('map'", 1); /* a filter that calls itself */
    at = repeated(at, ",'map'", 40000);
    (void)repeated(at, ")|list }}", 1);
    at = repeated(sources[1], "{{ ", 1); /* long sums as nested arguments */
    at = repeated(at, "n(", 90);
    for (int i = 0; i < 90; i++)
        at = repeated(repeated(at, "+1", 380), ")", 1);
    (void)repeated(at, "}}", 1);
    (void)repeated(sources[2], "{% macro b() %}{{ caller() }}{% endmacro %}{% macro a() %}"
                   "{% call b() %}{{ a() }}{% endcall %}{% endmacro %}{{ a() }}", 1);
    (void)repeated(sources[3], "{% set ns = namespace(a=[]) %}{% for i in range(1000) %}"
                   "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}{{ ns.a|tojson }}", 1);
    (void)repeated(sources[4], "{% for a in [[]] recursive %}{{ loop([a]) }}{% endfor %}", 1);
    for (size_t i = 0; i < 5; i++) {
        char *text;
        struct fm_error err = {0};
        const int rc = render(sources[i], NULL, &text, &err);
        if (rc != wanted[i]) {
            print_error("%.60s: %d %s\n", sources[i], rc, err.text);
            return (void *)"a source did not end as it should";
        }
    }
    return NULL;
}

static void test_deep_trees(void **state)
{
    (void)state;
    const char *why = run_on_small_stack(run_deep_trees, NULL);
    if (why != NULL)
        fail_msg("%s", why);
}

static void test_origins(void **state)
{
    (void)state;
    static const char source[] = "<{{ messages[0].role }}>{{ messages[0].content|upper }}{{ "
                                 "messages[1].content }}{{ t }}{{ x }}";
    struct jinja *jinja;
    struct jinja_rendering out;
    json_t *json = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}, "
                              "{\"role\": \"assistant\", \"content\": \"c\"}], \"x\": \"d\"}",
                              0, NULL);
    json_t *trusted = json_loads("{\"t\": \"e\"}", 0, NULL);
    const struct jinja_input input = {.variables = json, .trusted = trusted};
    assert_int_equal(jinja_compile("t", source, sizeof source - 1, &jinja, NULL), 0);
    assert_int_equal(jinja_render(jinja, &input, &out, NULL), 0);
    assert_string_equal(out.text, "<user>ABced");
    static const uint8_t want[] = {0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1};
    assert_memory_equal(out.origins, want, sizeof want);
    jinja_rendering_clear(&out);
    jinja_free(jinja);
    json_decref(json);
    json_decref(trusted);
}

/* Makes every allocation fail once. */
static void test_out_of_memory(void **state)
{
    (void)state;
    static const char source[] =
        "{% macro m(a) %}{{ a ~ name }}{% endmacro %}{% for x in rows %}{{ m(x.k) }}{% endfor %}"
        "{{ d|tojson }}{{ list|sort }}{{ 'x' * 70000 }}";
    int rc = FM_ERR_NOMEM;
    long nth = 1;
    for (; rc == FM_ERR_NOMEM && nth < 200; nth++) {
        char *text;
        struct fm_error err = {0};
        mem_fail_at(nth);
        rc = render(source, NULL, &text, &err);
        mem_fail_at(0);
        assert_true(rc == 0 || (rc == FM_ERR_NOMEM && err.text[0] != '\0'));
        mem_free(text);
    }
    assert_int_equal(rc, 0);
    assert_true(nth > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions), cmocka_unit_test(test_statements),
        cmocka_unit_test(test_faults), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_deep_sources), cmocka_unit_test(test_deep_trees),
        cmocka_unit_test(test_origins), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
