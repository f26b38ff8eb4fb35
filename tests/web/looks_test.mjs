// Tests the page in a browser: the live panel, the expert map, themes, small screens,
// accessibility.

import assert from "node:assert/strict";
import {readFile} from "node:fs/promises";

import {AXE} from "./browser.mjs";
import {both, differing, LONG, LONG_SETTINGS, mapPixels, REAL_URL, scripted} from "./harness.mjs";

const STORY = "tell a story";
const VERSE = "写一首关于月亮的诗。";

both("the live figures are the server's", async (w) => {
    await w.untilText("#m-memory", /^\d/);
    await w.untilText("#m-budget", /^of [\d.,]+ [GM]iB$/);
    if (w.server) {
        assert.equal(await w.page.locator("#m-memory").textContent(), "11.2");
        assert.equal(await w.page.locator("#m-hits").textContent(), "93.4");
        assert.equal(await w.page.locator("#m-limit").textContent(), "–");
    }
    await w.send(LONG);
    await w.whenMidAnswer("the figures of a request", async () =>
        /1 active/.test(await w.page.locator("#requests").textContent()) &&
        /^[1-9]/.test(await w.page.locator("#m-speed").textContent()), () => {});
    if (w.server) {
        await w.untilText("#m-disk", /^1\.[789]\d$/);
        await w.untilText("#m-limit", /^87\.1$/);
        await w.page.click("#stop");
    }
    await w.finish();
    await w.untilText("#requests", /0 active/);
}, {settings: LONG_SETTINGS});

scripted("every machine of a model on several has its figures", async (w) => {
    const cells = () => w.page.locator("#ranks-rows tr").evaluateAll((rows) =>
        rows.map((row) => [...row.children].map((cell) => cell.textContent)));
    await w.untilText("#ranks-count", /^3 ranks$/);
    await w.until("figures of some seconds", async () => (await cells())[2][3] !== "0");
    const near = (text, expected) => assert.ok(
        Math.abs(Number(text.replace(",", "")) / expected - 1) < 0.2, `${text} ${expected}`);
    for (const [i, [rank, layers, hits, disk, wait, busy, sent]] of (await cells()).entries()) {
        assert.equal(rank, `${i} machine-${i}`);
        assert.equal(layers, ["0–1", "2–4", "5–7"][i]);
        near(hits, 100 * 9 / (10 + i));
        near(disk, 120 * (i + 1));
        near(wait, 10 * (i + 1));
        near(busy, 30);
        near(sent, 500);
    }
    assert.match(await w.page.locator("#ranks-network").textContent(),
                 /: [456]\.\d ms a pass$/);
}, {mock: {nRanks: 3}});

scripted("the machines of a model fit a phone", async (w) => {
    await w.page.click("#toggle-engine");
    await w.untilText("#ranks-count", /^64 ranks$/);
    const [inner, outer] = await w.page.locator(".ranks-box").evaluate((box) =>
        [box.scrollWidth, box.clientWidth]);
    assert.ok(inner <= outer, `${inner} of ${outer}`);
    assert.equal(await w.page.evaluate(() => document.documentElement.scrollWidth), 360);
}, {mock: {nLayers: 64, nRanks: 64}, viewport: {width: 360, height: 740}});

scripted("a model on one machine has no table of machines", async (w) => {
    await w.untilText("#m-memory", /^\d/);
    assert.equal(await w.page.locator("#ranks").isVisible(), false);
});

scripted("a change of topic changes the expert map", async (w) => {
    await w.untilText("#map-summary", /^[\d,]+ of [\d,]+ experts in memory; /);
    await w.ask(STORY);
    await w.stopClock();
    await w.untilText("#map-summary", /; 0 changed/);
    const before = await mapPixels(w.page);
    await w.send(VERSE);
    let most = 0;
    await w.until("changes in the map", async () => {
        const text = await w.page.locator("#map-summary").textContent();
        most = Math.max(most, Number(/; ([\d,]+) changed/.exec(text)[1].replace(",", "")));
        return most >= 100 && differing(before, await mapPixels(w.page)) > 0.02;
    });
}, {mock: {wordMs: 25}});

scripted("what changed while the panel was closed did not change just now", async (w) => {
    const shown = () => w.page.locator("#map-summary").textContent();
    await w.untilText("#map-summary", /experts in memory/);
    const before = await mapPixels(w.page);
    await w.page.click("#toggle-engine");
    await w.ask(VERSE);
    await w.page.clock.fastForward(5500);
    await w.page.click("#toggle-engine");
    await w.until("a new map", async () => differing(before, await mapPixels(w.page)) > 0.02);
    assert.match(await shown(), /; 0 changed/);
}, {mock: {wordMs: 25}});

