#!/usr/bin/env python3
"""Runs the commands of docs/start and of some guides: each page's ```sh blocks, in order, in one shell that ends at
the first failure.
docs_commands_test.py APPS runs them with the programs of that directory. The test creates small versions of files
that a page expects from its reader (a text, a model). SMALLER shortens runs; each of its texts must occur in the
page.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {path.stem: path for folder in ("start", "guides") for path in (ROOT / "docs" / folder).glob("*.md")
         if "```sh\n" in path.read_text()}
APPS = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None

SMALLER = {
    "fine-tune": {"--output_dir out/reviews": "--num_train_epochs 1 --output_dir out/reviews"},
    "gpt2": {"--vocab-size 4096": "--vocab-size 300", "--max_train_minutes 5": "--max_steps 2 --eval_steps 2"},
    "studies": {"--vocab-size 4096": "--vocab-size 280", '"batches": [8]': '"batches": [1], "examples": 8'},
    "collectives": {"-e 64M": "-e 1M", "-e 16M": "-e 1M"},
}
# Texts that the output must contain, so that a page cannot pass by doing nothing.
SAYS = {
    "install": ["shoal 0.", "huge pages"],
    "fine-tune": ["reviews.csv: 5 rows train and 1 validate", "eval_accuracy", "6 predictions in predictions.csv", '"probabilities"'],
    "gpt2": ["validation loss", "model saved in out/run", "transformer.h.0.attn.c_attn.weight"],
    "collectives": ["Avg bus bandwidth", "Out of bounds values", "all_reduce"],
    "planning": ["MFU"],
    "studies": ["mpirun -n 2", "8 examples in every run; plots in scaling/study.html"],
    "sagemaker": ["2 x ml.p4d.24xlarge (8 A100 each)", "16, data-parallel", "warnings   none"],
}
WORDS = "sea ship wind light land king day night stone tree".split()
SENTENCES = [f"the {a} and the {b} were of the {c}." for a in WORDS for b in WORDS for c in WORDS]


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


def run(script, folder):
    environment = {**os.environ, "PATH": f"{APPS}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                   "HF_HUB_CACHE": str(folder / "no-cache")}
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150)
    return done.returncode, done.stdout


def make_text(folder):
    (folder / "book.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "examples").symlink_to(ROOT / "examples")


def make_model(folder):
    """A DistilBERT with random weights instead of the reader's trained one."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, ".", ",", *(f"##{letter}" for letter in letters)]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True}))
    (folder / "rows.csv").write_text("text,label\na ship,good\na stone,bad\n")
    status, said = run("shoal train --task text-classification --model_type distilbert --tokenizer_name tokenizer "
                       "--config_overrides dim=16,n_layers=1,n_heads=2,hidden_dim=32,max_position_embeddings=64 "
                       "--train_file rows.csv --max_steps 1 --output_dir distilbert-base-uncased", folder)
    assert status == 0, said


MAKE = {"gpt2": make_text, "studies": make_text, "fine-tune": make_model}


class Pages(unittest.TestCase):
    def check(self, name):
        script = blocks(PAGES[name].read_text())
        if APPS is None:
            self.skipTest("no programs were given")
        if "mpirun" in script and not shutil.which("mpirun"):
            self.skipTest("mpirun is not installed")
        for text, smaller in SMALLER.get(name, {}).items():
            self.assertIn(text, script)
            script = script.replace(text, smaller)
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            MAKE.get(name, lambda _: None)(folder)
            status, said = run(script, folder)
        self.assertEqual(status, 0, said)
        for text in SAYS[name]:
            self.assertIn(text, said)

    def test_every_page_with_commands_is_run(self):
        self.assertEqual(set(PAGES), set(SAYS))


for page in SAYS:
    setattr(Pages, f"test_{page.replace('-', '_')}", lambda self, page=page: self.check(page))

if __name__ == "__main__":
    unittest.main()
