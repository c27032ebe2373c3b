"""Models made in delay_param_initialization() have the values of models made without it, and no rank holds more than
its part and a few parameters on the way.
"""
import unittest

import parallel_memory_test as memory
import ranks
import torch
from parallel_memory_test import GRADIENTS, HAS_TRANSFORMERS, PARTS, PP, TP, Peaks
from torch import nn

from shoal.torch import parallel as smp
from shoal.torch.parallel.parts import local

LENGTH = 16
MESHES = ((1, {}), (2, PP), (2, TP), (4, {**PP, **TP}), *((2, {**parts, "sdp_gradient_clipping": 0})
                                                           for parts in (PARTS, GRADIENTS)))


class Initialized(nn.Module):
    """Initial values that several operations make, of views and of other tensors too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 128, padding_idx=3)
        self.first, self.second, self.third = (nn.Linear(128, 128) for _ in range(3))
        nn.init.trunc_normal_(self.first.weight, std=0.2)
        nn.init.orthogonal_(self.second.weight)
        with torch.no_grad():
            self.third.weight[::2] *= 2.0
            self.third.weight.add_(self.first.weight)
        self.scaled = nn.Parameter(torch.randn(128, 128) * 0.1)
        self.drawn = nn.Parameter(torch.randn(128, 128))
        self.given = nn.Parameter(torch.empty(128, 128).normal_(generator=torch.Generator().manual_seed(2)))

    def forward(self, ids):
        x = self.third(self.second(torch.tanh(self.first(self.embedding(ids)))))
        return (x @ self.scaled @ self.drawn @ self.given).square().mean() * 1e-4


def model_of(family):
    if family == "module":
        torch.manual_seed(0)
        return Initialized()
    return memory.model_of(family, 2, LENGTH)


@smp.step
def train_step(model, ids):
    loss = model(ids) if isinstance(model.module, Initialized) else model(input_ids=ids, labels=ids).loss
    model.backward(loss)
    return loss


def run_equal(case):
    """The share of elements that are delayed, and the loss of a step beside one process."""
    _, config, family = case
    smp.init({"ddp": True, **config})
    whole = model_of(family)
    after = torch.rand(3)
    with smp.delay_param_initialization():
        model = model_of(family)
    assert torch.equal(torch.rand(3), after), "the random numbers after the model differ"
    share = sum(p.numel() for p in model.parameters() if p.is_meta) / sum(p.numel() for p in model.parameters())
    smp.set_tensor_parallelism(model)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    found, wanted = model.state_dict(), whole.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    ids = memory.batch_of(4, LENGTH)
    expected = whole(ids) if family == "module" else whole(input_ids=ids, labels=ids).loss
    expected.backward()
    loss = train_step(model, ids).reduce_mean()
    optimizer.step()
    trained, gradients = model.state_dict(), dict(whole.named_parameters())
    for name, parameter in gradients.items():
        torch.testing.assert_close(trained[name], wanted[name] - 0.1 * parameter.grad, rtol=1e-5, atol=1e-6, msg=name)
    smp.shutdown()
    return share, loss.item() / expected.item()


def run_peak(case):
    """The most bytes on the way to a DistributedModel; those of its own parameters, of all and of the largest one."""
    _, config, delays = case
    smp.init({"ddp": True, "skip_tracing": True, **config})
    peaks = Peaks()
    with peaks.measuring():
        before = peaks.most
        with smp.delay_param_initialization(delays):
            model = memory.model_of("llama", 12, LENGTH)
        sizes = [p.nbytes for p in model.parameters()]
        smp.set_tensor_parallelism(model)
        model = smp.DistributedModel(model)
    own = sum(local(p).nbytes for p in model.local_parameters())
    smp.shutdown()
    return peaks.most - before, own, sum(sizes), max(sizes)


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Delayed(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)  # OpenMP's threads do not live on in forked ranks
        memory.model_of("gpt2", 1, LENGTH)  # imports transformers once, and not in each rank

    def test_values_and_training(self):
        cases = [(*mesh, family) for mesh in MESHES for family in ("gpt2", "llama", "module")
                 if family != "module" or "tensor_parallel_degree" not in mesh[1]]
        for case, by_rank in ranks.run_cases(run_equal, cases, lambda case: case[0]):
            for share, loss in by_rank:
                with self.subTest(case):
                    self.assertGreater(share, 0.3 if case[2] == "module" else 0.9)
                    self.assertAlmostEqual(loss, 1.0, delta=1e-5)

    def test_memory(self):
        cases = [(*mesh, delays) for mesh in ((2, PP), (2, TP), (4, {**PP, **TP})) for delays in (True, False)]
        for (*mesh, delays), by_rank in ranks.run_cases(run_peak, cases, lambda case: case[0]):
            for peak, own, whole, largest in by_rank:
                with self.subTest(mesh, delays=delays):
                    limit = own + 3 * largest + 2**19
                    (self.assertLess if delays else self.assertGreater)(peak, limit if delays else whole)


if __name__ == "__main__":
    unittest.main()
