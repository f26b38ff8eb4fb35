// Probabilities of the tokens of an answer, on demand: the server reads the conversation once more
// and says how likely each token of the answer was to the model, before any sampling setting.

import {postJson} from "./api.js";
import {templateOptions} from "./answer.js";
import {byId, el, iconButton} from "./dom.js";
import {assistantMessage, requestMessages} from "./store.js";

const MAX_TOKENS = 20000; // of the conversation
const N_ALTERNATIVES = 5;
const LEVELS = [0.9, 0.5, 0.2, 0.05]; // above them: sure, likely, possible, unlikely

function commonLength(a, b) {
    let n = 0;
    while (n < a.length && n < b.length && a[n] === b[n]) {
        n++;
    }
    return n;
}

// Returns [{text, p, others: [[text, p], ...]}] of the answer's tokens.
export async function tokensOf(conversation, node, settings, signal) {
    const ask = (path, body) => postJson(path, body, {key: settings.key, signal});
    const answer = assistantMessage(node);
    const {prompt} = await ask("apply-template", {
        messages: [...requestMessages(conversation, node, settings.system), answer],
        continue_final_message: true, ...templateOptions(settings)});
    const at = prompt.lastIndexOf(answer.content.trim());
    const tokenize = async (content) => (await ask("tokenize", {content})).tokens;
    const all = await tokenize(prompt);
    if (all.length > MAX_TOKENS) {
        throw new Error(`The conversation has ${all.length.toLocaleString("en")} tokens. ` +
            `Probabilities are computed for at most ${MAX_TOKENS.toLocaleString("en")}.`);
    }
    const first = at > 0 ? commonLength(all, await tokenize(prompt.slice(0, at))) : 0;
    const {choices} = await ask("v1/completions", {prompt: all, echo: true, max_tokens: 0,
                                                   logprobs: N_ALTERNATIVES});
    const {tokens, token_logprobs: values, top_logprobs: tops} = choices[0].logprobs;
    return tokens.slice(first, all.length).map((text, i) => ({
        text: String(text), p: values[first + i] === null ? null : Math.exp(values[first + i]),
        others: Object.entries(tops[first + i] ?? {}).map(([t, v]) => [t, Math.exp(v)]),
    }));
}

const percent = (p) => p === null ? "unknown" : p >= 0.9995 ? "100 %" : p < 0.0005 ? "< 0.1 %"
    : `${(p * 100).toFixed(1)} %`;
// Blanks made visible.
const quoted = (text) => `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥")}”`;

function levelOf(p) {
    const level = p === null ? 0 : LEVELS.findIndex((least) => p >= least);
    return level < 0 ? LEVELS.length : level;
}

// A list of tokens that arrow keys and the pointer go through.
class TokenList {
    constructor(tokens) {
        this.tokens = tokens;
        this.at = -1;
        const id = `token-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
        this.options = tokens.map(({text, p}, i) => el("span", {
            role: "option", id: `${id}-${i}`, class: `p${levelOf(p)}`, "aria-selected": "false",
            "aria-label": `${quoted(text)}, ${percent(p)}`},
            text.endsWith("\n") ? `${text.slice(0, -1)}↵\n` : text));
        this.box = el("div", {role: "listbox", class: "tokens", tabindex: "0",
                              "aria-label": "Tokens; arrow keys move",
                              onkeydown: (event) => this.#onKey(event),
                              onclick: (event) => this.#choose(this.#indexOf(event)),
                              onpointermove: (event) => {
                                  if (event.pointerType === "mouse") {
                                      this.#choose(this.#indexOf(event));
                                  }
                              }}, this.options);
        this.point = el("p", {class: "token-point", role: "status"});
        this.#describe();
    }

    #indexOf(event) {
        return this.options.indexOf(event.target.closest?.("[role=option]"));
    }

    #onKey(event) {
        const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
        if (step && !event.ctrlKey && !event.altKey && !event.metaKey) {
            event.preventDefault();
            this.#choose(Math.min(Math.max(this.at + step, 0), this.tokens.length - 1));
            this.options[this.at].scrollIntoView({block: "nearest"});
        }
    }

    #choose(i) {
        if (i < 0 || i === this.at) {
            return;
        }
        this.options[this.at]?.setAttribute("aria-selected", "false");
        this.options[i].setAttribute("aria-selected", "true");
        this.box.setAttribute("aria-activedescendant", this.options[i].id);
        this.at = i;
        this.#describe();
    }

    #describe() {
        const token = this.tokens[this.at];
        if (!token) {
            const known = this.tokens.filter(({p}) => p !== null);
            const mean = Math.exp(known.reduce((sum, {p}) => sum + Math.log(p), 0) / known.length);
            this.point.textContent = `${this.tokens.length.toLocaleString("en")} tokens, ` +
                `${percent(mean)} each in the geometric mean. Point at a token.`;
            return;
        }
        const others = token.others.filter(([text]) => text !== token.text)
            .map(([text, p]) => `${quoted(text)} ${percent(p)}`);
        this.point.replaceChildren(
            el("strong", {}, `${quoted(token.text)} ${percent(token.p)}`),
            others.length ? `; others: ${others.join(", ")}` : "");
    }
}

// The panel below an answer. compute(signal) returns the tokens; closed() removes the panel.
export class ProbabilityPanel {
    #controller = new AbortController();

    constructor(compute, closed) {
        this.closed = closed;
        this.place = el("div", {}, el("p", {class: "token-point", role: "status"},
                                      "The server reads the conversation once more …"));
        this.root = el("section", {class: "probs", "aria-label": "Token probabilities"},
            el("div", {class: "probs-head"}, el("strong", {}, "Token probabilities"),
               iconButton("close", "Close the token probabilities", () => this.close())),
            this.place);
        this.#run(compute);
    }

    close() {
        this.#controller.abort();
        this.closed();
        byId("input").focus();
    }

    async #run(compute) {
        try {
            const list = new TokenList(await compute(this.#controller.signal));
            this.place.replaceChildren(list.box, list.point, el("p", {class: "token-legend"},
                ["90 % and more", "50 %", "20 %", "5 %", "less"].map((text, i) =>
                    el("span", {class: `p${i}`}, text))));
        } catch (error) {
            if (error.name !== "AbortError") {
                this.place.replaceChildren(el("p", {class: "token-point", role: "alert"},
                    `The probabilities could not be computed: ${error.message}`));
            }
        }
    }
}
