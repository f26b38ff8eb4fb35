"""Tests the words of the command line: the model, the question, standard input, options of other
tools, suggestions, and the default model.

Usage: words_test.py PROGRAM MODEL [TestClass...]

MODEL has a tokenizer and a chat template.
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

PROGRAM = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine
ARGS = ("-n", "4", "--no-heat", "--io", "direct")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flashmoe-words-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_program(self, *args, text="", program=None, cwd=None, **env):
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("HF_", "HUGGING", "FLASHMOE_", "XDG_"))}
        clean.update(HOME=str(self.folder), FLASHMOE_MODEL=MODEL)
        clean.update({name: str(value) for name, value in env.items() if value is not None})
        for name in [name for name, value in env.items() if value is None]:
            clean.pop(name, None)
        return subprocess.run([program or PROGRAM, *map(str, args)], input=text, env=clean,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                              timeout=SECONDS, cwd=cwd, check=False)

    def refused(self, *args, words=(), status=2, **more):
        done = self.run_program(*args, **more)
        self.assertEqual((done.returncode, done.stdout), (status, ""), (args, done.stderr))
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done.stderr

    def answer(self, *args, sampling=("--greedy",), **more):
        """Returns the JSON of `run`."""
        done = self.run_program("run", *args, *ARGS, "--json", *sampling, **more)
        self.assertEqual(done.returncode, 0, (args, done.stderr))
        return json.loads(done.stdout)

    def assert_same_prompt(self, a, b):
        for name in ("n_prompt_tokens", "logits_hash", "text"):
            self.assertEqual(a[name], b[name])


class Question(Case):
    def test_a_question_alone(self):
        expected = self.answer("-p", "Tell me a story.")
        self.assert_same_prompt(self.answer("Tell me a story."), expected)
        self.assertEqual(self.answer("Tell me a story.")["model"], MODEL)

    def test_model_and_question(self):
        for words in ((MODEL, "Tell me a story."), ("-m", MODEL, "Tell me a story."),
                      ("--model", MODEL, "Tell me a story."),
                      ("Tell me a story.", f"--model={MODEL}")):
            with self.subTest(words=words):
                got = self.answer(*words, FLASHMOE_MODEL="/nowhere")
                self.assert_same_prompt(got, self.answer(MODEL, "-p", "Tell me a story."))
                self.assertEqual(got["model"], MODEL)

    def test_single_words(self):
        """What is a question, what is a model, what is refused."""
        for word in ("Hello", "2+2", "Why?", "\u4f60\u597d\u5417", "a,b", "What's up",
                     "\u6771\u4eac/\u5927\u962a\u306e\u9055\u3044\u306f\uff1f", "1 or 2"):
            with self.subTest(question=word):
                self.assert_same_prompt(self.answer(word), self.answer("-p", word))
        for word in ("qwen3", "llama3.2:1b", "Hello-world", "42", "Qwen3-30B-A3B", "org_name"):
            with self.subTest(unclear=word):
                self.refused("run", word, words=(f"'{word}'", f"-p {word}", "flashmoe list"))
        for word in ("TCP/IP", "Qwen/Qwen3-30B", "./model.fmoe", "model.gguf", "/no/such/file",
                     "a/b/c", "/my models/x.gguf", "~/x", "https://example.org/x.gguf"):
            with self.subTest(model=word):
                self.refused("run", word, words=("looks like a model", f'-p "{word}"'))

    def test_a_file_is_a_model(self):
        """Also one with blanks, or one that is named like a question."""
        for name in ("my model", "Hello", "qwen3"):
            link = self.folder / name
            link.symlink_to(MODEL)
            self.assertEqual(self.answer(name, "-p", "Hi", cwd=self.folder)["model"], name)
            done = self.run_program("run", name, *ARGS, "--json", text="Hi", cwd=self.folder)
            self.assertEqual(json.loads(done.stdout)["model"], name)

    def test_a_pulled_name(self):
        models = self.folder / "models"
        (models / "org").mkdir(parents=True)
        (models / "org/small.fmoe").symlink_to(MODEL)
        got = self.answer("org/small", "Hello you", FLASHMOE_MODELS=models)
        self.assertEqual(got["model"], str(models / "org/small.fmoe"))
        done = self.run_program("run", "org/small", *ARGS, "--greedy", "--json", text="Hello you",
                                FLASHMOE_MODELS=models)
        self.assert_same_prompt(json.loads(done.stdout), got)
        self.refused("run", "Hello you", "org/small", words=("model comes first", "org/small"),
                     FLASHMOE_MODELS=models)

    def test_mistakes(self):
        self.refused("run", "Hello you", MODEL, words=("the model comes first",))
        self.refused("run", "Hello", "you", words=("'Hello' is no file", '"Hello you"'))
        self.refused("run", "What", "is", "the", "Moon", words=("'the'", "quotes"))
        self.refused("run", MODEL, "Hi", "-p", "Hi", words=("given twice", "-p"))
        self.refused("run", "Hi you", "-p", "Hi", words=("given twice", "-p"))
        self.refused("run", "Hi you", "-f", "x", words=("given twice", "-f", "< FILE"))
        self.refused("run", "-m", MODEL, MODEL, "Hi", words=("the model is given twice",))
        self.refused("run", "-m", MODEL, "What", "is", words=("'is'", "quotes",
                                                              f'-m {MODEL} "What is"'))
        self.refused("run", "-m", MODEL, "What", "is", "it", words=("'it'", "quotes"))
        self.refused("run", "-m", MODEL, "a/b", "Hi", words=("the model is given twice", "a/b"))
        self.refused("run", "-m", MODEL, "-m", MODEL, words=("the model is given twice",))
        self.refused("chat", "-m", MODEL, MODEL, words=("the model is given twice",))
        self.refused("run", "-m", words=("-m needs a value",))
        self.refused("run", "", words=("the prompt is empty",))

    def test_a_note_for_a_word(self):
        done = self.run_program("run", "Hello", *ARGS)
        self.assertIn("note: 'Hello' is taken as a question", done.stderr)
        for more in (("-q",), ("you",)):
            word = "Hello" if more == ("-q",) else "Hello you"
            done = self.run_program("run", word, *ARGS, *(m for m in more if m == "-q"))
            self.assertNotIn("is taken as", done.stderr)


class Context(Case):
    """Standard input together with a question."""

    def test_it_comes_first(self):
        expected = self.answer("-p", "Apples are red.\nPears too.\n\nWhat is red?")
        for words in (("-p", "What is red?"), ("What is red?",), (MODEL, "What is red?")):
            for text in ("Apples are red.\nPears too.", "Apples are red.\nPears too.\n\n \n"):
                with self.subTest(words=words, text=text):
                    self.assert_same_prompt(self.answer(*words, text=text), expected)

    def test_none(self):
        expected = self.answer("-p", "What is red?")
        for text in ("", "\n", " \n\t\n"):
            self.assert_same_prompt(self.answer("-p", "What is red?", text=text), expected)

    def test_raw(self):
        expected = self.answer("--raw", "-p", "One\nTwo\nThree")
        self.assert_same_prompt(self.answer("--raw", "-p", "Three", text="One\nTwo\n"), expected)

    def test_dash(self):
        """`-` in the place of the question is standard input, as with -f."""
        expected = self.answer("-p", "Apples.")
        for words in ((MODEL, "-"), ("-",), ("-m", MODEL, "-"), ("-f", "-"), (MODEL, "-f", "-")):
            self.assert_same_prompt(self.answer(*words, text="Apples."), expected)
        self.refused("run", "-", words=("the prompt is empty",))

    def test_too_much(self):
        """The size is named, not the template, and the program does not work long on it."""
        text = "word " * 2_000_000
        for words in (("-p", "What?"), ("--raw", "-p", "What?"), ()):
            done = self.run_program("run", *words, *ARGS, "-q", text=text)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"the prompt has 1\d{7} bytes, which are at least \d+ "
                                          r"tokens, but the context holds \d+.*shorten the prompt")

    def test_it_is_said(self):
        done = self.run_program("run", "-p", "What?", *ARGS, text="Apples.\n")
        self.assertIn("begins with 7 bytes of standard input", done.stderr)
        done = self.run_program("run", "-p", "What?", *ARGS, "-q", text="Apples.\n")
        self.assertEqual(done.stderr, "")

    def test_not_a_terminal(self):
        """A terminal is not read: the program would wait for the user."""
        master, slave = pty.openpty()
        with subprocess.Popen([PROGRAM, "run", MODEL, "-p", "Hi", *ARGS, "-q"], stdin=slave,
                              stdout=subprocess.PIPE) as process:
            self.assertNotEqual(process.stdout.read(), b"")
        self.assertEqual(process.returncode, 0)
        os.close(master)
        os.close(slave)

    def test_nothing_to_read(self):
        """nohup opens standard input for writing only; some programs leave a folder there."""
        for opened in (os.open(os.devnull, os.O_WRONLY), os.open("/", os.O_RDONLY)):
            with self.subTest(opened=opened):
                done = subprocess.run([PROGRAM, "run", MODEL, "-p", "Hi", *ARGS], stdin=opened,
                                      capture_output=True, check=False)
                os.close(opened)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_open_pipe(self):
        """A program that leaves standard input open sees what is waited for, also with -q."""
        with subprocess.Popen([PROGRAM, "run", MODEL, "-p", "Hi", *ARGS, "-q"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            self.assertIn(b"waiting for the end of standard input", process.stderr.readline())
            process.stdin.close()
            process.stdout.read()
            process.stderr.read()
        self.assertEqual(process.returncode, 0)

    def test_other_commands_do_not_read_it(self):
        done = self.run_program("tokenize", MODEL, "-p", "Hi", text="not read")
        self.assertEqual(done.stdout, self.run_program("tokenize", MODEL, "-p", "Hi").stdout)


class Flags(Case):
    """Options of other tools."""

    def listed(self):
        """Returns [(spellings, ours or None, answer or None)] as `help flags` shows them."""
        shown = self.run_program("help", "flags").stdout
        accepted, answered = shown.split("These are answered")
        found = [(left.split(), right, None) for left, right in
                 re.findall(r"(?m)^  (-\S+(?: -\S+)*) +(--\S+|MODEL)$", accepted)]
        found += [(left.split(), None, answer) for left, answer in
                  re.findall(r"(?m)^  (-.+)\n      (.+)$", answered)]
        self.assertGreater(len(found), 25)
        return found

    def options(self, command):
        return set(re.findall(r"(?m)^  (?:-\w, |    )--([\w-]+)",
                              self.run_program(*command.split(), "--help").stdout))

    def test_accepted(self):
        """Each is the option that the table names: a bad value is refused under that name, or the
        value is used."""
        number = {"context", "n-tokens", "temp", "typical-p", "repeat-penalty", "seed", "threads",
                  "parallel"}
        seen = set()
        for command in ("run", "chat", "serve"):
            known = self.options(command)
            for spellings, ours, _ in self.listed():
                if ours is None or ours == "MODEL" or ours[2:] not in known:
                    continue
                for spelling in spellings:
                    seen.add(ours)
                    with self.subTest(command=command, spelling=spelling):
                        if ours[2:] in number:
                            self.refused(command, spelling, "x", words=(f"{ours}: 'x'",))
                        else:
                            done = self.run_program(command, spelling, "x", "--help")
                            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(seen, {ours for _, ours, _ in self.listed() if ours} - {"MODEL"})

    def test_answered(self):
        known = {command: self.options(command) for command in ("run", "serve")}
        for spellings, _, answer in self.listed():
            if answer is None:
                continue
            for option in re.findall(r"--([\w-]+)", answer):
                self.assertTrue(any(option in each for each in known.values()), answer)
            for spelling in spellings:
                with self.subTest(spelling=spelling):
                    self.refused("run", spelling, "1", words=(spelling, answer))

    def test_values(self):
        expected = self.answer("--system", "Be kind.", "--context", "300", "--temp", "0.5",
                               "--top-p", "0.9", "--seed", "3", "--threads", "1", "-p", "Hello you",
                               sampling=())
        got = self.answer("-sys", "Be kind.", "-c300", "--temperature=0.5", "--top_p", "0.9", "-s",
                          "3", "-t", "1", "Hello you", sampling=())
        self.assert_same_prompt(got, expected)
        for name in ("n_context", "sampling", "seed", "n_threads"):
            self.assertEqual(got[name], expected[name])
        self.assertEqual(got["n_context"], 300)

    def test_values_of_other_tools(self):
        """-1 and 0 where llama.cpp has a meaning for them."""
        plain = self.answer("-p", "Hello you", "--temp", "0.5", "-t", "1", sampling=())
        got = self.answer("-p", "Hello you", "--temp", "0.5", "-c", "0", "--seed", "-1", "-t", "1",
                          sampling=())
        again = self.answer("-p", "Hello you", "--temp", "0.5", "-s", "7", "-s", "-1", sampling=())
        self.assertEqual(got["n_context"], plain["n_context"])
        self.assertEqual(len({plain["seed"], got["seed"], again["seed"], 7}), 4)
        self.assertEqual(self.answer("-p", "Hi", "-t", "-1")["n_threads"],
                         self.answer("-p", "Hi")["n_threads"])
        for words in (("-n", "-1"), ("-n-1",), ("--n-predict", "-2"), ("-n", "3", "-n", "-1")):
            done = self.run_program("run", "-p", "Tell me.", "-c", "40", "--greedy", "--json",
                                    "--no-heat", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            got = json.loads(done.stdout)
            self.assertIn(got["stop_reason"], ("context", "stop"))
            self.assertGreater(got["n_tokens"], 4)
        for words in (("-t", "-3"), ("--seed", "-5"), ("-n", "-7")):
            self.refused("run", *words, "Hi", words=(words[1], "out of range", " to "))

    def test_of_other_commands(self):
        """Where the command has no such option, the answer would mislead."""
        self.refused("inspect", "-ngl", "3", words=("unknown option '-ngl'", "help inspect"))
        self.refused("completions", "-m", "x", words=("unknown option '-m'",))
        self.refused("run", "-np", "2", words=("unknown option '-np'",))
        self.refused("run", "--port", "80", words=("'--port' is an option of 'flashmoe serve'",))

    def test_ours_come_first(self):
        """-n and -p keep their meaning, also with attached values."""
        self.assertEqual(self.answer("-pHello you", "-n2")["n_tokens"], 4)  # ARGS come later
        self.refused("run", "-nx", words=("--n-tokens: 'x'",))

    def test_in_the_manual(self):
        page = self.run_program("help", "--man").stdout
        self.assertIn(".SH OPTIONS OF OTHER TOOLS", page)
        self.assertIn("\\-ngl", page)


class Suggestions(Case):
    def test_commands(self):
        for typed, meant in (("rnu", "run"), ("srve", "serve"), ("ls", "list"), ("delete", "rm"),
                             ("download", "pull"), ("show", "inspect"), ("chta", "chat"),
                             ("server", "serve"), ("generate", "run"), ("quantize", "pack"),
                             ("version", "--version")):
            self.refused(typed, words=(f"did you mean '{meant}'",))
        self.refused("Why is the sky blue?", words=('flashmoe run "Why is the sky blue?"',))
        self.refused(MODEL, words=(f"flashmoe run {MODEL}",))
        self.refused("zzzzzz", words=("'flashmoe help' lists the commands",))

    def test_options(self):
        for typed, meant in (("--temprature", "--temperature"), ("--ctx-siz", "--ctx-size"),
                             ("--memroy", "--memory"), ("--topp", "--top-p"),
                             ("--treads", "--threads")):
            self.refused("run", typed, "1", words=(f"did you mean '{meant}'",))
        self.refused("run", "--zzzzzz", words=("'flashmoe help run' lists the options",))


class Default(Case):
    """The default model, where it is missing."""

    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        self.program = shutil.copy(PROGRAM, self.folder / "bin" / "flashmoe")

    def test_nothing_is_installed(self):
        for command in (("run", "Hi you"), ("chat",), ("inspect",), ("plan",),
                        ("run", "nano", "Hi"), ("serve", "--port", "0"), ("tokenize", "-p", "x")):
            said = self.refused(*command, program=self.program, FLASHMOE_MODEL=None, status=1,
                                words=("share/flashmoe/nano.fmoe", "models/nano.fmoe",
                                       str(self.folder), "FLASHMOE_MODEL", "flashmoe pull"))
            self.assertEqual("no MODEL was given" in said, "nano" not in command)

    def test_the_variable(self):
        self.refused("run", "Hi you", FLASHMOE_MODEL="/no/such/model", status=1,
                     words=("FLASHMOE_MODEL", "'/no/such/model'", "unset"))
        self.refused("run", "Hi you", FLASHMOE_MODEL="org/none", status=1,
                     words=("FLASHMOE_MODEL", "flashmoe pull org/none"))
        self.refused("run", "Hi you", FLASHMOE_MODEL="", program=self.program, status=1,
                     words=("no MODEL was given",))
        (self.folder / "models").mkdir()
        (self.folder / "models/nano.fmoe").symlink_to(MODEL)
        self.answer("Hi you", FLASHMOE_MODEL="nano", program=self.program)

    def test_names_everywhere(self):
        """A bundled or pulled name works in every command that takes a model."""
        models = self.folder / "pulled"
        (models / "org").mkdir(parents=True)
        (models / "org/small.fmoe").symlink_to(MODEL)
        (self.folder / "models").mkdir()
        (self.folder / "models/nano.fmoe").symlink_to(MODEL)
        (self.folder / "text").write_text("Once upon a time. " * 40)
        (self.folder / "hosts").write_text("a slots=1\n")
        overview = self.run_program("help").stdout
        takes = {command for command in re.findall(r"(?m)^  ([a-z]+(?: [a-z]+)?)  ", overview)
                 if re.search(r"(?m)^Usage: .*\b(MODEL|SRC)\b",
                              self.run_program(*command.split(), "--help").stdout)}
        args = {
            "run": ("-p", "Hi", *ARGS), "inspect": (), "verify": ("-q",), "tokenize": ("-p", "Hi"),
            "doctor": ("--quick", "-q"),
        }
        self.assertLessEqual(set(args), takes)
        env = {"program": self.program, "FLASHMOE_MODEL": None, "FLASHMOE_MODELS": models}
        for command, more in args.items():
            for name in ("nano", "org/small") if command == "run" else ("nano",):
                with self.subTest(name=name, command=command):
                    done = self.run_program(*command.split(), name, *more, **env)
                    self.assertEqual(done.returncode, 0, done.stderr)
        # Every command looks for a name before it does anything else.
        for command in sorted(takes):
            with self.subTest(command=command):
                first = (self.folder / "hosts",) if command == "cluster plan" else ()
                needs_file = command.split()[0] in ("eval", "template")
                # Alone behind run, it could be a question.
                more = ((self.folder / "text",) if needs_file else
                        ("-p", "Hi") if command == "run" else ())
                self.refused(*command.split(), *first, "org/none", *more, status=1,
                             words=("flashmoe pull org/none",), **env)

    def test_doctor_needs_none(self):
        done = self.run_program("doctor", "--quick", program=self.program, FLASHMOE_MODEL=None)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = map(os.path.abspath, sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
