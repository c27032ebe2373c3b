"""Runs a script, unchanged, with Shoal in gloo's place.

    torchrun --nproc_per_node 2 -m shoal.run script.py ARGUMENT...

Accelerate and Hugging Face's Trainer always choose gloo for CPUs. Under mpirun this module also sets torchrun's
variables, as SageMaker's library does.
"""
import os
import runpy
import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import shoal.torch
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  sets torchrun's variables


class _InGloosPlace(type):
    """The class ProcessGroupGloo for PyTorch up to 2.13, which makes gloo's groups itself, without a plug-in."""

    def __call__(cls, store, rank, size, timeout=c10d.default_pg_timeout):
        group = c10d._DistributedBackendOptions()
        group.store, group.group_rank, group.group_size, group.timeout = store, rank, size, timeout
        return shoal.torch._create(group, None)

    def __instancecheck__(cls, value):
        return isinstance(value, (dist.ProcessGroupGloo, shoal.torch.ProcessGroupShoal))


def replace_gloo() -> None:
    """From now on, process groups that ask for gloo get Shoal's backend under gloo's name."""
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # 2.14: gloo is a plug-in like others
        dist.Backend.register_backend("gloo", shoal.torch._create, extended_api=True, devices=["cpu", "cuda"])
    elif hasattr(torch._C._distributed_c10d.Backend.Options, "group_name"):  # PyTorch sets it in gloo's options
        c10d.ProcessGroupGloo = _InGloosPlace("ProcessGroupGloo", (), {})
    else:
        raise RuntimeError(f"PyTorch {torch.__version__} cannot put Shoal in gloo's place: use 2.9 or newer, or "
                           'name the backend "shoal" in the script')


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr if len(sys.argv) < 2 else sys.stdout)
        raise SystemExit(2 if len(sys.argv) < 2 else 0)
    replace_gloo()
    if not torch.cuda.is_available():
        # Without this, accelerate trains each rank by itself unless the user asks for CPUs.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # as if Python ran the script directly
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
