"""Pieces of parameters that a rank's optimizer updates.

With shard_optimizer_state, as in ZeRO-1, the parameters of each optimizer group, whether tensor-parallel or not, lie in
flat buckets. Each bucket is cut into one equal segment for each rank of the rdp group. A rank's optimizer updates the
pieces of parameters in its segments. With sharded parameters (parts.py) it updates this rank's part of each.
"""
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shoal.torch.parallel import gradients
from shoal.torch.parallel.parts import is_part, local, span
from shoal.torch.parallel.state import state

_IN_FLIGHT = 2
_ALIGNMENT = 16  # a segment's length is a multiple of this many elements

_ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
                torch.optim.Adamax, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.ASGD, torch.optim.RMSprop,
                torch.optim.Rprop)
_WHOLE = ("lamb", "lars", "adafactor", "muon", "shampoo", "soap", "lbfgs", "8bit")


class Piece:
    """Elements [start, end) of a flattened parameter on this rank. The optimizer updates `value`: the parameter itself,
    a view of its elements, or their f32 master."""

    __slots__ = ("name", "parameter", "start", "end", "value", "version")

    def __init__(self, name: str, parameter: nn.Parameter, start: int, end: int, value: nn.Parameter) -> None:
        self.name, self.parameter, self.start, self.end, self.value = name, parameter, start, end, value
        self.version = self.parameter_version

    @property
    def parameter_version(self) -> int:
        """Counts the changes of the parameter's values."""
        return local(self.parameter)._version

    @property
    def has_master(self) -> bool:
        return self.value.dtype != self.parameter.dtype

    def elements(self) -> torch.Tensor:
        """The parameter's elements, as a view with the shape of `value`."""
        if self.value.shape == self.parameter.shape or is_part(self.parameter):
            return local(self.parameter).detach()
        return self.parameter.detach().view(-1)[self.start:self.end]


def check_elementwise(optimizer: torch.optim.Optimizer, reason: str) -> None:
    """Raises ValueError unless the optimizer is known to update each element independently."""
    kind = type(optimizer)
    name = kind.__name__
    if getattr(optimizer, "elementwise", False):
        return
    if any(word in name.lower() for word in _WHOLE) or not isinstance(optimizer, _ELEMENTWISE):
        raise ValueError(f"{name} cannot be used with {reason}: its update of an element may depend on the others of "
                         "its tensor. Use AdamW or another elementwise optimizer; if this one is, set its attribute "
                         "elementwise = True")


