// The page: conversations on the left, the chat, the engine panel on the right.

import {Answer} from "./answer.js";
import {Attachments} from "./attach.js";
import {openCard, showDefaults} from "./card.js";
import {announce, byId, download, el, hasTouchKeyboard, iconButton, isEnterToSend, setText,
        toast} from "./dom.js";
import {canContinue, MessageList} from "./messages.js";
import {Panel} from "./panel.js";
import {searchFor, snippet} from "./search.js";
import * as store from "./store.js";
import {conversationsOf, ImportError, MAX_FILE_BYTES, saveImported} from "./transfer.js";

const SAVE_MS = 1000;
const LONG_PASTE = 10000; // characters; a longer text becomes an attachment
const EXAMPLES = [
    "Write a story about a robot who loves music.",
    "写一首关于月亮的诗。",
    "Write a C function that reverses a string in place.",
];

const settings = store.settingsLoad();
const answers = new Map(); // conversation id -> Answer
let conversation = null;
let nContext = 0;
let isLeaving = false; // the page is being closed, with its connections

const scroll = byId("scroll");
const input = byId("input");
const list = new MessageList({act, answerOf: (node) => {
    const answer = answers.get(conversation.id);
    return answer?.node === node ? answer : null;
}, settings});
const attachments = new Attachments(() => showComposer());

// ---- conversations ----------------------------------------------------------------------------

function save(which) {
    if (isLeaving) {
        return; // the stored state says that the answer was in progress
    }
    if (!store.conversationSave(which)) {
        toast("The browser's storage is full; this conversation is not saved.", "Export",
              () => exportOne(which));
    }
}

function exportOne(which) {
    const name = store.conversationTitle(which).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
    download(`flashmoe-${name}.json`, which);
}

function open(which) {
    conversation = which;
    store.currentSave(which.id);
    list.show(which);
    setText(byId("title"), store.conversationTitle(which));
    document.title = which.title ? `${which.title} – Flash-MoE` : "Flash-MoE";
    showList();
    showComposer();
    showContext();
    isAtEnd = true;
    followEnd();
}

function openNew() {
    // Empty conversations are not stored, so there is at most one.
    open(store.conversationNew());
    closeDrawers();
    input.focus();
}

// Returns the conversations to list, with what a search found in each.
function listed() {
    const all = store.conversationsLoad().map((c) => c.id === conversation.id ? conversation : c);
    const query = byId("search").value.trim();
    if (!query) {
        return all.map((c) => ({c, hit: null}));
    }
    const find = searchFor(query);
    return all.map((c) => ({c, hit: find(c)})).filter(({hit}) => hit);
}

function openListed(c, hit) {
    const which = c.id === conversation.id ? conversation : answers.get(c.id)?.conversation ?? c;
    if (hit?.node) {
        store.chooseUpTo(which, hit.node);
    }
    open(which);
    closeDrawers();
    if (hit?.node) {
        isAtEnd = false;
        list.reveal(hit.node);
    }
}

function showList() {
    const found = listed();
    const isSearch = byId("search").value.trim() !== "";
    const items = found.map(({c, hit}) => {
        const isCurrent = c.id === conversation.id;
        const item = el("li", {class: isCurrent ? "current" : null},
            el("button", {type: "button", class: "name", "aria-current": isCurrent ? "true" : null,
                          onclick: () => openListed(c, hit)},
               store.conversationTitle(c), hit?.node ? snippet(hit) : ""));
        if (isCurrent && !isSearch) {
            item.append(el("span", {class: "item-actions"},
                iconButton("edit", "Rename", () => rename(item, c)),
                iconButton("export", "Export as JSON", () => exportOne(c)),
                iconButton("bin", "Delete", () => remove(c))));
        }
        return item;
    });
    byId("list").replaceChildren(...items);
    byId("search-none").hidden = !isSearch || items.length > 0;
    return items.length;
}

let searchTimer = 0;
function onSearch() {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => {
        const n = showList();
        if (byId("search").value.trim()) {
            announce(n === 1 ? "1 conversation found" : `${n} conversations found`);
        }
    }, 150);
}

