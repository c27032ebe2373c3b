"""The ranks of a job as a mesh with axes rdp, pp and tp, and a process group for each group of ranks."""
import os
import socket
import uuid
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from shoal.torch.parallel.config import Config, _native

AXES = ("tp", "pp", "rdp", "mp", "dp")
_AS_LONG_AS_A_STEP = timedelta(days=365)  # a rank that ends or stops is nevertheless noticed (messages.py)


class Shape(NamedTuple):
    """The number of ranks along each axis, or one rank's index along each."""

    rdp: int
    pp: int
    tp: int


class Mesh:
    """This rank's position along each axis, and its groups.

        mesh.size("pp"), mesh.rank("pp"), mesh.ranks("pp")   # 4, 1, [0, 1, 2, 3]
        dist.all_reduce(tensor, group=mesh.group("dp"))

    An axis is "tp", "pp" or "rdp" (replicas of the whole model); "mp" (pp x tp: one replica's ranks); "dp"
    (rdp x tp: ranks that may see different samples); "shard" (replicas that share one copy of the parameters, with
    sharded_data_parallel_degree) and "copies" (those that have the same part); "local" (this host's ranks); or "world".

    `job` names this mesh on all of its ranks, and no other mesh.

    Collective: every rank of the default process group makes the mesh at the same time. ValueError if the
    degrees do not divide the number of ranks.
    """

    def __init__(self, config: Config) -> None:
        world = dist.get_world_size()
        degrees = config.pipeline_parallel_degree, config.tensor_parallel_degree
        self.shape = Shape(*_native.mesh_shape(world, *degrees))
        placement = _native.Placement(config.placement_strategy)
        me = dist.get_rank()
        self.place = Shape(*placement.place_of(me, self.shape))
        local, self.job = _meet()
        self._ranks = {"world": list(range(world)), "local": local}
        for axis in AXES:
            self._ranks[axis] = placement.group(me, axis, self.shape)
        degree = _sharding_degree(config, self.shape.rdp)
        place, replicas = self.place.rdp, self._ranks["rdp"]
        self._ranks["shard"] = replicas[place // degree * degree:][:degree]
        self._ranks["copies"] = replicas[place % degree::degree]
        self._groups = self._make_groups()
        self.batch_axis = "rdp" if config.prescaled_batch else "dp"

    def _make_groups(self) -> dict[str, dist.ProcessGroup]:
        # The groups of one axis are disjoint. Every rank makes the axes' groups in the same order.
        made = {tuple(self._ranks["world"]): dist.group.WORLD}
        groups = {}
        for axis, ranks in self._ranks.items():
            if axis == "shard" and len(ranks) == 1:
                continue  # nothing is sharded
            key = tuple(ranks)
            if key not in made:
                made[key] = dist.new_group(ranks, timeout=timedelta(seconds=self.deadline_seconds()),
                                           use_local_synchronization=True, group_desc=f"shoal_{axis}")
            groups[axis] = made[key]
        self.made = [group for group in made.values() if group is not dist.group.WORLD]
        return groups

    def patient_group(self, axis: str) -> dist.ProcessGroup:
        """Internal. A new group of the ranks of group(axis), whose messages may take as long as a step. All of them
        call it."""
        made = dist.new_group(self._ranks[axis], timeout=_AS_LONG_AS_A_STEP, use_local_synchronization=True,
                              group_desc=f"shoal_patient_{axis}")
        self.made.append(made)
        return made

    @staticmethod
    def deadline_seconds() -> float:
        """Internal. The time-out of the default process group, and so of all groups but the patient ones."""
        world, cpu = dist.group.WORLD, torch.device("cpu")
        backend = world._get_backend(cpu) if cpu in world._device_types else None
        options = getattr(backend, "options", None)
        timeout = getattr(options, "_timeout", dist.default_pg_timeout)
        return getattr(backend, "deadline_seconds", timeout.total_seconds())

    def size(self, axis: str) -> int:
        """The number of ranks in this rank's group along `axis`."""
        return len(self._ranks[axis])

    def rank(self, axis: str) -> int:
        """This rank's index in its group along `axis`. A group lists its global ranks in ascending order."""
        return self._ranks[axis].index(dist.get_rank())

    def ranks(self, axis: str) -> list[int]:
        """The global ranks of this rank's group along `axis`, ascending."""
        return list(self._ranks[axis])

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of this rank's group along `axis`; none for "shard" where nothing is sharded. Axes with the
        same ranks share a process group."""
        return self._groups[axis]

    @property
    def batches(self) -> int:
        """The number of distinct batches in a step. This rank's batch has the index `rank(batch_axis)`."""
        return self.size(self.batch_axis)


def _sharding_degree(config: Config, replicas: int) -> int:
    """The number of replicas over which each parameter is sharded."""
    if config.sharding_level < 2:
        return 1
    degree = config.sharded_data_parallel_degree or replicas
    if replicas % degree:
        raise ValueError(f"sharded_data_parallel_degree is {degree}, which does not divide the {replicas} replicas: "
                         "give a degree that divides them, or start more ranks")
    return degree


def _meet() -> tuple[list[int], str]:
    """This host's ranks, and a name that rank 0 has made up."""
    # torchrun may start several groups on one host, each with its own local ranks.
    here = socket.gethostname(), os.environ.get("GROUP_RANK", "")
    everywhere: list = [(here, uuid.uuid4().hex)] * dist.get_world_size()
    dist.all_gather_object(everywhere, everywhere[0])
    return [rank for rank, (host, _) in enumerate(everywhere) if host == here], everywhere[0][1]
