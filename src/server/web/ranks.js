// The ranks of a model on several machines: a table with a row for each. The server counts since
// its start; the table shows the last seconds.

import {byId, el, setText} from "./dom.js";

const WINDOW_MS = 3000;

const isFigure = (x) => typeof x === "number" && Number.isFinite(x);
const digits = (x) => !isFigure(x) ? "–" : x >= 99.95 ? Math.round(x).toLocaleString("en")
                                                     : x.toFixed(x >= 9.995 || x === 0 ? 0 : 1);
const share = (part, all) => all > 0 ? part / all : undefined;

// What a rank did between two answers of the server, `seconds` apart.
function between(before, now, seconds) {
    const of = (name) => now[name] - before[name];
    const hits = of("n_expert_hits"), misses = of("n_expert_misses");
    const isNew = hits + misses > 0;
    return {
        // Nothing was computed just now: the hits since the start.
        hits: isNew ? share(hits, hits + misses)
                    : share(now.n_expert_hits, now.n_expert_hits + now.n_expert_misses),
        disk: of("bytes_read") / 1e6 / seconds,
        wait: Math.min(of("read_wait_s") / seconds, 1),
        busy: Math.min(of("busy_s") / seconds, 1),
        sent: of("bytes_sent") / 1e3 / seconds,
    };
}

export class RankTable {
    #answers = []; // of the last seconds, the oldest first
    #rows = [];

    update(ranks = []) {
        byId("ranks").hidden = ranks.length === 0;
        if (ranks.length === 0) {
            this.#answers = [];
            return;
        }
        const at = performance.now();
        this.#answers.push({at, ranks});
        while (this.#answers.length > 2 && this.#answers[1].at < at - WINDOW_MS) {
            this.#answers.shift();
        }
        if (this.#rows.length !== ranks.length) {
            this.#makeRows(ranks);
        }
        const first = this.#answers[0], seconds = (at - first.at) / 1000;
        ranks.forEach((rank, i) => this.#show(this.#rows[i], rank, first.ranks[i], seconds));
        this.#showNetwork(first.ranks[0], ranks[0]);
    }

    #makeRows(ranks) {
        this.#answers.splice(0, this.#answers.length - 1);
        this.#rows = ranks.map((rank) => {
            const cells = Object.fromEntries(
                ["layers", "hits", "disk", "wait", "busy", "sent"].map((name) => [name, el("td")]));
            const host = el("span", {class: "rank-host", title: rank.host}, rank.host);
            const row = el("tr", {}, el("th", {scope: "row"}, `${rank.rank} `, host),
                           Object.values(cells));
            return {row, cells};
        });
        byId("ranks-rows").replaceChildren(...this.#rows.map(({row}) => row));
        setText(byId("ranks-count"), `${ranks.length} ranks`);
    }

    #show({cells}, now, before, seconds) {
        const last = now.first_layer + now.n_layers - 1;
        const did = seconds > 0 ? between(before, now, seconds) : between(now, now, 1);
        setText(cells.layers, now.n_layers > 1 ? `${now.first_layer}–${last}` : `${last}`);
        setText(cells.hits, digits(did.hits * 100));
        setText(cells.disk, digits(did.disk));
        setText(cells.wait, digits(did.wait * 100));
        setText(cells.busy, digits(did.busy * 100));
        setText(cells.sent, digits(did.sent));
    }

    // Known of passes that are under way one at a time: others wait for each other, too.
    #showNetwork(before, now) {
        const passes = now.n_lone_passes - before.n_lone_passes;
        const ms = passes > 0 ? 1000 * (now.network_s - before.network_s) / passes : NaN;
        setText(byId("ranks-network"), `Between the machines: ${digits(ms)} ms a pass`);
    }
}
