"""A table of how Hugging Face's models are split. The classes of transformers stay unmodified."""
import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from torch import Tensor, nn

from shoal.torch.parallel.tensor.functions import TensorParallel, TensorSplit
from shoal.torch.parallel.tensor.layers import (ColumnLinear, DistributedEmbedding, RowLinear, VocabularyHead,
                                                mark_partial, split_parameter)
from shoal.torch.parallel.tensor.regions import Block, Region, make_region

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """How the children of one class are split.

    columns: column-parallel linear layers, by name. The value names the attribute with the width of one block if the
        layer fuses several. GPT-NeoX's are fused head by head, which is one block.
    rows: row-parallel linear layers, which end a region.
    activations: arguments that enter the region if the whole module is one. Without them, each column layer enters by
        itself.
    heads: attributes that the tensor-parallel degree must divide.
    divide: attributes that are replaced by this rank's share.
    features: embeddings whose columns are heads.
    inside: children that see only this rank's heads.
    """

    columns: dict[str, str | None] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    divide: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A model family: embeddings and heads over the vocabulary, blocks, and the splits of its classes. `repeats`: a
    block may be called several times in a forward pass, so each call splits and gathers the sequence."""

    embeddings: tuple[str, ...]
    heads: tuple[str, ...]
    blocks: tuple[str, ...]
    classes: dict[str, Split]
    repeats: bool = False


def _columns(*names: str) -> dict[str, str | None]:
    return dict.fromkeys(names)


def _bert(prefix: str, head: str = "decoder") -> Family:
    attention = Split(columns=_columns("query", "key", "value"), activations=("hidden_states", "encoder_hidden_states"),
                      heads=("num_attention_heads",), divide=("num_attention_heads", "all_head_size"))
    return Family(("word_embeddings",), (head,), (f"{prefix}Layer",), {
        f"{prefix}SelfAttention": attention,
        f"{prefix}CrossAttention": attention,
        f"{prefix}SelfOutput": Split(rows=("dense",)),
        f"{prefix}Intermediate": Split(columns=_columns("dense"), activations=("hidden_states",)),
        f"{prefix}Output": Split(rows=("dense",)),
    })


def _llama(prefix: str) -> Family:
    return Family(("embed_tokens",), ("lm_head",), (f"{prefix}DecoderLayer",), {
        f"{prefix}Attention": Split(columns=_columns("q_proj", "k_proj", "v_proj"), rows=("o_proj",),
                                    activations=("hidden_states",), inside=("q_norm", "k_norm"),
                                    heads=("config.num_attention_heads", "config.num_key_value_heads")),
        f"{prefix}MLP": Split(columns=_columns("gate_proj", "up_proj"), rows=("down_proj",), activations=("x",)),
    })


_BART_LAYER = Split(columns=_columns("fc1"), rows=("fc2",))
_T5_FORWARD = dict(rows=("wo",), activations=("hidden_states",))

FAMILIES: dict[str, Family] = {
    "gpt2": Family(("wte",), ("lm_head",), ("GPT2Block",), {
        "GPT2Attention": Split(columns={"c_attn": "embed_dim", "q_attn": None}, rows=("c_proj",),
                               activations=("hidden_states", "encoder_hidden_states"), heads=("num_heads",),
                               divide=("num_heads", "split_size")),
        "GPT2MLP": Split(columns=_columns("c_fc"), rows=("c_proj",), activations=("hidden_states",)),
    }),
    "bert": _bert("Bert"),
    "roberta": _bert("Roberta"),
    "xlm_roberta": _bert("XLMRoberta"),
    "electra": _bert("Electra", head="generator_lm_head"),
    "modernbert": Family(("tok_embeddings",), ("decoder",), ("ModernBertEncoderLayer",), {
        "ModernBertAttention": Split(columns={"Wqkv": "config.hidden_size"}, rows=("Wo",),
                                     activations=("hidden_states",), heads=("config.num_attention_heads",)),
        "ModernBertMLP": Split(columns={"Wi": "config.intermediate_size"}, rows=("Wo",),
                               activations=("hidden_states",)),
    }),
    "albert": Family(("word_embeddings",), ("decoder",), ("AlbertLayerGroup",), {
        "AlbertAttention": Split(columns=_columns("query", "key", "value"), rows=("dense",),
                                 activations=("hidden_states",), heads=("num_attention_heads",),
                                 divide=("num_attention_heads", "all_head_size")),
        "AlbertLayer": Split(columns=_columns("ffn"), rows=("ffn_output",)),
    }, repeats=True),
    "distilbert": Family(("word_embeddings",), ("vocab_projector",), ("TransformerBlock",), {
        "DistilBertSelfAttention": Split(columns=_columns("q_lin", "k_lin", "v_lin"), rows=("out_lin",),
                                         activations=("hidden_states",), heads=("n_heads",), divide=("n_heads",)),
        "FFN": Split(columns=_columns("lin1"), rows=("lin2",), activations=("input",)),
    }),
    "t5": Family(("shared", "embed_tokens"), ("lm_head",), ("T5Block",), {
        "T5Attention": Split(columns=_columns("q", "k", "v"), rows=("o",),
                             activations=("hidden_states", "key_value_states"), heads=("n_heads",),
                             divide=("n_heads", "inner_dim"), features=("relative_attention_bias",)),
        "T5DenseActDense": Split(columns=_columns("wi"), **_T5_FORWARD),
        "T5DenseGatedActDense": Split(columns=_columns("wi_0", "wi_1"), **_T5_FORWARD),
    }),
    "bart": Family(("shared", "embed_tokens"), ("lm_head",), ("BartEncoderLayer", "BartDecoderLayer"), {
        "BartAttention": Split(columns=_columns("q_proj", "k_proj", "v_proj"), rows=("out_proj",),
                               activations=("hidden_states", "key_value_states"), heads=("num_heads",),
                               divide=("num_heads",)),
        "BartEncoderLayer": _BART_LAYER,
        "BartDecoderLayer": _BART_LAYER,
    }),
    "gpt_neox": Family(("embed_in",), ("lm_head",), ("GPTNeoXLayer",), {
        "GPTNeoXAttention": Split(columns=_columns("query_key_value"), rows=("dense",), activations=("hidden_states",),
                                  heads=("config.num_attention_heads",)),
        "GPTNeoXMLP": Split(columns=_columns("dense_h_to_4h"), rows=("dense_4h_to_h",),
                            activations=("hidden_states",)),
    }),
    "llama": _llama("Llama"),
    "mistral": _llama("Mistral"),
    "gemma": _llama("Gemma"),
    "gemma2": _llama("Gemma2"),
    "gemma3": _llama("Gemma3"),
    "qwen2": _llama("Qwen2"),
    "qwen3": _llama("Qwen3"),
}


# The attribute that lists the blocks, by class. Scripts for SMP find the list as `seq_layers`, because SMP replaces the
# class by a DistributedTransformer.
_LISTS = {"GPT2Model": "h", "BertEncoder": "layer", "RobertaEncoder": "layer"}


def family_of(module: nn.Module) -> Family | None:
    """Returns the family of the module's class or of a base class."""
    for cls in type(module).__mro__:
        parts = cls.__module__.split(".")
        if parts[:2] == ["transformers", "models"] and parts[-1] == f"modeling_{parts[2]}":
            return FAMILIES.get(parts[2])
    return None


