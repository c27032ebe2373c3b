"""Marks modules for tensor parallelism, registers their distributed classes, replaces them, and converts state dicts.
"""
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.torch.parallel.delayed import make_all
from shoal.torch.parallel.state import state
from shoal.torch.parallel.tensor.families import distribute_family, family_of, name_blocks
from shoal.torch.parallel.tensor.functions import TensorParallel, TensorSplit
from shoal.torch.parallel.tensor.layers import (DistributedEmbedding, DistributedLinear, DistributedModule,
                                                VocabularyHead, split_parameter)

_log = logging.getLogger(__name__)
_FUSIONS = ("fused_softmax", "fused_bias_gelu")  # SMP's hints, without effect: PyTorch chooses its kernels


@dataclass(frozen=True)
class Registration:
    """The replacement for a class, with hooks that convert arguments and results."""

    module: type
    init_hook: Callable | None
    forward_hook: Callable | None
    return_hook: Callable | None


_registered: dict[type, Registration] = {}
_contexts = threading.local()


def tp_register(dist_module: type, init_hook: Callable | None = None, forward_hook: Callable | None = None,
                return_hook: Callable | None = None) -> Callable[[type], type]:
    """A class decorator: `dist_module` replaces the class where tensor parallelism is enabled.

        @smp.tp_register(smp.nn.DistributedTransformer, init_hook=lambda config: ((), config.to_dict()))
        class MyTransformer(nn.Module):
            ...

    init_hook and forward_hook have the signatures of the class's `__init__` and `forward`. They return the (args,
    kwargs) for `dist_module`'s methods. return_hook converts `dist_module`'s result to the class's. If both have the
    same parameter names, the original's values are kept.
    """
    def decorate(cls: type) -> type:
        tp_register_with_module(cls, dist_module, init_hook, forward_hook, return_hook)
        return cls
    return decorate


def tp_register_with_module(module_cls: type, dist_module: type, init_hook: Callable | None = None,
                            forward_hook: Callable | None = None, return_hook: Callable | None = None) -> None:
    """Like tp_register, for a class that is defined elsewhere.

        smp.tp_register_with_module(MyTransformer, smp.nn.DistributedTransformer, init_hook)

    Instances made before the registration cannot be replaced. Raises TypeError if `dist_module` is not a subclass of
    DistributedModule.
    """
    if not (isinstance(dist_module, type) and issubclass(dist_module, DistributedModule)):
        raise TypeError(f"tp_register: {dist_module!r} is not a subclass of smp.nn.DistributedModule")
    if module_cls not in _registered:
        original = module_cls.__init__

        @functools.wraps(original)
        def init(self, *args, **kwargs):
            if type(self) is module_cls:
                self.__dict__["tp_arguments"] = (args, kwargs)
            original(self, *args, **kwargs)

        module_cls.__init__ = init
    _registered[module_cls] = Registration(dist_module, init_hook, forward_hook, return_hook)


@contextmanager
def tensor_parallelism(enabled: bool = True, **config: Any) -> Iterator[None]:
    """Enables or disables tensor parallelism for modules made in this context. An inner context overrides an outer one.

        with smp.tensor_parallelism():
            model = AutoModelForCausalLM.from_config(config)

    `config`: arguments of the registered modules' constructors, which override what init_hook gives.
    """
    stack = _contexts.__dict__.setdefault("stack", [])
    outer = nn.Module.__init__
    mark = (enabled, config)

    @functools.wraps(outer)
    def init(self, *args, **kwargs):
        outer(self, *args, **kwargs)
        if stack and stack[-1] is mark:
            self.__dict__["tp_mark"] = mark

    stack.append(mark)
    nn.Module.__init__ = init
    try:
        yield
    finally:
        nn.Module.__init__ = outer
        stack.pop()


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **config: Any) -> None:
    """Enables or disables tensor parallelism for `module` and all modules in it. Call it before DistributedModel().

        smp.set_tensor_parallelism(model.encoder)
        smp.set_tensor_parallelism(model.encoder.embeddings, False)
    """
    for each in module.modules():
        each.__dict__["tp_mark"] = (enabled, config)


def _mark(module: nn.Module) -> tuple[bool, dict]:
    return module.__dict__.get("tp_mark", (False, {}))