function rename(item, which) {
    const box = el("input", {type: "text", class: "rename", "aria-label": "Name",
                             maxlength: "120"});
    box.value = store.conversationTitle(which);
    let isOpen = true;
    const close = (isWanted) => {
        if (isOpen) {
            isOpen = false;
            if (isWanted && box.value.trim()) {
                which.title = box.value.trim();
                save(which);
            }
            open(which);
        }
    };
    box.addEventListener("keydown", (event) => {
        if ((event.key === "Enter" && !event.isComposing) || event.key === "Escape") {
            event.preventDefault();
            event.stopPropagation();
            close(event.key === "Enter");
        }
    });
    box.addEventListener("blur", () => close(true));
    item.replaceChildren(box);
    box.focus();
    box.select();
}

function remove(which) {
    answers.get(which.id)?.stop();
    store.conversationDelete(which.id);
    const next = store.conversationsLoad()[0];
    open(next ?? store.conversationNew());
    toast("Conversation deleted.", "Undo", () => {
        save(which);
        open(which);
    });
}

// Imports a file of conversations. Says what happened in the dialog, which stays open.
async function importFile(file) {
    const note = byId("import-note");
    const tell = (text) => {
        note.textContent = text;
        announce(text);
    };
    try {
        if (file.size > MAX_FILE_BYTES) {
            throw new ImportError("it is larger than 32 MiB");
        }
        const {saved, nSame, isFull} = saveImported(conversationsOf(await file.text()));
        const parts = [`${saved.length} imported`];
        parts.push(...(nSame ? [`${nSame} already here`] : []));
        parts.push(...(isFull ? ["the browser's storage is full, the others are left out"] : []));
        tell(`${file.name}: ${parts.join("; ")}.`);
        if (saved.length && !answers.has(conversation.id)) {
            open(saved[0]);
        } else {
            showList();
        }
    } catch (error) {
        const reason = error instanceof ImportError ? error.message
                                                    : `it cannot be read (${error})`;
        tell(`${file.name} was not imported: ${reason}.`);
    }
}

// ---- asking and answering ---------------------------------------------------------------------

function begin(node, isContinued = false) {
    const owner = conversation;
    let savedMs = performance.now();
    let isDrawing = false;
    // Drawing takes at most a fourth of the time, however long the answer is.
    let drawMs = 0;
    const draw = () => {
        const startMs = performance.now();
        isDrawing = false;
        if (conversation === owner) {
            list.update(node);
            followEnd();
        }
        drawMs = performance.now() - startMs;
    };
    const answer = new Answer({
        conversation: owner, node, settings: {...settings}, isContinued,
        changed: () => {
            if (performance.now() - savedMs > SAVE_MS) {
                savedMs = performance.now();
                save(owner);
            }
            if (!isDrawing) {
                isDrawing = true;
                setTimeout(() => requestAnimationFrame(draw), drawMs > 4 ? 3 * drawMs : 0);
            }
        },
        ended: () => {
            answers.delete(owner.id);
            // Does not restore a conversation that was deleted in the meantime.
            if (conversation === owner || store.conversationLoad(owner.id)) {
                save(owner);
            }
            draw();
            showComposer();
            showContext();
            panel.ask();
            sayEnd(node);
        },
    });
    answers.set(owner.id, answer);
    save(owner);
    open(owner);
    list.update(node);
    announce("Waiting for the answer.");
    answer.run();
    panel.ask();
}

// Announces the whole answer once, not word by word.
function sayEnd(node) {
    if (node.error) {
        return; // the notice is an alert
    }
    const text = node.content.replace(/\s+/g, " ").trim();
    const start = text.length > 400 ? `${text.slice(0, 400)} …` : text;
    announce(node.state === "stopped" ? "Stopped." : `Answer: ${start}`);
}

