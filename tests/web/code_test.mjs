// Tests highlighting in the browser: the text stays the source, languages get their kinds, and code
// that grows costs only what is new.

import assert from "node:assert/strict";

import {scripted} from "./harness.mjs";

// Language, source, what is highlighted: kind and text.
const CASES = [
    ["c", "int main(void) { return 0x1f; } // end", [["ht", "int"], ["hf", "main"], ["ht", "void"],
        ["hk", "return"], ["hn", "0x1f"], ["hc", "// end"]]],
    ["c", "#include <x>\nchar *s = \"a \\\" b\"; /* 1\n2 */ x", [["hm", "#include"], ["ht", "char"],
        ["hs", "\"a \\\" b\""], ["hc", "/* 1\n"], ["hc", "2 */"]]],
    ["python", "def f(x):\n    \"\"\"a\n    b\"\"\"\n    return x # c", [["hk", "def"], ["hf", "f"],
        ["hs", "\"\"\"a\n"], ["hs", "    b\"\"\""], ["hk", "return"], ["hc", "# c"]]],
    ["JS", "const a = `x\ny`; // z", [["hk", "const"], ["hs", "`x\n"], ["hs", "y`"],
        ["hc", "// z"]]],
    ["rust", "let x: u8 = 'a'; println!(\"{}\", x);", [["hk", "let"], ["ht", "u8"], ["hs", "'a'"],
        ["hf", "println!"], ["hs", "\"{}\""]]],
    ["json", "{\"a\": [1, true, \"b\"]}", [["hp", "\"a\""], ["hn", "1"], ["hk", "true"],
        ["hs", "\"b\""]]],
    ["sh", "for i in $A; do echo \"$i\"; done # x", [["hk", "for"], ["hk", "in"], ["hp", "$A"],
        ["hk", "do"], ["ht", "echo"], ["hs", "\"$i\""], ["hk", "done"], ["hc", "# x"]]],
    ["html", "<a href=\"x\">t</a><!-- c\nd -->", [["hk", "<a"], ["hp", "href"], ["hs", "\"x\""],
        ["hk", ">"], ["hk", "</a"], ["hk", ">"], ["hc", "<!-- c\n"], ["hc", "d -->"]]],
    ["sql", "SELECT a FROM t WHERE b = 'c' -- d", [["hk", "SELECT"], ["hk", "FROM"],
        ["hk", "WHERE"], ["hs", "'c'"], ["hc", "-- d"]]],
    ["diff", "+a\n-b\n c\n@@ 1 @@", [["ha", "+a\n"], ["hd", "-b\n"], ["hm", "@@ 1 @@"]]],
    ["yaml", "a: 1 # b\n- c: yes", [["hp", "a"], ["hn", "1"], ["hc", "# b"], ["hp", "c"],
        ["hk", "yes"]]],
    ["nothing", "int x;", []],
    ["", "int x;", []],
    ["constructor", "int x;", []],
];
const LANGUAGES = ["c", "java", "js", "python", "rust", "go", "swift", "php", "ruby", "lua", "sh",
                   "sql", "json", "yaml", "toml", "html", "css", "make", "cmake", "docker", "r",
                   "haskell", "tex", "powershell", "diff", "none"];
const PIECES = ["\"", "'", "`", "\\", "/*", "*/", "//", "#", "--", "<!--", "-->", "\"\"\"", "'''",
    "{-", "-}", "\n", "\n\n", "\r\n", " ", "\t", "if", "for", "x", "0x1F", "1e9", "$a", "${b",
    "<script>", "</script>", "<b onclick=", "é", "月", "😀", "\u0000", "\u2028", "@x",
    "=begin\n", "[[", "]]", "a:", "b=", "f(", "(*", "*)", "%", "<?php", "'a", "+", "-", "@@"];

