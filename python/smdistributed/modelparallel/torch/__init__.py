"""SageMaker's model parallelism for PyTorch models: shoal.torch.parallel under SageMaker's name."""
import sys
import types

from shoal.torch import parallel

# Register the same modules under both names, so that smp.state and smp.model are the same objects.
_ours = {name.removeprefix(f"{parallel.__name__}."): module for name, module in sys.modules.items()
         if name.startswith(f"{parallel.__name__}.")}
_ours |= {name: value for name, value in vars(parallel).items()
          if isinstance(value, types.ModuleType) and value.__name__.startswith(parallel.__name__)}
_ours["nn.huggingface"] = parallel.nn.huggingface
_ours |= {f"nn.huggingface.{family}": module for family, module in parallel.nn.huggingface.modules.items()}
sys.modules.update({f"{__name__}.{name}": module for name, module in _ours.items()})
sys.modules[__name__] = parallel
