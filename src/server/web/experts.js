// The expert map: one cell per expert. Colour shows heat, brightness shows where it is (on disk, in
// memory, in a GPU's memory), and a mark shows a change in the last seconds. Cells are whole device
// pixels. A layer uses the number of lines that gives the largest cells, so that 8 x 64 and
// 94 x 512 both fill the space.

import {setText} from "./dom.js";

const CHANGED_MS = 5000;
const HISTORY_MS = 30000;
const WARMED = 56; // of 255: minimum heat gain within CHANGED_MS that counts as a change
const LOADED = 1, DROPPED = 2, WARM = 3;
// Colours of the marks. A loaded expert matters more than the one evicted for it.
const STRENGTH = [0, 1, 0.55, 0.6];
const LARGEST_CELL = 14;
const ON_DISK = 0, IN_MEMORY = 1, ON_GPU = 2;
const PLACES = ["on disk", "in memory", "in the GPU's memory"];

const DARK = {
    ground: [23, 26, 29], marks: [null, [140, 216, 255], [255, 112, 146], [255, 255, 255]],
    ramp: [[53, 61, 69], [34, 96, 98], [47, 143, 121], [196, 163, 72], [246, 160, 72],
           [255, 228, 170]],
    away: 0.3, below: 0.62, cursor: [255, 255, 255],
};
const LIGHT = {
    ground: [247, 247, 245], marks: [null, [0, 92, 200], [200, 16, 84], [20, 24, 28]],
    ramp: [[205, 211, 214], [143, 200, 190], [52, 150, 130], [214, 160, 40], [214, 96, 20],
           [140, 28, 20]],
    away: 0.26, below: 0.6, cursor: [10, 12, 14],
};

const blend = (a, b, share) => a.map((v, i) => v + (b[i] - v) * share);
const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;

// 256 colours for each place. `below` is for memory where a GPU has the brightest cells.
function coloursOf(theme) {
    const stops = theme.ramp.length - 1;
    const colours = [];
    for (let heat = 0; heat < 256; heat++) {
        const at = heat / 255 * stops;
        const low = Math.min(Math.floor(at), stops - 1);
        colours.push(blend(theme.ramp[low], theme.ramp[low + 1], at - low));
    }
    const dimmed = (share) => colours.map((c) => blend(theme.ground, c, share));
    return {full: colours, below: dimmed(theme.below), away: dimmed(theme.away)};
}

// Computes the layout of layers x experts in a box: lines per layer, cell size, gaps, in device
// pixels.
export function layoutOf(nLayers, nExperts, width, height, largest) {
    let best = null;
    for (let lines = 1; lines <= nExperts; lines++) {
        const perLine = Math.ceil(nExperts / lines);
        const cell = Math.min(Math.floor(width / perLine), largest);
        // Allows lines of different lengths only if nothing else fits.
        if (cell < 1 || (best && nExperts % lines !== 0)) {
            continue;
        }
        const gap = cell >= 4 ? 1 : 0;
        const layerGap = lines === 1 ? gap : cell >= 6 ? 4 : cell >= 2 ? 2 : 1;
        const room = Math.floor((height - nLayers * layerGap) / (nLayers * lines));
        const tall = Math.min(room, cell >= 4 ? cell : 2 * cell + 1, largest);
        const score = Math.min(cell, tall);
        const found = {lines, perLine, cellWidth: cell, cellHeight: Math.max(tall, 1), gap,
                       layerGap, score};
        if (!best || score > best.score || (best.perLine * best.lines !== nExperts &&
                                            nExperts % lines === 0 && score >= 1)) {
            best = found;
        }
        if (cell >= largest || tall < 1) {
            break;
        }
    }
    // Distributes remaining pixels over large cells; in small ones this would be visible.
    const wide = width / best.perLine;
    best.pitch = best.cellWidth >= 6 && wide < largest + 1 ? wide : best.cellWidth;
    best.layerHeight = best.lines * best.cellHeight + best.layerGap;
    best.width = Math.ceil(best.pitch * best.perLine);
    best.height = nLayers * best.layerHeight - best.layerGap;
    return best;
}

const HEX = new Uint8Array(128);
for (let i = 0; i < 16; i++) {
    HEX[i.toString(16).charCodeAt(0)] = HEX[i.toString(16).toUpperCase().charCodeAt(0)] = i;
}

