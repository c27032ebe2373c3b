"""Contexts in which a script makes its model: they set the parameters' dtype and select modules for tensor parallelism.
"""
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

_log = logging.getLogger("shoal.torch.parallel")


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


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Accepted for compatibility with SMP, without effect. Every rank initializes the whole model at once and keeps its
    part when the model is cut. A warning is logged."""
    if enabled:
        _log.warning("delay_param_initialization has no effect: each rank makes the whole model and keeps its part "
                     "when it is cut")
    yield
