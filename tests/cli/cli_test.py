"""Tests the flashmoe program as a user runs it.

Usage: cli_test.py PROGRAM MODEL [TestClass...]

MODEL is a tiny checkpoint with a tokenizer. Its text is gibberish: only behaviour is tested.
"""

import codecs
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = MODEL = ""
SECONDS = 1800  # ends a hanging program; no test needs a fast machine

# Options of every command that computes.
MACHINE = "memory gpu gpu-memory elastic threads pin cpu prefill-chunk kv io reader read-depth " \
          "policy lookahead draft heat no-heat check experts-per-token cache-bias "
ENGINE = MACHINE + "layers stages rank-timeout "
SAMPLING = "n-tokens stop greedy temp top-k top-p min-p typical-p repeat-penalty seed context " \
           "presence-penalty frequency-penalty repeat-window logit-bias "
PREFIX, END = "system system-file snapshots snapshot-limit ", " json quiet verbose help"
COMMANDS = {
    "run": "prompt file raw json-object json-schema routes trace stats logprobs profile json quiet "
           "verbose no-wrap help " + PREFIX + SAMPLING + ENGINE,
    "chat": PREFIX + SAMPLING + ENGINE + "no-history no-wrap quiet verbose help",
    "pack": "experts dense embed head to mirror shares layers consume yes restart threads json "
            "quiet verbose help", "list": "names json help", "rm": "quiet help",
    "tokenize": "prompt file plain ids count json help", "completions": "help", "help": "man help",
    "template": "tools no-generation-prompt set tokens json help", "inspect": "kv json help",
    "pull": "to connections retries timeout digest pack dry-run experts dense embed head json "
            "quiet help", "du": "json help", "doctor": "quick threads pin cpu json quiet help",
    "eval nll": "window windows " + ENGINE + " trace json quiet verbose help",
    "eval needle": "context depths needles " + ENGINE + " json quiet verbose help",
    "plan": "context routes disk-speed memory-speed " + MACHINE + " json quiet help",
    "cluster plan": "machines layers mpirun context routes " + MACHINE + " json quiet help",
    "cluster probe": MACHINE + " json quiet verbose help", "verify": "threads json quiet help",
    "bench all": "quick only list repeat out versus packed memory io pin cpu kv routes" + END,
    "bench decode": ENGINE + "tokens repeat prompt context routes profile json quiet verbose help",
    "bench prefill": "tokens repeat routes profile " + ENGINE + " json quiet verbose help",
    "bench stream": "budgets tokens svg routes " + ENGINE + " json quiet verbose help",
    "bench draft": ENGINE + "acceptance budgets tokens repeat svg temp routes" + END,
    "bench batch": ENGINE + "sequences tokens repeat prompt routes profile json quiet verbose help",
    "bench serve": MACHINE + "users prompt prefix tokens repeat url api-key max-stall routes" + END,
    "validate": MACHINE + "quick out against budgets tokens long cycles pressure no-pressure "
                "routes" + END, "launch": "url api-key model print help",
    "bench switch": "tokens csv routes trace " + ENGINE + " json quiet verbose help",
    "bench routes": "experts used layers tokens json help",
    "bench replay": "residency tiers experts used layers tokens json help",
    "synth": "layers hidden heads kv-heads head-dim experts used expert-width shared-width "
             "key-heads value-heads key-dim value-dim conv interval vocab context form "
             "experts-format dense-format embed-format head-format split-size seed threads "
             "headers-only dry-run json quiet help",
}


def flashmoe(*args, stdin=subprocess.DEVNULL, text=None, stdout=subprocess.PIPE, program=None,
             max_file_bytes=None):
    """Runs the program with `text` on standard input and a limit on written files."""
    def limit_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    given = {"input": text} if text is not None else {"stdin": stdin}
    given["preexec_fn"] = limit_files if max_file_bytes is not None else None
    return subprocess.run([program or PROGRAM, *args], stdout=stdout, stderr=subprocess.PIPE,
                          encoding="utf-8", timeout=SECONDS, **given)


def help_options(command):
    """Returns the long options that the command's help lists."""
    out = flashmoe("help", *command.split()).stdout
    return re.findall(r"^  (?:-\w, |    )--([a-z-]+)", out, re.M)


