// The commands of TeX that stand for characters, by what they become. Lists of names and
// characters, in turn.

const mapOf = (text) => {
    const words = text.trim().split(/\s+/);
    const map = new Map();
    for (let i = 0; i + 1 < words.length; i += 2) {
        map.set(words[i], words[i + 1]);
    }
    return map;
};
const setOf = (text) => new Set(text.trim().split(/\s+/));

// Letters that slant: <mi>.
export const LETTERS = mapOf(`
alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι
kappa κ varkappa ϰ lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ
varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω digamma ϝ imath ı jmath ȷ ell ℓ`);

// Upright ones.
export const UPRIGHT = mapOf(`
Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω Alpha A Beta B
Epsilon E Zeta Z Eta H Iota I Kappa K Mu M Nu N Rho P Tau T Chi X
infty ∞ partial ∂ nabla ∇ emptyset ∅ varnothing ∅ hbar ℏ hslash ℏ Re ℜ Im ℑ wp ℘ aleph ℵ beth ℶ
gimel ℷ daleth ℸ top ⊤ bot ⊥ angle ∠ measuredangle ∡ sphericalangle ∢ triangle △ forall ∀
exists ∃ nexists ∄ neg ¬ lnot ¬ flat ♭ natural ♮ sharp ♯ clubsuit ♣ diamondsuit ♢ heartsuit ♡
spadesuit ♠ S § P ¶ copyright © pounds £ mho ℧ eth ð complement ∁ Bbbk 𝕜 backprime ‵ square □
Box □ blacksquare ■ lozenge ◊ Diamond ◊ bigstar ★ checkmark ✓ degree ° prime ′ cdots ⋯ dotsb ⋯
dotsm ⋯ dotsi ⋯ ldots … dots … dotsc … dotso … mathellipsis … vdots ⋮ ddots ⋱ AA Å ss ß ae æ
AE Æ oe œ OE Œ o ø O Ø i ı surd √ backslash \\ qed ∎ blacklozenge ⧫ maltese ✠ circledR ®
yen ¥ euro € cent ¢ R ℝ Reals ℝ N ℕ Z ℤ`);

// Operators and relations: <mo>.
export const OPERATORS = mapOf(`
pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ cap ∩ cup ∪ uplus ⊎ sqcap ⊓ sqcup ⊔
vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ wr ≀ amalg ⨿ diamond ⋄ bigtriangleup △
bigtriangledown ▽ triangleleft ◃ triangleright ▹ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙
bigcirc ◯ dagger † ddagger ‡ ltimes ⋉ rtimes ⋊ boxplus ⊞ boxminus ⊟ boxtimes ⊠ boxdot ⊡
le ≤ leq ≤ ge ≥ geq ≥ leqslant ⩽ geqslant ⩾ ne ≠ neq ≠ ll ≪ gg ≫ lll ⋘ ggg ⋙ equiv ≡ sim ∼
simeq ≃ approx ≈ approxeq ≊ cong ≅ asymp ≍ doteq ≐ propto ∝ varpropto ∝ models ⊨ vDash ⊨
vdash ⊢ dashv ⊣ Vdash ⊩ perp ⊥ mid ∣ nmid ∤ parallel ∥ nparallel ∦ subset ⊂ supset ⊃ subseteq ⊆
supseteq ⊇ subsetneq ⊊ supsetneq ⊋ nsubseteq ⊈ nsupseteq ⊉ sqsubset ⊏ sqsupset ⊐ sqsubseteq ⊑
sqsupseteq ⊒ in ∈ ni ∋ owns ∋ notin ∉ prec ≺ succ ≻ preceq ⪯ succeq ⪰ precsim ≾ succsim ≿
lesssim ≲ gtrsim ≳ lessgtr ≶ gtrless ≷ nless ≮ ngtr ≯ nleq ≰ ngeq ≱ ncong ≇ nsim ≁ triangleq ≜
coloneqq ≔ eqqcolon ≕ eqcirc ≖ circeq ≗ bowtie ⋈ smile ⌣ frown ⌢ therefore ∴ because ∵ between ≬
trianglelefteq ⊴ trianglerighteq ⊵ vartriangleleft ⊲ vartriangleright ⊳ backsim ∽ multimap ⊸
to → gets ← leftarrow ← rightarrow → leftrightarrow ↔ Leftarrow ⇐ Rightarrow ⇒ Leftrightarrow ⇔
uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ Updownarrow ⇕ mapsto ↦ longmapsto ⟼
longleftarrow ⟵ longrightarrow ⟶ longleftrightarrow ⟷ Longleftarrow ⟸ Longrightarrow ⟹
Longleftrightarrow ⟺ iff ⟺ implies ⟹ impliedby ⟸ hookleftarrow ↩ hookrightarrow ↪ nearrow ↗
searrow ↘ swarrow ↙ nwarrow ↖ leftharpoonup ↼ leftharpoondown ↽ rightharpoonup ⇀
rightharpoondown ⇁ rightleftharpoons ⇌ leftrightharpoons ⇋ leftrightarrows ⇆ rightleftarrows ⇄
twoheadrightarrow ↠ twoheadleftarrow ↞ rightsquigarrow ⇝ leadsto ⇝ nrightarrow ↛ nleftarrow ↚
nRightarrow ⇏ nLeftarrow ⇍ nleftrightarrow ↮ nLeftrightarrow ⇎ rightarrowtail ↣ Lsh ↰ Rsh ↱
curvearrowleft ↶ curvearrowright ↷ circlearrowleft ↺ circlearrowright ↻ upharpoonright ↾
restriction ↾ colon : vcentcolon : cdotp ⋅ ldotp . lt < gt > doublecap ⋒ doublecup ⋓ veebar ⊻
barwedge ⌅ curlyvee ⋎ curlywedge ⋏ Cap ⋒ Cup ⋓ intercal ⊺ divideontimes ⋇ lessdot ⋖ gtrdot ⋗
Subset ⋐ Supset ⋑ pitchfork ⋔ And & shortmid ∣ shortparallel ∥ thickapprox ≈ thicksim ∼`);

