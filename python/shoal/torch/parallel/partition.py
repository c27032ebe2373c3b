"""Decides on which pipeline rank each module lives.

The tree of modules is cut into units. A module that costs more than a share of the whole is replaced by its separately
called children, if it has any. Units that share parameters are treated as one. C++'s partition_units() then cuts the
sequence of units into stages. Alternatively the script assigns modules by hand.
"""
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from shoal.torch.parallel.config import _native
from shoal.torch.parallel.state import state
from shoal.torch.parallel.turns import RandomState

log = logging.getLogger("shoal.torch.parallel")
_PIN = "_shoal_partition"
_BACKWARD = 2.0  # the time of a backward, in multiples of a forward's
_MEASURED = 3  # forwards that a trace measures


def _check_index(index: int) -> int:
    stages = state.require().cfg.pipeline_parallel_degree
    if not 0 <= index < stages:
        raise ValueError(f"partition {index} of {stages}: give 0 to {stages - 1}, or raise pipeline_parallel_degree")
    return index


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Places modules that are made in this context on pipeline rank `index`.

        with smp.partition(1):
            self.decoder = Decoder(config)

    It has an effect only if auto_partition is false. A module without a partition lives on its parent's rank, and an
    outermost one on default_partition.
    """
    _check_index(index)
    original = nn.Module.__init__

    def pinned(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.__dict__[_PIN] = index

    nn.Module.__init__ = pinned  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = original  # type: ignore[method-assign]


def set_partition(module: nn.Module, index: int) -> None:
    """Places the module and all its descendants on pipeline rank `index`, if auto_partition is false.

        smp.set_partition(model.decoder, 1)
    """
    for child in module.modules():
        child.__dict__[_PIN] = _check_index(index)


class Traced(BaseException):
    """Raised to end a step function that runs only to trace a model."""


class Untraceable(Exception):
    """Why a model cannot be traced."""


class Trace:
    """Costs of modules, measured while the model runs once."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}  # of each module's fastest forward, by module number
        self.bytes: dict[int, int] = {}  # kept for backward
        self.order: dict[int, int] = {}  # of first calls

    def run(self, modules: list[nn.Module], forward: Callable[[], None]) -> None:
        """Runs `forward` once, then measures it a few times. Restores buffers and random states."""
        buffers = [(b, b.clone()) for module in modules for b in module.buffers(recurse=False)]
        random = RandomState.of_process()
        try:
            with torch.enable_grad():
                forward()
                for _ in range(_MEASURED):
                    with self._measuring(modules):
                        forward()
        finally:
            RandomState.set_process(random)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    @contextlib.contextmanager
    def _measuring(self, modules: list[nn.Module]) -> Iterator[None]:
        numbers = {id(module): i for i, module in enumerate(modules)}
        parameters = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters(recurse=False)}
        seen: dict[int, torch.UntypedStorage] = {}
        kept = 0
        begun: list[tuple[float, int]] = []
        seconds: dict[int, float] = {}
        self.bytes.clear()

        def save(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            if not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in parameters and storage.data_ptr() not in seen:
                    seen[storage.data_ptr()] = storage  # keeps it alive, so that its address is not reused
                    kept += storage.nbytes()
            return tensor

        def before(module: nn.Module, args: Any) -> None:
            self.order.setdefault(numbers[id(module)], len(self.order))
            begun.append((time.perf_counter(), kept))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            number = numbers[id(module)]
            start, bytes_before = begun.pop()
            seconds[number] = seconds.get(number, 0.0) + time.perf_counter() - start
            self.bytes[number] = self.bytes.get(number, 0) + kept - bytes_before

        handles = [module.register_forward_pre_hook(before) for module in modules]
        handles += [module.register_forward_hook(after) for module in modules]
        try:
            with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
                yield
        finally:
            for handle in handles:
                handle.remove()
        # Other processes delay some forwards, and two cuts often differ by less.
        self.seconds = {number: min(took, self.seconds.get(number, took)) for number, took in seconds.items()}


def is_whole(module: nn.Module) -> bool:
    """True for modules that no partition may cut. Those with `tp_whole` draw random numbers as one."""
    return is_parametrized(module) or getattr(module, "tp_whole", False)


class Tree:
    """A model's modules, by number: in the order of named_modules(), the model itself first."""

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_modules())
        self.names = [name for name, _ in named]
        self.modules = [module for _, module in named]
        self.numbers = {id(module): i for i, module in enumerate(self.modules)}
        self.parents: list[int | None] = [None] * len(named)
        self.children: list[list[int]] = []
        for i, module in enumerate(self.modules):
            fresh = [self.numbers[id(child)] for child in module.children()]
            fresh = [c for c in fresh if c > i and self.parents[c] is None]
            for child in fresh:
                self.parents[child] = i
            self.children.append(fresh)

    def subtree(self, number: int) -> list[int]:
        found = [number]
        for child in self.children[number]:
            found += self.subtree(child)
        return found

    def parameters(self, number: int) -> dict[int, nn.Parameter]:
        """The parameters of the subtree, keyed by id."""
        return {id(p): p for i in self.subtree(number) for p in self.modules[i]._parameters.values() if p is not None}

    def has_forward(self, number: int) -> bool:
        return type(self.modules[number]).forward is not nn.Module.forward


