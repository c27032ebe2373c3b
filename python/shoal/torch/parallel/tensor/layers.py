"""Layers whose parameters are split over the tensor-parallel group.

A ColumnLinear computes a part of the output features. A RowLinear sums over its part of the input features. A pair of
them needs one `enter()` and one `leave()` (functions.py). DistributedLinear and DistributedEmbedding replace PyTorch's
layers and have the same inputs and outputs.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.torch.parallel.delayed import delayed_part, is_delayed
from shoal.torch.parallel.tensor.functions import (TensorParallel, TensorSplit, check_shape, enter, gather_features,
                                                   gather_samples, leave, own_random_numbers, own_samples,
                                                   scatter_features)


class DistributedModule(nn.Module):
    """A module that is split over the tp ranks. `tp_register` accepts subclasses of it."""

    def __init__(self, tp: TensorParallel | None = None) -> None:
        super().__init__()
        self.tp = tp or TensorParallel.current()


def split_parameter(whole: nn.Parameter, split: TensorSplit, tp: TensorParallel) -> nn.Parameter:
    """Returns this rank's part of tp rank 0's values as a parameter with `tp_split`. Layers that share `whole` share
    the part."""
    known = getattr(whole, "tp_part", None)
    if known is not None:
        if known.tp_split != split:
            raise ValueError(f"two layers share a parameter of shape {list(whole.shape)}, but one splits it as "
                             f"{known.tp_split}, the other as {split}: do not share it, or leave one of them whole")
        return known
    value = whole.detach()
    if tp.size > 1 and not value.is_meta:
        value = value.contiguous()
        dist.broadcast(value, group=tp.group, group_src=0)
    taken = split.take(value, tp.rank, tp.size)
    part = delayed_part(whole, taken) if is_delayed(whole) else nn.Parameter(taken, whole.requires_grad)
    part.tp_split = split
    whole.tp_part = part
    return part


def mark_partial(parameter: nn.Parameter) -> None:
    """Marks a parameter that every tp rank has whole, but whose gradients gradients.py must sum over tp."""
    parameter.tp_partial = True


def _divide(size: int, tp: TensorParallel, name: str) -> int:
    if size % tp.size:
        raise ValueError(f"{name} = {size} does not divide by tensor_parallel_degree {tp.size}")
    return size // tp.size


class _SplitLinear(DistributedModule):
    """The base of split linear layers, which holds their parameters. `transposed`: the weight is [in, out], as in
    GPT-2's Conv1D."""

    def __init__(self, in_features: int, out_features: int, bias: bool, whole: nn.Module | None,
                 tp: TensorParallel | None, device=None, dtype=None) -> None:
        super().__init__(tp)
        whole = whole or nn.Linear(in_features, out_features, bias, device, dtype)
        self.in_features, self.out_features = in_features, out_features
        self.transposed = not isinstance(whole, nn.Linear)
        self._whole = [whole.weight, whole.bias]

    def _take(self, side: str, blocks: int = 1) -> None:
        (weight, bias), out_dim = self.__dict__.pop("_whole"), int(self.transposed)
        dim, size = (out_dim, self.out_features) if side == "output" else (1 - out_dim, self.in_features)
        self.weight = split_parameter(weight, TensorSplit(dim, size, blocks), self.tp)
        if bias is not None and side == "output":
            bias = split_parameter(bias, TensorSplit(0, size, blocks), self.tp)
        self.register_parameter("bias", bias)

    def _linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, self.weight.t() if self.transposed else self.weight, bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, ranks={self.tp.size}"


