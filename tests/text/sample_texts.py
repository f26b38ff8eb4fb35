"""Texts that are difficult for a tokenizer: mixed scripts, marks, white space, digits."""
import unicodedata

SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 0x85, 0xA0, 0x1680, 0x180E,
                           *range(0x2000, 0x200C), 0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000,
                           0xFEFF)]
DIGITS = list("0123456789") + list("٠١٢٣٤٥٦٧٨٩०१२३४५६७८९０１２３²³¹½¼ⅣⅫↈ①㊿〇𝟘𝟡𑁦")
WORDS = ("the The THE and you don't DON'T we'll WE'LL I've it's IT'S they're he'd I'm o'clock "
         "'tis 'Sir 'Dear 're 'LL x's' rock'n'roll naïve café Straße ΑΒΓ ΣΊΣΥΦΟΣ "
         "привет мир Ёлка שלום עולם مرحبا بالعالم नमस्ते "
         "दुनिया สวัสดี ကြိုဆို ជំរាបសួរ 你好 世界 東京 日本語 カタカナ ひらがな 안녕 세계 각 "
         "int main(void) {return 0;} def f(x): self.x += 1 #include <stdio.h> http://a.b/c?d=e&f "
         "<|im_start|> <|im_end|> <|endoftext|> <|im_ <|im_start <think> </think> <think "
         "camelCase HTTPServer XMLHttpRequest iPhone ǅungla Ωmega ΩMEGA Éa aÉ It's IT'LL "
         "々 〇 ⺀ タ・ス゛゠ぁ "
         "#include !word ／ a/b/ .// //\n <tool_call> </tool_call> <tool_ <| |> "
         "ſ 'ſ 'ſa 's 'S ’s ʼs K Å Ω ﬁ ﬅ ŉ İ ı").split(" ")
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿…—“”‘’«»、。，！？（）·†€£¥₿°№™©®←→∀∑√∞≠⊕♥♪")
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇰🇷", "❤️", "1️⃣", "🫠", "🪿", "🧑🏿‍🚀", "☃", "🫩"]
NEWLINES = ["\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\t\n\t", "\n\r\n  "]
SCRIPTS = [(0x20, 0x7F), (0x80, 0x250), (0x250, 0x370), (0x370, 0x530), (0x590, 0x780),
           (0x780, 0xB00), (0xB00, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200), (0x1200, 0x1A00),
           (0x1A00, 0x1C00), (0x1DC0, 0x1E00), (0x1E00, 0x2000), (0x2000, 0x2800),
           (0x2E80, 0x3400), (0x4E00, 0xA000), (0xA000, 0xAC00), (0xAC00, 0xD7FF),
           (0xF900, 0x10000), (0x10000, 0x12000), (0x16000, 0x17000), (0x1D000, 0x1E000),
           (0x1E000, 0x1F000), (0x1F000, 0x1FB00), (0x20000, 0x20100), (0x2F800, 0x2FA20),
           (0xE0000, 0xE0200), (0, 0x110000)]
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
MARKS = [chr(c) for c in CODE_POINTS if unicodedata.category(chr(c)).startswith("M")]
COMBINING = [m for m in MARKS if unicodedata.combining(m)]

# Every code point is inserted into each of these.
FRAMES = ("{}", "a{}b", " {} ", "'{}", "e{}\u0301.", "\u0345{}s", "\uac00{}\n")


def random_character(random):
    while True:
        begin, end = random.choice(SCRIPTS)
        c = random.randrange(begin, end)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_part(random):
    kind = random.randrange(12)
    if kind < 3:
        return random.choice(WORDS)
    if kind == 3:
        return random.choice(SPACES) * random.choice((1, 1, 1, 2, 3, 9))
    if kind == 4:
        return " " * random.choice((1, 1, 2, 3, 4, 8, 17))
    if kind == 5:
        return "".join(random.choices(DIGITS, k=random.randint(1, 6)))
    if kind == 6:
        return "".join(random.choices(PUNCTUATION, k=random.randint(1, 4)))
    if kind == 7:
        return random.choice(EMOJI)
    if kind == 8:
        base = random.choice("aeocnsAEOअक가각ᄀ ") + random.choice(("", "ᅡ", "ᅡᆨ", "़"))
        return base + "".join(random.choices(MARKS, k=random.randint(0, 4)))
    if kind == 9:
        return random.choice(NEWLINES)
    if kind == 10:
        return "".join(random_character(random) for _ in range(random.randint(1, 5)))
    return random.choice(WORDS) * random.choice((1, 2, 30))


def random_text(random):
    text = "".join(random_part(random) for _ in range(random.randint(1, 12)))
    return unicodedata.normalize("NFD", text) if random.randrange(8) == 0 else text


def random_bytes(random):
    """Returns bytes that are often almost UTF-8."""
    data = bytearray(random_text(random).encode())
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        if random.randrange(2):
            data[at:at + 1] = bytes(random.choices((0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xA0, 0xF0,
                                                    0x90, 0xF4, 0xF5, 0xFF, 0x41),
                                                   k=random.randint(0, 4)))
        else:
            del data[at:at + random.randint(1, 2)]
    return bytes(data)


def normalization_texts():
    """Orders of marks, compositions, Hangul."""
    classes = {unicodedata.combining(m): m for m in COMBINING}
    for a in COMBINING:
        for b in classes.values():
            yield f"x{a}{b}"
            yield f"{b}{a}"
    pairs = [unicodedata.decomposition(chr(c)).split() for c in CODE_POINTS]
    pairs = [p for p in pairs if len(p) == 2 and not p[0].startswith("<")]
    firsts = sorted({chr(int(a, 16)) for a, _ in pairs})
    seconds = sorted({chr(int(b, 16)) for _, b in pairs})
    for a in firsts:
        for b in seconds:
            yield a + b
            yield f"{a}\u0323{b}\u0301"
    for first in ("ᄀ", "ᄒ", "ᄓ", "가", "각", "힣", "각ᅡ"):
        for c in range(0x1100, 0x1200):
            for last in ("", "\u11a7", "ᆨ", "ᇂ", "ᅡ", "\u0301"):
                yield first + chr(c) + last
