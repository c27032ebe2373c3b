"""The name of SageMaker's library up to 1.3 for DistributedDataParallel."""
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel  # noqa: F401
