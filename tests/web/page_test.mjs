// Tests the page in a browser: asking, saving, errors.

import assert from "node:assert/strict";
import {readFile} from "node:fs/promises";

import {both, LONG, LONG_SETTINGS, scripted} from "./harness.mjs";
import {CODE} from "./mock_server.mjs";

const GONE = /ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_NETWORK|Failed to fetch/;

// ---- asking -----------------------------------------------------------------------------------

both("an answer streams in and tells what it cost", async (w) => {
    await w.watchGrowth();
    w.server?.allow(2);
    await w.send("tell a story");
    for (let n = 1; w.server && n < 4; n++) {
        await w.until("more text", () => w.page.evaluate((n) => window.lengths.length >= n, n));
        w.server.allow(2);
    }
    w.server?.release();
    await w.finish();
    const lengths = await w.page.evaluate(() => window.lengths);
    const least = w.server ? 4 : 2; // nano may be brief
    assert.ok(lengths.length >= least, `it had the lengths ${lengths}`);
    assert.deepEqual(lengths, [...lengths].sort((a, b) => a - b));
    assert.match(await w.page.locator(".facts").textContent(),
                 /\d+ tokens?.*tokens\/s.*prompt of \d+/);
    assert.match(await w.page.locator("#context").textContent(), /^[\d,]+ of [\d,]+ tokens used$/);
    if (w.server) {
        const [body] = w.server.requests;
        assert.equal(body.stream, true);
        assert.deepEqual(body.stream_options, {include_usage: true});
        assert.deepEqual(body.messages, [{role: "user", content: "tell a story"}]);
    }
});

for (const way of ["button", "Escape"]) {
    both(`${way} stops an answer and keeps what has arrived`, async (w) => {
        await w.send(LONG);
        await w.whenMidAnswer("some text", async () => (await w.texts())[1]?.length > 10, () =>
            way === "button" ? w.page.click("#stop") : w.page.keyboard.press("Escape"));
        await w.finish();
        const [, kept] = await w.texts();
        assert.ok(kept.length > 10);
        assert.match(await w.page.locator(".facts").textContent(), /^stopped/);
        if (w.server) {
            await w.until("the server to notice", () => w.server.aborted === 1);
        }
        assert.ok(await w.page.locator("#input").evaluate((n) => n === document.activeElement));
        await w.untilText("#requests", /^0 active/);
        assert.match(await w.page.locator("#context").textContent(), /^room for [\d,]+ tokens$/);
    }, {settings: LONG_SETTINGS});
}

both("regenerating makes a second version; both can be read", async (w) => {
    await w.ask("first");
    const [, first] = await w.texts();
    await w.page.click("[aria-label=Regenerate]");
    await w.finish();
    assert.equal(await w.page.locator(".assistant .count").textContent(), "2 / 2");
    if (w.server) {
        assert.notEqual((await w.texts())[1], first);
        assert.deepEqual(w.server.requests[0].messages, w.server.requests[1].messages);
    }
    await w.page.click(".assistant [aria-label='Earlier version']");
    assert.deepEqual(await w.texts(), ["first", first]);
});

both("editing an earlier message branches the conversation", async (w) => {
    await w.ask("one");
    await w.ask("two");
    const before = await w.texts();
    await w.page.hover(".user >> nth=0");
    await w.page.click(".user >> nth=0 >> [aria-label=Edit]");
    await w.page.fill(".editor textarea", "uno");
    await w.page.press(".editor textarea", "Enter");
    await w.finish();
    const after = await w.texts();
    assert.equal(after.length, 2);
    assert.equal(after[0], "uno");
    if (w.server) {
        assert.deepEqual(w.server.requests[2].messages, [{role: "user", content: "uno"}]);
        assert.equal(w.server.requests[1].messages.length, 3);
    }
    await w.page.click(".user [aria-label='Earlier version']");
    assert.deepEqual(await w.texts(), before);
});

both("keys: Up edits, Escape leaves, Shift+Enter is a line, an input method keeps its Enter",
     async (w) => {
    await w.ask("hello");
    await w.page.press("#input", "ArrowUp");
    assert.equal(await w.page.inputValue(".editor textarea"), "hello");
    await w.page.keyboard.press("Escape");
    assert.equal(await w.page.locator(".editor").count(), 0);
    await w.page.fill("#input", "a");
    await w.page.press("#input", "Shift+Enter");
    await w.page.keyboard.type("b");
    assert.equal(await w.page.inputValue("#input"), "a\nb");
    await w.page.locator("#input").evaluate((node) => node.dispatchEvent(new KeyboardEvent(
        "keydown", {key: "Enter", isComposing: true, bubbles: true, cancelable: true})));
    assert.equal((await w.texts()).length, 2);
    await w.page.locator("#scroll").focus();
    await w.page.keyboard.press("?");
    assert.ok(await w.page.locator("#help").isVisible());
    await w.page.keyboard.press("Escape");
    await w.page.locator("#scroll").focus();
    await w.page.keyboard.press("/");
    assert.ok(await w.page.locator("#input").evaluate((n) => n === document.activeElement));
});

