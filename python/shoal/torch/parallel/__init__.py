"""Model parallelism for PyTorch models, by the names of SageMaker's library (SMP).

    import smdistributed.modelparallel.torch as smp   # or: from shoal.torch import parallel as smp
    smp.init({"partitions": 2, "microbatches": 4, "ddp": True})
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def train_step(model, inputs, labels):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        model.backward(loss)
        return loss

    loss = train_step(model, inputs, labels).reduce_mean()
    optimizer.step()
"""
import importlib
from typing import Any

from shoal.torch.parallel.config import Config
from shoal.torch.parallel.creation import delay_param_initialization, model_creation
from shoal.torch.parallel.mesh import Mesh
from shoal.torch.parallel.objects import (
    WORLD, CommGroup, RankType, allgather, barrier, broadcast, dp_barrier, dp_rank, dp_size, get_dp_group,
    get_dp_process_group, get_mp_group, get_mp_process_group, get_pp_group, get_pp_process_group, get_rdp_group,
    get_rdp_process_group, get_tp_group, get_tp_process_group, get_world_group, get_world_process_group, local_rank,
    local_size, mp_barrier, mp_rank, mp_size, pp_barrier, pp_rank, pp_size, rank, rdp_barrier, rdp_rank, rdp_size,
    recv_from, send, size, tp_barrier, tp_rank, tp_size)
from shoal.torch.parallel.state import init, is_initialized, is_tracing, shutdown, state

__all__ = [
    "CommGroup", "Config", "Mesh", "RankType", "WORLD", "allgather", "barrier", "broadcast",
    "delay_param_initialization", "dp_barrier", "dp_rank", "dp_size", "get_dp_group", "get_dp_process_group",
    "get_mp_group", "get_mp_process_group", "get_pp_group", "get_pp_process_group", "get_rdp_group",
    "get_rdp_process_group", "get_tp_group", "get_tp_process_group", "get_world_group", "get_world_process_group",
    "init", "is_initialized", "is_tracing", "local_rank", "local_size", "model_creation", "mp_barrier", "mp_rank",
    "mp_size", "pp_barrier", "pp_rank", "pp_size", "rank", "rdp_barrier", "rdp_rank", "rdp_size", "recv_from",
    "send", "shutdown", "size", "state", "tp_barrier", "tp_rank", "tp_size"]

_PARTS = {
    "model": ("DistributedModel",),
    "step": ("step", "StepOutput"),
    "partition": ("partition", "set_partition"),
    "tensor": ("tensor_parallelism", "set_tensor_parallelism", "tp_register", "tp_register_with_module", "nn"),
    "optimizer": ("DistributedOptimizer",),
    "amp": (),
    "activations": ("set_activation_checkpointing", "checkpoint", "checkpoint_sequential"),
    "checkpoint": ("save", "load", "save_checkpoint", "resume_from_checkpoint"),
}
_missing: dict[str, str] = {}


def _add(part: str, names: tuple[str, ...]) -> None:
    path = f"{__name__}.{part}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as problem:
        if problem.name != path:
            raise
        module = None
    for name in names:
        if hasattr(module, name):  # a function may have its module's name
            globals()[name] = getattr(module, name)
            __all__.append(name)
        else:
            _missing[name] = path


for _part, _names in _PARTS.items():
    _add(_part, _names)


def __getattr__(name: str) -> Any:
    if name in _missing:
        raise ImportError(f"shoal.torch.parallel.{name} is not in this version: {_missing[name]} has no such name")
    raise AttributeError(f"module {__name__} has no attribute {name}")