class Case(unittest.TestCase):
    def assert_fails(self, result, status, *words):
        """Checks for one line on standard error with these words and nothing on standard output."""
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Aflashmoe: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)

    def assert_works(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def run_json(self, *args, **more):
        result = self.assert_works(flashmoe("run", MODEL, "--json", *args, **more))
        self.assertEqual(result.stdout.count("\n"), 1)
        return json.loads(result.stdout)


class Help(Case):
    def test_alone(self):
        alone = self.assert_works(flashmoe())
        self.assertEqual(alone.stdout, flashmoe("--help").stdout)
        self.assertEqual(alone.stdout, flashmoe("-h").stdout)
        self.assertEqual(alone.stdout, flashmoe("help").stdout)
        for command in COMMANDS:
            self.assertRegex(alone.stdout, rf"(?m)^  {command} +\w")
        self.assertGreaterEqual(len(re.findall(r"(?m)^  flashmoe \w+ MODEL", alone.stdout)), 2)

    def test_version(self):
        self.assertRegex(self.assert_works(flashmoe("--version")).stdout,
                         r"\Aflashmoe \d+\.\d+\.\d+\n\Z")

    def test_every_option(self):
        for command, options in COMMANDS.items():
            self.assertEqual(sorted(help_options(command)), sorted(options.split()), command)

    def test_ways_to_ask(self):
        for command in COMMANDS:
            words = command.split()
            asked = self.assert_works(flashmoe("help", *words)).stdout
            self.assertEqual(asked, flashmoe(*words, "--help").stdout)
            self.assertEqual(asked, flashmoe(*words, "-h").stdout)
            self.assertTrue(asked.startswith(f"Usage: flashmoe {command} "))
            self.assertLessEqual(max(map(len, asked.splitlines())), 80)

    def test_defaults_and_ranges_are_shown(self):
        asked = " ".join(flashmoe("help", "run").stdout.split())
        self.assertIn("(default: 512)", asked)
        self.assertIn("(0 to 10; default: ", asked)
        self.assertIn("powers of 1024", asked)
        self.assertIn("powers of 1000", asked)


class Usage(Case):
    def test_unknown_command(self):
        self.assert_fails(flashmoe("rnu"), 2, "unknown command 'rnu'; did you mean 'run'?")
        self.assert_fails(flashmoe("zzz"), 2, "unknown command 'zzz'", "flashmoe help")
        self.assert_fails(flashmoe("help", "rnu"), 2, "did you mean 'run'?")
        self.assert_fails(flashmoe("eval"), 2, "flashmoe eval nll")
        self.assert_fails(flashmoe("eval", "zzz"), 2, "flashmoe eval nll")
        self.assert_fails(flashmoe("bench"), 2, "flashmoe bench decode", "flashmoe bench prefill",
                          "flashmoe bench routes")
        self.assert_fails(flashmoe("completions", "tcsh"), 2, "bash, zsh or fish")

    def test_model_in_place_of_a_command(self):
        self.assert_fails(flashmoe(MODEL), 2, f"flashmoe run {MODEL} -p TEXT")
        self.assert_fails(flashmoe("--memory", "8G"), 2, "flashmoe run MODEL")

    def test_unknown_option(self):
        self.assert_fails(flashmoe("run", MODEL, "--tmep", "1"), 2,
                          "unknown option '--tmep'; did you mean '--temp'?")
        self.assert_fails(flashmoe("run", MODEL, "--zzz"), 2, "flashmoe help run")
        self.assert_fails(flashmoe("eval", "nll", MODEL, "x", "--zzz"), 2, "flashmoe help eval nll")

    def test_missing_operand(self):
        self.assert_fails(flashmoe("eval", "nll"), 2, "MODEL is missing", "flashmoe help eval nll")
        self.assert_fails(flashmoe("eval", "nll", MODEL), 2, "FILE is missing")
        self.assert_fails(flashmoe("run", MODEL, "a", "b"), 2, "unexpected argument 'b'")

    def test_sizes(self):
        for size in ("8", "8Q", "-1G", "inf", "", "0%", "101%", "1e9", "99999999T"):
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", f"--memory={size}"), 2, "--memory")

    def test_nothing_to_check(self):
        self.assert_fails(flashmoe("run", MODEL, "-p", "hi", "--check", "on"), 1,
                          "has no checksums")

    def test_values(self):
        for option, value in (("temp", "x"), ("temp", "11"), ("top-p", "1.5"), ("min-p", "-1"),
                              ("n-tokens", "-3"), ("threads", "0"), ("context", "-1"),
                              ("seed", "1.5"), ("top-k", "many"), ("typical-p", "2"),
                              ("repeat-penalty", "-1"), ("logprobs", "21")):
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", f"--{option}", value), 2,
                              f"--{option}")
        self.assert_fails(flashmoe("run", MODEL, "-n"), 2, "--n-tokens needs a value")
        for line in ("run ./no/such -p hi", "eval nll ./no x", "bench decode ./no", "doctor"):
            self.assert_fails(flashmoe(*line.split(), "--cpu", "zzz"), 2,
                              "flashmoe: there is no processor level 'zzz'", "reference")
        self.assert_fails(flashmoe("doctor", MODEL, "zzz"), 2, "unexpected argument 'zzz'")
        self.assert_fails(flashmoe("run", MODEL, "--json=1"), 2, "takes no value")

    def test_contradictions(self):
        for line in ("--greedy --temp 1", "-q -v", "-f x", "--raw --system x"):
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", *line.split()), 2,
                              "cannot be used together")
        for line in ("--ids --count", "--ids --json", "--count --json"):
            self.assert_fails(flashmoe("tokenize", MODEL, "-p", "hi", *line.split()), 2,
                              "cannot be used together")

    def test_no_prompt(self):
        for command in ("run", "tokenize"):
            try:
                keyboard, terminal = pty.openpty()
            except OSError as why:
                self.skipTest(f"no terminal to be had: {why}")
            try:
                self.assert_fails(flashmoe(command, MODEL, stdin=terminal), 2, "-p TEXT", "-f FILE",
                                  "standard input")
            finally:
                os.close(keyboard)
                os.close(terminal)
        self.assert_fails(flashmoe("run", MODEL, "-p", ""), 2, "prompt is empty")
        self.assert_fails(flashmoe("run", MODEL, text=""), 2, "prompt is empty")
        self.assert_fails(flashmoe("run", MODEL, text="\n"), 2, "prompt is empty")

    def test_missing_files(self):
        with tempfile.TemporaryDirectory() as folder:
            gone = os.path.join(folder, "gone")
            self.assert_fails(flashmoe("run", gone, "-p", "hi"), 1, gone)
            self.assert_fails(flashmoe("inspect", gone), 1, gone)
            self.assert_fails(flashmoe("run", MODEL, "-f", gone), 1, gone)
            self.assert_fails(flashmoe("eval", "nll", MODEL, gone), 1, gone)

    def test_closed_output(self):
        with open("/dev/full", "w") as full:
            result = flashmoe("help", stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("flashmoe: cannot write to standard output: ", result.stderr)
        result = subprocess.run(["sh", "-c", f"'{PROGRAM}' help >&-"], stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"standard output", result.stderr)


class Documents(Case):
    def setUp(self):
        self.page = self.assert_works(flashmoe("help", "--man")).stdout

    def test_every_option_is_in_the_manual(self):
        for command in COMMANDS:
            start = self.page.index(f".SS flashmoe {command}\n")
            end = re.search(r"\n\.S[SH] ", self.page[start + 1:]).start() + start + 1
            listed = re.findall(r"\\fB\\-\\-([a-z\\-]+)\\fR", self.page[start:end])
            self.assertEqual([name.replace("\\", "") for name in listed], help_options(command))

    def test_sections(self):
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "SIZES", "EXIT STATUS",
                        "EXAMPLES"):
            self.assertIn(f"\n.SH {section}\n", self.page)

    def test_date_can_be_fixed(self):
        page = subprocess.run([PROGRAM, "help", "--man"], stdout=subprocess.PIPE, check=True,
                              env={**os.environ, "SOURCE_DATE_EPOCH": "86400"}).stdout
        self.assertTrue(page.startswith(b".TH FLASHMOE 1 1970-01-02 "))

    def check_page(self, *command, env=None):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(self.page)
            file.flush()
            result = subprocess.run([*command, file.name], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, encoding="utf-8", env=env)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc(self):
        self.assertEqual(self.check_page("mandoc", "-Tlint").stdout, "")

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "man is not installed")
    def test_man(self):
        env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
        result = self.check_page("man", "--warnings", "-E", "UTF-8", "-l", env=env)
        self.assertEqual(result.stderr, "")
        self.assertIn("--prefill-chunk N", result.stdout)


