// Formulas in TeX as MathML nodes, for untrusted text. Only the elements and attributes named here
// and in math_reader.js are ever made; texts become text nodes. Depth and number of nodes are
// limited. An unknown command is shown as it was written; a formula with an error of syntax, or
// beyond the limits, is not converted at all.

import {ESCAPED, FONTS, FRACTIONS, IGNORED, INFIX, LEFT_OUT, SIZES, SPREAD, STYLES, TABLES, TEXTS,
        TRANSPARENT} from "./math_commands.js";
import {MathReader, Trouble} from "./math_reader.js";
import {ACCENTS, ARROWS, FENCES, FUNCTIONS, INTEGRALS, inFont, LARGE, LETTERS, LIMITS, NEGATED,
        OPERATORS, SPACES, STRETCHED, UNDER, UPRIGHT} from "./math_symbols.js";

const MAX_CHARACTERS = 20000;

class Parser extends MathReader {
    // Reads an argument: a group or one token.
    argument() {
        return this.deeper(() => {
            if (this.take("{")) {
                const atoms = this.atoms((token) => token === "}");
                this.expect("}");
                return this.finish(atoms);
            }
            const token = this.peek();
            if (["", "}", "&", "^", "_"].includes(token)) {
                throw new Trouble("an argument is missing");
            }
            if (/[0-9]/.test(token)) {
                return this.node("mn", null, inFont(this.font, this.next())); // \frac12 is a half
            }
            return this.atom()?.node ?? this.node("mrow");
        });
    }

    option() {
        return this.deeper(() => {
            if (!this.take("[")) {
                return null;
            }
            const atoms = this.atoms((token) => token === "]");
            this.expect("]");
            return this.finish(atoms);
        });
    }

    // ---- rows ---------------------------------------------------------------------------------

    // Reads atoms until a token for which isEnd holds, or the end.
    atoms(isEnd) {
        const list = [];
        const font = this.font;
        for (;;) {
            const token = this.peek();
            const name = token.length > 1 && token[0] === "\\" ? token.slice(1) : "";
            if (token === "" || isEnd(token)) {
                break;
            }
            if (token === "}" || token === "&" || name === "\\" || name === "cr") {
                throw new Trouble(`a stray ${token}`);
            }
            if (token === "^" || token === "_" || token === "'") {
                const base = list.at(-1)?.isSpace || !list.length
                    ? {node: this.node("mrow")} : list.pop();
                list.push(this.scripts(base));
            } else if (name === "limits" || name === "nolimits") {
                this.next();
                if (list.length) {
                    list.at(-1).limits = name === "limits" ? "always" : "";
                }
            } else if (STYLES.has(name)) {
                this.next();
                list.push(this.deeper(() => this.styled(name, isEnd)));
            } else if (INFIX.has(name)) {
                this.next();
                return [this.deeper(() => this.infix(name, list, isEnd))];
            } else if (["rm", "bf", "cal", "it", "sf", "tt"].includes(name)) {
                this.next();
                this.font = {rm: "upright", bf: "bold", cal: "script", it: "italic", sf: "sans",
                             tt: "mono"}[name];
            } else {
                const atom = this.atom();
                if (atom) {
                    list.push(atom);
                }
            }
        }
        this.font = font;
        return list;
    }

    styled(name, isEnd) {
        const [displaystyle, scriptlevel] = STYLES.get(name);
        const inner = this.finish(this.atoms(isEnd));
        return {node: this.node("mstyle", {displaystyle, scriptlevel}, inner)};
    }

    infix(name, before, isEnd) {
        const [open, close] = INFIX.get(name);
        const above = this.finish(before);
        const below = this.finish(this.atoms(isEnd));
        const line = name === "over" ? null : {linethickness: "0"};
        return {node: this.fenced(open, this.node("mfrac", line, above, below), close)};
    }

    fenced(open, inner, close) {
        const nodes = [inner];
        if (open) {
            nodes.unshift(this.node("mo", {stretchy: "true", form: "prefix"}, open));
        }
        if (close) {
            nodes.push(this.node("mo", {stretchy: "true", form: "postfix"}, close));
        }
        return this.row(nodes);
    }