scripted("the map says of each expert what the server says", async (w) => {
    await w.untilText("#map-summary", /512 experts/);
    const truth = w.server.experts.json();
    const bits = truth.resident.map((row) => Array.from(row, (c) =>
        parseInt(c, 16).toString(2).padStart(4, "0")).join(""));
    const here = bits.join("").split("1").length - 1;
    await w.untilText("#map-summary", new RegExp(`^${here} of 512 experts in memory; 0 changed`));
    await w.page.locator("#map").focus();
    await w.page.keyboard.press("Home");
    for (const [key, layer, expert] of [["ArrowDown", 1, 0], ["ArrowRight", 1, 1],
                                        ["End", 1, 63], ["ArrowDown", 2, 63], ["Home", 2, 0]]) {
        await w.page.keyboard.press(key);
        const heat = parseInt(truth.heat[layer].slice(2 * expert, 2 * expert + 2), 16);
        assert.equal(await w.page.locator("#map-point").textContent(),
                     `Layer ${layer}, expert ${expert}: heat ${Math.round(heat / 2.55)} %, ` +
                     (bits[layer][expert] === "1" ? "in memory" : "on disk"));
    }
    await w.page.hover("#map", {position: {x: 3, y: 3}});
    await w.untilText("#map-point", /^Layer 0, expert 0: heat \d+ %/);
});

scripted("a map with a GPU has three places", async (w) => {
    const bitsOf = (rows) => rows.map((row) => Array.from(row, (c) =>
        parseInt(c, 16).toString(2).padStart(4, "0")).join("")).join("");
    await w.untilText("#map-summary", /512 experts in memory, \d+ of them on the GPU; /);
    const truth = w.server.experts.json();
    const here = bitsOf(truth.resident), onGpu = bitsOf(truth.gpu);
    const n = (bits) => bits.split("1").length - 1;
    await w.untilText("#map-summary", new RegExp(
        `^${n(here)} of 512 experts in memory, ${n(onGpu)} of them on the GPU; 0 changed`));
    await w.page.locator("#map").focus();
    await w.page.keyboard.press("Home");
    const seen = new Set();
    for (let i = 1; i < 64; i++) {
        await w.page.keyboard.press("ArrowRight");
        const where = onGpu[i] === "1" ? "in the GPU's memory"
            : here[i] === "1" ? "in memory" : "on disk";
        const text = await w.page.locator("#map-point").textContent();
        assert.ok(text.endsWith(`%, ${where}`), text);
        seen.add(where);
    }
    assert.equal(seen.size, 3);
    for (const id of ["#legend-gpu", "#legend-memory"]) {
        assert.ok(await w.page.locator(id).isVisible());
    }
}, {mock: {hasGpu: true}});

scripted("a map without a GPU does not speak of one", async (w) => {
    await w.untilText("#map-summary", /512 experts in memory; /);
    for (const id of ["#legend-gpu", "#legend-memory"]) {
        assert.ok(await w.page.locator(id).isHidden());
    }
});

scripted("a server without an expert map is no trouble", async (w) => {
    w.server.experts.json = () => null;
    await w.untilText("#map-summary", /^The server has no expert map/);
    assert.equal(await w.page.locator("#model-state").textContent(), "");
    await w.untilText("#m-memory", /11\.2/);
}, {excuse: /status of 404/});

for (const [nLayers, nExperts] of [[1, 7], [8, 64], [48, 128], [94, 512]]) {
    scripted(`a map of ${nLayers} x ${nExperts} has a place for every expert`, async (w) => {
        await w.untilText("#map-size", new RegExp(`${nLayers} layers × ${nExperts}$`));
        for (const isLarge of [false, true]) {
            if (isLarge) {
                await w.page.click("#open-map");
            }
            const found = await w.page.evaluate(([isSmall, step]) => {
                const canvas = document.getElementById("map");
                const box = canvas.parentElement.getBoundingClientRect();
                const seen = new Set();
                const at = canvas.getBoundingClientRect();
                for (let y = 0.5; isSmall && y < at.height; y += step) {
                    for (let x = 0.5; x < at.width; x += step) {
                        canvas.dispatchEvent(new PointerEvent("pointermove", {
                            clientX: at.x + x, clientY: at.y + y}));
                        seen.add(document.getElementById("map-point").textContent.split(":")[0]);
                    }
                }
                seen.delete("");
                return {n: seen.size, fits: at.width <= box.width + 1, height: at.height};
            }, [nLayers * nExperts <= 1000, isLarge ? 10 : 5]);
            assert.ok(found.fits);
            assert.ok(found.height > 4 && found.height < 700, `${found.height} px high`);
            if (nLayers * nExperts <= 1000) {
                assert.equal(found.n, nLayers * nExperts);
            }
        }
        await w.page.keyboard.press("Escape");
        await w.until("the map to fit its panel again", () => w.page.evaluate(() =>
            document.getElementById("map").getBoundingClientRect().width <=
            document.getElementById("map-home").getBoundingClientRect().width &&
            !document.querySelector("dialog[open]")));
    }, {mock: {nLayers, nExperts}});
}

both("light and dark: the system's, then one's own choice, which is kept", async (w) => {
    const ground = () => w.page.evaluate(() => getComputedStyle(document.documentElement)
        .backgroundColor);
    const dark = await ground();
    await w.page.click("#toggle-theme");
    const light = await ground();
    assert.notEqual(dark, light);
    await w.page.reload();
    assert.equal(await ground(), light);
    await w.page.click("#toggle-theme");
    assert.equal(await ground(), dark);
}, {colorScheme: "dark"});

