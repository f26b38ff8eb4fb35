// Syntax highlighting for common languages, line by line. A language is a list of rules tried in
// order at each position; what no rule matches is plain. The tokens of a line, put together, are
// the line. Long lines are left plain, which bounds the work of a rule that reads far and fails.

const words = (text) => new Set(text.trim().split(/\s+/));

const NUMBER = /(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*/y;
const WORD = /[A-Za-z_$][\w$]*/y;
const CALL = /[ \t]{0,4}\(/y;
const DOUBLE = /"(?:[^"\\\n]|\\.)*"?/y;
const SINGLE = /'(?:[^'\\\n]|\\.)*'?/y;
const CHARACTER = /'(?:[^'\\\n]|\\[^\n]{1,10}?)'/y;
const SLASHES = /\/\/.*/y;
const HASH = /#.*/y;
const DASHES = /--.*/y;
const MAX_LINE = 1000; // characters; longer lines are plain

const C_WORDS = `if else for while do switch case default break continue return goto sizeof struct
union enum typedef static extern const volatile inline register restrict`;
const LANGUAGES = new Map();

// Comments and strings over several lines: [start, end, kind]. Patterns are sticky.
const C_COMMENT = [/\/\*/y, /\*\//g, "hc"];

function language(names, {keywords = "", types = "", rules = [], blocks = [], ignoresCase = false,
                          word = WORD, number = NUMBER, hasCalls = true}) {
    const known = {keywords: words(keywords), types: words(types), rules, blocks, ignoresCase, word,
                   number, hasCalls};
    for (const name of names.split(" ")) {
        LANGUAGES.set(name, known);
    }
}

language("c h cpp c++ cc cxx hpp cuda cu objc metal glsl", {
    keywords: `${C_WORDS} class namespace template typename public private protected virtual
        override final new delete this operator friend using try catch throw constexpr consteval
        noexcept nullptr true false NULL static_cast dynamic_cast reinterpret_cast const_cast
        co_await co_return co_yield explicit mutable decltype concept requires alignas alignof
        static_assert _Atomic _Static_assert __global__ __device__ __shared__`,
    types: `void char short int long float double signed unsigned bool _Bool auto size_t ssize_t
        int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t ptrdiff_t FILE
        string vector map set wchar_t`,
    rules: [[SLASHES, "hc"], [/^[ \t]*#[ \t]*\w+/y, "hm"], [DOUBLE, "hs"], [CHARACTER, "hs"]],
    blocks: [C_COMMENT],
});
language("java kotlin kt scala csharp cs c# groovy dart", {
    keywords: `${C_WORDS} abstract assert boolean byte catch class extends final finally implements
        import instanceof interface native new package private protected public super synchronized
        this throw throws transient try var val fun object companion when is in override open data
        sealed internal lateinit by out def trait namespace using async await yield readonly ref
        partial virtual get set foreach lock event delegate base null true false record late
        required with`,
    types: `void char short int long float double bool String Object Integer Boolean List Map Set
        Int Long Unit Any string decimal dynamic`,
    rules: [[SLASHES, "hc"], [/@\w+/y, "hm"], [DOUBLE, "hs"], [SINGLE, "hs"]],
    blocks: [C_COMMENT, [/"""/y, /"""/g, "hs"]],
});
language("javascript js jsx mjs cjs typescript ts tsx node", {
    keywords: `break case catch class const continue debugger default delete do else export extends
        finally for from function if import in instanceof let new of return static super switch this
        throw try typeof var void while with yield async await enum implements interface type
        declare namespace abstract readonly public private protected as satisfies keyof infer get
        set true false null undefined NaN Infinity`,
    types: `any string number boolean object symbol bigint unknown never Array Map Set Promise
        Record Partial Date RegExp Error Object String Number Boolean JSON Math console document
        window`,
    rules: [[SLASHES, "hc"], [/@\w+/y, "hm"], [DOUBLE, "hs"], [SINGLE, "hs"]],
    blocks: [C_COMMENT, [/`/y, /`/g, "hs"]],
});
language("python py python3 py3 ipython starlark bzl", {
    keywords: `and as assert async await break class continue def del elif else except finally for
        from global if import in is lambda nonlocal not or pass raise return try while with yield
        match case True False None self cls`,
    types: `int float str bytes bool list dict set tuple object type range print len super Exception
        ValueError TypeError KeyError`,
    rules: [[HASH, "hc"], [/@[\w.]+/y, "hm"], [/[rbfuRBFU]{0,2}"(?:[^"\\\n]|\\.)*"?/y, "hs"],
            [/[rbfuRBFU]{0,2}'(?:[^'\\\n]|\\.)*'?/y, "hs"]],
    blocks: [[/[rbfuRBFU]{0,2}"""/y, /"""/g, "hs"], [/[rbfuRBFU]{0,2}'''/y, /'''/g, "hs"]],
});
language("rust rs", {
    keywords: `as async await break const continue crate dyn else enum extern false fn for if impl
        in let loop match mod move mut pub ref return self Self static struct super trait true type
        union unsafe use where while`,
    types: `i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool char str String Vec
        Option Result Box Rc Arc Some None Ok Err HashMap HashSet`,
    rules: [[SLASHES, "hc"], [/#!?\[[^\]\n]*\]?/y, "hm"], [/\b\w+!(?=[({[ ])/y, "hf"],
            [/b?"(?:[^"\\\n]|\\.)*"?/y, "hs"], [CHARACTER, "hs"], [/'[a-z_]\w*/y, "hm"]],
    blocks: [C_COMMENT],
});
language("go golang", {
    keywords: `break case chan const continue default defer else fallthrough for func go goto if
        import interface map package range return select struct switch type var true false nil
        iota`,
    types: `bool byte complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune
        string uint uint8 uint16 uint32 uint64 uintptr any append cap close copy delete len make
        new panic print println recover`,
    rules: [[SLASHES, "hc"], [DOUBLE, "hs"], [CHARACTER, "hs"]],
    blocks: [C_COMMENT, [/`/y, /`/g, "hs"]],
});
language("swift", {
    keywords: `actor as associatedtype async await break case catch class continue default defer
        deinit do else enum extension fallthrough false fileprivate for func guard if import in init
        inout internal is let nil open operator override private protocol public repeat rethrows
        return self Self static struct subscript super switch throw throws true try typealias var
        where while some any mutating weak unowned lazy`,
    types: "Int Double Float String Bool Character Array Dictionary Set Optional Void Any Error",
    rules: [[SLASHES, "hc"], [/[@#]\w+/y, "hm"], [DOUBLE, "hs"]],
    blocks: [C_COMMENT, [/"""/y, /"""/g, "hs"]],
});
language("php", {
    keywords: `abstract and array as break callable case catch class clone const continue declare
        default do echo else elseif empty extends final finally fn for foreach function global if
        implements include instanceof interface isset list match namespace new or print private
        protected public readonly require require_once return static switch throw trait try unset
        use var while xor yield true false null`,
    types: "int float string bool mixed void object iterable self",
    rules: [[SLASHES, "hc"], [HASH, "hc"], [/<\?(?:php|=)?|\?>/y, "hm"], [/\$\w+/y, "hp"],
            [DOUBLE, "hs"], [SINGLE, "hs"]],
    blocks: [C_COMMENT],
});
language("ruby rb", {
    keywords: `alias and begin break case class def defined? do else elsif end ensure false for if
        in module next nil not or redo rescue retry return self super then true undef unless until
        when while yield require attr_accessor attr_reader puts raise lambda proc`,
    rules: [[HASH, "hc"], [DOUBLE, "hs"], [SINGLE, "hs"], [/:[A-Za-z_]\w*/y, "hm"],
            [/[@$]{1,2}\w+/y, "hp"]],
    blocks: [[/^=begin/y, /^=end/gm, "hc"]],
});
language("lua", {
    keywords: `and break do else elseif end false for function goto if in local nil not or repeat
        return then true until while`,
    rules: [[/--(?!\[\[).*/y, "hc"], [DOUBLE, "hs"], [SINGLE, "hs"]],
    blocks: [[/--\[\[/y, /\]\]/g, "hc"], [/\[\[/y, /\]\]/g, "hs"]],
});
language("bash sh shell zsh console shell-session shellscript fish", {
    keywords: `if then else elif fi for while until do done case esac in function return exit local
        export readonly declare unset shift break continue trap source eval exec set alias select
        time`,
    types: `echo cd ls cat grep sed awk find xargs mkdir rm cp mv chmod chown curl wget tar git make
        cmake sudo apt apt-get pip python python3 node npm docker printf read test kill ps`,
    rules: [[/(?<=^|\s)#.*/y, "hc"], [/\$(?:\w+|\{[^}\n]*\}?|[@#?$!*-])/y, "hp"],
            [/(?<=\s)--?[A-Za-z][\w-]*/y, "hm"], [/\\./y, ""]],
    blocks: [[/"/y, /(?<!\\)"/g, "hs"], [/'/y, /'/g, "hs"]],
    word: /[A-Za-z_][\w.-]*/y, hasCalls: false,
});
language("sql mysql postgresql postgres sqlite plsql", {
    keywords: `select from where and or not insert into values update set delete create table drop
        alter add column index view join inner left right full outer on as group by order having
        limit offset union all distinct case when then else end null is in between like exists
        primary key foreign references unique check default constraint begin commit rollback
        transaction with recursive returning asc desc over partition cast if replace trigger
        function procedure declare grant revoke explain using true false`,
    types: `int integer bigint smallint serial text varchar char boolean date time timestamp
        timestamptz numeric decimal real float double json jsonb uuid blob`,
    rules: [[DASHES, "hc"], [/'(?:[^'\n]|'')*'?/y, "hs"], [/"[^"\n]*"?/y, "hp"]],
    blocks: [C_COMMENT], ignoresCase: true,
});
language("json jsonc json5 jsonl", {
    keywords: "true false null",
    rules: [[/"(?:[^"\\\n]|\\.)*"(?=[ \t]{0,8}:)/y, "hp"], [DOUBLE, "hs"], [SLASHES, "hc"]],
    blocks: [C_COMMENT], number: /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y, hasCalls: false,
});
language("yaml yml", {
    keywords: "true false null yes no on off",
    rules: [[/(?<=^|\s)#.*/y, "hc"], [/(?<=^[ \t-]{0,80})[\w./-]+(?=:(?:\s|$))/y, "hp"],
            [DOUBLE, "hs"], [SINGLE, "hs"], [/[&*!][\w/-]+/y, "hm"], [/^(?:---|\.\.\.)/y, "hm"]],
    word: /[A-Za-z_][\w./-]*/y, hasCalls: false,
});
language("toml ini cfg conf properties env dotenv editorconfig systemd", {
    keywords: "true false yes no on off",
    rules: [[/(?<=^|\s)[#;].*/y, "hc"], [/^\s{0,80}\[[^\]\n]*\]{0,2}/y, "hm"],
            [/(?<=^\s{0,80})[\w.-]+(?=[ \t]{0,8}=)/y, "hp"], [DOUBLE, "hs"], [SINGLE, "hs"]],
    hasCalls: false,
});
language("html xml svg xhtml vue svelte mathml plist", {
    rules: [[/<\/?[A-Za-z][\w:.-]*|\/?>/y, "hk"], [/<[!?][^>\n]*>?/y, "hm"],
            [/[\w:@.-]+(?==)/y, "hp"], [/(?<==)"[^"\n]*"?/y, "hs"], [/(?<==)'[^'\n]*'?/y, "hs"],
            [/&[#\w]{1,12};/y, "hn"]],
    blocks: [[/<!--/y, /-->/g, "hc"]], number: null, hasCalls: false,
});
language("css scss less sass", {
    rules: [[/@[\w-]+/y, "hm"], [/(?<!:)\/\/.*/y, "hc"], [DOUBLE, "hs"], [SINGLE, "hs"],
            [/#[0-9a-fA-F]{3,8}\b/y, "hn"], [/[-\w]+(?=[ \t]{0,4}:)/y, "hp"],
            [/[.#][A-Za-z_-][\w-]*/y, "hf"], [/!important/y, "hk"]],
    blocks: [C_COMMENT], number: /-?\d*\.?\d+(?:[a-z]{1,4}|%)?/y, word: /[A-Za-z_-][\w-]*/y,
});
language("makefile make mk", {
    keywords: "ifeq ifneq ifdef ifndef else endif include define endef export",
    rules: [[HASH, "hc"], [/^[\w./%-]+(?=[ \t]{0,4}:)/y, "hf"],
            [/\$[({][^)}\n]*[)}]?|\$[@<^*?]/y, "hp"], [DOUBLE, "hs"]], hasCalls: false,
});
language("cmake", {
    keywords: `if elseif else endif foreach endforeach while endwhile function endfunction macro
        endmacro return include set option`,
    rules: [[HASH, "hc"], [/\$\{[^}\n]*\}?/y, "hp"], [DOUBLE, "hs"]],
});
language("dockerfile docker containerfile", {
    keywords: `FROM RUN CMD LABEL EXPOSE ENV ADD COPY ENTRYPOINT VOLUME USER WORKDIR ARG ONBUILD
        STOPSIGNAL HEALTHCHECK SHELL AS`,
    rules: [[/(?<=^|\s)#.*/y, "hc"], [/\$(?:\w+|\{[^}\n]*\}?)/y, "hp"], [DOUBLE, "hs"],
            [SINGLE, "hs"]], hasCalls: false,
});
language("r", {
    keywords: "if else for while repeat function return next break in TRUE FALSE NULL NA Inf NaN",
    rules: [[HASH, "hc"], [DOUBLE, "hs"], [SINGLE, "hs"]], word: /[A-Za-z.][\w.]*/y,
});
language("haskell hs elm ocaml ml fsharp", {
    keywords: `module import where let in case of if then else do data type newtype class instance
        deriving fun function match with rec open val mutable infixl infixr forall`,
    types: "Int Integer Double Float Char String Bool Maybe Either IO True False Just Nothing",
    rules: [[/--.*/y, "hc"], [DOUBLE, "hs"], [CHARACTER, "hs"]],
    blocks: [[/\{-/y, /-\}/g, "hc"], [/\(\*/y, /\*\)/g, "hc"]], hasCalls: false,
});
language("latex tex", {
    rules: [[/(?<!\\)%.*/y, "hc"], [/\\(?:[A-Za-z@]+|.)/y, "hk"], [/\$/y, "hs"]], hasCalls: false,
});
language("powershell ps1", {
    keywords: `if else elseif foreach for while do switch function param return try catch finally
        throw begin process end in`,
    rules: [[HASH, "hc"], [/\$[\w:]+/y, "hp"], [/(?<=\s)-[A-Za-z]\w*/y, "hm"], [DOUBLE, "hs"],
            [SINGLE, "hs"]],
    blocks: [[/<#/y, /#>/g, "hc"]], ignoresCase: true, word: /[A-Za-z_][\w-]*/y, hasCalls: false,
});

function match(pattern, line, at) {
    pattern.lastIndex = at;
    const found = pattern.exec(line);
    return found?.index === at ? found[0].length : 0;
}

// Reads one line. `state` is 0, or the number of the block that the line begins in, plus 1.
function readLine(known, line, state) {
    const tokens = [];
    let at = 0, plainFrom = 0;
    const put = (kind, end) => {
        if (plainFrom < at) {
            tokens.push(["", line.slice(plainFrom, at)]);
        }
        tokens.push([kind, line.slice(at, end)]);
        at = plainFrom = end;
    };
    const closeBlock = (from) => {
        const [, close, kind] = known.blocks[state - 1];
        close.lastIndex = from;
        const found = close.exec(line);
        const end = found ? found.index + found[0].length : line.length;
        state = found ? 0 : state;
        put(kind, end);
    };
    if (state) {
        closeBlock(0);
    }
    while (at < line.length) {
        const block = known.blocks.findIndex(([open]) => match(open, line, at) > 0);
        if (block >= 0) {
            state = block + 1;
            closeBlock(at + match(known.blocks[block][0], line, at));
            continue;
        }
        const [kind, n] = readToken(known, line, at);
        if (kind) {
            put(kind, at + n);
        } else {
            at += n;
        }
    }
    if (plainFrom < at) {
        tokens.push(["", line.slice(plainFrom, at)]);
    }
    return {tokens, state};
}

// Returns the kind of the token at a position ("": plain) and its length, at least 1.
function readToken(known, line, at) {
    for (const [pattern, kind] of known.rules) {
        const n = match(pattern, line, at);
        if (n > 0) {
            return [kind, n];
        }
    }
    const n = match(known.word, line, at);
    if (n > 0) {
        const text = line.slice(at, at + n);
        const word = known.ignoresCase ? text.toLowerCase() : text;
        const isCall = known.hasCalls && match(CALL, line, at + n) > 0;
        return [known.keywords.has(word) ? "hk" : known.types.has(word) ? "ht"
                : isCall ? "hf" : "", n];
    }
    const digits = known.number ? match(known.number, line, at) : 0;
    return digits > 0 ? ["hn", digits] : ["", 1];
}

function readDiff(line) {
    const kind = /^(?:\+\+\+|---|@@|diff |index )/.test(line) ? "hm" : line[0] === "+" ? "ha"
        : line[0] === "-" ? "hd" : "";
    return {tokens: [[kind, line]], state: 0};
}

// Returns (line, state) -> {tokens: [[kind, text], ...], state} for a language, or null.
export function highlighter(name) {
    const key = (name ?? "").toLowerCase().replace(/^[{.]+|[},:].*$/g, "");
    if (key === "diff" || key === "patch") {
        return readDiff;
    }
    const known = LANGUAGES.get(key);
    return known ? (line, state) => line.length > MAX_LINE
        ? {tokens: [["", line]], state} : readLine(known, line, state) : null;
}
