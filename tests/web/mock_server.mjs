// A server with the API that the page uses and with scripted answers: the last message selects one.
// As a program it serves on loopback, to look at the page: node mock_server.mjs [PORT] [LxE]

import {createServer} from "node:http";
import {readFile} from "node:fs/promises";
import {dirname, join} from "node:path";
import {fileURLToPath} from "node:url";

const SOURCE = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "src", "server");
const TYPES = {html: "text/html; charset=utf-8", css: "text/css; charset=utf-8",
               js: "text/javascript; charset=utf-8", svg: "image/svg+xml"};

export const CODE = "int main(void)\n{\n    return 1 < 2 && 3 > 2;\n}";
export const HOSTILE = [
    "<script>window.owned = 1</script><img src=x onerror=\"window.owned = 2\">",
    "[click](javascript:window.owned=3) [data](data:text/html,<script>window.owned=4</script>)",
    "![pixel](https://tracker.invalid/pixel.png) [ok](https://example.invalid/a_(b))",
    "```html\n<iframe srcdoc=\"<script>parent.owned = 5</script>\"></iframe>\n```",
    "| a | <b onclick=window.owned=6>b</b> |\n|---|---|\n| `<i>` | **<u>x</u>** |",
    "# <svg onload=window.owned=7>",
    "javascript:window.owned=8 &lt;b&gt; \u202e",
].join("\n\n");
const RICH = `Here is **what changed**, in *one* table:

| Domain | Hits | Read |
|:--|--:|--:|
| stories | 93.4 % | 0.31 GB |
| verse | 61.0 % | 1.82 GB |

1. First the cache is asked,
2. then the disk:
   - one read per expert
   - in \`queue\` order

\`\`\`c
${CODE}
\`\`\`

> A routed expert is always the expert that computes.

See [the notes](https://example.invalid/notes).`;
const STORY = "Once upon a time there was a small robot named Tik. Tik loved music more than " +
    "anything else. Every morning it rolled to the window and listened to the birds, and every " +
    "evening it tried to whistle their songs with a bent tin pipe.\n\nOne day a girl heard it. " +
    "\"That is the tune my grandmother sang,\" she said, and she sat down beside the robot and " +
    "sang the rest of it.";
export const FORMULAS = `The roots of $ax^2 + bx + c = 0$ with $a \\ne 0$ are

$$
x_{1,2} = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}.
$$

A ticket costs $5 and a bag $10. Euler's formula \\(e^{i\\pi} + 1 = 0\\) follows from
\\[\\sum_{n=0}^{\\infty} \\frac{x^n}{n!} =
\\lim_{n \\to \\infty} \\left(1 + \\frac{x}{n}\\right)^n = e^x\\]

1. A matrix: $A = \\begin{pmatrix} 1 & 0 \\\\ 0 & -1 \\end{pmatrix}$
2. Cases: $|x| = \\begin{cases} x & \\text{if } x \\ge 0 \\\\ -x & \\text{otherwise} \\end{cases}$
3. An integral, $\\int_0^1 \\sin^2 x \\, dx$, and a command nobody knows: $\\frobnicate{x}$

$$\\begin{aligned} (a+b)^2 &= a^2 + 2ab + b^2 \\\\ &\\le 2\\left(a^2 + b^2\\right) \\end{aligned}$$

In code \`$x$\` stays as it is.`;
export const PROGRAM = `\`\`\`python
# Reads a file of numbers.
from dataclasses import dataclass

@dataclass
class Sum:
    total: float = 0.0

    def add(self, line: str) -> None:
        """Adds the number
        of a line."""
        self.total += float(line.strip() or "0")

for n in range(1, 10):
    print(f"{n}: {n ** 2}")
\`\`\`

\`\`\`bash
curl -s "http://127.0.0.1:8080/v1/models" | grep -o '"id":"[^"]*"'  # the model
\`\`\``;
const PROPS = {
    version: "0.2.0", model: "nano", architecture: "qwen3_next", n_ctx: 4096, total_slots: 4,
    queue: 64, has_chat_template: true, approximate: null, routes: null, max_tokens: null,
    n_threads: 8, cpu_level: "avx512",
    sampling: {temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0},
    sizes: {container: "packed model", n_parameters: 90511456, n_layers: 8, n_moe_layers: 8,
            n_experts: 64, n_experts_per_token: 8, max_context: 262144, dense_bytes: 16069120,
            experts_bytes: 44040192, has_checksums: true},
    formats: [{name: "affine8-g64", is_expert: false, n_tensors: 67, n_bytes: 15918528},
              {name: "affine4-g64", is_expert: true, n_tensors: 1536, n_bytes: 42467328}],
    memory: {budget_bytes: 12 * 2 ** 30, min_bytes: 87985708, program_bytes: 30285824,
             dense_bytes: 16069120, cache_bytes: 23332060, kv_bytes: 29048832,
             kv_max_bytes: 52641792, scratch_bytes: 6096720, n_slots: 269},
};
const VERSE = "明月出山來，\n清光滿樓臺。\n故人千里外，\n一夜夢中回。";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const hash = (x) => {
    let h = x >>> 0;
    for (let i = 0; i < 2; i++) {
        h = Math.imul(h ^ h >>> 16, 0x45d9f3b);
    }
    return (h ^ h >>> 16) >>> 0;
};

