// Tests Markdown in the browser: the HTML it becomes, that it is inert, that text that grows ends
// up like the whole text, and that hostile texts take time in proportion to their length.

import assert from "node:assert/strict";

import {scripted} from "./harness.mjs";
import {HOSTILE} from "./mock_server.mjs";

// Text -> HTML, by the browser's own serialisation of the nodes.
const CASES = [
    ["plain", "<p>plain</p>"],
    ["two\nlines", "<p>two<br>lines</p>"],
    ["a *b* **c** ***d*** ~~e~~ _f_ __g__",
     "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <s>e</s> <em>f</em> " +
     "<strong>g</strong></p>"],
    ["snake_case_name 2 * 3 * 4 a*", "<p>snake_case_name 2 * 3 * 4 a*</p>"],
    ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
    ["`a*b*` ``x ` y`` \\*no\\*", "<p><code>a*b*</code> <code>x ` y</code> *no*</p>"],
    ["# One\n### Three ###", "<h4 class=\"h1\">One</h4><h6 class=\"h3\">Three</h6>"],
    ["#no heading", "<p>#no heading</p>"],
    ["- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"],
    ["3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>"],
    ["x\n\n1. a\n\n2. b", "<p>x</p><ol><li>a</li><li>b</li></ol>"],
    ["text\n- item", "<p>text</p><ul><li>item</li></ul>"],
    ["> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"],
    ["---", "<hr>"],
    ["<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"],
    ["[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"],
    ["[a](/stats)", "<p>[a](/stats)</p>"],
];

const render = ([text, cuts]) => import(new URL("markdown.js", document.baseURI)).then(
    ({MarkdownView}) => {
        const box = document.createElement("div");
        const view = new MarkdownView(box);
        cuts.forEach((cut) => view.update(text.slice(0, cut)));
        view.update(text);
        return box.innerHTML;
    });

