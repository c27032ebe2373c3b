"""Gradients over the mesh: averaging over distinct batches, the norm, and clipping."""
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from shoal.torch.parallel.state import state

BUCKET_BYTES = 25 << 20
_IN_FLIGHT = 2  # buckets summed concurrently


def axis_of(parameter: nn.Parameter) -> str:
    """The axis along which this parameter's gradients are summed."""
    if hasattr(parameter, "tp_split"):
        return "rdp"
    return "dp" if getattr(parameter, "tp_partial", False) else state.mesh.batch_axis


def reduce(model: Any) -> None:
    """Averages this rank's gradients over the step's distinct batches.

        loss = train_step(model, inputs).outputs   # step() calls gradients.reduce(model)

    Every rank of the job calls it. Gradients of parameters that are whole on each tp rank are summed along the mesh's
    batch axis. Those of split parameters are summed over "rdp", because they already include all tp ranks' batches. A
    rank without a gradient for a parameter adds zeros. If no rank has one, `grad` stays None. The sums are
    bit-identical on all ranks and in all runs. With shard_optimizer_state, each rank gets its segments' sums and the
    parameters' `grad` become None.
    """
    install()
    model.passes = 0
    named = [(name, p) for name, p in model.local_named_parameters() if p.requires_grad]
    for name, parameter in named:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise ValueError(f"the gradient of {name} is {parameter.grad.layout}: only dense gradients can be summed "
                             "(sparse=False)")
    parameters = [parameter for _, parameter in named]
    if state.mesh.size("dp") > 1:
        _agree_on_presence(parameters)
    if state.optimizer is not None:
        state.optimizer.take_gradients()
    _all_reduce([p for p in parameters if p.grad is not None])


def reduce_pending(model: Any) -> None:
    """Calls reduce() if steps have run since the last call, but fewer than backward_passes_per_step."""
    if model.passes % model.backward_passes_per_step:
        reduce(model)


@torch.no_grad()
def _agree_on_presence(parameters: list[nn.Parameter]) -> None:
    """Sets zero gradients for parameters whose gradient only other ranks have."""
    if not parameters:
        return
    has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8, device=parameters[0].device)
    dist.all_reduce(has, dist.ReduceOp.MAX, group=state.mesh.group("dp"))
    if any(p.grad is None for p in parameters):
        for parameter, present in zip(parameters, has.tolist()):
            if present and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def buckets(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """Yields (axis, parameters) in a fixed order. The parameters share dtype and device, and have BUCKET_BYTES at most
    together, unless it is one parameter."""
    kinds: dict[tuple, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((axis_of(parameter), parameter.dtype, parameter.device), []).append(parameter)
    for (axis, _, _), members in kinds.items():
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in members:
            if bucket and size + parameter.nbytes > BUCKET_BYTES:
                yield axis, bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter.nbytes
        if bucket:
            yield axis, bucket


@torch.no_grad()
def _all_reduce(parameters: list[nn.Parameter]) -> None:
    mesh = state.mesh
    running: deque = deque()

    def finish() -> None:
        flat, bucket, work = running.popleft()
        if work is not None:
            work.wait()
        sums = flat.split([p.numel() for p in bucket])
        torch._foreach_copy_([p.grad for p in bucket], [part.view(p.shape) for part, p in zip(sums, bucket)])

    if mesh.size("dp") == 1:
        return
    for axis, bucket in buckets(parameters):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket]).mul_(1 / mesh.batches)  # divides before the sum, so that
                                                                                       # fp16 does not overflow
        work = dist.all_reduce(flat, group=mesh.group(axis), async_op=True) if mesh.size(axis) > 1 else None
        running.append((flat, bucket, work))
        if len(running) > _IN_FLIGHT:
            finish()
    while running:
        finish()


# The norm.


def pieces(parameter: nn.Parameter) -> list[torch.Tensor]:
    """This rank's gradients of `parameter` as the optimizer uses them: those of its segments, of its f32 master, or its
    own."""
    found = None if state.optimizer is None else state.optimizer.gradients_of(parameter)
    if found is not None:
        return found
    return [] if parameter.grad is None else [parameter.grad]