// Experts whose heat follows the topic. The hottest are in memory.
class Experts {
    // hasGpu: the hottest tenth is in a GPU's memory.
    constructor(nLayers, nExperts, hasGpu) {
        Object.assign(this, {nLayers, nExperts, hasGpu, domain: 1});
        this.heat = new Float64Array(nLayers * nExperts);
        for (let i = 0; i < 30; i++) {
            this.step();
        }
    }

    step() {
        for (let i = 0; i < this.heat.length; i++) {
            const liking = hash(i * 7919 + this.domain * 104729) % 1000 / 1000;
            const use = liking > 0.72 ? (liking - 0.6) * 2.4 : liking * 0.08;
            this.heat[i] = this.heat[i] * 0.88 + 0.12 * use * (0.7 + Math.random() * 0.6);
        }
    }

    json() {
        const n = this.heat.length;
        const sorted = Float64Array.from(this.heat).sort();
        const border = sorted[Math.floor(n * 0.45)], hottest = sorted[Math.floor(n * 0.9)];
        const resident = [], heat = [], gpu = [];
        for (let layer = 0; layer < this.nLayers; layer++) {
            const bytes = new Uint8Array(Math.ceil(this.nExperts / 8));
            const above = new Uint8Array(bytes.length);
            let row = "";
            for (let e = 0; e < this.nExperts; e++) {
                const h = this.heat[layer * this.nExperts + e];
                bytes[e >> 3] |= h >= border ? 128 >> (e & 7) : 0;
                above[e >> 3] |= h >= hottest ? 128 >> (e & 7) : 0;
                row += Math.min(255, Math.round(h * 255)).toString(16).padStart(2, "0");
            }
            resident.push(Buffer.from(bytes).toString("hex"));
            heat.push(row);
            gpu.push(Buffer.from(above).toString("hex"));
        }
        return {n_layers: this.nLayers, n_experts: this.nExperts, resident, heat,
                ...(this.hasGpu ? {gpu} : {})};
    }
}

export class MockServer {
    constructor({nLayers = 8, nExperts = 64, wordMs = 12, hasGpu = false, nRanks = 0} = {}) {
        this.experts = new Experts(nLayers, nExperts, hasGpu);
        Object.assign(this, {nLayers, nRanks, bornMs: Date.now()});
        this.wordMs = wordMs;
        this.requests = []; // bodies of chat requests
        this.vocabulary = []; // words of token probabilities
        this.scored = [];     // bodies of requests for them
        this.aborted = 0;
        this.active = 0;
        this.isBusy = false;
        this.retryAfter = "1";
        this.key = "";
        this.sockets = new Set();
        this.nAllowed = Infinity; // pieces of answers that may still be sent
        this.wake = () => {};
    }

