"""Modules whose whole forward is a split region. Their arguments are gathered at the entry.

As with fully_shard(), a module gets a subclass of its class with another forward, so hooks, names and isinstance work
as before. The row-parallel layer at the region's end calls `leave()` (layers.py).
"""
import inspect
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.torch.parallel.tensor.functions import (TensorParallel, enter, gather_samples, gather_sequence,
                                                   own_random_numbers, raise_different, split_sequence)

_MASKS = ("attention_mask", "mask", "encoder_attention_mask")
_LOCAL = ("position_bias",)  # computed inside regions for this rank's heads, so never gathered
_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
           torch.float64)


@lru_cache(maxsize=None)
def _parameters(cls: type) -> tuple[str, ...]:
    parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _named(cls: type, args: tuple, kwargs: dict) -> dict[str, Any]:
    return dict(zip(_parameters(cls), args)) | kwargs


def _known(x: Tensor) -> Tensor | None:
    """Returns the gathered form of x that another layer stored, if x has not changed since."""
    version, gathered = getattr(x, "tp_gathered", (None, None))
    return gathered if gathered is not None and version == x._version else None


def _describe(mask: Tensor | None) -> list[int]:
    """Describes a mask in numbers, for comparison with other ranks: gathered before, dtype, number of dimensions,
    sizes. Zeros for None."""
    if mask is None:
        return [0] * 7
    if not isinstance(mask, Tensor):
        raise TypeError(f"tensor parallelism cannot gather masks of type {type(mask).__name__}: set "
                        "attn_implementation to \"sdpa\" or \"eager\", or \"prescaled_batch\": true")
    shape = list(mask.shape[1:]) + [0] * 5
    return [1 + (_known(mask) is not None), _DTYPES.index(mask.dtype), mask.dim(), *shape[:4]]


def _no_mask(numbers: list[int], batch: int, causal: bool, device: torch.device) -> Tensor:
    """Makes the mask that None stands for, in the form that another rank uses: [B, 1, Q, K], or [B, S] of ones."""
    _, dtype, dims, *shape = numbers
    kind = _DTYPES[dtype]
    shape = (batch, *shape[:dims - 1])
    seen = torch.ones(shape, dtype=torch.bool, device=device)
    if causal and dims == 4:
        seen = seen.tril()
    if dims < 4 or not kind.is_floating_point:
        return seen.to(kind)
    return torch.zeros(shape, dtype=kind, device=device).masked_fill(~seen, torch.finfo(kind).min)


def _gathered(x: Any, batch: int, tp: TensorParallel, again: bool = False) -> Any:
    """Gathers every rank's samples of tensors whose first dimension is the batch, also inside tuples and lists."""
    if isinstance(x, (tuple, list)):
        return type(x)(_gathered(each, batch, tp, again) for each in x)
    if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[0] != batch:
        return x
    if x.requires_grad or x.is_inference():
        return gather_samples(x, tp)
    gathered = None if again else _known(x)
    if gathered is None:
        gathered = gather_samples(x, tp)
        x.tp_gathered = (x._version, gathered)  # for other layers that get the same tensor
    return gathered


@dataclass(frozen=True)
class Region:
    """How to call a module as a region. `activations`: names of the arguments that enter; the first is the hidden
    states. `attends`: the module also takes masks and positions, which are gathered."""

    tp: TensorParallel
    activations: tuple[str, ...]
    attends: bool

    def run(self, module: nn.Module, forward, named: dict[str, Any]) -> Any:
        hidden = named[self.activations[0]]
        if self.attends and self.tp.split == "batch":
            self._gather(module, named, hidden)
        for name in self.activations:
            if named.get(name) is not None:
                named[name] = enter(named[name], self.tp if name == self.activations[0] else self.tp.whole())
        if self.tp.split == "sequence":  # Block.run() has switched to this rank's random numbers
            return forward(**named)
        own_random_numbers.begin(self.tp, hidden.device, module.training)
        try:
            return forward(**named)
        finally:
            own_random_numbers.end()

    def _gather(self, module: nn.Module, named: dict[str, Any], hidden: Tensor) -> None:
        batch = hidden.shape[0]
        masks = [name for name in _MASKS if name in named]
        others = [name for name in named if name not in masks + list(self.activations + _LOCAL)]
        again = self._compare(module, named, hidden, masks, others)
        for name in masks:
            named[name] = _gathered(named[name], batch, self.tp, again)
        for name in others:
            named[name] = _gathered(named[name], batch, self.tp)

    def _compare(self, module: nn.Module, named: dict[str, Any], hidden: Tensor, masks: list[str],
                 others: list[str]) -> bool:
        """Compares the arguments of the ranks' calls. If only other ranks have a mask, makes one for this rank, because
        Hugging Face omits masks that hide nothing. Returns true if the masks must be gathered again."""
        tp = self.tp
        text = _text(named, list(self.activations) + others)
        numbers = [zlib.crc32(text.encode()), *(each for name in masks for each in _describe(named[name]))]
        mine = torch.tensor(numbers, device=hidden.device)
        table = mine.new_empty(tp.size * len(numbers))
        dist.all_gather_into_tensor(table, mine, group=tp.group)
        rows = table.view(tp.size, -1).tolist()
        if all(row == rows[0] for row in rows):
            return False
        known = [{tuple(row[1 + 7 * i + 1:8 + 7 * i]) for row in rows if row[1 + 7 * i]} for i in range(len(masks))]
        if any(row[0] != rows[0][0] for row in rows) or any(len(each) > 1 for each in known):
            texts: list = [None] * tp.size
            dist.all_gather_object(texts, _text(named, [*self.activations, *others, *masks]), group=tp.group)
            raise_different(type(module).__name__, texts)
        for name, forms in zip(masks, known):
            if named[name] is None and forms:
                causal = name != "encoder_attention_mask" and getattr(module, "is_causal", False)
                named[name] = _no_mask([1, *forms.pop()], hidden.shape[0], causal, hidden.device)
        return True


def _text(named: dict[str, Any], names: list[str]) -> str:
    tensors = ((name, each) for name in names
               for each in (named[name] if isinstance(named.get(name), (tuple, list)) else [named.get(name)])
               if isinstance(each, Tensor))
    return ", ".join(f"{name} {list(each.shape)} {str(each.dtype)[6:]}" for name, each in tensors)


@dataclass(frozen=True)
class Block:
    """How to call a model's block under `sequence`. The first block takes this rank's part of the sequence; the last
    gathers the sequence."""

    tp: TensorParallel
    first: bool
    last: bool

    def run(self, module: nn.Module, forward, named: dict[str, Any]) -> Any:
        name = _parameters(type(module))[0]
        if self.first:
            named[name] = split_sequence(named[name], self.tp)
        own_random_numbers.begin(self.tp, named[name].device, module.training)
        try:
            out = forward(**named)
        finally:
            own_random_numbers.end()
        if not self.last:
            return out
        if isinstance(out, tuple):
            return (gather_sequence(out[0], self.tp), *out[1:])
        return gather_sequence(out, self.tp)


@lru_cache(maxsize=None)
def _subclass(cls: type) -> type:
    def forward(self, *args, **kwargs):
        return self.tp_region.run(self, super(made, self).forward, _named(cls, args, kwargs))

    forward.__signature__ = inspect.signature(cls.forward)
    made = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__, "__doc__": cls.__doc__})
    return made


def make_region(module: nn.Module, region: Region | Block) -> None:
    """Turns `module` into a region or a block, in place."""
    module.tp_region = region
    module.__class__ = _subclass(type(module))
