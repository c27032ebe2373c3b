"""DistributedDataParallel under the name of SageMaker's library up to version 1.3."""
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel  # noqa: F401
