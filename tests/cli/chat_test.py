"""Tests `chat` as a script uses it, through pipes, and as a person does, at a terminal.

Usage: chat_test.py PROGRAM MODEL [TestClass...]

MODEL has a tokenizer and answers in text. FLASHMOE_CHAT_TURNS is how long the test of memory is;
FLASHMOE_HAS_LIBEDIT is 1 where the program edits lines.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cli_test
from cli_test import Case, flashmoe

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "api"))
import scripted_model

ARGS = ("--greedy", "-n", "24", "--memory", "400M", "--no-heat")


class Talking(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def talk(self, *lines, args=ARGS):
        result = flashmoe("chat", cli_test.MODEL, *args, text="\n".join(lines) + "\n")
        return self.assert_works(result)

    def messages(self, *lines, args=ARGS):
        """Returns the conversation after these lines."""
        path = self.path("messages.json")
        self.talk(*lines, f"/save {path}", args=args)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["messages"]

    def answers(self, *lines, args=ARGS):
        return [each["content"] for each in self.messages(*lines, args=args)
                if each["role"] == "assistant"]

    def turns(self, out):
        """Returns (tokens of the prompt, reused, computed) of every /stats."""
        return [tuple(map(int, found)) for found in
                re.findall(r"(\d+) tokens: (\d+) reused, (\d+) computed", out)]


class Talk(Talking):
    def test_two_turns(self):
        result = self.talk("Tell me a story about a cat.", "/stats", "What then?", "/stats")
        first, second = self.turns(result.stdout)
        self.assertEqual(first[1:], (0, first[0]))
        self.assertGreaterEqual(second[1], first[0])
        self.assertEqual(second[1] + second[2], second[0])
        self.assertLess(second[2], 20)
        self.assertEqual(result.stderr, "")
        self.assertNotIn("\033", result.stdout)
        self.assertNotIn("> ", result.stdout)

    def test_as_run_answers(self):
        text = "Tell me a story about a cat."
        run = self.assert_works(flashmoe("run", cli_test.MODEL, *ARGS, "-q", "-p", text))
        self.assertEqual(self.talk(text).stdout, run.stdout)

    def test_undo(self):
        one = self.messages("Tell me a story.")
        self.assertEqual(self.messages("Tell me a story.", "And the dog?", "/undo"), one)
        other = self.messages("And the dog?", "/undo", "Tell me a story.")
        self.assertEqual(other, one)
        self.assertIn("nothing to undo", self.talk("/undo").stderr)

    def test_regen(self):
        args = ("--temp", "1.5", "--seed", "5", "-n", "12", "--memory", "400M", "--no-heat")
        ask = "Tell me a story."
        first = self.answers(ask, args=args)
        self.assertEqual(self.answers(ask, args=args), first)
        again = self.answers(ask, "/regen", args=args)
        self.assertEqual(len(again), 1)
        self.assertNotEqual(again, first)
        self.assertEqual(self.answers(ask, "/regen", args=args), again)
        self.assertEqual(self.answers(ask, "/regen", "/set seed 5", "/regen", args=args), first)
        result = self.talk(ask, "/regen", "/stats", args=args)
        self.assertEqual(self.turns(result.stdout)[0][2], 1)
        self.assertIn("no answer yet", self.talk("/regen").stderr)

    def test_system(self):
        messages = self.messages("/system Be kind.", "Hello", "/system Be brief.")
        self.assertEqual(messages[0], {"role": "system", "content": "Be brief."})
        self.assertEqual([each["role"] for each in messages], ["system", "user", "assistant"])
        self.assertEqual(self.messages("/system Be kind.", "/system")[:1], [])
        given = self.messages("Hello", args=(*ARGS, "--system", "Be kind."))
        file = self.path("system.txt", "Be kind.\n")
        self.assertEqual(self.messages("Hello", args=(*ARGS, "--system-file", file)), given)
        self.assertEqual(self.messages("/system Be kind.", "Hello"), given)
        kept = self.messages("Hello", "/new", args=(*ARGS, "--system", "Be kind."))
        self.assertEqual(kept, given[:1])

    def test_system_is_read_ahead(self):
        result = self.talk("/stats", "Hello", "/stats",
                           args=(*ARGS, "--system", "Be kind to everybody you meet."))
        ahead, first = self.turns(result.stdout)
        self.assertEqual(first[1], ahead[0])
        self.assertGreater(ahead[2], 5)

    def test_set(self):
        out = self.talk("/set").stdout
        self.assertEqual(len(out.splitlines()), 11)
        self.assertRegex(out, r"(?m)^temperature +0$")
        self.assertRegex(out, r"(?m)^max_tokens +24$")
        out = self.talk("/set top-p 0.25", "/set top_p").stdout
        self.assertEqual(re.findall(r"top_p +(\S+)", out), ["0.25", "0.25"])
        self.assertIn("9007199254740993", self.talk("/set seed 9007199254740993").stdout)
        short = self.talk("/set max_tokens 3", "Tell me a story.", "/stats").stdout
        self.assertIn("3 tokens (length)", short)
        for line, word in (("top_p 2", "0 to 1"), ("top_p x", "'x'"), ("seed 1.5", "whole"),
                           ("seed -1", "whole"), ("temprature 1", "'temperature'"),
                           ("zzz 1", "/set lists")):
            self.assertIn(word, self.talk(f"/set {line}").stderr)

    def test_think(self):
        result = self.talk("/think", "/think on", "/think off", "/think maybe")
        self.assertRegex(result.stderr, r"template's default\n.*: on\n.*: off\n.*on or off, not")

    def test_wrong_commands(self):
        result = self.talk("/staats", "/zzz", "/", "/save", "/load", "/read", "/read /no/such",
                           f"/load {self.path('none')}")
        self.assertEqual(result.stdout, "")
        self.assertIn("'/staats'; did you mean '/stats'?", result.stderr)
        self.assertEqual(result.stderr.count("/help"), 3)
        self.assertEqual(len(result.stderr.splitlines()), 8)
        self.assertEqual(self.messages("/zzz", "/read /no/such"), [])
        self.assertEqual(self.messages(" /zzz")[0]["content"], " /zzz")

    def test_help(self):
        out = self.talk("/help").stdout
        for word in "help system think regen undo save load read stats set quit".split():
            self.assertIn(f"/{word} ", out)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_quit(self):
        for word in ("/quit", "/bye", "/exit"):
            self.assertEqual(self.talk(word, "Hello").stdout, "")
        self.assertEqual(self.talk("/?").stdout, self.talk("/help").stdout)
        self.assertEqual(self.talk("/clear").stderr, self.talk("/new").stderr)

    def test_several_lines(self):
        def user(*lines):
            return [each["content"] for each in self.messages(*lines) if each["role"] == "user"]
        self.assertEqual(user('"""', "one", "", "/two", '"""'), ["one\n\n/two"])
        self.assertEqual(user('"""one', 'two"""', "three"), ["one\ntwo", "three"])
        self.assertEqual(user('"""one"""'), ["one"])
        self.assertEqual(user("one\\", "two\\", "three"), ["one\ntwo\nthree"])
        self.assertEqual(user("", "  ", '"""', '"""', "one"), ["one"])
        result = flashmoe("chat", cli_test.MODEL, *ARGS, text='"""\nnever closed')
        self.assertNotEqual(self.assert_works(result).stdout, "")
        self.assertEqual(flashmoe("chat", cli_test.MODEL, *ARGS, text="").stdout, "")

    def test_read(self):
        file = self.path("a b.txt", "Line one.\nLine two.\n")
        messages = self.messages(f'/read "{file}"', f'/read "{file}" What is this?')
        self.assertEqual([each["content"] for each in messages if each["role"] == "user"],
                         ["Line one.\nLine two.", "What is this?\n\nLine one.\nLine two."])
        self.assertIn("is empty", self.talk(f"/read {self.path('empty', '')}").stderr)
        self.assertIn("is not text", self.talk(f"/read {cli_test.PROGRAM}").stderr)

    def test_context_full(self):
        args = (*ARGS, "--context", "64", "-n", "0")
        result = self.talk("Tell me a story about a cat.", "What then?", "/stats", args=args)
        self.assertEqual(result.stderr.count("--context"), 2)
        self.assertIn("the answer was cut off", result.stderr)
        self.assertIn("The message was not added", result.stderr)
        self.assertIn("2 messages, position 64 of 64", result.stdout)
        roles = [each["role"] for each in self.messages("Tell me a story about a cat.",
                                                        "What then?", "/undo", "Hi", args=args)]
        self.assertEqual(roles, ["user", "assistant"])

    def test_stop_strings(self):
        whole = self.answers("Tell me a story.")[0]
        word = whole.split()[3]
        cut = self.answers("Tell me a story.", args=(*ARGS, "--stop", word))[0]
        self.assertEqual(cut, whole[:whole.index(word)])