def _hooked(registration: Registration) -> type:
    """Returns a subclass of the distributed class whose forward calls the hooks."""
    def forward(self, *args, **kwargs):
        if registration.forward_hook is not None:
            args, kwargs = registration.forward_hook(*args, **kwargs)
        result = registration.module.forward(self, *args, **kwargs)
        return registration.return_hook(result) if registration.return_hook is not None else result
    return type(registration.module.__name__, (registration.module,), {"forward": forward})


@torch.no_grad()
def _agree(model: nn.Module, tp: TensorParallel) -> None:
    """Copies tp rank 0's values into parameters and buffers that are not split."""
    for value in [*model.parameters(), *model.buffers()]:
        if not hasattr(value, "tp_split") and not value.is_meta and value.numel():
            same = value.detach().contiguous()
            dist.broadcast(same, group=tp.group, group_src=0)
            if same.data_ptr() != value.data_ptr() and not torch.equal(same, value):
                value.copy_(same)


def _registered_module(module: nn.Module, registration: Registration, name: str, config: dict,
                       tp: TensorParallel) -> nn.Module:
    if "tp_arguments" not in module.__dict__:
        raise ValueError(f"{name}: this {type(module).__name__} was made before tp_register knew its class: register "
                         "the class first")
    args, kwargs = module.__dict__["tp_arguments"]
    if registration.init_hook is not None:
        args, kwargs = registration.init_hook(*args, **kwargs)
    accepted = inspect.signature(registration.module.__init__).parameters
    unknown = [key for key in config if key not in accepted and key not in _FUSIONS]
    if unknown:
        _log.warning("%s: %s has no argument %s; it has no effect", name, registration.module.__name__,
                     ", ".join(unknown))
    made = _hooked(registration)(*args, **{**kwargs, **{k: v for k, v in config.items() if k in accepted}})
    make_all(module)
    _agree(module, tp)
    values = module.state_dict()
    like = next(module.parameters(), None)
    if like is not None:
        made.to(like.device, like.dtype)
    own = made.state_dict()
    if values.keys() == own.keys():
        made.load_state_dict(split_state_dict(made, values))
    elif values:
        _log.warning("%s: %s begins with initial values of its own, because its parameters have other names than %s's",
                     name, registration.module.__name__, type(module).__name__)
    return made.train(module.training)


def _shared(model: nn.Module) -> set[int]:
    """Returns the ids of parameters that several modules share."""
    seen: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    return {key for key, count in seen.items() if count > 1}


class _Replacement:
    """Replaces modules in one walk through a model, from the outside in."""

    def __init__(self, model: nn.Module, tp: TensorParallel, optimize: str) -> None:
        self.tp, self.optimize = tp, optimize
        self.shared = _shared(model)
        self.done: dict[nn.Module, nn.Module] = {}
        self.whole = {module for module in model.modules() if not _mark(module)[0]}

    def visit(self, module: nn.Module, name: str) -> nn.Module:
        if module not in self.done:
            self.done[module] = self._visit(module, name)
        return self.done[module]

    def _visit(self, module: nn.Module, name: str) -> nn.Module:
        enabled, config = _mark(module)
        if enabled and not isinstance(module, DistributedModule):
            if type(module) in _registered:
                return _registered_module(module, _registered[type(module)], name, config, self.tp)
            family = family_of(module)
            if family is not None:
                unknown = [key for key in config if key not in _FUSIONS]
                if unknown:
                    _log.warning("%s: %s: no effect on Hugging Face's models", name or type(module).__name__,
                                 ", ".join(unknown))
                distribute_family(module, family, name, self.tp, self.optimize, self.whole)
                return module
            if type(module) in (nn.Linear, nn.Embedding):
                return self._generic(module, name)
        for child_name, child in list(module.named_children()):
            made = self.visit(child, f"{name}.{child_name}" if name else child_name)
            if made is not child:
                setattr(module, child_name, made)
        return module

    def _generic(self, module: nn.Module, name: str) -> nn.Module:
        reason = None
        if id(module.weight) in self.shared:
            reason = "another module shares its weight"
        elif isinstance(module, nn.Linear):
            if module.in_features % self.tp.size == 0:
                return DistributedLinear(module.in_features, module.out_features, whole=module, tp=self.tp)
            reason = f"in_features = {module.in_features} does not divide by {self.tp.size}"
        elif module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            reason = "max_norm, scale_grad_by_freq or sparse is set"
        else:
            return DistributedEmbedding(module.num_embeddings, module.embedding_dim, module.padding_idx, whole=module,
                                        tp=self.tp)
        _log.warning("%s stays whole on each tensor-parallel rank: %s", name, reason)
        return module


