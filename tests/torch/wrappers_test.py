"""PyTorch's own ways to train in parallel give the same losses and weights on shoal as on gloo."""
import tempfile
import unittest
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ranks

STEPS = 3
WIDTH = 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Blocks; a pass leaves out `skip`."""

    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x, skip=None):
        for i, block in enumerate(self.blocks):
            if i != skip:
                x = block(x)
        return x


def net(blocks=3):
    torch.manual_seed(1)
    return Net(blocks)


def batch(rank, step, rows=4):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def numbers(losses, parameters):
    """The values that ranks compare: plain numbers, since tensors do not outlive the process that sends them."""
    flat = [losses] + [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return [value for tensor in flat for value in torch.as_tensor(tensor).detach().reshape(-1).tolist()]


def train(model, optimizer, rank, *, micro=1, forward=None):
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro):
            quiet = model.no_sync() if part + 1 < micro else nullcontext()
            with quiet:
                x, y = batch(rank, step * micro + part)
                out = forward(model, x, step) if forward else model(x)
                loss = (out - y).square().mean()
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(*, micro=1, forward=None, hook=None, bucket=0.005, **options):
    def body(rank, size):
        model = DistributedDataParallel(net(), bucket_cap_mb=bucket, **options)
        if hook:
            hook(model)
        return numbers(train(model, sgd(model), rank, micro=micro, forward=forward), model.parameters())
    return body


def power_sgd(model):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def joined(rank, size):
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    with Join([model]):
        for step in range(2 + rank):  # an uneven number of steps
            x, y = batch(rank, step)
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return numbers([], model.parameters())


def zero(rank, size):
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return numbers(train(model, optimizer, rank), model.parameters())


def fsdp1(rank, size):
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"), use_orig_params=True)
    losses = train(model, sgd(model), rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return numbers(losses, [p.clone() for p in model.parameters()])


def sharded(size):
    mesh = init_device_mesh("cpu", (size,))
    model = net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(rank, size):
    model = sharded(size)
    return numbers(train(model, sgd(model), rank), model.parameters())


def fsdp2_in_allocated_memory(rank, size):
    model = sharded(size)
    if dist.get_backend() == "shoal":  # gloo does not allocate memory
        model.set_allocate_memory_from_process_group_for_comm(True)
    return numbers(train(model, sgd(model), rank), model.parameters())


def tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    model = net()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return numbers(train(model, sgd(model), 0), model.parameters())


def pipelined(schedule, per_rank, *, bends=False):
    """With `bends`, each rank has two stages, and rank 0 has the first and the last."""
    def body(rank, size):
        whole, count = net(2 * size * per_rank), size * per_rank
        places = [rank, count - 1 - rank] if bends else range(rank, count, size)
        stages = [PipelineStage(nn.Sequential(*whole.blocks[2 * i:2 * i + 2]), i, count, torch.device("cpu"))
                  for i in places]
        run = schedule(stages if per_rank > 1 else stages[0], n_microbatches=2 * size,
                       loss_fn=lambda out, y: (out - y).square().mean())
        optimizers = [sgd(stage.submod) for stage in stages]
        found = []
        for step in range(STEPS):
            x, y = batch(0, step, rows=4 * size)
            losses = []
            last = count - 1 in places
            run.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if last else {}))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            found += [loss.item() for loss in losses]
        return numbers(found, [p for stage in stages for p in stage.submod.parameters()])
    return body


def checkpointed(directory):
    def body(rank, size):
        model = sharded(size)
        train(model, sgd(model), rank)
        path = f"{directory}/{dist.get_backend()}"
        checkpoint.save(model.state_dict(), checkpoint_id=path)
        fresh = sharded(size)
        state = fresh.state_dict()
        checkpoint.load(state, checkpoint_id=path)
        fresh.load_state_dict(state)
        return numbers([], fresh.parameters())
    return body


gloo_averages = unittest.skipIf(ranks.PYTORCH < (2, 9), "PyTorch 2.8's gloo sums if FSDP2 asks for averages")


class Wrappers(unittest.TestCase):
    def same(self, body, sizes=(2, 4)):
        for size in sizes:
            with self.subTest(ranks=size):
                found = ranks.run(size, body)
                wanted = ranks.run(size, body, backend="gloo")
                for rank in range(size):
                    self.assertEqual(len(found[rank]), len(wanted[rank]))
                    if size == 2:  # a sum of two terms has only one order
                        self.assertEqual(found[rank], wanted[rank])
                    for a, b in zip(found[rank], wanted[rank]):
                        self.assertAlmostEqual(a, b, delta=2e-6 * max(1, abs(b)))

    def test_ddp(self):
        self.same(ddp())

    def test_ddp_static_graph(self):
        self.same(ddp(static_graph=True), (2,))

    def test_ddp_bucket_views(self):
        self.same(ddp(gradient_as_bucket_view=True), (2,))

    def test_ddp_unused(self):
        self.same(ddp(find_unused_parameters=True, forward=lambda model, x, step: model(x, step % 2)), (2,))

    def test_ddp_no_sync(self):
        self.same(ddp(micro=2), (2,))

    def test_ddp_hooks(self):
        for name, hook in (("fp16", default_hooks.fp16_compress_hook), ("bf16", default_hooks.bf16_compress_hook)):
            with self.subTest(name):
                self.same(ddp(hook=lambda model, hook=hook: model.register_comm_hook(None, hook)), (2,))
        # Its callbacks call collectives, whose order between buckets would differ from rank to rank.
        self.same(ddp(hook=power_sgd, bucket=25), (2,))

    def test_ddp_join(self):
        self.same(joined, (2,))

    def test_zero_redundancy_optimizer(self):
        self.same(zero, (2,))

    def test_fsdp1(self):
        self.same(fsdp1, (2,))

    @gloo_averages
    def test_fsdp2(self):
        self.same(fsdp2)
        if hasattr(FSDPModule, "set_allocate_memory_from_process_group_for_comm"):
            self.same(fsdp2_in_allocated_memory, (2,))

    def test_tensor_parallel(self):
        self.same(tensor_parallel, (2,))

    @unittest.skipIf(ranks.PYTORCH == (2, 9), "PyTorch 2.9's pipelines receive 8 bytes into 4; gloo fails as well")
    def test_pipelines(self):
        self.same(pipelined(Schedule1F1B, 1), (2,))
        self.same(pipelined(ScheduleInterleaved1F1B, 2), (2,))
        self.same(pipelined(ScheduleZBVZeroBubble, 2, bends=True), (2,))

    @gloo_averages
    def test_checkpoint(self):
        with tempfile.TemporaryDirectory() as directory:
            self.same(checkpointed(directory), (2,))


if __name__ == "__main__":
    unittest.main()
