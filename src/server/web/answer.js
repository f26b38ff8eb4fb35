// One answer in progress: the request, the received parts, and retries. It fills a node of the
// conversation and notifies the page of changes.

import {chatStream, ServerError} from "./api.js";
import {assistantMessage, NUMBERS, requestMessages} from "./store.js";

const TRIES = 6;
const SILENCE_MS = 30000; // the server sends something every five seconds
const MIN_TOKENS = 16;    // fewer say nothing about the speed

// Returns what the templates need besides messages.
export function templateOptions(settings) {
    return settings.thinking
        ? {chat_template_kwargs: {enable_thinking: settings.thinking === "on"}} : {};
}

// `begun`: {content, reasoning} of the answer that is to go on, or null.
export function requestBody(conversation, node, settings, begun = null) {
    const body = {messages: requestMessages(conversation, node, settings.system),
                  ...templateOptions(settings)};
    if (begun) {
        body.messages.push(assistantMessage(begun));
        body.continue_final_message = true;
    }
    for (const name of NUMBERS) {
        if (typeof settings[name] === "number") {
            body[name] = settings[name];
        }
    }
    return body;
}

export class Answer {
    #controller = new AbortController();
    #wake = null;

    // Calls changed() when there is something to show, and ended() after the last part.
    // isContinued: the node has the beginning of the answer.
    constructor({conversation, node, settings, isContinued = false, changed, ended}) {
        Object.assign(this, {conversation, node, settings, changed, ended});
        this.begun = isContinued ? {content: node.content, reasoning: node.reasoning ?? ""} : null;
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
            Object.assign(node, {content: "", reasoning: "", ...this.begun, toolCalls: [],
                                 error: null, finish: null, usage: null, tokensPerS: null,
                                 wasContinued: this.begun !== null, state: "streaming"});
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
        const body = requestBody(this.conversation, this.node, this.settings, this.begun);
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
            this.timings = part.timings;
            break;
        default:
            return;
        }
        this.changed();
    }

    #takeDelta({content, reasoning, toolCalls}) {
        const {node} = this;
        const now = performance.now();
        if (!this.firstMs && this.begun) {
            // The server was sent the text without the blanks at its end.
            const last = this.begun.content.trim() ? "content" : "reasoning";
            node[last] = node[last].trimEnd();
        }
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
        const measured = this.timings?.predicted_per_second;
        if (tokens >= MIN_TOKENS && measured > 0) {
            node.tokensPerS = measured;
        } else if (tokens >= MIN_TOKENS && this.lastMs > this.firstMs) {
            node.tokensPerS = (tokens - 1) / (this.lastMs - this.firstMs) * 1000;
        }
        this.ended();
    }
}