both("at 360 pixels nothing sticks out and everything can be reached", async (w) => {
    const wide = () => w.page.evaluate(() => Math.max(
        document.documentElement.scrollWidth, document.getElementById("scroll").scrollWidth));
    await w.ask(REAL_URL ? "hello" : `rich ${"unbroken".repeat(40)}`);
    await w.ask(REAL_URL ? "hello" : "hostile");
    await w.ask(REAL_URL ? "hello" : "formulas");
    assert.ok(await wide() <= 360, `${await wide()} px wide`);
    await w.page.click("#toggle-engine");
    await w.untilText("#map-summary", /experts in memory/);
    assert.ok(await w.page.locator("#map").isVisible());
    assert.ok(await wide() <= 360);
    for (let n = 0; n < 20; n++) {
        await w.page.keyboard.press("Tab");
        assert.ok(await w.page.evaluate(() => !document.activeElement.closest("main")));
    }
    await w.page.keyboard.press("Escape");
    assert.ok(!await w.page.locator("#map").isVisible());
    await w.page.click("#menu");
    await w.page.click("#new");
    assert.ok(!await w.page.locator("#new").isVisible());
    assert.equal((await w.texts()).length, 0);
    await w.page.click("#open-settings");
    assert.ok(await wide() <= 360);
}, {viewport: {width: 360, height: 740}, hasTouch: true, isMobile: true});

scripted("a screen reader hears of an answer once, not word by word", async (w) => {
    await w.page.evaluate(() => {
        window.said = [];
        const place = document.getElementById("announce");
        new MutationObserver(() => window.said.push(place.textContent))
            .observe(place, {childList: true});
    });
    await w.ask("tell a story");
    const said = await w.page.evaluate(() => window.said);
    assert.equal(said.length, 2);
    assert.match(said[1], /^Answer: Once upon a time/);
    const live = await w.page.locator("[aria-live], [role=log], [role=status], [role=alert]")
        .evaluateAll((nodes) => nodes.filter((n) => n.closest(".messages")).length);
    assert.equal(live, 0);
});

both("the page comes with a strict policy", async (w) => {
    const response = await w.page.goto(w.url);
    const policy = response.headers()["content-security-policy"] ?? "";
    assert.match(policy, /default-src 'self'/);
    assert.doesNotMatch(policy, /unsafe|\*|data:/);
    assert.equal(await w.page.locator("[style], style, script:not([src])").evaluateAll(
        (nodes) => nodes.filter((n) => n.tagName !== "CANVAS" && !n.style?.length).length), 0);
});

for (const [colorScheme, width, height] of [["light", 1280, 800], ["dark", 1280, 800],
                                           ["light", 390, 844], ["dark", 390, 844]]) {
    const viewport = {width, height};
    both(`accessible: ${colorScheme}, ${viewport.width} pixels`, async (w) => {
        await w.ask(REAL_URL ? "hello" : "think, then give a rich answer");
        if (w.server) {
            await w.page.click("summary");
            await w.ask("formulas");
            await w.ask("a program");
            await w.page.setInputFiles("#attach-files", {
                name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("text")});
            await w.ask("five words");
            await w.page.click(".assistant >> nth=-1 >> [aria-label='Token probabilities']");
            await w.untilText(".token-point", /^5 tokens/);
            await w.page.setInputFiles("#attach-files", [
                {name: "more.txt", mimeType: "text/plain", buffer: Buffer.from("text")},
                {name: "empty.txt", mimeType: "text/plain", buffer: Buffer.from("")}]);
            await w.untilText("#attach-note", /empty/);
            await w.ask("fail inside");
            await w.page.setInputFiles("#attach-files", {
                name: "empty.txt", mimeType: "text/plain", buffer: Buffer.from("")});
        }
        await w.page.evaluate(await readFile(AXE, "utf8"));
        const check = async (what) => {
            const {violations} = await w.page.evaluate(() => window.axe.run(document, {
                resultTypes: ["violations"]}));
            assert.deepEqual(violations.map((v) => `${what}: ${v.id}: ${v.nodes.map((n) =>
                n.html.slice(0, 120) + n.failureSummary)}`), []);
        };
        await check("chat");
        for (const [button, dialog] of [["#open-settings", "#settings"], ["#open-help", "#help"],
                                        ["#model", "#card"]]) {
            await w.page.click(button);
            if (dialog === "#card") {
                await w.untilText("#card-content", /Formats/);
            }
            await check(dialog);
            await w.page.keyboard.press("Escape");
        }
        await w.page.hover(".user >> nth=0");
        await w.page.click(".user >> nth=0 >> [aria-label=Edit]");
        await check("editor");
        await w.page.keyboard.press("Escape");
        if (viewport.width < 500) {
            await w.page.click("#menu");
            await check("conversations");
            await w.page.keyboard.press("Escape");
            await w.page.click("#toggle-engine");
            await w.untilText("#map-summary", /experts in memory/);
            await check("panel");
        }
        await w.page.click("#open-map");
        await check("map");
    }, {colorScheme, viewport, mock: {nRanks: 3}});
}