class Parts(Talking):
    """Reasoning and markers, with the scripted model."""

    def setUp(self):
        super().setUp()
        self.model = scripted_model.make(os.path.join(self.folder, "model"))

    def make_special(self, *markers):
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        for token in tokenizer["added_tokens"]:
            token["special"] = token["special"] or token["content"] in markers
        path.write_text(json.dumps(tokenizer))

    def ask(self, *lines, args=ARGS):
        saved = self.path("saved.json")
        result = self.assert_works(flashmoe("chat", self.model, *args,
                                            text="\n".join((*lines, f"/save {saved}")) + "\n"))
        with open(saved, encoding="utf-8") as file:
            return result, [each for each in json.load(file)["messages"]
                            if each["role"] == "assistant"]

    def test_reasoning(self):
        result, answers = self.ask("say R")
        self.assertEqual((result.stdout, answers), ("Forty-two.\n", [
            {"role": "assistant", "content": "Forty-two.", "reasoning_content": "Let me think."}]))
        self.assertIn("Let me think.", result.stderr)
        result, answers = self.ask("say R", args=(*ARGS, "-q", "-n", "2"))
        self.assertEqual(result.stdout, "")
        self.assertNotIn("Let me", result.stderr)
        self.assertEqual(answers[0]["reasoning_content"], "Let me think")

    def test_stop_in_reasoning(self):
        _, answers = self.ask("say R", args=(*ARGS, "--stop", "me"))
        self.assertEqual([(each["content"], each["reasoning_content"]) for each in answers],
                         [("", "Let ")])

    def test_calls_are_text(self):
        """Chat does not parse calls, so their markers are shown even if they are special tokens, as
        the server shows them to requests without tools."""
        self.make_special(*scripted_model.TAGS)
        result, answers = self.ask("say W")
        text = "".join(scripted_model.SCRIPTS["W"])
        self.assertEqual((answers[0]["content"], result.stdout), (text, text + "\n"))