class ColumnLinear(_SplitLinear):
    """Computes out_features/tp features of the region's activations.

        up = ColumnLinear(768, 3072, enters=True)
        down = RowLinear(3072, 768)
        y = down(torch.relu(up(x)))

    `blocks`: the number of equal blocks in out_features, each of which is split (3: queries, keys, values). `enters`:
    true if the layer begins a region, false if it is inside one. `whole`: a layer with the initial values; without it
    they are nn.Linear's.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, blocks: int = 1,
                 enters: bool = False, whole: nn.Module | None = None, tp: TensorParallel | None = None,
                 device=None, dtype=None) -> None:
        super().__init__(in_features, out_features, bias, whole, tp, device, dtype)
        _divide(out_features // blocks, self.tp, "the number of output features")
        self.enters = enters
        self._take("output", blocks)

    def forward(self, x: Tensor) -> Tensor:
        if self.enters:
            x = enter(x, self.tp)
            if self.tp.split != "sequence":
                own_random_numbers.begin(self.tp, x.device, self.training)
        return self._linear(x, self.bias)


class RowLinear(_SplitLinear):
    """Sums over in_features/tp features of the region's activations and leaves the region. Adds the bias once, after
    the sum over ranks."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, whole: nn.Module | None = None,
                 tp: TensorParallel | None = None, device=None, dtype=None) -> None:
        super().__init__(in_features, out_features, bias, whole, tp, device, dtype)
        _divide(in_features, self.tp, "the number of input features")
        self._take("input")
        if self.bias is not None and self.tp.split == "sequence":
            mark_partial(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = leave(self._linear(x, None), self.tp)
        if self.tp.split != "sequence":
            own_random_numbers.end()
        return y if self.bias is None else y + self.bias.to(y.dtype)


class DistributedLinear(RowLinear):
    """nn.Linear whose weight is split over its input features.

        layer = smp.nn.DistributedLinear(1024, 4096)
        y = layer(x)                                   # [B, ..., 1024] -> [B, ..., 4096], as nn.Linear's

    The first dimension of x is the batch. Raises ValueError if the tensor-parallel degree does not divide in_features.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(scatter_features(x, self.tp))


class VocabularyHead(_SplitLinear):
    """A linear layer over the vocabulary. Each rank computes the scores of its part of the vocabulary for the region's
    samples, then gathers all scores for its own samples. The tensor-parallel degree need not divide the vocabulary.

    With gather=False it returns this rank's part of the scores without gathering, for vocabulary_cross_entropy().
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, whole: nn.Module | None = None,
                 tp: TensorParallel | None = None, device=None, dtype=None) -> None:
        super().__init__(in_features, out_features, bias, whole, tp, device, dtype)
        self._take("output")

    def forward(self, x: Tensor, gather: bool = True) -> Tensor:
        y = self._linear(enter(x, self.tp), self.bias)
        return gather_features(y, self.out_features, self.tp) if gather else y


def check_ids(ids: Tensor, count: int, name: str) -> None:
    """IndexError unless all are in [0, count), as of nn.Embedding. Each tp rank has the same ids, so each raises it. On
    GPUs the device's assertion fails, without a wait."""
    inside = ((ids >= 0) & (ids < count)).all()
    if ids.device.type != "cpu":
        torch._assert_async(inside)
    elif not inside:
        raise IndexError(f"{name} from {int(ids.min())} to {int(ids.max())} are outside of the vocabulary, which has "
                         f"{count}: compare the tokenizer's size with the model's")


