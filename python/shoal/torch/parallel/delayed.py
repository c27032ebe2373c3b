"""Parameters that get their values once their rank is known (delay_param_initialization).

While a script makes its model, each operation on a parameter runs at once, so it draws the random numbers that it would
draw in one process. The values are then freed. What stays is the list of operations, with the random states that they
began with. The parameter becomes a meta tensor, and the rank that owns it runs the operations again. A rank thus holds
its own parameters and, while it makes a model, one more.
"""
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.torch.parallel.state import state

_SMALLEST = 65536  # bytes; smaller parameters keep their values
_CANDIDATES = 8  # new tensors that may still become parameters
_FILLS = ("aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_")  # of all elements, whatever they were


class _Step(NamedTuple):
    function: Callable
    args: tuple
    kwargs: dict[str, Any]
    random: torch.Tensor | None  # the state that it begins with


class _Recipe:
    """How a storage gets its values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage, self.bytes = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
        self.steps: list[_Step] = []
        self.is_delayed = False  # a parameter has this storage

    def fill(self) -> None:
        """Makes the values unless they are there."""
        if self.storage.nbytes() > 0:
            return
        self.storage.resize_(self.bytes)
        before = torch.get_rng_state()
        with torch.no_grad():
            for step in self.steps:
                if step.random is not None:
                    torch.set_rng_state(step.random)
                step.function(*step.args, **step.kwargs)
        torch.set_rng_state(before)

    def free(self) -> None:
        if self.is_delayed:
            self.storage.resize_(0)


def _has_generator(step: _Step) -> bool:
    return any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((step.args, step.kwargs)))


def _copy_new(tensor: torch.Tensor, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    tensor.copy_(function(*args, **kwargs))


class _Recorder(TorchDispatchMode):
    """Records the operations on tensors that torch.empty(), torch.randn() and the like make."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, _Recipe] = {}  # by storage
        self._places: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._filled: dict[int, _Recipe] = {}  # those whose values the last operation used

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        used = {id(recipe): recipe for tensor in tensors if (recipe := self._recipe_of(tensor)) is not None}
        schema = function._schema
        for recipe in used.values():
            if schema.is_mutable and self._refills(function, tensors[0], recipe):
                recipe.steps.clear()
                recipe.storage.resize_(recipe.bytes)
        self._use(used)
        random = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in function.tags else None
        result = function(*args, **kwargs)
        if used and schema.is_mutable:
            self._follow(_Step(function, args, kwargs, random), tensors, list(used.values()))
        elif not tensors and isinstance(result, torch.Tensor):
            self._begin(result, _Step(function, args, kwargs, random))
        return result

    def _recipe_of(self, tensor: torch.Tensor) -> _Recipe | None:
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        return self._recipes.get(tensor.untyped_storage()._cdata) if is_plain else None

    def _refills(self, function: Any, tensor: torch.Tensor, recipe: _Recipe) -> bool:
        return function.name().split(".")[0] in _FILLS and tensor.nbytes == recipe.bytes

    def _use(self, recipes: dict[int, _Recipe]) -> None:
        if recipes:
            for key in self._filled.keys() - recipes.keys():
                self._filled[key].free()
            for recipe in recipes.values():
                recipe.fill()
            self._filled = recipes

    def _begin(self, made: torch.Tensor, step: _Step) -> None:
        if (made.layout is not torch.strided or made.device.type != "cpu" or made.nbytes < _SMALLEST
                or not made.untyped_storage().resizable() or _has_generator(step)):
            return
        undecided = [key for key, recipe in self._recipes.items() if not recipe.is_delayed]
        for key in undecided[:-_CANDIDATES]:
            del self._recipes[key]
        recipe = self._recipes[made.untyped_storage()._cdata] = _Recipe(made)
        if not step.function.name().startswith("aten::empty"):
            recipe.steps.append(_Step(_copy_new, (made, step.function, step.args, step.kwargs), {}, step.random))

    def _follow(self, step: _Step, tensors: list[torch.Tensor], used: list[_Recipe]) -> None:
        """Adds a step that changes values. It can run again only if it reads no other tensor and no
        generator of the script."""
        if len(used) == 1 and all(self._recipe_of(t) is used[0] for t in tensors) and not _has_generator(step):
            used[0].steps.append(step)
            return
        for recipe in used:
            self._recipes.pop(recipe.storage._cdata)
            recipe.is_delayed = False

    def register(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        """A hook: the module gets this parameter."""
        if type(parameter) is not nn.Parameter or (recipe := self._recipe_of(parameter)) is None:
            return
        if parameter.nbytes == recipe.bytes:
            recipe.is_delayed = True
            self._use({id(recipe): recipe})
            self._places.append((module, name, parameter))

    def finish(self) -> None:
        """Frees the values of all delayed parameters and replaces these by meta tensors."""
        replaced: dict[int, nn.Parameter] = {}
        for module, name, parameter in self._places:
            recipe = self._recipe_of(parameter)
            if recipe is None or module._parameters.get(name) is not parameter:
                continue
            recipe.free()
            if id(parameter) not in replaced:
                empty = torch.empty_like(parameter, device="meta")
                replaced[id(parameter)] = made = nn.Parameter(empty, parameter.requires_grad)
                made.__dict__.update(parameter.__dict__, _shoal_delayed=(recipe, parameter))
            module._parameters[name] = replaced[id(parameter)]


@contextlib.contextmanager
def delaying() -> Iterator[None]:
    """Delays parameters of the modules that are made in this context."""
    recorder = _Recorder()
    hook = register_module_parameter_registration_hook(recorder.register)
    try:
        with recorder:
            yield
    finally:
        hook.remove()
        recorder.finish()


def is_delayed(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "_shoal_delayed")


def delayed_part(whole: nn.Parameter, meta: torch.Tensor) -> nn.Parameter:
    """A tp rank's part of a delayed parameter, delayed too. The caller sets `tp_split`."""
    part = nn.Parameter(meta, whole.requires_grad)
    part._shoal_delayed = whole._shoal_delayed
    return part


@torch.no_grad()
def made(parameter: nn.Parameter, replaced: dict[int, nn.Parameter]) -> nn.Parameter:
    """The parameter with its values: tp rank 0's, or this rank's part of them. Every tp rank calls it. `replaced` keeps
    what it returns, by the id of the delayed one, for modules that share it."""
    if id(parameter) in replaced:
        return replaced[id(parameter)]
    recipe, value = parameter._shoal_delayed
    recipe.fill()
    value, mesh = value.detach().contiguous(), state.mesh
    if mesh.size("tp") > 1:
        dist.broadcast(value, group=mesh.group("tp"), group_src=0)
    if hasattr(parameter, "tp_split"):
        value = parameter.tp_split.take(value, mesh.rank("tp"), mesh.size("tp"))
        recipe.free()
    replaced[id(parameter)] = real = nn.Parameter(value, parameter.requires_grad)
    real.__dict__.update(parameter.__dict__)
    del real._shoal_delayed
    real._shoal_was = parameter  # optimizers may hold it
    return real


def make_all(module: nn.Module) -> None:
    """Gives all delayed parameters of the module their values, on every tp rank."""
    replaced: dict[int, nn.Parameter] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None and is_delayed(parameter):
                each._parameters[name] = made(parameter, replaced)