class Files(Talking):
    ASK = ("Tell me a story about a cat.", "What did the cat do then?")

    def test_save_and_load(self):
        whole = self.messages(*self.ASK)
        path = self.path("saved.json")
        self.talk(self.ASK[0], f"/save {path}")
        self.assertTrue(os.path.exists(path + ".fmsnap"))
        out = self.path("messages.json")
        result = self.talk(f"/load {path}", self.ASK[1], "/stats", f"/save {out}")
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["messages"], whole)
        n_prompt, n_reused, n_computed = self.turns(result.stdout)[0]
        direct = self.turns(self.talk(*self.ASK, "/stats").stdout)[0]
        self.assertEqual((n_prompt, n_reused, n_computed), direct)
        self.assertLess(n_computed, 20)
        again = self.talk(f"/load {path}", "/set max_tokens 24", "/regen", "/stats").stdout
        self.assertEqual(self.turns(again)[0][2], 1)

    def test_without_snapshot(self):
        whole = self.messages(*self.ASK)
        path = self.path("saved.json")
        for damage in (os.remove, lambda name: self.path(os.path.basename(name), "damaged")):
            self.talk(self.ASK[0], f"/save {path}")
            damage(path + ".fmsnap")
            out = self.path("messages.json")
            result = self.talk(f"/load {path}", self.ASK[1], "/stats", f"/save {out}")
            self.assertIn("computes the conversation again", result.stderr)
            self.assertEqual(self.turns(result.stdout)[0][1], 0)
            with open(out, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["messages"], whole)

    def test_other_files(self):
        array = self.path("array.json", json.dumps([{"role": "user", "content": "Hi"},
                                                    {"role": "assistant", "content": "Hello."}]))
        self.assertEqual(len(self.messages(f"/load {array}", "And?")), 4)
        for text, word in (("{", "not JSON"), ("{}", "not a conversation"), ("[1]", "no role"),
                           ('{"messages": 1}', "not a conversation"), ("3", "JSON")):
            bad = self.path("bad.json", text)
            self.assertIn(word, self.talk(f"/load {bad}").stderr)
            self.assertEqual(len(self.messages("Hi", f"/load {bad}")), 2)
        self.assertIn("cannot", self.talk("Hi", f"/save {self.path('no/such/file')}").stderr)

    def test_saved_is_what_template_takes(self):
        path = self.path("saved.json")
        self.talk("Hello", "/think off", f"/save {path}")
        shown = self.assert_works(flashmoe("template", cli_test.MODEL, path)).stdout
        self.assertIn("<|im_start|>user\nHello<|im_end|>", shown)

    def test_snapshots(self):
        args = (*ARGS, "--snapshots", self.path("snapshots"), "--system",
                "You are a kind teller of stories for small children.")
        cold = self.talk("/stats", "Hello", "/stats", args=args)
        self.assertEqual(self.turns(cold.stdout)[0][1], 0)
        warm = self.talk("/stats", "Hello", "/stats", args=args)
        ahead, first = self.turns(warm.stdout)
        self.assertEqual(ahead[2], 0)
        self.assertEqual(first[2], 1)  # the conversation was saved when the first one ended
        self.assertEqual(re.findall(r"(?m)^(?!\w+ ).*$", warm.stdout),
                         re.findall(r"(?m)^(?!\w+ ).*$", cold.stdout))


