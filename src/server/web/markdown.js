// Basic Markdown as DOM nodes, for untrusted text: HTML stays text, links are limited to http,
// https and mailto, images become links, formulas become MathML, and the work is linear in the
// length.

import {CodeView} from "./code.js";
import {el} from "./dom.js";
import {mathOf} from "./math.js";
import {spansOf} from "./spans.js";

const MAX_DEPTH = 10;   // of lists and quotes
const MAX_INLINE = 8;   // of emphasis within emphasis
const LINK_CHARACTERS = 2000;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$|[ \t]+)/;
const FORMULA = /^ {0,3}(\$\$|\\\[|\\begin\{((?:equation|align|gather|multline|eqnarray)\*?)\})/;
const MAX_FORMULA = 20000; // characters
const COLUMNS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => line === undefined || /^\s*$/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;

// ---- blocks -----------------------------------------------------------------------------------

function startsBlock(line) {
    const item = ITEM.exec(line);
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) ||
        FORMULA.test(line) ||
        (item !== null && item[1].length < 4 && item[0].length < line.length &&
         (item[2].length === 1 || item[2] === "1."));
}

// Splits a row at unescaped bars outside these spans.
function splitRow(row, spans) {
    const cells = [];
    let from = 0, next = 0;
    for (const {index} of row.matchAll(/(?<!\\)\|/g)) {
        while (spans[next]?.to <= index) {
            next++;
        }
        if (!(spans[next]?.from <= index)) {
            cells.push(row.slice(from, index));
            from = index + 1;
        }
    }
    cells.push(row.slice(from));
    if (cells.length > 1 && isBlank(cells.at(-1))) {
        cells.pop();
    }
    return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// Returns the cells of a row. A bar within a formula splits nothing, unless the dollars are none of
// a formula: if only a split at every bar gives `wanted` cells.
function cellsOf(line, wanted = 0) {
    const row = line.trim().replace(/^\|/, "");
    const spans = spansOf(row, false).filter((span) => span.kind === "math");
    const cells = splitRow(row, spans);
    if (cells.length === wanted || spans.length === 0) {
        return cells;
    }
    const all = splitRow(row, []);
    return all.length === wanted ? all : cells;
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
            end: Math.min(end + 1, lines.length),
            open: end === lines.length ? {close, indent: indent.length} : null};
}

// Returns the line of the closing mark of a formula, or -1. No empty line may come before it. Each
// line is searched once: `lines.none` says up to which line a mark does not occur.
function formulaEnd(lines, i, first, close) {
    lines.none ??= new Map();
    if (i < (lines.none.get(close) ?? 0)) {
        return -1;
    }
    let n = 0, end = i;
    for (; end < lines.length && n <= MAX_FORMULA; end++) {
        const line = end === i ? first : lines[end];
        n += line.length;
        if (end > i && isBlank(line)) {
            break;
        }
        if (line.includes(close)) {
            return end;
        }
    }
    lines.none.set(close, end);
    return -1;
}

// A displayed formula that begins a line and ends one.
function readFormula(lines, i, isOpen) {
    const found = FORMULA.exec(lines[i]);
    if (!found) {
        return null;
    }
    const close = found[2] ? `\\end{${found[2]}}` : found[1] === "$$" ? "$$" : "\\]";
    const first = lines[i].slice(found[0].length);
    const end = formulaEnd(lines, i, first, close);
    if (end < 0) {
        return isOpen ? readOpenFormula(lines, i) : null;
    }
    const text = [first, ...lines.slice(i + 1, end + 1)].join("\n");
    const at = text.indexOf(close);
    const inner = text.slice(0, at);
    const after = text.slice(at + close.length).trim();
    return /^[.,;:]?$/.test(after) && inner.trim()
        ? {type: "formula", end: end + 1, after, source: lines.slice(i, end + 1).join("\n"),
           tex: found[2] ? found[1] + inner + close : inner} : null;
}

