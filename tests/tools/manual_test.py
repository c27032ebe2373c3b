#!/usr/bin/env python3
"""Tests tools/manual.py: manual pages and completions of the programs. manual_test.py APPS"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
APPS = pathlib.Path(sys.argv.pop(1)).resolve()


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.share = pathlib.Path(cls.directory.name) / "share"
        made = run(sys.executable, "-B", ROOT / "tools" / "manual.py", APPS, cls.share)
        assert made.returncode == 0, made.stderr
        cls.pages = {path.name[:-len(".1.gz")]: gzip.decompress(path.read_bytes()).decode()
                     for path in cls.share.glob("man/man1/*.1.gz")}

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def completed(self, *words):
        """What bash offers for the last of the words."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shoal; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = run("bash", "-euc", script, "bash", self.share / "bash-completion/completions/shoal", "shoal", *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.completed("to"), ["tokenizer", "token"])
        self.assertEqual(self.completed("jobs", "st"), ["stop"])
        self.assertEqual(self.completed("train", "--model_na"), ["--model_name_or_path"])
        self.assertEqual(self.completed("tokenizer", "train", "--vo"), ["--vocab-size"])  # not of `shoal train`
        self.assertEqual(self.completed("data", "prepare", "--split", "l"), ["last"])
        self.assertEqual(self.completed("train", "--packing_strategy", "=", "w"), ["wrapped"])
        self.assertEqual(self.completed("train", "--packing_strategy", "="), ["bfd", "bfd_split", "wrapped"])
        self.assertEqual(self.completed("report", "ru"), [])  # bash then offers files

    def check_syntax(self, shell, pattern):
        files = list(self.share.glob(pattern))
        self.assertEqual(len(files), 3)
        if not shutil.which(shell):
            self.skipTest(f"{shell} is not installed")
        for path in files:
            done = run(shell, "-n", path)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), path)

    def test_syntax_of_bash(self):
        self.check_syntax("bash", "bash-completion/completions/*")

    def test_syntax_of_zsh(self):
        self.check_syntax("zsh", "zsh/site-functions/_*")

    def test_syntax_of_fish(self):
        self.check_syntax("fish", "fish/vendor_completions.d/*.fish")

    def test_every_command_has_a_page(self):
        text = (ROOT / "docs" / "reference" / "commands.md").read_text()
        self.assertEqual(set(self.pages), {title.replace(" ", "-") for title in re.findall("^## (.*)$", text, re.M)} |
                         {"shoal-train"})

    def test_pages_have_the_options_and_their_values(self):
        for page, text in (("shoal-train", "\\-\\-learning_rate"), ("shoal-train", "default 5e\\-05"),
                           ("shoal-plan", "shoal\\-plan\\-spot"), ("shoal-generate", "from 0 to 1; default 1"),
                           ("shoal", ".SH EXIT STATUS"), ("shoal", "SHOAL_DEADLINE_S"),
                           ("shoal-data-prepare", "one of first, last, scattered; default last")):
            self.assertIn(text, self.pages[page])

    def test_pages_are_set_without_warnings(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for name, text in self.pages.items():
            (self.share / f"{name}.1").write_text(text)
        words = ("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z") if shutil.which("man") else (
            "groff", "-man", "-Tutf8", "-ww", "-z")
        done = run(*words, *sorted(self.share.glob("*.1")), env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_versions_agree(self):
        version, = re.findall(r"^project\(Shoal VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
        self.assertIn(f'"Shoal {version}"', self.pages["shoal"])
        self.assertEqual(re.findall(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(), re.M)[0], version)


if __name__ == "__main__":
    unittest.main()
