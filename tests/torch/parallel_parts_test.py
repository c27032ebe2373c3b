"""Sharded parameters (sharded_data_parallel_degree) beside one process: training, state, bytes, checkpoints."""
import unittest

import parallel_checkpoint_test
import parallel_optimizer_test as plain
import ranks
import torch
import torch.distributed as dist
from parallel_optimizer_test import (batch, begin, loss_of, model_of, optimizer_of, run_left_out, run_loaded,
                                     run_pending, run_scaler, train, train_plain, train_step, values)
from torch import nn
from torch.distributed.fsdp import FSDPModule

from shoal.torch import parallel as smp
from shoal.torch.parallel.parts import is_part, local
from shoal.torch.parallel.state import state


def parts(degree, **others):
    """Each parameter is sharded; gradients are not clipped to a norm of 1."""
    return {"ddp": True, "sharded_data_parallel_degree": degree, "sdp_param_persistence_threshold": 0,
            "sdp_gradient_clipping": 0, **others}


GRADIENTS = {"ddp": True, "sharding_strategy": "SHARD_GRAD_OP", "sdp_param_persistence_threshold": 0}


def run_tied(rank, size, config):
    """A weight that two layers of a sequence share, a scalar, and a parameter that is not used."""
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.layers[2].weight = self.layers[0].weight
            self.scale, self.unused = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(8))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x)) * self.scale
            return x[:, :3].clone()

    smp.init(config)
    whole = Tied()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    norms = train_plain(whole, optimizer, range(3))
    model = smp.DistributedModel(Tied())
    assert model.layers[0].weight is model.layers[2].weight and is_part(model.layers[0].weight)
    assert not is_part(model.scale)
    found = train(model, smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01)), range(3))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(norms), rtol=1e-5, atol=0)
    for name, value in values(model).items():
        torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)
    gathered = model.state_dict()
    assert gathered["layers.0.weight"] is gathered["layers.2.weight"]


def run_state_dicts(rank, size, config):
    """Whole and local state dicts; values that are loaded are those that the next forward uses."""
    model, optimizer = begin(config)
    train(model, optimizer, range(1))
    other = model_of()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
    x, y = batch(3)
    with torch.no_grad():
        before = model(x)
        assert all(map(is_part, model.local_parameters())), "parameters stay gathered after an evaluation"
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(x), other(x))
        assert not torch.allclose(before, other(x))
    own = {name: value.clone() for name, value in model.local_state_dict().items()}
    assert all(value.shape == local(p).shape for value, p in zip(own.values(), model.parameters()))
    train(model, optimizer, range(1, 2))
    model.load_state_dict(own)
    for name, value in values(model).items():
        assert torch.equal(value, other.state_dict()[name]), name
    with ranks.raises(ValueError, "[5, 5]"):
        model.load_state_dict({**own, "0.weight": torch.zeros(5, 5)})


def run_clipped(rank, size, config):
    """sdp_gradient_clipping clips in step()."""
    model, optimizer = begin(config, "sgd")
    other = model_of()
    other_optimizer = optimizer_of(other, "sgd")
    half = slice(rank * 4, rank * 4 + 4)
    for step in range(3):
        train_step(model, *(part[half] for part in batch(step)))
        optimizer.step()
        optimizer.zero_grad()
    train_plain(other, other_optimizer, range(3), clip=0.05)
    for name, value in values(model).items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-6, atol=1e-6, msg=name)


def run_bytes(rank, size, config, dtype, threshold):
    """Bytes of parameters, gradients, state and masters on this rank, beside the formula's."""
    smp.init(config)
    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Sequential(*(nn.Linear(96, 96) for _ in range(12))).to(dtype))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def step(model, x):
        model.backward(model(x.to(dtype)).float().square().mean())

    step(model, torch.ones(2, 96))
    gradients = [p.value.grad for p in optimizer._pieces]
    storages = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in gradients}
    if threshold:  # their sum is a view of a bucket
        storages = {id(g): g.nbytes for g in gradients}
    gathered = sum(not is_part(p) for p in model.parameters())
    optimizer.step()
    states = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    masters = sum(p.value.nbytes for p in optimizer._pieces if p.has_master)
    weights = {local(p).untyped_storage().data_ptr(): local(p).untyped_storage().nbytes() for p in model.parameters()}
    held = sum(p.numel() / (1 if p.numel() <= threshold else state.mesh.size("shard")) for p in model.parameters())
    assert gathered == sum(p.numel() <= threshold for p in model.parameters())
    return held, sum(weights.values()), sum(storages.values()), states, masters


