#include "apps/bench/page.h"

#include "apps/bench/svg_plot.h"

static const char style_sheet[] =
    ":root { color-scheme: light dark; --page: #ffffff; --card: #f6f8fa; --line: #d8dee4;\n"
    " --text: #1f2328; --soft: #59636e; --good: #1a7f37; --bad: #cf222e; }\n"
    "@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #161b22;\n"
    " --line: #2b323b; --text: #e6edf3; --soft: #9198a1; --good: #3fb950; --bad: #ff7b72; } }\n"
    "* { box-sizing: border-box; }\n"
    "body { margin: 0; background: var(--page); color: var(--text); line-height: 1.5;\n"
    " font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }\n"
    "main { max-width: 1000px; margin: 0 auto; padding: 24px 16px 64px; }\n"
    "h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }\n"
    "h2 { font-size: 1.15rem; margin: 40px 0 8px; }\n"
    "p { margin: 8px 0; } .soft { color: var(--soft); }\n"
    ".good { color: var(--good); } .bad { color: var(--bad); }\n"
    ".verdict { border: 1px solid var(--line); border-left: 6px solid var(--good);\n"
    " background: var(--card); padding: 12px 16px; border-radius: 6px; margin: 16px 0; }\n"
    ".verdict.bad { border-left-color: var(--bad); color: inherit; }\n"
    ".verdict strong { font-size: 1.1rem; } li { overflow-wrap: anywhere; }\n"
    ".wide { overflow-x: auto; margin: 8px 0; }\n"
    "table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: left; padding: 5px 14px 5px 0; vertical-align: top;\n"
    " border-bottom: 1px solid var(--line); }\n"
    "th { color: var(--soft); font-weight: 600; }\n"
    ".numbers td + td, .numbers th + th { text-align: right; }\n"
    ".numbers td, td.good, td.bad, td.soft { white-space: nowrap; }\n"
    ".numbers th { vertical-align: bottom; }\n"
    ".plots { display: grid; gap: 8px; grid-template-columns: repeat(auto-fit, minmax(min(100%,\n"
    " 440px), 1fr)); margin: 12px 0; }\n"
    ".plots svg { width: 100%; height: auto; display: block; }\n"
    "details { border-bottom: 1px solid var(--line); padding: 6px 0; }\n"
    "summary { cursor: pointer; }\n"
    "pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: 8px;\n"
    " border-radius: 6px; margin: 6px 0; font-size: 0.85rem; }\n"
    "code { overflow-wrap: anywhere; }\n"
    ".numbers td.note { white-space: normal; text-align: left; min-width: 15rem; }\n"
    ".plots.one svg { max-width: 480px; }\n"
    ".bar { fill: #0550ae; } .bar-rest { fill: #e6eaee; }\n"
    "@media (prefers-color-scheme: dark) { .bar { fill: #58a6ff; }\n"
    " .bar-rest { fill: #21262d; } }\n";

/* After the plots' own: larger letters where the plots are small. */
static const char small_sheet[] =
    "@media (max-width: 520px) { .number { font-size: 13px; } .plots .text { font-size: 14px; }\n"
    " .panel { font-size: 15px; } }\n";

void page_begin(FILE *out, const char *name, const char *what)
{
    (void)fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<title>", out);
    svg_plot_text(out, name);
    (void)fprintf(out, "%s</title>\n<style>\n", what);
    svg_plot_write_style(out);
    (void)fprintf(out, "%s%s</style>\n</head>\n<body>\n<main>\n", style_sheet, small_sheet);
}

void page_end(FILE *out)
{
    (void)fputs("</main>\n</body>\n</html>\n", out);
}

void page_row(FILE *out, const char *title, const char *text)
{
    (void)fputs("<tr><td>", out);
    svg_plot_text(out, title);
    (void)fputs("</td><td>", out);
    svg_plot_text(out, text);
    (void)fputs("</td></tr>\n", out);
}
