"""A machine for the commands of the pages: a folder with everything that they name.

Nothing here needs a network, a GPU or much disk. What stands in for what:

| the page names | here it is |
|---|---|
| the Hugging Face hub | the hub of tests/pull on loopback (HF_ENDPOINT) |
| Qwen/Qwen3-Coder-Next, ORG/NAME | a small checkpoint of the same family, random weights |
| a GGUF of a repository | a small GGUF of the same family, made by llama.cpp's converter |
| MODEL, model.fmoe | files of that name in the folder |
| port 8080 | a free port |
| `flashmoe serve` | the same, in the background until the next one or the end of the page |
| `make`, `make test` | `make` itself; what it would build is there, and no package is installed |
| /ssd1, /ssd2 | folders |
| HOSTFILE | two machines that `cluster plan` need not measure |
| `git diff` | a line that changed |
| coding agents | a program that reads their settings and sends one request (agent.py) |
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from pages import ROOT, missing_lines

sys.path.insert(0, str(ROOT / "tests/pull"))
import hub as hubs  # pylint: disable=wrong-import-position

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 1800  # ends a hanging command; no test needs a fast machine
AGENTS = ("claude", "codex", "opencode")
CONTEXT = 262144  # of Coder-Next

# Runs the program. Servers get the machine's port and run in the background.
WRAPPER = """#!/bin/bash
case "$1" in
serve)
    if [ -n "$GUIDE_FOREGROUND" ]; then exec "$GUIDE_PROGRAM" "$@"; fi
    if [ -s "$GUIDE_FOLDER/server" ]; then
        pid=$(cat "$GUIDE_FOLDER/server")
        kill "$pid" && tail --pid="$pid" -f /dev/null
        rm "$GUIDE_FOLDER/server"
        cat "$GUIDE_FOLDER/log" >> "$GUIDE_FOLDER/earlier"
    fi
    rm -f "$GUIDE_FOLDER/log"
    "$GUIDE_PROGRAM" "$@" --port "$GUIDE_PORT" > "$GUIDE_FOLDER/log" 2>&1 < /dev/null &
    pid=$!
    echo $pid > "$GUIDE_FOLDER/server"
    until grep -qs "listening on" "$GUIDE_FOLDER/log"; do
        kill -0 $pid 2> /dev/null || { cat "$GUIDE_FOLDER/log"; rm "$GUIDE_FOLDER/server"; exit 1; }
        sleep 0.05
    done
    cat "$GUIDE_FOLDER/log" ;;
launch)
    case "$*" in *--url*) exec "$GUIDE_PROGRAM" "$@" ;; esac
    exec "$GUIDE_PROGRAM" launch "$2" --url "http://127.0.0.1:$GUIDE_PORT" "${@:3}" ;;
cluster)
    if [ "$3" = HOSTFILE ]; then set -- cluster "$2" --machines HOSTFILE "${@:4}"; fi
    exec "$GUIDE_PROGRAM" "$@" ;;
*) exec "$GUIDE_PROGRAM" "$@" ;;
esac
"""
# What `make` would build is there. Anything else is an error.
CMAKE = """#!/bin/sh
case "$*" in
"--preset release"*) touch build/build.ninja ;;
"--build --preset release"*) test -x build/flashmoe ;;
*) echo "cmake $*: the tests of the pages do not know this" >&2; exit 1 ;;
esac
"""
# A test installs no packages.
DEPS = """#!/bin/sh
case "$1" in build|test|test-all) ;; *) echo "deps.sh: no group '$1'" >&2; exit 1 ;; esac
"""
# What `make test` would run are the tests that run now.
CTEST = """#!/bin/sh
echo '<testcase status="run"/>' > build/ctest.xml
"""


def free_port():
    """Returns a port outside the range that the system gives out by itself."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def checkpoint(golden, context=CONTEXT):
    """Returns the files of a small checkpoint that accepts as long prompts as the large one."""
    folder = ROOT / "tests/golden" / golden
    files = {name: (folder / name).read_bytes()
             for name in ("generation_config.json", "model.safetensors", "tokenizer.json")}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = context
    files["config.json"] = json.dumps(config).encode()
    return files