scripted("languages get their kinds", async (w) => {
    for (const [language, source, expected] of CASES) {
        const found = await w.page.evaluate(async ([name, text]) => {
            const {CodeView} = await import(new URL("code.js", document.baseURI));
            const view = new CodeView(name);
            view.update(text);
            return {text: view.figure.querySelector("code").textContent,
                    kinds: Array.from(view.figure.querySelectorAll("code [class^=h]"),
                                      (node) => [node.className, node.textContent])};
        }, [language, source]);
        assert.equal(found.text, source);
        assert.deepEqual(found.kinds, expected, `${language}: ${source}`);
    }
});

scripted("the text is the source, whole or growing, whatever it is", async (w) => {
    let seed = 11;
    const random = (n) => (seed = Math.imul(seed, 48271) % 0x7fffffff, Math.abs(seed) % n);
    const texts = Array.from({length: 1500}, () => {
        const text = Array.from({length: 1 + random(30)}, () => PIECES[random(PIECES.length)])
            .join("");
        const cuts = [random(text.length + 1), random(text.length + 1)];
        return [LANGUAGES[random(LANGUAGES.length)], text, cuts.sort((a, b) => a - b)];
    });
    const wrong = await w.page.evaluate(async (list) => {
        const {CodeView} = await import(new URL("code.js", document.baseURI));
        const show = (name, text, cuts) => {
            const view = new CodeView(name);
            [...cuts, text.length].forEach((cut) => view.update(text.slice(0, cut)));
            const code = view.figure.querySelector("code");
            const isInert = Array.from(code.querySelectorAll("*"))
                .every((node) => node.localName === "span" &&
                                 node.getAttributeNames().every((n) => n === "class"));
            return {text: isInert ? code.textContent : "not inert", html: code.innerHTML};
        };
        return list.filter(([name, text, cuts]) => {
            const grown = show(name, text, cuts), whole = show(name, text, []);
            return grown.text !== text || grown.html !== whole.html;
        });
    }, texts);
    assert.deepEqual(wrong.slice(0, 3), []);
});

scripted("a long block of code that grows keeps what it has shown", async (w) => {
    const counts = await w.page.evaluate(async () => {
        const {MarkdownView} = await import(new URL("markdown.js", document.baseURI));
        const box = document.createElement("div");
        document.body.append(box);
        const view = new MarkdownView(box);
        let text = "before\n\n```c\n", nAdded = 0;
        view.update(text, true);
        const observer = new MutationObserver((records) => {
            nAdded += records.reduce((n, record) => n + record.addedNodes.length, 0);
        });
        observer.observe(box, {childList: true, subtree: true});
        for (let i = 0; i < 1000; i++) {
            text += `int x${i} = ${i};\n`;
            view.update(text, true);
        }
        nAdded += observer.takeRecords().reduce((n, record) => n + record.addedNodes.length, 0);
        const first = box.querySelector(".part");
        view.update(`${text}\`\`\`\n\nafter`, true);
        const isKept = box.contains(first);
        const isWhole = box.querySelector("code").textContent ===
            text.slice(text.indexOf("int")).trimEnd();
        const nNodes = box.querySelectorAll("*").length;
        box.remove();
        return {nAdded, nNodes, isKept, isWhole};
    });
    assert.ok(counts.isKept && counts.isWhole, JSON.stringify(counts));
    // Each line is made once: nodes are added in proportion to those that are there.
    assert.ok(counts.nAdded < 5 * counts.nNodes, JSON.stringify(counts));
});

scripted("selected code is copied as it is", async (w) => {
    const text = await w.page.evaluate(async () => {
        const {CodeView} = await import(new URL("code.js", document.baseURI));
        const view = new CodeView("c");
        view.update(Array.from({length: 120}, (_, i) => `int x${i};`).join("\n"));
        document.querySelector("#messages").append(view.figure);
        const selection = getSelection();
        selection.selectAllChildren(view.figure.querySelector("code"));
        const copied = selection.toString();
        view.figure.remove();
        return copied;
    });
    assert.equal(text.trimEnd(), Array.from({length: 120}, (_, i) => `int x${i};`).join("\n"));
});