    scripts(base) {
        let below = null, above = null, primes = 0;
        for (;;) {
            const token = this.peek();
            if (token === "'") {
                this.next();
                primes++;
            } else if (token === "_" && below === null) {
                this.next();
                below = this.argument();
            } else if (token === "^" && above === null) {
                this.next();
                above = this.argument();
            } else if (token === "_" || token === "^") {
                throw new Trouble("two scripts at one place");
            } else {
                break;
            }
        }
        if (primes) {
            const marks = this.node("mo", null, "′".repeat(primes));
            above = above ? this.node("mrow", null, marks, above) : marks;
        }
        const tags = base.limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
        const scripts = [below, above].filter(Boolean);
        const tag = tags[scripts.length === 2 ? 2 : below ? 0 : 1];
        if (base.limits === "always" && base.node.localName === "mo") {
            base.node.setAttribute("movablelimits", "false");
        }
        return {...base, node: this.node(tag, null, base.node, ...scripts), limits: ""};
    }

    // Puts the spaces around names of functions, and tells signs from operators.
    finish(atoms) {
        const nodes = [];
        let before = null;
        for (const [i, atom] of atoms.entries()) {
            const after = atoms[i + 1];
            if (atom.isSign && (!before || ["open", "operator"].includes(before.kind))) {
                atom.node.setAttribute("form", "prefix");
            }
            const isApart = (other) => other && !other.kind && !other.isSpace;
            if (atom.isWord && isApart(before) && !before.isWord) {
                nodes.push(this.space(0.1667).node);
            }
            nodes.push(atom.node);
            if (atom.isWord && isApart(after)) {
                nodes.push(this.space(0.1667).node);
            }
            before = atom;
        }
        return this.row(nodes);
    }

    // ---- atoms --------------------------------------------------------------------------------

    // Reads one atom; null: something that shows nothing.
    atom() {
        const token = this.next();
        if (token.length > 1 && token[0] === "\\") {
            return this.command(token.slice(1));
        }
        if (token === "{") {
            return this.deeper(() => {
                const atoms = this.atoms((t) => t === "}");
                this.expect("}");
                const only = atoms.length === 1 && atoms[0].limits ? atoms[0] : {};
                return {...only, node: this.finish(atoms)};
            });
        }
        if (/[0-9]/.test(token)) {
            return this.number(token);
        }
        if (/\p{L}/u.test(token)) {
            return this.letter(token, false);
        }
        switch (token) {
        case "-": return {...this.operator("−"), isSign: true};
        case "+": return {...this.operator("+"), isSign: true};
        case "*": return this.operator("∗");
        case "~": return this.space(0.25);
        case "`": return this.operator("‘");
        case "/": return {...this.operator("/", {lspace: "0em", rspace: "0em"})};
        case "|": case "(": case ")": case "[": case "]": return this.fence(token);
        case ".": return {node: this.node("mo", {lspace: "0em", rspace: "0em"}, ".")};
        case "!": case "?": return {node: this.node("mo", {lspace: "0em", rspace: "0em"}, token)};
        case "\"": case "@": case "%": case "#": case "$":
            return {node: this.node("mi", {mathvariant: "normal"}, token)};
        default: return this.operator(token);
        }
    }

    // Digits with a decimal point between them.
    number(first) {
        const rest = /[0-9]*(?:\.[0-9]+)?/y;
        rest.lastIndex = this.at;
        const more = rest.exec(this.source)[0];
        this.at += more.length;
        return {node: this.node("mn", null, inFont(this.font, first + more))};
    }

    command(name) {
        if (LETTERS.has(name)) {
            return this.letter(LETTERS.get(name), false);
        }
        if (UPRIGHT.has(name)) {
            return this.letter(UPRIGHT.get(name), true);
        }
        if (OPERATORS.has(name)) {
            const isSign = name === "pm" || name === "mp";
            return {...this.operator(OPERATORS.get(name)), isSign};
        }
        if (LARGE.has(name)) {
            return {node: this.node("mo", null, LARGE.get(name)), limits: "auto"};
        }
        if (INTEGRALS.has(name)) {
            return {node: this.node("mo", null, INTEGRALS.get(name))};
        }
        if (FUNCTIONS.has(name)) {
            return {node: this.node("mi", null, name), isWord: true};
        }
        if (LIMITS.has(name)) {
            return this.wordWithLimits(LIMITS.get(name));
        }
        if (FENCES.has(name)) {
            return this.fence(FENCES.get(name));
        }
        if (name === "{" || name === "}") {
            return this.fence(name);
        }
        if (name === "|") {
            return this.fence("‖");
        }
        if (SPACES.has(name)) {
            return this.space(SPACES.get(name));
        }
        if (ESCAPED.has(name)) {
            return {node: this.node("mi", {mathvariant: "normal"}, name)};
        }
        return this.construct(name);
    }