// Returns the first line from which on a formula may still be open: no empty line follows, except
// a last one that may grow, and not too much text. Found once.
function openFrom(lines) {
    if (lines.openFrom === undefined) {
        let n = 0, at = lines.length - (isBlank(lines.at(-1)) ? 1 : 0);
        while (at > 0 && !isBlank(lines[at - 1]) && (n += lines[at - 1].length) <= MAX_FORMULA) {
            at--;
        }
        lines.openFrom = at;
    }
    return lines.openFrom;
}

// A formula whose end may still come.
function readOpenFormula(lines, i) {
    if (i < openFrom(lines)) {
        return null;
    }
    const end = lines.length - (isBlank(lines.at(-1)) ? 1 : 0);
    return {type: "formula", end, tex: null, source: lines.slice(i, end).join("\n")};
}

function readQuote(lines, i, depth, isOpen) {
    let end = i;
    while (end < lines.length && QUOTE.test(lines[end])) {
        end++;
    }
    const inner = lines.slice(i, end).map((line) => line.replace(QUOTE, ""));
    return {type: "quote", end,
            blocks: parse(inner, depth + 1, isOpen && end === lines.length)};
}

function readTable(lines, i) {
    if (!lines[i].includes("|") || lines[i + 1] === undefined || !COLUMNS.test(lines[i + 1])) {
        return null;
    }
    const columns = cellsOf(lines[i + 1]);
    const head = cellsOf(lines[i], columns.length);
    if (head.length !== columns.length) {
        return null;
    }
    const sides = columns.map((c) => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right")
                                                     : "left");
    let end = i + 2;
    const rows = [];
    while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
        rows.push(cellsOf(lines[end++], columns.length));
    }
    return {type: "table", head, sides, rows, end};
}

function readList(lines, i, depth, isOpen) {
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
            items: items.map((item, n) => parse(
                item, depth + 1, isOpen && i === lines.length && n === items.length - 1))};
}

function readParagraph(lines, i) {
    let end = i + 1;
    while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines[end]) &&
           !readTable(lines, end)) {
        end++;
    }
    return {type: "paragraph", text: lines.slice(i, end).map((l) => l.trim()).join("\n"), end};
}

function readBlock(lines, i, depth, isOpen) {
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
            return readQuote(lines, i, depth, isOpen);
        }
        if (ITEM.test(line) && indentOf(line) < 4) {
            return readList(lines, i, depth, isOpen);
        }
    }
    return readFormula(lines, i, isOpen) ?? readTable(lines, i) ?? readParagraph(lines, i);
}