// Returns a function that gives the bit of an expert; expert 0 is the highest bit of its row.
function bitsOfHex(rows, nLayers, nExperts) {
    const perLayer = Math.ceil(nExperts / 8);
    const bytes = bytesOfHex(rows, nLayers, perLayer);
    return (layer, expert) => bytes[layer * perLayer + (expert >> 3)] >> (7 - (expert & 7)) & 1;
}

function bytesOfHex(rows, nLayers, bytesPerLayer) {
    const bytes = new Uint8Array(nLayers * bytesPerLayer);
    for (let layer = 0; layer < nLayers; layer++) {
        const row = rows[layer] ?? "";
        const n = Math.min(bytesPerLayer, row.length >> 1);
        for (let i = 0; i < n; i++) {
            bytes[layer * bytesPerLayer + i] =
                HEX[row.charCodeAt(2 * i) & 127] << 4 | HEX[row.charCodeAt(2 * i + 1) & 127];
        }
    }
    return bytes;
}

// Returns the minimum heat of the n hottest experts, never 0.
function borderOf(heat, n) {
    const counts = new Uint32Array(256);
    for (const h of heat) {
        counts[h]++;
    }
    let border = 255;
    for (let above = counts[255]; border > 1 && above < n; above += counts[border]) {
        border--;
    }
    return border;
}

export class ExpertMap {
    #changes = []; // {time, n} per update
    #history = []; // {time, heat}

