// Basic Markdown as DOM nodes, for untrusted text: HTML stays text, links are limited to http,
// https and mailto, images become links, and the work is linear in the length.

import {copyButton, el} from "./dom.js";

const MAX_DEPTH = 10;   // of lists and quotes
const MAX_INLINE = 8;   // of emphasis within emphasis
const LINK_CHARACTERS = 2000;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$|[ \t]+)/;
const COLUMNS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => line === undefined || /^\s*$/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;

// ---- blocks -----------------------------------------------------------------------------------

function startsBlock(line) {
    const item = ITEM.exec(line);
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) ||
        (item !== null && item[1].length < 4 && item[0].length < line.length &&
         (item[2].length === 1 || item[2] === "1."));
}

// Splits a row at unescaped bars.
function cellsOf(line) {
    const cells = line.trim().replace(/^\|/, "").split(/(?<!\\)\|/);
    if (cells.length > 1 && isBlank(cells.at(-1))) {
        cells.pop();
    }
    return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readFence(lines, i) {
    const [, indent, fence, info] = FENCE.exec(lines[i]);
    const close = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}[ \\t]*$`);
    let end = i + 1;
    while (end < lines.length && !close.test(lines[end])) {
        end++;
    }
    const code = lines.slice(i + 1, end)
        .map((line) => line.slice(Math.min(indentOf(line), indent.length)));
    return {type: "code", info: info.trim().split(/\s+/)[0], code: code.join("\n"),
            end: Math.min(end + 1, lines.length)};
}

function readQuote(lines, i, depth) {
    let end = i;
    while (end < lines.length && QUOTE.test(lines[end])) {
        end++;
    }
    const inner = lines.slice(i, end).map((line) => line.replace(QUOTE, ""));
    return {type: "quote", blocks: parse(inner, depth + 1), end};
}

function readTable(lines, i) {
    if (!lines[i].includes("|") || lines[i + 1] === undefined || !COLUMNS.test(lines[i + 1])) {
        return null;
    }
    const head = cellsOf(lines[i]);
    const columns = cellsOf(lines[i + 1]);
    if (head.length !== columns.length) {
        return null;
    }
    const sides = columns.map((c) => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right")
                                                     : "left");
    let end = i + 2;
    const rows = [];
    while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
        rows.push(cellsOf(lines[end++]));
    }
    return {type: "table", head, sides, rows, end};
}

function readList(lines, i, depth) {
    const first = ITEM.exec(lines[i]);
    const isOrdered = first[2].length > 1;
    const kind = first[2].at(-1);
    const base = first[1].length;
    const items = [];
    let inner = null;
    let width = 0;
    while (i < lines.length) {
        const line = lines[i];
        const found = ITEM.exec(line);
        const indent = indentOf(line);
        if (isBlank(line)) {
            const next = lines[i + 1];
            const goes_on = next !== undefined && !isBlank(next) &&
                (indentOf(next) >= base + 2 ||
                 (ITEM.exec(next)?.[2].at(-1) === kind && !RULE.test(next)));
            if (!goes_on) {
                break;
            }
            inner.push("");
        } else if (found && indent < base + 2 && found[2].at(-1) === kind && !RULE.test(line)) {
            inner = [line.slice(found[0].length)];
            width = found[0].length;
            items.push(inner);
        } else if (indent >= Math.min(base + 2, width)) {
            inner.push(line.slice(Math.min(indent, width)));
        } else if (!startsBlock(line) && !isBlank(lines[i - 1])) {
            inner.push(line.trimStart());
        } else {
            break;
        }
        i++;
    }
    return {type: "list", isOrdered, start: isOrdered ? parseInt(first[2], 10) : 1, end: i,
            items: items.map((item) => parse(item, depth + 1))};
}

function readParagraph(lines, i) {
    let end = i + 1;
    while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines[end]) &&
           !readTable(lines, end)) {
        end++;
    }
    return {type: "paragraph", text: lines.slice(i, end).map((l) => l.trim()).join("\n"), end};
}

function readBlock(lines, i, depth) {
    const line = lines[i];
    if (FENCE.test(line)) {
        return readFence(lines, i);
    }
    const heading = HEADING.exec(line);
    if (heading) {
        return {type: "heading", level: heading[1].length, end: i + 1,
                text: (heading[2] ?? "").replace(/[ \t]+#+[ \t]*$/, "").trim()};
    }
    if (RULE.test(line)) {
        return {type: "rule", end: i + 1};
    }
    if (depth < MAX_DEPTH) {
        if (QUOTE.test(line)) {
            return readQuote(lines, i, depth);
        }
        if (ITEM.test(line) && indentOf(line) < 4) {
            return readList(lines, i, depth);
        }
    }
    return readTable(lines, i) ?? readParagraph(lines, i);
}

function parse(lines, depth = 0) {
    const blocks = [];
    let i = 0;
    while (i < lines.length) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const block = readBlock(lines, i, depth);
        block.first = i;
        blocks.push(block);
        i = block.end;
    }
    return blocks;
}

// ---- text within a block ----------------------------------------------------------------------

export function safeUrl(text) {
    try {
        const url = new URL(text);
        return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
    } catch {
        return null;
    }
}

function linkTo(href, ...children) {
    return el("a", {href, target: "_blank", rel: "noopener noreferrer nofollow"}, ...children);
}

// One pass over a text. Remembers failed searches, so that none is repeated.
class Inline {
    constructor(text, depth) {
        this.text = text;
        this.depth = depth;
        this.at = 0;
        this.plain = "";
        this.out = document.createDocumentFragment();
        this.none = new Set();
        this.linkMiddle = -2;
    }

    flush() {
        if (this.plain) {
            this.out.append(this.plain);
            this.plain = "";
        }
    }

    put(node, next) {
        this.flush();
        this.out.append(node);
        this.at = next;
        return true;
    }

    within(text) {
        return this.depth >= MAX_INLINE ? document.createTextNode(text)
                                        : new Inline(text, this.depth + 1).run();
    }

    code() {
        const run = /`+/y;
        run.lastIndex = this.at;
        const ticks = run.exec(this.text)[0];
        const from = this.at + ticks.length;
        if (!this.none.has(ticks)) {
            for (let at = from; (at = this.text.indexOf(ticks, at)) >= 0;) {
                run.lastIndex = at;
                const found = run.exec(this.text)[0].length;
                if (found === ticks.length) {
                    const code = this.text.slice(from, at).replaceAll("\n", " ");
                    const isPadded = /^ .*\S.* $/.test(code);
                    return this.put(el("code", {}, isPadded ? code.slice(1, -1) : code),
                                    at + found);
                }
                at += found;
            }
            this.none.add(ticks);
        }
        this.plain += ticks;
        this.at = from;
        return true;
    }

    // *a*, **a**, ***a***, _a_, __a__, ~~a~~
    emphasis(mark) {
        const {text} = this;
        let n = 1;
        while (text[this.at + n] === mark) {
            n++;
        }
        const from = this.at + n;
        const isWordBefore = /[\p{L}\p{N}]/u.test(text[this.at - 1] ?? " ");
        const opens = /\S/.test(text[from] ?? " ") && !(mark === "_" && isWordBefore) &&
            n <= 3 && (mark !== "~" || n === 2);
        if (opens && !this.none.has(mark + n)) {
            for (let at = from; (at = text.indexOf(mark, at)) >= 0;) {
                let found = 1;
                while (text[at + found] === mark) {
                    found++;
                }
                const isWordAfter = /[\p{L}\p{N}]/u.test(text[at + found] ?? " ");
                if (found === n && text[at - 1] !== "\\" && /\S/.test(text[at - 1]) &&
                    !(mark === "_" && isWordAfter)) {
                    return this.put(emphasised(mark, n, this.within(text.slice(from, at))),
                                    at + found);
                }
                at += found;
            }
            this.none.add(mark + n);
        }
        this.plain += mark.repeat(n);
        this.at = from;
        return true;
    }

    link() {
        const open = this.at + (this.text[this.at] === "!" ? 1 : 0);
        if (this.linkMiddle !== -1 && this.linkMiddle < open) {
            this.linkMiddle = this.text.indexOf("](", open);
        }
        const middle = this.linkMiddle;
        if (middle < 0 || middle - open > LINK_CHARACTERS) {
            return false;
        }
        const label = this.text.slice(open + 1, middle);
        if (label.includes("[")) {
            return false;
        }
        const target = this.text.slice(middle + 2, middle + 2 + LINK_CHARACTERS);
        const found = /^[ \t]*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:[ \t]+"[^"\n]*")?[ \t]*\)/
            .exec(target);
        const href = found && safeUrl(found[1]);
        if (!href) {
            return false;
        }
        return this.put(linkTo(href, label ? this.within(label) : found[1]),
                        middle + 2 + found[0].length);
    }

    // https://..., bare or in <>
    address() {
        const found = /<(https?:\/\/[^\s<>]{1,2000})>|https?:\/\/[^\s<>"`]{1,2000}/y;
        found.lastIndex = this.at;
        const match = found.exec(this.text);
        if (!match || /[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? " ")) {
            return false;
        }
        let shown = match[1] ?? match[0];
        if (!match[1]) {
            shown = shown.replace(/[.,;:!?'"*_~，。；：！？、）」』]+$/, "");
            if (shown.endsWith(")") && !shown.includes("(")) {
                shown = shown.slice(0, -1);
            }
        }
        const href = safeUrl(shown);
        return href !== null &&
            this.put(linkTo(href, shown), this.at + (match[1] ? match[0].length : shown.length));
    }

    special(c) {
        const next = this.text[this.at + 1];
        switch (c) {
        case "\\":
            if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
                this.plain += next;
                this.at += 2;
                return true;
            }
            return false;
        case "\n": return this.put(el("br"), this.at + 1);
        case "`": return this.code();
        case "*": case "_": case "~": return this.emphasis(c);
        case "!": return next === "[" && this.link();
        case "[": return this.link();
        default: return this.address();
        }
    }

    run() {
        const {text} = this;
        const marks = /[\\\n`*_~![<h]/g;
        while (this.at < text.length) {
            marks.lastIndex = this.at;
            const found = marks.exec(text);
            const stop = found ? found.index : text.length;
            this.plain += text.slice(this.at, stop);
            this.at = stop;
            if (found && !this.special(found[0])) {
                this.plain += found[0];
                this.at = stop + 1;
            }
        }
        this.flush();
        return this.out;
    }
}

function emphasised(mark, n, inner) {
    if (mark === "~") {
        return el("s", {}, inner);
    }
    if (n === 3) {
        return el("strong", {}, el("em", {}, inner));
    }
    return el(n === 2 ? "strong" : "em", {}, inner);
}

const inline = (text) => new Inline(text, 0).run();

// ---- blocks as nodes --------------------------------------------------------------------------

function renderCode(block) {
    const code = el("code", {}, block.code);
    const name = block.info || "text";
    return el("figure", {class: "code"},
              el("figcaption", {}, el("span", {}, name),
                 copyButton("Copy the code", () => code.textContent)),
              el("pre", {tabindex: "0", "aria-label": `Code: ${name}`, role: "region"}, code));
}

function renderTable(block) {
    const cell = (tag, text, side) =>
        el(tag, {class: side === "left" ? null : side, scope: tag === "th" ? "col" : null},
           inline(text ?? ""));
    return el("div", {class: "table", tabindex: "0", role: "region", "aria-label": "Table"},
              el("table", {},
                 el("thead", {}, el("tr", {}, block.head.map(
                     (text, i) => cell("th", text, block.sides[i])))),
                 el("tbody", {}, block.rows.map((row) => el("tr", {}, block.sides.map(
                     (side, i) => cell("td", row[i], side)))))));
}

function renderItem(blocks) {
    const item = el("li");
    // Omits the spacing of a single paragraph.
    for (const [i, block] of blocks.entries()) {
        const isTight = block.type === "paragraph" && (blocks.length === 1 ||
            (i === 0 && blocks.slice(1).every((b) => b.type === "list")));
        item.append(isTight ? inline(block.text) : render(block));
    }
    return item;
}

function render(block) {
    switch (block.type) {
    case "code": return renderCode(block);
    case "heading":
        // The page itself uses the first three heading levels.
        return el(`h${Math.min(block.level + 3, 6)}`, {class: `h${block.level}`},
                  inline(block.text));
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, block.blocks.map(render));
    case "table": return renderTable(block);
    case "list":
        return el(block.isOrdered ? "ol" : "ul", {start: block.start === 1 ? null : block.start},
                  block.items.map(renderItem));
    default: return el("p", {}, inline(block.text));
    }
}

// Shows a growing text. Only the last two blocks can still change, so only they are parsed again.
// An unchanged block keeps its nodes and any selection in them.
export class MarkdownView {
    #blocks = []; // {type, raw, offset, node, ...}
    #text = "";

    constructor(container) {
        this.container = container;
    }

    update(text) {
        if (text === this.#text) {
            return;
        }
        if (!text.startsWith(this.#text)) {
            this.#blocks = [];
            this.container.replaceChildren();
        }
        this.#text = text;
        const keep = Math.max(0, this.#blocks.length - 2);
        const old = this.#blocks.splice(keep);
        const start = old.length ? old[0].offset : 0;
        const lines = text.slice(start).split(/\r?\n/);
        const offsets = [start];
        for (const line of text.slice(start).split("\n")) {
            offsets.push(offsets.at(-1) + line.length + 1);
        }
        for (const [i, block] of parse(lines).entries()) {
            block.offset = offsets[block.first];
            block.raw = lines.slice(block.first, block.end).join("\n");
            this.#place(block, old[i]);
            this.#blocks.push(block);
        }
        for (const block of old.slice(this.#blocks.length - keep)) {
            block.node.remove();
        }
    }

    #place(block, old) {
        if (old && old.raw === block.raw) {
            block.node = old.node;
        } else if (old?.type === "code" && block.type === "code" && old.info === block.info) {
            block.node = old.node;
            block.node.querySelector("code").textContent = block.code;
        } else {
            block.node = render(block);
            if (old) {
                old.node.replaceWith(block.node);
            } else {
                this.container.append(block.node);
            }
        }
    }
}