    wordWithLimits(text) {
        return {node: this.node("mo", {movablelimits: "true", lspace: "0em", rspace: "0em"}, text),
                limits: "auto", isWord: true};
    }

    construct(name) {
        if (IGNORED.has(name)) {
            return null;
        }
        if (LEFT_OUT.has(name)) {
            this.raw();
            return null;
        }
        if (TRANSPARENT.has(name)) {
            return {node: this.argument()};
        }
        if (TEXTS.has(name)) {
            return this.textCommand(TEXTS.get(name));
        }
        if (FONTS.has(name)) {
            return {node: this.withFont(FONTS.get(name), () => this.fontArgument())};
        }
        if (FRACTIONS.has(name)) {
            return this.fraction(name);
        }
        if (ACCENTS.has(name) || UNDER.has(name)) {
            return this.accent(name);
        }
        if (ARROWS.has(name)) {
            return this.arrow(ARROWS.get(name));
        }
        if (SIZES.has(name)) {
            const size = SIZES.get(name);
            return this.fence(this.delimiter(),
                              {stretchy: "true", minsize: size, maxsize: size});
        }
        return this.special(name);
    }

    // Letters of \mathrm and the like that follow each other are one word.
    fontArgument() {
        if (this.font !== "upright" || this.peek() !== "{") {
            return this.argument();
        }
        const from = this.at;
        const text = this.raw();
        if (/^[\p{L}\p{N} ]+$/u.test(text)) {
            return this.letter(text.replaceAll(" ", ""), true).node;
        }
        this.at = from;
        return this.argument();
    }

    special(name) {
        switch (name) {
        case "left": return this.leftRight();
        case "begin": return this.deeper(() => this.environment());
        case "sqrt": return this.root();
        case "operatorname": return this.named();
        case "mathop": return {node: this.argument(), limits: "auto"};
        case "overset": case "stackrel": case "underset": return this.stacked(name);
        case "not": return this.negated();
        case "pmod": case "pod": case "mod": case "bmod": return this.modulo(name);
        case "boxed": case "fbox": case "cancel": case "bcancel": case "xcancel": case "sout":
            return {node: this.node("mrow", {class: name === "boxed" || name === "fbox"
                                             ? "boxed" : "struck"}, this.argument())};
        case "phantom": case "hphantom": case "vphantom":
            return {node: this.node("mphantom", name === "vphantom" ? {class: "narrow"} : null,
                                    this.argument())};
        case "textcolor": case "colorbox":
            this.raw();
            return {node: this.argument()};
        case "tag": {
            const isBare = this.take("*");
            const text = this.raw();
            return {node: this.node("mtext", {class: "tag"}, isBare ? text : `(${text})`)};
        }
        case "substack":
            return this.deeper(() => {
                this.expect("{");
                const table = this.table("matrix", (token) => token === "}");
                this.expect("}");
                return {node: table};
            });
        case "hspace": case "hskip": case "kern": case "mkern": case "mskip": {
            this.take("*");
            const text = this.peek() === "{" ? this.raw() : this.length();
            const found = /^\s*(-?\d*\.?\d+)\s*(em|ex|mu|pt)/.exec(text);
            const scale = {em: 1, ex: 0.5, mu: 1 / 18, pt: 0.1};
            return found && Math.abs(found[1]) <= 100
                ? this.space(Number((found[1] * scale[found[2]]).toFixed(4))) : null;
        }
        default: return this.unknown(name);
        }
    }

    length() {
        const found = /\s*-?\d*\.?\d+\s*[a-z]{2}/y;
        found.lastIndex = this.at;
        const text = found.exec(this.source)?.[0] ?? "";
        this.at += text.length;
        return text;
    }