def _named_in(module: nn.Module, names: Collection[str]) -> str | None:
    """Returns the name of the module's class or of a base class, if it is in `names`."""
    return next((cls.__name__ for cls in type(module).__mro__ if cls.__name__ in names), None)


def name_blocks(module: nn.Module) -> None:
    """Gives the module's list of blocks the name that it has in SMP."""
    if (found := _named_in(module, _LISTS)) is not None:
        module.__dict__["seq_layers"] = getattr(module, _LISTS[found])


def _albert_forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs):
    """AlbertAttention.forward with a region inside: only this module's residual connection stays outside the region."""
    modeling = sys.modules[type(self).__module__]

    def heads(hidden_states, attention_mask, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        query, key, value = (layer(hidden_states).view(shape).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        attend = modeling.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation,
                                                                modeling.eager_attention_forward)
        out, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling,
                              dropout=self.attention_dropout.p if self.training else 0.0, **kwargs)
        return out.reshape(*shape[:2], -1).contiguous(), weights

    out, weights = self.tp_region.run(self, heads, {"hidden_states": hidden_states, "attention_mask": attention_mask,
                                                    **kwargs})
    return self.LayerNorm(hidden_states + self.output_dropout(self.dense(out))), weights


def _attribute(module: nn.Module, path: str):
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _features(layer: nn.Module) -> tuple[int, int]:
    """Input and output features of nn.Linear or GPT-2's Conv1D."""
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (layer.nx, layer.nf)


def _replace(module: nn.Module, child: str, name: str, cls: type, **arguments) -> None:
    layer = getattr(module, child)
    try:
        made = cls(*_features(layer), layer.bias is not None, whole=layer, **arguments)
    except ValueError as problem:
        raise ValueError(f"{name}.{child}: {problem}") from None
    setattr(module, child, made)


