"""torch.distributed's backend "shoal", for tensors of CPUs and CUDA devices. Importing this module registers it.

    import shoal.torch
    torch.distributed.init_process_group("shoal")
"""
import atexit
import os

import torch
import torch.distributed as dist

os.environ.setdefault("SHOAL_LOG", "warn")  # read when the library loads; a library logs little by default


def _check_pytorch() -> None:
    try:
        from shoal._built_for import TORCH as built_for
    except ImportError:  # a build directory; it is used with the PyTorch that it was built for
        return
    again = "install shoal again in this environment (docs/guides/pytorch.md)"
    if built_for is None:
        raise ImportError(f"this shoal was built where PyTorch was missing, so it has no backend: {again}")
    if built_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(f"this shoal was built for PyTorch {built_for}, but this is {torch.__version__}: {again}")


_check_pytorch()
from shoal import _torch  # noqa: E402
from shoal._torch import ProcessGroupShoal  # noqa: E402

__all__ = ["ProcessGroupShoal", "register", "register_smddp"]


def _create(group, options):
    if options is not None and getattr(options, "_timeout", None) is not None:
        group.timeout = options._timeout
    # DDP then allocates its buckets with the backend's allocate_tensor(), so all_reduce need not copy them.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    return _torch.create(group)


def _leave_out_flight_recorder(name: str) -> None:
    """Keeps PyTorch 2.15's flight recorder from recording Shoal's calls: each record of Python's stack takes 3 us.
    Shoal has a recorder of its own."""
    asked_for = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    if not any(os.environ.get(variable) for variable in asked_for):
        getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(name)


def _register(name: str) -> None:
    _leave_out_flight_recorder(name)
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])


def register() -> None:
    """Registers the backend. Further calls have no effect. PyTorch's entry point calls this function."""
    _register("shoal")


def register_smddp() -> None:
    """Registers the same backend under the name of SageMaker's library, "smddp"."""
    _register("smddp")


def _end(owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not close its parent's groups
        _torch.close_all_groups()


register()
atexit.register(_end, os.getpid())
