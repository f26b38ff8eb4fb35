// Conversations from a file. Everything in it is untrusted: each conversation is built anew from
// the fields that are known, of the right type and within limits; all else is left out.

import {conversationLoad, conversationNew, conversationSave, newId, ROOT} from "./store.js";

export const MAX_FILE_BYTES = 32 * 2 ** 20;
const MAX_CONVERSATIONS = 2000;
const MAX_MESSAGES = 20000;
const MAX_TEXT = 2000000; // characters of one message
const ID = /^[0-9a-f]{18}$/;
const STATES = ["done", "stopped", "broken", "failed", "streaming"];
const ENDS = ["stop", "length", "tool_calls"];

export class ImportError extends Error {}

const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const isNumber = (x) => typeof x === "number" && Number.isFinite(x) && x >= 0;

function shown(value) {
    if (Array.isArray(value)) {
        return `a list of ${value.length}`;
    }
    const text = isObject(value) ? "an object" : JSON.stringify(value) ?? "missing";
    return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}

function fail(where, what, value) {
    throw new ImportError(`${where} ${what}; it is ${shown(value)}`);
}

function textOf(value, where) {
    if (typeof value !== "string") {
        fail(where, "must be a text", value);
    }
    if (value.length > MAX_TEXT) {
        throw new ImportError(`${where} has ${value.length} characters; at most ${MAX_TEXT} fit`);
    }
    return value;
}

function optional(node, name, value, isGood) {
    if (isGood(value)) {
        node[name] = value;
    }
}

function usageOf(usage) {
    if (!isObject(usage) || !isNumber(usage.prompt_tokens) || !isNumber(usage.completion_tokens)) {
        return null;
    }
    const cached = usage.prompt_tokens_details?.cached_tokens;
    return {prompt_tokens: usage.prompt_tokens, completion_tokens: usage.completion_tokens,
            ...(isNumber(cached) ? {prompt_tokens_details: {cached_tokens: cached}} : {})};
}

function listOf(value, where, most, read) {
    if (value === undefined || value === null) {
        return [];
    }
    if (!Array.isArray(value) || value.length > most) {
        fail(where, `must be a list of at most ${most}`, value);
    }
    return value.map((item, i) => read(item, `${where}[${i}]`));
}

function callOf(call, where) {
    if (!isObject(call)) {
        fail(where, "must be an object", call);
    }
    return {name: textOf(call.name, `${where}.name`),
            arguments: textOf(call.arguments, `${where}.arguments`)};
}

function attachmentOf(file, where) {
    if (!isObject(file)) {
        fail(where, "must be an object", file);
    }
    return {name: textOf(file.name, `${where}.name`).slice(0, 200),
            text: textOf(file.text, `${where}.text`)};
}

// Reads a message without its place in the tree.
function messageOf(raw, where) {
    if (!isObject(raw)) {
        fail(where, "must be an object", raw);
    }
    if (raw.role !== "user" && raw.role !== "assistant") {
        fail(`${where}.role`, "must be \"user\" or \"assistant\"", raw.role);
    }
    const node = {role: raw.role, content: textOf(raw.content, `${where}.content`)};
    optional(node, "created", raw.created, isNumber);
    const attachments = listOf(raw.attachments, `${where}.attachments`, 100, attachmentOf);
    if (attachments.length) {
        node.attachments = attachments;
    }
    if (node.role === "user") {
        return node;
    }
    node.reasoning = textOf(raw.reasoning ?? "", `${where}.reasoning`);
    node.toolCalls = listOf(raw.toolCalls, `${where}.toolCalls`, 1000, callOf);
    node.state = STATES.includes(raw.state) ? raw.state : "done";
    node.finish = ENDS.includes(raw.finish) ? raw.finish : null;
    node.usage = usageOf(raw.usage);
    node.error = isObject(raw.error) && typeof raw.error.kind === "string" &&
        typeof raw.error.message === "string"
        ? {kind: raw.error.kind.slice(0, 20), message: raw.error.message.slice(0, 2000)} : null;
    for (const name of ["totalMs", "thoughtMs", "tokensPerS"]) {
        optional(node, name, raw[name], isNumber);
    }
    return node;
}

// Finds the parents: each must be a message of the same conversation, and there is no circle.
function readTree(raw, where) {
    const ids = new Map(); // of the file -> here
    const byId = new Map();
    for (const [i, node] of raw.nodes.entries()) {
        const id = node?.id;
        if (typeof id !== "string" || ids.has(id)) {
            fail(`${where}.nodes[${i}].id`, "must be a text that occurs once", id);
        }
        ids.set(id, ID.test(id) ? id : newId());
    }
    const nodes = raw.nodes.map((one, i) => {
        const at = `${where}.nodes[${i}]`;
        const isRoot = one.parent === null || one.parent === undefined;
        if (!isRoot && !ids.has(one.parent)) {
            fail(`${at}.parent`, "must be null or the id of a message", one.parent);
        }
        const node = {id: ids.get(one.id), parent: isRoot ? null : ids.get(one.parent),
                      ...messageOf(one, at)};
        byId.set(node.id, node);
        return node;
    });
    checkCircles(nodes, byId, where);
    return {nodes, chosen: chosenOf(raw.chosen, nodes, ids)};
}

