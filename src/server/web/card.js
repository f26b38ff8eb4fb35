// The model's card: what it is, its formats, how the memory is divided, and its defaults.

import {getJson} from "./api.js";
import {byId, el} from "./dom.js";

const KIB = 1024;
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);

export function bytesText(n) {
    if (!isNumber(n)) {
        return "–";
    }
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    const i = Math.min(Math.floor(Math.log(Math.max(n, 1)) / Math.log(KIB)), units.length - 1);
    return `${i ? (n / KIB ** i).toFixed(1) : n} ${units[i]}`;
}

const count = (n) => isNumber(n) ? n.toLocaleString("en") : "–";

function parametersText(n) {
    return isNumber(n) ? (n >= 1e9 ? `${(n / 1e9).toFixed(1)} billion`
                                   : `${(n / 1e6).toFixed(1)} million`) : "–";
}

function section(title, rows) {
    const good = rows.filter(([, value]) => value !== null && value !== undefined);
    return [el("h3", {}, title), el("table", {class: "card-table"},
        el("caption", {class: "hidden"}, title),
        el("tbody", {}, good.map(([name, value, note]) => el("tr", {},
            el("th", {scope: "row"}, name),
            el("td", {}, value, note ? el("span", {class: "card-note"}, note) : "")))))];
}

function modelRows({architecture, sizes = {}, n_ctx: nContext}) {
    const experts = sizes.n_experts > 0
        ? `${count(sizes.n_experts)} per layer; a token uses ${count(sizes.n_experts_per_token)}`
        : "none";
    return [
        ["Family", architecture ?? "–"], ["Parameters", parametersText(sizes.n_parameters)],
        ["Layers", count(sizes.n_layers)], ["Experts", experts],
        ["Context", `${count(nContext)} tokens`,
         sizes.max_context > nContext ? `the model allows ${count(sizes.max_context)}` : ""],
        ["File", sizes.container ?? "–", sizes.has_checksums ? "with checksums" : ""],
        ["Size", bytesText(sizes.dense_bytes + sizes.experts_bytes),
         `${bytesText(sizes.experts_bytes)} of it experts`],
    ];
}

function formatRows(formats = []) {
    return formats.map((format) => [format.name, bytesText(format.n_bytes),
                                    format.is_expert ? "experts" : "dense weights"]);
}

function memoryRows({memory = {}}) {
    return [
        ["Budget", bytesText(memory.budget_bytes), `at least ${bytesText(memory.min_bytes)}`],
        ["Experts in memory", bytesText(memory.cache_bytes),
         `room for ${count(memory.n_slots)}`],
        ["Dense weights", bytesText(memory.dense_bytes)],
        ["Conversations", bytesText(memory.kv_bytes),
         `up to ${bytesText(memory.kv_max_bytes)} when all are full`],
        ["Work space", bytesText(memory.scratch_bytes)],
        ["Program", bytesText(memory.program_bytes)],
    ];
}

function defaultRows({sampling = {}, max_tokens: most, approximate, routes}) {
    const off = (value, none) => value === none ? "off" : String(value ?? "–");
    return [
        ["Temperature", String(sampling.temperature ?? "–")],
        ["Top p", off(sampling.top_p, 1)], ["Top k", off(sampling.top_k, 0)],
        ["Min p", off(sampling.min_p, 0)],
        ["Answer length", isNumber(most) ? `at most ${count(most)} tokens` : "up to the context"],
        ["Approximations", approximate ?? "none"], ["Routers replaced by", routes],
    ];
}

function serverRows(props) {
    return [["Flash-MoE", props.version ?? "–"],
            ["Answers at a time", count(props.total_slots), `${count(props.queue)} more wait`],
            ["Processor", props.cpu_level ? `${count(props.n_threads)} threads, ${props.cpu_level}`
                                          : `${count(props.n_threads)} threads`],
            ["GPU", props.gpu]];
}

// Fills and opens the dialog.
export async function openCard(key) {
    const place = byId("card-content");
    place.replaceChildren(el("p", {}, "Asking the server …"));
    byId("card").showModal();
    try {
        const props = await getJson("props", {key});
        byId("card-title").textContent = props.model ?? "Model";
        place.replaceChildren(
            ...section("Model", modelRows(props)),
            ...section("Formats of the weights", formatRows(props.formats)),
            ...section("Memory", memoryRows(props)),
            ...section("Defaults", defaultRows(props)),
            ...section("Server", serverRows(props)));
    } catch (error) {
        place.replaceChildren(el("p", {role: "alert"},
                                 `The server did not describe its model: ${error.message}`));
    }
}

// Shows the model's defaults where a setting is empty.
export async function showDefaults(form, key) {
    try {
        const {sampling = {}, max_tokens: most} = await getJson("props", {key});
        for (const name of ["temperature", "top_p", "top_k", "min_p"]) {
            const value = sampling[name];
            form.elements[name].placeholder = isNumber(value) ? String(value) : "";
        }
        form.elements.max_tokens.placeholder = isNumber(most) ? String(most) : "no limit";
    } catch {
        // Without the server the fields stay empty.
    }
}