function ask(parent, text, files = []) {
    const question = store.add(conversation, parent, {
        role: "user", content: text, ...(files.length ? {attachments: files} : {})});
    begin(store.add(conversation, question, {role: "assistant", state: "streaming"}));
}

function send() {
    const text = input.value.trim();
    if ((!text && !attachments.files.length) || answers.has(conversation.id)) {
        return;
    }
    input.value = "";
    grow();
    ask(store.path(conversation).at(-1) ?? null, text, attachments.take());
}

function act(name, node) {
    const asks = ["regenerate", "retry", "edit", "continue"].includes(name);
    if (asks && answers.has(conversation.id)) {
        return;
    }
    const parent = conversation.nodes.find((n) => n.id === node.parent) ?? null;
    switch (name) {
    case "choose":
        store.choose(conversation, node);
        save(conversation);
        open(conversation);
        break;
    case "edit":
        list.edit(node, (text) => ask(parent, text, node.attachments));
        break;
    case "continue":
        if (canContinue(node)) {
            begin(node, true);
        }
        break;
    case "retry":
        // Replaces an empty answer instead of adding a version.
        if (node.content || node.reasoning) {
            begin(store.add(conversation, parent, {role: "assistant", state: "streaming"}));
        } else {
            begin(node);
        }
        break;
    case "regenerate":
        begin(store.add(conversation, parent, {role: "assistant", state: "streaming"}));
        break;
    case "new":
        openNew();
        break;
    case "key":
        openSettings("s-key");
        break;
    default:
        openSettings("s-temperature");
    }
}

function stop() {
    answers.get(conversation.id)?.stop();
}

// ---- the message box --------------------------------------------------------------------------