class Completions(Case):
    def script(self, shell):
        return self.assert_works(flashmoe("completions", shell)).stdout

    def check_syntax(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.script(shell))
            file.flush()
            result = subprocess.run([shell, "-n", file.name], stderr=subprocess.PIPE)
        self.assertEqual((result.returncode, result.stderr), (0, b""))

    def test_bash_syntax(self):
        self.check_syntax("bash")

    def test_zsh_syntax(self):
        self.check_syntax("zsh")

    def test_fish_syntax(self):
        self.check_syntax("fish")

    def test_every_option(self):
        for shell, form in (("bash", "--{}"), ("zsh", "--{}"), ("fish", "-l {} ")):
            text = self.script(shell)
            for command in COMMANDS:
                for option in help_options(command):
                    self.assertIn(form.format(option), text, shell)

    def complete(self, *words):
        """Returns what bash offers for the last word."""
        line = " ".join(f"'{word}'" for word in words)
        script = (self.script("bash") + f"\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n"
                  "_flashmoe\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
        out = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, encoding="utf-8",
                             cwd=MODEL, check=True).stdout
        return out.split()

    @unittest.skipUnless(shutil.which("bash"), "bash is not installed")
    def test_bash(self):
        self.assertEqual(self.complete("flashmoe", "r"), ["run", "rm"])
        self.assertEqual(self.complete("flashmoe", "eval", ""), ["nll", "needle"])
        self.assertEqual(self.complete("flashmoe", "run", "--th"), ["--threads"])
        self.assertEqual(self.complete("flashmoe", "eval", "nll", "--windows"), ["--windows"])
        self.assertEqual(self.complete("flashmoe", "run", "config.j"), ["config.json"])
        self.assertEqual(self.complete("flashmoe", "run", "-f", "config.j"), ["config.json"])
        self.assertEqual(self.complete("flashmoe", "run", "--file", "=", "config"), ["config.json"])
        self.assertEqual(self.complete("flashmoe", "run", "-n", "config.j"), [])
        self.assertEqual(self.complete("flashmoe", "completions", "b"), ["bash"])
        self.assertEqual(self.complete("flashmoe", "help", "in"), ["inspect"])


