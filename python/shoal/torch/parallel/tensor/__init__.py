"""Tensor parallelism: layers split over the tp group, and the rules for which modules of a model they replace."""
from shoal.torch.parallel.tensor import nn
from shoal.torch.parallel.tensor.functions import TensorParallel, TensorSplit
from shoal.torch.parallel.tensor.registry import (distribute, set_tensor_parallelism, split_state_dict,
                                                  tensor_parallelism, tp_register, tp_register_with_module,
                                                  whole_state_dict)

__all__ = ["TensorParallel", "TensorSplit", "distribute", "nn", "set_tensor_parallelism", "split_state_dict",
           "tensor_parallelism", "tp_register", "tp_register_with_module", "whole_state_dict"]