    // Text with formulas in it: \text{if $x > 0$}.
    textCommand(font) {
        const source = this.raw();
        const parts = source.split(/(?<!\\)\$/);
        if (parts.length % 2 === 0) {
            throw new Trouble("a $ in text is not closed");
        }
        const nodes = parts.map((part, i) => {
            if (i % 2 === 0) {
                const text = part.replace(/\\([%#&_{}$ ])/g, "$1").replace(/~/g, "\u00a0");
                return text ? this.text(text, font).node : null;
            }
            return this.deeper(() => this.inner(part));
        });
        return {node: this.row(nodes.filter(Boolean))};
    }

    // Parses another source with the same limits.
    inner(source) {
        const [outer, at] = [this.source, this.at];
        this.source = source;
        this.at = 0;
        const node = this.finish(this.atoms(() => false));
        this.source = outer;
        this.at = at;
        return node;
    }

    fraction(name) {
        const isBinomial = name.endsWith("binom");
        if (name === "cfrac") {
            this.rawOption();
        }
        const above = this.argument();
        const below = this.argument();
        let node = this.node("mfrac", isBinomial ? {linethickness: "0"} : null, above, below);
        node = isBinomial ? this.fenced("(", node, ")") : node;
        const displaystyle = FRACTIONS.get(name);
        return {node: displaystyle
            ? this.node("mstyle", {displaystyle, scriptlevel: "0"}, node) : node};
    }

    root() {
        const degree = this.option();
        const inner = this.argument();
        return {node: degree ? this.node("mroot", null, inner, degree)
                             : this.node("msqrt", null, inner)};
    }

    named() {
        const hasLimits = this.take("*");
        const source = this.raw();
        const text = source.replace(/\\[,;:! ]|~/g, " ").replace(/\\(?:math|text)[a-z]+/g, "")
            .replace(/[{}]/g, "").trim();
        if (!text || text.includes("\\")) {
            return this.unknown(`operatorname{${source}}`);
        }
        return hasLimits ? this.wordWithLimits(text)
                         : {node: this.node("mi", {mathvariant: "normal"}, text), isWord: true};
    }

    accent(name) {
        const isBelow = UNDER.has(name);
        const mark = isBelow ? UNDER.get(name) : ACCENTS.get(name);
        const isStretched = STRETCHED.has(name);
        const base = this.argument();
        const line = {overline: "overline", underline: "underline", underbar: "underline"}[name];
        if (line) {
            // A line that is drawn fits any base; glyphs do only in some fonts.
            return {node: this.node("mrow", {class: line}, base)};
        }
        const node = this.node(isBelow ? "munder" : "mover",
                               isBelow ? {accentunder: "true"} : {accent: "true"}, base,
                               this.node("mo", {stretchy: String(isStretched)}, mark));
        // Scripts of braces go above and below.
        return {node, limits: /brace|bracket|paren/.test(name) ? "always" : ""};
    }

    arrow(mark) {
        const below = this.option();
        const above = this.argument();
        const arrow = this.node("mo", {stretchy: "true"}, mark);
        const pad = (node) => this.node("mpadded", {width: "+0.6em", lspace: "0.3em"}, node);
        const node = below ? this.node("munderover", null, arrow, pad(below), pad(above))
                           : this.node("mover", null, arrow, pad(above));
        return {node, kind: "operator"};
    }

    stacked(name) {
        const mark = this.argument();
        const base = this.argument();
        const isBelow = name === "underset";
        const kind = base.localName === "mo" ? "operator" : "";
        return {node: this.node(isBelow ? "munder" : "mover", null, base, mark), kind};
    }

    negated() {
        const atom = this.deeper(() => this.atom()); // it may be another \not
        const node = atom?.node;
        if (!node || node.childElementCount || !/^m[io]$/.test(node.localName)) {
            throw new Trouble("\\not needs a symbol");
        }
        node.textContent = NEGATED.get(node.textContent) ?? `${node.textContent}\u0338`;
        return {...atom, kind: "operator"};
    }

    modulo(name) {
        if (name === "bmod") {
            return this.operator("mod", {lspace: "0.2222em", rspace: "0.2222em"});
        }
        const inner = this.argument();
        const word = name === "pod" ? [] : [this.node("mi", null, "mod"), this.space(0.3333).node];
        const isBare = name === "mod";
        return {node: this.node("mrow", null, this.space(0.4444).node,
            ...(isBare ? [] : [this.fence("(").node]), ...word, inner,
            ...(isBare ? [] : [this.fence(")").node]))};
    }

    // Reads a delimiter; "" for a dot.
    delimiter() {
        const token = this.next();
        const name = token[0] === "\\" ? token.slice(1) : "";
        if (token === ".") {
            return "";
        }
        if (name === "{" || name === "}") {
            return name;
        }
        if (name === "|") {
            return "‖";
        }
        const shown = name ? FENCES.get(name) ?? OPERATORS.get(name) ??
            (name === "backslash" ? "\\" : undefined) : {"<": "⟨", ">": "⟩"}[token] ?? token;
        if (shown === undefined || !shown || /[\p{L}\p{N}{}]/u.test(shown) && !name) {
            throw new Trouble(`${token} is no delimiter`);
        }
        return shown;
    }

    leftRight() {
        return this.deeper(() => {
            const open = this.delimiter();
            const parts = [];
            for (;;) {
                parts.push(...this.atoms((t) => t === "\\right" || t === "\\middle"));
                if (!this.take("\\middle")) {
                    break;
                }
                parts.push({node: this.node("mo", {stretchy: "true", lspace: "0.05em",
                                                   rspace: "0.05em"}, this.delimiter()),
                            kind: "operator"});
            }
            this.expect("\\right");
            const close = this.delimiter();
            const inner = this.finish(parts);
            return {node: this.node("mrow", null, ...this.fences(open, inner, close))};
        });
    }

    fences(open, inner, close) {
        const node = (text, form) => text ? [this.node("mo", {stretchy: "true", form}, text)] : [];
        return [...node(open, "prefix"), inner, ...node(close, "postfix")];
    }

    // ---- tables -------------------------------------------------------------------------------

    environment() {
        const full = this.raw();
        const name = full.replace(/\*$/, "");
        if (!TABLES.has(name)) {
            throw new Trouble(`unknown environment ${full}`);
        }
        let sides = TABLES.get(name)[2]?.split(" ") ?? null;
        if (/^(?:array|subarray)$/.test(name)) {
            this.rawOption();
            sides = Array.from(this.raw().replace(/[^lcr]/g, ""),
                               (c) => ({l: "left", c: "center", r: "right"})[c]);
        } else if (/alignat|alignedat/.test(name)) {
            this.raw();
        } else if (/^(?:aligned|gathered|.*matrix)$/.test(name)) {
            this.rawOption();
        }
        const table = this.table(name, (token) => token === "\\end", sides);
        this.expect("\\end");
        if (this.raw() !== full) {
            throw new Trouble(`${full} is not ended`);
        }
        const [open, close] = TABLES.get(name);
        return {node: this.fenced(open, table, close)};
    }

    // Reads rows of cells until a token for which isEnd holds.
    table(name, isEnd, sides = null) {
        const rows = [];
        const isBreak = (token) => token === "\\\\" || token === "\\cr";
        for (;;) {
            const cells = [];
            do {
                const atoms = this.atoms((t) => t === "&" || isBreak(t) || isEnd(t));
                const side = sides?.[cells.length % sides.length] ?? "center";
                cells.push(this.node("mtd", side === "center" ? null : {class: side},
                                     this.finish(atoms)));
            } while (this.take("&"));
            const isEmpty = cells.length === 1 && !cells[0].textContent;
            const isOver = !isBreak(this.peek());
            if (!isEmpty || !isOver || !rows.length) {
                rows.push(this.node("mtr", null, ...cells));
            }
            if (isOver) {
                break;
            }
            this.next();
            this.take("*");
            const next = this.source.slice(this.at, this.at + 40);
            if (/^\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]/.test(next)) {
                this.rawOption();
            }
        }
        const shape = name === "smallmatrix" ? {class: "small"} : /cases/.test(name)
            ? {class: "cases"} : sides && SPREAD.has(name) ? {class: "aligned"} : {};
        return this.node("mtable", {...shape,
                                    ...(SPREAD.has(name) ? {displaystyle: "true"} : {})}, ...rows);
    }

    // A formula may have several lines without an environment.
    whole() {
        const isBreak = (token) => token === "\\\\" || token === "\\cr" || token === "&";
        const atoms = this.atoms(isBreak);
        if (this.peek() === "") {
            return this.finish(atoms);
        }
        this.at = 0;
        const table = this.table("gathered", (token) => token === "",
                                 this.source.includes("&") ? ["right", "left"] : null);
        if (this.peek() !== "") {
            throw new Trouble("the formula does not end");
        }
        return table;
    }
}

// Returns a <math> element, or null if the source cannot be converted.
export function mathOf(source, isDisplay) {
    if (source.length > MAX_CHARACTERS || !source.trim()) {
        return null;
    }
    const parser = new Parser(source);
    try {
        const inner = parser.whole();
        const math = parser.node("math", isDisplay ? {display: "block"} : null);
        const note = parser.node("annotation", {encoding: "application/x-tex"}, source.trim());
        const row = inner.localName === "mrow" && !inner.hasAttribute("class")
            ? inner : parser.node("mrow", null, inner);
        math.append(parser.node("semantics", null, row, note));
        return math;
    } catch (error) {
        if (!(error instanceof Trouble)) {
            console.error(error);
        }
        return null; // the source is shown, whatever happened
    }
}
