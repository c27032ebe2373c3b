"""SMP's transformer modules, split over the tensor-parallel group, for models built with `smp.nn`.

They follow the reference implementations in SMP's documentation. Masks are added to the attention
scores: 0 for a visible position, a large negative number for a hidden one.
"""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.torch.parallel.state import state
from shoal.torch.parallel.tensor.functions import (TensorParallel, enter, gather_samples, gather_sequence,
                                                   own_random_numbers, split_sequence)
from shoal.torch.parallel.tensor.layers import (ColumnLinear, DistributedEmbedding, DistributedLayerNorm,
                                                DistributedModule, RowLinear, VocabularyHead, _divide,
                                                vocabulary_cross_entropy)

_ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}


def _initialize(linear: nn.Linear, initializer_range: float, use_normal_initialization: bool) -> nn.Linear:
    if use_normal_initialization:
        nn.init.normal_(linear.weight, std=initializer_range)
        nn.init.zeros_(linear.bias)
    return linear


class _Normed(DistributedModule):
    """The base of SMP's layers: normalizes their input, their output after the residual connection, or both."""

    tp_whole = True  # partitions do not cut between enter() and leave()

    def __init__(self, hidden_size: int, layernorm_epsilon: float, pre_layernorm: bool, post_layernorm: bool,
                 tp: TensorParallel | None) -> None:
        super().__init__(tp)
        if not pre_layernorm and not post_layernorm:
            raise ValueError(f"{type(self).__name__}: at least one of pre_layernorm and post_layernorm must be True")
        self.pre_layernorm = self._norm(hidden_size, layernorm_epsilon) if pre_layernorm else None
        self.layernorm = self._norm(hidden_size, layernorm_epsilon) if post_layernorm else None

    def _norm(self, hidden_size: int, epsilon: float) -> DistributedLayerNorm:
        return DistributedLayerNorm(hidden_size, eps=epsilon, tp=self.tp)

    def _before(self, x: Tensor) -> Tensor:
        return x if self.pre_layernorm is None else self.pre_layernorm(x)

    def _after(self, x: Tensor, residual: Tensor) -> Tensor:
        return x if self.layernorm is None else self.layernorm(x + residual)


