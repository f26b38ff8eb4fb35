// Takes the picture in README.md: a short conversation with nano on the real server, in the light
// theme. web_test.py --program PROGRAM MODEL --readme FILE runs it. FILE is in WebP format.

import {writeFileSync} from "node:fs";

import {launch} from "./browser.mjs";

const browser = await launch();
const context = await browser.newContext({
    viewport: {width: 1240, height: 830}, colorScheme: "light", deviceScaleFactor: 2});
const page = await context.newPage();
await page.addInitScript(() => {
    localStorage["flashmoe.settings"] ??= JSON.stringify({temperature: 0, max_tokens: 1000});
});
await page.goto(process.env.FLASHMOE_WEB_URL);
for (const text of ["What is the Moon?", "Write a story about a robot who loves music."]) {
    await page.fill("#input", text);
    await page.press("#input", "Enter");
    await page.waitForSelector("#send", {state: "visible", timeout: 0});
}
const devtools = await context.newCDPSession(page);
const shot = await devtools.send("Page.captureScreenshot", {format: "webp", quality: 82});
writeFileSync(process.argv[2], Buffer.from(shot.data, "base64"));
await browser.close();
