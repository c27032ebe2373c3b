"""Parameters in parts over replicas (sharded_data_parallel_degree), by PyTorch's fully_shard().

The replicas of a shard group have one copy of the parameters together, cut along dimension 0. Parameters are whole
while their unit of the model runs. Backward sums a unit's gradients over the shard group; gradients.py sums them over
the copies once a step, as MiCS does (arXiv:2205.00119).
"""
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from shoal.torch.parallel.state import state

log = logging.getLogger("shoal.torch.parallel")


def is_part(tensor: torch.Tensor) -> bool:
    """True for a parameter, or its gradient, of which this rank has a part."""
    return isinstance(tensor, DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's elements."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def span(parameter: torch.Tensor) -> tuple[int, int]:
    """The elements [start, end) of the flattened parameter that this rank has."""
    if not is_part(parameter):
        return 0, parameter.numel()
    rows = parameter.shape[0]
    most = -(-rows // state.mesh.size("shard"))
    first = min(state.mesh.rank("shard") * most, rows)
    width = parameter.numel() // max(rows, 1)
    return first * width, min(first + most, rows) * width


@torch.no_grad()
def whole(parameter: torch.Tensor) -> torch.Tensor:
    """All elements. Every rank of the shard group calls it.

    DTensor.full_tensor() may take an equal DeviceMesh out of PyTorch's cache, whose groups an earlier shutdown() ended.
    """
    own = local(parameter).detach()
    if not is_part(parameter):
        return own
    ranks, shape = state.mesh.size("shard"), parameter.shape
    most = -(-shape[0] // ranks)
    padded = own.new_zeros(most, *shape[1:])
    padded[:len(own)] = own
    gathered = own.new_empty(ranks * most, *shape[1:])
    dist.all_gather_into_tensor(gathered, padded, group=state.mesh.group("shard"))
    return gathered[:shape[0]].clone()


@torch.no_grad()
def load(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Copies the whole value, or this rank's part of it. ValueError: it has another shape."""
    own = local(parameter)
    if value.shape == parameter.shape:
        start, end = span(parameter)
        value = value.reshape(-1)[start:end].view(own.shape)
    if value.shape != own.shape:
        raise ValueError(f"a value has the shape {list(value.shape)}, its parameter {list(parameter.shape)}: load a "
                         "state dict of this model")
    own.copy_(value)


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) or type(module).forward is nn.Module.forward


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists and sequences: blocks of a transformer, layers of a sequence."""
    for child in module.children():
        if _is_container(module) and type(child).forward is not nn.Module.forward:
            yield child
        else:
            yield from _units(child)


def _apart(model: nn.Module, small: set[nn.Parameter]) -> tuple[list[nn.Module], set[nn.Parameter]]:
    """Units that share no parameter with each other, and parameters that are not of units."""
    units = list(dict.fromkeys(_units(model)))
    owners = Counter(p for unit in units for p in set(unit.parameters()) - small)
    units = [unit for unit in units if all(owners[p] <= 1 for p in unit.parameters())]
    inside = {id(module) for unit in units for module in unit.modules()}
    rest = {p for module in model.modules() if id(module) not in inside for p in module.parameters(recurse=False)}
    apart = small | rest
    return [unit for unit in units if not apart.issuperset(unit.parameters())], apart


def reset(root: FSDPModule) -> None:
    """Ends a forward or backward that failed, so that the next one runs as usual. Gradients in parts are dropped."""
    if root._get_fsdp_state()._is_root is None:
        return  # no forward has begun
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
    else:
        _reset_older(root._get_fsdp_state())


def _reset_older(root: Any) -> None:
    """Does the work of reset_iter_state() in versions of PyTorch that lack it."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    for one in root._state_ctx.all_states:
        one._training_state = TrainingState.IDLE
        if (group := one._fsdp_param_group) is None:
            continue
        group.wait_for_unshard()
        for parameter in group.fsdp_params:
            parameter.sharded_param.grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None
        group._training_state = TrainingState.IDLE
        group._post_forward_indices.clear()
        group.reshard()
    root._comm_ctx.post_forward_order.clear()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def shard(model: nn.Module) -> list[FSDPModule]:
    """Cuts the model's parameters over the shard group; returns its units, the model itself last.

    Parameters of sdp_param_persistence_threshold elements at most stay whole. Without larger ones there are no units.
    With SHARD_GRAD_OP parameters stay gathered from a unit's forward to its backward.
    """
    cfg, mesh = state.cfg, state.mesh
    owners = [(module, name, p) for module in model.modules() for name, p in module._parameters.items()
              if p is not None]
    small = {p for _, _, p in owners if p.dim() == 0 or p.numel() <= cfg.sdp_param_persistence_threshold}
    if len(small) == len({p for _, _, p in owners}):
        log.warning("no parameter has more than sdp_param_persistence_threshold = %d elements, so none is sharded",
                    cfg.sdp_param_persistence_threshold)
        return []
    for _, _, p in owners:
        p.data = p.data.contiguous()
    units, apart = _apart(model, small)
    device = next(model.parameters()).device.type
    on = DeviceMesh.from_group(mesh.group("shard"), device, mesh_dim_names=("shard",))
    sizes = []
    for unit in units:
        sizes.append(sum(p.numel() for p in unit.parameters() if p not in apart))
        fully_shard(unit, mesh=on, reshard_after_forward=cfg.sharding_level == 3, ignored_params=apart)
    rest = sum(p.numel() for p in model.parameters() if not is_part(p) and p not in small)
    fully_shard(model, mesh=on, reshard_after_forward=None if cfg.sharding_level == 3 else False, ignored_params=small)
    for before, size, unit in zip(sizes, sizes[1:], units[1:]):
        if rest + before + size > cfg.sdp_max_live_parameters:
            unit.set_modules_to_backward_prefetch([unit])  # instead of the one before
    for module, name, old in owners:
        new = module._parameters[name]
        if new is not old:
            new.__dict__.update(old.__dict__)
            new._shoal_was = old  # optimizers may hold it
            old.data = torch.empty(0, dtype=old.dtype, device=old.device)
    return [*units, model]
