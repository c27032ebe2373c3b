"""`smp.nn`: distributed modules for building models."""
from shoal.torch.parallel.tensor.layers import (DistributedEmbedding, DistributedLayerNorm, DistributedLinear,
                                                DistributedModule)
from shoal.torch.parallel.tensor.transformer import (DistributedAttentionLayer, DistributedTransformer,
                                                     DistributedTransformerLayer, DistributedTransformerLMHead,
                                                     DistributedTransformerOutputLayer)

__all__ = ["DistributedAttentionLayer", "DistributedEmbedding", "DistributedLayerNorm", "DistributedLinear",
           "DistributedModule", "DistributedTransformer", "DistributedTransformerLMHead", "DistributedTransformerLayer",
           "DistributedTransformerOutputLayer"]
