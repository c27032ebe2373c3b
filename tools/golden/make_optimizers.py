#!/usr/bin/env python3
"""Golden trajectories of optimizers on small tensors: OUT/optim.safetensors and OUT/optim.json.

optim.safetensors (computed in float64, stored f32):
  gradient.TENSOR      [STEPS, n]: shared by all cases
  CASE.TENSOR          [STEPS + 1, n]: the parameter before the first and after each step
optim.json: the tensors' shapes and, for each case, its tensors, rule, hyperparameters and learning
rates. AdamW and SGD are torch.optim's, Lion is lion-pytorch's, Adafactor transformers' as its
Trainer makes it. torch has no LAMB: lamb_step follows You et al., 2020 (Large Batch Optimization for
Deep Learning, Algorithm 2).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from lion_pytorch import Lion
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS = 10
LEARNING_RATES = [1e-2 * (1 - step / (2 * STEPS)) for step in range(STEPS)]
# "zero" starts at zero, so it has no trust ratio. Only Adafactor knows matrices.
VECTORS = {"a": [67], "b": [16], "c": [1], "zero": [5]}
MATRICES = {"matrix": [13, 21], "row": [1, 9], "column": [9, 1], "cube": [3, 4, 5]}
ADAM = dict(betas=[0.9, 0.999], epsilon=1e-8, weight_decay=0.0)
CASES = {
    "adamw": dict(rule="adamw", **ADAM),
    "adamw_decay": dict(rule="adamw", **{**ADAM, "weight_decay": 0.1}),
    "adamw_other": dict(rule="adamw", betas=[0.8, 0.95], epsilon=1e-3, weight_decay=0.01),
    "lion": dict(rule="lion", betas=[0.9, 0.99], weight_decay=0.0),
    "lion_decay": dict(rule="lion", betas=[0.95, 0.98], weight_decay=0.1),
    "sgd": dict(rule="sgd", momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
    "sgd_decay": dict(rule="sgd", momentum=0.0, dampening=0.0, weight_decay=0.1, nesterov=False),
    "sgd_momentum": dict(rule="sgd", momentum=0.9, dampening=0.0, weight_decay=0.01,
                         nesterov=False),
    "sgd_dampening": dict(rule="sgd", momentum=0.8, dampening=0.5, weight_decay=0.0,
                          nesterov=False),
    "sgd_nesterov": dict(rule="sgd", momentum=0.9, dampening=0.0, weight_decay=0.01,
                         nesterov=True),
    "adafactor": dict(rule="adafactor", weight_decay=0.0),
    "adafactor_decay": dict(rule="adafactor", weight_decay=0.1),
    # max_trust_ratio is not in Algorithm 2, whose phi bounds |x|. Implementations bound the ratio.
    "lamb": dict(rule="lamb", max_trust_ratio=10.0,
                 **{**ADAM, "epsilon": 1e-6, "weight_decay": 0.01}),
    "lamb_bounded": dict(rule="lamb", max_trust_ratio=0.5,
                         **{**ADAM, "epsilon": 1e-6, "weight_decay": 0.0}),
}


def lamb_step(parameter, gradient, m, v, step, rate, case):
    """m and v are updated in place; step counts from 1."""
    beta1, beta2 = case["betas"]
    m.mul_(beta1).add_(gradient, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    ratio = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + case["epsilon"])
    update = ratio + case["weight_decay"] * parameter
    weight_norm, update_norm = float(parameter.norm()), float(update.norm())
    trust = 1.0
    if weight_norm > 0 and update_norm > 0:
        trust = min(weight_norm / update_norm, case["max_trust_ratio"])
    parameter.sub_(update, alpha=rate * trust)
    return trust


def torch_optimizer(parameters, case):
    if case["rule"] == "adamw":
        return torch.optim.AdamW(parameters, betas=tuple(case["betas"]), eps=case["epsilon"],
                                 weight_decay=case["weight_decay"], foreach=False)
    if case["rule"] == "lion":
        return Lion(parameters, betas=tuple(case["betas"]), weight_decay=case["weight_decay"])
    if case["rule"] == "adafactor":
        return Adafactor(parameters, lr=1.0, weight_decay=case["weight_decay"],
                         scale_parameter=False, relative_step=False)
    return torch.optim.SGD(parameters, lr=1.0, momentum=case["momentum"],
                           dampening=case["dampening"], weight_decay=case["weight_decay"],
                           nesterov=case["nesterov"], foreach=False)


def trajectories(case, initial, gradients):
    parameters = {n: initial[n].double().clone().requires_grad_() for n in case["tensors"]}
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in parameters.items()}
    optimizer = None if case["rule"] == "lamb" else torch_optimizer(parameters.values(), case)
    rows = {n: [p.detach().clone()] for n, p in parameters.items()}
    trusts = {n: [] for n in parameters}
    for step, rate in enumerate(LEARNING_RATES):
        for name, parameter in parameters.items():
            gradient = gradients[name][step].double().reshape(parameter.shape)
            if case["rule"] == "lamb":
                with torch.no_grad():
                    trusts[name].append(lamb_step(parameter, gradient, *moments[name], step + 1,
                                                  rate, case))
            else:
                parameter.grad = gradient
        if optimizer:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        for name, parameter in parameters.items():
            rows[name].append(parameter.detach().clone())
    return {n: torch.stack(r).float().flatten(1) for n, r in rows.items()}, trusts


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=30)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    initial, gradients = {}, {}
    for name, shape in {**VECTORS, **MATRICES}.items():
        size = int(np.prod(shape))
        values = rng.standard_normal(size) * (0 if name == "zero" else 0.5)
        # The values span six decades, as in real models. Some are exactly zero at some steps.
        scale = 10.0 ** rng.uniform(-5, 1, size)
        noise = rng.standard_normal((STEPS, size)) * scale
        noise[rng.random((STEPS, size)) < 0.1] = 0
        initial[name] = torch.from_numpy(values).float().reshape(shape)
        gradients[name] = torch.from_numpy(noise).float()
    tensors = {f"gradient.{n}": g for n, g in gradients.items()}
    description = dict(steps=STEPS, seed=args.seed, learning_rates=LEARNING_RATES,
                       shapes={**VECTORS, **MATRICES}, cases=CASES)
    for case_name, case in CASES.items():
        case["tensors"] = list(VECTORS) + (list(MATRICES) if case["rule"] == "adafactor" else [])
        rows, trusts = trajectories(case, initial, gradients)
        tensors.update({f"{case_name}.{n}": r for n, r in rows.items()})
        if case["rule"] == "lamb":
            print(case_name, {n: [round(t, 3) for t in ts[:4]] for n, ts in trusts.items()})
    save_file(tensors, args.out / "optim.safetensors")
    (args.out / "optim.json").write_text(json.dumps(description, indent=1) + "\n")


if __name__ == "__main__":
    main()
