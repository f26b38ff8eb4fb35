// DOM helpers. Text always becomes text nodes; nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

// el("button", {class: "icon", onclick: f, "aria-label": "Stop"}, child, "text", [children], ...)
// Pass long lists as arrays: the number of arguments of a call is limited.
export function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") {
            node.addEventListener(name.slice(2), value);
        } else if (value === true) {
            node.setAttribute(name, "");
        } else if (value !== false && value !== null && value !== undefined) {
            node.setAttribute(name, value);
        }
    }
    for (const child of children.flat()) {
        node.append(child);
    }
    return node;
}

export function icon(name) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const use = document.createElementNS(space, "use");
    use.setAttribute("href", `#i-${name}`);
    svg.setAttribute("aria-hidden", "true");
    svg.append(use);
    return svg;
}

export function iconButton(name, label, onclick) {
    return el("button", {type: "button", class: "icon small", "aria-label": label, title: label,
                         onclick}, icon(name));
}

// Phones have no key for a new line besides Enter.
const isTouch = matchMedia("(hover: none) and (pointer: coarse)");

// Returns whether a key sends the message: Enter, on a phone only with Ctrl or the Command key.
export function isEnterToSend(event) {
    return event.key === "Enter" && !event.shiftKey && !event.isComposing &&
        (!isTouch.matches || event.ctrlKey || event.metaKey);
}

export const hasTouchKeyboard = () => isTouch.matches;

// Sets a text only if it differs, to avoid needless announcements and layout.
export function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

// Pages that are not from localhost or HTTPS must copy the old way.
export async function copyText(text) {
    if (navigator.clipboard && window.isSecureContext) {
        await navigator.clipboard.writeText(text);
        return;
    }
    const area = el("textarea", {class: "hidden", readonly: true});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) {
        throw new Error("the browser refuses to copy");
    }
}

// Returns a button that copies and briefly shows whether it worked.
export function copyButton(label, text) {
    const button = iconButton("copy", label, async () => {
        let shown = ["check", "Copied"];
        try {
            await copyText(text());
        } catch {
            shown = ["close", "Copying failed"];
        }
        button.replaceChildren(icon(shown[0]));
        button.setAttribute("aria-label", shown[1]);
        announce(shown[1]);
        setTimeout(() => {
            button.replaceChildren(icon("copy"));
            button.setAttribute("aria-label", label);
        }, 1500);
    });
    return button;
}

// Announces a text to screen readers, politely.
export function announce(text) {
    byId("announce").textContent = text;
}

export function download(name, value) {
    const url = URL.createObjectURL(
        new Blob([JSON.stringify(value, null, 2) + "\n"], {type: "application/json"}));
    el("a", {href: url, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Shows a brief message at the bottom, with one action.
let toastTimer = 0;
export function toast(text, action = "", onclick = null) {
    const box = byId("toast");
    const button = byId("toast-action");
    byId("toast-text").textContent = text;
    button.textContent = action;
    button.hidden = !action;
    button.onclick = () => {
        box.hidden = true;
        onclick?.();
    };
    box.hidden = false;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => (box.hidden = true), 8000);
}