    // Lets the answers send n more pieces, then wait.
    allow(n) {
        this.nAllowed = n;
        this.wake();
    }

    release() {
        this.allow(Infinity);
    }

    // Waits until one more piece may be sent or the client has disconnected.
    async turn(isGone) {
        while (this.nAllowed <= 0 && !isGone()) {
            await Promise.race([new Promise((resolve) => (this.wake = resolve)), pause(20)]);
        }
        this.nAllowed--;
    }

    async start(port = 0) {
        this.policy = /WEB_CONTENT_SECURITY_POLICY\s*((?:\s*\\?\s*"[^"]*")+)/
            .exec(await readFile(join(SOURCE, "web.h"), "utf8"))[1]
            .match(/"[^"]*"/g).map((part) => part.slice(1, -1)).join("");
        this.http = createServer((request, response) => {
            this.answer(request, response).catch(() => response.destroy());
        });
        this.http.on("connection", (socket) => {
            this.sockets.add(socket);
            socket.on("close", () => this.sockets.delete(socket));
        });
        await new Promise((resolve) => this.http.listen(port, "127.0.0.1", resolve));
        this.port = this.http.address().port;
        this.url = `http://127.0.0.1:${this.port}/`;
        return this;
    }

    // Ends every connection at once, like a killed process.
    async die() {
        const closed = new Promise((resolve) => this.http.close(resolve));
        this.sockets.forEach((socket) => socket.destroy());
        await closed;
    }

    json(response, status, value, headers = {}) {
        response.writeHead(status, {"Content-Type": "application/json", ...headers});
        response.end(JSON.stringify(value));
    }

    error(response, status, code, message, headers) {
        this.json(response, status, {error: {message, type: "error", param: null, code}}, headers);
    }

    async answer(request, response) {
        const path = new URL(request.url, "http://x").pathname;
        const isApi = ["/stats", "/experts", "/props", "/v1/models", "/v1/chat/completions",
                       "/apply-template", "/tokenize", "/v1/completions"].includes(path);
        if (isApi && this.key && request.headers.authorization !== `Bearer ${this.key}`) {
            this.error(response, 401, "invalid_api_key", "Incorrect API key provided.");
        } else if (path === "/stats") {
            this.json(response, 200, this.stats());
        } else if (path === "/experts") {
            const experts = this.experts.json();
            experts ? this.json(response, 200, experts)
                    : this.error(response, 404, "not_found", "No such path: /experts");
        } else if (path === "/v1/models") {
            this.json(response, 200, {object: "list", data: [{id: "nano", object: "model"}]});
        } else if (path === "/props") {
            this.json(response, 200, PROPS);
        } else if (path === "/v1/chat/completions" && request.method === "POST") {
            await this.chat(request, response);
        } else if (isApi && request.method === "POST") {
            await this.score(path, request, response);
        } else {
            await this.file(path, response);
        }
    }

    stats() {
        const isBusy = this.active > 0;
        const wave = 1 + 0.06 * Math.sin(Date.now() / 900);
        return {
            model: "nano", n_context: 4096, active: this.active, queued: 0,
            tokens_per_s: isBusy ? 41.7 * wave : 0, prefill_tokens_per_s: isBusy ? 318 * wave : 0,
            hit_rate: 0.934, read_bytes_per_s: isBusy ? 1.82e9 * wave : 0,
            memory_bytes: 11.2 * 2 ** 30, memory_budget_bytes: 12 * 2 ** 30,
            limit_share: isBusy ? 0.871 : null,
            ...(this.nRanks > 0 && {ranks: this.ranks()}),
        };
    }

    // Ranks that have read, waited and sent at a constant rate since the server's start.
    ranks() {
        const s = (Date.now() - this.bornMs) / 1000 + 60;
        const first = (i) => Math.floor(i * this.nLayers / this.nRanks);
        return Array.from({length: this.nRanks}, (_, i) => ({
            rank: i, host: `machine-${i}`, first_layer: first(i),
            n_layers: first(i + 1) - first(i), memory_budget_bytes: 12 * 2 ** 30,
            n_expert_hits: Math.round(900 * s), n_expert_misses: Math.round(100 * (i + 1) * s),
            bytes_read: 120e6 * (i + 1) * s, read_wait_s: 0.1 * (i + 1) * s,
            busy_s: 0.3 * s, bytes_sent: 500e3 * s, network_s: i === 0 ? 0.05 * s : 0,
            n_lone_passes: i === 0 ? 10 * s : 0,
        }));
    }

    async file(path, response) {
        const name = path === "/" ? "index.html" : path.slice(1);
        try {
            const bytes = /^[\w.]+$/.test(name) ? await readFile(join(SOURCE, "web", name)) : null;
            response.writeHead(200, {"Content-Type": TYPES[name.split(".").at(-1)],
                                     "Content-Security-Policy": this.policy,
                                     "X-Content-Type-Options": "nosniff",
                                     "Cache-Control": "no-cache"});
            response.end(bytes);
        } catch {
            this.error(response, 404, "not_found", `No such path: ${path}`);
        }
    }

    async body(request) {
        let text = "";
        for await (const piece of request) {
            text += piece;
        }
        return JSON.parse(text);
    }

    // What token probabilities need. A token is a word with the blank before it; its id is its
    // place in this.words.
    async score(path, request, response) {
        const body = await this.body(request);
        if (path === "/apply-template") {
            const isOpen = body.continue_final_message;
            const text = body.messages.map((m, i) => `<${m.role}>\n${m.content}` +
                (isOpen && i === body.messages.length - 1 ? "" : "<end>\n")).join("");
            this.json(response, 200, {prompt: text});
        } else if (path === "/tokenize") {
            const words = body.content.match(/ ?[^\s]+|\s/g) ?? [];
            const tokens = words.map((word) => {
                const at = this.vocabulary.indexOf(word);
                return at >= 0 ? at : this.vocabulary.push(word) - 1;
            });
            this.json(response, 200, {tokens});
        } else {
            this.scored.push(body);
            const tokens = body.prompt.map((id) => this.vocabulary[id]);
            const values = tokens.map((_, i) => i ? Math.log([0.95, 0.6, 0.3, 0.1, 0.01][i % 5])
                                                  : null);
            const tops = tokens.map((text, i) => i ? {[text]: values[i], " other": -1.5,
                                                      "<b>x</b>": -3} : null);
            this.json(response, 200, {choices: [{index: 0, text: tokens.join(""), logprobs: {
                tokens, token_logprobs: values, top_logprobs: tops, text_offset: []}}]});
        }
    }

    async chat(request, response) {
        const body = await this.body(request);
        this.requests.push(body);
        const asked = body.continue_final_message
            ? `continue ${body.messages.at(-2).content}` : body.messages.at(-1).content;
        if (asked.includes("too long")) {
            this.error(response, 400, "context_length_exceeded",
                       "This model's context is 4096 tokens; the request has 5120.");
            return;
        }
        if (this.isBusy) {
            this.error(response, 503, "overloaded", "The queue is full.",
                       {"Retry-After": this.retryAfter});
            return;
        }
        response.writeHead(200, {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"});
        response.flushHeaders();
        this.active++;
        let isGone = false;
        response.on("close", () => {
            this.active--;
            isGone = true;
            this.aborted += response.writableEnded ? 0 : 1;
        });
        const put = (part) => response.write(`data: ${JSON.stringify({
            id: "c", object: "chat.completion.chunk", model: "nano", ...part})}\n\n`);
        const delta = (d) => put({choices: [{index: 0, delta: d, finish_reason: null}]});
        await this.script(asked, {body, response, put, delta, isGone: () => isGone});
    }

    async words(text, {delta, isGone}, name = "content") {
        for (const word of text.match(/\S*\s*/g)) {
            for (const part of word.length > 12 ? word.match(/.{1,3}\s*/gsu) : [word]) {
                if (isGone()) {
                    return 0;
                }
                if (part) {
                    await this.turn(isGone);
                    delta({[name]: part});
                    this.experts.step();
                    await pause(this.wordMs);
                }
            }
        }
        return text.split(/\s+/).length;
    }

    async script(asked, to) {
        const {response, put, delta} = to;
        this.experts.domain = /\p{Script=Han}/u.test(asked) || asked.includes("verse") ? 2 : 1;
        let n = 0;
        let finish = "stop";
        if (asked.includes("progress")) {
            for (let done = 0; done <= 2048; done += 256) {
                await this.turn(to.isGone);
                put({choices: [], prompt_progress: {processed: done, total: 2048}});
            }
        }
        response.write(": ping\n\n");
        delta({role: "assistant"});
        if (asked.includes("think")) {
            n += await this.words("The user wants **proof**. Let me weigh it.", to,
                                  "reasoning_content");
        }
        if (asked.includes("slow")) {
            for (let i = 0; !to.isGone(); i++) {
                delta({content: `word${i} `});
                await pause(20);
            }
        } else if (asked.includes("break off") || asked.includes("end early")) {
            n += await this.words("This much has arrived ", to);
            await this.turn(to.isGone); // after a reset a browser drops what it has not read
            asked.includes("break off") ? response.destroy() : response.end();
            return;
        } else if (asked.includes("fail inside")) {
            n += await this.words("Half an answer ", to);
            response.end("data: " + JSON.stringify({error: {
                message: "read of layer 3, expert 17 failed", type: "server_error"}}) + "\n\n");
            return;
        } else if (asked.includes("in pieces")) {
            await this.pieces(response);
        } else if (asked.includes("use a tool")) {
            const call = (f) => delta({tool_calls: [{index: 0, ...f}]});
            call({id: "call_1", type: "function", function: {name: "get_weather", arguments: ""}});
            call({function: {arguments: "{\"city\": "}});
            call({function: {arguments: "\"Bern\"}"}});
            finish = "tool_calls";
        } else if (asked.includes("five words")) {
            n += await this.words("One two three four five", to);
        } else if (asked.includes("cut off")) {
            const isRest = asked.startsWith("continue ");
            n += await this.words(isRest ? " and this is the rest."
                                         : "This is the beginning \n", to);
            finish = isRest ? "stop" : "length";
        } else {
            const text = asked.includes("hostile") ? HOSTILE : asked.includes("rich") ? RICH :
                asked.includes("formulas") ? FORMULAS : asked.includes("program") ? PROGRAM :
                asked.includes("story") ? STORY : this.experts.domain === 2 ? VERSE :
                `Answer ${this.requests.length} to: ${asked}`;
            n += await this.words(text, to);
        }
        if (to.isGone()) {
            return;
        }
        put({choices: [{index: 0, delta: {}, finish_reason: finish}]});
        put({choices: [], usage: {prompt_tokens: 812, completion_tokens: n, total_tokens: 812 + n,
                                  prompt_tokens_details: {cached_tokens: 790}}});
        response.end("data: [DONE]\n\n");
    }

    // Sends the same stream one byte at a time, which splits characters and line ends.
    async pieces(response) {
        const data = Buffer.from(`: 3/7\r\n\r\ndata: ${JSON.stringify(
            {choices: [{index: 0, delta: {content: "月光 émigré 🚀"}}]})}\r\n\r\n`);
        for (const byte of data) {
            response.write(Buffer.of(byte));
            await pause(1);
        }
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    const [nLayers, nExperts] = (process.argv[3] ?? "8x64").split("x").map(Number);
    const server = await new MockServer({nLayers, nExperts, wordMs: 60})
        .start(Number(process.argv[2] ?? 8080));
    console.log(server.url);
}