    // `legend`: items that are shown only where there is a GPU.
    constructor({canvas, point, summary, size, turnover, legend}) {
        Object.assign(this, {canvas, point, summary, size, turnover, legend});
        this.hasGpu = false;
        this.nLayers = 0;
        this.nExperts = 0;
        this.cursor = -1;
        this.isDark = false;
        canvas.addEventListener("pointermove", (event) => this.#setCursor(this.#cellAt(event)));
        canvas.addEventListener("pointerleave", () => this.#setCursor(-1));
        canvas.addEventListener("blur", () => this.#setCursor(-1));
        canvas.addEventListener("focus", () => {
            if (canvas.matches(":focus-visible")) {
                this.#setCursor(Math.max(this.cursor, 0));
            }
        });
        canvas.addEventListener("keydown", (event) => this.#onKey(event));
        new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    }

    // Updates from a response of GET /experts.
    update(data, now = performance.now()) {
        const {n_layers: nLayers, n_experts: nExperts} = data;
        if (!(nLayers > 0 && nExperts > 0)) {
            setText(this.summary, "This model has no experts.");
            return;
        }
        const isHere = bitsOfHex(data.resident, nLayers, nExperts);
        const isOnGpu = bitsOfHex(data.gpu ?? [], nLayers, nExperts);
        const heat = bytesOfHex(data.heat, nLayers, nExperts);
        const n = nLayers * nExperts;
        const places = new Uint8Array(n);
        for (let i = 0; i < n; i++) {
            const layer = Math.floor(i / nExperts);
            places[i] = isOnGpu(layer, i % nExperts) ? ON_GPU
                : isHere(layer, i % nExperts) ? IN_MEMORY : ON_DISK;
        }
        this.hasGpu = Array.isArray(data.gpu);
        for (const item of this.legend) {
            item.hidden = !this.hasGpu;
        }
        if (nLayers !== this.nLayers || nExperts !== this.nExperts) {
            Object.assign(this, {nLayers, nExperts, places, heat,
                                 changedAt: new Float64Array(n).fill(-Infinity),
                                 changeKind: new Uint8Array(n)});
            this.#history = [];
            this.#changes = [];
            this.cursor = -1;
            setText(this.size, `${nLayers} layers × ${nExperts}`);
        }
        this.#noteChanges(places, heat, now);
        this.places = places;
        this.heat = heat;
        this.now = now;
        this.draw();
        this.#describe();
    }

    #heatBefore(now, ms) {
        return this.#history.findLast((past) => now - past.time >= ms)?.heat;
    }

    #noteChanges(places, heat, now) {
        // Ignores changes from a pause in polling; they are not recent.
        const isFresh = now - this.now <= CHANGED_MS;
        this.since = isFresh ? this.since : now;
        const recent = this.#history.filter((past) => past.time >= this.since);
        const before = (recent.findLast((past) => now - past.time >= CHANGED_MS) ??
                        recent[0])?.heat ?? heat;
        let n = 0;
        const note = (i, kind) => {
            this.changedAt[i] = now;
            this.changeKind[i] = kind;
            n++;
        };
        for (let i = 0; isFresh && i < places.length; i++) {
            if ((places[i] === ON_DISK) !== (this.places[i] === ON_DISK)) {
                note(i, places[i] !== ON_DISK ? LOADED : DROPPED);
            } else if (heat[i] - before[i] >= WARMED && now - this.changedAt[i] >= CHANGED_MS) {
                note(i, WARM);
            }
        }
        this.#changes.push({time: now, n});
        this.#history.push({time: now, heat});
        while (now - this.#changes[0].time > 60000) {
            this.#changes.shift();
        }
        while (now - this.#history[0].time > HISTORY_MS) {
            this.#history.shift();
        }
    }

    // Returns the changes per second over the last minute, oldest first.
    changesPerSecond() {
        if (!this.nLayers) {
            return [];
        }
        const seconds = new Array(60).fill(0);
        for (const {time, n} of this.#changes) {
            seconds[59 - Math.min(59, Math.floor((this.now - time) / 1000))] += n;
        }
        return seconds;
    }

    // Returns the share of the hottest experts that were among the hottest a while ago, or null.
    #hotKept(ms) {
        const before = this.#heatBefore(this.now, ms);
        if (!before) {
            return null;
        }
        const n = Math.max(8, Math.round(this.heat.length / 20));
        const borderNow = borderOf(this.heat, n);
        const borderThen = borderOf(before, n);
        let hot = 0, kept = 0, hotThen = 0;
        for (let i = 0; i < this.heat.length; i++) {
            const isHot = this.heat[i] >= borderNow;
            const wasHot = before[i] >= borderThen;
            hot += isHot;
            hotThen += wasHot;
            kept += isHot && wasHot;
        }
        return hot && hotThen ? kept / hot : null;
    }

    #describe() {
        let here = 0, onGpu = 0, changed = 0;
        for (let i = 0; i < this.places.length; i++) {
            here += this.places[i] !== ON_DISK;
            onGpu += this.places[i] === ON_GPU;
            changed += this.now - this.changedAt[i] < CHANGED_MS;
        }
        setText(this.summary, `${here.toLocaleString("en")} of ` +
                `${this.places.length.toLocaleString("en")} experts in memory` +
                (this.hasGpu ? `, ${onGpu.toLocaleString("en")} of them on the GPU; ` : "; ") +
                `${changed.toLocaleString("en")} changed in the last 5 s`);
        const kept = this.#hotKept(20000);
        setText(this.turnover, "Changes per second, last minute" + (kept === null ? "" :
                `; ${Math.round(kept * 100)} % of the hottest unchanged for 20 s`));
        this.#describePoint();
    }

