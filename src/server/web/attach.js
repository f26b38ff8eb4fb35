// Text files that go with a message: picked, dropped or pasted.

import {byId, el, iconButton} from "./dom.js";

const KIB = 1024;
export const MAX_FILES = 10;
export const MAX_FILE_BYTES = 256 * KIB;
export const MAX_TOTAL_BYTES = 512 * KIB; // browsers keep about 5 MiB of conversations
const LIMITS = "Up to 10 text files can be attached, 256 KiB each and 512 KiB together.";

export function sizeText(n) {
    return n < KIB ? `${n} bytes` : `${(n / KIB).toFixed(n < 10 * KIB ? 1 : 0)} KiB`;
}

const bytesOf = (text) => new TextEncoder().encode(text).length;

// Returns the text of a file's bytes, or null if it is not text.
function decode(bytes) {
    const isUtf16 = (bytes[0] === 0xff && bytes[1] === 0xfe) ||
        (bytes[0] === 0xfe && bytes[1] === 0xff);
    const name = isUtf16 ? (bytes[0] === 0xff ? "utf-16le" : "utf-16be") : "utf-8";
    try {
        const text = new TextDecoder(name, {fatal: true}).decode(bytes);
        return text.includes("\0") ? null : text;
    } catch {
        return null;
    }
}

// A name in one line, without a path.
function nameOf(name) {
    const plain = name.replace(/^.*[/\\]/, "").replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "").trim();
    return Array.from(plain).slice(0, 120).join("") || "file";
}

// The text of a message with its files before it, as the model gets it. A fence is longer than any
// in the file, so that a file cannot end it.
export function withAttachments(text, attachments = []) {
    const parts = attachments.map((file) => {
        const runs = file.text.match(/`{3,}/g) ?? [];
        const fence = "`".repeat(runs.reduce((n, run) => Math.max(n, run.length + 1), 3));
        return `File: ${nameOf(file.name)}\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
    });
    return [...parts, text].filter(Boolean).join("\n\n");
}

// Shows the files of a message; the text is put there when it is opened.
export function attachmentList(attachments) {
    return el("ul", {class: "files", "aria-label": "Attached files"}, attachments.map((file) => {
        const text = el("pre", {tabindex: "0", role: "region", "aria-label": file.name});
        const fold = el("details", {ontoggle: () => {
            text.textContent = fold.open ? file.text : "";
        }}, el("summary", {}, el("span", {class: "file-name"}, file.name),
               el("span", {class: "file-size"}, sizeText(bytesOf(file.text)))), text);
        return el("li", {}, fold);
    }));
}

export class Attachments {
    files = []; // {name, text, bytes}

    // changed(): the list is another one.
    constructor(changed) {
        this.changed = changed;
        this.list = byId("attached");
        this.note = byId("attach-note");
    }

    get nBytes() {
        return this.files.reduce((n, file) => n + file.bytes, 0);
    }

    // Adds files; says which ones cannot be added and why.
    async add(list) {
        const problems = [];
        for (const file of list) {
            const problem = await this.#read(file);
            if (problem) {
                problems.push(problem);
            }
        }
        this.#tell(problems.length ? `${problems.slice(0, 3).join(" ")} ${LIMITS}` : "");
        this.#show();
    }

    async #read(file) {
        const name = nameOf(file.name);
        if (file.size > MAX_FILE_BYTES) {
            return `${name} has ${sizeText(file.size)}.`;
        }
        let bytes;
        try {
            bytes = new Uint8Array(await file.arrayBuffer());
        } catch {
            return `${name} cannot be read; a folder cannot be attached.`;
        }
        const text = decode(bytes);
        return text === null ? `${name} is not a text in UTF-8.` : this.#put(name, text);
    }

    #put(name, text) {
        const bytes = bytesOf(text);
        if (bytes > MAX_FILE_BYTES || this.nBytes + bytes > MAX_TOTAL_BYTES ||
            this.files.length >= MAX_FILES) {
            return `${name} (${sizeText(bytes)}) is too much.`;
        }
        if (!text.trim()) {
            return `${name} is empty.`;
        }
        this.files.push({name, text, bytes});
        return "";
    }

    // Adds a pasted text as a file; returns false, with the reason shown, if it is too large.
    addText(text) {
        const n = this.files.filter((file) => file.name.startsWith("pasted-")).length + 1;
        const problem = this.#put(`pasted-${n}.txt`, text);
        this.#tell(problem ? `${problem} ${LIMITS}` : "");
        this.#show();
        return !problem;
    }

    remove(file) {
        this.files = this.files.filter((other) => other !== file);
        this.#tell("");
        this.#show();
    }

    // Returns the files and empties the list.
    take() {
        const files = this.files.map(({name, text}) => ({name, text}));
        this.files = [];
        this.#tell("");
        this.#show();
        return files;
    }

    #tell(text) {
        this.note.textContent = text;
        this.note.hidden = !text;
    }

    #show() {
        this.list.hidden = this.files.length === 0;
        this.list.replaceChildren(...this.files.map((file) => el("li", {},
            el("span", {class: "file-name"}, file.name),
            el("span", {class: "file-size"}, sizeText(file.bytes)),
            iconButton("close", `Remove ${file.name}`, () => {
                this.remove(file);
                byId("input").focus();
            }))));
        this.changed();
    }
}
