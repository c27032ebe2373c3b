"""A script of Hugging Face's Trainer has the same losses on shoal as on gloo, on 2 ranks."""
import pathlib
import unittest

import hf_scripts

hf_scripts.skip_if_missing()

import hf_comparison  # noqa: E402


class Trainer(hf_comparison.Comparison):
    def test_two_ranks(self):
        self.compare(pathlib.Path(__file__).with_name("trainer_script.py"), [], ranks=2)


if __name__ == "__main__":
    unittest.main()