function checkCircles(nodes, byId, where) {
    const isGood = new Set();
    for (const first of nodes) {
        const seen = new Set();
        let node = first;
        while (node && !isGood.has(node.id)) {
            if (seen.has(node.id)) {
                throw new ImportError(`${where}.nodes: the parents of ${shown(first.id)} are a ` +
                                      "circle");
            }
            seen.add(node.id);
            node = byId.get(node.parent);
        }
        seen.forEach((id) => isGood.add(id));
    }
}

// The shown child of each message: the one that the file names, or the last.
function chosenOf(raw, nodes, ids) {
    const named = new Map();
    for (const [parent, child] of Object.entries(isObject(raw) ? raw : {})) {
        named.set(parent === ROOT ? ROOT : ids.get(parent), ids.get(child));
    }
    const chosen = {};
    for (const node of nodes) {
        const parent = node.parent ?? ROOT;
        if (!Object.hasOwn(chosen, parent) || named.get(parent) === node.id ||
            named.get(parent) !== chosen[parent]) {
            chosen[parent] = node.id;
        }
    }
    return chosen;
}

// A list of messages as in the API: {role, content}.
function treeOfMessages(messages, where) {
    const nodes = [];
    for (const [i, raw] of messages.entries()) {
        if (raw?.role === "system" || raw?.role === "developer") {
            continue; // the system prompt is a setting of the page
        }
        const content = Array.isArray(raw?.content)
            ? raw.content.map((part) => typeof part?.text === "string" ? part.text : "").join("")
            : raw?.content;
        nodes.push({id: newId(), parent: nodes.at(-1)?.id ?? null,
                    ...messageOf({role: raw?.role, content, reasoning: raw?.reasoning_content ?? "",
                                  state: "done"}, `${where}[${i}]`)});
    }
    return {nodes, chosen: chosenOf({}, nodes, new Map())};
}

function conversationOf(raw, where) {
    if (!isObject(raw)) {
        fail(where, "must be an object", raw);
    }
    const list = raw.nodes ?? raw.messages;
    if (!Array.isArray(list) || list.length > MAX_MESSAGES) {
        fail(`${where}.nodes`, `must be a list of at most ${MAX_MESSAGES} messages`, list);
    }
    const tree = raw.nodes ? readTree(raw, where) : treeOfMessages(list, `${where}.messages`);
    const conversation = {...conversationNew(), ...tree};
    if (typeof raw.id === "string" && ID.test(raw.id)) {
        conversation.id = raw.id;
    }
    if (isNumber(raw.created) && isNumber(raw.updated)) {
        Object.assign(conversation, {created: raw.created, updated: raw.updated});
    }
    const first = tree.nodes.find((n) => n.role === "user")?.content.trim().split("\n", 1)[0] ?? "";
    const title = typeof raw.title === "string" && raw.title.trim() ? raw.title.trim() : first;
    conversation.title = Array.from(title.slice(0, 400)).slice(0, 120).join("");
    return conversation;
}

// Returns the conversations of a file's text. Throws an ImportError that names the field.
export function conversationsOf(text) {
    let raw;
    try {
        raw = JSON.parse(text);
    } catch (error) {
        throw new ImportError(`it is not JSON (${error.message})`);
    }
    const isMessages = Array.isArray(raw) && isObject(raw[0]) && "role" in raw[0];
    const list = isMessages ? [{messages: raw}] : Array.isArray(raw) ? raw : [raw];
    if (list.length > MAX_CONVERSATIONS) {
        throw new ImportError(`it has ${list.length} conversations; at most ` +
                              `${MAX_CONVERSATIONS} can be imported at once`);
    }
    return list.map((one, i) => conversationOf(one, list.length > 1 ? `[${i}]` : "conversation"))
        .filter((one) => one.nodes.length > 0);
}

// Saves conversations. Those that are already here are skipped; one with the same id and other
// content becomes a copy. Returns {saved, nSame, isFull}.
export function saveImported(conversations) {
    const result = {saved: [], nSame: 0, isFull: false};
    for (const conversation of conversations) {
        const here = conversationLoad(conversation.id);
        if (here && JSON.stringify(here.nodes.map((n) => [n.id, n.content])) ===
            JSON.stringify(conversation.nodes.map((n) => [n.id, n.content]))) {
            result.nSame++;
            continue;
        }
        if (here) {
            conversation.id = newId();
        }
        if (!conversationSave(conversation)) {
            result.isFull = true;
            break;
        }
        result.saved.push(conversation);
    }
    return result;
}
