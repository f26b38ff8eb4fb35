// Every test of the page begins with this: a server, a browser window, and a check that the page
// never does what it must not (log errors in the console, violate its policy, contact another
// host).

import assert from "node:assert/strict";
import test, {after, before} from "node:test";

import {launch} from "./browser.mjs";
import {MockServer} from "./mock_server.mjs";

export const REAL_URL = process.env.FLASHMOE_WEB_URL;
export const REAL_PID = Number(process.env.FLASHMOE_WEB_PID);
// A question that nano, at temperature 0, answers until it reaches the token limit, and the
// settings for it. That takes seconds.
export const LONG = REAL_URL ? "Write a C function that copies a string." : "slow";
export const LONG_SETTINGS = {temperature: 0, max_tokens: 3000};
const SHORT_SETTINGS = {temperature: 0, max_tokens: 120};
// Ends a test that hangs. No test may need a fast machine: they wait for events.
const DEADLINE_MS = 600000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let browser;
before(async () => {
    browser = await launch();
});
after(() => browser.close());

export class Window {
    complaints = [];

    constructor(server, context, page) {
        Object.assign(this, {server, context, page});
        this.url = server?.url ?? REAL_URL;
    }

    watch() {
        const {page, complaints} = this;
        page.on("console", (message) => {
            if (["error", "warning"].includes(message.type())) {
                complaints.push(`console: ${message.text()}`);
            }
        });
        page.on("pageerror", (error) => complaints.push(`exception: ${error.stack}`));
        page.on("request", (request) => {
            if (!request.url().startsWith(this.url) && !request.url().startsWith("blob:")) {
                complaints.push(`request to another place: ${request.url()}`);
            }
        });
        return page.addInitScript(() => {
            window.violations = [];
            addEventListener("securitypolicyviolation", (event) =>
                window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
        });
    }

    async send(text) {
        await this.page.fill("#input", text);
        await this.page.click("#send");
    }

    // Waits until no answer is being written.
    finish() {
        return this.page.waitForSelector("#send", {state: "visible"});
    }

    async ask(text) {
        await this.send(text);
        await this.finish();
    }

    // Returns the texts of the messages shown.
    texts() {
        return this.page.locator(".message .body").allTextContents();
    }

    // Makes the page record each length of the last answer as it grows: a model may be done before
    // the test has looked twice.
    watchGrowth() {
        return this.page.evaluate(() => {
            window.lengths = [];
            new MutationObserver(() => {
                const bodies = document.querySelectorAll(".assistant .body");
                const length = bodies[bodies.length - 1]?.textContent.length ?? 0;
                if (length !== window.lengths.at(-1)) {
                    window.lengths.push(length);
                }
            }).observe(document.getElementById("messages"),
                       {childList: true, characterData: true, subtree: true});
        });
    }

    async until(what, condition) {
        const end = Date.now() + DEADLINE_MS;
        while (!await condition()) {
            assert.ok(Date.now() < end, `waited in vain for: ${what}`);
            await pause(30);
            if (this.tickMs) {
                await this.page.clock.runFor(this.tickMs);
            }
        }
    }

    // Waits for a condition in the middle of an answer, then acts. A real server would have written
    // the whole answer before a busy browser shows its first words. So the server runs in short
    // bursts until the condition holds, and is stopped during the act.
    async whenMidAnswer(what, condition, act) {
        if (this.server) {
            await this.until(what, condition);
            return act();
        }
        try {
            await this.until(what, async () => {
                process.kill(REAL_PID, "SIGCONT");
                await pause(20);
                process.kill(REAL_PID, "SIGSTOP");
                await pause(80);
                return condition();
            });
            return await act();
        } finally {
            process.kill(REAL_PID, "SIGCONT");
        }
    }

    untilText(selector, pattern) {
        return this.until(`${selector} ${pattern}`, async () =>
            pattern.test((await this.page.locator(selector).allTextContents()).join("\n")));
    }

    // Stops the page's clock. From now on the page's time passes only while a test waits: each
    // check of until() advances it by half a second.
    async stopClock() {
        this.tickMs = 500;
        // The clock runs on until the pause reaches it: a busy machine may miss a near moment.
        for (let aheadMs = 100;; aheadMs *= 2) {
            const moment = await this.page.evaluate((ms) => Date.now() + ms, aheadMs);
            try {
                return await this.page.clock.pauseAt(moment);
            } catch (error) {
                if (aheadMs > 5000 || !/to the past/.test(error.message)) {
                    throw error;
                }
            }
        }
    }
}

// Returns the map's image as numbers.
export function mapPixels(page) {
    return page.locator("#map").evaluate((canvas) => {
        const {width, height} = canvas;
        const copy = new OffscreenCanvas(width, height)
            .getContext("2d", {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        return Array.from(copy.getImageData(0, 0, width, height).data);
    });
}

// Returns the share of the values of two images that differ.
export function differing(a, b) {
    return a.reduce((n, v, i) => n + (Math.abs(v - b[i]) > 24 ? 1 : 0), 0) / a.length;
}

async function run(options, body) {
    const {mock = {}, excuse = null, settings = SHORT_SETTINGS, ...contextOptions} = options;
    const server = REAL_URL ? null : await new MockServer(mock).start();
    const context = await browser.newContext({viewport: {width: 1280, height: 800},
                                              ...contextOptions});
    context.setDefaultTimeout(DEADLINE_MS);
    const window = new Window(server, context, await context.newPage());
    try {
        await window.watch();
        await window.page.clock.install();
        if (REAL_URL) {
            await window.page.addInitScript((text) => {
                localStorage["flashmoe.settings"] ??= text;
            }, JSON.stringify(settings));
        }
        await window.page.goto(window.url);
        await window.untilText("#model-name", /^(?!connecting)/);
        await body(window);
        const violations = await window.page.evaluate(() => window.violations);
        assert.deepEqual(violations, [], "the content security policy was violated");
        assert.deepEqual(window.complaints.filter((text) => !excuse?.test(text)), []);
    } finally {
        await context.close();
        if (server?.http.listening) {
            await server.die();
        }
    }
}

// A test for any server.
export function both(name, body, options = {}) {
    test(name, () => run(options, body));
}

// A test for the real server only.
export function real(name, body, options = {}) {
    test(name, {skip: REAL_URL ? false : "needs a real server"}, () => run(options, body));
}

// A test that needs the scripted answers.
export function scripted(name, body, options = {}) {
    test(name, {skip: REAL_URL ? "needs scripted answers" : false}, () => run(options, body));
}
