#!/usr/bin/env python3
"""Writes tests/golden/training_arguments.json: every field of transformers' TrainingArguments with its default, the
accepted values of its choices, and the names of optimizers and schedules.
"""
import dataclasses
import enum
import json
import pathlib

import transformers
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames, TrainingArguments


def plain(value):
    if value is dataclasses.MISSING:
        return None
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return str(value)


def default_of(field):
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return plain(field.default)


fields = {field.name: default_of(field) for field in dataclasses.fields(TrainingArguments) if field.init}
choices = {
    "optim": [one.value for one in OptimizerNames],
    "lr_scheduler_type": [one.value for one in SchedulerType],
    "eval_strategy": [one.value for one in IntervalStrategy],
    "save_strategy": [one.value for one in SaveStrategy],
}
out = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "training_arguments.json"
text = json.dumps(
    {"transformers": transformers.__version__, "defaults": fields, "choices": choices}, indent=1
)
out.write_text(text + "\n")
print(f"{out}: {len(fields)} fields")
