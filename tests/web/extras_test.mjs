// Tests the page in a browser: attachments, import and search, messages that cannot be shown,
// continued answers, token probabilities, the model's card, phones.

import assert from "node:assert/strict";

import {both, real, scripted} from "./harness.mjs";
import {HOSTILE} from "./mock_server.mjs";

const file = (name, text, mimeType = "text/plain") =>
    ({name, mimeType, buffer: Buffer.isBuffer(text) ? text : Buffer.from(text)});

// ---- attachments ------------------------------------------------------------------------------

scripted("text files are attached, shown, sent and kept", async (w) => {
    await w.page.setInputFiles("#attach-files", [
        file("notes.md", "a ```` fence\n"), file("<b>y<b>.txt", "\ufeffsecond")]);
    await w.untilText("#attached", /notes\.md.*<b>y<b>\.txt/s);
    await w.ask("summarize");
    const [{messages}] = w.server.requests;
    assert.equal(messages[0].content, "File: notes.md\n`````\na ```` fence\n`````\n\n" +
                 "File: <b>y<b>.txt\n```\nsecond\n```\n\nsummarize");
    assert.equal(await w.page.locator("#attached li").count(), 0);
    await w.page.reload();
    await w.page.click(".files summary >> nth=1");
    await w.untilText(".files pre >> nth=1", /^second$/);
    assert.equal(await w.page.locator(".user b").count(), 0);
    // Editing the message keeps its files.
    await w.page.hover(".user");
    await w.page.click(".user [aria-label=Edit]");
    await w.page.fill(".editor textarea", "again");
    await w.page.click(".editor .primary");
    await w.finish();
    assert.match(w.server.requests[1].messages[0].content, /second\n```\n\nagain$/);
});

scripted("files that cannot be attached are named, with the limits", async (w) => {
    const big = Buffer.alloc(256 * 1024 + 1, "a");
    for (const [files, pattern] of [
        [[file("big.txt", big)], /^big\.txt has 256 KiB\. Up to 10 text files/],
        [[file("a.png", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1]))], /^a\.png is not a text/],
        [[file("nul.txt", "a\0b")], /^nul\.txt is not a text/],
        [[file("empty.txt", " \n")], /^empty\.txt is empty/],
    ]) {
        await w.page.setInputFiles("#attach-files", files);
        await w.untilText("#attach-note", pattern);
        assert.equal(await w.page.locator("#attached li").count(), 0);
    }
    const large = Buffer.alloc(250 * 1024, "b");
    await w.page.setInputFiles("#attach-files", ["1", "2", "3"].map((n) => file(n, large)));
    await w.untilText("#attach-note", /^3 \(250 KiB\) is too much\./);
    assert.equal(await w.page.locator("#attached li").count(), 2);
    await w.page.click("[aria-label='Remove 1']");
    assert.ok(await w.page.locator("#attach-note").isHidden());
    const small = Array.from({length: 12}, (_, i) => file(`f${i}`, "x"));
    await w.page.setInputFiles("#attach-files", small);
    await w.untilText("#attach-note", /f9 \(1 bytes\) is too much/);
    assert.equal(await w.page.locator("#attached li").count(), 10);
});

scripted("files are dropped and pasted; a long pasted text becomes a file", async (w) => {
    const give = (type, target, name, text) => w.page.evaluate(([t, where, n, s]) => {
        const data = new DataTransfer();
        if (n) {
            data.items.add(new File([s], n, {type: "text/plain"}));
        } else {
            data.setData("text/plain", s);
        }
        const event = t === "paste"
            ? new ClipboardEvent(t, {clipboardData: data, bubbles: true, cancelable: true})
            : new DragEvent(t, {dataTransfer: data, bubbles: true, cancelable: true});
        document.querySelector(where).dispatchEvent(event);
        return event.defaultPrevented;
    }, [type, target, name, text]);
    assert.ok(await give("dragover", "#chat", "d.txt", "dropped"));
    assert.ok(await give("drop", "#chat", "d.txt", "dropped"));
    await w.untilText("#attached", /d\.txt/);
    assert.ok(await give("paste", "#input", "p.txt", "pasted"));
    await w.untilText("#attached", /d\.txt.*p\.txt/s);
    assert.ok(!await give("paste", "#input", "", "short"));
    await w.stopClock(); // the offer stays for some seconds
    assert.ok(await give("paste", "#input", "", "long ".repeat(3000)));
    await w.untilText("#attached", /pasted-1\.txt/);
    await w.page.click("#toast-action");
    assert.equal((await w.page.inputValue("#input")).length, 15000);
    assert.equal(await w.page.locator("#attached li").count(), 2);
    // Without a text, files alone can be sent.
    await w.page.fill("#input", "");
    await w.page.click("#send");
    await w.until("the answer", async () => await w.page.locator("#send").isVisible() &&
        w.server.requests.length === 1);
    assert.match(w.server.requests[0].messages[0].content, /dropped[^]*pasted/);
    assert.equal(await w.page.locator("#list .name").textContent(), "d.txt");
});

// ---- import and search ------------------------------------------------------------------------

async function importText(w, text) {
    if (!await w.page.locator("#settings").isVisible()) {
        await w.page.click("#open-settings");
    }
    await w.page.setInputFiles("#import-file", file("saved.json", text, "application/json"));
    await w.untilText("#import-note", /^saved\.json/);
    const note = await w.page.locator("#import-note").textContent();
    await w.page.evaluate(() => (document.getElementById("import-note").textContent = ""));
    return note;
}

both("what was exported is imported again, once", async (w) => {
    await w.ask("alpha");
    const before = await w.texts();
    const kept = await w.page.evaluate(() => JSON.stringify(Object.keys(localStorage)
        .filter((key) => key.startsWith("flashmoe.conversation."))
        .map((key) => JSON.parse(localStorage[key]))));
    assert.match(await importText(w, kept), /^saved\.json: 0 imported; 1 already here\.$/);
    await w.page.keyboard.press("Escape");
    await w.page.click("#list [aria-label=Delete]");
    assert.equal((await w.texts()).length, 0);
    assert.match(await importText(w, kept), /^saved\.json: 1 imported\.$/);
    await w.page.keyboard.press("Escape");
    assert.deepEqual(await w.texts(), before);
    await w.page.reload();
    await w.until("the messages", async () => (await w.texts()).length === 2);
    assert.deepEqual(await w.texts(), before);
});

const node = (id, parent, role, content, more = {}) => ({id, parent, role, content, ...more});
const conversation = (nodes, more = {}) => ({version: 1, id: "x", title: "t", nodes, chosen: {},
                                             ...more});

scripted("files that are no conversations are refused, with the field", async (w) => {
    const good = node("a", null, "user", "hi");
    const deep = "[".repeat(100000) + "]".repeat(100000);
    for (const [value, pattern] of [
        ["not json", /was not imported: it is not JSON/],
        ["", /it is not JSON/],
        ["null", /conversation must be an object; it is null/],
        ["{}", /conversation\.nodes must be a list of at most 20000 messages; it is missing/],
        ["[1]", /conversation must be an object; it is 1/],
        [conversation([{...good, role: "system"}]), /nodes\[0\]\.role must be "user" or "assist/],
        [conversation([{...good, content: 5}]), /nodes\[0\]\.content must be a text; it is 5/],
        [conversation([{...good, id: 5}]), /nodes\[0\]\.id must be a text that occurs once/],
        [conversation([good, good]), /nodes\[1\]\.id must be a text that occurs once/],
        [conversation([{...good, parent: "z"}]), /nodes\[0\]\.parent must be null or the id/],
        [conversation([{...good, parent: "a"}]), /are a circle/],
        [conversation([node("a", "b", "user", ""), node("b", "a", "user", "")]), /are a circle/],
        [conversation([{...good, attachments: {}}]), /attachments must be a list/],
        [`{"nodes": ${deep}}`, /nodes\[0\]\.id must be a text/],
        [`{"nodes": [{"id": ${deep}}]}`, /id must be a text that occurs once; it is a list of 1/],
    ]) {
        const text = typeof value === "string" ? value : JSON.stringify(value);
        assert.match(await importText(w, text), pattern);
    }
    assert.equal(await w.page.locator("#list li").count(), 0);
});

scripted("hostile conversations are inert", async (w) => {
    const evil = JSON.stringify(
        "<img src=x onerror=window.owned=1><script>window.owned=2</script>");
    const text = `[{"version": 1, "id": "__proto__", "title": ${evil},
        "__proto__": {"owned": 3}, "chosen": {"__proto__": "a", "root": "constructor"},
        "nodes": [
        {"id": "__proto__", "parent": null, "role": "user", "content": ${evil},
         "attachments": [{"name": ${evil}, "text": ${evil}}]},
        {"id": "constructor", "parent": "__proto__", "role": "assistant", "onclick": "x",
         "content": ${JSON.stringify(HOSTILE)}, "reasoning": ${evil},
         "toolCalls": [{"name": ${evil}, "arguments": ${evil}}],
         "usage": {"prompt_tokens": "<b>", "completion_tokens": {}}, "totalMs": "<b>",
         "tokensPerS": {"toFixed": 1}, "state": "toString", "finish": "<b>",
         "error": {"kind": "constructor", "message": ${evil}}}]}]`;
    assert.match(await importText(w, text), /1 imported/);
    await w.page.keyboard.press("Escape");
    await w.untilText(".message.user", /onerror/);
    await w.page.click(".files summary");
    await w.page.click(".reasoning summary");
    await w.untilText("[role=alert]", /This page had an error/);
    assert.equal(await w.page.evaluate(() => window.owned ?? {}.owned), undefined);
    assert.equal(await w.page.locator("main :is(img, script, iframe, b)").count(), 0);
    await w.page.reload();
    await w.untilText(".message.user", /onerror/);
    await w.page.fill("#search", "onerror");
    await w.untilText("#list .snippet", /onerror/);
    assert.equal(await w.page.locator("nav :is(img, script, b)").count(), 0);
    assert.equal(await w.page.evaluate(() => window.owned ?? {}.owned), undefined);
    await w.ask("still works");
});

scripted("lists of messages and versions of them are imported", async (w) => {
    assert.match(await importText(w, JSON.stringify([{role: "system", content: "s"},
        {role: "user", content: "one"}, {role: "assistant", content: "two"}])), /1 imported/);
    await w.page.keyboard.press("Escape");
    assert.deepEqual(await w.texts(), ["one", "two"]);
    assert.match(await importText(w, JSON.stringify(conversation([
        node("q", null, "user", "ask"), node("a", "q", "assistant", "first"),
        node("b", "q", "assistant", "second")], {chosen: {root: "q", q: "a"}}))), /1 imported/);
    await w.page.keyboard.press("Escape");
    assert.deepEqual(await w.texts(), ["ask", "first"]);
    await w.page.click(".assistant [aria-label='Later version']");
    assert.deepEqual(await w.texts(), ["ask", "second"]);
});

scripted("a full storage is told", async (w) => {
    const long = "x".repeat(1900000);
    const many = Array.from({length: 4}, (_, i) =>
        conversation([node(`n${i}`, null, "user", long)]));
    assert.match(await importText(w, JSON.stringify(many)),
                 /2 imported; the browser's storage is full, the others are left out/);
});

scripted("search finds words in titles and messages, in other versions too", async (w) => {
    await w.ask("tell a story");
    await w.page.click("#new");
    await w.ask("meaning of (.*) [x]");
    await w.page.click(".assistant [aria-label=Regenerate]");
    await w.finish();
    const names = () => w.page.locator("#list .name").allTextContents();
    await w.page.fill("#search", "ROBOT music");
    await w.until("one hit", async () => (await names()).length === 1);
    assert.match((await names())[0], /^tell a story.*robot/);
    assert.match(await w.page.locator("#list mark").textContent(), /^robot$/i);
    await w.page.click("#list .name");
    assert.match((await w.texts())[1], /robot/);
    await w.page.fill("#search", "Answer 2");
    await w.until("the other", async () => (await names()).join().startsWith("meaning"));
    await w.page.click("#list .name");
    assert.match((await w.texts())[1], /^Answer 2/);
    assert.equal(await w.page.locator(".assistant .count").textContent(), "1 / 2");
    await w.page.fill("#search", "(.*) [x]");
    await w.until("no pattern", async () => (await names()).length === 1);
    await w.page.fill("#search", "nowhere");
    await w.until("nothing", async () => (await names()).length === 0);
    assert.ok(await w.page.locator("#search-none").isVisible());
    await w.page.fill("#search", "");
    await w.until("all", async () => (await names()).length === 2);
});

scripted("search finds attached files by their names and texts", async (w) => {
    await w.page.setInputFiles("#attach-files", [file("zebra.md", "one\nA quagga grazes.\n")]);
    await w.ask("tell a story");
    await w.page.click("#new");
    await w.ask("another story");
    for (const [query, marked] of [["quagga", "quagga"], ["Zebra.MD", "zebra.md"]]) {
        await w.page.fill("#search", query);
        await w.untilText("#list mark", new RegExp(`^${marked}$`));
        assert.match(await w.page.locator("#list .name").textContent(), /^tell a story/);
        assert.equal(await w.page.locator("#list .name").count(), 1);
    }
});

scripted("every mark of ASCII can be searched for, and means itself", async (w) => {
    const wrong = await w.page.evaluate(async () => {
        const {searchFor} = await import(new URL("search.js", document.baseURI));
        const marks = Array.from({length: 94}, (_, i) => String.fromCharCode(33 + i))
            .filter((c) => !/[0-9A-Za-z]/.test(c));
        const say = (content) => ({title: "", nodes: [{content}]});
        return [...marks, marks.join("")].filter((mark) => {
            try {
                const find = searchFor(`a${mark}b`);
                const hit = find(say(`x a${mark}b y`));
                return hit?.at !== 2 || hit.length !== mark.length + 2 ||
                    find(say("x ab a\u00b7b aab y")) !== null;
            } catch {
                return true;
            }
        });
    });
    assert.deepEqual(wrong, []);
    await w.ask("a well-known question");
    await w.page.fill("#search", "well-known");
    await w.untilText("#list mark", /^well-known$/);
});

// ---- messages that cannot be shown, and many of them --------------------------------------------

scripted("a formula that nests too deeply does not stop the page", async (w) => {
    const tex = `$$${"\\not".repeat(2000)} a$$`;
    assert.match(await importText(w, JSON.stringify([{role: "user", content: "q"},
        {role: "assistant", content: tex}])), /1 imported/);
    await w.page.reload();
    await w.untilText("#model-name", /nano/);
    assert.deepEqual(await w.texts(), ["q", tex]);
    await w.ask("still works");
});

scripted("a message that cannot be shown does not stop the page", async (w) => {
    await w.ask("first");
    await w.ask("second");
    await w.page.evaluate(() => {
        const key = Object.keys(localStorage).find((k) => k.startsWith("flashmoe.conversation."));
        const stored = JSON.parse(localStorage[key]);
        stored.nodes[1].content = 5; // no text
        localStorage[key] = JSON.stringify(stored);
    });
    await w.page.reload();
    await w.untilText("#model-name", /nano/);
    assert.deepEqual(await w.texts(), ["first", "5", "second", "Answer 2 to: second"]);
    await w.page.click("#new");
    await w.ask("still works");
    assert.match((await w.texts())[1], /^Answer 3/);
}, {excuse: /TypeError/});

scripted("a text that cannot be rendered is shown as it is, and tried again", async (w) => {
    const shown = await w.page.evaluate(async () => {
        const {MarkdownView} = await import(new URL("markdown.js", document.baseURI));
        const box = document.createElement("div");
        const view = new MarkdownView(box);
        view.update("a\n\nb\n\n", true);
        document.createElement = function(tag) {
            if (tag === "h4") {
                throw new Error("planted");
            }
            return Document.prototype.createElement.call(this, tag);
        };
        view.update("a\n\nb\n\n# h", true);
        const failed = box.innerHTML;
        delete document.createElement;
        view.update("a\n\nb\n\n# h *i*", false);
        return [failed, box.innerHTML];
    });
    assert.deepEqual(shown, ["<span class=\"said\">a\n\nb\n\n# h</span>",
                             "<p>a</p><p>b</p><h4 class=\"h1\">h <em>i</em></h4>"]);
}, {excuse: /planted/});

// Counts how often a message is read from the list of all: a few times, not once for each message.
scripted("showing a conversation costs no more than its length", async (w) => {
    const reads = await w.page.evaluate(async () => {
        const {MessageList} = await import(new URL("messages.js", document.baseURI));
        const count = (n) => {
            const nodes = Array.from({length: n}, (_, i) => ({
                id: `n${i}`, parent: i ? `n${i - 1}` : null, content: "x", finish: "length",
                role: i % 2 ? "assistant" : "user"}));
            const chosen = {root: "n0"};
            nodes.forEach(({id, parent}) => (chosen[parent ?? "root"] = id));
            let nReads = 0;
            const list = new MessageList({act: () => {}, answerOf: () => null, settings: {}});
            const conversation = {chosen, nodes: new Proxy(nodes, {get: (all, name) => {
                nReads += /^\d+$/.test(String(name)) ? 1 : 0;
                return all[name];
            }})};
            list.show(conversation);
            list.show(conversation); // with the views that are there
            return [nReads / n, list.root.querySelectorAll(".message").length,
                    list.root.textContent.split("Continue").length - 1];
        };
        return [count(10), count(1000)];
    });
    assert.ok(reads[0][0] > 0);
    assert.equal(reads[1][0], reads[0][0], "reads of each message");
    assert.deepEqual(reads.map(([, ...rest]) => rest), [[10, 1], [1000, 1]]);
});

// ---- continued answers ------------------------------------------------------------------------

scripted("an answer that was cut off goes on", async (w) => {
    await w.ask("cut off");
    assert.match(await w.page.locator(".facts").textContent(), /^cut off at the token limit/);
    await w.page.click("button:text('Continue')");
    await w.finish();
    assert.equal((await w.texts())[1], "This is the beginning and this is the rest.");
    const body = w.server.requests[1];
    assert.equal(body.continue_final_message, true);
    assert.deepEqual(body.messages, [{role: "user", content: "cut off"},
                                     {role: "assistant", content: "This is the beginning"}]);
    assert.equal(await w.page.locator("button:text('Continue')").count(), 0);
    assert.equal(await w.page.locator(".assistant .count").count(), 0);
    assert.match(await w.page.locator(".facts").textContent(), /more tokens/);
    await w.page.reload();
    await w.until("the text", async () => (await w.texts())[1]?.endsWith("the rest."));
});

scripted("a stopped answer goes on; after a failure it is still there", async (w) => {
    await w.send("slow cut off");
    await w.until("some text", async () => (await w.texts())[1]?.length > 20);
    await w.page.click("#stop");
    await w.finish();
    const [, kept] = await w.texts();
    w.server.isBusy = true;
    w.server.retryAfter = "3600";
    await w.page.click("button:text('Continue')");
    await w.untilText(".status", /busy/);
    await w.page.keyboard.press("Escape");
    await w.finish();
    assert.equal((await w.texts())[1], kept);
    // An answer that is followed by messages cannot go on.
    w.server.isBusy = false;
    await w.ask("five words");
    assert.equal(await w.page.locator("button:text('Continue')").count(), 0);
}, {excuse: /status of 503/});

real("nano continues an answer that was cut off", async (w) => {
    await w.ask("Write a story about a robot who loves music.");
    const [, begun] = await w.texts();
    await w.page.click("button:text('Continue')");
    await w.finish();
    const [, whole] = await w.texts();
    assert.ok(whole.startsWith(begun.trimEnd()) && whole.length > begun.length, whole);
}, {settings: {temperature: 0, max_tokens: 24}});

// ---- probabilities ----------------------------------------------------------------------------

scripted("token probabilities are computed on demand", async (w) => {
    await w.ask("five words");
    await w.page.click("[aria-label='Token probabilities']");
    await w.untilText(".token-point", /^5 tokens, /);
    const [body] = w.server.scored;
    assert.deepEqual({...body, prompt: 0},
                     {prompt: 0, echo: true, logprobs: 5, max_tokens: 0});
    assert.equal(await w.page.locator(".tokens").textContent(), "One two three four five");
    await w.page.locator(".tokens").focus();
    await w.page.keyboard.press("ArrowRight");
    await w.page.keyboard.press("ArrowRight");
    assert.match(await w.page.locator(".token-point").textContent(),
                 /^“ two” [\d.]+ %; others: “ other” 22\.3 %, “<b>x<\/b>” 5\.0 %$/);
    assert.equal(await w.page.locator(".probs b").count(), 0);
    await w.page.click(".actions [aria-label='Token probabilities']");
    assert.equal(await w.page.locator(".probs").count(), 0);
});

real("nano's tokens and their probabilities are those of its answer", async (w) => {
    await w.ask("What is the Moon?");
    await w.page.click("[aria-label='Token probabilities']");
    await w.untilText(".token-point", /^\d+ tokens, /);
    const tokens = await w.page.locator(".tokens [role=option]").evaluateAll((nodes) =>
        nodes.map((n) => [n.textContent, Number(/, ([\d.]+) %$/.exec(n.ariaLabel)?.[1] ?? 0)]));
    const content = await w.page.evaluate(() => Object.keys(localStorage)
        .filter((key) => key.startsWith("flashmoe.conversation."))
        .map((key) => JSON.parse(localStorage[key]).nodes[1].content)[0]);
    assert.equal(tokens.map(([text]) => text.replace("↵\n", "\n")).join(""), content.trimEnd());
    // The likeliest token, which temperature 0 takes, is rarely an unlikely one.
    const nLikely = tokens.filter(([, p]) => p >= 5).length;
    assert.ok(nLikely > 0.9 * tokens.length, JSON.stringify(tokens));
}, {settings: {temperature: 0, max_tokens: 40}});

// ---- the card, phones, speeds -----------------------------------------------------------------

both("the model's card has formats, memory and defaults", async (w) => {
    await w.page.click("#model");
    await w.untilText("#card-content", /Formats of the weights/);
    const text = await w.page.locator("#card-content").textContent();
    assert.match(text, /Familyqwen3_nextParameters90\.5 millionLayers8Experts64 per layer; a tok/);
    assert.match(text, /affine4-g6440\.5 MiBexperts/);
    assert.match(text, /Budget[\d.]+ [GM]iBat least [\d.]+ MiB/);
    assert.match(text, /Temperature0\.7Top p0\.9Top k40Min poff/);
    assert.doesNotMatch(text, /undefined|NaN|null|object/);
    await w.page.keyboard.press("Escape");
    await w.page.click("#open-settings");
    await w.until("the defaults", async () =>
        await w.page.locator("#s-temperature").getAttribute("placeholder") === "0.7");
});

scripted("a short answer has no speed", async (w) => {
    await w.ask("five words");
    assert.match(await w.page.locator(".facts").textContent(), /^5 tokensprompt of/);
    await w.ask("tell a story");
    assert.match(await w.page.locator(".facts >> nth=1").textContent(), /tokens\/s/);
});

scripted("on a phone Enter starts a new line, and Ctrl+Enter sends", async (w) => {
    await w.page.fill("#input", "one");
    await w.page.press("#input", "Enter");
    await w.page.locator("#input").pressSequentially("two");
    assert.equal(await w.page.inputValue("#input"), "one\ntwo");
    assert.equal(await w.page.locator("#input").evaluate((n) => n.enterKeyHint), "enter");
    await w.page.press("#input", "Control+Enter");
    await w.finish();
    assert.equal(w.server.requests[0].messages[0].content, "one\ntwo");
}, {viewport: {width: 390, height: 844}, hasTouch: true, isMobile: true});