// Large operators: their limits are above and below in a displayed formula.
export const LARGE = mapOf(`
sum ∑ prod ∏ coprod ∐ bigcap ⋂ bigcup ⋃ bigsqcup ⨆ bigvee ⋁ bigwedge ⋀ bigodot ⨀ bigotimes ⨂
bigoplus ⨁ biguplus ⨄`);
// Integrals: their limits are beside them.
export const INTEGRALS = mapOf(`int ∫ iint ∬ iiint ∭ iiiint ⨌ oint ∮ oiint ∯ oiiint ∰ intop ∫
smallint ∫`);

// Functions written as words, and those with limits below.
export const FUNCTIONS = setOf(`
arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh
arcsinh arccosh arctanh sgn erf cotg ctg tg sh ch th`);
export const LIMITS = new Map([...setOf("det gcd inf lim max min Pr sup argmax argmin plim")]
    .map((name) => [name, name]));
LIMITS.set("liminf", "lim inf").set("limsup", "lim sup").set("injlim", "inj lim")
    .set("projlim", "proj lim").set("varinjlim", "lim").set("varprojlim", "lim");

// What \left, \right, \big and the like accept; also fences by themselves.
export const FENCES = mapOf(`
lbrace { rbrace } langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrack [ rbrack ] lvert |
rvert | lVert ‖ rVert ‖ vert | Vert ‖ lgroup ⟮ rgroup ⟯ lmoustache ⎰ rmoustache ⎱ ulcorner ⌜
urcorner ⌝ llcorner ⌞ lrcorner ⌟ llbracket ⟦ rrbracket ⟧ lparen ( rparen )`);
export const OPENING = setOf("( [ { ⟨ ⌊ ⌈ ⟮ ⎰ ⌜ ⌞ ⟦");
export const CLOSING = setOf(") ] } ⟩ ⌋ ⌉ ⟯ ⎱ ⌝ ⌟ ⟧");