def run_ahead(rank, size, limit):
    """The most units that are gathered before they run in backward."""
    smp.init(parts(size, **({"sdp_max_live_parameters": limit} if limit else {})))
    called = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    gathers, ahead, gather = [0], [], getattr(dist, called)

    class Layer(nn.Linear):
        def forward(self, x):
            if x.requires_grad:
                x.register_hook(lambda _: ahead.append(gathers[0] - len(layers) - len(ahead) - 1))
            return super().forward(x)

    def counted(*arguments, **named):
        gathers[0] += 1
        return gather(*arguments, **named)

    layers = [Layer(64, 64) for _ in range(8)]
    model = smp.DistributedModel(nn.Sequential(*layers))

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    setattr(dist, called, counted)
    step(model, torch.ones(2, 64))
    setattr(dist, called, gather)
    assert len(ahead) == len(layers) - 1 and gathers[0] == 2 * len(layers), (ahead, gathers)
    return max(ahead)


class _Failing(torch.autograd.Function):
    """Fails in the place where `where` says so, on every rank alike."""

    where = None

    @staticmethod
    def forward(ctx, x):
        if _Failing.where == "forward":
            raise KeyError("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if _Failing.where == "backward":
            raise KeyError("backward")
        return gradient


def run_after_failures(rank, size, config, older=False):
    """Steps that fail in a unit, and are caught, change nothing of the training that follows. older: as in a version
    of PyTorch without FSDPModule.reset_iter_state()."""
    if older and hasattr(FSDPModule, "reset_iter_state"):
        del FSDPModule.reset_iter_state
    found = []
    for fails in (False, True):
        model, optimizer = begin(config) if not found else (
            again := smp.DistributedModel(model_of()), smp.DistributedOptimizer(optimizer_of(again)))
        if fails:
            with ranks.raises(KeyError, "before any forward"):
                fails_before_forward(model)
        model.module[1].register_forward_hook(lambda module, args, output: _Failing.apply(output))
        norms = train(model, optimizer, range(1))
        for _Failing.where in ("backward", "forward", "backward", "backward") if fails else ():
            train_step_fails(model, rank)
            assert all(is_part(p) or p.numel() <= 9 for p in model.local_parameters()), _Failing.where
            assert all(p.grad is None for p in model.parameters()), _Failing.where
        _Failing.where = None
        found.append((norms + train(model, optimizer, range(1, 4)), values(model)))
    assert found[0][0] == found[1][0], found
    for name, value in found[0][1].items():
        assert torch.equal(found[1][1][name], value), name


@smp.step
def fails_before_forward(model):
    raise KeyError("before any forward")


def train_step_fails(model, rank):
    with ranks.raises(KeyError, _Failing.where):
        train_step(model, *(part[rank * 4:rank * 4 + 4] for part in batch(5)))


def run_refusals(rank, size):
    texts = []
    try:
        smp.init(parts(3))
    except ValueError as problem:
        texts.append(str(problem))
    smp.init(parts(2))
    model = smp.DistributedModel(model_of())
    try:
        smp.DistributedOptimizer(torch.optim.Adafactor(model.parameters()))
    except ValueError as problem:
        texts.append(str(problem))
    return texts


def run_groups(rank, size, config, strategy):
    """Checkpoints of several units: the same gradients and random state as without."""
    smp.init(config)
    found = []
    for use in (False, True):
        model = smp.DistributedModel(parallel_checkpoint_test.Chain(4))
        assert isinstance(model.module.blocks[0], FSDPModule)
        if use:
            smp.set_activation_checkpointing(model.module.blocks, strategy=strategy)
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))

        @smp.step
        def step(model, x):
            model.backward(model(x).square().mean())

        torch.manual_seed(7 + rank)
        step(model, torch.randn(8, parallel_checkpoint_test.WIDTH))
        found.append((torch.get_rng_state(), [p.value.grad.clone() for p in optimizer._pieces]))
    assert torch.equal(found[0][0], found[1][0])
    for before, after in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(before, after)


