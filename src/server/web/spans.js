// Finds what Markdown must leave as it is within a text: code between backticks, and formulas
// between $...$, $$...$$, \(...\) and \[...\]. One pass from left to right; the work is linear in
// the length.

const MAX_INLINE = 2000;   // characters of $...$, so that a lone $ does not reach far
const MAX_DISPLAY = 20000;
const MAX_PENDING = 300;   // characters after a $ that may still become a formula

const LETTER = /[0-9A-Za-z]/;

// Returns whether a text after a dollar is rather a price in a sentence: "5 and more".
function isProse(tex) {
    return /^\d/.test(tex) && /\s[A-Za-z]{2,}(?![A-Za-z])/.test(tex) && !/[\\^_=<>+{}]/.test(tex);
}

class Finder {
    constructor(text, isOpen) {
        this.text = text;
        this.isOpen = isOpen; // more may follow
        this.spans = [];
        this.none = new Set(); // delimiters that do not occur any more
        this.found = new Map(); // delimiter -> where find() saw it last
    }

    add(from, to, kind, inner, isDisplay = false) {
        this.spans.push({from, to, kind, inner, isDisplay});
        return to;
    }

    // Returns the position after code that begins here, or after its backticks.
    code(at) {
        const {text} = this;
        const run = /`+/y;
        run.lastIndex = at;
        const ticks = run.exec(text)[0];
        const from = at + ticks.length;
        if (!this.none.has(ticks)) {
            for (let end = from; (end = text.indexOf(ticks, end)) >= 0;) {
                run.lastIndex = end;
                const found = run.exec(text)[0].length;
                if (found === ticks.length) {
                    return this.add(at, end + found, "code", text.slice(from, end));
                }
                end += found;
            }
            this.none.add(ticks);
        }
        return from;
    }

    // Looks for the end of a formula: returns its position or -1. One that is too far away is not
    // searched again.
    find(close, from, most) {
        if (this.none.has(close)) {
            return -1;
        }
        let end = this.found.get(close) ?? -1;
        if (end < from) {
            end = from - 1;
            do {
                end = this.text.indexOf(close, end + 1);
            } while (end >= 0 && isEscaped(this.text, end));
            this.found.set(close, end);
        }
        if (end < 0) {
            this.none.add(close);
        }
        return end < 0 || end - from > most ? -1 : end;
    }

    // A formula that has not ended yet; nothing in it is markup, so that it does not flicker.
    pending(at, next, most) {
        const {text} = this;
        const isEnd = this.isOpen && text.length - at <= most;
        return isEnd ? this.add(at, text.length, "pending", text.slice(at)) : next;
    }

    bracketed(at, close, isDisplay) {
        const from = at + 2;
        const end = this.find(close, from, isDisplay ? MAX_DISPLAY : MAX_INLINE);
        if (end >= 0) {
            return this.add(at, end + close.length, "math", this.text.slice(from, end), isDisplay);
        }
        const isOver = this.none.has(close);
        return isOver ? this.pending(at, from, isDisplay ? MAX_DISPLAY : MAX_INLINE) : from;
    }

    dollars(at) {
        const {text} = this;
        if (text[at + 1] === "$") {
            const end = this.find("$$", at + 2, MAX_DISPLAY);
            if (end > at + 2) {
                return this.add(at, end + 2, "math", text.slice(at + 2, end), true);
            }
            return this.none.has("$$") ? this.pending(at, at + 2, MAX_DISPLAY) : at + 2;
        }
        const isOpening = /\S/.test(text[at + 1] ?? (this.isOpen ? "x" : " ")) &&
            !LETTER.test(text[at - 1] ?? " ");
        return isOpening ? this.dollar(at) : at + 1;
    }

    // As in pandoc: no blank inside next to a dollar, no digit after the second. A letter after it
    // only as in "the $n$th".
    dollar(at) {
        const {text} = this;
        let end = at;
        do {
            end = text.indexOf("$", end + 1);
        } while (end >= 0 && isEscaped(text, end));
        const inner = text.slice(at + 1, end < 0 ? at + 1 + MAX_INLINE : end);
        if (end < 0) {
            return isProse(inner) ? at + 1 : this.pending(at, at + 1, MAX_PENDING);
        }
        const after = text.slice(end + 1, end + 4);
        const isEnd = end > at + 1 && end - at <= MAX_INLINE && /\S/.test(text[end - 1]) &&
            (!LETTER.test(after[0] ?? " ") || /^(?:th|st|nd|rd|s|d)(?![0-9A-Za-z])/.test(after));
        if (!isEnd || isProse(inner)) {
            return at + 1;
        }
        return this.add(at, end + 1, "math", inner);
    }

    run() {
        const {text} = this;
        const marks = /[\\`$]/g;
        for (let found; (found = marks.exec(text)) !== null;) {
            const at = found.index;
            const next = text[at + 1];
            if (found[0] === "`") {
                marks.lastIndex = this.code(at);
            } else if (found[0] === "$") {
                marks.lastIndex = this.dollars(at);
            } else if (next === "(" || next === "[") {
                marks.lastIndex = this.bracketed(at, next === "(" ? "\\)" : "\\]", next === "[");
            } else {
                marks.lastIndex = at + 2; // an escaped character
            }
        }
        return this.spans;
    }
}

function isEscaped(text, at) {
    let n = 0;
    while (text[at - 1 - n] === "\\") {
        n++;
    }
    return n % 2 === 1;
}

// Returns the spans {from, to, kind, inner, isDisplay} in order; kind is "code", "math" or
// "pending". isOpen: the text is still growing.
export function spansOf(text, isOpen) {
    return /[`$\\]/.test(text) ? new Finder(text, isOpen).run() : [];
}