class Run(Case):
    TYPES = {"text": str, "reasoning": str, "tokens": list, "n_tokens": int, "n_prompt_tokens": int,
             "n_prompt_reused": int, "n_decode_passes": int, "n_drafted": list,
             "n_drafts_accepted": list, "drafts": dict, "tok_per_s": float, "hit_rate": float,
             "prefill_tok_per_s": float, "n_expert_hits": int, "n_expert_misses": int,
             "n_expert_late": int, "n_warmed": int,
             "n_cache_slots": int, "bytes_read": int, "read_wait_s": float, "io": str,
             "reader": str, "policy": str, "memory_bytes": int,
             "memory_budget_bytes": int, "n_shrinks": int, "n_grows": int, "n_context": int,
             "prefill_chunk": int, "n_threads": int, "cpu_level": str, "logits_hash": str,
             "seed": int, "sampling": dict, "stop_reason": str, "stop_string": type(None),
             "model": str,
             "architecture": str, "routes": type(None), "approximate": type(None)}

    SAMPLING = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1,
                "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
                "penalty_window": 0, "logit_bias": []}

    def test_json(self):
        result = flashmoe("run", MODEL, "--json", "-p", "Once upon a time", "-n", "8")
        self.assert_works(result)
        self.assertEqual(result.stdout.count("\n"), 1)
        self.assertNotIn("tok/s", result.stderr)
        answer = json.loads(result.stdout)
        self.assertEqual({key: type(value) for key, value in answer.items()}, self.TYPES)
        self.assertEqual(answer["n_tokens"], len(answer["tokens"]))
        self.assertTrue(all(type(token) is int for token in answer["tokens"]))
        self.assertRegex(answer["logits_hash"], r"\A[0-9a-f]{32}\Z")
        self.assertIn(answer["stop_reason"], ("stop", "length"))
        self.assertTrue(0 <= answer["hit_rate"] <= 1)
        self.assertGreater(answer["n_prompt_tokens"], 0)
        self.assertGreater(answer["memory_bytes"], 0)
        self.assertEqual(answer["model"], MODEL)
        self.assertEqual(set(answer["sampling"]), set(self.SAMPLING))

    def test_prompt_from_everywhere(self):
        expected = self.run_json("-p", "Hello there", "-n", "4", "--greedy")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("Hello there\n")
            file.flush()
            from_file = self.run_json("-f", file.name, "-n", "4", "--greedy")
        from_pipe = self.run_json("-n", "4", "--greedy", text="Hello there\n")
        from_dash = self.run_json("-f", "-", "-n", "4", "--greedy", text="Hello there")
        for other in (from_file, from_pipe, from_dash):
            self.assertEqual(other["tokens"], expected["tokens"])
            self.assertEqual(other["n_prompt_tokens"], expected["n_prompt_tokens"])
            self.assertEqual(other["logits_hash"], expected["logits_hash"])

    def test_seed(self):
        args = ("-p", "Hello", "-n", "12", "--temp", "1.5")
        first = self.run_json(*args)
        again = self.run_json(*args, "--seed", str(first["seed"]))
        self.assertEqual(again["tokens"], first["tokens"])
        self.assertEqual(again["seed"], first["seed"])
        other = [self.run_json(*args, "--seed", str(seed))["tokens"] for seed in range(5)]
        self.assertTrue(any(tokens != first["tokens"] for tokens in other))

    def test_sampling_flags(self):
        answer = self.run_json("-p", "Hi", "-n", "1", "--temp", "0.7", "--top-k", "5", "--top-p",
                               "0.9", "--min-p", "0.05", "--seed", "3")
        self.assertEqual(answer["sampling"], {**self.SAMPLING, "temperature": 0.7, "top_k": 5,
                                              "top_p": 0.9, "min_p": 0.05})
        greedy = self.run_json("-p", "Hi", "-n", "6", "--greedy")
        cold = self.run_json("-p", "Hi", "-n", "6", "--temp", "0")
        self.assertEqual(greedy["sampling"]["temperature"], 0)
        self.assertEqual(greedy["tokens"], cold["tokens"])

    def test_no_effect_is_said(self):
        result = flashmoe("run", MODEL, "-p", "Hi", "-n", "1", "--greedy", "--top-p", "0.5")
        self.assert_works(result)
        self.assertIn("--top-p has no effect", result.stderr)

    def test_same_bits(self):
        args = ("-p", "The same bits", "-n", "6", "--greedy")
        first = self.run_json(*args, "--threads", "1")
        for more in (("--threads", "2"), ("--prefill-chunk", "1"), ("--prefill-chunk", "3"),
                     ("--context", "100")):
            other = self.run_json(*args, *more)
            self.assertEqual(other["logits_hash"], first["logits_hash"], more)
            self.assertEqual(other["tokens"], first["tokens"], more)

    def test_streams(self):
        """Text on standard output; one closing line and no drawing on standard error."""
        answer = self.run_json("-p", "Hi", "-n", "20", "--temp", "2", "--seed", "1")
        result = self.assert_works(flashmoe("run", MODEL, "-p", "Hi", "-n", "20", "--temp", "2",
                                            "--seed", "1"))
        shown = answer["text"] + ("" if answer["text"].endswith("\n") else "\n")
        self.assertEqual(result.stdout, shown if answer["text"] else "")
        self.assertNotIn("\r", result.stderr)
        self.assertNotIn("\033", result.stderr)
        closing = result.stderr.splitlines()[-1]
        self.assertRegex(closing, r"\Aflashmoe: \d+ tokens? \([^)]+\), [\d.]+ tok/s \| prompt \d+ "
                                  r"tokens, [\d.]+ tok/s \| expert hits [\d.]+%, [\d.]+ \w+ "
                                  r"read \| memory [\d.]+ \w+ of [\d.]+ \w+ \| seed 1\Z")

    def test_quiet_and_verbose(self):
        quiet = self.assert_works(flashmoe("run", MODEL, "-p", "Hi", "-n", "2", "-q"))
        self.assertNotIn("tok/s", quiet.stderr)
        verbose = self.assert_works(flashmoe("run", MODEL, "-p", "Hi", "-n", "2", "-v"))
        self.assertIn("memory budget ", verbose.stderr)
        self.assertIn("tok/s", verbose.stderr)

    def test_budget_is_shown(self):
        answer = self.run_json("-p", "Hi", "-n", "1", "--memory", "1GB")
        self.assertEqual(answer["memory_budget_bytes"], 10**9)
        self.assertLessEqual(answer["memory_bytes"], answer["memory_budget_bytes"])

    def test_raw(self):
        raw = self.run_json("--raw", "-p", "Hi", "-n", "1")
        plain = flashmoe("tokenize", MODEL, "--count", "-p", "Hi")
        self.assertEqual(raw["n_prompt_tokens"], int(plain.stdout))


