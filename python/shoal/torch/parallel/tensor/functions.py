"""Collectives over the tensor-parallel group as differentiable functions of activations.

A split region begins with `enter()` and ends with `leave()`. Each is the backward of the other. `split` is the layout
of activations between regions:

    split      enter: own -> region             leave: partial sums of the region -> own
    none       nothing; backward all_reduce     all_reduce; backward nothing
    sequence   all_gather along dim 1           reduce_scatter along dim 1
    batch      all_gather along dim 0           reduce_scatter along dim 0

Shapes of "own" are [B, S, H] under `none`, [B, S/tp, H] under `sequence`, and [B, S, H] of the rank's own samples
under `batch`. Shapes of "region" are [B, S, ...], under `batch` [tp*B, S, ...]. All ranks must call the same functions
with the same shapes in the same order. Results are bit-identical on all ranks and in all runs.
"""
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.torch.parallel.state import state


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel group, this rank's index in it, and the layout of activations outside split regions.

        tp = TensorParallel.current()
        y = leave(F.linear(torch.relu(enter(x, tp) @ up), down), tp)
    """

    group: dist.ProcessGroup | None
    rank: int
    size: int
    split: str = "none"  # "none", "sequence" or "batch"

    @classmethod
    def current(cls) -> "TensorParallel":
        """The group that init() made. Its split is for modules outside a model's blocks, so never "sequence"."""
        mesh = state.mesh
        return cls(mesh.group("tp"), mesh.rank("tp"), mesh.size("tp"), "none" if state.cfg.prescaled_batch else "batch")

    def __deepcopy__(self, memo: dict) -> "TensorParallel":
        return self  # copies of a model use the same group

    def whole(self) -> "TensorParallel":
        """The same group for activations that hold the whole sequence on every rank."""
        return replace(self, split="none") if self.split == "sequence" else self

    def in_blocks(self, optimize: str) -> "TensorParallel":
        """The same group for use inside a model's blocks. With prescaled_batch, optimize=memory splits sequences there.
        """
        return replace(self, split="sequence") if self.split == "none" and optimize == "memory" else self


