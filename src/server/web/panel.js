// The live panel: polls the server about twice a second while the page is visible, and less often
// while the server is idle or does not respond.

import {getJson} from "./api.js";
import {byId, setText} from "./dom.js";
import {ExpertMap} from "./experts.js";
import {RankTable} from "./ranks.js";

const BUSY_MS = 500, IDLE_MS = 1000, GONE_MS = 2000;
const SAMPLES = 60;

const GIB = 2 ** 30, MIB = 2 ** 20;
const isFigure = (x) => typeof x === "number" && Number.isFinite(x);

// Formats with three significant digits.
function figures(x) {
    if (!isFigure(x)) {
        return "–";
    }
    if (x === 0) {
        return "0";
    }
    return x >= 100 ? Math.round(x).toLocaleString("en") : x.toFixed(x >= 10 ? 1 : 2);
}

const percent = (share) => isFigure(share) ? (share * 100).toFixed(share >= 0.9995 ? 0 : 1) : "–";

class Graph {
    constructor(canvas, isBars = false) {
        Object.assign(this, {canvas, isBars, values: []});
    }

    push(value) {
        this.values.push(isFigure(value) ? value : 0);
        this.values.splice(0, this.values.length - SAMPLES);
        this.draw();
    }

    draw() {
        const {canvas, values} = this;
        const scale = window.devicePixelRatio || 1;
        const width = Math.round(canvas.clientWidth * scale);
        const height = Math.round(canvas.clientHeight * scale);
        if (!width || !height) {
            return;
        }
        canvas.width = width;
        canvas.height = height;
        const context = canvas.getContext("2d");
        const most = Math.max(...values, Number.MIN_VALUE);
        context.strokeStyle = context.fillStyle = getComputedStyle(canvas).color;
        const n = this.isBars ? values.length : SAMPLES;
        const step = (width - (this.isBars ? 0 : 2 * scale)) / (n - (this.isBars ? 0 : 1));
        const top = (v) => height - scale - v / most * (height - 2 * scale);
        if (this.isBars) {
            for (const [i, v] of values.entries()) {
                const tall = Math.max(v / most * height, v > 0 ? scale : 0);
                context.fillRect(Math.round(i * step), height - tall,
                                 Math.max(1, Math.round(step) - scale), tall);
            }
            return;
        }
        context.lineWidth = 1.25 * scale;
        context.lineJoin = "round";
        const x = (i) => width - scale - (values.length - 1 - i) * step;
        context.beginPath();
        values.forEach((v, i) => context.lineTo(x(i), top(v)));
        context.stroke();
        if (values.length > 1) {
            context.lineTo(width - scale, height);
            context.lineTo(x(0), height);
            context.globalAlpha = 0.14;
            context.fill();
        }
    }
}

export class Panel {
    #timer = 0;
    #isAsking = false;

    // state(name, text): "ready", "busy", "gone" or "locked"; context(n): the tokens that fit.
    constructor({key, state, context}) {
        Object.assign(this, {key, state, context});
        this.isOpen = true;
        this.modelName = "";
        this.graphs = {
            speed: new Graph(byId("g-speed")), prefill: new Graph(byId("g-prefill")),
            disk: new Graph(byId("g-disk")), turnover: new Graph(byId("g-turnover"), true),
        };
        this.map = new ExpertMap({
            canvas: byId("map"), point: byId("map-point"), summary: byId("map-summary"),
            size: byId("map-size"), turnover: byId("turnover-text"),
            legend: [byId("legend-gpu"), byId("legend-memory"), byId("help-gpu")],
        });
        this.ranks = new RankTable();
        document.addEventListener("visibilitychange", () => this.ask());
    }

    setDark(isDark) {
        this.map.isDark = isDark;
        this.redraw();
    }

    redraw() {
        this.map.draw();
        Object.values(this.graphs).forEach((graph) => graph.draw());
    }

    // Polls now and keeps polling.
    async ask() {
        clearTimeout(this.#timer);
        if (this.#isAsking || document.hidden) {
            return;
        }
        this.#isAsking = true;
        let wait = GONE_MS;
        try {
            const stats = await getJson("stats", {key: this.key()});
            if (!this.modelName) {
                this.modelName = stats.model || await this.#askName();
            }
            this.#show(stats);
            if (this.isOpen) {
                await this.#askExperts();
            }
            wait = stats.active > 0 || stats.queued > 0 ? BUSY_MS : IDLE_MS;
        } catch (error) {
            this.#showTrouble(error);
        }
        this.#isAsking = false;
        this.#timer = setTimeout(() => this.ask(), wait);
    }

    async #askExperts() {
        try {
            this.map.update(await getJson("experts", {key: this.key()}));
            this.graphs.turnover.values = this.map.changesPerSecond();
            this.graphs.turnover.draw();
        } catch (error) {
            if (error.kind !== "refused") {
                throw error;
            }
            setText(byId("map-summary"), `The server has no expert map: ${error.message}`);
        }
    }

    async #askName() {
        const models = await getJson("v1/models", {key: this.key()});
        return models.data?.[0]?.id ?? "model";
    }

    #showTrouble(error) {
        if (error.kind === "key") {
            this.state("locked", "needs an API key");
        } else if (error.kind === "unreachable") {
            this.state("gone", "not reachable");
        } else {
            this.state("gone", error.message);
        }
        setText(byId("requests"), "");
        this.#figures({});
    }

    #show(stats) {
        const {active = 0, queued = 0} = stats;
        const requests = `${active} active` + (queued ? `, ${queued} queued` : "");
        this.state(active ? "busy" : "ready", "");
        this.context(stats.n_context);
        setText(byId("model-name"), this.modelName);
        setText(byId("requests"), requests);
        this.graphs.speed.push(stats.tokens_per_s);
        this.graphs.prefill.push(stats.prefill_tokens_per_s);
        this.graphs.disk.push(stats.read_bytes_per_s / 1e9);
        this.#figures(stats);
        this.ranks.update(stats.ranks);
    }

    #figures(stats) {
        setText(byId("m-speed"), figures(stats.tokens_per_s));
        setText(byId("m-prefill"), figures(stats.prefill_tokens_per_s));
        setText(byId("m-disk"), figures(stats.read_bytes_per_s / 1e9));
        setText(byId("m-hits"), percent(stats.hit_rate));
        setText(byId("m-limit"), percent(stats.limit_share));
        const budget = stats.memory_budget_bytes;
        const [unit, name] = budget < GIB ? [MIB, "MiB"] : [GIB, "GiB"];
        setText(byId("m-memory"), figures(stats.memory_bytes / unit));
        setText(byId("m-budget"), isFigure(budget) ? `of ${figures(budget / unit)} ${name}` : "");
        this.#bar("hits", stats.hit_rate);
        this.#bar("limit", stats.limit_share);
        this.#bar("memory", stats.memory_bytes / stats.memory_budget_bytes);
    }

    #bar(name, share) {
        const bar = byId(`b-${name}`);
        bar.style.width = `${isFigure(share) ? Math.min(Math.max(share, 0), 1) * 100 : 0}%`;
    }
}
