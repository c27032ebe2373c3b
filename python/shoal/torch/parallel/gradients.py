"""Gradients over the mesh: averaging over distinct batches, the norm, and clipping."""
import functools
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from shoal.torch.parallel.parts import is_part, local
from shoal.torch.parallel.state import state

log = logging.getLogger("shoal.torch.parallel")
BUCKET_BYTES = 25 << 20
_IN_FLIGHT = 2  # buckets summed concurrently


def axis_of(parameter: nn.Parameter) -> str:
    """The axis along which this parameter's gradients are summed."""
    if hasattr(parameter, "tp_split"):
        return "rdp"
    return "dp" if getattr(parameter, "tp_partial", False) else state.mesh.batch_axis


def _axes_left(parameter: nn.Parameter) -> list[str]:
    """The axes along which a gradient of this rank is to be summed. Backward has summed those of parts over "shard"."""
    axis = axis_of(parameter)
    axes = [axis] if not is_part(parameter) else ["copies", "tp"] if axis == "dp" else ["copies"]
    return [axis for axis in axes if state.mesh.size(axis) > 1]


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
    if model.distributed_optimizer is None:
        _warn_of_plain_optimizer()
    else:
        model.distributed_optimizer.take_gradients()
    all_reduce([p for p in parameters if p.grad is not None])
    for parameter, before in model.reduced:
        parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
    model.reduced = []


def _warn_of_plain_optimizer() -> None:
    """Logs which of init()'s parameters are without effect because only a DistributedOptimizer obeys them."""
    given = [key for key in ("shard_optimizer_state", "fp16", "bf16") if getattr(state.cfg, key)]
    if state.cfg.sharding_level >= 2 and state.cfg.sdp_gradient_clipping:
        given.append("sdp_gradient_clipping")
    if given:
        _warn_once(", ".join(given))


@functools.cache
def _warn_once(keys: str) -> None:
    log.warning("%s: no effect, because the model has no optimizer of smp: make an smp.DistributedOptimizer of its "
                "optimizer", keys)


def set_aside(model: Any) -> None:
    """Before a step: puts away gradients that reduce() must not sum again, since each tp rank has only its part. Zeros
    stay, so that the step adds to them: a second copy would take as many bytes as the gradients."""
    if model.passes == 0 and not model.reduced:
        for parameter in model.local_parameters():
            gradient = parameter.grad
            if (gradient is not None and state.mesh.size(axis_of(parameter)) != state.mesh.batches
                    and getattr(gradient, "_shoal_zero", None) != gradient._version):
                model.reduced.append((parameter, gradient))
                parameter.grad = None


def bring_back(model: Any) -> None:
    """After a step without backward: brings back what set_aside() has put away."""
    if model.passes == 0:
        for parameter, gradient in model.reduced:
            if parameter.grad is None:
                parameter.grad = gradient
        model.reduced = [(parameter, gradient) for parameter, gradient in model.reduced
                         if parameter.grad is not gradient]


def mark_zeros(parameters: Iterable[nn.Parameter]) -> None:
    """For set_aside(): the gradients are zeros, until something changes them."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad._shoal_zero = parameter.grad._version


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
        kinds.setdefault((axis_of(parameter), is_part(parameter), parameter.dtype, parameter.device), []).append(
            parameter)
    for (axis, *_), members in kinds.items():
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in members:
            nbytes = local(parameter).nbytes
            if bucket and size + nbytes > BUCKET_BYTES:
                yield axis, bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += nbytes
        if bucket:
            yield axis, bucket


@torch.no_grad()
def all_reduce(parameters: list[nn.Parameter]) -> None:
    """Makes the gradients of these parameters the mean over the step's distinct batches."""
    mesh = state.mesh
    running: deque = deque()

    def finish() -> None:
        flat, bucket, axes, work = running.popleft()
        if work is not None:
            work.wait()
        for axis in axes:
            dist.all_reduce(flat, group=mesh.group(axis))
        own = [local(p.grad) for p in bucket]
        sums = flat.split([g.numel() for g in own])
        torch._foreach_copy_(own, [part.view(g.shape) for part, g in zip(sums, own)])

    if mesh.size("dp") == 1:
        return
    for _, bucket in buckets(parameters):
        averaged = mesh.size("shard") if is_part(bucket[0]) else 1  # by fully_shard()
        flat = torch.cat([local(p.grad).reshape(-1) for p in bucket])
        flat.mul_(averaged / mesh.batches)  # before the sum, so that fp16 does not overflow
        axes = _axes_left(bucket[0])
        work = dist.all_reduce(flat, group=mesh.group(axes[0]), async_op=True) if axes else None
        running.append((flat, bucket, axes[1:], work))
        if len(running) > _IN_FLIGHT:
            finish()
    while running:
        finish()