scripted("settings are sent, kept, and left out when empty", async (w) => {
    await w.page.click("#open-settings");
    const values = {temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.05, seed: 7, max_tokens: 99};
    for (const [name, value] of Object.entries(values)) {
        await w.page.fill(`#s-${name}`, String(value));
    }
    await w.page.fill("#s-system", "Be brief.");
    await w.page.check("[name=thinking][value=off]");
    await w.page.keyboard.press("Escape");
    await w.page.reload();
    await w.ask("hello");
    const [body] = w.server.requests;
    assert.deepEqual(Object.fromEntries(Object.keys(values).map((n) => [n, body[n]])), values);
    assert.deepEqual(body.chat_template_kwargs, {enable_thinking: false});
    assert.deepEqual(body.messages[0], {role: "system", content: "Be brief."});
    await w.page.click("#open-settings");
    await w.page.fill("#s-top_p", "7"); // out of range: refused
    await w.page.click("#settings-reset");
    assert.equal(await w.page.inputValue("#s-temperature"), "");
    await w.page.keyboard.press("Escape");
    await w.ask("again");
    assert.deepEqual(Object.keys(w.server.requests[1]).sort(),
                     ["messages", "return_progress", "stream", "stream_options"]);
});

scripted("the prompt's progress is shown", async (w) => {
    w.server.allow(2);
    await w.send("progress please");
    await w.untilText(".status", /Reading the prompt: [\d,]+ of 2,048 tokens/);
    w.server.release();
    await w.finish();
    assert.ok(!await w.page.locator(".status").isVisible());
});

scripted("reasoning is folded apart from the answer", async (w) => {
    await w.ask("think about it");
    const fold = w.page.locator("details.reasoning");
    assert.equal(await fold.evaluate((node) => node.open), false);
    assert.ok(!await w.page.locator(".thought").isVisible());
    await fold.locator("summary").click();
    assert.equal(await w.page.locator(".thought").textContent(),
                 "The user wants proof. Let me weigh it.");
    assert.doesNotMatch((await w.texts())[1], /weigh/);
});

scripted("a tool call is shown as it stands", async (w) => {
    await w.ask("use a tool");
    assert.equal(await w.page.locator(".call").textContent(),
                 "Tool call: get_weather{\"city\": \"Bern\"}");
});

scripted("a stream cut at every byte is the same text", async (w) => {
    await w.ask("in pieces");
    assert.equal((await w.texts())[1], "月光 émigré 🚀");
});

scripted("code is copied as it is", async (w) => {
    await w.context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await w.ask("rich");
    await w.page.click("[aria-label='Copy the code']");
    await w.untilText("#announce", /Copied/);
    assert.equal(await w.page.evaluate(() => navigator.clipboard.readText()), CODE);
});

// ---- keeping ----------------------------------------------------------------------------------

both("a reload keeps the conversation", async (w) => {
    await w.ask("remember this");
    const before = await w.texts();
    await w.page.reload();
    await w.until("the messages", async () => (await w.texts()).length === 2);
    assert.deepEqual(await w.texts(), before);
    assert.equal(await w.page.locator(".notice").count(), 0);
});

scripted("an answer that a reload interrupts is kept as far as it came", async (w) => {
    await w.send("slow");
    await w.until("some text", async () => (await w.texts())[1]?.length > 60);
    await w.page.reload();
    await w.untilText(".notice", /closed before the answer was complete/);
    assert.ok((await w.texts())[1].length > 10);
    await w.until("the server to notice", () => w.server.aborted === 1);
});

both("several conversations: new, rename, export, delete, undo", async (w) => {
    await w.ask("alpha");
    await w.page.click("#new");
    assert.equal((await w.texts()).length, 0);
    await w.ask("beta");
    assert.deepEqual(await w.page.locator("#list .name").allTextContents(), ["beta", "alpha"]);
    await w.page.click("#list [aria-label=Rename]");
    await w.page.fill(".rename", "gamma");
    await w.page.press(".rename", "Enter");
    await w.page.reload();
    await w.untilText("#list", /gamma/);
    const [saved] = await Promise.all([w.page.waitForEvent("download"),
                                       w.page.click("#list [aria-label='Export as JSON']")]);
    const exported = JSON.parse(await readFile(await saved.path(), "utf8"));
    assert.equal(exported.title, "gamma");
    assert.deepEqual(exported.nodes.map((n) => n.role), ["user", "assistant"]);
    await w.stopClock(); // the offer to undo stays for some seconds
    await w.page.click("#list [aria-label=Delete]");
    assert.deepEqual(await w.page.locator("#list .name").allTextContents(), ["alpha"]);
    assert.equal((await w.texts())[0], "alpha");
    await w.page.click("#toast-action");
    assert.deepEqual((await w.page.locator("#list .name").allTextContents()).sort(),
                     ["alpha", "gamma"]);
    assert.equal((await w.texts())[0], "beta");
});

