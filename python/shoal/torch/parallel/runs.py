"""Runs: modules of another rank that one request calls, one after the other.

A microbatch's first requests are recorded. A module continues a run if its tensors are outputs of the run's modules
before it or inputs of the first one, all unchanged. From the next step on, the request for the first module names the
others, and the answer has the outputs of all. The caller's next call takes its output from the answer if its arguments
are those that the other rank has assumed. If they differ, the caller drops the rest of the answer, asks for each
module by itself, and the run ends there in later steps.

Dropping is safe: a module that changes buffers continues no run, and the random state goes back to where the caller
is. Only Python attributes that a module changes would stay changed.
"""
import logging
from typing import Any, NamedTuple

import torch

from shoal.torch.parallel.messages import Packed
from shoal.torch.parallel.turns import RandomState

log = logging.getLogger("shoal.torch.parallel")
_MOST = 256  # first calls that are kept


class Call(NamedTuple):
    """A module that continues a run, and its arguments."""

    module: tuple[int, int]
    structure: bytes
    sources: list[tuple[int, int]]  # of each tensor: 0 for the run's inputs, n for outputs of its n-th module; place


class Runs:
    """The sequences of calls that this rank has recorded. They change only between steps, so that all microbatches of a
    step use the same ones."""

    def __init__(self, are_used: bool) -> None:
        """are_used: false where tensor-parallel ranks have batches of their own. A batch may change the form of a call:
        Hugging Face's models drop a mask that hides nothing. A run would then end on one of these ranks only, but all
        of them must make the same visits (turns.py)."""
        self._are_used = are_used
        self._known: dict[Any, list[Call]] = {}
        self._recorded: dict[Any, list[Call]] = {}
        self.in_place: set[tuple[int, int]] = set()  # modules on this rank that change their input tensors

    def after(self, first: Any) -> list[Call] | None:
        """Returns the calls that follow a first call. None: they are not known yet, so record them."""
        if not self._are_used:
            return []
        return self._known.get(first, [] if len(self._known) >= _MOST else None)

    def record(self, first: Any, calls: list[Call]) -> None:
        """Keeps the calls that each microbatch makes."""
        before = self._recorded.get(first, calls)
        same = next((i for i, (a, b) in enumerate(zip(before, calls)) if a != b), min(len(before), len(calls)))
        self._recorded[first] = calls[:same]

    def has_recorded(self) -> bool:
        """True if the last step recorded calls that learn() has not taken yet."""
        return bool(self._recorded)

    def learn(self, succeeded: bool) -> None:
        """Keeps what the last step has recorded, or forgets it. A failed step's calls are incomplete. If it failed on
        one tensor-parallel rank only, all of them must forget, because runs decide how many visits a rank makes."""
        if succeeded:
            self._known.update(self._recorded)
        self._recorded = {}


def _version(tensor: torch.Tensor) -> int | None:
    """None if what happens to the tensor cannot be followed."""
    followed = not tensor.is_inference() and not tensor._backward_hooks and not tensor.retains_grad
    return tensor._version if followed else None


class Course:
    """The calls of a microbatch since a first one, as they are recorded or compared."""

    def __init__(self, runs: Runs, to: int, first: Any, settings: tuple, inputs: list[torch.Tensor],
                 expected: list[Call] | None) -> None:
        self._runs, self.to, self._first, self._settings, self.expected = runs, to, first, settings, expected
        self._made: list[Call] = []
        self._places: dict[int, tuple[tuple[int, int], torch.Tensor, int | None]] = {}
        self._steps = 0
        self._outputs: list = []
        self._states: list[list[torch.Tensor]] | None = None
        self._random: list[torch.Tensor] = []
        self._see(inputs)

    @property
    def is_recorded(self) -> bool:
        return self.expected is None

    def _see(self, tensors: list[torch.Tensor]) -> None:
        for index, tensor in enumerate(tensors):
            self._places.setdefault(id(tensor), ((self._steps, index), tensor, _version(tensor)))

    def answered(self, outputs: list, states: list | None) -> None:
        """The answer: the outputs of the modules, and the random states after each if they have changed."""
        self._outputs = outputs
        self._states = states and [[torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in state]
                                   for state in states]

    def take(self, pack: Any) -> Any:
        """The next output."""
        output = self._outputs.pop(0)
        self._steps += 1
        self._see(pack(output).tensors)
        if self._states is not None:
            RandomState.set_process(self._states.pop(0))
        self._random = RandomState.of_process()
        return output

    def next(self, to: int, module: tuple[int, int], settings: tuple, value: Packed) -> Call | None:
        """This call, if it continues the run."""
        if to != self.to or settings != self._settings:
            return None
        found = [self._places.get(id(tensor)) for tensor in value.tensors]
        if any(one is None or one[2] is None or one[2] != _version(one[1]) for one in found):
            return None
        if not all(torch.equal(a, b) for a, b in zip(RandomState.of_process(), self._random)):
            return None
        return Call(module, value.structure, [one[0] for one in found])

    def extend(self, call: Call) -> None:
        self._made.append(call)

    def has_failed(self, call: Call | None) -> bool:
        """True if the other rank ended the run with this call's error."""
        made = len(self._made)
        return not self._outputs and self.expected is not None and self.expected[made:made + 1] == [call]

    def matches(self, call: Call | None) -> bool:
        """Whether the next output is this call's. If so it counts as made."""
        if call is None or not self._outputs or self.expected[len(self._made)] != call:
            return False
        self._made.append(call)
        return True

    def end(self) -> None:
        """No call continues the run any more."""
        if self.expected is None:
            self._runs.record(self._first, self._made)
        elif len(self._made) < len(self.expected):
            log.info("a run of %d modules on pipeline rank %d ended after %d: later steps ask for %d by one request",
                     len(self.expected) + 1, self.to, len(self._made) + 1, len(self._made) + 1)
            self._runs.record(self._first, self._made)
            self._outputs = []


def buffers_of(module: torch.nn.Module) -> list[tuple[int, int]]:
    """Differs after a call that has changed the module's buffers."""
    return [(id(buffer), buffer._version) for buffer in module.buffers()]
