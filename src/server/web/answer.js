// One answer in progress: the request, the received parts, and retries. It fills a node of the
// conversation and notifies the page of changes.

import {chatStream, ServerError} from "./api.js";
import {NUMBERS, requestMessages} from "./store.js";

const TRIES = 6;
const SILENCE_MS = 30000; // the server sends something every five seconds

export function requestBody(conversation, node, settings) {
    const body = {messages: requestMessages(conversation, node, settings.system)};
    for (const name of NUMBERS) {
        if (typeof settings[name] === "number") {
            body[name] = settings[name];
        }
    }
    if (settings.thinking) {
        body.chat_template_kwargs = {enable_thinking: settings.thinking === "on"};
    }
    return body;
}

export class Answer {
    #controller = new AbortController();
    #wake = null;

    // Calls changed() when there is something to show, and ended() after the last part.
    constructor({conversation, node, settings, changed, ended}) {
        Object.assign(this, {conversation, node, settings, changed, ended});
        this.status = "Waiting for the server";
        this.progress = null;
    }

    stop() {
        this.#controller.abort();
        this.#wake?.();
    }

    async run() {
        const {node} = this;
        this.startMs = performance.now();
        for (let tries = 1; ; tries++) {
            Object.assign(node, {content: "", reasoning: "", toolCalls: [], error: null,
                                 finish: null, usage: null, state: "streaming"});
            try {
                await this.#stream();
                node.state = "done";
            } catch (error) {
                if (this.#controller.signal.aborted) {
                    node.state = "stopped";
                } else if (error.kind === "busy" && tries < TRIES) {
                    await this.#waitForTurn(error.retryS);
                    if (!this.#controller.signal.aborted) {
                        continue;
                    }
                    node.state = "stopped";
                } else {
                    node.state = node.content || node.reasoning ? "broken" : "failed";
                    node.error = {kind: error.kind ?? "page", message: error.message};
                    if (!(error instanceof ServerError)) {
                        console.error(error);
                    }
                }
            }
            break;
        }
        this.#finish();
    }

    async #waitForTurn(seconds) {
        for (let left = Math.ceil(seconds); left > 0; left--) {
            this.status = `The server is busy. Retrying in ${left} s`;
            this.changed();
            await new Promise((resolve) => {
                this.#wake = resolve;
                setTimeout(resolve, 1000);
            });
            if (this.#controller.signal.aborted) {
                return;
            }
        }
        this.status = "Waiting for the server";
        this.changed();
    }

    async #stream() {
        const body = requestBody(this.conversation, this.node, this.settings);
        const options = {key: this.settings.key, signal: this.#controller.signal};
        let silence = 0;
        try {
            for await (const part of chatStream(body, options)) {
                clearTimeout(silence);
                silence = setTimeout(() => {
                    this.status = "No data from the server for 30 s";
                    this.changed();
                }, SILENCE_MS);
                this.#take(part);
            }
        } finally {
            clearTimeout(silence);
        }
    }

    #take(part) {
        const {node} = this;
        switch (part.kind) {
        case "open":
            this.status = "Reading the prompt";
            break;
        case "progress":
            this.progress = part;
            this.status = `Reading the prompt: ${part.processed.toLocaleString("en")} of ` +
                `${part.total.toLocaleString("en")} tokens`;
            break;
        case "delta":
            this.#takeDelta(part);
            break;
        case "finish":
            node.finish = part.reason;
            break;
        case "usage":
            node.usage = part.usage;
            node.model = part.model;
            break;
        default:
            return;
        }
        this.changed();
    }

    #takeDelta({content, reasoning, toolCalls}) {
        const {node} = this;
        const now = performance.now();
        this.firstMs ??= now;
        this.lastMs = now;
        this.progress = null;
        this.status = content || node.content ? "Answering" : "Thinking";
        if (reasoning) {
            this.thinkMs ??= now;
            node.reasoning += reasoning;
            node.thoughtMs = now - this.thinkMs;
        }
        node.content += content;
        for (const call of toolCalls) {
            const at = call.index ?? 0;
            node.toolCalls[at] ??= {name: "", arguments: ""};
            node.toolCalls[at].name += call.function?.name ?? "";
            node.toolCalls[at].arguments += call.function?.arguments ?? "";
        }
    }

    #finish() {
        const {node} = this;
        node.toolCalls = node.toolCalls.filter(Boolean);
        node.totalMs = Math.round(performance.now() - this.startMs);
        const tokens = node.usage?.completion_tokens ?? 0;
        if (tokens > 1 && this.lastMs > this.firstMs) {
            node.tokensPerS = (tokens - 1) / (this.lastMs - this.firstMs) * 1000;
        }
        this.ended();
    }
}
