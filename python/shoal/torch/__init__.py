"""torch.distributed's backend "shoal", for CPU tensors. Importing this module registers it.

    import shoal.torch
    torch.distributed.init_process_group("shoal")
"""
import atexit
import os

import torch
import torch.distributed as dist

from shoal import _signals

os.environ.setdefault("SHOAL_LOG", "warn")  # a library is quiet unless asked; read when it loads


def _check_pytorch() -> None:
    try:
        from shoal._built_for import TORCH as built_for
    except ImportError:  # a build directory, which belongs to one PyTorch
        return
    again = "install shoal again in this environment (docs/pytorch.md)"
    if built_for is None:
        raise ImportError(f"this shoal was built where PyTorch was missing, so it has no backend: {again}")
    if built_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(f"this shoal was built for PyTorch {built_for}, but this is {torch.__version__}: {again}")


_check_pytorch()
with _signals.kept():
    from shoal import _torch
from shoal._torch import ProcessGroupShoal  # noqa: E402

__all__ = ["ProcessGroupShoal", "register", "register_smddp"]


def _create(group, options):
    if options is not None and getattr(options, "_timeout", None) is not None:
        group.timeout = options._timeout
    # DDP then allocates its buckets by the backend's allocate_tensor(), so that all_reduce copies nothing.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    return _torch.create(group)


def _leave_out_flight_recorder(name: str) -> None:
    """PyTorch 2.15's records each call of a backend with Python's stack, 3 us; Shoal has its own."""
    asked_for = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    if not any(os.environ.get(variable) for variable in asked_for):
        getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(name)


def _register(name: str) -> None:
    _leave_out_flight_recorder(name)
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])


def register() -> None:
    """Registers the backend; does nothing the second time. PyTorch's entry point calls it."""
    _register("shoal")


def register_smddp() -> None:
    """Registers the same backend under the name of SageMaker's library, "smddp"."""
    _register("smddp")


def _end(owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, whose parent's groups these are
        _torch.close_all_groups()


register()
atexit.register(_end, os.getpid())
