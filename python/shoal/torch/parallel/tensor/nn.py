"""`smp.nn`: distributed modules for building models."""
import torch

from shoal.torch.parallel.tensor import huggingface
from shoal.torch.parallel.tensor.layers import (DistributedEmbedding, DistributedLayerNorm, DistributedLinear,
                                                DistributedModule)
from shoal.torch.parallel.tensor.transformer import (DistributedAttentionLayer, DistributedTransformer,
                                                     DistributedTransformerLayer, DistributedTransformerLMHead,
                                                     DistributedTransformerOutputLayer)

__all__ = ["DistributedAttentionLayer", "DistributedEmbedding", "DistributedLayerNorm", "DistributedLinear",
           "DistributedModule", "DistributedTransformer", "DistributedTransformerLMHead", "DistributedTransformerLayer",
           "DistributedTransformerOutputLayer", "FusedLayerNorm", "huggingface"]

FusedLayerNorm = torch.nn.LayerNorm