class DistributedAttentionLayer(_Normed):
    """Self-attention, or cross-attention, with heads split over the group.

        layer = smp.nn.DistributedAttentionLayer(num_attention_heads=16, attention_head_size=64, hidden_size=1024)
        y = layer((hidden_states, attention_mask))     # [N, S, H], [N, 1, 1, S] -> [N, S, H]

    Arguments are SMP's. The mask may have any shape that broadcasts to [N, 1, S, S]. With cross_attention the inputs
    are (hidden_states, cross_states, attention_mask).
    causal_mask_size: any number makes self-attention causal. With pre_layernorm and without post_layernorm the result
    has no residual connection, as in SMP's reference. Raises ValueError if the degree does not divide the heads.
    """

    def __init__(self, num_attention_heads: int = 32, attention_head_size: int = 32, hidden_size: int = 1024,
                 attention_dropout_prob: float = 0.1, hidden_dropout_prob: float = 0.1,
                 layernorm_epsilon: float = 1e-5, initializer_range: float = 0.02,
                 use_normal_initialization: bool = False, cross_attention: bool = False,
                 causal_mask_size: int | None = None, pre_layernorm: bool = False, post_layernorm: bool = True, *,
                 tp: TensorParallel | None = None) -> None:
        super().__init__(hidden_size, layernorm_epsilon, pre_layernorm, post_layernorm, tp)
        _divide(num_attention_heads, self.tp, "num_attention_heads")
        self.attention_head_size, self.cross_attention = attention_head_size, cross_attention
        self.causal = causal_mask_size is not None and not cross_attention
        self.attention_dropout_prob = attention_dropout_prob
        width = num_attention_heads * attention_head_size

        def linear(kind: type, inputs: int, outputs: int) -> nn.Module:
            whole = _initialize(nn.Linear(inputs, outputs), initializer_range, use_normal_initialization)
            return kind(inputs, outputs, whole=whole, tp=self.tp)

        self.query, self.key, self.value = (linear(ColumnLinear, hidden_size, width) for _ in range(3))
        self.dense = linear(RowLinear, width, hidden_size)
        self.dropout = nn.Dropout(hidden_dropout_prob)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.attention_head_size)).transpose(1, 2)

    def _mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        if mask is not None:
            if self.tp.split == "batch" and self.tp.size > 1:  # a broadcast mask may be another on each rank
                mask = mask[(None,) * (4 - mask.dim())].expand(query.shape[0] // self.tp.size, -1, -1, -1)
            mask = gather_samples(mask, self.tp).to(query.dtype)
        if not self.causal:
            return mask
        hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(1)
        causal = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
        causal = causal.masked_fill(hidden, torch.finfo(query.dtype).min / 2)
        return causal if mask is None else causal + mask

    def forward(self, inputs: tuple) -> Tensor:
        hidden_states, *cross, mask = inputs
        x = enter(self._before(hidden_states), self.tp)
        states = enter(cross[0], self.tp.whole()) if self.cross_attention else x
        if self.tp.split != "sequence":
            own_random_numbers.begin(self.tp, x.device, self.training)
        query, key, value = self._heads(self.query(x)), self._heads(self.key(states)), self._heads(self.value(states))
        y = F.scaled_dot_product_attention(query, key, value, self._mask(mask, query, key),
                                           self.attention_dropout_prob if self.training else 0.0,
                                           scale=1 / math.sqrt(self.attention_head_size))
        y = self.dropout(self.dense(y.transpose(1, 2).flatten(2)))
        return self._after(y, hidden_states)


class DistributedTransformerOutputLayer(_Normed):
    """Two linear layers with an activation between, split over the intermediate features.

        layer = smp.nn.DistributedTransformerOutputLayer(hidden_size=1024, intermediate_size=4096)
        y = layer(hidden_states)                       # [N, S, H] -> [N, S, H]

    Arguments are SMP's; fp32_residual_addition adds the residual connection in float32. Raises ValueError if the
    tensor-parallel degree does not divide intermediate_size.
    """

    def __init__(self, hidden_size: int = 1024, intermediate_size: int = 4096, hidden_dropout_prob: float = 0.1,
                 activation: str = "gelu", layernorm_epsilon: float = 1e-5, initializer_range: float = 0.02,
                 use_normal_initialization: bool = False, pre_layernorm: bool = False, post_layernorm: bool = True,
                 fp32_residual_addition: bool = False, *, tp: TensorParallel | None = None) -> None:
        super().__init__(hidden_size, layernorm_epsilon, pre_layernorm, post_layernorm, tp)
        if activation not in _ACTIVATIONS:
            raise ValueError(f'activation is "{activation}", not "gelu" or "relu"')
        self.activation, self.fp32_residual_addition = activation, fp32_residual_addition
        first, second = (_initialize(nn.Linear(*sizes), initializer_range, use_normal_initialization)
                         for sizes in ((hidden_size, intermediate_size), (intermediate_size, hidden_size)))
        self.dense1 = ColumnLinear(hidden_size, intermediate_size, enters=True, whole=first, tp=self.tp)
        self.dense2 = RowLinear(intermediate_size, hidden_size, whole=second, tp=self.tp)
        self.dropout = nn.Dropout(hidden_dropout_prob)

    def forward(self, hidden_states: Tensor) -> Tensor:
        y = self.dropout(self.dense2(_ACTIVATIONS[self.activation](self.dense1(self._before(hidden_states)))))
        if self.fp32_residual_addition and self.layernorm is not None:
            return self.layernorm((y.float() + hidden_states.float()).to(y.dtype))
        return self._after(y, hidden_states)


class DistributedTransformerLayer(DistributedModule):
    """Attention, cross-attention if asked for, and the output layer.

        layer = smp.nn.DistributedTransformerLayer(num_attention_heads=16, attention_head_size=64, hidden_size=1024)
        hidden_states, attention_mask = layer((hidden_states, attention_mask))

    Arguments are SMP's. With add_cross_attention the inputs and results are
    (hidden_states, cross_states, attention_mask, cross_mask).
    """

    tp_whole = True

    def __init__(self, num_attention_heads: int = 32, attention_head_size: int = 32, hidden_size: int = 1024,
                 intermediate_size: int = 4096, attention_dropout_prob: float = 0.1, hidden_dropout_prob: float = 0.1,
                 activation: str = "gelu", layernorm_epsilon: float = 1e-5, initializer_range: float = 0.02,
                 use_normal_initialization: bool = False, causal_mask_size: int | None = None,
                 add_cross_attention: bool = False, pre_layernorm: bool = False, post_layernorm: bool = True, *,
                 tp: TensorParallel | None = None) -> None:
        super().__init__(tp)
        self.add_cross_attention = add_cross_attention
        common = dict(layernorm_epsilon=layernorm_epsilon, initializer_range=initializer_range,
                      use_normal_initialization=use_normal_initialization, pre_layernorm=pre_layernorm,
                      post_layernorm=post_layernorm, tp=self.tp)

        def attention(cross: bool) -> DistributedAttentionLayer:
            return DistributedAttentionLayer(num_attention_heads, attention_head_size, hidden_size,
                                             attention_dropout_prob, hidden_dropout_prob, cross_attention=cross,
                                             causal_mask_size=causal_mask_size, **common)

        self.attention = attention(False)
        if add_cross_attention:
            self.cross_attention = attention(True)
        self.output = DistributedTransformerOutputLayer(hidden_size, intermediate_size, hidden_dropout_prob,
                                                        activation, **common)

    def forward(self, inputs: tuple) -> tuple:
        if self.tp.split != "sequence":
            return self._layers(inputs)
        own_random_numbers.begin(self.tp, inputs[0].device, self.training)  # here, since pipelines cut between layers
        try:
            return self._layers(inputs)
        finally:
            own_random_numbers.end()

    def _layers(self, inputs: tuple) -> tuple:
        if not self.add_cross_attention:
            hidden_states, mask = inputs
            return self.output(self.attention((hidden_states, mask))), mask
        hidden_states, cross_states, mask, cross_mask = inputs
        hidden_states = self.cross_attention((self.attention((hidden_states, mask)), cross_states, cross_mask))
        return self.output(hidden_states), cross_states, mask, cross_mask


class DistributedTransformer(DistributedModule):
    """A sequence of DistributedTransformerLayers. Arguments are num_layers and those of a layer.

        encoder = smp.nn.DistributedTransformer(num_layers=24, num_attention_heads=16, attention_head_size=64,
                                                hidden_size=1024)
        hidden_states, attention_mask = encoder((hidden_states, attention_mask))

    With prescaled_batch and optimize=memory, the sequence is split over the ranks between layers.
    """

    def __init__(self, num_layers: int = 12, num_attention_heads: int = 32, attention_head_size: int = 32,
                 hidden_size: int = 1024, intermediate_size: int = 4096, attention_dropout_prob: float = 0.1,
                 hidden_dropout_prob: float = 0.1, activation: str = "gelu", layernorm_epsilon: float = 1e-5,
                 initializer_range: float = 0.02, use_normal_initialization: bool = False,
                 causal_mask_size: int | None = None, add_cross_attention: bool = False, pre_layernorm: bool = False,
                 post_layernorm: bool = True, *, tp: TensorParallel | None = None) -> None:
        super().__init__(tp or TensorParallel.current().in_blocks(state.cfg.optimize))
        self.seq_layers = nn.Sequential(*(DistributedTransformerLayer(
            num_attention_heads, attention_head_size, hidden_size, intermediate_size, attention_dropout_prob,
            hidden_dropout_prob, activation, layernorm_epsilon, initializer_range, use_normal_initialization,
            causal_mask_size, add_cross_attention, pre_layernorm, post_layernorm, tp=self.tp)
            for _ in range(num_layers)))
        both = pre_layernorm and post_layernorm  # then the transformer's input and output are normalized too
        self.input_layernorm = nn.LayerNorm(hidden_size, eps=layernorm_epsilon) if both else None
        self.output_layernorm = nn.LayerNorm(hidden_size, eps=layernorm_epsilon) if both else None

    def forward(self, inputs: tuple) -> tuple:
        x, *others = inputs
        if self.input_layernorm is not None:
            x = self.input_layernorm(x)
        if self.tp.split == "sequence":
            x = split_sequence(x, self.tp)
        x, *others = self.seq_layers((x, *others))
        if self.tp.split == "sequence":
            x = gather_sequence(x, self.tp)
        return (x if self.output_layernorm is None else self.output_layernorm(x), *others)


class DistributedTransformerLMHead(DistributedModule):
    """Embeddings, a DistributedTransformer and a head whose weight is the word embeddings'.

        model = smp.nn.DistributedTransformerLMHead(num_layers=12, vocab_size=50257, causal_mask_size=1024)
        loss = model((input_ids, attention_mask, None, position_ids, labels))

    Arguments are SMP's and DistributedTransformer's. Inputs are (input_ids, attention_mask, token_type_ids,
    position_ids, labels). With add_cross_attention, cross_states and cross_mask come before labels. All but input_ids
    may be None. attention_mask [N, S] has 1 at masked positions. With labels it returns the loss; a causal model shifts
    them by one token. Without labels it returns the scores [N, S, vocab_size], or without add_lm_head the hidden
    states.
    """

    def __init__(self, num_layers: int = 12, num_attention_heads: int = 32, attention_head_size: int = 32,
                 hidden_size: int = 1024, intermediate_size: int = 4096, vocab_size: int = 30522,
                 num_positions: int = 1024, attention_dropout_prob: float = 0.1, hidden_dropout_prob: float = 0.1,
                 activation: str = "gelu", layernorm_epsilon: float = 1e-5, num_token_types: int = 0,
                 causal_mask_size: int | None = None, add_cross_attention: bool = False, add_lm_head: bool = True,
                 initializer_range: float = 0.02, use_normal_initialization: bool = False,
                 pre_layernorm: bool = False, post_layernorm: bool = True) -> None:
        super().__init__()
        self.vocab_size, self.causal = vocab_size, causal_mask_size is not None
        self.add_cross_attention, self.add_lm_head = add_cross_attention, add_lm_head

        def embedding(count: int) -> nn.Embedding:
            made = nn.Embedding(count, hidden_size)
            if use_normal_initialization:
                nn.init.normal_(made.weight, std=initializer_range)
            return made

        words = embedding(vocab_size)
        self.word_embedding = DistributedEmbedding(vocab_size, hidden_size, split="vocabulary", whole=words,
                                                   tp=self.tp)
        self.position_embedding = embedding(num_positions)
        self.token_type_embedding = embedding(num_token_types) if num_token_types else None
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.transformer = DistributedTransformer(
            num_layers, num_attention_heads, attention_head_size, hidden_size, intermediate_size,
            attention_dropout_prob, hidden_dropout_prob, activation, layernorm_epsilon, initializer_range,
            use_normal_initialization, causal_mask_size, add_cross_attention, pre_layernorm, post_layernorm)
        if add_lm_head:
            head = nn.Linear(hidden_size, vocab_size, bias=False, device="meta")
            head.weight = words.weight
            self.lm_head = VocabularyHead(hidden_size, vocab_size, False, whole=head, tp=self.tp)

    @staticmethod
    def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if mask is None else mask[:, None, None, :].to(dtype) * (torch.finfo(dtype).min / 4)

    def forward(self, inputs: tuple) -> Tensor:
        ids, mask, token_types, positions, *cross, labels = inputs
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.word_embedding(ids) + self.position_embedding(positions)
        if token_types is not None and self.token_type_embedding is not None:
            x = x + self.token_type_embedding(token_types)
        x, mask = self.dropout(x), self._added(mask, x.dtype)
        if self.add_cross_attention:
            x = self.transformer((x, cross[0], mask, self._added(cross[1], x.dtype)))[0]
        else:
            x = self.transformer((x, mask))[0]
        if not self.add_lm_head:
            return x
        if labels is None:
            return self.lm_head(x)
        if self.causal:
            x, labels = x[:, :-1], labels[:, 1:]
        return vocabulary_cross_entropy(self.lm_head(x, gather=False), labels, self.vocab_size, self.tp)