export const ACCENTS = mapOf(`
hat ^ bar ¯ vec → tilde ~ dot ˙ ddot ¨ check ˇ breve ˘ acute ´ grave \` mathring ˚ dddot ⃛
widehat ^ widetilde ~ widecheck ˇ overline ‾ overrightarrow → overleftarrow ← overleftrightarrow ↔
overbrace ⏞ overbracket ⎴ overparen ⏜`);
export const UNDER = mapOf(`underline _ underbrace ⏟ underbracket ⎵ underparen ⏝
underrightarrow → underleftarrow ← underleftrightarrow ↔ underbar _`);
export const STRETCHED = setOf(`widehat widetilde widecheck overline overrightarrow overleftarrow
overleftrightarrow overbrace overbracket overparen underline underbrace underbracket underparen
underrightarrow underleftarrow underleftrightarrow underbar`);
export const ARROWS = mapOf(`
xrightarrow → xleftarrow ← xleftrightarrow ↔ xRightarrow ⇒ xLeftarrow ⇐ xLeftrightarrow ⇔
xmapsto ↦ xhookrightarrow ↪ xhookleftarrow ↩ xrightleftharpoons ⇌ xlongequal =`);

// Widths in em.
export const SPACES = new Map([[",", 0.1667], [":", 0.2222], [">", 0.2222], [";", 0.2778],
    ["!", -0.1667], [" ", 0.25], ["\n", 0.25], ["quad", 1], ["qquad", 2], ["enspace", 0.5],
    ["thinspace", 0.1667], ["medspace", 0.2222], ["thickspace", 0.2778], ["negthinspace", -0.1667],
    ["enskip", 0.5], ["space", 0.25], ["nobreakspace", 0.25]]);

// What \not strikes out in one character.
export const NEGATED = mapOf(`= ≠ < ≮ > ≯ ∈ ∉ ∋ ∌ ⊂ ⊄ ⊃ ⊅ ⊆ ⊈ ⊇ ⊉ ≡ ≢ ≈ ≉ ∼ ≁ ≅ ≇ ≤ ≰ ≥ ≱ ∣ ∤
∥ ∦ ∃ ∄ ⊢ ⊬ ⊨ ⊭ ≺ ⊀ ≻ ⊁ → ↛ ← ↚ ⇒ ⇏ ⇐ ⇍ ↔ ↮ ⇔ ⇎`);

// ---- alphabets --------------------------------------------------------------------------------

// First characters of capitals, small letters, digits in the Mathematical Alphanumeric Symbols.
const ALPHABETS = {
    bold: [0x1d400, 0x1d41a, 0x1d7ce], boldItalic: [0x1d468, 0x1d482, 0x1d7ce],
    script: [0x1d49c, 0x1d4b6, 0], fraktur: [0x1d504, 0x1d51e, 0],
    double: [0x1d538, 0x1d552, 0x1d7d8],
    sans: [0x1d5a0, 0x1d5ba, 0x1d7e2], mono: [0x1d670, 0x1d68a, 0x1d7f6],
};
const BOLD_GREEK = {bold: [0x1d6a8, 0x1d6c2], boldItalic: [0x1d71c, 0x1d736]};
// Letters that Unicode had before.
const EXCEPTIONS = {
    script: mapOf("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ"),
    fraktur: mapOf("C ℭ H ℌ I ℑ R ℜ Z ℨ"),
    double: mapOf("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ"),
};

function inAlphabet(name, c) {
    const code = c.codePointAt(0);
    const [capital, small, digit] = ALPHABETS[name];
    const found = EXCEPTIONS[name]?.get(c);
    if (found) {
        return found;
    }
    if (c >= "A" && c <= "Z") {
        return String.fromCodePoint(capital + code - 65);
    }
    if (c >= "a" && c <= "z") {
        return String.fromCodePoint(small + code - 97);
    }
    if (digit && c >= "0" && c <= "9") {
        return String.fromCodePoint(digit + code - 48);
    }
    const greek = BOLD_GREEK[name];
    if (greek && c >= "Α" && c <= "Ω") {
        return String.fromCodePoint(greek[0] + code - 0x391);
    }
    if (greek && c >= "α" && c <= "ω") {
        return String.fromCodePoint(greek[1] + code - 0x3b1);
    }
    return c;
}

// Returns the text in another alphabet, as far as that has its characters.
export function inFont(name, text) {
    return name in ALPHABETS ? Array.from(text, (c) => inAlphabet(name, c)).join("") : text;
}