class Machine:
    """Use it with `with`."""

    def __init__(self, program):
        self.scratch = tempfile.TemporaryDirectory(prefix="flashmoe-guide-")
        self.folder = pathlib.Path(self.scratch.name).resolve()
        self.tree = self.folder / "flash-moe"
        self.home = self.folder / "home"
        self.port = free_port()
        self.hub = hubs.Hub()
        self.environment = self.make_environment(pathlib.Path(program).resolve())
        self.make_tree()
        self.make_programs()
        self.fill_hub()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        server = self.folder / "server"
        if server.exists():
            pid = int(server.read_text())
            os.kill(pid, signal.SIGTERM)
            subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], check=False)
        self.hub.__exit__()
        self.scratch.cleanup()

    def make_environment(self, program):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("HF_", "HUGGING", "FLASHMOE_", "XDG_", "MAKE", "CMAKE_",
                                        "OPENAI_", "ANTHROPIC_"))
                and name not in ("MFLAGS", "ARGS") and not name.lower().endswith("_proxy")}
        return {**kept, "HOME": str(self.home), "HF_ENDPOINT": self.hub.url,
                "NO_PROXY": "127.0.0.1",
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
                "GUIDE_PROGRAM": str(program), "GUIDE_FOLDER": str(self.folder),
                "GUIDE_PORT": str(self.port), "GUIDE_PYTHON": sys.executable, "TERM": "dumb"}

    def make_tree(self):
        """What a clone of the repository has, as far as the pages use it."""
        for name in ("home", "ssd1", "ssd2", "bin", "flash-moe/build", "flash-moe/tools"):
            (self.folder / name).mkdir(parents=True)
        for name in ("Makefile", "CMakePresets.json", "models", "tests", "docs"):
            (self.tree / name).symlink_to(ROOT / name)
        (self.tree / "tools/check.sh").symlink_to(ROOT / "tools/check.sh")
        (self.tree / "tools/deps.sh").write_text(DEPS, encoding="utf-8")
        (self.tree / "MODEL").mkdir()
        for name, data in checkpoint("qwen3_next").items():
            (self.tree / "MODEL" / name).write_bytes(data)
        (self.tree / "messages.json").write_text(
            json.dumps([{"role": "user", "content": "Why is the sky blue?"}]), encoding="utf-8")
        machine = {"memory_bytes": 16 << 30, "memory_bytes_per_s": 2e10, "disk_bytes_per_s": 1e9,
                   "latency_s": 2e-4, "link_bytes_per_s": 1.25e8}
        (self.tree / "HOSTFILE").write_text(json.dumps({"machines": [machine, machine]}),
                                            encoding="utf-8")
        (self.tree / "text.jsonl").write_text('{"text": "The sky is blue."}\n', encoding="utf-8")

    def make_programs(self):
        programs = {"flashmoe": WRAPPER, "cmake": CMAKE, "ctest": CTEST,
                    "git": "#!/bin/sh\nprintf -- '-the sky is green\\n+the sky is blue\\n'\n"}
        for name in AGENTS:
            programs[name] = (f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'agent.py'}' "
                              f'{name} "$@"\n')
        for name, text in programs.items():
            (self.folder / "bin" / name).write_text(text, encoding="utf-8")
            (self.folder / "bin" / name).chmod(0o755)
        (self.tree / "build/flashmoe").symlink_to(self.folder / "bin/flashmoe")

    def fill_hub(self):
        small = checkpoint("qwen3_next")
        for repo in ("ORG/NAME", "Qwen/Qwen3-Coder-Next"):
            self.hub.add(repo, small)
        gguf = (ROOT / "tests/oracle/frozen/gpt_oss_mxfp4-bf16.gguf").read_bytes()
        self.hub.add("unsloth/gpt-oss-20b-GGUF", {"gpt-oss-20b-Q4_K_M.gguf": gguf,
                                                  "gpt-oss-20b-Q8_0.gguf": gguf})
        self.hub.plain_files["/model.gguf"] = gguf

    def translate(self, text):
        """Replaces what only another machine has."""
        text = re.sub(r"\b8080\b", str(self.port), text)
        text = re.sub(r"(?<![\w.])/(ssd[12])\b", rf"{self.folder}/\1", text)
        text = text.replace("https://huggingface.co/", self.hub.url + "/")
        return text.replace("https://example.org/", self.hub.files_url + "/")

    def run(self, text, name, keeps=True):
        """Runs commands in a shell that has what earlier ones exported. Returns (status, output).
        keeps: later ones have what these export, too."""
        state, at = self.folder / "state", self.folder / "at"
        begin = f"cd '{at.read_text() if at.exists() else self.tree}'\n"
        begin += f". '{state}'\n" if state.exists() else ""
        script = (f"set -eo pipefail\n{begin}"
                  f"trap 'echo \"{name}: failed: $BASH_COMMAND\" >&2' ERR\n"
                  f"{self.translate(text)}\n")
        if keeps:
            script += f"trap - ERR\ndeclare -px > '{state}'; printf %s \"$PWD\" > '{at}'\n"
        done = subprocess.run(["bash", "-c", script], env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
                              timeout=SECONDS, check=False)
        return done.returncode, done.stdout

    def write(self, path, text):
        path = pathlib.Path(path.replace("~", str(self.home), 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.translate(text), encoding="utf-8")

    def log(self):
        """Returns the log of all servers."""
        return "".join((self.folder / name).read_text(encoding="utf-8")
                       for name in ("earlier", "log") if (self.folder / name).exists())

    def faults_of(self, block):
        """Runs a block in sh. Returns what is wrong."""
        status, output = self.run(block.text, block.where())
        if status != 0:
            return f"{block.where()} ends with {status}:\n{output[-3000:]}\n{self.log()[-2000:]}"
        lost = missing_lines(self.translate(block.output.text), output) if block.output else []
        return f"{block.where()} does not print {lost}, but\n{output[-3000:]}" if lost else ""