@dataclass(frozen=True)
class TensorSplit:
    """A parameter's part on each tp rank: `blocks` equal blocks of dimension `dim`, each split over the ranks.

        split = TensorSplit(0, 3 * hidden, blocks=3)     # a fused weight of queries, keys and values
        mine = split.take(whole, rank, ranks)
        whole = split.join(parts)

    Rank r has elements [n*r/ranks, n*(r+1)/ranks) of a block's n, so the sizes of parts differ by one at most.
    """

    dim: int
    size: int
    blocks: int = 1

    def ranges(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """The (start, length) of this rank's elements along `dim`, for each block."""
        n = self.size // self.blocks
        first, last = n * rank // ranks, n * (rank + 1) // ranks
        return [(block * n + first, last - first) for block in range(self.blocks)]

    def length(self, rank: int, ranks: int) -> int:
        return sum(length for _, length in self.ranges(rank, ranks))

    def take(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """A copy of the rank's part."""
        parts = [whole.narrow(self.dim, start, length) for start, length in self.ranges(rank, ranks)]
        return torch.cat(parts, self.dim) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Joins every rank's part, given in rank order, into the whole tensor."""
        blocks = [part.tensor_split(self.blocks, self.dim) for part in parts]
        return torch.cat([blocks[rank][block] for block in range(self.blocks) for rank in range(len(parts))], self.dim)


class _Exchange(torch.autograd.Function):
    """A linear operation whose backward runs its transpose."""

    @staticmethod
    def forward(ctx, x: Tensor, operation: Callable, transpose: Callable) -> Tensor:
        ctx.transpose = transpose
        return operation(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):
        return ctx.transpose(gradient), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _all_reduce(x: Tensor, tp: TensorParallel) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=tp.group)
    return x


def _all_gather(x: Tensor, dim: int, tp: TensorParallel) -> Tensor:
    out = x.new_empty((tp.size, *x.shape))
    dist.all_gather_into_tensor(out, x.contiguous(), group=tp.group)
    return out.movedim(0, dim).flatten(dim, dim + 1)


def _reduce_scatter(x: Tensor, dim: int, tp: TensorParallel) -> Tensor:
    parts = x.unflatten(dim, (tp.size, -1)).movedim(dim, 0).contiguous()
    out = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(out, parts, group=tp.group)
    return out


def _own(x: Tensor, dim: int, tp: TensorParallel) -> Tensor:
    length = x.shape[dim] // tp.size
    return x.narrow(dim, tp.rank * length, length).contiguous()


def _widths(width: int, tp: TensorParallel) -> list[int]:
    return [TensorSplit(0, width).length(rank, tp.size) for rank in range(tp.size)]


def _to_features(x: Tensor, tp: TensorParallel) -> Tensor:
    """[B, ..., H] -> [tp*B, ..., H/tp]: each rank sends every other rank that rank's features of its own samples."""
    widths = _widths(x.shape[-1], tp)
    rows = x.shape[:-1].numel()
    sent = torch.cat([part.reshape(-1) for part in x.split(widths, -1)])
    mine = widths[tp.rank]
    received = x.new_empty(tp.size * rows * mine)
    dist.all_to_all_single(received, sent, [rows * mine] * tp.size, [rows * width for width in widths], group=tp.group)
    return received.view(tp.size * x.shape[0], *x.shape[1:-1], mine)


def _from_features(x: Tensor, width: int, tp: TensorParallel) -> Tensor:
    """[tp*B, ..., width/tp] -> [B, ..., width], the transpose of _to_features."""
    widths = _widths(width, tp)
    shape = (x.shape[0] // tp.size, *x.shape[1:-1])
    rows = x.shape[:-1].numel() // tp.size
    received = x.new_empty(rows * width)
    dist.all_to_all_single(received, x.reshape(-1), [rows * each for each in widths], [rows * x.shape[-1]] * tp.size,
                           group=tp.group)
    parts = received.split([rows * each for each in widths])
    return torch.cat([part.view(*shape, each) for part, each in zip(parts, widths)], -1)


def _take_features(x: Tensor, tp: TensorParallel) -> Tensor:
    return TensorSplit(-1, x.shape[-1]).take(x, tp.rank, tp.size)


def _join_features(x: Tensor, width: int, tp: TensorParallel) -> Tensor:
    """[..., width/tp] -> [..., width]. A part that is one column narrower than others is padded for the transfer."""
    widths = _widths(width, tp)
    if x.shape[-1] < max(widths):
        x = torch.nn.functional.pad(x, (0, max(widths) - x.shape[-1]))
    parts = x.new_empty((tp.size, *x.shape))
    dist.all_gather_into_tensor(parts, x.contiguous(), group=tp.group)
    return torch.cat([part[..., :each] for part, each in zip(parts, widths)], -1)


def enter(x: Tensor, tp: TensorParallel) -> Tensor:
    """Begins a split region: converts "own" activations to "region" (see the table above)."""
    if tp.size == 1:
        return x
    if tp.split == "none":
        return _Exchange.apply(x, _same, partial(_all_reduce, tp=tp))
    dim = 0 if tp.split == "batch" else 1
    return _Exchange.apply(x, partial(_all_gather, dim=dim, tp=tp), partial(_reduce_scatter, dim=dim, tp=tp))


def leave(x: Tensor, tp: TensorParallel) -> Tensor:
    """Ends a split region: sums the ranks' partial results and converts "region" activations to "own"."""
    if tp.size == 1:
        return x
    if tp.split == "none":
        return _Exchange.apply(x, partial(_all_reduce, tp=tp), _same)
    dim = 0 if tp.split == "batch" else 1
    return _Exchange.apply(x, partial(_reduce_scatter, dim=dim, tp=tp), partial(_all_gather, dim=dim, tp=tp))


def scatter_features(x: Tensor, tp: TensorParallel) -> Tensor:
    """Converts each rank's [B, ..., H] to this rank's H/tp features of the region's samples (tp*B under `batch`)."""
    if tp.size == 1:
        return x
    if tp.split == "batch":
        return _Exchange.apply(x, partial(_to_features, tp=tp), partial(_from_features, width=x.shape[-1], tp=tp))
    return _Exchange.apply(x, partial(_take_features, tp=tp), partial(_join_features, width=x.shape[-1], tp=tp))


def gather_features(x: Tensor, width: int, tp: TensorParallel) -> Tensor:
    """[..., width/tp] of the region's samples -> [B, ..., width] of this rank's own. The inverse of scatter_features.

    Under `none` all ranks must compute the same values from the result, because backward takes this rank's part from
    its own gradient.
    """
    if tp.size == 1:
        return x
    if tp.split == "batch":
        return _Exchange.apply(x, partial(_from_features, width=width, tp=tp), partial(_to_features, tp=tp))
    return _Exchange.apply(x, partial(_join_features, width=width, tp=tp), partial(_take_features, tp=tp))


def split_sequence(x: Tensor, tp: TensorParallel) -> Tensor:
    """Splits a [B, S, H] that every rank has: [B, S/tp, H] on this rank. ValueError if tp does not divide S."""
    if tp.size == 1:
        return x
    if x.shape[1] % tp.size:
        raise ValueError(f"a sequence of {x.shape[1]} tokens cannot be split over {tp.size} tensor-parallel ranks: pad "
                         f"it to a multiple of {tp.size}, or set \"optimize\": \"speed\"")
    return _Exchange.apply(x, partial(_own, dim=1, tp=tp), partial(_all_gather, dim=1, tp=tp))


def gather_sequence(x: Tensor, tp: TensorParallel) -> Tensor:
    """This rank's [B, S/tp, H] -> [B, S, H]. All ranks must compute the same values from the result."""
    if tp.size == 1:
        return x
    return _Exchange.apply(x, partial(_all_gather, dim=1, tp=tp), partial(_own, dim=1, tp=tp))


def gather_samples(x: Tensor, tp: TensorParallel) -> Tensor:
    """Gathers a region's other inputs, such as masks, positions and ids. `batch`: [B, ...] -> [tp*B, ...]."""
    if tp.size == 1 or tp.split != "batch":
        return x
    if x.dtype == torch.bool:
        return gather_samples(x.view(torch.uint8), tp).view(torch.bool)
    return enter(x, tp) if x.requires_grad else _all_gather(x, 0, tp)


def own_samples(x: Tensor, tp: TensorParallel) -> Tensor:
    """Takes this rank's own samples: [tp*B, ...], which every rank has, -> [B, ...]. Backward gathers the ranks'
    gradients."""
    return _Exchange.apply(x, partial(_own, dim=0, tp=tp), partial(_all_gather, dim=0, tp=tp))


def check_shape(x: Tensor, name: str, tp: TensorParallel) -> None:
    """Raises ValueError on every rank if the shapes of x differ between ranks. Call it before gather_samples()."""
    if tp.size == 1 or tp.split != "batch":
        return
    mine = torch.tensor([x.dim(), *x.shape, *[0] * 8][:9], device=x.device)
    table = mine.new_empty(tp.size * 9)
    dist.all_gather_into_tensor(table, mine, group=tp.group)
    rows = table.view(tp.size, -1).tolist()
    if any(row != rows[0] for row in rows):
        raise_different(name, [str(row[1:1 + row[0]]) for row in rows])


def raise_different(name: str, shapes: list[str]) -> None:
    """Raises the error for batches whose shapes differ between ranks."""
    raise ValueError(f"{name}: the tensor-parallel ranks' batches differ in shape ("
                     + "; ".join(f"rank {rank}: {shape}" for rank, shape in enumerate(shapes))
                     + "): pad all batches to one length, or set \"prescaled_batch\": true")


class OwnRandomNumbers(threading.local):
    """Gives each tp rank random numbers of its own inside split regions, where the ranks have different elements.

    begin() draws one number from the stream that the ranks share and derives the seed of the rank's own stream from it.
    end() continues the shared stream after that number, so saving the shared state is enough. If an exception prevents
    end(), the next begin() starts over.
    """

    shared: tuple[Tensor, torch.device, Tensor | None] | None = None

    def begin(self, tp: TensorParallel, device: torch.device, training: bool) -> None:
        if tp.size == 1 or not training:
            return
        seed = int(torch.randint(2 ** 62, ())) + tp.rank
        own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        self.shared = (torch.get_rng_state(), device, own)
        torch.manual_seed(seed)

    def end(self) -> None:
        if self.shared is None:
            return
        host, device, own = self.shared
        self.shared = None
        torch.set_rng_state(host)
        if own is not None:
            torch.get_device_module(device).set_rng_state(own, device)


own_random_numbers = OwnRandomNumbers()
