// The browser for the tests: Debian's Chromium, driven by playwright-core from the folder that
// web_test.py fills.

import {createRequire} from "node:module";
import {join} from "node:path";

const require = createRequire(join(process.env.FLASHMOE_WEB_PACKAGES, "x.js"));
const {chromium} = require("playwright-core");

export const AXE = require.resolve("axe-core");
export const katex = require("katex");
export const temml = require("temml");

export function launch() {
    // The sandbox needs privileges that containers do not give. The pages are our own.
    return chromium.launch({executablePath: process.env.FLASHMOE_CHROMIUM,
                            args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]});
}
