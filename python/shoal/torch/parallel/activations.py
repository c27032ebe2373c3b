"""Activation checkpointing, and offloading of the checkpoints' inputs to a file or to host memory
(offload_activations)."""
import concurrent.futures
import ctypes
import functools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree

from shoal.torch.parallel.state import state

_SMALLEST = 4096  # bytes; smaller tensors are not offloaded
_BLOCK = 4096


def checkpoint(function: Callable, *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Runs function(*args, **kwargs), keeps only its inputs, and runs it again in backward.

        y = smp.checkpoint(self.block, x, mask=mask)

    preserve_rng_state: the second run starts from the first one's random states, so dropout repeats.
    function: a module whose part of the model must be on one pipeline rank, or any callable.

    With offload_activations the inputs leave the device until backward.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if state.cfg is not None and state.cfg.offload_activations:
        return _offloaded(function, args, kwargs, preserve_rng_state)
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False,
                                             preserve_rng_state=preserve_rng_state, **kwargs)


def checkpoint_sequential(sequential_module: nn.Sequential, input: Any, strategy: str = "each",
                          preserve_rng_state: bool = True, pack_args_as_tuple: bool = False) -> Any:
    """Runs the modules of a sequence under checkpoints.

        y = smp.checkpoint_sequential(self.layers, x, strategy="group_2")

    strategy: "each": a checkpoint for each module; "contiguous": one for all; "group_N": one for each N.
    pack_args_as_tuple: a module that returns a tuple passes it on as one argument, as in torch.nn.Sequential. False: as
        several.
    """
    modules = list(sequential_module)
    return _run_groups(_groups(modules, _length(strategy, len(modules))), input, preserve_rng_state, pack_args_as_tuple)


def _length(strategy: str, modules: int) -> int:
    """The number of modules in one checkpoint."""
    if strategy in ("each", "contiguous"):
        return 1 if strategy == "each" else max(modules, 1)
    kind, _, number = strategy.partition("_")
    if kind == "group" and number.isdecimal() and int(number):
        return int(number)
    raise ValueError(f'the strategy of activation checkpointing is "{strategy}": give "each", "contiguous" or '
                     '"group_N" with a number')


def _groups(modules: Sequence[nn.Module], length: int) -> list[list[nn.Module]]:
    return [list(modules[i:i + length]) for i in range(0, len(modules), length)]


def _run_groups(groups: list[list[nn.Module]], value: Any, preserve_rng_state: bool, packed: bool) -> Any:
    def arguments(value: Any) -> tuple:
        return value if isinstance(value, tuple) and not packed else (value,)

    def run(modules: list[nn.Module], *args: Any) -> Any:
        for module in modules:
            value = module(*args)
            args = arguments(value)
        return value

    for modules in groups:
        value = checkpoint(functools.partial(run, modules), *arguments(value), preserve_rng_state=preserve_rng_state)
    return value


def set_activation_checkpointing(module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False,
                                 strategy: str = "each") -> None:
    """Makes a module of the DistributedModel run under checkpoints from now on.

        model = smp.DistributedModel(model)
        for layer in model.module.encoder.layer:
            smp.set_activation_checkpointing(layer)

    Where pipelines cut the module, the largest parts that are on one rank are checkpointed each. strategy and
    pack_args_as_tuple are of torch.nn.Sequential, as in checkpoint_sequential(); a container without forward
    (ModuleList) has "each". Groups are of modules on the rank that runs the sequence; modules on other ranks are
    checkpointed one by one. ValueError: no such strategy, or one of groups for a module that is no sequence.
    """
    length = _length(strategy, 2)
    if length > 1 and not isinstance(module, nn.Sequential):
        raise ValueError(f'strategy "{strategy}" needs a torch.nn.Sequential, not {type(module).__name__}: use "each"')
    if state.require().mesh.size("pp") == 1:
        _Setter(None, preserve_rng_state, pack_args_as_tuple, strategy).visit(module)
        return
    owner = next((model for model in state.models() if any(one is module for one in model.module.modules())), None)
    if owner is None:
        raise RuntimeError("set_activation_checkpointing: the module is of no smp.DistributedModel: make that first")
    owner.on_partition(
        lambda model: _Setter(model, preserve_rng_state, pack_args_as_tuple, strategy).visit(module))


