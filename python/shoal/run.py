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

import shoal.torch
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  sets torchrun's variables


def replace_gloo() -> None:
    """From now on, process groups that ask for gloo get Shoal's backend under gloo's name."""
    if not hasattr(dist.Backend, "_ensure_backend_registered"):  # PyTorch 2.14 added it: gloo is then a plug-in like
                                                                 # other backends
        raise RuntimeError(f"PyTorch {torch.__version__} makes gloo's groups itself: use 2.14 or newer, or "
                           'name the backend "shoal" in the script')
    dist.Backend.register_backend(dist.Backend.GLOO, shoal.torch._create, extended_api=True, devices=["cpu", "cuda"])


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
