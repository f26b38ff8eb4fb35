// Renders messages and the list of them.

import {attachmentList} from "./attach.js";
import {byId, copyButton, el, icon, iconButton, isEnterToSend, setText} from "./dom.js";
import {MarkdownView} from "./markdown.js";
import {ProbabilityPanel, tokensOf} from "./probs.js";
import {path, versions} from "./store.js";

// Title, advice and action for each kind of error.
const TROUBLES = {
    unreachable: ["The server does not answer",
                  "Is flashmoe serve still running? Your message is saved here.", "retry"],
    broken: ["The connection was lost",
             "The partial answer is saved. Try again when the server is back.", "retry"],
    key: ["The server requires another API key",
          "Enter the key that the server was started with.", "key"],
    context: ["The conversation is longer than the model's context",
              "Shorten an earlier message, or start a new conversation.", "new"],
    busy: ["The server is busy", "It rejected this request six times.", "retry"],
    refused: ["The server refused the request", "Check the settings, then try again.",
              "settings"],
    failed: ["The answer failed", "The partial answer is saved.", "retry"],
    closed: ["The page was closed before the answer was complete", "The partial answer is saved.",
             "retry"],
    page: ["This page had an error", "Reloading it may help.", "retry"],
};

function tokens(n, word = "token") {
    return `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
}

// Returns whether an answer ended before it was complete and can go on.
export function canContinue(node) {
    return node.role === "assistant" && Boolean(node.content.trim() || node.reasoning?.trim()) &&
        !node.toolCalls?.length && (node.finish === "length" ||
                                    ["stopped", "broken", "streaming"].includes(node.state));
}

function factsOf(node) {
    const facts = [];
    if (node.state === "stopped") {
        facts.push("stopped");
    } else if (node.finish === "length") {
        facts.push("cut off at the token limit");
    }
    if (node.usage) {
        const {completion_tokens: n = 0, prompt_tokens: prompt = 0} = node.usage;
        const cached = node.usage.prompt_tokens_details?.cached_tokens ?? 0;
        facts.push(tokens(n, node.wasContinued ? "more token" : "token"));
        if (node.tokensPerS) {
            facts.push(`${node.tokensPerS.toFixed(1)} tokens/s`);
        }
        facts.push(`prompt of ${prompt.toLocaleString("en")}` +
                   (cached ? `, ${cached.toLocaleString("en")} reused` : ""));
    }
    if (node.totalMs && node.state !== "failed") {
        facts.push(`${(node.totalMs / 1000).toFixed(1)} s`);
    }
    return facts;
}

class MessageView {
    constructor(list, node) {
        this.list = list;
        this.node = node;
        this.body = el("div", {class: "body"});
        this.actions = el("div", {class: "actions"});
        const name = node.role === "user" ? "You" : "Answer";
        this.article = el("article", {"aria-label": name}, el("h3", {class: "hidden"}, name));
        this.item = el("li", {class: `message ${node.role}`, "data-id": node.id}, this.article);
        if (node.role === "user") {
            if (node.attachments?.length) {
                this.body.append(attachmentList(node.attachments));
            }
            this.body.append(el("span", {class: "said"}, node.content));
            this.article.append(this.body, this.actions);
            this.fillActions();
        } else {
            this.#buildAnswer();
            this.update();
        }
    }

    #buildAnswer() {
        this.markdown = new MarkdownView(this.body);
        this.thought = el("div", {class: "thought"});
        this.thoughtMarkdown = new MarkdownView(this.thought);
        this.thoughtTitle = el("span", {}, "Thinking");
        this.fold = el("details", {class: "reasoning"},
                       el("summary", {}, icon("right"), this.thoughtTitle), this.thought);
        this.calls = el("div", {class: "calls"});
        this.statusText = el("span");
        this.statusBar = el("i");
        this.status = el("div", {class: "status"}, el("span", {class: "pulse"}), this.statusText,
                         el("span", {class: "bar"}, this.statusBar));
        this.notice = el("div", {class: "notice-place"});
        this.probs = el("div");
        this.article.append(this.fold, this.body, this.calls, this.status, this.notice,
                            this.actions, this.probs);
    }

    // Shows the current state of an answer.
    update() {
        const {node} = this;
        const answer = this.list.answerOf(node);
        this.fold.hidden = !node.reasoning;
        if (node.reasoning) {
            this.thoughtMarkdown.update(node.reasoning, Boolean(answer) && !node.content);
            const seconds = Math.max(1, Math.round((node.thoughtMs ?? 0) / 1000));
            setText(this.thoughtTitle, answer && !node.content ? `Thinking, ${seconds} s`
                                                               : `Thought for ${seconds} s`);
        }
        this.markdown.update(node.content, Boolean(answer));
        this.#updateCalls();
        const isWaiting = Boolean(answer) && !(node.content && answer.status === "Answering");
        this.status.hidden = !isWaiting;
        if (isWaiting) {
            setText(this.statusText, answer.status);
            const {processed = 0, total = 0} = answer.progress ?? {};
            this.statusBar.parentElement.hidden = !(total > 0);
            this.statusBar.style.width = `${total > 0 ? Math.min(processed / total, 1) * 100 : 0}%`;
        }
        this.item.classList.toggle("live", Boolean(answer));
        this.article.setAttribute("aria-busy", answer ? "true" : "false");
        const shown = JSON.stringify([Boolean(answer), node.error, node.state, node.usage]);
        if (shown !== this.shown) {
            this.shown = shown;
            this.#updateNotice(answer);
            this.fillActions();
        }
    }

    #updateCalls() {
        const calls = this.node.toolCalls ?? [];
        calls.forEach((call, i) => {
            if (!call) {
                return;
            }
            const box = this.calls.children[i] ?? this.calls.appendChild(
                el("figure", {class: "call"}, el("figcaption"),
                   el("pre", {tabindex: "0", role: "region", "aria-label": "Arguments"})));
            setText(box.firstChild, `Tool call: ${call.name}`);
            setText(box.lastChild, call.arguments);
        });
    }

    #updateNotice(answer) {
        const {node} = this;
        const error = answer ? null :
            node.error ?? (node.state === "streaming" ? {kind: "closed", message: ""} : null);
        if (!error) {
            this.notice.replaceChildren();
            return;
        }
        const [title, told, action] = Object.hasOwn(TROUBLES, error.kind) ? TROUBLES[error.kind]
                                                                         : TROUBLES.page;
        const advice = node.content || node.reasoning ? told :
            told.replace("The partial answer is saved.", "Nothing had arrived yet.");
        const isPlain = ["unreachable", "closed", "broken"].includes(error.kind);
        const detail = isPlain ? "" : error.message;
        const labels = {retry: "Try again", key: "Enter the key", new: "New conversation",
                        settings: "Settings"};
        const buttons = [action, ...(action === "retry" ? [] : ["retry"])].map((name, i) =>
            el("button", {type: "button", class: i ? "plain" : "primary",
                          onclick: () => this.list.act(name, node)}, labels[name]));
        this.notice.replaceChildren(el("div", {class: "notice", role: "alert"},
            el("strong", {}, title), el("p", {}, advice),
            ...(detail ? [el("p", {class: "detail"}, detail)] : []),
            el("div", {class: "buttons"}, ...buttons)));
    }

    // Shows the buttons that apply now.
    fillActions() {
        const {node, list} = this;
        if (list.answerOf(node)) {
            this.panel?.close();
            this.actions.replaceChildren();
            return;
        }
        const parts = [];
        const all = list.versions.get(node.parent) ?? [node];
        if (all.length > 1) {
            const at = all.indexOf(node);
            const step = (name, label, to) => {
                const button = iconButton(name, label, () => list.act("choose", all[to]));
                button.disabled = !all[to];
                return button;
            };
            parts.push(el("span", {class: "branches"}, step("left", "Earlier version", at - 1),
                          el("span", {class: "count"}, `${at + 1} / ${all.length}`),
                          step("right", "Later version", at + 1)));
        }
        if (node.role === "user") {
            parts.push(iconButton("edit", "Edit", () => list.act("edit", node)),
                       copyButton("Copy", () => node.content));
        } else {
            if (node.content) {
                parts.push(copyButton("Copy", () => node.content));
            }
            // A failed answer has its own retry button.
            if (node.state !== "failed") {
                parts.push(iconButton("again", "Regenerate", () => list.act("regenerate", node)));
            }
            if (node.content.trim()) {
                parts.push(iconButton("percent", "Token probabilities", () => this.#showProbs()));
            }
            if (canContinue(node) && list.last === node) {
                parts.push(el("button", {type: "button", class: "plain small",
                                         onclick: () => list.act("continue", node)}, "Continue"));
            }
            parts.push(el("span", {class: "facts"},
                          ...factsOf(node).map((fact) => el("span", {}, fact))));
        }
        this.actions.replaceChildren(...parts);
    }

    #showProbs() {
        if (this.panel) {
            this.panel.close();
            return;
        }
        this.panel = new ProbabilityPanel(
            (signal) => tokensOf(this.list.conversation, this.node, this.list.settings, signal),
            () => {
                this.panel = null;
                this.probs.replaceChildren();
            });
        this.probs.replaceChildren(this.panel.root);
    }

    // Turns a user message into a text box; calls save(text) if the text changed.
    edit(save) {
        if (this.editor) {
            this.editor.querySelector("textarea").focus();
            return;
        }
        const area = el("textarea", {rows: "1", "aria-label": "Edit the message"});
        area.value = this.node.content;
        const close = () => {
            this.editor.replaceWith(this.body);
            this.editor = null;
            this.item.classList.remove("editing");
            this.actions.hidden = false;
        };
        const done = () => {
            const text = area.value.trim();
            close();
            if (text || this.node.attachments?.length) {
                save(text);
            }
        };
        area.addEventListener("keydown", (event) => {
            if (isEnterToSend(event)) {
                event.preventDefault();
                done();
            } else if (event.key === "Escape") {
                event.preventDefault();
                event.stopPropagation();
                close();
                byId("input").focus();
            }
        });
        this.editor = el("div", {class: "editor"}, area, el("div", {class: "buttons"},
            el("button", {type: "button", class: "plain", onclick: close}, "Cancel"),
            el("button", {type: "button", class: "primary", onclick: done}, "Send")));
        this.body.replaceWith(this.editor);
        this.item.classList.add("editing");
        this.actions.hidden = true;
        area.focus();
        area.setSelectionRange(area.value.length, area.value.length);
    }
}

// A message that cannot be shown as usual.
class PlainView {
    constructor(node) {
        this.node = node;
        this.body = el("div", {class: "body said"});
        this.item = el("li", {class: "message", "data-id": node.id},
                       el("article", {"aria-label": "Message as plain text"}, this.body));
        this.update();
    }

    update() {
        setText(this.body, String(this.node.content ?? ""));
    }

    fillActions() {}

    edit() {}
}

export class MessageList {
    #views = new Map();

    // act(name, node) performs a user action on a message; answerOf(node) returns the Answer that
    // currently fills it, if any; settings are those of the page.
    constructor({act, answerOf, settings}) {
        Object.assign(this, {act, answerOf, settings});
        this.root = byId("messages");
    }

    // Shows the conversation's path; reuses the views of messages that stay. What the views need to
    // know about the whole conversation is found once: it may have thousands of messages.
    show(conversation) {
        const isSame = this.conversation === conversation;
        const shown = path(conversation);
        this.conversation = conversation;
        this.versions = versions(conversation);
        this.last = shown.at(-1);
        const old = isSame ? this.#views : new Map();
        this.#views = new Map();
        const items = [];
        for (const node of shown) {
            const view = this.#guard(node, () => {
                const kept = old.get(node.id);
                kept?.fillActions();
                return kept ?? new MessageView(this, node);
            });
            this.#views.set(node.id, view);
            items.push(view.item);
        }
        this.root.replaceChildren(...items);
        byId("empty").hidden = items.length > 0;
    }

    update(node) {
        const view = this.#views.get(node.id);
        if (view) {
            const now = this.#guard(node, () => (view.update(), view));
            if (now !== view) {
                view.item.replaceWith(now.item);
                this.#views.set(node.id, now);
            }
        }
    }

    // Returns the view that build() returns. An error in one message must not stop the page: that
    // message is shown as plain text.
    #guard(node, build) {
        try {
            return build();
        } catch (error) {
            console.error(error);
            return new PlainView(node);
        }
    }

    // Scrolls to a message and gives it the focus.
    reveal(node) {
        const item = this.#views.get(node.id)?.item;
        item?.setAttribute("tabindex", "-1");
        item?.scrollIntoView({block: "center"});
        item?.focus({preventScroll: true});
    }

    edit(node, save) {
        this.#views.get(node.id)?.edit(save);
    }
}
