"""Compares a model that is split over ranks with the whole one."""
import unittest
from types import SimpleNamespace

import torch
import torch.distributed as dist

import ranks
from shoal.torch.parallel import tensor
from shoal.torch.parallel.state import state

MODES = {"batch": (False, "memory"), "none": (True, "speed"), "sequence": (True, "memory")}


class TensorMesh:
    """A mesh whose ranks form one tensor-parallel group."""

    def size(self, axis):
        return dist.get_world_size() if axis in ("tp", "dp", "world") else 1

    def rank(self, axis):
        return dist.get_rank() if axis in ("tp", "dp", "world") else 0

    def group(self, axis):
        return dist.group.WORLD


class WholeMesh:
    """One process."""

    def size(self, axis):
        return 1

    def rank(self, axis):
        return 0

    def group(self, axis):
        return None


def begin(mode):
    """`mode`: a key of MODES, or None for one process."""
    prescaled, optimize = MODES[mode] if mode else (False, "memory")
    state.mesh = TensorMesh() if mode else WholeMesh()
    state.cfg = SimpleNamespace(prescaled_batch=prescaled, optimize=optimize)


def reduced(model, mode):
    """The whole gradients that an optimizer would see: sums over distinct batches and over ranks with parts."""
    size = dist.get_world_size()
    batches = 1 if MODES[mode][0] else size
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        if not hasattr(parameter, "tp_split") and (mode == "batch" or getattr(parameter, "tp_partial", False)):
            dist.all_reduce(gradient)
        gradients[name] = gradient / batches
    return tensor.whole_state_dict(model, gradients)


def difference(gradients, expected):
    """The largest difference of a gradient, relative to its norm or at least to a thousandth of the largest norm."""
    floor = max(value.norm().item() for value in expected.values()) * 1e-3
    worst = max(((gradients[name] - value).norm().item() / max(value.norm().item(), floor), name)
                for name, value in expected.items())
    assert set(gradients) == set(expected), set(gradients) ^ set(expected)
    return worst


def own_batch(batches, mode):
    return batches[dist.get_rank() if mode == "batch" else 0]


def mark(model):
    tensor.set_tensor_parallelism(model)
    return model


def compare(make, batches, loss_of, mode, marked=mark):
    """(relative difference of losses, of gradients, parameter's name) of make()'s model on the ranks and on one
    process. Checks the translation of state dicts too."""
    begin(None)
    used = batches if mode == "batch" else batches[:1]
    whole = make()
    expected_losses = [loss_of(whole, batch) for batch in used]
    (sum(expected_losses) / len(used)).backward()
    expected = {name: parameter.grad for name, parameter in whole.named_parameters() if parameter.grad is not None}
    values = {name: value.clone() for name, value in whole.state_dict().items()}
    del whole
    begin(mode)
    model = tensor.distribute(marked(make()))
    assert any(hasattr(parameter, "tp_split") for parameter in model.parameters()), "no parameter is split"
    loss = loss_of(model, own_batch(batches, mode))
    loss.backward()
    expected_loss = expected_losses[dist.get_rank() if mode == "batch" else 0]
    gradients = reduced(model, mode)
    worst, name = difference({key: gradients[key] for key in expected}, expected)
    assert all(not gradients[key].any() for key in gradients.keys() - expected.keys())
    translated = tensor.whole_state_dict(model)
    assert translated.keys() == values.keys(), translated.keys() ^ values.keys()
    assert all(torch.equal(value, values[key]) for key, value in translated.items()), "the state dict differs"
    changed = {key: value + 1 for key, value in values.items()}
    model.load_state_dict(tensor.split_state_dict(model, changed))
    assert all(torch.equal(value, changed[key]) for key, value in tensor.whole_state_dict(model).items())
    return abs(loss.item() / expected_loss.item() - 1), worst, name


class Comparison(unittest.TestCase):
    def check(self, size, cases, function):
        """function(rank, size, *case) in `size` ranks gives the same loss and gradients as one process."""
        for some in [cases[i:i + 9] for i in range(0, len(cases), 9)]:
            for results in ranks.run(size, run_cases, function, some, timeout=120):
                for case, (loss, gradient, name) in zip(some, results):
                    with self.subTest(case=case, ranks=size):
                        self.assertLess(loss, 1e-5)
                        self.assertLess(gradient, 1e-5, name)


def run_cases(rank, size, function, cases):
    return [function(rank, size, *case) for case in cases]