// isOpen: the last line is still growing.
function parse(lines, depth = 0, isOpen = false) {
    const blocks = [];
    let i = 0;
    while (i < lines.length) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const block = readBlock(lines, i, depth, isOpen);
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

// A formula, or its source if it cannot be converted.
function formula(source, tex, isDisplay) {
    return mathOf(tex, isDisplay) ?? el("span", {class: "math-source"}, source);
}

function inlineCode(text) {
    const code = text.replaceAll("\n", " ");
    return el("code", {}, /^ .*\S.* $/.test(code) ? code.slice(1, -1) : code);
}

// One pass over a text. Remembers failed searches, so that none is repeated. `open` is an object
// if the text is still growing; its wasPending is set if the text ends within a formula.
class Inline {
    constructor(text, depth, open = null) {
        this.text = text;
        this.depth = depth;
        this.open = open;
        this.spans = spansOf(text, open !== null);
        this.nextSpan = 0;
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

    // Returns the span that contains a position, or undefined.
    spanAt(at) {
        let low = 0, high = this.spans.length;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.spans[middle].to <= at) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return this.spans[low]?.from <= at ? this.spans[low] : undefined;
    }

    // Puts a span that begins here.
    span() {
        while (this.spans[this.nextSpan]?.from < this.at) {
            this.nextSpan++;
        }
        const span = this.spans[this.nextSpan];
        if (span?.from !== this.at) {
            return false;
        }
        const source = this.text.slice(span.from, span.to);
        if (span.kind === "pending") {
            this.open.wasPending = true;
            this.plain += source;
            this.at = span.to;
            return true;
        }
        return this.put(span.kind === "code" ? inlineCode(span.inner)
                        : formula(source, span.inner, span.isDisplay), span.to);
    }

    // Puts backticks without an end.
    ticks() {
        const run = /`+/y;
        run.lastIndex = this.at;
        const ticks = run.exec(this.text)[0];
        this.plain += ticks;
        this.at += ticks.length;
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
                const span = this.spanAt(at);
                if (span) {
                    at = span.to;
                    continue;
                }
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
        if (label.includes("[") || this.spanAt(middle)) {
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
        if (this.span()) {
            return true;
        }
        switch (c) {
        case "\\":
            if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
                this.plain += next;
                this.at += 2;
                return true;
            }
            return false;
        case "\n": return this.put(el("br"), this.at + 1);
        case "`": return this.ticks();
        case "$": return false;
        case "*": case "_": case "~": return this.emphasis(c);
        case "!": return next === "[" && this.link();
        case "[": return this.link();
        default: return this.address();
        }
    }

    run() {
        const {text} = this;
        const marks = /[\\\n`*_~![<h$]/g;
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

const inline = (text, open) => new Inline(text, 0, open).run();

// ---- blocks as nodes --------------------------------------------------------------------------

// `open` is given to the last text of a block that is still growing, else null.

function renderTable(block, open) {
    const cell = (tag, text, side, isLast) =>
        el(tag, {class: side === "left" ? null : side, scope: tag === "th" ? "col" : null},
           inline(text ?? "", isLast ? open : null));
    const last = block.rows.at(-1);
    return el("div", {class: "table", tabindex: "0", role: "region", "aria-label": "Table"},
              el("table", {},
                 el("thead", {}, el("tr", {}, block.head.map(
                     (text, i) => cell("th", text, block.sides[i], false)))),
                 el("tbody", {}, block.rows.map((row) => el("tr", {}, block.sides.map(
                     (side, i) => cell("td", row[i], side,
                                       row === last && i === row.length - 1)))))));
}

function renderItem(blocks, open) {
    const item = el("li");
    // Omits the spacing of a single paragraph.
    for (const [i, block] of blocks.entries()) {
        const isTight = block.type === "paragraph" && (blocks.length === 1 ||
            (i === 0 && blocks.slice(1).every((b) => b.type === "list")));
        const own = i === blocks.length - 1 ? open : null;
        item.append(isTight ? inline(block.text, own) : render(block, own));
    }
    return item;
}

// A formula that is still growing is shown as its source, in the same place.
function renderFormula(block, open) {
    if (block.tex === null) {
        open.wasPending = true;
        return el("div", {class: "math-source"}, block.source);
    }
    const math = mathOf(block.tex, true);
    return math ? el("div", {class: "formula", tabindex: "0", role: "group",
                             "aria-label": "Formula"}, math, block.after)
                : el("div", {class: "math-source"}, block.source);
}

function render(block, open) {
    const ofLast = (list, i) => i === list.length - 1 ? open : null;
    switch (block.type) {
    case "code": {
        const view = new CodeView(block.info);
        view.update(block.code);
        block.view = view;
        return view.figure;
    }
    case "formula": return renderFormula(block, open);
    case "heading":
        // The page itself uses the first three heading levels.
        return el(`h${Math.min(block.level + 3, 6)}`, {class: `h${block.level}`},
                  inline(block.text, open));
    case "rule": return el("hr");
    case "quote":
        return el("blockquote", {}, block.blocks.map((b, i, list) => render(b, ofLast(list, i))));
    case "table": return renderTable(block, open);
    case "list":
        return el(block.isOrdered ? "ol" : "ul", {start: block.start === 1 ? null : block.start},
                  block.items.map((item, i, list) => renderItem(item, ofLast(list, i))));
    default: return el("p", {}, inline(block.text, open));
    }
}

// Shows a growing text. Only the last two blocks can still change, so only they are parsed again.
// An unchanged block keeps its nodes and any selection in them. Code that is still open only
// grows: its new lines are appended.
export class MarkdownView {
    #blocks = []; // {type, raw, offset, node, ...}
    #text = "";
    #isOpen = false;
    #hasFailed = false; // the text is shown as it is
    #seen = 0; // of open code: where its last, incomplete line begins in the text

    constructor(container) {
        this.container = container;
    }

    // isOpen: more text follows.
    update(text, isOpen = false) {
        if (text === this.#text && isOpen === this.#isOpen) {
            return;
        }
        if (this.#hasFailed || !text.startsWith(this.#text)) {
            this.#blocks = [];
            this.#hasFailed = false;
            this.container.replaceChildren();
        }
        this.#text = text;
        this.#isOpen = isOpen;
        try {
            if (!this.#growCode()) {
                this.#parse();
            }
        } catch (error) {
            console.error(error);
            this.#hasFailed = true;
            this.container.replaceChildren(el("span", {class: "said"}, text));
        }
    }

    // Appends to code that is still open; returns false if it ends or there is none.
    #growCode() {
        const block = this.#blocks.at(-1);
        if (!block?.open) {
            return false;
        }
        const lines = this.#text.slice(this.#seen).split("\n");
        const {close, indent} = block.open;
        if (lines.some((line) => close.test(line.replace(/\r$/, "")))) {
            return false;
        }
        const shown = lines.map((line) => line.replace(/\r$/, ""))
            .map((line) => line.slice(Math.min(indentOf(line), indent)));
        block.code = block.code.slice(0, block.lastLine) + shown.join("\n");
        block.lastLine = block.code.length - shown.at(-1).length;
        this.#seen = this.#text.length - lines.at(-1).length;
        block.raw = null;
        block.view.update(block.code);
        return true;
    }

    #parse() {
        const keep = Math.max(0, this.#blocks.length - 2);
        const old = this.#blocks.splice(keep);
        const start = old.length ? old[0].offset : 0;
        const text = this.#text.slice(start);
        const lines = text.split(/\r?\n/);
        const offsets = [start];
        for (const line of text.split("\n")) {
            offsets.push(offsets.at(-1) + line.length + 1);
        }
        const blocks = parse(lines, 0, this.#isOpen);
        for (const [i, block] of blocks.entries()) {
            block.offset = offsets[block.first];
            block.raw = lines.slice(block.first, block.end).join("\n");
            this.#place(block, old[i], this.#isOpen && i === blocks.length - 1);
            this.#blocks.push(block);
        }
        for (const block of old.slice(this.#blocks.length - keep)) {
            block.node.remove();
        }
        const last = blocks.at(-1);
        if (last?.open) {
            this.#seen = this.#text.lastIndexOf("\n") + 1;
            last.lastLine = last.code.lastIndexOf("\n") + 1;
            // A fence without a line below it has no code yet.
            last.open = last.first + 1 < lines.length ? last.open : null;
        }
    }

    #place(block, old, isOpen) {
        const open = isOpen ? {wasPending: false} : null;
        if (old && old.raw === block.raw && old.type === block.type && !old.wasPending) {
            Object.assign(block, {node: old.node, view: old.view});
        } else if (old?.type === "code" && block.type === "code" && old.info === block.info) {
            Object.assign(block, {node: old.node, view: old.view});
            block.view.update(block.code);
        } else {
            block.node = render(block, open);
            if (old) {
                old.node.replaceWith(block.node);
            } else {
                this.container.append(block.node);
            }
        }
        block.wasPending = open?.wasPending ?? false;
    }
}
