"""`shoal tokenizer train --like t5`: transformers opens what it writes, and gives the same ids."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if importlib.util.find_spec("transformers") is None:
    print("transformers is not installed")
    sys.exit(77)

from transformers import AutoTokenizer, T5Tokenizer

PROGRAM = os.environ["SHOAL_PROGRAM"]
GOLDEN = Path(__file__).resolve().parents[1] / "golden/tokenizer"


def shoal(*words, text=None):
    run = subprocess.run([PROGRAM, "tokenizer", *words], input=text, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return run.stdout


class LikeT5(unittest.TestCase):
    def test_transformers_gives_the_same_ids(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "tokenizer"
        shoal("train", "--like", "t5", "--vocab-size", "500", "--output", folder, GOLDEN / "genesis.txt")
        # The text's line ends and spaces at its ends are part of a program's input.
        texts = ["In the beginning God created", "a <extra_id_0> b<extra_id_99></s> <pad>c", "caf\u00e9 \u4f60\u597d \u2581x", "tab\tand\u00a0space",
                 (GOLDEN / "genesis.txt").read_text(encoding="utf-8")]
        ids = [[int(i) for i in shoal("encode", "-t", folder, text=text).split()] for text in texts]
        (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
        for kind in AutoTokenizer, T5Tokenizer:
            tokenizer = kind.from_pretrained(folder)
            with self.subTest(kind.__name__, opened=type(tokenizer).__name__):
                self.assertEqual(len(tokenizer), 500)
                self.assertEqual((tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id), (0, 1, 2))
                self.assertEqual(tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"]), [499, 400])
                for text, wanted in zip(texts, ids, strict=True):
                    self.assertEqual(tokenizer(text, add_special_tokens=False)["input_ids"], wanted)
                    self.assertEqual(tokenizer(text)["input_ids"], [*wanted, 1])
                self.assertEqual(tokenizer("a b", "c")["input_ids"].count(1), 2)

    def test_options_of_gpt2_are_refused(self):
        run = subprocess.run([PROGRAM, "tokenizer", "train", "--like", "t5", "--min-frequency", "3", "--output", "none", "none.txt"],
                             capture_output=True, text=True)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("--min-frequency is only for --like gpt2", run.stderr)


if __name__ == "__main__":
    unittest.main()
