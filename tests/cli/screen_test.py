"""Compares what a terminal shows with a terminal emulator that others wrote: PyPI's pyte.

Usage: screen_test.py PROGRAM MODEL WRAP_LINES [TestClass...]

The packages are fetched into FLASHMOE_TEST_CACHE; the exit status is 77 when they cannot be.
"""
import fcntl
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata
import unittest
import venv

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))
import scripted_model # pylint: disable=wrong-import-position

PROGRAM = MODEL = WRAP_LINES = ""
PACKAGES = ["pyte==0.8.2", "wcwidth"]
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
CJK = "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u306f\u7a7a\u767d\u306a\u3057\u3067\u7d9a\u304f\u3002"
EMOJI = ("\U0001f469\u200d\U0001f4bb \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea "
         "\U0001f600")
# No word ends with a mark: unlike terminals, the emulator moves one at the edge to the next line.
ACCENTS = "cafe\u0301s nai\u0308ve re\u0301sume\u0301s "


def use_packages():
    """Runs this file again with a Python that has the packages."""
    home = pathlib.Path(os.environ.get("FLASHMOE_TEST_CACHE", "build")).resolve() / "screen-venv"
    marker = home / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != PACKAGES:
        venv.create(home, with_pip=True)
        done = subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet",
                               *PACKAGES], check=False)
        if done.returncode != 0:
            print("skipped: the Python packages cannot be installed")
            sys.exit(77)
        marker.write_text(json.dumps(PACKAGES))
    os.environ["FLASHMOE_SCREEN_PYTHON"] = "1"
    os.execv(home / "bin" / "python", [str(home / "bin" / "python"), *sys.argv])


if os.environ.get("FLASHMOE_SCREEN_PYTHON") == "1":
    import pyte
    import wcwidth


def rows_of(screen):
    """Returns the rows from the first to the last that was ever written."""
    rows = ["".join(cell.data for cell in (row[x] for x in range(screen.columns)))
            for row in screen.history.top]
    return [row.rstrip() for row in rows + list(screen.display)]


def feed(stream, data):
    """Byte by byte: in a longer piece, the emulator drops what follows a joiner."""
    for i in range(len(data)):
        stream.feed(data[i:i + 1])


def show(data, columns, lines=400):
    """Returns the rows of a terminal after `data`. A newline returns the carriage, as the
    terminal's driver has it."""
    screen = pyte.HistoryScreen(columns, lines, history=5000)
    feed(pyte.ByteStream(screen), data.replace(b"\n", b"\r\n"))
    rows = rows_of(screen)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def words_of(text):
    """Without accents and joiners: the emulator composes characters, and shows none where it cannot
    attach one."""
    plain = re.sub("[\u0300-\u036f\u200d\ufe0f]", "", unicodedata.normalize("NFD", text))
    return re.findall(r"[^ \t\n\u3000\u200b]+", unicodedata.normalize("NFC", plain))


