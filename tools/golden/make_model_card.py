"""Writes tests/golden/model_card/*.md: model cards as transformers makes them.

tests/train/command/model_card_test.cc makes the same cards.

    python tools/golden/make_model_card.py tests/golden/model_card   # with transformers
"""

import sys
from pathlib import Path

from transformers.modelcard import TrainingSummary, parse_log_history

ADAM = (
    "Use adamw with betas=(0.9,0.999) and epsilon=1e-08 and optimizer_args=No additional optimizer arguments"
)
HISTORY = [
    {"loss": 0.693147, "step": 10, "epoch": 0.5},
    {"eval_loss": 0.61234567, "eval_accuracy": 0.75, "eval_f1": 0.8123456, "eval_runtime": 1.5, "step": 10, "epoch": 0.5},
    {"loss": 0.5, "step": 20, "epoch": 1.0},
    {"eval_loss": 0.25, "eval_accuracy": 0.9, "eval_f1": 0.912345, "eval_samples_per_second": 3.5, "step": 20, "epoch": 1.0},
    {"train_runtime": 12.5, "train_loss": 0.6, "step": 20, "epoch": 1.0},
]


def card(name, history, hyperparameters, **more):
    _, lines, results = parse_log_history(history)
    return TrainingSummary(
        model_name=name,
        tags=["generated_from_trainer"],
        eval_lines=lines,
        eval_results=results,
        hyperparameters=hyperparameters,
        **more,
    ).to_model_card()


def main(directory):
    tuned = card(
        "mrpc-run",
        HISTORY,
        {
            "learning_rate": 5e-05,
            "train_batch_size": 4,
            "eval_batch_size": 8,
            "seed": 42,
            "distributed_type": "multi-GPU",
            "num_devices": 2,
            "gradient_accumulation_steps": 3,
            "total_train_batch_size": 24,
            "total_eval_batch_size": 16,
            "optimizer": ADAM,
            "lr_scheduler_type": "linear",
            "lr_scheduler_warmup_steps": 5,
            "training_steps": 20,
        },
        language="en",
        finetuned_from="some/bert-tiny",
        tasks="text-classification",
        dataset="GLUE MRPC",
        dataset_tags=["glue"],
        dataset_args=["mrpc"],
    )
    scratch = card(
        "my run",
        [{"loss": 4.5, "step": 10, "epoch": 1.0}, {"train_runtime": 1.0}],
        {
            "learning_rate": 0.001,
            "train_batch_size": 8,
            "eval_batch_size": 8,
            "seed": 42,
            "optimizer": ADAM,
            "lr_scheduler_type": "cosine",
            "num_epochs": 3.0,
        },
    )
    for name, text in {"tuned": tuned, "scratch": scratch}.items():
        (Path(directory) / f"{name}.md").write_text(text)


main(sys.argv[1])
