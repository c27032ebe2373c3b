"""DistributedModel, whose modules live on the ranks of a pipeline."""
import contextlib
import functools
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from shoal.torch.parallel import delayed, gradients, parts, pipeline, sums, tensor
from shoal.torch.parallel.messages import Channel, Modules
from shoal.torch.parallel.partition import Homes, Trace, Traced, Tree, Untraceable, agree, decide
from shoal.torch.parallel.runs import Runs
from shoal.torch.parallel.state import state
from shoal.torch.parallel.turns import Peers, RandomState

log = logging.getLogger("shoal.torch.parallel")
_here = threading.local()  # .weight: the running microbatch's share of the batch's samples


@contextlib.contextmanager
def microbatch(weight: float) -> Iterator[None]:
    """Marks this thread as running the step function for a microbatch. `weight` is its share of the batch's samples."""
    _here.weight = weight
    try:
        yield
    finally:
        _here.weight = None


class Engine:
    """State that the models of a process share: the channel between pipeline ranks."""

    def __init__(self) -> None:
        self.mesh = state.require().mesh
        self.modules = Modules()
        self._runs = Runs(self.mesh.size("tp") == 1 or state.cfg.prescaled_batch)
        self.models: list[weakref.ref] = []
        self._channel: Channel | None = None
        self._peers: Peers | None = None

    def run(self, count: int) -> pipeline.Run:
        if self._channel is None:
            self._channel = Channel(self.mesh.patient_group("pp"), self.mesh.deadline_seconds())
            if self.mesh.size("tp") > 1:
                self._peers = Peers(self.mesh.patient_group("tp"))
        cfg = state.cfg
        active = self.mesh.size("pp") if cfg.pipeline == "1f1b" else cfg.active_microbatches
        return pipeline.Run(self._channel, self.modules, self._runs, count, cfg.pipeline, active, self._peers)


def engine() -> Engine:
    """Returns this process's engine. Makes one if the mesh has none."""
    made = getattr(state, "engine", None)
    if made is None or made.mesh is not state.require().mesh:
        made = state.engine = Engine()
    return made


# Arguments of DistributedModel without effect: the default, and the reason.
_IGNORED = {
    "trace_device": ("gpu", "a model is traced on its own device"),
    "trace_execution_times": (True, "a trace always measures times"),
    "trace_memory_usage": (False, "a trace always measures memory"),
    "overlapping_allreduce": (True, "gradients are summed after the step's last backward"),
    "bucket_cap_mb": (25, "gradients are summed in buckets of 25 MiB"),
    "gradient_as_bucket_view": (False, "buckets are copies of the gradients")}


@functools.cache
def _warn_once(name: str, value: Any) -> None:
    log.warning("DistributedModel: %s (%r) has no effect: %s", name, value, _IGNORED[name][1])