scripted("markdown becomes what it says", async (w) => {
    for (const [text, expected] of CASES) {
        assert.equal(await w.page.evaluate(render, [text, []]), expected, text);
    }
    const link = await w.page.evaluate(render, ["[a](https://x.invalid/b_(c)) https://y.invalid/d.",
                                                []]);
    assert.deepEqual(link.match(/href="[^"]*"/g),
                     ["href=\"https://x.invalid/b_(c)\"", "href=\"https://y.invalid/d\""]);
    assert.equal(link.match(/rel="noopener noreferrer nofollow"/g).length, 2);
    const table = await w.page.evaluate(render, ["|a|b|\n|:-|-:|\n|1|2 \\| 3|\n|4|", []]);
    assert.match(table, /<th scope="col">a<\/th><th class="right" scope="col">b<\/th>/);
    assert.match(table, /<td>1<\/td><td class="right">2 \| 3<\/td>/);
    assert.match(table, /<td>4<\/td><td class="right"><\/td>/);
    const texts = (html) => [...html.matchAll(/<t[hd][^>]*>(.*?)<\/t[hd]>/g)].map(
        ([, cell]) => cell.replace(/<annotation.*?<\/annotation>/g, "").replace(/<[^>]*>/g, ""));
    for (const [rows, expected] of [
        ["|$|x|$|$P(a|b)$|\n|-|-|\n|$|v|$ and $y$|\\(a|b\\)|",
         ["|x|", "P(a|b)", "|v| and y", "a|b"]],
        ["|cost|$5|$6|\n|-|-|-|\n|a|$7|$8|\n|$|$|$|",
         ["cost", "$5", "$6", "a", "$7", "$8", "$", "$", "$"]],
        ["|`a\\|b`|c|\n|-|-|\n|$x$|$y$|", ["a|b", "c", "x", "y"]],
    ]) {
        const found = texts(await w.page.evaluate(render, [rows, []]));
        assert.deepEqual(found.map((cell) => cell.replace(/[\u2061\u2062]/g, "")), expected, rows);
    }
    const code = await w.page.evaluate(render, ["~~~c x\n  a\n```\n~~~\nafter", []]);
    assert.match(code.replace(/<\/?span[^>]*>/g, ""), /<code> {2}a\n```<\/code>/);
    assert.match(code, /<p>after<\/p>$/);
});

scripted("a text that grows ends up as the whole one", async (w) => {
    const pieces = ["# h\n", "- a\n", "  - b\n", "1. c\n", "\n", "\n\n", "text ", "**bo", "ld** ",
                    "```c\n", "code\n", "```\n", "> q\n", "|a|b|\n", "|-|-|\n", "|1|2|\n", "---\n",
                    "`x", "`", "[l](https://x.invalid) ", "\n- ", "\n1", ". d", "\r\n", "~~~\n"];
    let seed = 1;
    const random = (n) => (seed = Math.imul(seed, 48271) % 0x7fffffff, Math.abs(seed) % n);
    const texts = Array.from({length: 300}, () => {
        const text = Array.from({length: 3 + random(25)}, () => pieces[random(pieces.length)])
            .join("");
        const cuts = Array.from({length: 12}, () => random(text.length + 1));
        return [text, cuts.sort((a, b) => a - b)];
    });
    const wrong = await w.page.evaluate(async (list) => {
        const {MarkdownView} = await import(new URL("markdown.js", document.baseURI));
        const html = (text, cuts) => {
            const box = document.createElement("div");
            const view = new MarkdownView(box);
            [...cuts, text.length].forEach((cut) => view.update(text.slice(0, cut)));
            return box.innerHTML;
        };
        return list.filter(([text, cuts]) => html(text, cuts) !== html(text, []));
    }, texts);
    assert.deepEqual(wrong, []);
});

scripted("hostile answers are inert", async (w) => {
    await w.ask("hostile");
    await w.page.waitForTimeout(100);
    assert.equal(await w.page.evaluate(() => window.owned), undefined);
    const body = w.page.locator(".assistant .body");
    assert.equal(await body.locator("script, img, iframe, svg:not([aria-hidden]), b, u, i, object")
        .count(), 0);
    const links = await body.locator("a").evaluateAll((nodes) => nodes.map((n) => n.href));
    assert.deepEqual(links, ["https://tracker.invalid/pixel.png", "https://example.invalid/a_(b)"]);
    assert.match(await body.textContent(), /<script>window\.owned = 1<\/script>/);
    const attributes = await body.evaluate((node) => Array.from(node.querySelectorAll("*"))
        .flatMap((n) => n.getAttributeNames()).filter((name) => name.startsWith("on")));
    assert.deepEqual(attributes, []);
    assert.ok(HOSTILE.includes("onload"));
});

// Long enough that a quadratic parser needs minutes, so that the limit does not require a fast
// machine.
scripted("hostile texts cost no more than their length", async (w) => {
    const n = 400000;
    const texts = ["[", "*", "**a", "`", "``a`", "_a ", "~~", "![", "[a](", "> ", "- ", "|", "<h",
                   "https://", "(", "\\", "1. ", "#", "*a **b ", "|a|b|\n|-|-|\n", "   - a\n",
                   "> > "]
        .map((part) => part.repeat(n / part.length));
    texts.push(`${"[".repeat(n)}](https://x.invalid)`, `${"> ".repeat(500)}a\n`.repeat(20),
               Array.from({length: 300}, (_, i) => `${" ".repeat(2 * i)}- a`).join("\n"));
    for (const text of texts) {
        const ms = await w.page.evaluate(async (t) => {
            const {MarkdownView} = await import(new URL("markdown.js", document.baseURI));
            const start = performance.now();
            new MarkdownView(document.createElement("div")).update(t);
            return performance.now() - start;
        }, text);
        assert.ok(ms < 30000, `${JSON.stringify(text.slice(0, 20))}...: ${Math.round(ms)} ms`);
    }
});
