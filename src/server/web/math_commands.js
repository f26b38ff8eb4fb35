// The commands of TeX that take arguments or change what follows, by what they do.

export const FONTS = new Map(Object.entries({
    mathbf: "bold", bold: "bold", boldsymbol: "boldItalic", bm: "boldItalic", pmb: "boldItalic",
    mathcal: "script", mathscr: "script", cal: "script", mathfrak: "fraktur", frak: "fraktur",
    mathbb: "double", Bbb: "double", mathsf: "sans", mathtt: "mono", mathrm: "upright",
    rm: "upright", mathup: "upright", mathnormal: "", mathit: "italic", symbf: "bold", bf: "bold",
}));
export const TEXTS = new Map(Object.entries({
    text: "", mbox: "", textrm: "", textnormal: "", hbox: "", textup: "", textbf: "bold",
    textit: "italic", emph: "italic", texttt: "mono", textsf: "sans", textsc: "",
}));
export const FRACTIONS = new Map(Object.entries({
    frac: "", dfrac: "true", tfrac: "false", cfrac: "true", binom: "", dbinom: "true",
    tbinom: "false",
}));
export const SIZES = new Map();
for (const [i, name] of ["big", "Big", "bigg", "Bigg"].entries()) {
    for (const side of ["", "l", "r", "m"]) {
        SIZES.set(name + side, `${(1.2 + 0.6 * i).toFixed(1)}em`);
    }
}
export const INFIX = new Map(Object.entries({
    over: ["", ""], choose: ["(", ")"], atop: ["", ""], brace: ["{", "}"], brack: ["[", "]"],
}));
export const STYLES = new Map(Object.entries({
    displaystyle: ["true", "0"], textstyle: ["false", "0"], scriptstyle: ["false", "1"],
    scriptscriptstyle: ["false", "2"],
}));
// Fences around a table, and how its columns are aligned: in turn.
export const TABLES = new Map(Object.entries({
    matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"],
    vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], array: ["", ""],
    subarray: ["", ""], cases: ["{", "", "left"], dcases: ["{", "", "left"],
    rcases: ["", "}", "left"], aligned: ["", "", "right left"], align: ["", "", "right left"],
    split: ["", "", "right left"], alignedat: ["", "", "right left"],
    alignat: ["", "", "right left"], flalign: ["", "", "right left"],
    eqnarray: ["", "", "right center left"], gathered: ["", ""], gather: ["", ""],
    equation: ["", ""], multline: ["", ""], displaymath: ["", ""], math: ["", ""],
}));
export const SPREAD = new Set(`aligned align split alignedat alignat flalign eqnarray gathered
    gather equation multline dcases displaymath`.split(/\s+/));
export const IGNORED = new Set(`nonumber notag hline displaylimits allowbreak nobreak relax noindent
    centering protect mathstrut strut hfill break`.split(/\s+/));
// Their argument is left out or shown without its meaning.
export const LEFT_OUT = new Set(["label", "cline", "vspace", "color"]);
export const TRANSPARENT = new Set(`mathord mathbin mathrel mathopen mathclose mathpunct mathinner
    smash ensuremath mathllap mathrlap mathclap llap rlap clap`.split(/\s+/));
export const ESCAPED = new Set(["%", "#", "&", "_", "$"]);
