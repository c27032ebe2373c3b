"""Importing this module registers torch.distributed's backend "smddp", which is Shoal's.

A job with `distribution={"smdistributed": {"dataparallel": {"enabled": True}}}` starts its ranks with mpirun. Like
SageMaker's library, this module sets torchrun's variables when it is imported.
"""
import functools
import os

from torch.nn.parallel import DistributedDataParallel

import shoal.torch
from shoal.torch import launcher


def _set_variables() -> None:
    launcher.set_variables()
    if "LOCAL_RANK" in os.environ:  # transformers reads the local rank under this name
        os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", os.environ["LOCAL_RANK"])


def _ignore_device_ids_of_cpu_modules() -> None:
    """Ignores device_ids of models on a CPU. transformers passes the local rank's GPU even on hosts without GPUs."""
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
