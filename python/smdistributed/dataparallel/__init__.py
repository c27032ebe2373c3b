"""SageMaker's data parallelism: torch.distributed's backend smddp."""
from shoal import __version__ as __version__