class _Bucket:
    """Parameters of one group, axis, dtype and device. Their values lie in one flat tensor."""

    def __init__(self, axis: str, members: list[tuple[str, nn.Parameter]], with_masters: bool) -> None:
        ranks, rank = state.mesh.size("rdp"), state.mesh.rank("rdp")
        self.axis = axis
        self.parameters = [parameter for _, parameter in members]
        size = sum(p.numel() for p in self.parameters)
        self.length = -(-size // (ranks * _ALIGNMENT)) * _ALIGNMENT
        self.first = rank * self.length
        self.values = self.parameters[0].detach().new_zeros(ranks * self.length)
        self.pieces: list[Piece] = []
        self.offsets: list[int] = []
        at = 0
        for name, parameter in members:
            place = self.values[at:at + parameter.numel()]
            place.copy_(parameter.detach().reshape(-1))
            parameter.data = place.view(parameter.shape)
            self.offsets.append(at)
            start, end = max(at, self.first), min(at + parameter.numel(), self.first + self.length)
            if start < end:
                own = self.values[start:end]
                value = nn.Parameter(own.float() if with_masters else own)
                self.pieces.append(Piece(name, parameter, start - at, end - at, value))
            at += parameter.numel()

    def take_gradients(self) -> tuple[torch.Tensor, set[int]] | None:
        """Takes the gradients from the parameters. Returns them flat, divided by the number of batches, with the ids of
        the parameters that had one."""
        has = {id(p) for p in self.parameters if p.grad is not None}
        if not has:
            return None
        flat = torch.zeros_like(self.values)
        for at, parameter in zip(self.offsets, self.parameters):
            if parameter.grad is not None:
                flat[at:at + parameter.numel()].copy_(parameter.grad.reshape(-1))
                parameter.grad = None
        return flat.mul_(1 / state.mesh.batches), has

    def give_gradients(self, segment: torch.Tensor, has: set[int]) -> None:
        at = 0
        for piece in self.pieces:
            length = piece.end - piece.start
            if id(piece.parameter) in has:
                gradient = segment[at:at + length].to(piece.value.dtype)
                if piece.value.grad is None:
                    piece.value.grad = gradient
                else:
                    piece.value.grad.add_(gradient)
            at += length


class Shards:
    """The buckets of a DistributedOptimizer with shard_optimizer_state."""

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []

    def add(self, members: list[tuple[str, nn.Parameter]], with_masters: Any) -> list[Piece]:
        """Puts a group's parameters into buckets and returns this rank's pieces. `with_masters(parameter)` is true if
        the parameter has an f32 master."""
        names = {id(parameter): name for name, parameter in members}
        pieces = []
        for axis, bucket in gradients.buckets(parameter for _, parameter in members):
            made = _Bucket(axis, [(names[id(p)], p) for p in bucket], with_masters(bucket[0]))
            self._buckets.append(made)
            pieces += made.pieces
        return pieces

    @torch.no_grad()
    def reduce(self) -> None:
        """Sums the parameters' gradients over ranks, adds the sums to the segments' gradients, and clears the
        parameters' own."""
        mesh = state.mesh
        running: deque = deque()

        def finish() -> None:
            bucket, segment, has, work, _ = running.popleft()
            work.wait()
            if bucket.axis == "dp" and mesh.size("tp") > 1:
                dist.all_reduce(segment, group=mesh.group("tp"))
            bucket.give_gradients(segment, has)

        for bucket in self._buckets:
            taken = bucket.take_gradients()
            if taken is None:
                continue
            flat, has = taken
            segment = flat.new_empty(bucket.length)
            work = dist.reduce_scatter_tensor(segment, flat, group=mesh.group("rdp"), async_op=True)
            running.append((bucket, segment, has, work, flat))
            if len(running) > _IN_FLIGHT:
                finish()
        while running:
            finish()

    @torch.no_grad()
    def gather(self) -> None:
        """Gathers the values of all segments on every rank of the rdp group."""
        group = state.mesh.group("rdp")
        running: deque = deque()
        for bucket in self._buckets:
            for piece in bucket.pieces:
                if piece.has_master:
                    piece.elements().copy_(piece.value)
            segment = bucket.values[bucket.first:bucket.first + bucket.length].clone()
            running.append((dist.all_gather_into_tensor(bucket.values, segment, group=group, async_op=True), segment))
            if len(running) > _IN_FLIGHT:
                running.popleft()[0].wait()
        for work, _ in running:
            work.wait()


class Parts:
    """The pieces of a DistributedOptimizer of sharded parameters: what this rank has of each."""

    def __init__(self) -> None:
        self._taken: list[nn.Parameter] = []  # parameters whose gradients pieces get
        self._pieces: list[Piece] = []

    def add(self, members: list[tuple[str, nn.Parameter]], with_masters: Any) -> list[Piece]:
        """As Shards.add()."""
        pieces = []
        for name, parameter in members:
            start, end = span(parameter)
            value, has_master = parameter, with_masters(parameter)
            if has_master or is_part(parameter):
                own = local(parameter).detach()
                value = nn.Parameter(own.float() if has_master else own, parameter.requires_grad)
                self._taken.append(parameter)
            if start < end:
                pieces.append(Piece(name, parameter, start, end, value))
        self._pieces += pieces
        return pieces

    @torch.no_grad()
    def reduce(self) -> None:
        """Sums the gradients of parts and of parameters with masters, and gives them to the pieces."""
        gradients.all_reduce([p for p in self._taken if p.grad is not None])
        for piece in self._pieces:
            if piece.value is not piece.parameter and piece.parameter.grad is not None:
                gradient = local(piece.parameter.grad).to(piece.value.dtype)
                piece.value.grad = gradient if piece.value.grad is None else piece.value.grad.add_(gradient)
        for parameter in self._taken:
            parameter.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Gives the parameters the values of their masters."""
        for piece in self._pieces:
            if piece.has_master:
                piece.elements().copy_(piece.value)