class DistributedModel(nn.Module):
    """A model that is split over the ranks of a pipeline and of tensor parallelism. Call it inside an smp.step
    function.

        model = smp.DistributedModel(MyModel())
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

        @smp.step
        def train_step(model, x, y):
            loss = criterion(model(x), y)
            model.backward(loss)
            return loss

    module: the whole model, made alike on every rank. The first step cuts it (partition.py): the parameters of other
        pipeline ranks become meta tensors. A second DistributedModel of the same module is the same object.
    backward_passes_per_step: steps whose gradients are added up before they are summed over ranks.
    average_grads_across_microbatches: false: gradients are sums over microbatches instead of means.
    broadcast_buffers: whenever gradients have been summed over ranks, buffers such as BatchNorm's statistics get the
        first replica's values, as DistributedDataParallel does before the next forward. false: each replica keeps its
        own after the start.

    SMP's other arguments have no effect; values other than their defaults are logged. Other attributes are read from
    the module.
    """

    def __new__(cls, module: nn.Module, *args: Any, **kwargs: Any) -> "DistributedModel":
        for model in state.require().models():
            if model.module is module:
                return model
        return super().__new__(cls)

    def __init__(self, module: nn.Module, trace_device: str = "gpu", trace_execution_times: bool = True,
                 overlapping_allreduce: bool = True, backward_passes_per_step: int = 1,
                 average_grads_across_microbatches: bool = True, bucket_cap_mb: int = 25,
                 trace_memory_usage: bool = False, broadcast_buffers: bool = True,
                 gradient_as_bucket_view: bool = False) -> None:
        if "module" in self.__dict__.get("_modules", {}):
            return  # __new__() returned the existing model
        if isinstance(module, DistributedModel):
            raise ValueError("DistributedModel of a DistributedModel: give it the plain module")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}: give 1 or more")
        given = dict(trace_device=trace_device, trace_execution_times=trace_execution_times,
                     trace_memory_usage=trace_memory_usage, overlapping_allreduce=overlapping_allreduce,
                     bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=gradient_as_bucket_view)
        for name, value in given.items():
            if value != _IGNORED[name][0]:
                _warn_once(name, value)
        super().__init__()
        self.module = tensor.distribute(module)
        self._broadcasts_buffers = broadcast_buffers
        self.backward_passes_per_step = backward_passes_per_step
        self.passes = 0
        self.reduced: list[tuple[nn.Parameter, torch.Tensor]] = []  # sums that the running step adds to
        self._average = average_grads_across_microbatches
        self._has_backward = self._was_called = False
        self._homes: Homes | None = None
        self._stages: dict[str, int] = {}
        self._tree: Tree | None = None
        self._trace: Trace | None = None
        self._callbacks: list[Callable[["DistributedModel"], None]] = []
        self._post_step: OrderedDict[int, Callable[[Any, Any], None]] = OrderedDict()
        self.distributed_optimizer: Any = None  # its DistributedOptimizer
        self.sharded_units: list[Any] = []  # of sharded parameters (parts.py)
        self.number = len(engine().models)
        engine().models.append(weakref.ref(self))
        weakref.finalize(self, engine().modules.remove, self.number)
        state.model = self
        if state.mesh.size("pp") == 1:
            tree = Tree(self.module)
            self._take_homes(tree, Homes(tree, {}))
        elif any(map(delayed.is_delayed, self.module.parameters())):
            self.partition(lambda _: None, state.cfg.microbatches)  # without values it cannot be traced

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def get_module(self) -> nn.Module:
        """The model's own module, as `module`."""
        return self.module

    # Running.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._trace is not None:
            args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, _recordable, (args, kwargs))
            self._trace.run(self._tree.modules, lambda: self.module(*args, **kwargs))
            raise Traced()
        self._was_called = True
        if state.mesh.size("pp") > 1 and pipeline.current() is None and not state.tracing:
            raise RuntimeError("a DistributedModel was called outside of a step function: with "
                               "pipeline_parallel_degree > 1, call it in a function with @smp.step, on every rank")
        output = self.module(*args, **kwargs)
        if self.sharded_units:
            sums.hook_outputs(output)
        if not torch.is_grad_enabled():
            self.reshard()
        return output

    def reshard(self) -> None:
        """Internal. Drops what this rank has gathered of sharded parameters."""
        for unit in self.sharded_units:
            unit.reshard()

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Runs backward from `tensors` (the loss) instead of loss.backward(), inside a step function.

        The gradients are multiplied by the microbatch's share of the batch and by the optimizer's loss scale.
        """
        if state.tracing:
            return
        weight = getattr(_here, "weight", None)
        if weight is None:
            raise RuntimeError("model.backward() was called outside of a step function: call it in a function with "
                               "@smp.step")
        scale = (weight if self._average else 1.0) * getattr(self.distributed_optimizer, "loss_scale", 1.0)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if grad_tensors is None:
            gradients: list[Any] = [None] * len(tensors)
        else:
            gradients = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors)
        scaled = [torch.full_like(t, scale) if g is None and t.numel() == 1 else g if g is None else g * scale
                  for t, g in zip(tensors, gradients, strict=True)]
        self._has_backward = True
        visit = pipeline.current()
        if visit is None:
            with sums.alone.backward():
                torch.autograd.backward(tensors, scaled)
        else:
            visit.backward(tensors, scaled)

    def take_use(self) -> tuple[bool, bool]:
        """Internal. Whether it was called, and whether backward() has run, since the last time."""
        use = self._was_called, self._has_backward
        self._was_called = self._has_backward = False
        return use

    def register_post_step_hook(self, hook: Callable[[Any, Any], None]) -> RemovableHandle:
        """hook(model, optimizer) runs once, after the next step's backward. Returns a handle with remove()."""
        return _added(self._post_step, hook)

    def run_post_step_hooks(self) -> None:
        hooks, self._post_step = self._post_step, OrderedDict()
        for hook in hooks.values():
            hook(self, self.distributed_optimizer)

    def __deepcopy__(self, memo: dict) -> "DistributedModel":
        raise TypeError("a DistributedModel cannot be copied, since several ranks have its parameters: copy the module "
                        "before smp.DistributedModel(module), or load this model's state_dict() into another one")

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedModel cannot be pickled or copied: save its state_dict()")

    def _apply(self, fn: Callable, recurse: bool = True) -> "DistributedModel":
        """to(), half() and the like. RuntimeError if other ranks, masters or segments would not follow."""
        is_cut = state.mesh.size("pp") > 1 and self.partitioned
        if not is_cut and not getattr(self.distributed_optimizer, "has_copies", False):
            return super()._apply(fn, recurse)
        for name, value in [*self.local_named_parameters(), *self.module.named_buffers()]:
            found = value if value.is_meta else fn(value.detach())
            if (found.dtype, found.device) != (value.dtype, value.device):
                raise RuntimeError(f"{name} is {value.dtype} on {value.device} and cannot become {found.dtype} on "
                                   f"{found.device} any more, because the model has been cut or its optimizer has "
                                   "copies of it: convert the module before smp.DistributedModel(module)")
        return self

    # The partition.

    @property
    def partitioned(self) -> bool:
        """True once each parameter has moved to its rank."""
        return self._homes is not None

    def on_partition(self, callback: Callable[["DistributedModel"], None]) -> None:
        """Calls callback(model) once each parameter has moved to its rank. If that has happened, calls it at once."""
        if self.partitioned:
            callback(self)
        else:
            self._callbacks.append(callback)

    def register_post_partition_hook(self, hook: Callable[[Any, Any], None]) -> RemovableHandle:
        """hook(model, optimizer) runs once each parameter has moved to its rank. Returns a handle with remove()."""
        hooks: OrderedDict[int, Callable[[Any, Any], None]] = OrderedDict()
        handle = _added(hooks, hook)
        self.on_partition(lambda model: [one(model, model.distributed_optimizer) for one in hooks.values()])
        return handle

    def stage_of(self, name: str) -> int:
        """The pipeline rank of the parameter, buffer or module called `name`."""
        self._require_partition()
        if name not in self._stages:
            raise KeyError(f"the model has no parameter, buffer or module {name!r}")
        return self._stages[name]

    def _require_partition(self) -> None:
        if not self.partitioned:
            raise RuntimeError("the model has no partition yet: the first step makes it; on_partition(callback) waits")

    def partition(self, body: Callable[[int], Any], microbatches: int) -> None:
        """Internal. Cuts the model unless it is cut already. `body` runs the step function for a microbatch."""
        if self.partitioned:
            return
        tree = Tree(self.module)
        traced = functools.cache(lambda: self._traced(tree, body))
        # Parameters and optimizers created here must not inherit the caller's inference mode or no_grad().
        with torch.inference_mode(False), torch.enable_grad():
            if state.mesh.size("tp") > 1:
                traced()  # on every rank, since the modules communicate
            self._take_homes(tree, agree(tree, lambda: decide(tree, traced(), microbatches)))

    def _traced(self, tree: Tree, body: Callable[[int], Any]) -> Trace | None:
        cfg = state.cfg
        if cfg.skip_tracing or not cfg.auto_partition or cfg.load_partition:
            return None
        random = RandomState.of_process()
        self._tree, self._trace, state.tracing = tree, Trace(), True
        try:
            if any(p.is_meta for p in self.module.parameters()):
                raise Untraceable("its parameters have no values yet")
            if any(model.partitioned for model in state.models()):
                raise Untraceable("another model has been cut before")
            body(0)
            raise Untraceable("the step function does not call it")
        except Traced:
            return self._trace
        except Untraceable as problem:
            log.warning("the model is not traced, since %s: it is cut by numbers of parameters", problem)
            return None
        finally:
            self._trace, state.tracing = None, False
            RandomState.set_process(random)

    def _take_homes(self, tree: Tree, homes: Homes) -> None:
        here = state.mesh.rank("pp")
        self._tree = tree
        engine().modules.add(self.number, tree.modules)
        replaced: dict[int, nn.Parameter] = {}
        for number, module in enumerate(tree.modules):
            if homes.modules[number] != here:
                _make_remote(module, homes.modules[number])
            for name, parameter in module._parameters.items():
                if parameter is not None and homes.parameters[id(parameter)] != here:
                    module._parameters[name] = _as_meta(parameter, replaced)
                elif parameter is not None and delayed.is_delayed(parameter):
                    module._parameters[name] = delayed.made(parameter, replaced)
            _let_fetch(module, homes, here, number)
        for old, new in replaced.items():
            homes.parameters[id(new)] = homes.parameters.pop(old)
        self._homes = homes
        # Keyed by name, because sharding replaces parameters.
        self._stages = {name: homes.modules[tree.numbers[id(module)]]
                        for name, module in self.module.named_modules(remove_duplicate=False)}
        for name, _ in self.module.named_buffers(remove_duplicate=False):
            self._stages[name] = self._stages[name.rpartition(".")[0]]
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            self._stages[name] = homes.parameters[id(parameter)]
        _equalize([*self.module.parameters(), *self._local_buffers()])
        if state.mesh.size("shard") > 1:
            self.sharded_units = parts.shard(self.module)
        if state.mesh.size("pp") > 1:
            for number, module in enumerate(tree.modules):
                if homes.modules[number] == here and not tree.children[number]:
                    module.register_forward_pre_hook(pipeline.pause_hook)
        self._hook_parameters()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def prepare_step(self) -> None:
        """Internal. Puts gradients of earlier steps away, and hooks parameters that were frozen before."""
        gradients.set_aside(self)
        self._hook_parameters()

    def _hook_parameters(self) -> None:
        for parameter in self.local_parameters():
            if parameter.requires_grad and not hasattr(parameter, "_shoal_hooked"):
                parameter._shoal_hooked = True
                sums.hook_gradients(parameter)

    def _local_buffers(self) -> Iterator[torch.Tensor]:
        here = state.mesh.rank("pp")
        for number, module in enumerate(self._tree.modules):
            if self._homes.modules[number] == here:
                yield from module._buffers.values()

    def finish_update(self) -> None:
        """Internal. Sums the gradients over the mesh, then makes the replicas' buffers equal."""
        gradients.reduce(self)
        if self._broadcasts_buffers:
            _equalize(self._local_buffers())

    # Parameters and state.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.nn.Module's, also for gradients that the DistributedOptimizer has taken."""
        super().zero_grad(set_to_none)
        gradients.mark_zeros(self.local_parameters())
        self.reduced = []
        if self.distributed_optimizer is not None:
            self.distributed_optimizer.drop_gradients()

    def named_parameters(self, prefix: str = "", recurse: bool = True,
                         remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """The whole model's parameters, by their names in the module. Those of other pipeline ranks are meta tensors.
        """
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(self, prefix: str = "", recurse: bool = True,
                      remove_duplicate: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """The whole model's buffers, by their names in the module."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This pipeline rank's parameters by name; before the partition, the whole model's."""
        for name, parameter in self.module.named_parameters():
            if self._homes is None or self._stages[name] == state.mesh.rank("pp"):
                yield name, parameter

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """This pipeline rank's parameters; before the partition, the whole model's."""
        return (parameter for _, parameter in self.local_named_parameters())

    def _stage_of_key(self, key: str) -> int:
        return self._stages.get(key, self._stages[key.rpartition(".")[0]])  # extra state is on its module's rank

    def local_state_dict(self) -> dict[str, Any]:
        """This rank's part: of its pipeline rank, and of split or sharded parameters what it has."""
        whole = self.module.state_dict(keep_vars=True)
        here = state.mesh.rank("pp")
        return {key: _plain(value) for key, value in whole.items()
                if self._homes is None or self._stage_of_key(key) == here}

    def optimizer_state_dict(self) -> dict[str, Any]:
        """state_dict() of this model's DistributedOptimizer. RuntimeError: it has none."""
        if self.distributed_optimizer is None:
            raise RuntimeError("the model has no DistributedOptimizer: make it before optimizer_state_dict()")
        return self.distributed_optimizer.state_dict()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The whole model's state, by the names in the module, on every rank. All ranks of a replica must call it
        together, and all ranks of the job where parameters are sharded."""
        local = self.module.state_dict(*args, **{**kwargs, "keep_vars": True})
        if state.mesh.size("pp") > 1 and self.partitioned:
            self._gather(local)
        gathered = {id(value): parts.whole(value) for value in local.values() if isinstance(value, torch.Tensor)}
        return tensor.whole_state_dict(self.module, {key: gathered.get(id(value), value)
                                                     for key, value in local.items()})

    def _gather(self, values: dict[str, Any]) -> None:
        mesh = state.mesh
        group, here = mesh.group("pp"), mesh.rank("pp")
        stages = {key: self._stage_of_key(key) for key, value in values.items()}
        for stage, source in enumerate(mesh.ranks("pp")):
            keys = [key for key in values if stages[key] == stage]
            about = [[(v.shape, v.dtype, v.device.type) if isinstance(v, torch.Tensor) else v
                      for v in (values[key] for key in keys)] if here == stage else None]
            dist.broadcast_object_list(about, source, group=group)
            received: dict[int, torch.Tensor] = {}
            for key, one in zip(keys, about[0]):
                value = values[key]
                if not isinstance(value, torch.Tensor):
                    values[key] = one
                elif id(value) in received:
                    values[key] = received[id(value)]
                else:
                    shape, dtype, device = one
                    whole = value.detach().contiguous() if here == stage else torch.empty(shape, dtype=dtype,
                                                                                          device=device)
                    dist.broadcast(whole, source, group=group)
                    values[key] = received[id(value)] = value if here == stage else whole

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads a state dict of the whole model or from local_state_dict(), before or after the partition.

        Returns missing and unexpected keys; if `strict`, raises RuntimeError for them. Keys of other pipeline ranks may
        be missing.
        """
        own = self.module.state_dict(keep_vars=True)
        here = {key for key, value in own.items() if not (isinstance(value, torch.Tensor) and value.is_meta)}
        whole = {key: value for key, value in state_dict.items()
                 if key in own and isinstance(value, torch.Tensor)
                 and value.shape not in (own[key].shape, parts.local(own[key]).shape)}
        values = {**state_dict, **tensor.split_state_dict(self.module, whole)}
        loaded = [key for key in values if key in here and parts.is_part(own[key])]
        for key in loaded:
            parts.load(own[key], values[key])
        found = self.module.load_state_dict({k: v for k, v in values.items() if k in here and k not in set(loaded)},
                                            strict=False, assign=assign)
        missing = [key for key in found.missing_keys if key in here and key not in values]
        unexpected = [key for key in values if key not in own]
        if strict and (missing or unexpected):
            raise RuntimeError(f"load_state_dict: missing keys {missing}, unexpected keys {unexpected}: give a state "
                               "dict of this model, or strict=False")
        found.missing_keys[:], found.unexpected_keys[:] = missing, unexpected
        return found


@torch.no_grad()
def _equalize(values: Iterable[torch.Tensor | None]) -> None:
    """Copies the first replica's values to all others, as DistributedDataParallel does."""
    mesh = state.mesh
    by_axis: dict[str, dict[int, torch.Tensor]] = {"rdp": {}, "dp": {}}
    for value in values:
        if value is not None and not value.is_meta:
            by_axis["rdp" if hasattr(value, "tp_split") else "dp"][id(value)] = value.detach()
    for axis, members in by_axis.items():
        if members and mesh.size(axis) > 1:
            dist._broadcast_coalesced(mesh.group(axis), list(members.values()), gradients.BUCKET_BYTES, 0)


def _added(hooks: OrderedDict, hook: Callable) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _recordable(value: torch.Tensor) -> torch.Tensor:
    return value.clone() if value.is_inference() else value


def _plain(value: Any) -> Any:
    return parts.local(value).detach() if isinstance(value, torch.Tensor) else value


def _as_meta(parameter: nn.Parameter, replaced: dict[int, nn.Parameter]) -> nn.Parameter:
    """A meta tensor in place of the parameter. Frees the parameter's data, even if an optimizer still refers to the
    parameter."""
    made = replaced.get(id(parameter))
    if made is None:
        made = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        made.__dict__.pop("_shoal_delayed", None)
        made._shoal_was = parameter  # keeps the old object alive, so that its id is not reused
        replaced[id(parameter)] = made
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    return made


@functools.cache
def _class_of(kind: type, remote: bool) -> type:
    """The class of a module on a rank that lacks the module or one of its parameters."""
    def fetching(self: nn.Module, name: str) -> Any:
        value = kind.__getattr__(self, name)
        home = self.__dict__["_shoal_homes"].get(name)
        visit = pipeline.current()
        return value if home is None or visit is None else visit.fetch(home, self, name)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        visit = pipeline.current()
        home = self.__dict__["_shoal_home"]
        if visit is None:
            raise RuntimeError(f"a {kind.__name__} that lives on pipeline rank {home} was called outside of a step "
                               "function: call it in a function with @smp.step, on every rank")
        return visit.call(home, self, args, kwargs)

    body: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattr__": fetching}
    if remote:
        body.update(forward=forward, __call__=nn.Module.__call__)
    return type(kind.__name__, (kind,), body)


def _make_remote(module: nn.Module, home: int) -> None:
    """Makes calls of the module run on rank `home`, where its hooks and forward's wrappers run too."""
    module.__dict__["_shoal_home"] = home
    module.__dict__.pop("forward", None)
    for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                  module._backward_pre_hooks):
        hooks.clear()


def _let_fetch(module: nn.Module, homes: Homes, here: int, number: int) -> None:
    """Makes reads of parameters and buffers that live on another rank ask that rank, inside a step."""
    home = homes.modules[number]
    elsewhere = {name: homes.parameters[id(p._shoal_was)] for name, p in module._parameters.items()
                 if p is not None and p.is_meta and hasattr(p, "_shoal_was")}
    if home != here:
        elsewhere.update({name: home for name, buffer in module._buffers.items() if buffer is not None})
    if elsewhere or home != here:
        module.__dict__["_shoal_homes"] = elsewhere
        module.__class__ = _class_of(type(module), home != here)
