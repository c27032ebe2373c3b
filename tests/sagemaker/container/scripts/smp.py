"""Stands in for run_glue.py: the job's mp_parameters partition a model; the steps are compared with one process."""
import argparse
import os

import smdistributed.modelparallel.torch as smp
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--max_steps", type=int, required=True)
parser.add_argument("--mp_parameters")  # the toolkit passes them here too; smp.init() reads SM_HP_MP_PARAMETERS
arguments = parser.parse_args()

torch.set_num_threads(1)
smp.init()
assert (smp.size(), smp.pp_size(), smp.dp_size()) == (int(os.environ["WORLD_SIZE"]), 2, 2)
assert smp.pp_rank() == smp.rank() // 2  # placement_strategy is spread: pipeline stages are on different hosts


def make_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(),
                               torch.nn.Linear(16, 1))


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


def batch_of(step: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step))


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)


@smp.step
def train_step(model: smp.DistributedModel, inputs: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, inputs)
    model.backward(loss)
    return loss


model = smp.DistributedModel(make_model())
optimizer = smp.DistributedOptimizer(optimizer_of(model))
alone = make_model()
optimizer_alone = optimizer_of(alone)
for step in range(arguments.max_steps):
    batch = batch_of(step)
    optimizer.zero_grad()
    train_step(model, batch.chunk(smp.dp_size())[smp.dp_rank()])
    optimizer.step()
    optimizer_alone.zero_grad()
    loss = loss_of(alone, batch)
    loss.backward()
    optimizer_alone.step()
whole = model.state_dict()
for name, parameter in alone.state_dict().items():
    torch.testing.assert_close(whole[name], parameter)
if smp.rank() == 0:
    print({"loss": loss.item()}, flush=True)
    torch.save(whole, os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