def _is_counted(parameter: nn.Parameter) -> bool:
    """False if another tp rank counts the same values."""
    return hasattr(parameter, "tp_split") or state.mesh.rank("tp") == 0


def norm_group() -> dist.ProcessGroup:
    """The ranks that together hold each gradient exactly once. With segments these are all ranks, else those of one
    replica."""
    has_segments = state.optimizer is not None and state.optimizer.shards is not None
    return state.mesh.group("world" if has_segments else "mp")


@torch.no_grad()
def grad_norm(parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> torch.Tensor:
    """The norm of the gradients of these parameters over the whole model: an f32 scalar, the same on each rank.

        gradients.grad_norm(model.parameters())

    Every rank of the job calls it for the same parameters, with its own Parameter objects. Parameters of other pipeline
    ranks and parameters without a gradient add nothing. Each part of a split parameter and each segment counts.
    Identical copies count once.
    """
    norm_type = float(norm_type)
    counted = [g for p in parameters if not p.is_meta and _is_counted(p) for g in pieces(p)]
    counted = [g for g in counted if g.numel()]
    device = counted[0].device if counted else next((p.device for p in state.model.local_parameters()), None)
    total = torch.zeros((), dtype=torch.float64, device=device)
    is_max = norm_type == float("inf")
    if counted:
        norms = torch.stack([n.to(device) for n in torch._foreach_norm(counted, norm_type, dtype=torch.float32)])
        total = norms.double().max() if is_max else norms.double().pow(norm_type).sum()
    group = norm_group()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=group)
    return (total if is_max else total.pow(1 / norm_type)).float()


@torch.no_grad()
def _scale(parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
    scaled = [g for p in parameters if not p.is_meta for g in pieces(p)]
    if scaled:
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # as PyTorch computes it
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for gradient in scaled:
            by_device.setdefault(gradient.device, []).append(gradient)
        for device, members in by_device.items():
            torch._foreach_mul_(members, factor.to(device))


def clip_grad_norm_(parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float,
                    norm_type: float = 2.0) -> torch.Tensor:
    """Scales the gradients so that their norm over the whole model is max_norm at most; returns the norm before.

        norm = gradients.clip_grad_norm_(model.parameters(), 1.0)

    Like torch.nn.utils.clip_grad_norm_, but with the norm of grad_norm(). max_norm may be inf.
    """
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    _prepare()
    norm = grad_norm(parameters, norm_type)
    _scale(parameters, float(max_norm), norm)
    return norm


def _prepare() -> None:
    if state.optimizer is None:
        reduce_pending(state.model)
    else:
        state.optimizer.update_master_grads()


# torch.nn.utils for a DistributedModel.


def _by_gradient() -> dict[int, nn.Parameter]:
    return {id(p.grad): p for p in state.model.local_parameters() if p.grad is not None}


def install() -> None:
    """Makes torch.nn.utils' norms and clipping correct for a DistributedModel's gradients. They treat other gradients
    as before."""
    if hasattr(clip_grad._get_total_norm, "shoal"):
        return
    total_norm, scale = clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_

    @functools.wraps(total_norm)
    def _get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                        foreach: bool | None = None) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if state.model is None:
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        found = _by_gradient()
        mine = [found[id(t)] for t in tensors if id(t) in found]
        if tensors and len(mine) < len(tensors):
            if mine:
                raise ValueError("these gradients are of a DistributedModel and of other modules: clip each by itself")
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        _prepare()
        # If the caller gave no gradients, this rank has none of them or they are in segments.
        norm = grad_norm(mine or state.model.local_parameters(), norm_type)
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(f"the norm of the gradients is {norm.item()}")
        return norm

    @functools.wraps(scale)
    def _clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor,
                               foreach: bool | None = None) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = set() if state.model is None else {id(p) for p in state.model.local_parameters()}
        scale([p for p in parameters if id(p) not in own], max_norm, total_norm, foreach)
        _scale([p for p in parameters if id(p) in own], float(max_norm), total_norm)

    _get_total_norm.shoal = True  # type: ignore[attr-defined]
    clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_ = _get_total_norm, _clip_grads_with_norm_
    torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_ = _get_total_norm, _clip_grads_with_norm_