class _Setter:
    """Makes this rank's parts of a module run under checkpoints."""

    def __init__(self, model: Any, preserve_rng_state: bool, packed: bool, strategy: str) -> None:
        self._preserve, self._packed, self._strategy = preserve_rng_state, packed, strategy
        self._stages: dict[int, int] | None = None
        if model is not None:
            self._here = state.mesh.rank("pp")
            self._stages = {id(module): model.stage_of(name) if name else 0
                            for name, module in model.module.named_modules()}

    def _is_here(self, module: nn.Module) -> bool:
        return self._stages is None or self._stages[id(module)] == self._here

    def _is_whole(self, module: nn.Module) -> bool:
        return self._stages is None or (all(self._is_here(part) for part in module.modules()) and
                                        not any(p.is_meta for p in module.parameters()))

    def visit(self, module: nn.Module) -> None:
        if isinstance(module, nn.Sequential) and self._is_here(module):
            self._set_sequential(module)
        elif type(module).forward is nn.Module.forward or not self._is_whole(module):
            for child in module.children():
                self.visit(child)
        else:
            _override(module, functools.partial(_checkpointed, preserve_rng_state=self._preserve))

    def _set_sequential(self, module: nn.Sequential) -> None:
        groups: list[tuple[bool, list[nn.Module]]] = []
        children = list(module)
        length = _length(self._strategy, len(children))
        for start in range(0, len(children), length):
            whole = False
            for child in children[start:start + length]:
                if self._is_whole(child) and whole:
                    groups[-1][1].append(child)
                else:
                    whole = self._is_whole(child)
                    groups.append((whole, [child]))
        for whole, members in groups:
            if not whole:
                self.visit(members[0])
        _override(module, functools.partial(_run_sequence, groups=groups, preserve_rng_state=self._preserve,
                                            packed=self._packed))


def _checkpointed(forward: Callable, module: nn.Module, *args: Any, preserve_rng_state: bool, **kwargs: Any) -> Any:
    return checkpoint(functools.partial(forward, module), *args, preserve_rng_state=preserve_rng_state, **kwargs)


def _run_sequence(_: Callable, module: nn.Module, value: Any, groups: list[tuple[bool, list[nn.Module]]],
                  preserve_rng_state: bool, packed: bool) -> Any:
    for whole, members in groups:
        if whole:
            value = _run_groups([members], value, preserve_rng_state, packed)
        else:
            value = members[0](*value) if isinstance(value, tuple) and not packed else members[0](value)
    return value


def _override(module: nn.Module, run: Callable) -> None:
    if "forward" in module.__dict__:
        raise ValueError(f"a {type(module).__name__} has a forward of its own (module.forward = ...): call "
                         "set_activation_checkpointing() before it is set")
    module.__dict__["_shoal_checkpoint"] = run
    if not hasattr(type(module), "_shoal_plain_forward"):
        module.__class__ = _class_of(type(module))


@functools.cache
def _class_of(kind: type) -> type:
    """A subclass of the module's class whose forward runs under checkpoints. Copies of the module keep it."""
    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_shoal_checkpoint"](kind.forward, self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__,
                                         "forward": forward, "_shoal_plain_forward": kind.forward})


# Offloading.


