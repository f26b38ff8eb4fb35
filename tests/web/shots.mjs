// Takes screenshots to look at: desktop and phone, light and dark, against the scripted server or
// the real one. web_test.py --shots DIR runs it.

import {join} from "node:path";

import {launch} from "./browser.mjs";
import {MockServer} from "./mock_server.mjs";

const dir = process.argv[2];
const browser = await launch();
const sizes = {desktop: {width: 1280, height: 800}, phone: {width: 390, height: 844}};

async function ask(page, text) {
    await page.fill("#input", text);
    await page.click("#send");
    await page.waitForSelector("#send:not([hidden])", {state: "visible", timeout: 30000});
}

async function shoot(name, theme, shape = {}) {
    const server = await new MockServer({wordMs: 15, ...shape}).start();
    const isPhone = name === "phone";
    const context = await browser.newContext({
        viewport: sizes[name], colorScheme: theme, deviceScaleFactor: isPhone ? 2 : 1,
        hasTouch: isPhone, isMobile: isPhone});
    const page = await context.newPage();
    await page.goto(server.url);
    const file = (part) => join(dir, `${name}-${theme}${part}.png`);
    await page.waitForTimeout(700);
    await page.screenshot({path: file("-empty")});
    await ask(page, "Write a story about a robot who loves music.");
    await page.click("#new", {timeout: 1000}).catch(() => {});
    await ask(page, "Please think, then show a rich answer.");
    await page.screenshot({path: file("-rich")});
    await ask(page, "写一首关于月亮的诗");
    await page.waitForTimeout(9000);
    server.wordMs = 110;
    await page.fill("#input", "Now a story about a robot who loves music.");
    await page.click("#send");
    await page.waitForTimeout(4200);
    await page.screenshot({path: file("")});
    if (isPhone) {
        await page.click("#toggle-engine");
        await page.waitForTimeout(1600);
        await page.screenshot({path: file("-engine")});
        await page.click("#close-engine");
        await page.click("#menu");
        await page.screenshot({path: file("-menu")});
        await page.click("#shade", {position: {x: 370, y: 300}});
    } else {
        await page.click("#open-map");
        await page.waitForTimeout(900);
        await page.screenshot({path: file("-map")});
        await page.keyboard.press("Escape");
    }
    await page.click("#stop", {timeout: 1000}).catch(() => {}); // the answer may be over
    await page.click("#open-settings");
    await page.screenshot({path: file("-settings")});
    await page.keyboard.press("Escape");
    await page.click("#open-help");
    await page.screenshot({path: file("-help")});
    await page.keyboard.press("Escape");
    await server.die();
    await ask(page, "Are you there?");
    await page.waitForTimeout(2500);
    await page.screenshot({path: file("-error")});
    await context.close();
}

async function shootLarge() {
    const server = await new MockServer({nLayers: 94, nExperts: 512, wordMs: 60}).start();
    const page = await browser.newPage({viewport: sizes.desktop, colorScheme: "dark"});
    await page.goto(server.url);
    await page.fill("#input", "写一首关于月亮的诗");
    await page.click("#send");
    await page.waitForTimeout(2500);
    await page.screenshot({path: join(dir, "large.png")});
    await page.click("#open-map");
    await page.waitForTimeout(900);
    await page.screenshot({path: join(dir, "large-map.png")});
    await page.close();
    await server.die();
}

// ---- the real server --------------------------------------------------------------------------

const url = process.env.FLASHMOE_WEB_URL;
const pid = Number(process.env.FLASHMOE_WEB_PID);

async function openReal(name, theme) {
    const isPhone = name === "phone";
    const context = await browser.newContext({
        viewport: sizes[name], colorScheme: theme, deviceScaleFactor: isPhone ? 2 : 1,
        hasTouch: isPhone, isMobile: isPhone});
    const page = await context.newPage();
    await page.addInitScript(() => {
        localStorage["flashmoe.settings"] ??= JSON.stringify({temperature: 0, max_tokens: 2000});
    });
    await page.goto(url);
    await page.waitForTimeout(1500);
    const shot = (part) => page.screenshot({path: join(dir, `real-${name}-${theme}-${part}.png`)});
    // On a phone the engine's figures are behind a button.
    const engine = async (part) => {
        if (isPhone) {
            await page.click("#toggle-engine");
            await page.waitForTimeout(1200);
        }
        await shot(part);
        if (isPhone) {
            await page.click("#close-engine");
        }
    };
    return {page, shot, engine, isPhone};
}

async function shootReal(name, theme) {
    const {page, shot, engine, isPhone} = await openReal(name, theme);
    const begin = async () => {
        if (isPhone) {
            await page.click("#menu");
        }
        await page.click("#new");
    };
    await shot("empty");
    await ask(page, "Write a story about a robot who loves music.");
    await ask(page, "Write a Python function that returns the sum of a list.");
    await ask(page, "What is 17 + 25?");
    await page.click(".assistant >> nth=-1 >> [aria-label=Regenerate]");
    await page.waitForSelector("#send:not([hidden])", {state: "visible", timeout: 30000});
    await shot("conversation");
    await begin();
    await page.fill("#input", "Write a C function that copies a string.");
    await page.click("#send");
    await page.waitForTimeout(2500);
    await shot("streaming");
    await engine("streaming-engine");
    await page.waitForSelector("#send:not([hidden])", {state: "visible", timeout: 90000});
    await page.waitForTimeout(6500);
    await engine("map-code");
    for (const text of ["写一首关于月亮的诗", "写一首关于秋天的诗", "写一首关于春天的诗"]) {
        await begin();
        await ask(page, text);
    }
    await page.waitForTimeout(1100);
    await engine("map-verse");
    if (!isPhone) {
        await page.click("#open-map");
        await page.waitForTimeout(1100);
        await shot("map-large");
        await page.keyboard.press("Escape");
    }
    await begin();
    return {page, shot};
}

async function shootDeath(opened) {
    for (const {page} of opened) {
        await page.fill("#input", "Write a C function that copies a string.");
        await page.click("#send");
    }
    await opened[0].page.waitForTimeout(1500);
    process.kill(pid, "SIGKILL");
    for (const {page, shot} of opened) {
        await page.waitForSelector("[role=alert]");
        await ask(page, "Are you there?");
        await page.waitForTimeout(2500);
        await shot("error");
    }
}

if (url) {
    const opened = [];
    for (const theme of ["light", "dark"]) {
        for (const name of Object.keys(sizes)) {
            opened.push(await shootReal(name, theme));
        }
    }
    if (pid) {
        await shootDeath(opened);
    }
} else {
    for (const theme of ["light", "dark"]) {
        for (const name of Object.keys(sizes)) {
            await shoot(name, theme);
        }
    }
    await shootLarge();
}
await browser.close();
