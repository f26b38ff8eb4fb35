// Finds conversations by words in their titles, their messages and the files attached to them.

import {el} from "./dom.js";

const BEFORE = 24, AFTER = 60; // characters shown around a hit

// With the flag u, only these may be escaped.
const patternOf = (word) => new RegExp(word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "iu");

const textsOf = ({content, attachments = []}) =>
    [content, ...attachments.flatMap(({name, text}) => [name, text])];

// Returns a function: conversation -> null, or {node, text, at, length} of a hit; node is null if
// the words are in the title only. Every word must occur.
export function searchFor(query) {
    const patterns = query.trim().split(/\s+/).filter(Boolean).slice(0, 20).map(patternOf);
    return (conversation) => {
        const texts = conversation.nodes.flatMap(textsOf);
        const isHit = patterns.every((pattern) => pattern.test(conversation.title) ||
                                                  texts.some((text) => pattern.test(text)));
        if (!isHit) {
            return null;
        }
        // The newest message with as many words as possible.
        let best = {node: null, n: 0};
        for (const node of conversation.nodes) {
            const own = textsOf(node);
            const n = patterns.filter((pattern) => own.some((text) => pattern.test(text))).length;
            if (n > 0 && n >= best.n) {
                const text = own.find((each) => patterns.some((p) => p.test(each)));
                const found = patterns.map((p) => p.exec(text)).find(Boolean);
                best = {node, n, text, at: found.index, length: found[0].length};
            }
        }
        return best;
    };
}

// Returns the text around a hit as nodes.
export function snippet({text, at, length}) {
    const from = Math.max(0, at - BEFORE), to = at + length + AFTER;
    const flat = (part) => part.replace(/\s+/g, " ");
    return el("span", {class: "snippet"}, (from > 0 ? "…" : "") + flat(text.slice(from, at)),
              el("mark", {}, flat(text.slice(at, at + length))),
              flat(text.slice(at + length, to)));
}