scripted("an answer goes on while another conversation is open", async (w) => {
    await w.send("tell a story");
    await w.until("some text", async () => (await w.texts())[1]?.length > 5);
    await w.page.click("#new");
    await w.ask("meanwhile");
    await w.page.click("#list .name >> text=tell a story");
    await w.finish();
    assert.match((await w.texts())[1], /sang the rest of it\.$/);
});

// ---- trouble ----------------------------------------------------------------------------------

scripted("a server that is gone is told, and tried again", async (w) => {
    const {port} = w.server;
    await w.server.die();
    await w.ask("anyone there?");
    await w.untilText("[role=alert]", /does not answer.*still running/);
    await w.untilText("#model-state", /not reachable/);
    await w.server.start(port);
    await w.page.click("[role=alert] .primary");
    await w.finish();
    assert.match((await w.texts())[1], /^Answer 1 to: anyone there\?/);
    assert.equal(await w.page.locator("[role=alert]").count(), 0);
    assert.equal(await w.page.locator(".count").count(), 0);
    await w.until("the server to be back", async () =>
        await w.page.locator("#model-state").textContent() === "");
}, {excuse: GONE});

for (const how of ["break off", "end early", "the server dies"]) {
    scripted(`a connection that ends in mid-answer (${how}) loses nothing`, async (w) => {
        w.server.allow(4);
        await w.send(how === "the server dies" ? "slow" : how);
        await w.until("some text", async () => (await w.texts())[1]?.length > 20);
        if (how === "the server dies") {
            await w.server.die();
        }
        w.server.release();
        await w.untilText("[role=alert]", /connection was lost/);
        const kept = await w.texts();
        assert.ok(kept[1].length > 20);
        if (how !== "the server dies") {
            await w.page.reload();
            await w.untilText("[role=alert]", /connection was lost/);
            assert.deepEqual(await w.texts(), kept);
            await w.page.click("[role=alert] .primary");
            await w.untilText(".assistant .count", /2 \/ 2/);
        }
    }, {excuse: GONE});
}

scripted("a connection that ends before anything has arrived", async (w) => {
    w.server.allow(2);
    await w.send("progress please");
    await w.untilText(".status", /Reading the prompt/);
    await w.server.die();
    await w.untilText("[role=alert]", /connection was lost.*Nothing had arrived yet/);
}, {excuse: GONE});

scripted("an error inside the stream is told in the server's words", async (w) => {
    await w.ask("fail inside");
    assert.match(await w.page.locator("[role=alert]").textContent(),
                 /read of layer 3, expert 17 failed/);
    assert.match((await w.texts())[1], /^Half an answer/);
});

scripted("a conversation that is too long offers a new one", async (w) => {
    await w.ask("this is too long");
    assert.match(await w.page.locator("[role=alert]").textContent(), /context is 4096 tokens/);
    await w.page.click("[role=alert] .primary");
    assert.equal((await w.texts()).length, 0);
}, {excuse: /status of 400/});

scripted("a busy server is tried again, at its own pace", async (w) => {
    w.server.isBusy = true;
    await w.send("hello");
    await w.untilText(".status", /busy. Retrying in 1 s/);
    await w.until("another try", () => w.server.requests.length >= 2);
    w.server.isBusy = false;
    await w.finish();
    assert.equal((await w.texts())[1], `Answer ${w.server.requests.length} to: hello`);
}, {excuse: /status of 503/});

scripted("waiting for a busy server can be stopped", async (w) => {
    w.server.isBusy = true;
    w.server.retryAfter = "3600";
    await w.send("hello");
    await w.untilText(".status", /busy/);
    await w.page.keyboard.press("Escape");
    await w.finish();
    assert.equal(w.server.requests.length, 1);
}, {excuse: /status of 503/});

scripted("a key that is missing is asked for, kept and sent", async (w) => {
    w.server.key = "sesame";
    await w.ask("open");
    await w.untilText("#model-state", /needs an API key/);
    await w.page.click("[role=alert] .primary");
    assert.ok(await w.page.locator("#s-key").evaluate((n) => n === document.activeElement));
    await w.page.keyboard.type(w.server.key);
    await w.page.keyboard.press("Enter");
    await w.page.click("button:text('Try again')");
    await w.finish();
    assert.match((await w.texts())[1], /^Answer/);
    await w.page.reload();
    await w.untilText("#model-name", /nano/);
}, {excuse: /status of 401/});
