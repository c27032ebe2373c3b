"""Shoal: distributed training. `import shoal.torch` registers torch.distributed's backend "shoal"; `shoal.train` and
`shoal.generate` run Shoal's own engine, which needs no PyTorch."""
from importlib.metadata import PackageNotFoundError, version

from shoal.native import generate, train

__all__ = ["__version__", "generate", "train"]

try:
    __version__ = version("shoal")
except PackageNotFoundError:  # imported from a build directory
    __version__ = "0+build"