class _File:
    """Allocates blocks of an unnamed temporary file. Thread-safe."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="shoal-activations-")
        weakref.finalize(self, self._file.close)
        self._free: dict[int, list[int]] = {}
        self._end = 0
        self._lock = threading.Lock()

    def write(self, tensor: torch.Tensor) -> int:
        """Writes a dense tensor and returns its offset in the file."""
        size = -(-tensor.nbytes // _BLOCK) * _BLOCK
        with self._lock:
            free = self._free.setdefault(size, [])
            place = free.pop() if free else self._end
            self._end = max(self._end, place + size)
        self._move(os.pwrite, tensor, place)
        return place

    def read(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        self._move(lambda fd, view, at: os.preadv(fd, [view], at), tensor, place)
        return tensor

    def _move(self, call: Callable, tensor: torch.Tensor, place: int) -> None:
        view = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
        done = 0
        while done < tensor.nbytes:
            moved = call(self._file.fileno(), view[done:], place + done)
            if moved == 0:
                raise OSError("the file of offloaded activations ended early")
            done += moved

    def free(self, place: int, nbytes: int) -> None:
        with self._lock:
            self._free[-(-nbytes // _BLOCK) * _BLOCK].append(place)


class _Away:
    """An offloaded copy of a tensor. A CUDA tensor's copy is in pinned memory, another's in the file. The copy lives as
    long as this object."""

    def __init__(self, store: "_Offloader", tensor: torch.Tensor) -> None:
        dense = tensor.detach()
        if not dense.is_contiguous():
            dense = dense.clone(memory_format=torch.preserve_format)
        self._store, self._coming = store, None
        self._like = torch.empty_strided(dense.shape, dense.stride(), dtype=dense.dtype, device="meta")
        self._device = dense.device
        if self._device.type == "cuda":
            stream = store.stream
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._host = torch.empty_strided(dense.shape, dense.stride(), dtype=dense.dtype, pin_memory=True)
                self._host.copy_(dense, non_blocking=True)
            dense.record_stream(stream)
        else:
            self._place = store.file.write(dense)
            weakref.finalize(self, store.file.free, self._place, dense.nbytes)

    def _load(self) -> tuple[torch.Tensor, Any]:
        tensor = torch.empty_strided(self._like.shape, self._like.stride(), dtype=self._like.dtype, device=self._device)
        if self._device.type != "cuda":
            return self._store.file.read(tensor, self._place), None
        with torch.cuda.stream(self._store.stream):
            tensor.copy_(self._host, non_blocking=True)
            return tensor, self._store.stream.record_event()

    def prefetch(self) -> None:
        if self._coming is None:
            self._coming = self._store.loader.submit(self._load)

    def take(self) -> torch.Tensor:
        """Returns the tensor, loaded again. Waits if a prefetch of it is still running."""
        coming, self._coming = self._coming, None
        tensor, event = coming.result() if coming is not None else self._load()
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
            tensor.record_stream(torch.cuda.current_stream())
        return tensor


class _Task:
    """A checkpointed call whose inputs are offloaded."""

    def __init__(self, away: list[_Away]) -> None:
        self.away = away


class _Offloader:
    """Offloads inputs of checkpoints and prefetches them in backward's order: within a microbatch the last call comes
    first; the microbatches follow one another."""

    def __init__(self) -> None:
        self.cfg = state.cfg
        self.file = _File()
        self.loader = concurrent.futures.ThreadPoolExecutor(1, "shoal-activations")
        self._lock = threading.Lock()
        self._tasks: dict[int, list[weakref.ref]] = {}  # per microbatch, in the order of the calls
        self._known: dict[int, tuple[StorageWeakRef, dict[tuple, weakref.ref]]] = {}  # by storage

    @functools.cached_property
    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def send(self, tensor: torch.Tensor) -> _Away:
        """Offloads a tensor. Calls that share a tensor, such as a mask, share one copy."""
        storage = StorageWeakRef(tensor.untyped_storage())
        with self._lock:
            for address in [a for a, (ref, _) in self._known.items() if ref.expired()]:
                del self._known[address]
            _, copies = self._known.setdefault(storage.cdata, (storage, {}))
            key = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
            away = copies[key]() if key in copies else None
            if away is None:
                away = _Away(self, tensor)
                copies[key] = weakref.ref(away)
        return away

    def add(self, microbatch: int, task: _Task) -> None:
        with self._lock:
            self._tasks.setdefault(microbatch, []).append(weakref.ref(task))

    def begin(self, microbatch: int, task: _Task) -> None:
        """Called when `task` needs its inputs. Starts to load those of the next activation_loading_horizon tasks."""
        with self._lock:
            for number, tasks in list(self._tasks.items()):
                self._tasks[number] = [ref for ref in tasks if ref() is not None and ref() is not task]
                if not self._tasks[number]:
                    del self._tasks[number]
            numbers = sorted(self._tasks)
            order = [n for n in numbers if n >= microbatch] + [n for n in numbers if n < microbatch]
            following = [ref() for n in order for ref in reversed(self._tasks[n])]
        for one in following[:self.cfg.activation_loading_horizon]:
            for away in one.away if one is not None else ():
                away.prefetch()


def _offloader() -> _Offloader:
    made = getattr(state, "offloader", None)
    if made is None or made.cfg is not state.cfg:
        made = state.offloader = _Offloader()
    return made


def _microbatch() -> int:
    from shoal.torch.parallel import pipeline

    visit = pipeline.current()
    return 0 if visit is None else visit.microbatch.index


def _is_offloaded(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) and value.layout is torch.strided
            and value.device.type in ("cpu", "cuda") and value.nbytes >= _SMALLEST)


def _without_graph(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.is_leaf:
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _offloaded(function: Callable, args: tuple, kwargs: dict, preserve_rng_state: bool) -> Any:
    """Runs a checkpoint that holds the offloaded copies of its inputs instead of the tensors."""
    store, microbatch = _offloader(), _microbatch()
    leaves, form = _pytree.tree_flatten((args, kwargs))
    kept = [store.send(leaf) if _is_offloaded(leaf) else _without_graph(leaf) for leaf in leaves]
    task = _Task([one for one in kept if isinstance(one, _Away)])
    store.add(microbatch, task)
    needs = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
    first = [leaves]

    def run(anchor: torch.Tensor) -> Any:
        if first:
            values = first.pop()
        else:
            store.begin(microbatch, task)
            values = [one.take().requires_grad_(need) if isinstance(one, _Away) else one
                      for one, need in zip(kept, needs)]
        args, kwargs = _pytree.tree_unflatten(values, form)
        return function(*args, **kwargs)

    device = next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.device("cpu"))
    anchor = torch.empty(0, device=device)  # shows checkpoint() which device's random state to keep
    del leaves
    return torch.utils.checkpoint.checkpoint(run, anchor, use_reentrant=False, preserve_rng_state=preserve_rng_state)