class Homes:
    """The pipeline rank of each module and parameter."""

    def __init__(self, tree: Tree, units: dict[int, int]) -> None:
        """`units`: the rank of each unit, by its module's number. An inner module lives on the rank of its first unit,
        and the model itself on rank 0."""
        self.modules = [0] * len(tree.modules)
        self.parameters: dict[int, int] = {}  # by id
        found: dict[int, int] = {}
        for unit, rank in units.items():
            for number in tree.subtree(unit):
                found[number] = rank
            for key in tree.parameters(unit):
                self.parameters.setdefault(key, rank)
        first = {}
        for unit, rank in units.items():
            above = tree.parents[unit]
            while above is not None and above not in first:
                first[above] = rank
                above = tree.parents[above]
        for number, module in enumerate(tree.modules):
            if number in found:
                home = found[number]
            elif number in first:
                home = first[number] if number else 0
            else:  # outside all units: on the rank of its parameters, or else its parent's
                own = [self.parameters[key] for key in tree.parameters(number) if key in self.parameters]
                parent = tree.parents[number]
                home = own[0] if own else self.modules[parent] if parent is not None else 0
            self.modules[number] = home
            for p in module._parameters.values():
                if p is not None:
                    self.parameters.setdefault(id(p), home)


def decide(tree: Tree, trace: Trace | None, microbatches: int) -> dict[int, int]:
    """Returns the rank of each unit, by module number. Called only on world rank 0."""
    cfg = state.cfg
    path = cfg.partition_file
    if path and cfg.load_partition:
        with open(path, encoding="utf-8") as file:
            pins = json.load(file)
        units = _by_hand(tree, _named(tree, pins, path), cfg.default_partition)
    elif not cfg.auto_partition:
        pins = {i: m.__dict__[_PIN] for i, m in enumerate(tree.modules) if _PIN in m.__dict__}
        pins.update(_named(tree, cfg.partition_assignment or {}, "partition_assignment"))
        units = _by_hand(tree, pins, cfg.default_partition)
    else:
        if any(_PIN in module.__dict__ for module in tree.modules):
            log.warning("smp.partition() and set_partition() have no effect: auto_partition is true")
        units = _automatic(tree, trace, microbatches)
    if path and not cfg.load_partition:
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump({tree.names[unit]: rank for unit, rank in units.items()}, file, indent=1)
        os.replace(path + ".part", path)
    return units


def _named(tree: Tree, ranks: dict[str, int], source: str) -> dict[int, int]:
    numbers = {name: i for i, name in enumerate(tree.names)}
    for name, rank in ranks.items():
        if name not in numbers:
            raise ValueError(f"{source}: the model has no module {name!r}")
        _check_index(rank)
    return {numbers[name]: rank for name, rank in ranks.items()}


def _outer_whole(tree: Tree, number: int | None) -> int | None:
    """The module itself or the nearest one around it that cannot be cut."""
    while number is not None and not is_whole(tree.modules[number]):
        number = tree.parents[number]
    return number


def _by_hand(tree: Tree, pins: dict[int, int], default: int) -> dict[int, int]:
    ranks: dict[int, int] = {}
    for number in range(len(tree.modules)):
        parent = tree.parents[number]
        ranks[number] = pins.get(number, default if parent is None or number == 0 else ranks[parent])
        if parent is not None and ranks[number] != ranks[parent] and (outer := _outer_whole(tree, parent)) is not None:
            raise ValueError(f"partition {ranks[number]} has {tree.names[number]}, but {tree.names[outer]} around it "
                             f"is on partition {ranks[outer]} and cannot be cut: assign all of it to one")
    units: dict[int, int] = {}

    def take(number: int) -> None:
        below = tree.subtree(number)
        if all(ranks[i] == ranks[number] for i in below) and number != 0:
            units[number] = ranks[number]
        else:
            for child in tree.children[number]:
                take(child)

    take(0)
    for group in _sharing(tree, list(units)):
        for unit in group[1:]:
            if units[unit] != units[group[0]]:
                log.warning("%s shares parameters with %s, so it lives on its partition %d", tree.names[unit],
                            tree.names[group[0]], units[group[0]])
                units[unit] = units[group[0]]
    log.info("modules by partition: %s", {
        rank: [tree.names[unit] for unit in units if units[unit] == rank] for rank in sorted(set(units.values()))})
    return units


