"""Tests what is sent to a terminal and to a pipe: text of models and files with control sequences.

Usage: terminal_test.py PROGRAM MODEL [TestClass...]

MODEL has a token for every byte.
"""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "api"))
import scripted_model # pylint: disable=wrong-import-position

PROGRAM = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
EVIL = "\x1b]0;evil\x07\x1b[2J\u009b31m\r"

# Control characters that must not reach a terminal: all except newline, tab, and the carriage
# return that the terminal's own driver adds before a newline.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def flashmoe(*args, text=""):
    return subprocess.run([PROGRAM, *map(str, args)], input=text.encode(), timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def at_terminal(*args, text="", stdout=True, stderr=True, env=None):
    """Returns what a terminal shows that is standard output, standard error or both."""
    master, slave = pty.openpty()
    with subprocess.Popen([PROGRAM, *map(str, args)], stdin=subprocess.PIPE,
                          stdout=slave if stdout else subprocess.DEVNULL,
                          stderr=slave if stderr else subprocess.DEVNULL,
                          env=dict(os.environ, **(env or {}))) as process:
        os.close(slave)
        process.stdin.write(text.encode())
        process.stdin.close()
        shown = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(master)
    return shown.decode().replace("\r\n", "\n")


class Case(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="terminal-test-")
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)

    def assert_clean(self, shown):
        self.assertNotEqual(shown, "")
        self.assertIsNone(CONTROL.search(shown), repr(shown[:2000]))


class Answers(Case):
    @classmethod
    def setUpClass(cls):
        """Only the bytes of control sequences, a few letters and blanks are ever selected."""
        ids = set()
        for piece in ("\x1b", "[", "]", "3", "1", "m", "x", ";", " ", "\x07", "\u009b", "\r", "\t"):
            done = flashmoe("tokenize", MODEL, "-p", piece).stdout.decode()
            ids |= {line.split()[0] for line in done.splitlines()}
        often = {}
        for piece, more in (("\u009b", 10), ("\x1b", 25)):
            done = flashmoe("tokenize", MODEL, "-p", piece).stdout.decode()
            often |= {line.split()[0]: more for line in done.splitlines()}
        bias = ",".join(f"{one}={1000 + often.get(one, 0)}" for one in sorted(ids))
        cls.args = ("--temp", "10", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "5",
                    "-n", "300", "--no-heat", "-q", "--logit-bias", bias)
        cls.raw = flashmoe("run", MODEL, *cls.args, "-p", "Hello").stdout
        cls.text = cls.raw.decode(errors="replace")

    def test_a_pipe_gets_all_of_it(self):
        for piece in (rb"\x1b[\[\]]", rb"\xc2\x9b", rb"[\r\x07]"):
            self.assertRegex(self.raw, piece)

    def test_run(self):
        shown = at_terminal("run", MODEL, *self.args, "-p", "Hello", stderr=False)
        self.assert_clean(shown)
        self.assertGreater(len(shown), 20)
        self.assertIn("x", shown)
        letters = iter(self.text)
        self.assertTrue(all(c in letters for c in shown.rstrip("\n")), "it is not what was written")

    def test_run_json(self):
        shown = at_terminal("run", MODEL, *self.args, "-p", "Hello", "--json", stderr=False)
        self.assert_clean(shown)
        answer = json.loads(shown)["text"]
        piped = json.loads(flashmoe("run", MODEL, *self.args, "-p", "Hello", "--json").stdout)
        self.assertEqual(answer, piped["text"])  # escaped, not removed
        self.assertIn("\u009b", answer)

    def test_logprobs(self):
        shown = at_terminal("run", MODEL, *self.args, "-p", "Hello", "--logprobs", "3",
                            stdout=False)
        self.assert_clean(shown)

    def test_chat(self):
        """Also if only standard output is a terminal."""
        shown = at_terminal("chat", MODEL, *self.args, text="Hello\n", stderr=False)
        self.assert_clean(shown)
        self.assertGreater(len(shown), 20)
        piped = flashmoe("chat", MODEL, *self.args, text="Hello\n").stdout
        self.assertIn(b"\x1b", piped)

    def test_chat_at_a_terminal(self):
        """Only the program's own sequences appear."""
        master, slave = pty.openpty()
        env = dict(os.environ, TERM="dumb", LC_ALL="C.UTF-8", XDG_CACHE_HOME=str(self.folder))
        with subprocess.Popen([PROGRAM, "chat", MODEL, *self.args, "--no-history"], stdin=slave,
                              stdout=slave, stderr=slave, env=env,
                              start_new_session=True) as process:
            os.close(slave)
            os.write(master, b"Hello\n/quit\n")
            shown = b""
            try:
                while piece := os.read(master, 65536):
                    shown += piece
            except OSError:
                pass
            os.close(master)
        self.assertEqual(process.returncode, 0)
        text = shown.decode()
        own = re.sub(r"\x1b\[(?:\?2004[hl]|[0-9;]*[mK]|C)|\r|\x08|\x07", "", text)
        self.assertIsNone(CONTROL.search(own), repr(own))
        self.assertNotIn("\x1b]", text)
        self.assertNotRegex(text, r"\x1b\[[0-9;]*31")
        self.assertNotIn("\u009b", text)


