"""torch.distributed under the names of SageMaker's library up to version 1.3."""
import os

import torch.distributed as _dist
from torch.distributed import (  # noqa: F401
    ReduceOp, all_gather, all_reduce, all_to_all_single, barrier, broadcast, destroy_process_group, gather,
    get_rank, get_world_size, group, is_available, is_initialized, new_group, reduce, scatter)

from smdistributed.dataparallel.torch import torch_smddp  # noqa: F401  registers the backend


def init_process_group(backend: str = "smddp", *arguments, **named) -> None:
    _dist.init_process_group(backend, *arguments, **named)


def get_local_rank() -> int:
    return int(os.environ["LOCAL_RANK"])