# The norm. A parameter of a model comes with the model, whose optimizer may hold its gradients.

_Owned = tuple[nn.Parameter, Any]


def _segments(parameter: nn.Parameter, model: Any) -> list[torch.Tensor] | None:
    """The gradients of the parameter's f32 master or of its segments on this rank; None if it has neither."""
    optimizer = model.distributed_optimizer
    return None if optimizer is None else optimizer.gradients_of(parameter)


def _pieces(parameter: nn.Parameter, model: Any) -> list[torch.Tensor]:
    """The gradients on this rank that the optimizer sees of `parameter`: of itself, its f32 master or its segments."""
    found = _segments(parameter, model)
    if found is not None:
        return found
    return [] if parameter.grad is None else [local(parameter.grad)]


def _unscaled(parameter: nn.Parameter, model: Any) -> list[torch.Tensor]:
    """_pieces() without the loss scale, which a gradient that the optimizer does not see still has."""
    optimizer, found = model.distributed_optimizer, _pieces(parameter, model)
    scale = 1.0 if optimizer is None or optimizer.has(parameter) else optimizer.loss_scale
    return found if scale == 1.0 else [g.float() / scale for g in found]


def _is_counted(parameter: nn.Parameter, model: Any) -> bool:
    """False where another rank along _axes() counts the same values."""
    mesh = state.mesh
    if _axes() == ("world",):
        is_own = _segments(parameter, model) is not None or mesh.rank("rdp") == 0
    else:
        is_own = is_part(parameter) or mesh.rank("shard") == 0
    return is_own and (hasattr(parameter, "tp_split") or mesh.rank("tp") == 0)


def device_of_rank() -> torch.device:
    """Returns the device of the model's parameters on this rank. If it has none: the GPU, or else the CPU."""
    own = None if state.model is None else next(state.model.local_parameters(), None)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if own is None else own.device


def _axes() -> tuple[str, ...]:
    """Axes of the ranks that together have each gradient."""
    return ("world",) if state.cfg.sharding_level == 1 and state.mesh.size("rdp") > 1 else ("shard", "mp")


def over_parts(total: torch.Tensor, operation: Any) -> None:
    """Reduces `total` over the ranks that together have each gradient."""
    for axis in _axes():
        if state.mesh.size(axis) > 1:
            dist.all_reduce(total, operation, group=state.mesh.group(axis))


@torch.no_grad()
def _norm(owned: list[_Owned], norm_type: float) -> torch.Tensor:
    """The norm of the gradients of these parameters over all ranks: an f32 scalar, the same on each rank.

    Parameters of other pipeline ranks and parameters without a gradient add nothing. Each part of a split parameter and
    each segment counts. Identical copies count once.
    """
    norm_type = float(norm_type)
    counted = [g for p, model in owned if not p.is_meta and _is_counted(p, model) for g in _unscaled(p, model)]
    counted = [g for g in counted if g.numel()]
    device = counted[0].device if counted else device_of_rank()
    total = torch.zeros((), dtype=torch.float64, device=device)
    is_max = norm_type == float("inf")
    if counted:
        dtype = torch.float64 if any(g.dtype == torch.float64 for g in counted) else torch.float32
        norms = torch.stack([n.to(device) for n in torch._foreach_norm(counted, norm_type, dtype=dtype)])
        total = norms.double().max() if is_max else norms.double().pow(norm_type).sum()
    over_parts(total, dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM)
    return (total if is_max else total.pow(1 / norm_type)).float()


@torch.no_grad()
def _scale(owned: list[_Owned], max_norm: float, norm: torch.Tensor) -> None:
    scaled = [g for p, model in owned if not p.is_meta for g in _pieces(p, model)]
    if scaled:
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # as PyTorch computes it
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for gradient in scaled:
            by_device.setdefault(gradient.device, []).append(gradient)
        for device, members in by_device.items():
            torch._foreach_mul_(members, factor.to(device))


