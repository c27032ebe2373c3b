#!/usr/bin/env python3
"""Golden learning-rate curves of transformers.get_scheduler: OUT/schedules.json.

A list of {schedule, base_learning_rate, warmup_steps, total_steps, options, learning_rates};
`schedule` is transformers' lr_scheduler_type, `options` its lr_scheduler_kwargs, and
learning_rates[k] is the rate of the optimizer's step k (k from 0; also a few steps beyond the total).
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import get_scheduler

# schedule, warmup_steps, total_steps, options
CURVES = [
    ("constant", 0, 8, {}),
    ("constant_with_warmup", 5, 12, {}),
    ("constant_with_warmup", 0, 6, {}),
    ("linear", 0, 10, {}),
    ("linear", 3, 10, {}),
    ("linear", 10, 10, {}),
    ("linear", 0, 1, {}),
    ("cosine", 0, 12, {}),
    ("cosine", 4, 20, {}),
    ("cosine", 2, 20, {"num_cycles": 1.5}),
    ("cosine_with_restarts", 4, 20, {}),
    ("cosine_with_restarts", 2, 23, {"num_cycles": 3}),
    ("polynomial", 0, 10, {}),
    ("polynomial", 3, 15, {"power": 2.0, "lr_end": 1e-5}),
    ("inverse_sqrt", 4, 20, {}),
    ("inverse_sqrt", 0, 10, {}),
    ("inverse_sqrt", 4, 20, {"timescale": 9}),
    ("cosine_with_min_lr", 4, 20, {"min_lr": 1e-4}),
    ("cosine_with_min_lr", 0, 12, {"min_lr_rate": 0.1}),
    ("warmup_stable_decay", 4, 20, {"num_decay_steps": 6}),
    ("warmup_stable_decay", 3, 20, {"num_decay_steps": 5, "num_stable_steps": 7,
                                    "warmup_type": "cosine", "decay_type": "linear",
                                    "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 5, 18, {"num_decay_steps": 8, "warmup_type": "1-sqrt",
                                    "decay_type": "1-sqrt"}),
]
BASE_LEARNING_RATE = 1e-3
BEYOND = 3


def curve(schedule, warmup, total, options):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE_LEARNING_RATE)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=warmup,
                              num_training_steps=total, scheduler_specific_kwargs=dict(options))
    rates = []
    for _ in range(total + BEYOND):
        rates.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return rates


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    rows = [dict(schedule=s, base_learning_rate=BASE_LEARNING_RATE, warmup_steps=w, total_steps=t,
                 options=o, learning_rates=curve(s, w, t, o)) for s, w, t, o in CURVES]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (args.out / "schedules.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(rows)} curves")


if __name__ == "__main__":
    main()
