from torch.nn.parallel import DistributedDataParallel  # noqa: F401

from smdistributed.dataparallel.torch import torch_smddp  # noqa: F401  registers the backend