def _split_module(module: nn.Module, split: Split, name: str, tp: TensorParallel) -> None:
    for path in split.heads:
        if _attribute(module, path) % tp.size:
            raise ValueError(f"{name}: {path.removeprefix('config.')} = {_attribute(module, path)} does not divide by "
                             f"tensor_parallel_degree {tp.size}: choose a degree that divides it")
    for child, width in split.columns.items():
        layer = getattr(module, child, None)
        if layer is not None:
            blocks = _features(layer)[1] // _attribute(module, width) if width else 1
            _replace(module, child, name, ColumnLinear, blocks=blocks, enters=not split.activations, tp=tp)
    for child in split.rows:
        _replace(module, child, name, RowLinear, tp=tp)
    for child in split.features:
        layer = getattr(module, child, None)
        if layer is not None:
            layer.weight = split_parameter(layer.weight, TensorSplit(1, layer.embedding_dim), tp)
            layer.embedding_dim = layer.weight.shape[1]
    for child in split.inside:
        for parameter in getattr(module, child, nn.Identity()).parameters():
            mark_partial(parameter)
    for attribute in split.divide:
        setattr(module, attribute, getattr(module, attribute) // tp.size)
    if not split.activations:
        return
    region = Region(tp, split.activations, attends=bool(split.heads))
    if _named_in(module, ("AlbertAttention",)):
        module.tp_region = region
        module.__class__ = type("AlbertAttention", (type(module),),
                                {"forward": _albert_forward, "__module__": type(module).__module__})
    else:
        make_region(module, region)


def _make_blocks(blocks: list[nn.Module], repeats: bool, tp: TensorParallel) -> None:
    for index, block in enumerate(blocks):
        for parameter in block.parameters():
            if not hasattr(parameter, "tp_split"):
                mark_partial(parameter)
        make_region(block, Block(tp, repeats or index == 0, repeats or index == len(blocks) - 1))


def _refuse_outputs(model: nn.Module, args: tuple, kwargs: dict) -> None:
    refused = ["output_attentions"] + (["output_hidden_states"] if model.tp_blocks_split else [])
    for name in refused:
        value = kwargs.get(name)
        if value or value is None and getattr(getattr(model, "config", None), name, False):
            raise ValueError(f"{name} is not supported with tensor parallelism, where a rank has only a part: leave "
                             "it out" + (", or set \"optimize\": \"speed\"" if name == "output_hidden_states" else ""))


def distribute_family(model: nn.Module, family: Family, name: str, tp: TensorParallel, optimize: str,
                      whole: set[nn.Module]) -> None:
    """Splits a model of `family` in place. Modules in `whole` and their descendants are not split."""
    blocks_tp = tp.in_blocks(optimize)
    chains = [(f"{path}.", list(module)) for path, module in model.named_modules()
              if isinstance(module, nn.ModuleList) and len(module) and _named_in(module[0], family.blocks)]
    if _named_in(model, family.blocks):
        chains = [("", [model])]
    if not chains:
        _log.warning("%s stays whole on each tensor-parallel rank: %s has no blocks", name, type(model).__name__)
    prefix = f"{name}." if name else ""
    if blocks_tp.split == "sequence":
        _check_sequence(model, [(prefix + path, blocks) for path, blocks in chains], whole)
    _split_vocabulary(model, family, {m for _, blocks in chains for block in blocks for m in block.modules()}, whole,
                      tp)
    for path, blocks in chains:
        distributed = [(f"{prefix}{path}{index}" if path else name, block) for index, block in enumerate(blocks)
                       if block not in whole]
        for block_name, block in distributed:
            for inner, module in list(block.named_modules()):
                split = family.classes.get(_named_in(module, family.classes))
                if split is None:
                    continue
                full = f"{block_name}.{inner}".strip(".")
                if module in whole:
                    raise ValueError(f"{full}: a block is distributed as a whole; disable tensor parallelism for "
                                     f"{block_name}")
                _split_module(module, split, full, blocks_tp)
            block.tp_whole = True  # keeps partitions from cutting between enter() and leave()
        if blocks_tp.split == "sequence":
            _make_blocks([block for _, block in distributed], family.repeats, blocks_tp)
    model.tp_blocks_split = blocks_tp.split == "sequence"
    model.register_forward_pre_hook(_refuse_outputs, with_kwargs=True)


def _check_sequence(model: nn.Module, chains: list[tuple[str, list[nn.Module]]], whole: set[nn.Module]) -> None:
    """Refuses models that may skip a block: the first block splits the sequence and the last gathers it."""
    for key in ("encoder_layerdrop", "decoder_layerdrop", "layerdrop"):
        if getattr(getattr(model, "config", None), key, 0.0):
            raise ValueError(f"{key} is not supported with \"optimize\": \"memory\", where the first and last block "
                             "split and gather the sequence: set it to 0, or \"optimize\": \"speed\"")
    for path, blocks in chains:
        if 0 < sum(block in whole for block in blocks) < len(blocks):
            raise ValueError(f"{path.rstrip('.')}: with \"optimize\": \"memory\" all blocks are distributed or none: "
                             "enable tensor parallelism for all, or set \"optimize\": \"speed\"")


def _split_vocabulary(model: nn.Module, family: Family, in_blocks: set[nn.Module], whole: set[nn.Module],
                      tp: TensorParallel) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if module in in_blocks or child in whole:
                continue
            if name in family.embeddings and isinstance(child, nn.Embedding):
                setattr(module, name, DistributedEmbedding(child.num_embeddings, child.embedding_dim,
                                                           child.padding_idx, child.max_norm, split="vocabulary",
                                                           whole=child, tp=tp))
            elif name in family.heads and type(child) is nn.Linear:
                setattr(module, name, VocabularyHead(child.in_features, child.out_features, whole=child, tp=tp))