def clip_grad_norm_(parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float,
                    norm_type: float = 2.0) -> torch.Tensor:
    """Scales the gradients so that their norm over all ranks is max_norm at most; returns the norm before.

        norm = gradients.clip_grad_norm_(model.parameters(), 1.0)

    Like torch.nn.utils.clip_grad_norm_, for parameters of one or several models. Every rank of the job calls it for the
    same ones, with its own Parameter objects. max_norm may be inf.
    """
    install()
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def _prepare(owned: list[_Owned]) -> None:
    """Makes the gradients of these parameters' models ready. A rank may have none of the parameters that others clip,
    so with several models all ranks agree which models these are."""
    made = len(state.engine.models)
    if made == 1:
        numbers = {0}
    else:
        wanted = torch.zeros(made, dtype=torch.uint8, device=device_of_rank())
        wanted[sorted({model.number for _, model in owned})] = 1
        dist.all_reduce(wanted, dist.ReduceOp.MAX, group=state.mesh.group("world"))
        numbers = set(wanted.nonzero().flatten().tolist())
    for model in state.models():
        if model.number in numbers:
            if model.distributed_optimizer is None:
                reduce_pending(model)
            else:
                model.distributed_optimizer.update_master_grads()


# torch.nn.utils for a DistributedModel.

_MIXED = "these gradients are of a DistributedModel and of other modules: clip each by itself"


def _known() -> dict[int, _Owned]:
    """All models' parameters, by the ids of these and of those that were there before the model was cut."""
    found = {}
    for model in state.models():
        for parameter in model.parameters():
            found[id(parameter)] = found[id(getattr(parameter, "_shoal_was", parameter))] = parameter, model
    return found


def _own(parameters: list[nn.Parameter]) -> list[_Owned] | None:
    """Returns the parameters of DistributedModels among these, with their models. None: all are of other modules."""
    if state.model is None:
        return None
    known = _known()
    parameters = [getattr(p, "tp_part", p) for p in parameters]
    own = [known[id(p)] for p in parameters if id(p) in known]
    if parameters and not own:
        return None
    if any(p.grad is not None for p in parameters if id(p) not in known):
        raise ValueError(_MIXED)
    return own


def install() -> None:
    """Makes torch.nn.utils' norms and clipping correct for a DistributedModel's gradients. They treat other gradients
    as before."""
    if hasattr(clip_grad._get_total_norm, "shoal"):
        return
    total_norm, scale = clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_
    clip, clamp = clip_grad.clip_grad_norm_.__wrapped__, clip_grad.clip_grad_value_.__wrapped__

    @functools.wraps(clip)
    def with_parameters(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                        foreach: bool | None = None) -> torch.Tensor:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = _own(parameters)
        if own is None:
            return clip(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        _prepare(own)
        norm = _checked(_norm(own, norm_type), error_if_nonfinite)
        _scale(own, float(max_norm), norm)
        return norm

    @functools.wraps(clamp)
    def clamp_values(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = _own(parameters)
        if own is None:
            return clamp(parameters, clip_value, foreach)
        _prepare(own)
        for gradient in (g for p, model in own for g in _pieces(p, model)):
            gradient.clamp_(-float(clip_value), float(clip_value))

    @functools.wraps(total_norm)
    def _get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                        foreach: bool | None = None) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found = {id(p.grad): (p, model) for model in state.models() for p in model.local_parameters()
                 if p.grad is not None}
        if state.model is None or tensors and not any(id(t) in found for t in tensors):
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        if not all(id(t) in found for t in tensors):
            raise ValueError(_MIXED)
        if any(getattr(model.distributed_optimizer, "shards", None) for model in state.models()):
            raise ValueError("get_total_norm() does not see the gradients of a sharded optimizer state: call "
                             "torch.nn.utils.clip_grad_norm_() with the parameters; max_norm may be inf")
        own = [found[id(t)] for t in tensors]
        _prepare(own)
        return _checked(_norm(own, norm_type), error_if_nonfinite)

    @functools.wraps(scale)
    def _clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: torch.Tensor,
                               foreach: bool | None = None) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = _own(parameters)
        if own is None:
            scale(parameters, max_norm, total_norm, foreach)
        else:
            _scale(own, float(max_norm), total_norm)

    _get_total_norm.shoal = True  # type: ignore[attr-defined]
    clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_ = _get_total_norm, _clip_grads_with_norm_
    torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_ = _get_total_norm, _clip_grads_with_norm_
    # Scripts may have imported these by name already, so the function that each one wraps is replaced.
    for outer, inner, made in ((clip_grad.clip_grad_norm_, clip, with_parameters),
                               (clip_grad.clip_grad_value_, clamp, clamp_values)):
        next(cell for cell in outer.__closure__ if cell.cell_contents is inner).cell_contents = made


def _checked(norm: torch.Tensor, error_if_nonfinite: bool) -> torch.Tensor:
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(f"the norm of the gradients is {norm.item()}")
    return norm