class RunStops(Case):
    @classmethod
    def setUpClass(cls):
        """Finds a seed whose answer reaches -n, so that the program has something to stop."""
        for seed in range(100):
            args = [PROGRAM, "run", MODEL, "--json", "-p", "Hi", "-n", "300", "--temp", "10",
                    "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", str(seed)]
            answer = json.loads(subprocess.run(args, stdout=subprocess.PIPE, check=True,
                                               stderr=subprocess.DEVNULL).stdout)
            if answer["stop_reason"] == "length" and answer["text"]:
                cls.args = args[2:3] + args[4:]
                cls.answer = answer
                return
        raise AssertionError("every answer of this model is short")

    def start(self, *more, **streams):
        return subprocess.Popen([PROGRAM, "run", *self.args, *more], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams)

    def test_length(self):
        self.assertEqual(self.answer["n_tokens"], 300)
        short = self.run_json(*self.args[1:], "-n", "7")
        self.assertEqual((short["stop_reason"], short["n_tokens"]), ("length", 7))
        self.assertEqual(short["tokens"], self.answer["tokens"][:7])
        none = self.run_json(*self.args[1:], "-n", "0")
        self.assertEqual((none["stop_reason"], none["tokens"], none["text"]), ("length", [], ""))

    def test_context(self):
        n_prompt = self.answer["n_prompt_tokens"]
        full = self.run_json(*self.args[1:], "--context", str(n_prompt + 5))
        self.assertEqual((full["stop_reason"], full["n_tokens"]), ("context", 6))
        result = flashmoe("run", *self.args, "--context", str(n_prompt + 5))
        self.assertIn("(context full)", result.stderr)

    def test_prompt_longer_than_context(self):
        result = flashmoe("run", MODEL, "--raw", "-p", "many words " * 20, "--context", "4")
        self.assert_fails(result, 1, "context holds 4", "--context")

    def test_interrupt(self):
        process = self.start("-n", "1000000")
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        self.assertTrue(out.endswith(b"\n"))
        closing = err.decode().splitlines()[-1]
        self.assertRegex(closing, r"\Aflashmoe: \d+ tokens? \(interrupted\), ")

    def test_reader_goes_away(self):
        process = self.start()
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=SECONDS), 1)
        self.assertNotIn(b"tok/s", err)
        self.assertNotIn(b"write", err)

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            result = flashmoe("run", *self.args, stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("flashmoe: cannot write to standard output: ", result.stderr)

    def test_shell_status(self):
        # It starts when nobody reads any more.
        pipe = "set -o pipefail; (trap '' PIPE; while echo 2> /dev/null; do sleep 0.01; done; " \
               "trap - PIPE; exec '{}' run '{}' -p Hi -n 300 --temp 10 --top-k 0 " \
               "--top-p 1 --min-p 0 --seed {}) | true"
        result = subprocess.run(["bash", "-c", pipe.format(PROGRAM, MODEL, self.answer["seed"])],
                                stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertNotIn(b"tok/s", result.stderr)


class Inspect(Case):
    def test_text(self):
        out = self.assert_works(flashmoe("inspect", MODEL)).stdout
        for word in ("Architecture", "Parameters", "Layers", "Experts", "Formats", "Sizes",
                     "One token reads", "KV per position", "--memory"):
            self.assertIn(word, out)
        self.assertLessEqual(max(map(len, out.splitlines())), max(80, len(MODEL) + 14))

    def test_json(self):
        info = json.loads(self.assert_works(flashmoe("inspect", MODEL, "--json")).stdout)
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(info["architecture"], config["model_type"])
        self.assertEqual(info["n_layers"], config["num_hidden_layers"])
        self.assertEqual(info["n_experts"], config["num_experts"])
        self.assertEqual(info["n_experts_per_token"], config["num_experts_per_tok"])
        self.assertEqual(info["hidden"], config["hidden_size"])
        self.assertEqual(info["vocabulary"], config["vocab_size"])
        for key in ("n_parameters", "dense_bytes", "experts_bytes", "expert_bytes",
                    "expert_token_bytes", "dense_token_bytes", "kv_position_bytes", "state_bytes",
                    "memory_min_bytes"):
            self.assertIs(type(info[key]), int)
        self.assertIs(info["has_tokenizer"], True)
        experts = sum(f["n_bytes"] for f in info["formats"] if f["is_expert"])
        self.assertEqual(experts, info["experts_bytes"])


class Tokenize(Case):
    TEXT = "Hello, wörld\n"

    def tokenize(self, *args, text=None):
        return self.assert_works(flashmoe("tokenize", MODEL, *args, text=text)).stdout

    def test_forms_agree(self):
        rows = self.tokenize("-p", self.TEXT).splitlines()
        ids = [int(row.split()[0]) for row in rows]
        self.assertEqual(self.tokenize("--ids", "-p", self.TEXT).split(), list(map(str, ids)))
        self.assertEqual(self.tokenize("--count", "-p", self.TEXT), f"{len(ids)}\n")
        found = json.loads(self.tokenize("--json", "-p", self.TEXT))
        self.assertEqual(found, {"tokens": ids, "n_tokens": len(ids),
                                 "text_bytes": len(self.TEXT.encode())})
        self.assertEqual(self.tokenize("--ids", text=self.TEXT).split(), list(map(str, ids)))

    def test_text_comes_back(self):
        rows = self.tokenize("-p", self.TEXT).splitlines()
        quoted = [row.split(maxsplit=1)[1] for row in rows]
        pieces = [codecs.escape_decode(piece[1:-1].encode())[0] for piece in quoted]
        self.assertEqual(b"".join(pieces).decode(), self.TEXT)

    def test_special_tokens_are_shown(self):
        self.assertIn('"<|im_end|>"', self.tokenize("-p", "<|im_end|>"))

    def test_empty(self):
        self.assertEqual(self.tokenize("--count", "-p", ""), "0\n")
        self.assertEqual(self.tokenize("-p", ""), "")

    def test_plain(self):
        special = int(self.tokenize("--count", "-p", "<|im_end|>"))
        plain = int(self.tokenize("--count", "--plain", "-p", "<|im_end|>"))
        self.assertGreaterEqual(plain, special)


class Eval(Case):
    RECORD = json.dumps({"text": "Once upon a time there was a robot who loved music. " * 4})
    CHAT = json.dumps({"prompt": "What is the Moon?", "response": "A moon. " * 20})

    def evaluate(self, content, *args, name="data.jsonl"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            return flashmoe("eval", "nll", MODEL, path, *args)

    def numbers(self, *args, **more):
        result = self.assert_works(self.evaluate(*args, "--json", **more))
        return json.loads(result.stdout)

    def test_json(self):
        found = self.numbers(f"{self.RECORD}\n\n{self.CHAT}\n", "--window", "16", "--windows", "3")
        self.assertEqual((found["window"], found["n_windows"]), (16, 3))
        self.assertEqual(found["n_tokens"], 3 * 16)
        self.assertGreater(found["nats_per_token"], 0)
        self.assertGreater(found["perplexity"], 1)
        for key in ("tok_per_s", "nats_per_token", "perplexity"):
            self.assertIs(type(found[key]), float)

    def test_whole_file_and_chunks(self):
        content = f"{self.RECORD}\n{self.CHAT}\n"
        whole = self.numbers(content, "--window", "32")
        self.assertGreater(whole["n_windows"], 3)
        again = self.numbers(content, "--window", "32", "--prefill-chunk", "5", "--threads", "1")
        self.assertEqual(again["nats_per_token"], whole["nats_per_token"])
        self.assertEqual(again["n_tokens"], whole["n_tokens"])

    def test_conversation(self):
        """A prompt that begins with "User: " contains several turns: three turns take more marks
        than one, and the same text as one turn takes fewer."""
        turns = "User: Hi.\nAssistant: Hello.\nUser: Bye."
        many = self.numbers(json.dumps({"prompt": turns, "response": "Bye."}) + "\n")
        one = self.numbers(json.dumps({"prompt": "-" + turns, "response": "Bye."}) + "\n")
        self.assertNotEqual(many["n_tokens"], one["n_tokens"])

    def test_plain_text(self):
        found = self.numbers("Once upon a time. " * 10, "--window", "16", name="data.txt")
        self.assertGreater(found["n_tokens"], 15)

    def test_text(self):
        out = self.assert_works(self.evaluate(self.RECORD + "\n", "--window", "16")).stdout
        for word in ("nats per token  ", "perplexity      ", "tokens          ", "tok/s"):
            self.assertIn(word, out)

    def test_cut_last_line(self):
        result = self.evaluate(f"{self.RECORD}\n{self.CHAT[:30]}", "--window", "16")
        self.assert_works(result)
        self.assertIn("line 2, the last one, is cut off", result.stderr)

    def test_bad_lines(self):
        args = ("--window", "16")
        self.assert_fails(self.evaluate(f"{self.RECORD}\n{{bad\n{self.RECORD}\n", *args), 1,
                          "line 2", "JSON")
        self.assert_fails(self.evaluate(f"{self.RECORD}\n\n{{bad\n", *args), 1, "line 3")
        self.assert_fails(self.evaluate(f'{{"prompt": "x"}}\n{self.RECORD}\n', *args), 1, "line 1",
                          '"response"')
        self.assert_fails(self.evaluate("[1]\n", *args), 1, "line 1")
        self.assert_fails(self.evaluate("", *args), 1, "at least 2")


# What every level must report: a name, and the keys and types of one JSON object.
DOCTOR_TYPES = {
    "version": str, "processor": str, "architecture": str, "n_cpus": int, "n_cpus_of_machine": int,
    "n_cores": int, "cpu_quota": type(None), "cache_bytes": int, "memory_bytes": int,
    "memory_available_bytes": int, "huge_pages": str, "cpu_level": str, "levels": list,
    "n_threads": int, "read_buffer_bytes": int, "findings": list,
    "memory_read_gb_per_s": float, "memory_read_gb_per_s_min": float,
    "memory_read_gb_per_s_max": float, "memory_read_one_thread_gb_per_s": float,
    "memory_read_one_thread_gb_per_s_min": float, "memory_read_one_thread_gb_per_s_max": float,
    "int8_gop_per_s": float, "int8_gop_per_s_min": float, "int8_gop_per_s_max": float,
    "int8_one_thread_gop_per_s": float, "int8_one_thread_gop_per_s_min": float,
    "int8_one_thread_gop_per_s_max": float, "disk_read_gb_per_s": float,
    "disk_read_gb_per_s_min": float, "disk_read_gb_per_s_max": float,
    "io_auto": str, "io_direct_gb_per_s": float, "io_page_gb_per_s": float,
    "gpus": list, "no_gpu": str}
# Null if the system does not say, has no limit, or the level has no such measurement.
DOCTOR_NULLS = "processor cpu_quota huge_pages cpu_level int8_ disk_ io_ no_gpu".split()


class Doctor(Case):
    def test_disk(self):
        got = json.loads(self.assert_works(flashmoe("doctor", "--quick", "--json", MODEL)).stdout)
        self.assertGreater(min(got[f"disk_read{few}_gb_per_s"] for few in ("", "_one", "_two")), 0)
        self.assert_fails(flashmoe("doctor", "-q", "none-such"), 1, "none-such")

    def test_json(self):
        result = self.assert_works(flashmoe("doctor", "--quick", "--json", "--threads=2"))
        self.assertEqual(result.stdout.count("\n"), 1)
        self.assertEqual(result.stderr, "")
        found = json.loads(result.stdout)
        self.assertEqual(sorted(found), sorted(DOCTOR_TYPES))
        for key, value in found.items():
            if not (value is None and key.startswith(tuple(DOCTOR_NULLS))):
                kinds = (DOCTOR_TYPES[key], float) if key == "cpu_quota" else DOCTOR_TYPES[key]
                self.assertIsInstance(value, kinds, key)
        self.assertEqual(found["n_threads"], 2)
        self.assertTrue(1 <= found["n_cores"] <= found["n_cpus"] <= found["n_cpus_of_machine"])
        self.assertTrue(0 < found["memory_read_gb_per_s_min"] <= found["memory_read_gb_per_s"]
                        <= found["memory_read_gb_per_s_max"])
        self.assertEqual([level["name"] for level in found["levels"] if level["is_default"]],
                         [found["cpu_level"]])
        self.assertEqual(found["levels"][0]["name"], "reference")
        for level in found["levels"]:
            self.assertEqual(sorted(level), ["is_default", "is_usable", "name", "needs"])

    def test_text(self):
        result = self.assert_works(flashmoe("doctor", "--quick", "--threads", "3", "--cpu",
                                            "reference"))
        for word in ("processor ", "cores ", "levels ", "in use", "memory ", "huge pages ", "GPU ",
                     "memory read ", "with 1 thread\n", "with 3 threads\n"):
            self.assertIn(word, result.stdout)
        self.assertRegex(result.stdout, "\n\n(Suggestions:\n 1. [A-Z0-9-]|No suggestions: )")
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    @unittest.skipUnless(shutil.which("taskset"), "taskset is not installed")
    def test_one_core(self):
        out = subprocess.run(["taskset", "-c", "0", PROGRAM, "doctor", "--quick"], check=True,
                             stdout=subprocess.PIPE, encoding="utf-8", timeout=SECONDS).stdout
        self.assertIn("cores        1 usable, 1 processor", out)
        self.assertIn("Only one core is usable", out)


class Bench(Case):
    def bench(self, kind, *args):
        result = self.assert_works(flashmoe("bench", kind, MODEL, *args, "--json"))
        found = json.loads(result.stdout)
        for key in ("tok_per_s", "memory_read_gb_per_s"):
            self.assertTrue(0 < found[key + "_min"] <= found[key] <= found[key + "_max"])
        self.assertTrue(0 <= found["hit_rate"] <= 1)
        self.assertIs(found["routes"], None)
        self.assertIs(found["is_resident"], True)
        self.assertEqual(found["hit_rate"], 1)
        self.assertEqual(found["bytes_per_token"], 0)
        self.assertLess(found["memory_bytes"], 256 << 20)
        cache_bytes = json.loads(flashmoe("doctor", "--quick", "--json").stdout)["cache_bytes"]
        self.assertIs(found["is_read_beyond_cache"],
                      found["read_buffer_bytes"] >= 3 * cache_bytes)
        return found

    def test_decode(self):
        found = self.bench("decode", "--tokens", "4", "--repeat", "3", "--threads", "2", "--pin",
                           "--cpu", "reference")
        self.assertEqual(len(found["stretches"]), 3)
        self.assertEqual((found["n_threads"], found["cpu_level"]), (2, "reference"))
        self.assertEqual(found["n_warm_tokens"], 12)
        out = self.assert_works(flashmoe("bench", "decode", MODEL, "--tokens", "4")).stdout
        for word in ("tok/s median", "of 5 stretches of 4 tokens", "expert hits  100.0%; ",
                     "every expert is resident", "per token", "the model's own", "limit  ",
                     "memory read ", "measured before and after", "level ", " thread"):
            self.assertIn(word, out)
        self.assertNotIn("disk read", out)

    def test_prefill(self):
        found = self.bench("prefill", "--tokens", "24", "--repeat", "3", "--prefill-chunk", "8")
        self.assertEqual(len(found["prompts"]), 3)
        self.assertEqual([found[key] for key in ("n_prompt_tokens", "prefill_chunk", "repeat",
                                                 "n_warm_tokens")], [24, 8, 3, 24])
        self.assertGreater(found["gop_per_s"], 0)
        self.assertGreater(found["mul_adds_per_token"], 0)
        for key in ("int8_gop_per_s", "int8_percent"):
            self.assertTrue(found[key] is None or found[key] > 0)
        again = self.bench("prefill", "--tokens", "24", "--repeat", "1", "--threads", "1")
        self.assertEqual(again["logits_hash"], found["logits_hash"])
        out = self.assert_works(flashmoe("bench", "prefill", MODEL, "--tokens", "8")).stdout
        for word in ("tok/s median", "of 5 prompts of 8 tokens", "GOP/s", "expert hits",
                     "per token", "the model's own", "level "):
            self.assertIn(word, out)

    def test_small_cache(self):
        """If the experts do not fit, nothing is decoded in advance."""
        info = json.loads(self.assert_works(flashmoe("inspect", "nano", "--json")).stdout)
        memory = info["dense_bytes"] + info["experts_bytes"] // 2 + (24 << 20)
        result = flashmoe("bench", "decode", "nano", "--tokens", "4", "--repeat", "2", "--memory",
                          str(memory), "--json")
        found = json.loads(self.assert_works(result).stdout)
        self.assertEqual((found["is_resident"], found["n_warm_tokens"]), (False, 0))
        self.assertLess(found["n_cache_slots"], info["n_experts"] * info["n_moe_layers"])
        self.assertGreater(found["bytes_per_token"], 0)
        if "FLASHMOE_SANITIZED" not in os.environ:
            self.assertLessEqual(found["memory_bytes"], memory)

    def test_routes(self):
        out = self.assert_works(flashmoe("bench", "routes", "gen:seed=3")).stdout
        for word in ("gen:seed=3", "Qwen3-30B-A3B", "gemma-4-26B-A4B", "gpt-oss-120b", "overlap",
                     "distinct in 128", "LRU of 25%"):
            self.assertIn(word, out)
        self.assertLessEqual(max(map(len, out.splitlines())), 88)
        found = json.loads(self.assert_works(
            flashmoe("bench", "routes", "gen", "--experts", "512", "--used", "10", "--layers", "3",
                     "--tokens", "64", "--json")).stdout)
        shape = found["routes"]
        self.assertEqual([shape[key] for key in ("n_experts", "n_used", "n_layers", "n_tokens")],
                         [512, 10, 3, 64])
        self.assertIs(shape["distinct"][6], None)
        self.assertEqual(found["capacities"][4], 0.25)

    def test_bad_routes(self):
        for text, word in (("gen:zzz=1", "zzz=1"), ("gen:alpha=many", "'many'")):
            self.assert_fails(flashmoe("bench", "routes", text), 2, word)
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", "--routes", text, "-q"), 1, word)
        with tempfile.TemporaryDirectory() as folder:
            gone, bad = os.path.join(folder, "gone"), os.path.join(folder, "bad")
            with open(bad, "w", encoding="utf-8") as file:
                file.write("# route_trace v1\nhello\n")
            self.assert_fails(flashmoe("bench", "routes", gone), 1, gone)
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", "--routes", bad), 1, bad, "line 2",
                              "hello")
            self.assert_fails(flashmoe("bench", "routes", folder), 1, folder)

    def test_trace_faults(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_fails(flashmoe("run", MODEL, "-p", "hi", "--trace",
                                       os.path.join(folder, "no", "t.csv")), 1, "--trace")
            path = os.path.join(folder, "t.csv")
            result = flashmoe("run", MODEL, "-p", "hi", "-n", "8", "-q", "--trace", path,
                              max_file_bytes=100)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"flashmoe: --trace: cannot write '{path}': ", result.stderr)
            self.assertEqual(os.listdir(folder), [])
            flashmoe("run", folder, "-p", "hi", "--trace", path) # not a model
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    PROGRAM, MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
