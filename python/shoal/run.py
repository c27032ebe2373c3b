"""Runs a script, unchanged, with Shoal in gloo's place.

    torchrun --nproc_per_node 2 -m shoal.run script.py ARGUMENT...

Accelerate and Hugging Face's Trainer choose gloo for CPUs, whatever is installed. Under mpirun it sets
torchrun's variables, as SageMaker's library does.
"""
import os
import runpy
import sys

import torch
import torch.distributed as dist

import shoal.torch
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  sets torchrun's variables


def replace_gloo() -> None:
    """Process groups that this process asks gloo for from now on are Shoal's, under gloo's name."""
    if not hasattr(dist.Backend, "_ensure_backend_registered"):  # for which gloo is a plug-in as all others
        raise RuntimeError(f"PyTorch {torch.__version__} makes gloo's groups itself: use 2.14 or newer, or "
                           'name the backend "shoal" in the script')
    dist.Backend.register_backend(dist.Backend.GLOO, shoal.torch._create, extended_api=True, devices=["cpu", "cuda"])


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr if len(sys.argv) < 2 else sys.stdout)
        raise SystemExit(2 if len(sys.argv) < 2 else 0)
    replace_gloo()
    if not torch.cuda.is_available():
        # Without it accelerate trains on every rank alone, unless the script's user asks for CPUs.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # as where Python runs the script itself
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
