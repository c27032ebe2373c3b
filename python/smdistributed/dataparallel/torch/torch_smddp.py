"""Importing this module registers torch.distributed's backend "smddp", which is Shoal's.

A job with `distribution={"smdistributed": {"dataparallel": {"enabled": True}}}` starts its ranks with
mpirun, and SageMaker's library gives them torchrun's variables at this import. So does this module.
"""
import functools
import json
import os

from torch.nn.parallel import DistributedDataParallel

import shoal.torch

# torchrun's variables and where Open MPI has them.
_FROM_MPI = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
_PORT = "29500"  # torchrun's


def _master() -> str | None:
    hosts = json.loads(os.environ.get("SM_HOSTS", "[]"))
    if hosts:
        return sorted(hosts)[0]
    return "127.0.0.1" if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] else None


def _set_variables() -> None:
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:
        for name, theirs in _FROM_MPI.items():
            os.environ[name] = os.environ[f"OMPI_COMM_WORLD_{theirs}"]
        if "MASTER_ADDR" not in os.environ and (master := _master()):
            os.environ["MASTER_ADDR"] = master
        os.environ.setdefault("MASTER_PORT", _PORT)
    if "LOCAL_RANK" in os.environ:  # transformers reads it under this name
        os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", os.environ["LOCAL_RANK"])


def _ignore_device_ids_of_cpu_modules() -> None:
    """transformers gives each rank's model the GPU of its local rank; a host without GPUs has none."""
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self, module, device_ids=None, output_device=None, *arguments, **named):
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = output_device = None
        original(self, module, device_ids, output_device, *arguments, **named)

    DistributedDataParallel.__init__ = init


_set_variables()
shoal.torch.register_smddp()
_ignore_device_ids_of_cpu_modules()