function grow() {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight, 240)}px`;
}

function showComposer() {
    const isBusy = answers.has(conversation.id);
    const hadFocus = document.activeElement === byId("stop") ||
        document.activeElement === byId("send");
    byId("stop").hidden = !isBusy;
    byId("send").hidden = isBusy;
    byId("send").disabled = !input.value.trim() && !attachments.files.length;
    if (hadFocus) {
        input.focus();
    }
}

function showContext() {
    const shown = store.path(conversation);
    const last = shown.findLast((n) => n.usage);
    const used = last ? (last.usage.prompt_tokens ?? 0) + (last.usage.completion_tokens ?? 0) : 0;
    const room = `${nContext.toLocaleString("en")} tokens`;
    // The usage of an incomplete answer is unknown.
    const text = last === shown.at(-1) ? `${used.toLocaleString("en")} of ${room} used` :
        used ? `more than ${used.toLocaleString("en")} of ${room} used` : `room for ${room}`;
    setText(byId("context"), nContext ? text : "");
    byId("context").classList.toggle("full", nContext > 0 && used > 0.9 * nContext);
}

let isAtEnd = true;
function followEnd() {
    if (isAtEnd) {
        scroll.scrollTop = scroll.scrollHeight;
    }
    byId("jump").hidden = isAtEnd;
}

function onInputKey(event) {
    if (isEnterToSend(event)) {
        event.preventDefault();
        send();
    } else if (event.key === "ArrowUp" && input.value === "") {
        const last = store.path(conversation).findLast((n) => n.role === "user");
        if (last) {
            event.preventDefault();
            act("edit", last);
        }
    }
}

// A file that is dropped anywhere is attached; the browser would open it instead of the page.
function onDrag(event) {
    if (event.dataTransfer?.types.includes("Files")) {
        event.preventDefault();
        const isOver = event.type === "dragover" && !document.querySelector("dialog[open]");
        byId("composer").classList.toggle("drop", isOver);
        if (event.type === "drop" && !document.querySelector("dialog[open]")) {
            attachments.add(event.dataTransfer.files);
            input.focus();
        }
    }
}

function onPaste(event) {
    const {files} = event.clipboardData;
    const text = event.clipboardData.getData("text/plain");
    if (files.length && !text) {
        event.preventDefault();
        attachments.add(files);
    } else if (text.length > LONG_PASTE && attachments.addText(text)) {
        event.preventDefault();
        const pasted = attachments.files.at(-1);
        toast("The long text was attached as a file.", "Insert it instead", () => {
            attachments.remove(pasted);
            input.setRangeText(text, input.selectionStart, input.selectionEnd, "end");
            grow();
            showComposer();
        });
    }
}

function onPageKey(event) {
    const isTyping = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
        if (document.body.classList.contains("with-drawer")) {
            closeDrawers();
        } else {
            stop();
        }
    } else if (!isTyping && !event.ctrlKey && !event.altKey && !event.metaKey) {
        if (event.key === "?") {
            byId("help").showModal();
        } else if (event.key === "/") {
            event.preventDefault();
            input.focus();
        }
    }
}

// ---- settings, theme, drawers -----------------------------------------------------------------

function openSettings(focus) {
    const form = byId("settings-form");
    for (const name of [...store.NUMBERS, "system", "key", "thinking"]) {
        form.elements[name].value = settings[name] ?? "";
    }
    byId("import-note").textContent = "";
    byId("settings").showModal();
    byId(focus).focus();
    showDefaults(form, settings.key);
}

function takeSetting(event) {
    const {name, value, validity} = event.target;
    if (!name || !validity.valid) {
        return;
    }
    if (!store.NUMBERS.includes(name)) {
        settings[name] = name === "key" ? value.trim() : value;
    } else if (value === "") {
        delete settings[name];
    } else {
        settings[name] = Number(value);
    }
    store.settingsSave(settings);
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const THEMES = {"": "system", light: "light", dark: "dark"};

function showTheme() {
    const theme = store.themeLoad();
    const shown = theme in THEMES ? theme : "";
    if (shown) {
        document.documentElement.dataset.theme = shown;
    } else {
        delete document.documentElement.dataset.theme;
    }
    byId("toggle-theme").setAttribute("aria-label", `Theme: ${THEMES[shown]}`);
    byId("toggle-theme").title = `Theme: ${THEMES[shown]}`;
    panel.setDark(shown ? shown === "dark" : systemDark.matches);
}

function nextTheme() {
    // Starts with the theme that differs from the system's.
    const order = systemDark.matches ? ["", "light", "dark"] : ["", "dark", "light"];
    store.themeSave(order[(order.indexOf(store.themeLoad()) + 1) % 3]);
    showTheme();
    announce(`Theme: ${THEMES[store.themeLoad()]}`);
}

// Below these widths the side columns are drawers over the chat.
const isNarrow = matchMedia("(max-width: 759px)");
const isMiddling = matchMedia("(max-width: 1099px)");

function openDrawer(name) {
    document.body.classList.add("with-drawer", `with-${name}`);
    byId("shade").hidden = false;
    showPanel();
}

function closeDrawers() {
    const which = document.body.classList.contains("with-engine") ? "toggle-engine" : "menu";
    if (document.body.classList.contains("with-drawer")) {
        document.body.classList.remove("with-drawer", "with-engine", "with-sidebar");
        byId("shade").hidden = true;
        showPanel();
        byId(which).focus();
    }
}

function showPanel() {
    const isDrawer = isMiddling.matches;
    const isOpen = isDrawer ? document.body.classList.contains("with-engine") : store.panelLoad();
    document.body.classList.toggle("without-engine", !isOpen);
    byId("toggle-engine").setAttribute("aria-expanded", String(isOpen));
    byId("menu").setAttribute("aria-expanded",
                              String(document.body.classList.contains("with-sidebar")));
    // Keeps the keyboard out of what a drawer covers.
    byId("chat").inert = document.body.classList.contains("with-drawer");
    panel.isOpen = isOpen;
    panel.redraw();
}

function toggleEngine() {
    if (!isMiddling.matches) {
        store.panelSave(!store.panelLoad());
        showPanel();
    } else if (document.body.classList.contains("with-engine")) {
        closeDrawers();
    } else {
        openDrawer("engine");
        byId("close-engine").focus();
    }
    panel.ask();
}

function enlargeMap() {
    byId("map-large").append(byId("map-part"));
    byId("map-dialog").showModal();
    panel.map.draw();
}

// ---- putting it together ----------------------------------------------------------------------

const panel = new Panel({
    key: () => settings.key,
    state: (name, text) => {
        byId("dot").dataset.state = name;
        setText(byId("model-state"), text);
        if (text && !panel.modelName) {
            setText(byId("model-name"), "server");
        }
    },
    context: (n) => {
        if (n !== nContext && n > 0) {
            nContext = n;
            showContext();
        }
    },
});

function listen() {
    const on = (id, type, f) => byId(id).addEventListener(type, f);
    on("new", "click", openNew);
    on("stop", "click", stop);
    on("composer", "submit", (event) => {
        event.preventDefault();
        send();
    });
    on("input", "keydown", onInputKey);
    on("input", "input", () => {
        grow();
        showComposer();
    });
    on("open-settings", "click", () => openSettings("s-system"));
    on("settings-form", "input", takeSetting);
    on("settings", "close", () => panel.ask());
    on("settings-reset", "click", () => {
        for (const name of [...store.NUMBERS, "system", "thinking"]) {
            delete settings[name];
        }
        Object.assign(settings, {system: "", thinking: ""});
        store.settingsSave(settings);
        byId("settings").close();
        openSettings("s-system");
    });
    on("export-all", "click", () => download("flashmoe-conversations.json",
                                             store.conversationsLoad()));
    on("import", "click", () => byId("import-file").click());
    on("import-file", "change", async (event) => {
        const [file] = event.target.files;
        if (file) {
            await importFile(file);
        }
        event.target.value = "";
    });
    on("search", "input", onSearch);
    on("model", "click", () => openCard(settings.key));
    on("attach", "click", () => byId("attach-files").click());
    on("attach-files", "change", async (event) => {
        await attachments.add(Array.from(event.target.files));
        event.target.value = "";
        input.focus();
    });
    on("input", "paste", onPaste);
    for (const type of ["dragover", "dragleave", "drop"]) {
        document.addEventListener(type, onDrag);
    }
    on("open-help", "click", () => byId("help").showModal());
    on("toggle-theme", "click", nextTheme);
    on("toggle-engine", "click", toggleEngine);
    on("close-engine", "click", closeDrawers);
    on("menu", "click", () => {
        openDrawer("sidebar");
        byId("new").focus();
    });
    on("shade", "click", closeDrawers);
    on("open-map", "click", enlargeMap);
    on("map-dialog", "close", () => {
        byId("map-home").append(byId("map-part"));
        panel.map.draw();
    });
    on("jump", "click", () => {
        isAtEnd = true;
        followEnd();
        input.focus();
    });
    on("scroll", "scroll", () => {
        isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
        byId("jump").hidden = isAtEnd;
    });
    document.addEventListener("keydown", onPageKey);
    systemDark.addEventListener("change", showTheme);
    for (const width of [isNarrow, isMiddling]) {
        width.addEventListener("change", () => {
            closeDrawers();
            showPanel();
        });
    }
    window.addEventListener("pagehide", () => {
        for (const answer of answers.values()) {
            store.conversationSave(answer.conversation);
        }
        isLeaving = true;
    });
    window.addEventListener("pageshow", () => (isLeaving = false));
    store.onOtherTab((id) => {
        if (id === conversation.id && !answers.has(id)) {
            open(store.conversationLoad(id) ?? conversation);
        } else {
            showList();
        }
    });
}

function start() {
    byId("suggestions").append(...EXAMPLES.map((text) => el("li", {},
        el("button", {type: "button", onclick: () => {
            input.value = text;
            send();
        }}, text))));
    listen();
    input.enterKeyHint = hasTouchKeyboard() ? "enter" : "send";
    open(store.conversationLoad(store.currentLoad()) ?? store.conversationNew());
    showTheme();
    showPanel();
    grow();
    if (!isNarrow.matches) {
        input.focus();
    }
    panel.ask();
}

start();
