// A block of code, highlighted, that may grow. Its text is always the source, character by
// character. Complete lines are highlighted once, so that growing costs only what is new.

import {copyButton, el} from "./dom.js";
import {highlighter} from "./highlight.js";

const PART_LINES = 50;          // lines are laid out in parts, so that only the last changes
const MAX_HIGHLIGHTED = 300000; // characters; the rest is plain

export class CodeView {
    #code = el("code");
    #done = 0;        // characters of complete lines that are shown
    #text = "";
    #state = 0;
    #nLines = 0;      // in the last part
    #part = null;
    #tail = null;     // nodes of the incomplete line

    constructor(info) {
        const name = info || "text";
        this.highlight = highlighter(info);
        this.figure = el("figure", {class: "code"},
            el("figcaption", {}, el("span", {}, name),
               copyButton("Copy the code", () => this.#text)),
            el("pre", {tabindex: "0", "aria-label": `Code: ${name}`, role: "region"}, this.#code));
    }

    update(text) {
        // A line is complete when another follows: the last line end is not part of closed code.
        const end = text.length > 1 ? text.lastIndexOf("\n", text.length - 2) + 1 : 0;
        if (this.#done > end || text.slice(0, this.#done) !== this.#text.slice(0, this.#done)) {
            this.#code.replaceChildren();
            this.#done = this.#state = this.#nLines = 0;
            this.#part = this.#tail = null;
        }
        this.#text = text;
        this.#dropTail();
        if (end > this.#done) {
            for (const line of text.slice(this.#done, end).match(/[^\n]*\n/g)) {
                this.#addLine(line);
            }
            this.#done = end;
        }
        if (end < text.length) {
            this.#tail = el("span", {}, this.#nodes(text.slice(end), this.#state, false));
            this.#lastPart().append(this.#tail);
        }
    }

    #dropTail() {
        this.#tail?.remove();
        this.#tail = null;
        if (this.#part && !this.#part.firstChild) {
            this.#part.remove();
            this.#part = this.#code.lastChild;
            this.#nLines = PART_LINES;
        }
    }

    #lastPart() {
        if (!this.#part || this.#nLines >= PART_LINES) {
            this.#part = this.#code.appendChild(el("span", {class: "part"}));
            this.#nLines = 0;
        }
        return this.#part;
    }

    #addLine(line) {
        this.#lastPart().append(...this.#nodes(line, this.#state, true));
        this.#nLines++;
    }

    // Returns nodes of a line; keeps the state after it if the line is complete.
    #nodes(line, state, isComplete) {
        if (!this.highlight || this.#done > MAX_HIGHLIGHTED || line.length > MAX_HIGHLIGHTED) {
            return [line];
        }
        const found = this.highlight(line, state);
        if (isComplete) {
            this.#state = found.state;
        }
        return found.tokens.map(([kind, text]) => kind ? el("span", {class: kind}, text) : text);
    }
}