class Words(unittest.TestCase):
    """Text that is wrapped, as the emulator shows it."""

    def rows(self, text, columns, piece=7):
        done = subprocess.run([WRAP_LINES, str(columns), str(piece)], input=text.encode(),
                              stdout=subprocess.PIPE, timeout=SECONDS, check=True)
        return show(done.stdout, columns)

    def assert_wrapped(self, text, columns):
        """No word that fits into a line is broken, no line is shorter than it must be."""
        for paragraph in text.split("\n"):
            rows = self.rows(paragraph, columns)
            words = words_of(paragraph)
            shown = [words_of(row) for row in rows]
            if all(wcwidth.wcswidth(word) <= min(columns, 32) for word in words):
                self.assertEqual([word for row in shown for word in row], words)
                for row, following in zip(rows, shown[1:]):
                    self.assertGreater(wcwidth.wcswidth(row) + 1 + wcwidth.wcswidth(following[0]),
                                       columns, (row, following))
            self.assertEqual("".join("".join(row) for row in shown), "".join(words))

    def test_prose(self):
        text = pathlib.Path(HERE.parents[1] / "README.md").read_text(encoding="utf-8")
        paragraphs = [re.sub(r" +", " ", re.sub(r"[|`~#<>*]", "", line))
                      for line in text.splitlines()]
        prose = "\n".join(line for line in paragraphs if line[:1].isalpha())
        self.assertGreater(len(prose), 1000)
        for columns in (10, 19, 20, 33, 40, 79, 80, 81, 132, 200):
            with self.subTest(columns=columns):
                self.assert_wrapped(prose, columns)

    def test_accents(self):
        for columns in (10, 20, 40, 80):
            self.assert_wrapped(ACCENTS * 30, columns)

    def test_wide(self):
        """Every line of Chinese and Japanese is full, and none begins with a full stop."""
        for columns in (10, 21, 40, 80):
            rows = self.rows(CJK * 20, columns)
            self.assertEqual("".join(rows), CJK * 20)
            for row in rows[:-1]:
                self.assertGreaterEqual(wcwidth.wcswidth(row), columns - 4, row)
            self.assertFalse([row for row in rows if row.startswith("\u3002")])

    def test_emoji(self):
        for columns in (10, 20, 40, 80):
            rows = self.rows((EMOJI + " ") * 20, columns)
            self.assertEqual([word for row in rows for word in words_of(row)],
                             words_of((EMOJI + " ") * 20))

    def test_tabs(self):
        for columns in (20, 40, 80):
            rows = self.rows("name\tvalue\tunit\n" * 3 + "a\tb c d e f g h i j k l m n o p " * 9,
                             columns)
            self.assertEqual(rows[0], "name    value   unit")
            self.assertEqual("".join(words_of(" ".join(rows[3:]))), "abcdefghijklmnop" * 9)

    def test_random(self):
        """Whatever the text: every character is shown, once, in order."""
        pick = random.Random(5)
        pool = [*"abcdefgh" * 4, "word ", "another ", " ", "\t", "\n", CJK, "\u3002", "\u0301a",
                "\U0001f600", "https://example.org/path ", "\ud55c\uad6d\uc5b4 ", "(", ")", ","]
        for _ in range(150):
            text = "".join(pick.choices(pool, k=pick.randint(1, 200)))
            columns = pick.randint(10, 90)
            with self.subTest(text=text, columns=columns):
                rows = self.rows(text, columns, pick.choice((1, 2, 3, 5, 64)))
                self.assertEqual("".join(words_of(" ".join(rows))), "".join(words_of(text)))

    def test_sequences(self):
        """Control sequences of the text do nothing, wherever they are cut."""
        evil = "\x1b[2J\x1b[H\x1b]0;title\x07\x1b[31m\u009b2J\x1bc\r\x08\x1b[10A"
        text = "".join(f"some words {evil} and{evil}more " for _ in range(20))
        plain = text.replace(evil, "")
        for piece in (1, 2, 3, 5, 8, 64):
            self.assertEqual(self.rows(text, 40, piece), self.rows(plain, 40, 64))

    def test_widths(self):
        """The table agrees with the package that it was made of, in a newer version too."""
        table = (HERE.parents[1] / "apps/cli/width_tables.inc").read_text(encoding="utf-8")
        wide, empty = (re.findall(r"\{0x(\w+), 0x(\w+)\}", part)
                       for part in table.split("empty_ranges"))
        width = dict.fromkeys(range(0xa0, 0x110000), 1)
        for ranges, cells in ((wide, 2), (empty, 0)):
            for first, last in ranges:
                width.update(dict.fromkeys(range(int(first, 16), int(last, 16) + 1), cells))
        wrong = [code for code in width if wcwidth.wcwidth(chr(code)) != width[code]]
        self.assertLess(len(wrong), 3000, wrong[:10])  # later versions of Unicode add characters


