"""Gradients that come while a step function runs: whether they may, and in which sums."""
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from shoal.torch.parallel.state import state

here = threading.local()  # .visit: the microbatch that this thread runs (pipeline.py)


def current() -> Any:
    """The run and microbatch of this thread; None outside of a pipeline's step."""
    return getattr(here, "visit", None)


class _Alone:
    """A step of a single pipeline rank. PyTorch's threads for devices see it too."""

    def __init__(self) -> None:
        self.in_step = self.in_backward = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = self.in_backward = False

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        self.in_backward = True
        try:
            yield
        finally:
            self.in_backward = False


alone = _Alone()
NO_BACKWARD = ("a backward that is not model.backward() ran inside a step function: call model.backward(loss) "
               "instead of loss.backward()")


def check_alone() -> None:
    """RuntimeError unless gradients that come without a pipeline's visit are of model.backward(). The gradients of
    another backward would not be summed over ranks."""
    if alone.in_backward:
        return
    if alone.in_step:
        raise RuntimeError(NO_BACKWARD)
    if state.initialized and state.mesh.size("world") > 1:
        raise RuntimeError("a backward ran outside of a step function, so its gradients are this rank's only: call "
                           "model.backward(loss) in a function with @smp.step")


def hook_outputs(outputs: Any) -> None:
    """Hooks a model's outputs as hook_gradients() its parameters. Hooks of sharded parameters do not run, because
    fully_shard() sets their gradients itself."""
    for value in torch.utils._pytree.tree_leaves(outputs):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(lambda gradient: check_alone())


class VisitSums:
    """Gradients of parameters that several visits of a microbatch reach, such as a tied embedding.

    The first such visit adds to .grad as always. Each other one has a sum of its own in the place of .grad, which the
    end of the step adds in the order of visits: the order in which visits of different numbers come depends on time.
    """

    def __init__(self) -> None:
        self._first: dict[nn.Parameter, tuple[int, int]] = {}
        self._others: dict[nn.Parameter, dict[tuple[int, int], torch.Tensor]] = {}
        self._held: dict[nn.Parameter, torch.Tensor | None] = {}  # .grad, while another visit's sum replaces it

    def begin(self, parameter: nn.Parameter, visit: tuple[int, int]) -> None:
        """Before a gradient is added to .grad."""
        if self._first.setdefault(parameter, visit) != visit:
            self._held[parameter], parameter.grad = parameter.grad, self._others.get(parameter, {}).get(visit)

    def end(self, parameter: nn.Parameter, visit: tuple[int, int]) -> None:
        """After it."""
        if parameter in self._held:
            self._others.setdefault(parameter, {})[visit] = parameter.grad
            parameter.grad = self._held.pop(parameter)

    def add(self) -> None:
        with torch.no_grad():
            for parameter, sums in self._others.items():
                for _, gradient in sorted(sums.items(), key=lambda item: item[0]):
                    parameter.grad += gradient


def hook_gradients(parameter: nn.Parameter) -> None:
    """Hooks a parameter whose gradients must come in step functions."""
    def before(gradient: torch.Tensor) -> None:
        visit = current()
        if visit is None:
            check_alone()
            return
        if visit.microbatch.phase % 2 == 0:
            raise RuntimeError(NO_BACKWARD)
        visit.run.turns.pause(visit.microbatch)
        visit.run.gradients.begin(parameter_of(), visit.microbatch.visit)

    def after(parameter: torch.Tensor) -> None:
        if (visit := current()) is not None:
            visit.run.gradients.end(parameter, visit.microbatch.visit)

    parameter_of = weakref.ref(parameter)
    parameter.register_hook(before)
    parameter.register_post_accumulate_grad_hook(after)