class Reasoning(Case):
    """Reasoning is dim on a terminal, also when it never ends, and beside the answer otherwise."""

    def setUp(self):
        super().setUp()
        scripts = {**scripted_model.SCRIPTS, "E": ["<think>Round", " and round, ", None]}
        self.model = scripted_model.make(self.folder / "model", scripts=scripts)
        self.args = ("run", self.model, "--greedy", "--no-heat", "-n", "9")

    def test_whole(self):
        shown = at_terminal(*self.args, "-p", "R", stderr=False)
        self.assertEqual(shown, "\x1b[2mLet me think.\n\n\x1b[0mForty-two.\n")

    def test_endless(self):
        shown = at_terminal(*self.args, "-p", "E", stderr=False)
        self.assertRegex(shown, r"^\x1b\[2mRound( and round, )+\n\n\x1b\[0m$")
        done = flashmoe(*self.args, "-p", "E")
        self.assertEqual(done.stdout, b"")
        self.assertRegex(done.stderr, rb"Round( and round, )+\n")


class Files(Case):
    """Texts from files: in errors, in reports, in prompts."""

    def checkpoint(self, name="model"):
        folder = self.folder / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        return folder

    def test_errors(self):
        for config in ({"model_type": EVIL}, {"model_type": "qwen3_moe", "hidden_size": EVIL},
                       {"model_type": "qwen3_moe", "architectures": [EVIL]}):
            folder = self.checkpoint(f"m{len(list(self.folder.iterdir()))}")
            (folder / "config.json").write_text(json.dumps(config))
            for command in ("inspect", "run", "plan"):
                more = ("-p", "x") if command == "run" else ()
                self.assert_clean(at_terminal(command, folder, *more))
        raw = flashmoe("inspect", self.folder / "m0").stderr
        self.assertIn(b"evil", raw)

    def test_names(self):
        """A folder that was downloaded with its name."""
        evil = self.folder / f"m{EVIL}.fmoe"
        evil.symlink_to(pathlib.Path(MODEL).resolve())
        for command in (("inspect",), ("plan", "-q"), ("inspect", "--json")):
            shown = at_terminal(*command, evil)
            self.assert_clean(shown)
            if "--json" in command:
                self.assertEqual(json.loads(shown)["model"], str(evil))
            else:
                self.assertIn("/m.fmoe", shown)
        self.assertIn(EVIL.encode(), flashmoe("inspect", evil).stdout)
        self.assert_clean(at_terminal("inspect", self.folder / f"none{EVIL}"))

    def test_verify(self):
        copy = self.folder / f"m{EVIL}.fmoe"
        shutil.copytree(MODEL, copy)
        (copy / f"notes{EVIL}").write_text("x")
        with open(copy / "experts-000.bin", "r+b") as file:
            byte = file.read(1)[0]
            file.seek(0)
            file.write(bytes([byte ^ 1]))
        shown = at_terminal("verify", copy, "-q")
        self.assert_clean(shown)
        self.assertIn("BAD  expert 0 of layer 0", shown)

    def test_prompts(self):
        talk = self.folder / "talk.json"
        talk.write_text(json.dumps([{"role": "user", "content": f"Hello{EVIL}you"}]))
        shown = at_terminal("template", MODEL, talk)
        self.assert_clean(shown)
        self.assertIn("Helloyou", shown)
        self.assertIn(EVIL.encode(), flashmoe("template", MODEL, talk).stdout)
        self.assert_clean(at_terminal("template", MODEL, talk, "--tokens"))
        self.assert_clean(at_terminal("tokenize", MODEL, "-p", f"Hello{EVIL}you"))

    def test_conversations(self):
        """The path and the text of a loaded file."""
        bad = self.folder / "bad.json"
        bad.write_text('{"messages": [{"role": "' + "\\u001b]0;x\\u0007\\u009b2J" + '"}]}')
        self.assert_clean(at_terminal("chat", MODEL, "--no-heat", "-q",
                                      text=f"/load {bad}\n/set a{EVIL[:-1]}\n/zz{EVIL[:-1]}\n"))


if __name__ == "__main__":
    PROGRAM, MODEL = map(os.path.abspath, sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