class Terminal:
    """The program at a terminal, with the emulator as the screen."""

    def __init__(self, *args, columns=80, lines=24, env=None):
        self.screen = pyte.HistoryScreen(columns, lines, history=5000)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.environ.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})})
            os.execv(PROGRAM, [PROGRAM, *map(str, args)])

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def resize(self, columns, lines=24):
        """As an emulator does it: its screen first, then the program is told."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def take(self, seconds):
        if not select.select([self.terminal], [], [], max(0, seconds))[0]:
            return False
        try:
            piece = os.read(self.terminal, 65536)
        except OSError:
            return False
        self.raw += piece
        feed(self.stream, piece)
        return bool(piece)

    def rows(self):
        return rows_of(self.screen)

    def wait(self, condition, what):
        """Reads until the rows satisfy the condition."""
        end = time.monotonic() + SECONDS
        while not condition(self.rows()):
            if not self.take(end - time.monotonic()):
                raise AssertionError(f"{what} did not come:\n" + "\n".join(self.rows()))

    def wait_for(self, pattern):
        self.wait(lambda rows: re.search(pattern, "\n".join(rows)), pattern)

    def end(self):
        while self.take(SECONDS):
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.terminal)
        except (OSError, ChildProcessError):
            pass


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flashmoe-screen-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *args, **more):
        env = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        terminal = Terminal(*args, env=env, **more)
        self.addCleanup(terminal.kill)
        return terminal


class Answers(Case):
    """Answers of a real run, token by token."""
    SCRIPT = ["The quick", " brown fox", " jumps over", " the lazy dog", " and", " runs",
              " away", " from", " the", " unbeliev", "ably", " large", " bear", ".\n\n", CJK,
              2 * CJK, "\n", ACCENTS, EMOJI, "\n```\n",
              "int x = 1; /* a line of code that is long */", "\n``` \n", "\x1b[2J\x1b]0;",
              "title\x07", "And \x1b[", "31mmore", "\u009b2J words", " to", " their", " end",
              "\r."]
    QUIET = ("--greedy", "--no-heat", "-n", "99", "-q", "--io", "direct")

    def setUp(self):
        super().setUp()
        scripts = {"A": self.SCRIPT, "R": ["<think>\nI think", " about", " many", " words", " that",
                                           " fill", " lines", ".\n</think>\n\n", "Forty", "-two."]}
        self.model = scripted_model.make(self.folder / "model", scripts=scripts)

    def test_run(self):
        plain = "".join(self.SCRIPT).replace("\x1b[2J\x1b]0;title\x07", "").replace("\x1b[31m", "")
        plain = plain.replace("\u009b2J", "").replace("\r", "")
        for columns in (12, 20, 33, 40, 80, 120):
            with self.subTest(columns=columns):
                terminal = self.start("run", self.model, *self.QUIET, "-p", "A", columns=columns)
                self.assertEqual(terminal.end(), 0)
                rows = terminal.rows()
                shown = [word for row in rows for word in words_of(row)]
                before, after = plain.split(3 * CJK)
                n = len(words_of(before))
                self.assertEqual(shown[:n], words_of(before))
                self.assertEqual("".join(shown), "".join(words_of(plain)))
                if columns >= 50:
                    self.assertIn("int x = 1; /* a line of code that is long */", rows)
                self.assertEqual(shown[-5:], words_of(after)[-5:])
                self.assertEqual(terminal.screen.title, "")
                self.assertEqual({cell.fg for row in terminal.screen.buffer.values()
                                  for cell in row.values()}, {"default"})

    def test_no_wrap(self):
        terminal = self.start("run", self.model, *self.QUIET, "--no-wrap", "-p", "A", columns=20)
        self.assertEqual(terminal.end(), 0)
        self.assertEqual(terminal.rows()[:2], ["The quick brown fox", "jumps over the lazy"])
        self.assertIn("om the unbelievably", terminal.rows())

    def test_figures(self):
        """The figures below an answer break between words too, in `run` and in `chat`."""
        for columns in (24, 40, 80):
            with self.subTest(columns=columns):
                terminal = self.start("run", MODEL, "--greedy", "--no-heat", "-n", "4", "-p", "Hi",
                                      "--stats", columns=columns)
                self.assertEqual(terminal.end(), 0)
                self.check_figures(terminal.rows(), r"flashmoe: 4 tokens.* \| greedy .*miss curve:")
                terminal = self.start("chat", MODEL, "--greedy", "--no-heat", "-n", "4",
                                      "--no-history", columns=columns)
                terminal.wait_for(r"\nnano>")
                terminal.type("Hi\r")
                terminal.wait_for(r"max_tokens\s+reached\s+nano>")
                self.check_figures(terminal.rows(), r" tok/s \| hits .*max_tokens reached nano>")
                self.assertTrue(columns < 80 or terminal.rows()[0].endswith("/bye quits."))
        terminal = self.start("run", MODEL, "--greedy", "--no-heat", "-n", "4", "-p", "Hi",
                              "--no-wrap", columns=40)
        self.assertEqual(terminal.end(), 0)
        self.assertTrue(any(len(row) == 40 for row in terminal.rows()), terminal.rows())

    def check_figures(self, rows, pattern):
        """A word that is broken at the edge does not match when the rows are joined."""
        text = re.sub(" +", " ", " ".join(rows))
        self.assertRegex(text, pattern)
        for words in (r"tok/s \|", r"\| memory [\d.]+ [KMG]iB of [\d.]+ [KMG]iB \|"):
            self.assertRegex(text, words)

    def test_a_pipe_is_not_wrapped(self):
        done = subprocess.run([PROGRAM, "run", self.model, *self.QUIET, "-p", "A"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout.decode(), "".join(self.SCRIPT) + "\n")

    def test_reasoning(self):
        terminal = self.start("run", self.model, *self.QUIET, "-p", "R", columns=16)
        self.assertEqual(terminal.end(), 0)
        rows = terminal.rows()
        while not rows[-1]:
            rows.pop()
        self.assertEqual(rows, ["I think about", "many words that", "fill lines.", "",
                                "Forty-two."])


class Editing(Case):
    """The line that is typed, in `chat`."""
    ARGS = ("--greedy", "--no-heat", "-n", "4", "-q", "--io", "direct", "--no-history")

    def chat(self, model=None, **more):
        terminal = self.start("chat", model or MODEL, *self.ARGS, **more)
        terminal.wait(lambda rows: any(row.endswith(">") for row in rows), "the prompt")
        return terminal

    def last(self, terminal):
        return [row for row in terminal.rows() if row][-1]

    def wait_last(self, terminal, text):
        terminal.wait(lambda rows: [row for row in rows if row][-1:] == [text], text)

    def files(self):
        for name in ("story.txt", "stories.json", "two words.txt", ".hidden"):
            (self.folder / name).write_text("Hello.\n")
        (self.folder / "sub").mkdir()
        (self.folder / "sub" / "inner.txt").write_text("Hello.\n")
        (self.folder / "evil\x1b[31mred\u009b2J.txt").write_text("x")
        (self.folder / "evil\nline.txt").write_text("x")

    def test_the_model_is_named(self):
        for name, shown in (("small.fmoe", "small>"), ("a\x1b]0;evil\x07\x1b[2Jb", "ab>"),
                            ("x" * 60, "x" * 32 + ">")):
            copy = self.folder / name
            shutil.copytree(MODEL, copy)
            terminal = self.chat(copy)
            self.assertEqual(self.last(terminal), shown)
            self.assertEqual(terminal.screen.title, "")
            terminal.type("/bye\r")
            self.assertEqual(terminal.end(), 0)

    def test_commands(self):
        terminal = self.chat()
        for typed, shown in (("/und\t", "nano> /undo"), ("\x15/lo\t", "nano> /load"),
                             ("\x15/set temp\t", "nano> /set temperature"),
                             ("\x15/think of\t", "nano> /think off")):
            terminal.type(typed)
            self.wait_last(terminal, shown)
        terminal.type("\x15/s\t\t")  # several: the second Tab lists them
        terminal.wait_for("save  set  stats  system")
        self.wait_last(terminal, "nano> /s")
        terminal.type("\x15Hello\t you")  # nothing to complete in a message
        self.wait_last(terminal, "nano> Hello you")

    def test_files(self):
        self.files()
        terminal = self.chat()
        at = f"{self.folder}/"
        for typed, shown in ((f"/load {at}storie\t", f"/load {at}stories.json"),
                             (f"\x15/load {at}su\t", f"/load {at}sub/"),
                             ("in\t", f"/load {at}sub/inner.txt"),
                             (f"\x15/load {at}.h\t", f"/load {at}.hidden"),
                             (f"\x15/load {at}tw\t", f"/load {at}two words.txt"),
                             (f"\x15/read {at}tw\t", f'/read "{at}two words.txt"')):
            terminal.type(typed)
            self.wait_last(terminal, "nano> " + shown)
        terminal.type(f"\x15/load {at}sto\t\t")
        terminal.wait_for(r"stories\.json  story\.txt")
        terminal.type(f"\x15/load {at}ev\t!")  # names that a line cannot show are left out
        self.wait_last(terminal, f"nano> /load {at}ev!")
        self.assertNotIn(b"red", terminal.raw)
        self.assertNotIn("\u009b".encode(), terminal.raw)

    def test_resized(self):
        """The line is drawn once, whatever the width was before."""
        text = "The quick brown fox jumps over the lazy dog and runs away from the bear."
        terminal = self.chat(columns=100)
        terminal.type(text)
        terminal.wait_for("bear\\.")
        whole = "nano> " + text
        for columns in (60, 40, 61, 30, 100):
            terminal.resize(columns)
            rows = [whole[i:i + columns].rstrip() for i in range(0, len(whole), columns)]
            terminal.wait(lambda shown, rows=rows: [row for row in shown if row][-len(rows):] ==
                          rows, rows)
        terminal.type("\x15/bye\r")
        self.assertEqual(terminal.end(), 0)

    def test_resized_below_text(self):
        """What stands above the line stays."""
        terminal = self.chat(columns=80)
        terminal.type("/set temperature\r")
        terminal.wait_for("temperature +0")
        terminal.type("word " * 30)
        terminal.wait(lambda rows: "".join(rows).count("word") == 30, "the words")
        for columns in (50, 90, 33):
            terminal.resize(columns)
            terminal.wait(lambda rows: "".join(rows).count("word") >= 30 and
                          any(row.startswith("temperature") for row in rows), "the words")
        terminal.type("\x15/exit\r")
        self.assertEqual(terminal.end(), 0)


class Editing(Case):
    """The line that is typed, in `chat`."""
    ARGS = ("--greedy", "--no-heat", "-n", "4", "-q", "--io", "direct", "--no-history")

    def chat(self, model=None, **more):
        terminal = self.start("chat", model or MODEL, *self.ARGS, **more)
        terminal.wait(lambda rows: any(row.endswith(">") for row in rows), "the prompt")
        return terminal

    def last(self, terminal):
        return [row for row in terminal.rows() if row][-1]

    def wait_last(self, terminal, text):
        terminal.wait(lambda rows: [row for row in rows if row][-1:] == [text], text)

    def files(self):
        for name in ("story.txt", "stories.json", "two words.txt", ".hidden"):
            (self.folder / name).write_text("Hello.\n")
        (self.folder / "sub").mkdir()
        (self.folder / "sub" / "inner.txt").write_text("Hello.\n")
        (self.folder / "evil\x1b[31mred\u009b2J.txt").write_text("x")
        (self.folder / "evil\nline.txt").write_text("x")

    def test_the_model_is_named(self):
        for name, shown in (("small.fmoe", "small>"), ("a\x1b]0;evil\x07\x1b[2Jb", "ab>"),
                            ("x" * 60, "x" * 32 + ">")):
            copy = self.folder / name
            shutil.copytree(MODEL, copy)
            terminal = self.chat(copy)
            self.assertEqual(self.last(terminal), shown)
            self.assertEqual(terminal.screen.title, "")
            terminal.type("/bye\r")
            self.assertEqual(terminal.end(), 0)

    def test_commands(self):
        terminal = self.chat()
        for typed, shown in (("/und\t", "nano> /undo"), ("\x15/lo\t", "nano> /load"),
                             ("\x15/set temp\t", "nano> /set temperature"),
                             ("\x15/think of\t", "nano> /think off")):
            terminal.type(typed)
            self.wait_last(terminal, shown)
        terminal.type("\x15/s\t\t")  # several: the second Tab lists them
        terminal.wait_for("save  set  stats  system")
        self.wait_last(terminal, "nano> /s")
        terminal.type("\x15Hello\t you")  # nothing to complete in a message
        self.wait_last(terminal, "nano> Hello you")

    def test_files(self):
        self.files()
        terminal = self.chat()
        at = f"{self.folder}/"
        for typed, shown in ((f"/load {at}storie\t", f"/load {at}stories.json"),
                             (f"\x15/load {at}su\t", f"/load {at}sub/"),
                             ("in\t", f"/load {at}sub/inner.txt"),
                             (f"\x15/load {at}.h\t", f"/load {at}.hidden"),
                             (f"\x15/load {at}tw\t", f"/load {at}two words.txt"),
                             (f"\x15/read {at}tw\t", f'/read "{at}two words.txt"')):
            terminal.type(typed)
            self.wait_last(terminal, "nano> " + shown)
        terminal.type(f"\x15/load {at}sto\t\t")
        terminal.wait_for(r"stories\.json  story\.txt")
        terminal.type(f"\x15/load {at}ev\t!")  # names that a line cannot show are left out
        self.wait_last(terminal, f"nano> /load {at}ev!")
        self.assertNotIn(b"red", terminal.raw)
        self.assertNotIn("\u009b".encode(), terminal.raw)

    def test_resized(self):
        """The line is drawn once, whatever the width was before."""
        text = "The quick brown fox jumps over the lazy dog and runs away from the bear."
        terminal = self.chat(columns=100)
        terminal.type(text)
        terminal.wait_for("bear\\.")
        whole = "nano> " + text
        for columns in (60, 40, 61, 30, 100):
            terminal.resize(columns)
            rows = [whole[i:i + columns].rstrip() for i in range(0, len(whole), columns)]
            terminal.wait(lambda shown, rows=rows: [row for row in shown if row][-len(rows):] ==
                          rows, rows)
        terminal.type("\x15/bye\r")
        self.assertEqual(terminal.end(), 0)

    def test_resized_below_text(self):
        """What stands above the line stays."""
        terminal = self.chat(columns=80)
        terminal.type("/set temperature\r")
        terminal.wait_for("temperature +0")
        terminal.type("word " * 30)
        terminal.wait(lambda rows: "".join(rows).count("word") == 30, "the words")
        for columns in (50, 90, 33):
            terminal.resize(columns)
            terminal.wait(lambda rows: "".join(rows).count("word") >= 30 and
                          any(row.startswith("temperature") for row in rows), "the words")
        terminal.type("\x15/exit\r")
        self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    if os.environ.get("FLASHMOE_SCREEN_PYTHON") != "1":
        use_packages()
    PROGRAM, MODEL, WRAP_LINES = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