def _share_parts(model: nn.Module) -> None:
    """Replaces parameters that another module has split by this rank's part, such as a head's bias that the decoder
    shares."""
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            part = getattr(parameter, "tp_part", None)
            if part is None:
                continue
            if isinstance(module, (nn.Linear, nn.Embedding)):
                raise ValueError(f"{name}.{key} is shared with a layer that is split over tensor-parallel ranks, but "
                                 f"{name} is not split: enable tensor parallelism for both or neither")
            module._parameters[key] = part


def distribute(model: nn.Module) -> nn.Module:
    """Replaces the modules of `model` for which tensor parallelism is enabled, in place, and returns the model.

        smp.set_tensor_parallelism(model)
        model = distribute(model)

    Every tp rank calls it. All ranks get tp rank 0's values: split parameters in parts, other parameters and buffers
    whole. On each path from the model inwards, the first registered module, Hugging Face model, nn.Linear or
    nn.Embedding is replaced. Raises ValueError if the tensor-parallel degree does not divide a model's sizes.
    """
    tp = TensorParallel.current()
    for module in model.modules():
        if _mark(module)[0]:
            name_blocks(module)
    if tp.size == 1:
        return model
    model = _Replacement(model, tp, state.cfg.optimize).visit(model, "")
    _share_parts(model)
    _agree(model, tp)
    return model


def _splits(model: nn.Module) -> dict[str, TensorSplit]:
    return {name: parameter.tp_split for name, parameter in model.named_parameters(remove_duplicate=False)
            if hasattr(parameter, "tp_split")}


def whole_state_dict(model: nn.Module, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a state dict of whole tensors, under the names that the model had before it was distributed.

        full = whole_state_dict(model)                   # Hugging Face's own: AutoModel's load_state_dict() takes it

    `state`: the rank's own state dict (default: model.state_dict()), or tensors of the same names and shapes, such as
    gradients. Every tp rank calls it with the same keys. Each gets the whole tensors.
    """
    state = model.state_dict() if state is None else state
    splits, tp = _splits(model), TensorParallel.current()
    whole: dict[str, Any] = {}
    joined: dict[int, Tensor] = {}  # so that tied parameters are gathered once
    for name, value in state.items():
        split = splits.get(name)
        if split is None or tp.size == 1:
            whole[name] = value
            continue
        if value.data_ptr() not in joined or not value.numel():
            joined[value.data_ptr()] = _join(value.detach(), split, tp)
        whole[name] = joined[value.data_ptr()]
    return whole


def _join(value: Tensor, split: TensorSplit, tp: TensorParallel) -> Tensor:
    lengths = [split.length(rank, tp.size) for rank in range(tp.size)]
    most = value.movedim(split.dim, 0)
    if most.shape[0] < max(lengths):
        most = torch.cat([most, most.new_zeros(max(lengths) - most.shape[0], *most.shape[1:])])
    parts = most.new_empty((tp.size, *most.shape))
    dist.all_gather_into_tensor(parts, most.contiguous(), group=tp.group)
    return split.join([part[:length].movedim(0, split.dim) for part, length in zip(parts, lengths)]).contiguous()


def split_state_dict(model: nn.Module, whole: dict[str, Any]) -> dict[str, Any]:
    """Returns this rank's part of a state dict of whole tensors, for model.load_state_dict(). Not collective.

        model.load_state_dict(split_state_dict(model, torch.load("pytorch_model.bin")))

    Raises ValueError if a tensor and the model's whole parameter differ in size.
    """
    splits, tp = _splits(model), TensorParallel.current()
    own = dict(whole)
    for name, split in splits.items():
        if name in whole:
            value = whole[name]
            if value.shape[split.dim] != split.size:
                raise ValueError(f"{name} has {value.shape[split.dim]} elements in dimension {split.dim}; the model's "
                                 f"whole parameter has {split.size}")
            own[name] = split.take(value, tp.rank, tp.size)
    return own
