"""Contexts in which a script makes its model: they set the parameters' dtype and select modules for tensor parallelism.
"""
import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def model_creation(tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **config: Any) -> Iterator[None]:
    """Makes a model whose modules tensor parallelism may split, with parameters of `dtype`.

        with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=torch.bfloat16):
            model = AutoModelForCausalLM.from_config(config)

    tensor_parallelism, config: as smp.tensor_parallelism(). dtype: None leaves PyTorch's default.
    """
    from shoal.torch.parallel import tensor

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with tensor.tensor_parallelism(tensor_parallelism, **config):
            yield
    finally:
        torch.set_default_dtype(before)


def delay_param_initialization(enabled: bool = True) -> contextlib.AbstractContextManager[None]:
    """Makes a model whose parameters get their values in DistributedModel(), each on the ranks that own it.

        with smp.delay_param_initialization():
            model = AutoModelForCausalLM.from_config(config)
        model = smp.DistributedModel(model)

    Until then they are meta tensors. The values are those of a model that is made without this context, and so are the
    random numbers after it. DistributedModel() cuts the model at once, by numbers of parameters unless the script
    assigns its modules. Parameters have their values from the start if they have less than 64 KiB, or if their values
    depend on other tensors or on a generator of the script. Do not keep parameters, or numpy arrays of them, from
    within the context: the model has other tensors after it.
    """
    from shoal.torch.parallel import delayed

    return delayed.delaying() if enabled else contextlib.nullcontext()