class DistributedEmbedding(DistributedModule):
    """nn.Embedding split over the embedding dimension, as in SMP, or over the vocabulary.

        layer = smp.nn.DistributedEmbedding(50257, 768)
        y = layer(ids)                                 # [B, ...] -> [B, ..., 768]

    `split`: "embedding" or "vocabulary". A head can share the weight only with "vocabulary". The tensor-parallel degree
    need not divide the split dimension. max_norm, scale_grad_by_freq and sparse are refused, because they need whole
    rows or all ids. IndexError on every tp rank if an id is outside the vocabulary.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                 sparse: bool = False, _weight: Tensor | None = None, initializer_range: float | None = None, *,
                 split: str = "embedding", whole: nn.Embedding | None = None, tp: TensorParallel | None = None,
                 device=None, dtype=None) -> None:
        super().__init__(tp)
        for name, value in (("max_norm", max_norm is not None), ("scale_grad_by_freq", scale_grad_by_freq),
                            ("sparse", sparse)):
            if value:
                raise ValueError(f"DistributedEmbedding: {name} is not supported; leave it out")
        if split not in ("embedding", "vocabulary"):
            raise ValueError(f'DistributedEmbedding: split is "{split}", not "embedding" or "vocabulary"')
        if whole is None:
            whole = nn.Embedding(num_embeddings, embedding_dim, padding_idx, _weight=_weight, device=device,
                                 dtype=dtype)
            if initializer_range is not None and _weight is None:
                nn.init.normal_(whole.weight, std=initializer_range)
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.split = split
        # BART multiplies by a number, Gemma by a tensor of the weight's dtype.
        number = getattr(whole, "scalar_embed_scale", None)
        self.scale = getattr(whole, "embed_scale", 1.0) if number is None else torch.tensor(number, device="cpu")
        dim, size = (0, num_embeddings) if split == "vocabulary" else (1, embedding_dim)
        self.weight = split_parameter(whole.weight, TensorSplit(dim, size), self.tp)

    def forward(self, ids: Tensor) -> Tensor:
        check_shape(ids, "ids of the embedding", self.tp)
        ids = gather_samples(ids, self.tp)
        if self.split == "embedding":
            y = gather_features(F.embedding(ids, self.weight, self.padding_idx), self.embedding_dim, self.tp)
        else:
            if self.tp.size == 1:
                return self._scaled(F.embedding(ids, self.weight, self.padding_idx))
            check_ids(ids, self.num_embeddings, "token ids")
            first, rows = TensorSplit(0, self.num_embeddings).ranges(self.tp.rank, self.tp.size)[0]
            own = ids - first
            others = (own < 0) | (own >= rows)
            padding = None if self.padding_idx is None or not 0 <= self.padding_idx - first < rows \
                else self.padding_idx - first
            y = F.embedding(own.masked_fill(others, 0), self.weight, padding)
            y = leave(y.masked_fill(others.unsqueeze(-1), 0.0), self.tp)
        return self._scaled(y)

    def _scaled(self, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            return y * self.scale.to(y.dtype)
        return y if self.scale == 1.0 else y * self.scale

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, split={self.split}, ranks={self.tp.size}"


class DistributedLayerNorm(nn.LayerNorm):
    """nn.LayerNorm for activations whose sequence may be split over the tp ranks. With `prescaled_batch` and `optimize:
    memory`, each rank normalizes its own tokens and computes only their part of the parameters' gradients."""

    def __init__(self, *args, tp: TensorParallel | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if (tp or TensorParallel.current()).split == "sequence":
            for parameter in self.parameters():
                mark_partial(parameter)


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, targets: Tensor, first: int, tp: TensorParallel) -> Tensor:
        wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        top = wide.amax(-1) if wide.shape[-1] else wide.new_full(wide.shape[:-1], float("-inf"))
        dist.all_reduce(top, dist.ReduceOp.MAX, group=tp.group)
        exponents = (wide - top.unsqueeze(-1)).exp()
        own = targets - first
        mine = (own >= 0) & (own < wide.shape[-1])
        own = own.masked_fill(~mine, 0)
        target = wide.gather(-1, own.unsqueeze(-1)).squeeze(-1) - top if wide.shape[-1] else torch.zeros_like(top)
        sums = torch.stack([exponents.sum(-1), target.masked_fill(~mine, 0.0)])
        dist.all_reduce(sums, group=tp.group)
        ctx.save_for_backward(exponents / sums[0].unsqueeze(-1), own, mine)
        ctx.dtype = scores.dtype
        return sums[0].log() - sums[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):
        probabilities, own, mine = ctx.saved_tensors
        out = probabilities.clone()
        if out.shape[-1]:
            out.scatter_add_(-1, own.unsqueeze(-1), -mine.unsqueeze(-1).to(out.dtype))
        return (out * gradient.unsqueeze(-1)).to(ctx.dtype), None, None, None


def vocabulary_cross_entropy(scores: Tensor, targets: Tensor, vocabulary: int, tp: TensorParallel,
                             ignore_index: int = -100) -> Tensor:
    """The mean cross entropy of this rank's own samples, from scores that are split over the ranks.

        head = VocabularyHead(768, 50257, bias=False)
        loss = vocabulary_cross_entropy(head(x, gather=False), labels, 50257, head.tp)

    scores: [B, ..., V/tp] of the region's samples. targets: [B, ...] of the rank's own. Positions whose target is
    `ignore_index` are ignored.
    """
    if tp.size == 1:
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=ignore_index)
    gathered = gather_samples(targets, tp)
    check_ids(gathered.masked_fill(gathered == ignore_index, 0), vocabulary, "targets")
    first = TensorSplit(0, vocabulary).ranges(tp.rank, tp.size)[0][0]
    losses = _VocabularyCrossEntropy.apply(scores, gathered, first, tp)
    counted = targets != ignore_index
    if tp.split == "batch":
        losses = own_samples(losses, tp)
    return losses.masked_fill(~counted, 0.0).sum() / counted.sum()