    #describePoint() {
        const i = this.cursor;
        if (i < 0) {
            setText(this.point, "");
            return;
        }
        const layer = Math.floor(i / this.nExperts);
        setText(this.point, `Layer ${layer}, expert ${i % this.nExperts}: ` +
                `heat ${Math.round(this.heat[i] / 2.55)} %, ${PLACES[this.places[i]]}`);
    }

    // ---- drawing ------------------------------------------------------------------------------

    draw() {
        const {canvas} = this;
        const scale = Math.min(window.devicePixelRatio || 1, 3);
        const box = canvas.parentElement;
        const width = Math.floor(box.clientWidth * scale);
        const style = getComputedStyle(box);
        const height = Math.floor((parseFloat(style.getPropertyValue("--map-height")) || 300) *
                                  scale);
        if (!this.nLayers || width < 8) {
            return;
        }
        const isLarge = box.closest("dialog") !== null;
        const layout = layoutOf(this.nLayers, this.nExperts, width, height,
                                Math.round(LARGEST_CELL * (isLarge ? 2 : 1) * scale));
        this.layout = layout;
        this.scale = scale;
        if (canvas.width !== layout.width || canvas.height !== layout.height) {
            canvas.width = layout.width;
            canvas.height = layout.height;
            canvas.style.width = `${layout.width / scale}px`;
            canvas.style.height = `${layout.height / scale}px`;
        }
        const theme = this.isDark ? DARK : LIGHT;
        if (this.colours?.theme !== theme) {
            this.colours = {theme, ...coloursOf(theme)};
        }
        this.#paint(theme, layout);
    }

    #paint(theme, layout) {
        const context = this.canvas.getContext("2d");
        const image = context.createImageData(layout.width, layout.height);
        const pixels = new Uint32Array(image.data.buffer);
        const {full, below, away} = this.colours;
        const ofPlace = [away, this.hasGpu ? below : full, full];
        for (let i = 0; i < this.heat.length; i++) {
            let colour = ofPlace[this.places[i]][this.heat[i]];
            const age = (this.now - this.changedAt[i]) / CHANGED_MS;
            const box = this.#boxOf(i);
            let mark = null;
            if (age < 1) {
                const share = STRENGTH[this.changeKind[i]] * (1 - age * 0.7);
                mark = blend(colour, theme.marks[this.changeKind[i]], share);
            }
            // A small cell has no room for a ring and is filled with the mark's colour.
            if (mark && layout.cellWidth < 6) {
                colour = mark;
                mark = null;
            }
            this.#fill(pixels, layout.width, box, pack(colour));
            if (mark) {
                this.#ring(pixels, layout.width, box, pack(mark), layout.cellWidth >= 12 ? 2 : 1);
            }
        }
        context.putImageData(image, 0, 0);
        if (this.cursor >= 0) {
            const [x, y, w, h] = this.#boxOf(this.cursor);
            context.strokeStyle = `rgb(${theme.cursor.join()})`;
            context.lineWidth = 2;
            context.strokeRect(x - 1, y - 1, w + 2, h + 2);
        }
    }

    #boxOf(i) {
        const {layout} = this;
        const expert = i % this.nExperts;
        const column = expert % layout.perLine;
        const x = Math.floor(column * layout.pitch);
        const right = Math.floor((column + 1) * layout.pitch) - layout.gap;
        const y = Math.floor(i / this.nExperts) * layout.layerHeight +
            Math.floor(expert / layout.perLine) * layout.cellHeight;
        const below = layout.cellHeight >= 4 ? layout.gap : 0;
        return [x, y, right - x, layout.cellHeight - below];
    }

    #fill(pixels, width, [x, y, w, h], colour) {
        for (let row = y; row < y + h; row++) {
            pixels.fill(colour, row * width + x, row * width + x + w);
        }
    }

    #ring(pixels, width, [x, y, w, h], colour, thick) {
        this.#fill(pixels, width, [x, y, w, thick], colour);
        this.#fill(pixels, width, [x, y + h - thick, w, thick], colour);
        this.#fill(pixels, width, [x, y, thick, h], colour);
        this.#fill(pixels, width, [x + w - thick, y, thick, h], colour);
    }

    // ---- pointing -----------------------------------------------------------------------------

    #cellAt(event) {
        if (!this.layout) {
            return -1;
        }
        const {layout} = this;
        const x = event.offsetX * this.scale;
        const y = event.offsetY * this.scale;
        const layer = Math.floor(y / layout.layerHeight);
        const line = Math.floor((y - layer * layout.layerHeight) / layout.cellHeight);
        const column = Math.floor(x / layout.pitch);
        const expert = line * layout.perLine + column;
        const isCell = x >= 0 && y >= 0 && layer < this.nLayers && line < layout.lines &&
            column < layout.perLine && expert < this.nExperts;
        return isCell ? layer * this.nExperts + expert : -1;
    }

    #onKey(event) {
        const {nExperts, layout} = this;
        if (!layout || event.ctrlKey || event.altKey || event.metaKey) {
            return;
        }
        const at = Math.max(this.cursor, 0);
        const to = {
            ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - nExperts, ArrowDown: at + nExperts,
            Home: at - at % nExperts, End: at - at % nExperts + nExperts - 1,
        }[event.key];
        if (to !== undefined) {
            event.preventDefault();
            if (to >= 0 && to < this.heat.length) {
                this.#setCursor(to);
            }
        }
    }

    #setCursor(i) {
        if (i !== this.cursor && this.layout) {
            this.cursor = i;
            this.#describePoint();
            this.#paint(this.isDark ? DARK : LIGHT, this.layout);
        }
    }
}
