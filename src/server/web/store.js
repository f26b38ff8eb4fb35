// Settings and conversations in localStorage.
//
// A conversation is a tree. A node is one message {id, parent, role, content, ...}; editing a
// message or asking for another answer adds a sibling. `chosen` names the shown child
// of each parent; the model gets the path from the root through the chosen children.

import {withAttachments} from "./attach.js";

const PREFIX = "flashmoe.";
const CONVERSATION = `${PREFIX}conversation.`;
export const ROOT = "root";

// Without storage (private windows of some browsers) everything is lost with the page.
const memory = new Map();
const storage = (() => {
    try {
        localStorage.getItem(PREFIX);
        return localStorage;
    } catch {
        return {
            getItem: (key) => memory.get(key) ?? null,
            setItem: (key, value) => void memory.set(key, value),
            removeItem: (key) => void memory.delete(key),
            key: (i) => [...memory.keys()][i] ?? null,
            get length() { return memory.size; },
        };
    }
})();

function read(key) {
    try {
        return JSON.parse(storage.getItem(key));
    } catch {
        return null;
    }
}

// ---- settings ---------------------------------------------------------------------------------

export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

export function settingsLoad() {
    const saved = read(`${PREFIX}settings`);
    return {system: "", thinking: "", key: "",
            ...(saved && typeof saved === "object" ? saved : {})};
}

export function settingsSave(settings) {
    storage.setItem(`${PREFIX}settings`, JSON.stringify(settings));
}

export const themeLoad = () => storage.getItem(`${PREFIX}theme`) ?? "";
export const themeSave = (theme) => storage.setItem(`${PREFIX}theme`, theme);
export const panelLoad = () => storage.getItem(`${PREFIX}panel`) !== "closed";
export const panelSave = (open) => storage.setItem(`${PREFIX}panel`, open ? "open" : "closed");
export const currentLoad = () => storage.getItem(`${PREFIX}current`) ?? "";
export const currentSave = (id) => storage.setItem(`${PREFIX}current`, id);

// ---- conversations ----------------------------------------------------------------------------

export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(9));
    return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

export function conversationNew() {
    const now = Date.now();
    return {version: 1, id: newId(), title: "", created: now, updated: now, nodes: [], chosen: {}};
}

function isConversation(c) {
    return c && c.version === 1 && typeof c.id === "string" && Array.isArray(c.nodes) &&
        c.chosen && typeof c.chosen === "object";
}

export function conversationLoad(id) {
    const found = read(CONVERSATION + id);
    return isConversation(found) ? found : null;
}

// Returns the conversations, newest first.
export function conversationsLoad() {
    const found = [];
    for (let i = 0; i < storage.length; i++) {
        const key = storage.key(i);
        if (key?.startsWith(CONVERSATION)) {
            const conversation = read(key);
            if (isConversation(conversation)) {
                found.push(conversation);
            }
        }
    }
    return found.sort((a, b) => b.updated - a.updated);
}

// Returns false if the browser's storage is full; the conversation then exists only in the page.
export function conversationSave(conversation) {
    try {
        storage.setItem(CONVERSATION + conversation.id, JSON.stringify(conversation));
        return true;
    } catch {
        return false;
    }
}

export function conversationDelete(id) {
    storage.removeItem(CONVERSATION + id);
}

export function conversationTitle(conversation) {
    return conversation.title || "New conversation";
}

// Calls back when another tab changes a conversation.
export function onOtherTab(changed) {
    window.addEventListener("storage", (event) => {
        if (event.key?.startsWith(CONVERSATION)) {
            changed(event.key.slice(CONVERSATION.length));
        }
    });
}

// ---- the tree ---------------------------------------------------------------------------------

// Returns the versions that follow each message: parent -> nodes.
export function versions(conversation) {
    const byParent = new Map();
    for (const node of conversation.nodes) {
        const list = byParent.get(node.parent);
        if (list) {
            list.push(node);
        } else {
            byParent.set(node.parent, [node]);
        }
    }
    return byParent;
}

export function path(conversation) {
    const nodes = new Map(conversation.nodes.map((n) => [n.id, n]));
    const shown = [];
    let at = conversation.chosen[ROOT];
    while (at && nodes.has(at) && shown.length <= conversation.nodes.length) {
        shown.push(nodes.get(at));
        at = conversation.chosen[at];
    }
    return shown;
}

export function choose(conversation, node) {
    conversation.chosen[node.parent ?? ROOT] = node.id;
}

// Chooses the versions that lead to a message.
export function chooseUpTo(conversation, node) {
    const nodes = new Map(conversation.nodes.map((n) => [n.id, n]));
    for (let at = node, n = 0; at && n <= nodes.size; at = nodes.get(at.parent), n++) {
        choose(conversation, at);
    }
}

// Adds a message below a parent (null: at the root) and chooses it.
export function add(conversation, parent, fields) {
    const node = {id: newId(), parent: parent?.id ?? null, created: Date.now(), content: "",
                  ...fields};
    conversation.nodes.push(node);
    choose(conversation, node);
    conversation.updated = node.created;
    if (!conversation.title && node.role === "user") {
        const line = node.content.trim().split("\n", 1)[0] || node.attachments?.[0]?.name || "";
        const characters = Array.from(line);
        conversation.title = characters.length > 60 ? `${characters.slice(0, 59).join("")}…` : line;
    }
    return node;
}

// Returns the messages of a request: everything before the new answer. Leaves out answers without
// text, such as failed ones.
export function requestMessages(conversation, answer, system) {
    const messages = system.trim() ? [{role: "system", content: system}] : [];
    for (const node of path(conversation)) {
        if (node.id === answer.id) {
            break;
        }
        if (node.role === "user") {
            messages.push({role: "user", content: withAttachments(node.content, node.attachments)});
        } else if (node.content) {
            messages.push(assistantMessage(node));
        }
    }
    return messages;
}

// Returns an answer as a message. One that ended while the model was thinking has an open <think>,
// which the server continues as reasoning.
export function assistantMessage({content, reasoning}) {
    const text = content.trimEnd();
    if (!text) {
        return {role: "assistant", content: `<think>\n${reasoning.trim()}`};
    }
    return {role: "assistant", content: text,
            ...(reasoning ? {reasoning_content: reasoning} : {})};
}
