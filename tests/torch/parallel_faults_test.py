"""A rank of a mesh dies or stops in a step. Each survivor's exception names it by its number in the job."""
import os
import signal
import tempfile
import time
import unittest

import torch
import torch._dynamo  # gradients.reduce() may import it, in 4 s; here once instead of in each rank
from torch import nn

import ranks
from shoal.torch import parallel as smp

DEADLINE = 10.0  # seconds, of the process groups. In a good step too, the ranks of a busy machine must keep to it.
RANKS = 4


class Fragile(nn.Module):
    how: int | None = None  # the signal that this process sends itself

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        if Fragile.how is not None:
            os.kill(os.getpid(), Fragile.how)
        return self.linear(x)


def layer():
    return smp.nn.DistributedTransformerLayer(
        num_attention_heads=2, attention_head_size=4, hidden_size=8, intermediate_size=16, attention_dropout_prob=0.0,
        hidden_dropout_prob=0.0)


class Model(nn.Module):
    """Each partition has a fragile module. With tensor parallelism, its ranks wait for each other in both layers."""

    def __init__(self, partitions, is_split):
        super().__init__()
        self.enter, self.leave = (layer() if is_split else nn.Linear(8, 8) for _ in range(2))
        self.fragile = nn.ModuleList(Fragile(8) for _ in range(partitions))

    def forward(self, x):
        for part in (self.enter, *self.fragile, self.leave):
            x = part(x) if isinstance(part, (Fragile, nn.Linear)) else part((x, None))[0]
        return x


def failing(rank, size, config, victim, how):
    """A good step, and one in which the victim dies or stops. The exception's text, and how long it took."""
    partitions = config.get("partitions", 2)
    smp.init({"partitions": partitions, "microbatches": 2, "ddp": True, "auto_partition": False, "default_partition": 0,
              "partition_assignment": {**{f"fragile.{one}": one for one in range(partitions)}, "leave": partitions - 1},
              **config})
    torch.manual_seed(1)
    model = smp.DistributedModel(Model(partitions, "tensor_parallel_degree" in config))

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    step(model, torch.ones(4, 3, 8))
    if rank == victim:
        Fragile.how = how
    began = time.monotonic()
    try:
        step(model, torch.ones(4, 3, 8))
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}", time.monotonic() - began
    raise AssertionError("nothing failed")


class Faults(unittest.TestCase):
    def check(self, config, victim, how):
        """The store is a file, so it outlives rank 0."""
        with self.subTest(config=config, victim=victim, how=how.name), tempfile.TemporaryDirectory() as directory:
            started = ranks.start(RANKS, failing, config, victim, how, timeout=DEADLINE,
                                  path=os.path.join(directory, "store"))
            results = ranks.collect([one for rank, one in enumerate(started) if rank != victim], 40)
            started[victim][0].kill()
            started[victim][0].join()
            for result in results:
                self.assertIsNotNone(result)
                ok, value = result
                self.assertTrue(ok, value)
                text, took = value
                self.assertRegex(text, rf"\brank {victim}\b")
                self.assertIn("DistBackendError", text)
                self.assertLess(took, 2 * DEADLINE, text)  # one deadline, not two in a row

    def killed(self, config, victims):
        for victim in victims:
            self.check(config, victim, signal.SIGKILL)

    def stopped(self, config, victims):
        for victim in victims:
            self.check(config, victim, signal.SIGSTOP)

    # Rank 0 runs the step function of its pipeline.

    def test_killed_in_a_long_pipeline(self):
        self.killed({"partitions": 4}, (0, 1, 2, 3))

    def test_stopped_in_a_long_pipeline(self):
        self.stopped({"partitions": 4}, (0, 1, 3))

    def test_killed_beside_replicas(self):
        self.killed({}, (0, 1, 3))

    def test_stopped_beside_replicas(self):
        self.stopped({}, (0, 3))

    def test_killed_in_tensor_parallelism(self):
        self.killed({"tensor_parallel_degree": 2}, (0, 1, 3))

    def test_stopped_in_tensor_parallelism(self):
        self.stopped({"tensor_parallel_degree": 2}, (0, 3))


if __name__ == "__main__":
    unittest.main()