class Training(plain.Case):
    check = plain.Equal.check

    def test_parts_of_all_and_of_some_replicas(self):
        self.check(2, parts(2), "adamw")
        self.check(4, parts(2, microbatches=2), "sgd")
        self.check(4, parts(4, sdp_param_persistence_threshold=10), "adamw")

    def test_gradients_and_state_only(self):
        self.check(2, GRADIENTS, "adamw")

    def test_tied_and_scalar_parameters(self):
        ranks.run(2, run_tied, parts(2))

    def test_gradients_that_wait_or_are_left_out(self):
        ranks.run(2, run_pending, parts(2))
        for zero in ("model", "optimizer"):
            ranks.run(2, run_left_out, parts(2), zero)

    def test_training_goes_on_after_failures(self):
        ranks.run(2, run_after_failures, parts(2))
        ranks.run(2, run_after_failures, parts(2, microbatches=2))
        ranks.run(2, run_after_failures, GRADIENTS)
        ranks.run(2, run_after_failures, parts(2, sdp_param_persistence_threshold=9), True)

    def test_loss_scales_and_masters(self):
        expected = [(False, 1024.0), (False, 1024.0), (True, 512.0), (False, 512.0), (False, 512.0), (False, 1024.0),
                    (False, 1024.0), (False, 1024.0)]
        for events in ranks.run(2, plain.run_fp16, parts(2, fp16=True)):
            self.assertEqual(events, expected)
        ranks.run(2, run_loaded, parts(2, bf16=True))
        ranks.run(4, run_scaler, parts(2))

    def test_clipping_of_the_parameters(self):
        ranks.run(2, run_clipped, parts(2, sdp_gradient_clipping=0.05))

    def test_checkpointed_units(self):
        for strategy in ("each", "group_2", "contiguous"):
            ranks.run(2, run_groups, parts(2), strategy)

    def test_state_dicts(self):
        ranks.run(2, run_state_dicts, parts(2))
        ranks.run(4, run_state_dicts, {**GRADIENTS, "sharded_data_parallel_degree": 2})

    def test_what_does_not_fit_is_refused_by_name(self):
        for texts in ranks.run(4, run_refusals):
            self.assertIn("sharded_data_parallel_degree is 3, which does not divide the 4 replicas", texts[0])
            self.assertIn("Adafactor cannot be used with sharded_data_parallel_degree > 1", texts[1])


class Memory(unittest.TestCase):
    def test_bytes(self):
        for size, config, dtype, bits, masters, threshold in (
                (2, parts(2), torch.float32, 4, 0, 0), (4, parts(2), torch.float32, 4, 0, 0),
                (4, parts(4, bf16=True), torch.bfloat16, 2, 4, 0),
                (2, parts(2, sdp_param_persistence_threshold=96), torch.float32, 4, 0, 96),
                (2, GRADIENTS, torch.float32, 4, 0, 0)):
            for held, *found in ranks.run(size, run_bytes, config, dtype, threshold):
                for got, expected in zip(found, (bits, 4, 8, masters), strict=True):
                    self.assertAlmostEqual(got, expected * held, delta=0.02 * expected * held)

    def test_live_parameters(self):
        self.assertEqual(ranks.run(2, run_ahead, None), [1, 1])
        self.assertEqual(ranks.run(2, run_ahead, 5000), [0, 0])


class Checkpoints(parallel_checkpoint_test.Checkpoints):
    """Written and continued in any of the layouts with parts, whole ones and segments."""

    PARTS, SOME, MIXED = (2, parts(2)), (4, parts(2)), (2, parts(2, sdp_param_persistence_threshold=10))
    test_values_of_every_kind = test_full_disk = None

    def test_same_layout_has_the_same_bits(self):
        for kind in ("partial", "local", "full"):
            self.check(self.PARTS, self.PARTS, kind, 0.0)
        self.check(self.SOME, self.SOME, "partial", 0.0)

    def test_masters(self):
        config = parts(2, bf16=True)
        self.check((2, config), (2, config), "partial", 0.0, dtype=torch.bfloat16)

    def test_other_layouts(self):
        self.check(self.SOME, self.PARTS, "partial")
        self.check(self.PARTS, self.MIXED, "partial")
        self.check(self.MIXED, self.PARTS, "local")
        self.check(self.PARTS, parallel_checkpoint_test.ONE, "partial")
        self.check(self.PARTS, parallel_checkpoint_test.SEGMENTS, "local")
        self.check(parallel_checkpoint_test.SEGMENTS, self.PARTS, "partial")
        self.check(parallel_checkpoint_test.CUT, self.SOME, "full")

    test_plain_optimizer_continues = test_torn_checkpoints_are_refused = test_kept_checkpoints = None
    test_hosts_share_a_folder = test_what_one_host_cannot_read = None


if __name__ == "__main__":
    unittest.main()
