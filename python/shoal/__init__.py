"""Shoal: distributed training. `import shoal.torch` registers torch.distributed's backend "shoal"."""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("shoal")
except PackageNotFoundError:  # imported from a build directory
    __version__ = "0+build"