class Person:
    """A person at a terminal of 100 columns."""

    def __init__(self, *args, env=None):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})})
            os.execv(cli_test.PROGRAM, [cli_test.PROGRAM, "chat", cli_test.MODEL, *args])
        self.seen = ""

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def wait(self, pattern, seconds=1800):
        """Returns everything up to the first match and consumes it."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"{pattern!r} did not come after {self.seen!r}")
            try:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended before {pattern!r}: {self.seen!r}") from None
        at = re.search(pattern, self.seen).end()
        found, self.seen = self.seen[:at], self.seen[at:]
        return found

    def leave(self):
        try:
            while os.read(self.terminal, 65536):
                pass
        except OSError:
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Terminal(Talking):
    STATUS = r"tok/s \| hits [\d.]+% \| disk [\d.]+ GB/s \| memory [^|]+ of [^|]+ \| \d+/\d+"
    READY = r"\x1b\[\?2004h[^\n]*> "

    def person(self, *args):
        try:
            person = Person(*ARGS[1:], "--temp", "0", *args,
                            env={"XDG_CACHE_HOME": self.folder, "HOME": self.folder})
        except OSError as why:
            self.skipTest(f"no terminal to be had: {why}")
        self.addCleanup(self.end, person)
        person.wait(self.READY)
        return person

    def end(self, person):
        try:
            os.kill(person.pid, signal.SIGKILL)
            os.waitpid(person.pid, 0)
            os.close(person.terminal)
        except (OSError, ChildProcessError):
            pass

    def saved(self, person):
        path = self.path("seen.json")
        person.type(f"/save {path}\r")
        person.wait(r"saved \d+ messages")
        person.wait(self.READY)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["messages"]

    def test_a_turn(self):
        person = self.person()
        person.type("Tell me a story.\r")
        self.assertIn("\x1b[2m", person.wait(self.STATUS))
        person.wait(self.READY)
        self.assertEqual(self.saved(person)[0]["content"], "Tell me a story.")
        person.type("\x04")
        self.assertEqual(person.leave(), 0)
        if os.environ.get("FLASHMOE_HAS_LIBEDIT") != "1":
            self.skipTest("plain lines have no history")
        with open(self.path("flashmoe/chat_history"), encoding="utf-8") as file:
            self.assertIn("story", file.read())

    def test_editing_and_history(self):
        person = self.person("--no-history")
        person.type("Hello wörldx\x7f\r")
        person.wait(self.STATUS)
        person.wait(self.READY)
        self.assertEqual(self.saved(person)[0]["content"], "Hello wörld")
        self.assertFalse(os.path.exists(self.path("flashmoe/chat_history")))

    def clear_line(self, person):
        """Between two lines Ctrl-C has nothing to clear and no effect."""
        for _ in range(5):
            person.type("\x03")
            try:
                person.wait(self.READY, 5)
                return
            except AssertionError:
                pass
        self.fail("Ctrl-C does not clear the line")

    def test_interrupt(self):
        person = self.person("-n", "0", "--logit-bias", "16383=-inf,16381=-inf")
        person.type("Tell me a story.\r")
        person.wait(r"(?:\w+[ ,.!?\"\r\n]+){12}")
        person.type("\x03")
        person.wait(r"\| interrupted")
        person.wait(self.READY)
        messages = self.saved(person)
        self.assertEqual([each["role"] for each in messages], ["user", "assistant"])
        self.assertGreater(len(messages[1]["content"].split()), 10)
        person.type("never sent")
        for _ in range(2):
            self.clear_line(person)
        person.type("And then?\r")
        person.wait(r"(?:\w+[ ,.!?\"\r\n]+){12}")
        person.type("\x03")
        person.wait(r"\| interrupted")
        person.wait(self.READY)
        self.assertEqual([each["content"] for each in self.saved(person)][::2],
                         ["Tell me a story.", "And then?"])
        person.type("/quit\r")
        self.assertEqual(person.leave(), 0)

    def test_paste(self):
        person = self.person()
        person.type("\x1b[200~one\rtwo\r\r/three\nfour\x1b[201~")
        person.wait("four")  # shown, but not sent
        person.type("!\r")
        person.wait(self.STATUS)
        person.wait(self.READY)
        messages = self.saved(person)
        self.assertEqual(messages[0]["content"], "one\ntwo\n\n/three\nfour!")
        self.assertEqual(len(messages), 2)

    def test_block(self):
        person = self.person()
        person.type('"""one\r')
        person.wait(r"\. ")
        person.type('two"""\r')
        person.wait(self.STATUS)
        person.wait(self.READY)
        self.assertEqual(self.saved(person)[0]["content"], "one\ntwo")


