"""The @step decorator, which runs a batch's microbatches through forward and backward."""
import copy
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from shoal.torch.parallel import gradients, model as models, parts, sums
from shoal.torch.parallel.state import state
from shoal.torch.parallel.turns import RandomState

log = logging.getLogger("shoal.torch.parallel")


class StepOutput:
    """One output of a step function, with a value for each microbatch.

        loss = train_step(model, batch)
        print(loss.reduce_mean().item(), loss.outputs)

    `outputs` lists the values in the order of the microbatches. Methods of torch.Tensor that return a tensor
    (`detach()`, `cpu()`, `to()`, `float()`...) are called on each value, and their results are returned as a
    StepOutput.
    """

    def __init__(self, outputs: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        self.outputs = list(outputs)
        self._weights = list(weights) if weights is not None else [1 / len(self.outputs)] * len(self.outputs)

    def reduce_mean(self) -> torch.Tensor:
        """Returns the mean over microbatches. If their sizes differ, each is weighted by its number of samples."""
        if len(set(self._weights)) == 1:
            return self.reduce_sum() / len(self.outputs)
        return StepOutput([value * weight for value, weight in zip(self.outputs, self._weights)]).reduce_sum()

    def reduce_sum(self) -> torch.Tensor:
        """Returns the sum over microbatches, added in their order."""
        total = self.outputs[0]
        for value in self.outputs[1:]:
            total = total + value
        return total

    def concat(self, dim: int = 0) -> torch.Tensor:
        """Concatenates the values along `dim`. Scalars give a vector."""
        if all(value.dim() == 0 for value in self.outputs):
            return self.stack()
        return torch.cat(self.outputs, dim)

    def stack(self, dim: int = 0) -> torch.Tensor:
        """Stacks the values along a new dimension."""
        return torch.stack(self.outputs, dim)

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("__") or not callable(getattr(torch.Tensor, name, None)):
            raise AttributeError(f"a StepOutput has no {name!r}: use reduce_mean(), reduce_sum(), concat(), stack() "
                                 "or .outputs")
        return lambda *args, **kwargs: StepOutput([getattr(value, name)(*args, **kwargs) for value in self.outputs],
                                                  self._weights)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """Returns the keys and values of a container. None: `value` is no container."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _rebuilt(like: Any, children: dict) -> Any:
    """Returns a container of the same kind as `like`, with other values."""
    if isinstance(like, Mapping):
        if dataclasses.is_dataclass(like):  # Hugging Face's ModelOutput
            return type(like)(**children)
        if type(like) is dict:
            return children
        made = copy.copy(like)
        for key, value in children.items():
            made[key] = value
        return made
    if isinstance(like, (list, tuple)):
        values = list(children.values())
        return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
    made = copy.copy(like)
    for name, value in children.items():
        object.__setattr__(made, name, value)
    return made


def _sizes(value: Any, axis: int, name: str) -> Iterator[tuple[str, int]]:
    """Yields the name and size of each tensor in an argument that is split."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            if not -value.dim() <= axis < value.dim():
                raise ValueError(f"step: {name} has {value.dim()} dimensions, so it cannot be split along {axis}: "
                                 "name it in non_split_inputs or change input_split_axes")
            yield name, value.shape[axis]
    elif not hasattr(value, "smp_slice"):
        for key, child in _children(value) or ():
            yield from _sizes(child, axis, f"{name}[{key!r}]")


def _weights(sizes: list[tuple[str, int]], microbatches: int) -> list[float]:
    """Returns each microbatch's share of the samples. If the batch does not divide, microbatches have unequal sizes."""
    uneven = [(name, size) for name, size in sizes if size % microbatches]
    if not uneven:
        return [1 / microbatches] * microbatches
    name, size = uneven[0]
    other = next((one for one in sizes if one[1] != size), None)
    if other is not None or size == 0:
        raise ValueError(f"step: {name} has {size} entries, which do not divide by microbatches = {microbatches}" +
                         (f", and {other[0]} has {other[1]}, so they cannot be split alike" if other else "") +
                         ": change the batch size or microbatches, or name the argument in non_split_inputs")
    log.info("step: %s has %d entries, which do not divide by microbatches = %d: the microbatches are unequal", name,
             size, microbatches)
    count = min(size, microbatches)
    return [(size // count + (i < size % count)) / size for i in range(count)]


def _slice(value: Any, count: int, index: int, axis: int) -> Any:
    """Returns microbatch `index` of an argument."""
    if hasattr(value, "smp_slice"):
        return value.smp_slice(count, index, axis)
    if isinstance(value, torch.Tensor):
        return value.tensor_split(count, axis)[index] if value.dim() > 0 else value
    children = _children(value)
    if children is None:
        return value
    return _rebuilt(value, {key: _slice(child, count, index, axis) for key, child in children})


def _merged(values: list, weights: list[float], name: str = "the step's output") -> Any:
    """Merges the microbatches' results into one structure with a StepOutput for each tensor."""
    first = values[0]
    children = None if isinstance(first, torch.Tensor) else _children(first)
    if children is None:
        plain = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
        return StepOutput(plain, weights)
    keys = [key for key, _ in children]
    parts = [dict(_children(value) or ()) for value in values]
    for index, part in enumerate(parts):
        if list(part) != keys:
            raise ValueError(f"{name} has the parts {keys} in microbatch 0 but {list(part)} in microbatch {index}: "
                             "return the same structure for each")
    return _rebuilt(first, {key: _merged([part[key] for part in parts], weights, f"{name}[{key!r}]") for key in keys})


def step(function: Callable | None = None, *, non_split_inputs: Sequence[str] = (),
         input_split_axes: Mapping[str, int] | None = None) -> Callable:
    """Makes a step function, which runs once for each microbatch.

        @smp.step
        def train_step(model, data, target):
            loss = torch.nn.functional.nll_loss(model(data), target)
            model.backward(loss)
            return loss

        loss = train_step(model, data, target).reduce_mean()

    Every rank of a pipeline calls it with the same arguments. Tensors in the arguments, also those nested in lists,
    tuples, dicts and dataclasses, are split along dimension 0 into cfg.microbatches parts. A batch that does not
    divide has unequal parts, which count by their sizes. Other values are passed on whole, and objects that have
    smp_slice(microbatches, index, axis) split themselves. The function must call model.backward(loss) instead of
    loss.backward(). Its gradients are the mean over microbatches and, once backward_passes_per_step steps have run,
    over the ranks with different batches.

    non_split_inputs: names of arguments to pass whole.
    input_split_axes: by argument name, the dimension to split instead of 0.

    Returns what the function returns, with a StepOutput in the place of each tensor, on every pipeline rank. The
    outputs are detached. Raises ValueError where tensors of different sizes do not divide; RuntimeError on every rank
    of the pipeline where one of them fails. The random state is then as before the step. If the
    model has sharded parameters, its gradients of earlier steps are dropped too.
    """
    if function is None:
        return functools.partial(step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes)
    axes = dict(input_split_axes or {})
    signature = inspect.signature(function)
    for name in [*non_split_inputs, *axes]:
        if name not in signature.parameters:
            raise ValueError(f"step: {function.__name__}() has no argument {name!r}")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        split = {name: axes.get(name, 0) for name in bound.arguments if name not in non_split_inputs}
        sizes = [size for name, axis in split.items() for size in _sizes(bound.arguments[name], axis, name)]
        weights = _weights(sizes, state.require().cfg.microbatches)

        def body(index: int) -> Any:
            part = copy.copy(bound)
            part.arguments = {
                name: _slice(value, len(weights), index, split[name]) if name in split else value
                for name, value in bound.arguments.items()}
            with models.microbatch(weights[index]):
                return function(*part.args, **part.kwargs)

        return _run(body, weights)

    return run


def _run(body: Callable[[int], Any], weights: list[float]) -> Any:
    alive = state.models()
    for model in alive:
        model.partition(body, state.cfg.microbatches)
        model.prepare_step()

    def trained() -> list[int]:
        """If one model has run backward(), the gradient may have reached each one that was called."""
        used = [(model, *model.take_use()) for model in alive]
        return [model.number for model, called, had in used if had or called and any(one[2] for one in used)]

    before = RandomState.of_process()
    try:
        if state.mesh.size("pp") == 1:
            output, numbers = _run_alone(body, weights), trained()
            for model in alive:
                model.reshard()
        else:
            run = models.engine().run(len(weights))
            if state.mesh.rank("pp") == 0:
                output, numbers = run.run_bodies(body, lambda results: (_merged(results, weights), trained()))
            else:
                output, numbers = run.serve()
    except BaseException:
        RandomState.set_process(before)
        for model in [model for model in alive if any(model.take_use())]:
            if model.sharded_units:
                parts.reset(model.sharded_units[-1])
                model.passes = 0
                model.zero_grad()  # those of whole parameters too: alone they would be half of the gradient
        raise
    for model in alive:
        if model.number in numbers:
            model.passes += 1
            if model.passes % model.backward_passes_per_step == 0:
                model.finish_update()
            model.run_post_step_hooks()
        else:
            gradients.bring_back(model)
    return output


def _run_alone(body: Callable[[int], Any], weights: list[float]) -> Any:
    """Runs the microbatches in this thread, without a pipeline, from the random states that a pipeline would give them.
    """
    states = RandomState.split(len(weights))
    after = RandomState.of_process()
    results = []
    for index, random in enumerate(states):
        if len(states) > 1:
            RandomState.set_process(random)
        with sums.alone.step():
            results.append(body(index))
    if len(states) > 1:
        RandomState.set_process(after)
    return _merged(results, weights)
