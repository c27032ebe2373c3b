"""Hugging Face's example scripts, unmodified, have the same losses on shoal as on gloo.

Needs SHOAL_HF_EXAMPLES (hf_scripts.py), transformers, accelerate, datasets, evaluate, scikit-learn, nltk and
../shared/data.
"""
import os
import pathlib
import unittest

import hf_scripts

hf_scripts.skip_if_missing("datasets", "evaluate", "sklearn", "nltk", examples=True)

import hf_comparison  # noqa: E402

PAIRS, SQUAD, TEXT, SUMMARIES = (
    ["--train_file", f"{name}-train.{end}", "--validation_file", f"{name}-validation.{end}"]
    for name, end in (("pairs", "json"), ("squad", "json"), ("text", "txt"), ("summaries", "json")))
EXAMPLES = {
    "text-classification/run_glue.py": ["--model_name_or_path", "bert", "--max_seq_length", "32", *PAIRS],
    "question-answering/run_qa.py": ["--model_name_or_path", "bert", "--max_seq_length", "64", "--doc_stride", "16",
                                     "--max_eval_samples", "12", *SQUAD],
    "language-modeling/run_clm.py": ["--model_name_or_path", "gpt2", "--block_size", "32", "--max_eval_samples", "12",
                                     *TEXT],
    "language-modeling/run_mlm.py": ["--model_name_or_path", "bert", "--max_seq_length", "32",
                                     "--max_eval_samples", "12", *TEXT],
    "summarization/run_summarization.py": ["--model_name_or_path", "t5", "--max_source_length", "48",
                                           "--max_target_length", "16", *SUMMARIES],
}


class Examples(hf_comparison.Comparison):
    pass


for _script in EXAMPLES:
    for _ranks in (2, 4):
        setattr(Examples, f"test_{pathlib.Path(_script).stem}_{_ranks}_ranks",
                lambda self, script=_script, ranks=_ranks: self.compare(
                    os.path.join(hf_scripts.SCRIPTS, script), EXAMPLES[script], ranks))


if __name__ == "__main__":
    unittest.main()
