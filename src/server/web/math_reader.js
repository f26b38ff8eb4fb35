// What converting a formula is made of: nodes of MathML, atoms, and tokens of TeX.

import {CLOSING, inFont, OPENING} from "./math_symbols.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;
const MAX_NODES = 10000;

// An error of syntax, or a limit: the formula is not converted.
export class Trouble extends Error {}

// An atom is {node} with `limits` ("auto", "always" or none), `isWord` for the name of a function,
// and `kind`: "open", "close", "operator" or none.
export class MathReader {
    constructor(source) {
        this.source = source;
        this.at = 0;
        this.depth = 0;
        this.nNodes = 0;
        this.font = "";
    }

    // ---- nodes --------------------------------------------------------------------------------

    node(tag, attributes, ...children) {
        if (++this.nNodes > MAX_NODES) {
            throw new Trouble("too many nodes");
        }
        const node = document.createElementNS(MATHML, tag);
        for (const [name, value] of Object.entries(attributes ?? {})) {
            node.setAttribute(name, value);
        }
        node.append(...children);
        return node;
    }

    row(nodes) {
        return nodes.length === 1 ? nodes[0] : this.node("mrow", null, ...nodes);
    }

    letter(text, isUpright) {
        const font = this.font || (isUpright ? "upright" : "");
        const shown = inFont(font, text);
        const isPlain = font === "upright" && Array.from(shown).length === 1;
        return {node: this.node("mi", isPlain ? {mathvariant: "normal"} : null, shown)};
    }

    operator(text, attributes) {
        return {node: this.node("mo", attributes, text), kind: "operator"};
    }

    fence(text, attributes = {stretchy: "false"}) {
        const kind = OPENING.has(text) ? "open" : CLOSING.has(text) ? "close" : "";
        const form = kind === "open" ? {form: "prefix"} : kind === "close" ? {form: "postfix"} : {};
        const space = kind ? {} : {lspace: "0em", rspace: "0em"};
        return {node: this.node("mo", {...attributes, ...form, ...space}, text), kind};
    }

    space(em) {
        return {node: this.node("mspace", {width: `${em}em`}), isSpace: true};
    }

    text(text, font) {
        // MathML drops spaces at the ends.
        const shown = inFont(font, text).replace(/\s+/g, " ").replace(/^ | $/g, "\u00a0");
        return {node: this.node("mtext", font === "italic" ? {class: "italic"} : null, shown)};
    }

    unknown(name) {
        return {node: this.node("mtext", {class: "unknown"}, `\\${name}`)};
    }

    // ---- reading ------------------------------------------------------------------------------

    peek() {
        const token = /\s*(\\[a-zA-Z]+|\\[\s\S]|[\s\S])?/uy;
        token.lastIndex = this.at;
        const found = token.exec(this.source);
        this.after = token.lastIndex;
        return found[1] ?? "";
    }

    next() {
        const token = this.peek();
        this.at = this.after;
        return token;
    }

    take(token) {
        const isThere = this.peek() === token;
        if (isThere) {
            this.at = this.after;
        }
        return isThere;
    }

    expect(token) {
        if (!this.take(token)) {
            throw new Trouble(`expected ${token}`);
        }
    }

    deeper(read) {
        if (++this.depth > MAX_DEPTH) {
            throw new Trouble("nested too deeply");
        }
        const result = read();
        this.depth--;
        return result;
    }

    withFont(font, read) {
        const before = this.font;
        this.font = font;
        const result = read();
        this.font = before;
        return result;
    }

    // Returns the source of a group {...}, or of one character.
    raw() {
        const first = this.next();
        if (first !== "{") {
            if (first === "" || first === "}") {
                throw new Trouble("an argument is missing");
            }
            return first;
        }
        const from = this.at;
        for (let level = 1; level > 0;) {
            const c = this.source[this.at++];
            if (c === undefined) {
                throw new Trouble("a brace is not closed");
            }
            this.at += c === "\\" ? 1 : 0;
            level += c === "{" ? 1 : c === "}" ? -1 : 0;
        }
        return this.source.slice(from, this.at - 1);
    }

    // Returns the source of [...], or null.
    rawOption() {
        if (this.peek() !== "[") {
            return null;
        }
        const end = this.source.indexOf("]", this.after);
        if (end < 0) {
            throw new Trouble("a bracket is not closed");
        }
        const text = this.source.slice(this.after, end);
        this.at = end + 1;
        return text;
    }
}