class Memory(Talking):
    def test_flat(self):
        n_turns = int(os.environ.get("FLASHMOE_CHAT_TURNS", "400"))
        args = (*ARGS[1:], "--temp", "0.8", "--seed", "1", "-q", "--elastic", "off")
        with subprocess.Popen([cli_test.PROGRAM, "chat", cli_test.MODEL, *args],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", bufsize=1) as process:
            resident = self.resident(process, n_turns)
        warm = max(resident[:n_turns // 2])
        self.assertLessEqual(max(resident), warm * 1.01, resident[::max(1, n_turns // 20)])
        print(f"{n_turns} turns: {warm} KiB after half, {max(resident)} KiB at most")

    def resident(self, process, n_turns):
        """Returns KiB after every turn."""
        path = self.path("kept.json")
        resident = []
        for turn in range(n_turns):
            lines = [f"Tell me a story, number {turn % 50}."]
            lines += ["/regen"] if turn % 5 == 0 else []
            lines += [f"/save {path}", f"/load {path}"] if turn % 10 == 0 else []
            lines += ["/system Be kind."] if turn % 20 == 10 else ["/system"] * (turn % 20 == 0)
            process.stdin.write("\n".join([*lines, "/undo", "/stats", ""]))
            while not process.stdout.readline().startswith("memory "):
                pass
            with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
                resident.append(int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)))
        return resident


if __name__ == "__main__":
    cli_test.PROGRAM, cli_test.MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
