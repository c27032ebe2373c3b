"""Ranks, sizes and groups by SMP's names, and messages of objects between ranks."""
import enum
import os
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch.parallel.mesh import Mesh
from shoal.torch.parallel.state import state


class CommGroup(enum.Enum):
    """The groups for barrier(), broadcast() and allgather()."""

    WORLD = "world"
    MP_GROUP = "mp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    DP_GROUP = "dp"
    RDP_GROUP = "rdp"


class RankType(enum.Enum):
    """How send() and recv_from() number the other rank: globally, or within this rank's group along an axis."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    DP_RANK = "dp"
    RDP_RANK = "rdp"


WORLD = CommGroup.WORLD


def _mesh() -> Mesh:
    mesh = state.require().mesh
    assert mesh is not None
    return mesh


def rank() -> int:
    """This rank's index among all ranks of the job."""
    return _mesh().rank("world")


def size() -> int:
    """The number of ranks in the job."""
    return _mesh().size("world")


def local_rank() -> int:
    """This rank's index on its host: the launcher's number if there is one."""
    mesh = _mesh()
    return int(os.environ.get("LOCAL_RANK", mesh.rank("local")))


def local_size() -> int:
    """The number of ranks on this host."""
    return _mesh().size("local")


def mp_rank() -> int:
    """This rank's index among those that hold one replica of the model (pp x tp)."""
    return _mesh().rank("mp")


def mp_size() -> int:
    """The number of ranks that hold one replica of the model."""
    return _mesh().size("mp")


def pp_rank() -> int:
    """This rank's index in its pipeline: the partition that it holds."""
    return _mesh().rank("pp")


def pp_size() -> int:
    """The number of partitions in the pipeline."""
    return _mesh().size("pp")


def tp_rank() -> int:
    """This rank's index among those that share each layer."""
    return _mesh().rank("tp")


def tp_size() -> int:
    """The number of ranks that share each layer."""
    return _mesh().size("tp")


def dp_rank() -> int:
    """This rank's index among those that may see different samples (rdp x tp)."""
    return _mesh().rank("dp")


def dp_size() -> int:
    """The number of ranks that may see different samples."""
    return _mesh().size("dp")


def rdp_rank() -> int:
    """The index of the replica of the whole model that this rank belongs to."""
    return _mesh().rank("rdp")


def rdp_size() -> int:
    """The number of replicas of the whole model."""
    return _mesh().size("rdp")


def get_world_group() -> list[int]:
    """The global ranks of the job."""
    return _mesh().ranks("world")


def get_mp_group() -> list[int]:
    """The global ranks of this rank's mp group, ascending. The next functions return lists in the same order."""
    return _mesh().ranks("mp")


def get_pp_group() -> list[int]:
    """The global ranks of this rank's pipeline."""
    return _mesh().ranks("pp")


def get_tp_group() -> list[int]:
    """The global ranks that share each layer with this one."""
    return _mesh().ranks("tp")


def get_dp_group() -> list[int]:
    """The global ranks of this rank's dp group."""
    return _mesh().ranks("dp")


def get_rdp_group() -> list[int]:
    """The global ranks that hold the same part of the model as this rank."""
    return _mesh().ranks("rdp")


def get_world_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of all ranks."""
    return _mesh().group("world")


def get_mp_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of get_mp_group()."""
    return _mesh().group("mp")


def get_pp_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of get_pp_group()."""
    return _mesh().group("pp")


def get_tp_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of get_tp_group()."""
    return _mesh().group("tp")


def get_dp_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of get_dp_group()."""
    return _mesh().group("dp")


def get_rdp_process_group() -> dist.ProcessGroup:
    """torch.distributed's group of get_rdp_group()."""
    return _mesh().group("rdp")


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Waits until every rank of `group` has called it."""
    dist.barrier(group=_mesh().group(group.value))


def dp_barrier() -> None:
    """barrier() of the dp group."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """barrier() of the mp group."""
    barrier(CommGroup.MP_GROUP)


def pp_barrier() -> None:
    """barrier() of the pp group."""
    barrier(CommGroup.PP_GROUP)


def tp_barrier() -> None:
    """barrier() of the tp group."""
    barrier(CommGroup.TP_GROUP)


def rdp_barrier() -> None:
    """barrier() of the rdp group."""
    barrier(CommGroup.RDP_GROUP)


def send(obj: Any, dest_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Sends a picklable object to another rank, which must call recv_from(). ValueError: no such rank.

        smp.send({"loss": loss}, 1, smp.RankType.PP_RANK)
    """
    dist.send_object_list([_packed(obj)], dst=_global(dest_rank, rank_type))


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Returns the next object that the other rank sends with send() or broadcast(). ValueError: no such rank."""
    received = [None]
    dist.recv_object_list(received, src=_global(src_rank, rank_type))
    return received[0]


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Sends an object to every other rank of `group`. Each of them must call recv_from()."""
    packed, me = _packed(obj), rank()
    for other in _mesh().ranks(group.value):
        if other != me:
            dist.send_object_list([packed], dst=other)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Returns the objects of all ranks of `group`, in rank order. Tensors may differ in shape.

        smp.allgather(logits, smp.CommGroup.DP_GROUP)   # dp_size() tensors
    """
    gathered: list[Any] = [None] * _mesh().size(group.value)
    dist.all_gather_object(gathered, _packed(obj), group=_mesh().group(group.value))
    return gathered


def _global(index: int, rank_type: RankType) -> int:
    ranks = _mesh().ranks(rank_type.value)
    if not 0 <= index < len(ranks):
        raise ValueError(f"there is no rank {index} along {rank_type.value}, which has ranks 0 to {len(ranks) - 1}")
    if ranks[index] == rank():
        raise ValueError(f"{rank_type.value} rank {index} is this rank itself: name another one")
    return ranks[index]


def _packed(obj: Any) -> Any:
    """Detaches a tensor from its graph and copies it out of a larger storage. Returns other objects unchanged."""
    if not isinstance(obj, torch.Tensor):
        return obj
    obj = obj.detach()
    return obj.clone() if obj.untyped_storage().nbytes() > obj.numel() * obj.element_size() else obj