def _sharing(tree: Tree, units: list[int]) -> list[list[int]]:
    """Groups of units that share parameters. Units keep the given order within a group; groups are in the order of
    their first units."""
    group_of: dict[int, list[int]] = {}
    owner: dict[int, list[int]] = {}
    for unit in units:
        group = [unit]
        for key in tree.parameters(unit):
            other = owner.get(key)
            if other is not None and other is not group:
                other += [one for one in group if one not in other]
                for moved, was in list(owner.items()):
                    if was is group:
                        owner[moved] = other
                group = other
            owner[key] = group
        for one in group:
            group_of[one] = group
    groups = {id(group_of[unit]): group_of[unit] for unit in units}
    return [sorted(group, key=units.index) for group in groups.values()]


def _automatic(tree: Tree, trace: Trace | None, microbatches: int) -> dict[int, int]:
    cfg = state.cfg
    stages, weight = cfg.pipeline_parallel_degree, cfg.memory_weight
    kept = microbatches if cfg.pipeline == "simple" else min(microbatches, cfg.active_microbatches)

    def size(number: int) -> int:
        return sum(p.numel() for p in tree.parameters(number).values())

    def seconds(number: int) -> float:
        return trace.seconds.get(number, 0.0) if trace else size(number)

    def memory(number: int) -> float:
        return 16.0 * size(number) + kept * (trace.bytes.get(number, 0) if trace else 0)

    whole_time, whole_memory = seconds(0) or 1.0, memory(0) or 1.0

    def cost(number: int) -> float:
        return weight * memory(number) / whole_memory + (1 - weight) * seconds(number) / whole_time

    def parts(number: int) -> list[int]:
        """The nearest descendants that are called separately. Containers without a forward are replaced by their
        children."""
        module = tree.modules[number]
        if is_whole(module) or (trace is None and isinstance(module, nn.MultiheadAttention)):
            return []
        found = []
        for child in tree.children[number]:
            if not tree.has_forward(child):
                found += parts(child)
            elif trace is None or child in trace.order:
                found.append(child)
        return found

    units = parts(0)
    while True:
        costly = [unit for unit in units if cost(unit) > 1 / (2 * stages) and parts(unit)]
        if not costly and len(_sharing(tree, units)) < stages:
            costly = sorted((unit for unit in units if parts(unit)), key=cost)[-1:]
        if not costly:
            break
        units = [part for unit in units for part in (parts(unit) if unit in costly else [unit])]
    if trace:
        units.sort(key=lambda unit: trace.order[unit])
    groups = _sharing(tree, units)
    if len(groups) < stages:
        raise ValueError(f"the model has {len(groups)} modules that can be apart, for {stages} partitions: lower "
                         "pipeline_parallel_degree")
    numbers: dict[int, int] = {}
    costs = [{"name": "+".join(tree.names[unit] for unit in group),
              "parameters": {numbers.setdefault(key, len(numbers)): p.numel()
                             for unit in group for key, p in tree.parameters(unit).items()},
              "activation_bytes": sum(trace.bytes.get(unit, 0) for unit in group) if trace else 0,
              "seconds": (1 + _BACKWARD) * sum(seconds(unit) for unit in group) if trace else 0.0,
              "work": float(sum(size(unit) for unit in group))} for group in groups]
    cut = _native.partition_units(costs, stages=stages, memory_weight=weight, microbatches_kept=[kept] * stages)
    log.info("partition of the model:\n%s", _native.partition_table(cut, costs))
    return {unit: rank for rank, (first, last) in enumerate(cut.stages)
            for group in groups[first:last] for unit in group}


def agree(tree: Tree, choose: Callable[[], dict[int, int]]) -> Homes:
    """Cuts the model as world rank 0 chooses. Every rank of the job must call it."""
    message: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            message = [(tree.names, choose())]
        except Exception as problem:
            message = [problem if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"]
            cause: BaseException | None = problem
    dist.broadcast_object_list(message, src=0)
    if not isinstance(message[0], tuple):
        problem = message[0]
        if dist.get_rank() == 0:
            raise cause
        raise problem if isinstance(problem, ValueError) else RuntimeError(f"rank 0 could not cut the model: {problem}")
    names, units = message[0]
    if names != tree.names:
        other = next((a, b) for a, b in zip([*names, None], [*tree.names, None]) if a != b)
        raise ValueError(f"this rank's model differs from rank 0's: module {other[1]!r} here, {other[0]!r} there; make "
                         "the same model on every rank")
    return Homes(tree, units)
