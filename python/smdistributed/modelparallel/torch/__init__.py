"""SageMaker's model parallelism for PyTorch models: shoal.torch.parallel under SageMaker's name."""
import sys

from shoal.torch import parallel

# The same modules under both names, so that smp.state and smp.model are the same objects.
for _name, _module in list(sys.modules.items()):
    if _name == parallel.__name__ or _name.startswith(f"{parallel.__name__}."):
        sys.modules[__name__ + _name.removeprefix(parallel.__name__)] = _module
