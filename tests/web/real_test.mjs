// Tests what only the real server with nano can show: the text of a long answer arrives in pieces,
// a new answer differs from the old one, the experts on the map follow the topic, and a server that
// is killed and started again loses nothing. The last test ends the server.

import assert from "node:assert/strict";
import {spawn} from "node:child_process";

import {differing, LONG, LONG_SETTINGS, mapPixels, real, REAL_PID} from "./harness.mjs";

const GONE = /ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_NETWORK|Failed to fetch/;
const STORY = "Write a story about a robot who loves music.";
// Pairs of requests with about the same number of tokens.
const VERSES = [["写一首关于月亮的诗", "写一首关于秋天的诗"],
                ["写一首关于酒的诗", "写一首关于春天的诗"]];
const CODE = ["Write a C function that copies a string."];

real("a long answer is seen growing while the engine shows its figures", async (w) => {
    await w.watchGrowth();
    // The page records what is shown: the answer may be complete before this process asks.
    await w.page.evaluate(() => {
        const part = (id) => document.getElementById(id);
        window.shown = [];
        setInterval(() => window.shown.push({
            isAnswering: part("stop").offsetParent !== null,
            requests: part("requests").textContent, speed: part("m-speed").textContent,
            hits: part("m-hits").textContent}), 50);
    });
    await w.send(LONG);
    await w.whenMidAnswer("the figures of a growing answer", () => w.page.evaluate(() =>
        window.lengths.length >= 8 &&
        window.shown.some((s) => s.isAnswering && /^1 active/.test(s.requests) &&
                                 /^[1-9]/.test(s.speed) && /^\d/.test(s.hits))),
        async () => assert.ok(await w.page.locator("#stop").isVisible(), "it still answers"));
    await w.finish();
    assert.equal(await w.page.locator("#m-budget").textContent(), "of 70.0 MiB");
    const memory = Number(await w.page.locator("#m-memory").textContent());
    assert.ok(memory > 20 && memory <= 70, `${memory} MiB`);
    const lengths = await w.page.evaluate(() => window.lengths);
    assert.equal(lengths.at(-1), Math.max(...lengths));
    const facts = await w.page.locator(".facts").textContent();
    assert.match(facts, /3,000 tokens.*[\d.,]+ tokens\/s.*prompt of \d+/);
    assert.match(facts, /limit/);
}, {settings: LONG_SETTINGS});

real("another answer is another one, and a seed brings one back", async (w) => {
    await w.ask(STORY);
    for (let n = 2; n <= 3; n++) {
        await w.page.click(".assistant [aria-label=Regenerate]");
        await w.finish();
        assert.equal(await w.page.locator(".assistant .count").textContent(), `${n} / ${n}`);
    }
    const seen = [(await w.texts())[1]];
    for (let n = 2; n >= 1; n--) {
        await w.page.click(".assistant [aria-label='Earlier version']");
        seen.push((await w.texts())[1]);
    }
    assert.equal(new Set(seen).size, 3);
    await w.page.click("#open-settings");
    await w.page.fill("#s-seed", "5");
    await w.page.keyboard.press("Escape");
    for (const _ of [1, 2]) {
        await w.page.click(".assistant [aria-label=Regenerate]");
        await w.finish();
        seen.push((await w.texts())[1]);
    }
    assert.equal(new Set(seen).size, 4);
    await w.page.reload();
    await w.untilText(".assistant .count", /^5 \/ 5$/);
    assert.equal((await w.texts())[1], seen.at(-1));
}, {settings: {max_tokens: 60}});

// Returns the map's data, and its image without the marks of changes, which last five seconds.
async function mapNow(w) {
    await w.page.waitForTimeout(6500);
    await w.untilText("#map-summary", /; 0 changed/);
    const data = await w.page.evaluate(async () => (await fetch("experts")).json());
    const bits = data.resident.map((row) => Array.from(row, (c) =>
        parseInt(c, 16).toString(2).padStart(4, "0")).join("")).join("");
    const heat = data.heat.flatMap((row) => row.match(/../g).map((byte) => parseInt(byte, 16)));
    const n = Number(/^[\d,]+/.exec(await w.page.locator("#map-summary").textContent())[0]);
    assert.equal(bits.split("1").length - 1, n, "the page counts what the server says");
    assert.ok(n < bits.length / 2, "most experts are on disk");
    return {bits, heat, picture: await mapPixels(w.page)};
}

// Returns how much two maps differ: experts that came or went, mean heat, share of the image.
function distance(a, b) {
    return {moved: Array.from(a.bits).reduce((n, bit, i) => n + (bit !== b.bits[i]), 0),
            heat: a.heat.reduce((sum, h, i) => sum + Math.abs(h - b.heat[i]), 0) / a.heat.length,
            picture: differing(a.picture, b.picture)};
}

real("a change of topic changes the map more than another request of the same topic", async (w) => {
    const maps = [];
    for (const texts of [CODE, ...VERSES, CODE]) {
        for (const text of texts) {
            await w.page.click("#new");
            await w.ask(text);
        }
        maps.push(await mapNow(w));
    }
    const same = distance(maps[1], maps[2]);
    console.log("verse to verse:", JSON.stringify(same));
    for (const [name, i] of [["code to verse", 0], ["verse to code", 2]]) {
        const other = distance(maps[i], maps[i + 1]);
        console.log(`${name}:`, JSON.stringify(other));
        assert.ok(other.heat > 1.5 * same.heat, `${name}: heat`);
        assert.ok(other.moved > 1.3 * same.moved, `${name}: experts in memory`);
        assert.ok(other.picture > 1.3 * same.picture, `${name}: picture`);
    }
}, {settings: {temperature: 0, max_tokens: 150}});

real("the server is killed in mid-answer, and started again", async (w) => {
    await w.send(LONG);
    await w.whenMidAnswer("some text", async () => (await w.texts())[1]?.length > 100,
                          () => process.kill(REAL_PID, "SIGKILL"));
    await w.untilText("[role=alert]", /connection was lost/);
    await w.untilText("#model-state", /not reachable/);
    const kept = await w.texts();
    assert.ok(kept[1].length > 100);
    await w.ask("still there?");
    await w.untilText("[role=alert]", /does not answer/);
    assert.equal((await w.texts())[1], kept[1]);
    const [program, ...words] = JSON.parse(process.env.FLASHMOE_WEB_COMMAND || "[]");
    if (!program) {
        return;
    }
    const server = spawn(program, words, {stdio: "ignore"});
    try {
        await w.until("the server to be back", async () =>
            await w.page.locator("#model-state").textContent() === "");
        await w.page.click("[role=alert] .primary >> nth=-1");
        await w.finish();
        const texts = await w.texts();
        assert.equal(texts.length, 4);
        assert.ok(texts[3].length > 0);
        assert.equal(await w.page.locator("[role=alert]").count(), 1, "that of the first answer");
        await w.page.reload();
        await w.until("the messages", async () => (await w.texts()).length === 4);
        assert.deepEqual(await w.texts(), texts);
    } finally {
        server.kill("SIGKILL");
    }
}, {excuse: GONE, settings: LONG_SETTINGS});
