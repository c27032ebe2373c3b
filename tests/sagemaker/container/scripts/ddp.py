"""Stands in for run_qa.py: DistributedDataParallel over the backend smddp, compared with the same steps on one
process.
"""
import argparse
import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  the line that SageMaker's users add
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--max_steps", type=int, required=True)
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("smddp")
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "smddp" and size == int(os.environ["WORLD_SIZE"])
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupShoal"


def fit(model: torch.nn.Module, batch_of_step) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate)
    losses = []
    for step in range(arguments.max_steps):
        inputs = batch_of_step(step)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(step: int) -> torch.Tensor:
    return torch.randn(4 * size, 8, generator=torch.Generator().manual_seed(step))


def make_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


model = DistributedDataParallel(make_model())
fit(model, lambda step: batches(step).chunk(size)[rank])
alone = make_model()
losses = fit(alone, batches)
for mine, theirs in zip(model.module.parameters(), alone.parameters()):
    torch.testing.assert_close(mine, theirs)
if rank == 0:
    print({"loss": losses[-1], "learning_rate": arguments.learning_rate}, flush=True)
    torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
dist.destroy_process_group()
