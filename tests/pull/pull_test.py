#!/usr/bin/env python3
"""Tests downloading, finding, listing and removing models against a hub on loopback.

Usage: pull_test.py PROGRAM TESTS [TestClass...]
"""
import hashlib
import json
import os
import pathlib
import pty
import shutil
import subprocess
import threading

from pull_case import PROGRAM, TESTS, Case, main, noise
import hub as hubs

MODEL = TESTS / "golden" / "qwen3_next"


class Download(Case):
    def test_checkpoint(self):
        files = self.add_noise()
        done = self.pull("org/noise")
        self.assertIn("verified", done.stderr)
        self.assert_pulled(files)
        manifest = json.loads((self.models / "org/noise/.pull/manifest.json").read_text())
        self.assertEqual(manifest["commit"], self.hub.commit)

    def test_again_downloads_nothing(self):
        self.add_noise()
        self.pull("org/noise")
        before = self.hub.sent_bytes
        self.assertIn("nothing was downloaded", self.pull("org/noise").stderr)
        self.assertEqual(self.hub.sent_bytes, before)

    def test_ranges(self):
        """A large file is fetched in several ranges, over several connections, each byte once."""
        files = self.add_noise(n_shards=1, shard_bytes=9_000_000)
        self.pull("org/noise", "--connections", "4")
        self.assert_pulled(files)
        ranges = [r[3]["Range"] for r in self.hub.asked("files") if "Range" in r[3]]
        self.assertGreaterEqual(len(ranges), 8)
        self.assertEqual(self.hub.sent_bytes, sum(map(len, files.values())))

    def test_changed_files_are_replaced(self):
        files = self.add_noise()
        self.pull("org/noise")
        files["config.json"] = b'{"model_type": "other"}'
        self.hub.add("org/noise", {"config.json": files["config.json"]})
        self.hub.commit = "f" * 40
        before = self.hub.sent_bytes
        self.pull("org/noise")
        self.assert_pulled(files)
        self.assertEqual(self.hub.sent_bytes - before, len(files["config.json"]))

    def test_progress(self):
        """Speed and time left fit on a terminal of 80 columns; long names are cut."""
        self.add_noise(n_shards=2)
        self.hub.bytes_per_second = 600_000
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, "pull", "org/noise"], env=self.environment(),
                                   stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
        os.close(slave)
        shown = b""
        while process.poll() is None:
            try:
                shown += os.read(master, 65536)
            except OSError:
                break
        os.close(master)
        self.assertEqual(process.wait(), 0)
        lines = [line.removeprefix("\x1b[K") for line in shown.decode().split("\r")]
        bars = [line for line in lines if line.startswith("downloading ") and "[" in line]
        self.assertTrue(bars, shown)
        for line in bars:
            self.assertLess(len(line), 80)
            self.assertRegex(line, r"\[[#-]{4,24}\] +\d+%  .* of .*  [\d.]+ [kM]?B/s  "
                                   r"ETA (\d+ min )?\d+ s$")

    def test_to_a_folder(self):
        files = self.add_noise()
        there = self.folder / "there"
        there.mkdir()
        (there / "README.md").write_bytes(files["README.md"])
        self.pull("org/noise", "--to", there)
        self.assertEqual((there / "tokenizer.json").read_bytes(), files["tokenizer.json"])
        # A file of the user's is taken if it is the same, and never replaced.
        other = self.folder / "other"
        other.mkdir()
        (other / "config.json").write_text("mine")
        self.assert_fails(self.pull("org/noise", "--to", other, status=2), "config.json",
                          "move it away", status=2)
        self.assertEqual((other / "config.json").read_text(), "mine")

    def test_files_of_a_pack(self):
        """They would make the folder look like a packed model."""
        files = self.add_noise()
        self.hub.add("org/noise", {name: b"{}" for name in
                                   ("model.json", "plan.json", "disks.json")})
        self.pull("org/noise")
        self.assert_pulled(files)
        self.assertEqual([m["kind"] for m in self.list()], ["Hugging Face"])

    def test_dry_run(self):
        self.add_noise()
        plan = json.loads(self.pull("org/noise", "--dry-run", "--json").stdout)
        self.assertEqual(plan["missing_bytes"], plan["bytes"])
        self.assertFalse(any(file["is_here"] for file in plan["files"]))
        self.assertEqual(self.hub.asked("files"), [])
        # It writes nothing.
        self.pull("org/noise", "--dry-run", "--pack")
        self.pull("org/noise", "--dry-run", "--to", self.folder / "there")
        self.assertFalse((self.folder / "there").exists())
        self.assertFalse(self.models.exists())
        self.assertEqual(self.list(), [])

    def test_dry_run_of_an_update(self):
        files = self.add_noise()
        self.pull("org/noise")
        there = {p: p.stat().st_mtime_ns for p in self.models.glob("**/*")}
        self.hub.add("org/noise", {"tokenizer.json": noise(60, len(files["tokenizer.json"]))})
        self.hub.commit = "f" * 40
        plan = json.loads(self.pull("org/noise", "--dry-run", "--json").stdout)
        self.assertEqual([f["name"] for f in plan["files"] if not f["is_here"]],
                         ["tokenizer.json"])
        self.assertEqual(there, {p: p.stat().st_mtime_ns for p in self.models.glob("**/*")})
        self.assert_pulled(files)

    def test_two_at_once(self):
        """The second process is refused while the first one downloads."""
        files = self.add_noise(n_shards=1)
        gate = threading.Event()
        self.hub.faults.append(lambda r: r.server.role == "files" and not gate.wait(60))
        first = subprocess.Popen([PROGRAM, "pull", "org/noise"], env=self.environment(),
                                 stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.hub.asked("files"):
            self.assertIsNone(first.poll())
        self.assert_fails(self.pull("org/noise", status=2), "another process", status=2)
        gate.set()
        self.assertEqual(first.wait(600), 0)
        self.assert_pulled(files)

    def test_plain_url(self):
        data = noise(9, 4_000_000)
        self.hub.plain_files["/dir/model-q4.gguf"] = data
        url = f"{self.hub.files_url}/dir/model-q4.gguf?download=true"
        digest = hashlib.sha256(data).hexdigest()
        self.assert_fails(self.pull(url, "--digest", "0" * 64, status=1), digest, "wrong bytes")
        self.pull(url, "--digest", digest)
        self.assertEqual([m["kind"] for m in self.list()], ["GGUF"])
        path = pathlib.Path(self.list()[0]["path"])
        self.assertEqual(path.read_bytes(), data)
        self.assertEqual(path.name, "model-q4.gguf")
        self.assertIn("nothing was downloaded", self.pull(url).stderr)

    def test_split_url(self):
        parts = [noise(i, 1_500_000) for i in range(2)]
        for i, data in enumerate(parts):
            self.hub.plain_files[f"/m-{i + 1:05}-of-00002.gguf"] = data
        self.pull(f"{self.hub.files_url}/m-00002-of-00002.gguf")
        folder = pathlib.Path(self.list()[0]["path"]).parent
        self.assertEqual([p.read_bytes() for p in sorted(folder.glob("*.gguf"))], parts)


class Gguf(Case):
    def setUp(self):
        super().setUp()
        self.files = {"m-Q4_K_M.gguf": noise(1, 1_200_000), "m-Q8_0.gguf": noise(2, 1_300_000),
                      "BF16/m-BF16-00001-of-00002.gguf": noise(3, 1_100_000),
                      "BF16/m-BF16-00002-of-00002.gguf": noise(4, 500_000),
                      "mmproj-m.gguf": b"images", "README.md": b"#"}
        self.hub.add("org/m-GGUF", self.files)

    def test_choice(self):
        done = self.assert_fails(self.pull("org/m-GGUF", status=2), "3 GGUF models", "m-Q4_K_M",
                                 "BF16/m-BF16", "org/m-GGUF:Q4_K_M", status=2)
        self.assertNotIn("mmproj", done.stderr)
        self.assert_fails(self.pull("org/m-GGUF:Q2_K", status=2), "Q2_K", "m-Q8_0", status=2)

    def test_one_and_another(self):
        folder = self.models / "org/m-GGUF"
        for name in ("Q4_K_M", "m-Q8_0.gguf"):
            self.pull(f"org/m-GGUF:{name}")
        page = "resolve/main/BF16/m-BF16-00001-of-00002.gguf"
        self.pull(f"{self.hub.url}/org/m-GGUF/{page}?download=true")
        for path, data in self.files.items():
            if path.endswith(".gguf") and "mmproj" not in path:
                self.assertEqual((folder / path.split("/")[-1]).read_bytes(), data)
        names = [m["name"] for m in self.list()]
        self.assertEqual(names, ["org/m-GGUF:m-BF16", "org/m-GGUF:m-Q4_K_M", "org/m-GGUF:m-Q8_0"])
        done = self.flashmoe("inspect", "org/m-GGUF:q8_0")
        self.assert_fails(done, str(folder / "m-Q8_0.gguf"))  # found; it is noise
        self.assertEqual(self.flashmoe("rm", "org/m-GGUF:BF16").returncode, 0)
        self.assertEqual(sorted(p.name for p in folder.glob("*.gguf")),
                         ["m-Q4_K_M.gguf", "m-Q8_0.gguf"])
        self.assertEqual(len(self.list()), 2)

    def test_removing_the_only_one(self):
        self.pull("org/m-GGUF:Q4_K_M")
        self.assertEqual(self.flashmoe("rm", "org/m-GGUF:Q4_K_M").returncode, 0)
        self.assertFalse((self.models / "org").exists())

    def test_removing_one_that_was_begun(self):
        self.pull("org/m-GGUF:Q8_0")
        self.hub.cut_after = 300_000
        self.pull("org/m-GGUF:Q4_K_M", "--retries", "0", status=1)
        self.hub.cut_after = None
        folder = self.models / "org/m-GGUF"
        self.assertTrue(list(folder.glob(".pull/m-Q4_K_M.gguf.*")))
        self.assert_fails(self.flashmoe("inspect", "org/m-GGUF:Q4_K_M"), "in part")
        self.assertEqual(self.flashmoe("rm", "org/m-GGUF:Q4_K_M").returncode, 0)
        self.assertEqual([p.name for p in (folder / ".pull").iterdir()], ["manifest.json"])
        self.assertEqual([m["state"] for m in self.list()], ["complete"])
        done = self.flashmoe("inspect", "org/m-GGUF:Q4_K_M")
        self.assertNotIn("in part", self.assert_fails(done, "no model that was pulled").stderr)
        self.assert_fails(self.flashmoe("rm", "org/m-GGUF:Q4_K_M"), "no pulled model", status=2)


class Names(Case):
    """A pulled name works wherever a path does."""

    def setUp(self):
        super().setUp()
        self.hub.add("org/tiny", {p.name: p.read_bytes() for p in MODEL.iterdir() if p.is_file()})

    def test_commands(self):
        self.pull("org/tiny")
        text = self.flashmoe("tokenize", "org/tiny", "-p", "hello", "--ids")
        self.assertEqual((text.returncode, text.stdout),
                         (0, self.flashmoe("tokenize", MODEL, "-p", "hello", "--ids").stdout))
        for command in (("inspect", "org/tiny"), ("run", "org/tiny", "-p", "a", "-n", "1"),
                        ("inspect", "hf.co/org/tiny"), ("plan", "org/tiny"),
                        ("pack", "org/tiny", self.folder / "tiny.fmoe")):
            done = self.flashmoe(*command)
            with self.subTest(command=command):
                self.assertEqual(done.returncode, 0, done.stderr)
        done = self.flashmoe("run", "-p", "a", "-n", "1", FLASHMOE_MODEL="org/tiny")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_unknown(self):
        done = self.flashmoe("run", "org/unknown", "-p", "a")
        self.assert_fails(done, "flashmoe pull org/unknown")
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_partial(self):
        self.pull("org/tiny")
        (self.models / "org/tiny/config.json").unlink()
        self.assert_fails(self.flashmoe("run", "org/tiny", "-p", "a"), "in part",
                          "flashmoe pull org/tiny")
        self.assertEqual([m["state"] for m in self.list()], ["partial"])
        self.pull("org/tiny")
        self.assertEqual([m["state"] for m in self.list()], ["complete"])

    def test_a_path_comes_first(self):
        os.makedirs(self.folder / "org/tiny")
        done = subprocess.run([PROGRAM, "inspect", "org/tiny"], env=self.environment(),
                              cwd=self.folder, capture_output=True, encoding="utf-8", check=False)
        self.assertNotIn("pull", done.stderr)

    def test_revision(self):
        self.pull(f"org/tiny@{self.hub.commit}")
        name = f"org/tiny@{self.hub.commit}"
        self.assertEqual([m["name"] for m in self.list()], [name])
        self.assertEqual(self.flashmoe("inspect", name).returncode, 0)

    def test_completion(self):
        self.pull("org/tiny")
        for command, cur in (("run", "org/t"), ("rm", "org/")):
            script = (self.flashmoe("completions", "bash").stdout +
                      f"\nCOMP_WORDS=('{PROGRAM}' {command} {cur})\nCOMP_CWORD=2\n_flashmoe\n"
                      "printf '%s\\n' \"${COMPREPLY[@]}\"\n")
            out = subprocess.run(["bash", "-c", script], env=self.environment(),
                                 capture_output=True, encoding="utf-8", check=True)
            self.assertEqual(out.stdout.split(), ["org/tiny"], out.stderr)

    def test_cache_of_others(self):
        """What huggingface_hub has downloaded is found, listed, used, and never removed."""
        cache = self.folder / "cache/huggingface/hub/models--org--tiny"
        snapshot = cache / "snapshots" / self.hub.commit
        (cache / "blobs").mkdir(parents=True)
        (cache / "refs").mkdir()
        (cache / "refs/main").write_text(self.hub.commit)
        snapshot.mkdir(parents=True)
        for path, blob in self.hub.repos["org/tiny"].items():
            (cache / "blobs" / blob.etag()).write_bytes(blob.data)
            (snapshot / path).symlink_to(f"../../blobs/{blob.etag()}")
        self.assertEqual(self.flashmoe("inspect", "org/tiny").returncode, 0)
        self.assertEqual([(m["name"], m["state"]) for m in self.list()], [("org/tiny", "cache")])
        self.assertIn("cache", self.pull("org/tiny").stderr)
        self.assertEqual(self.hub.sent_bytes, 0)
        self.assert_fails(self.flashmoe("rm", "org/tiny"), "hf cache", status=2)
        self.assertTrue(snapshot.exists())
        # Without a file it is downloaded.
        (snapshot / "config.json").unlink()
        self.pull("org/tiny")
        self.assertEqual([m["state"] for m in self.list()], ["complete", "cache"])


class Remove(Case):
    def test_remove(self):
        self.add_noise()
        self.pull("org/noise")
        used = json.loads(self.flashmoe("du", "--json").stdout)
        self.assertGreater(used["bytes"], 9_000_000)
        self.assertEqual([m["name"] for m in used["models"]], ["org/noise"])
        self.assertIn("org/noise", self.flashmoe("list").stdout)
        self.assertEqual(self.flashmoe("rm", "org/noise").returncode, 0)
        self.assertFalse((self.models / "org").exists())
        self.assertEqual(self.list(), [])
        self.assert_fails(self.flashmoe("rm", "org/noise"), "no pulled model", status=2)

    def test_links_are_not_followed(self):
        self.add_noise()
        self.pull("org/noise")
        precious = self.folder / "precious"
        precious.mkdir()
        (precious / "file").write_text("x")
        (self.models / "org/noise/link").symlink_to(precious)
        self.assertEqual(self.flashmoe("rm", "org/noise").returncode, 0)
        self.assertEqual((precious / "file").read_text(), "x")

    def test_nothing_else_is_removed(self):
        """Neither what a link of the models folder leads to, nor a folder that is no model."""
        precious = self.folder / "precious/folder"
        precious.mkdir(parents=True)
        (precious / "model.safetensors").write_text("x")
        self.models.mkdir()
        (self.models / "org").symlink_to(precious.parent)
        (precious / "a-Q4.gguf").write_text("x")
        for name in ("org/folder", "org/folder:Q4"):
            self.assert_fails(self.flashmoe("rm", name), "is a link", status=2)
        self.assertEqual(len(list(precious.iterdir())), 2)
        for left in ("other.fmoe.partial/text.odt", ".pull-other/text.odt"):
            path = precious.parent / left
            path.parent.mkdir()
            path.write_text("x")
            self.assert_fails(self.flashmoe("rm", "org/other"), "is a link", status=2)
            self.assertEqual(path.read_text(), "x")
        thesis = self.models / "mine/thesis/text.odt"
        thesis.parent.mkdir(parents=True)
        thesis.write_text("x")
        self.assert_fails(self.flashmoe("rm", "mine/thesis"), "is no model", status=2)
        self.assertEqual(thesis.read_text(), "x")

    def test_nothing_with_the_name_of_a_pack(self):
        """A folder is no model because of its name."""
        for name, why in (("thesis.fmoe", "is no model"), ("book.fmoe.partial", "no pulled model")):
            folder = self.models / "mine" / name
            (folder / "sub").mkdir(parents=True)
            for file in (folder / "text.odt", folder / "sub/dense.bin"):
                file.write_text("x")
            self.assertEqual(self.list(), [])
            for wanted in (name.split(".")[0], name.removesuffix(".partial")):
                self.assert_fails(self.flashmoe("rm", f"mine/{wanted}"), why, status=2)
            self.assertEqual(len(list(folder.rglob("*"))), 3)

    def test_one_gguf(self):
        """Removing one model of a folder changes nothing else in it, and a failure nothing."""
        folder = self.models / "org/n"
        folder.mkdir(parents=True)
        both = ["n-Q4_K_M.gguf", "n-Q8_0.gguf"]
        names = [*both, "n-Q4_K_M", "mmproj-n-Q4_K_M.gguf"]
        for name in names:
            (folder / name).write_text("x")
        self.assertEqual([m["state"] for m in self.list()], ["complete"] * 2)
        self.assert_fails(self.flashmoe("rm", "org/n:Q5_K"), "no pulled model", status=2)
        self.assertEqual(sorted(p.name for p in folder.iterdir()), sorted(names))
        self.assertEqual(self.flashmoe("rm", "org/n:Q4_K_M").returncode, 0)
        names.remove(both[0])
        self.assertEqual(sorted(p.name for p in folder.iterdir()), sorted(names))
        self.assertEqual([(m["name"], m["state"]) for m in self.list()], [("org/n", "complete")])

    def test_two_that_fit(self):
        """The whole name decides; a part of it that fits two models removes neither."""
        folder = self.models / "org/n"
        folder.mkdir(parents=True)
        names = ["draft-n-Q8_0.gguf", "n-IQ4_XS.gguf", "n-Q8_0.gguf", "n-UD-IQ4_XS.gguf"]
        for name in names:
            (folder / name).write_text("x")
        self.assert_fails(self.flashmoe("rm", "org/n:IQ4_XS"), "give the whole name", status=2)
        self.assertEqual(sorted(p.name for p in folder.iterdir()), names)
        self.assertEqual(self.flashmoe("rm", "org/n:n-Q8_0").returncode, 0)
        self.assertEqual(sorted(p.name for p in folder.iterdir()), [*names[:2], names[3]])

    def test_pack_of_one_again(self):
        """The pack of one GGUF whose model.json an interrupted rm has removed."""
        folder = self.models / "org/n.fmoe"
        folder.mkdir(parents=True)
        (folder / "dense.bin").write_text("x")
        self.assertEqual(self.flashmoe("rm", "org/n:Q4_K_M").returncode, 0)
        self.assertFalse(folder.exists())

    def test_again(self):
        """What an interruption leaves can be removed: weights, plans and manifests go last."""
        weights = [f"model-{i}.safetensors" for i in range(9)]
        packed = ["dense.bin", *(f"experts-{i:03}.bin" for i in range(9))]
        for folder, others, last in (
                ("n", ["config.json", "tokenizer.json"], weights),
                ("n", [], ["a-Q4.gguf", "b-Q8.gguf"]),
                ("n", weights, [".pull/manifest.json"]),
                ("n.fmoe", ["model.json", "tokenizer.json"], packed),
                ("n.fmoe.partial", ["dense.bin.sums"], ["plan.json"]),
                ("n.fmoe.partial", packed, ["plan.json"]),
                ("n.fmoe.partial", [], ["plan.json.tmp"]),
                ("n.fmoe.partial", [], [])):
            with self.subTest(folder=folder, last=last):
                path = self.models / "org" / folder
                # The program does not remove this one: so it stops there.
                deep = path / "deep" / "/".join("abcdefghij")
                half = len(last) // 2
                for names in (last[:half], None, others, last[half:]):
                    if names is None and others:
                        deep.mkdir(parents=True)
                    for name in names or []:
                        (path / name).parent.mkdir(parents=True, exist_ok=True)
                        (path / name).write_text("{}")
                path.mkdir(parents=True, exist_ok=True)
                if others:
                    self.assertNotEqual(self.flashmoe("rm", "org/n").returncode, 0)
                    self.assertEqual([n for n in last if not (path / n).exists()], [])
                    for name in ("deep", *others):
                        shutil.rmtree(path / name, ignore_errors=True)
                        (path / name).unlink(missing_ok=True)
                done = self.flashmoe("rm", "org/n")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertFalse(path.exists())

    def test_links_at_models(self):
        """Nor what a link in the place of a model leads to, nor what stands beside it."""
        precious = self.folder / "precious"
        beside = self.models / "org/noise.fmoe.partial/plan.json"
        for path in (precious / "a-Q4.gguf", precious / "b-Q8.gguf", beside):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        for link in ("noise", "noise.fmoe"):
            (self.models / "org" / link).symlink_to(precious)
        for name in ("org/noise:Q4", "org/noise", "org/noise.fmoe"):
            self.assert_fails(self.flashmoe("rm", name), "is a link", status=2)
        self.assertEqual(sorted(p.name for p in precious.iterdir()), ["a-Q4.gguf", "b-Q8.gguf"])
        self.assertEqual(beside.read_text(), "x")

    def test_partial_names(self):
        """NAME.partial goes with NAME only if it is what an interrupted pack has left."""
        folder = self.models / "mine/thesis.partial"
        folder.mkdir(parents=True)
        for name in ("text.odt", "model.safetensors"): # another model can have such a name
            (folder / name).write_text("x")
            self.assert_fails(self.flashmoe("rm", "mine/thesis"), "no pulled model", status=2)
            self.assertEqual((folder / name).read_text(), "x")
        for name in ("thesis.partial", "thesis.fmoe.partial"):
            left = self.models / "mine" / name / "plan.json"
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_text("{}")
            self.assertEqual(self.flashmoe("rm", "mine/thesis").returncode, 0)
            self.assertFalse(left.parent.exists())

    def test_names_stay_inside(self):
        (self.folder / "victim").mkdir()
        for name in ("../victim", "org/../../victim", "org/..", "/", "org/", "./x", "-x/y",
                     str(self.folder / "victim")):
            with self.subTest(name=name):
                self.assertEqual(self.flashmoe("rm", "--", name).returncode, 2)
        self.assertTrue((self.folder / "victim").exists())


class Token(Case):
    def setUp(self):
        super().setUp()
        self.hub.token = "hf_secret"
        self.files = self.add_noise(n_shards=1)

    def tokens_of(self, role):
        return {r[3].get("Authorization") for r in self.hub.asked(role)}

    def test_needed(self):
        done = self.assert_fails(self.pull("org/noise", status=1), "401", "HF_TOKEN")
        self.assertNotIn("hf_secret", done.stderr)

    def test_sources(self):
        home = self.folder / "hf"
        home.mkdir()
        (home / "token").write_text("hf_secret\n")
        default = self.folder / "cache/huggingface"
        default.mkdir(parents=True)
        for env in ({"HF_TOKEN": "hf_secret"}, {"HUGGING_FACE_HUB_TOKEN": "hf_secret"},
                    {"HF_HOME": home}, {"HF_TOKEN_PATH": home / "token"}):
            with self.subTest(env=env):
                self.pull("org/noise", **env)
                self.flashmoe("rm", "org/noise")
        (default / "token").write_text("hf_secret")
        self.pull("org/noise")
        self.flashmoe("rm", "org/noise")
        self.pull("org/noise", HF_HUB_DISABLE_IMPLICIT_TOKEN="1", status=1)

    def test_only_for_the_hub(self):
        self.pull("org/noise", HF_TOKEN="hf_secret")
        self.assert_pulled(self.files)
        self.assertEqual(self.tokens_of("hub"), {"Bearer hf_secret"})
        self.assertEqual(self.tokens_of("files"), {None})
        self.hub.plain_files["/m.gguf"] = b"GGUF"
        self.pull(f"{self.hub.files_url}/m.gguf", HF_TOKEN="hf_secret")
        self.assertEqual(self.tokens_of("files"), {None})

    def test_not_without_https(self):
        """The proxy plays a hub on another machine, reached over plain http."""
        for host in ("hub.example", "127.example", "127.0.0.1.example", "localhost.example",
                     "127.0.0.999", "127.256.1.1", "128.0.0.1"):
            done = self.pull("org/noise", HF_TOKEN="hf_secret", HF_ENDPOINT=f"http://{host}",
                             http_proxy=self.hub.url, status=1)
            self.assertIn("not sent", done.stderr)
            self.assertEqual(self.tokens_of("hub"), {None})

    def test_bad_token(self):
        for bad in ("two words", "line\nX-Injected: 1", "b\x01"):
            self.assert_fails(self.pull("org/noise", HF_TOKEN=bad, status=2), "not a token",
                              status=2)


class Proxy(Case):
    def test_proxy(self):
        """Everything goes through the proxy, except to hosts that NO_PROXY names."""
        files = self.add_noise(n_shards=1)
        self.hub.files_url = "http://files.example"
        proxied = []

        def as_proxy(request):
            if request.path.startswith("http://"):
                proxied.append(request.url.netloc)
                if request.url.netloc == "files.example":
                    request.answer_files()
                    return True
            return False
        self.hub.faults.append(as_proxy)
        hub = self.hub.url
        self.hub.url = "http://hub.example"
        self.pull("org/noise", HF_ENDPOINT="http://hub.example", http_proxy=hub)
        self.assert_pulled(files)
        self.assertEqual(set(proxied), {"hub.example", "files.example"})
        self.flashmoe("rm", "org/noise")
        del proxied[:]
        self.hub.url = hub
        self.pull("org/noise", HF_ENDPOINT=hub, http_proxy=hub, no_proxy="127.0.0.1")
        self.assertEqual(set(proxied), {"files.example"})


class Usage(Case):
    def test_names(self):
        for name in ("name", "a/b/c", "../b", "a/..", ".a/b", "a/b:../../x", "a b/c", "",
                     "https://user@host/x.gguf", "https://host/x.bin", "ftp://host/x.gguf"):
            with self.subTest(name=name):
                self.assertEqual(self.flashmoe("pull", "--", name).returncode, 2)
        self.assertEqual(self.hub.requests, [])

    def test_answers(self):
        self.assert_fails(self.pull("org/none", status=1), "404", "check the name")
        self.hub.add("org/bin", {"pytorch_model.bin": b"x", "config.json": b"{}"})
        self.assert_fails(self.pull("org/bin", status=2), "safetensors", status=2)
        self.add_noise()
        self.assert_fails(self.pull("org/noise@v2", status=1), "404")
        self.assert_fails(self.pull("org/noise", HF_HUB_OFFLINE="1", status=2), "HF_HUB_OFFLINE",
                          status=2)
        self.assert_fails(self.pull("org/noise", HF_ENDPOINT="hub", status=2), "HF_ENDPOINT",
                          status=2)

    def test_the_models_folder_is_an_absolute_path(self):
        """Nothing goes to another folder, whose disk may be too small."""
        self.add_noise()
        for models in ("models", "~/models"):
            for args in (["pull", "org/noise"], ["list"], ["du"], ["rm", "org/noise"],
                         ["inspect", "org/noise"]):
                done = self.flashmoe(*args, FLASHMOE_MODELS=models)
                self.assertIn(done.returncode, (1, 2))
                self.assertIn(f"FLASHMOE_MODELS is '{models}'", done.stderr)
        self.assertEqual(self.hub.requests, [])
        self.assertFalse((self.folder / "home").exists())
        done = self.flashmoe("inspect", "org/noise", FLASHMOE_MODELS="", HOME="")
        self.assert_fails(done, "cannot open 'org/noise'")


if __name__ == "__main__":
    main()
