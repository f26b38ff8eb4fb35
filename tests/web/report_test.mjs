// Tests the reports of `flashmoe validate` in a browser: they need nothing else, fit every screen,
// and can be read in both themes and by a screen reader. FLASHMOE_REPORTS has their paths; a name
// that begins with "failed" is the report of a model that failed. With FLASHMOE_SHOTS it also takes
// screenshots.

import assert from "node:assert/strict";
import {readFile} from "node:fs/promises";
import {basename, join} from "node:path";
import test, {after, before} from "node:test";
import {pathToFileURL} from "node:url";

import {AXE, launch} from "./browser.mjs";

const FILES = process.env.FLASHMOE_REPORTS.split("\n");
const SHOTS = process.env.FLASHMOE_SHOTS;
const SCREENS = {desktop: {width: 1280, height: 800}, phone: {width: 360, height: 740}};
const MIN_LETTER_PX = 9; // of a plot, as shown

let browser;
before(async () => {
    browser = await launch();
});
after(() => browser.close());

// Opens a report and calls body(page). Nothing but the file may be asked for.
async function open(file, screen, colorScheme, body) {
    const isPhone = screen === "phone";
    const context = await browser.newContext({
        viewport: SCREENS[screen], colorScheme, isMobile: isPhone, hasTouch: isPhone,
        deviceScaleFactor: isPhone ? 2 : 1});
    const page = await context.newPage();
    const url = pathToFileURL(file).href;
    const complaints = [];
    page.on("console", (message) => complaints.push(`console: ${message.text()}`));
    page.on("pageerror", (error) => complaints.push(`exception: ${error.message}`));
    page.on("request", (request) => {
        if (request.url() !== url) {
            complaints.push(`request: ${request.url()}`);
        }
    });
    try {
        await page.goto(url);
        await body(page);
        assert.deepEqual(complaints, []);
    } finally {
        await context.close();
    }
}

const widthOf = (page) => page.evaluate(() => document.documentElement.scrollWidth);

// Returns the plots' texts that stick out of their plot, lie on each other or are too small.
function badLetters(page, minPx) {
    return page.evaluate((min) => {
        const bad = [];
        for (const svg of document.querySelectorAll("svg")) {
            const box = svg.getBoundingClientRect();
            const shown = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
            const boxes = shown.map((t) => t.getBoundingClientRect());
            for (const [i, a] of boxes.entries()) {
                const text = shown[i].textContent;
                if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 ||
                    a.bottom > box.bottom + 1) {
                    bad.push(`sticks out: ${text}`);
                }
                const scale = box.width / svg.viewBox.baseVal.width;
                const px = parseFloat(getComputedStyle(shown[i]).fontSize) * scale;
                if (px < min) {
                    bad.push(`${px.toFixed(1)} px: ${text}`);
                }
                for (const [k, b] of boxes.slice(0, i).entries()) {
                    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                    if (x > 2 && y > 4) {
                        bad.push(`'${text}' lies on '${shown[k].textContent}'`);
                    }
                }
            }
        }
        return bad;
    }, minPx);
}

async function assertAccessible(page) {
    await page.evaluate(await readFile(AXE, "utf8"));
    const {violations} = await page.evaluate(() => window.axe.run(document, {
        resultTypes: ["violations"]}));
    assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes.map((n) =>
        n.html.slice(0, 120) + n.failureSummary)}`), []);
}

async function check(page, file, screen, theme) {
    const isFailed = basename(file).startsWith("failed");
    const {width, height} = SCREENS[screen];
    const verdict = page.locator(".verdict");
    assert.match(await verdict.textContent(), isFailed ? /^\s*Failed/ : /^\s*Passed/);
    const box = await verdict.boundingBox();
    assert.ok(box.y + 40 < height, `the verdict begins at ${box.y}`);
    assert.equal(await page.locator("td.bad").count() > 0, isFailed);
    assert.ok(await widthOf(page) <= width, `${await widthOf(page)} px wide`);
    assert.deepEqual(await badLetters(page, MIN_LETTER_PX), []);
    // Texts of prompts and answers are there when they are asked for.
    for (const summary of await page.locator("summary").all()) {
        await summary.click();
    }
    assert.equal(await page.locator("details:not([open])").count(), 0);
    assert.ok(await widthOf(page) <= width, `${await widthOf(page)} px wide with all texts`);
    assert.doesNotMatch(await page.locator("main").innerText(), /\b(nan|-?inf|undefined|null)\b/);
    const ground = await page.evaluate(() =>
        getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
    assert.equal(ground[0] > 128, theme === "light");
    await assertAccessible(page);
}

for (const file of FILES) {
    for (const screen of Object.keys(SCREENS)) {
        for (const theme of ["light", "dark"]) {
            test(`${basename(file)}: ${screen}, ${theme}`, () =>
                open(file, screen, theme, async (page) => {
                    if (SHOTS) {
                        const name = `${basename(file, ".html")}-${screen}-${theme}.png`;
                        await page.screenshot({path: join(SHOTS, name), fullPage: true});
                    }
                    await check(page, file, screen, theme);
                }));
        }
    }
}
