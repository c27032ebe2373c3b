"""DistributedOptimizer: updates this rank's parameters, and holds f32 masters, the loss scale and the optimizer's
state."""
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shoal.torch.parallel import files, gradients, records, sharding
from shoal.torch.parallel.sharding import Piece
from shoal.torch.parallel.state import state

LOCAL = "shoal_local_optimizer"  # the key that marks a local_state_dict()
_LARGEST = torch.finfo(torch.float32).max


class LossScale:
    """The factor by which fp16 losses are multiplied. A dynamic scale shrinks after overflows and grows after updates
    without."""

    def __init__(self, static: float | None, rule: Mapping[str, Any]) -> None:
        self.dynamic = static is None
        self.rule = rule
        self.value = float(rule["init_scale"] if static is None else static)
        self.good_steps, self.shift_left = 0, int(rule["delayed_shift"])

    def follow(self, overflow: bool) -> None:
        """Adjusts the scale after an update, or after one that `overflow` prevented."""
        if not self.dynamic:
            return
        if not overflow:
            self.good_steps += 1
            if self.good_steps % self.rule["scale_window"] == 0:
                grown = self.value * self.rule["scale_factor"]
                self.value = grown if grown <= _LARGEST else self.value
                self.shift_left = int(self.rule["delayed_shift"])
            return
        self.good_steps = 0
        if self.shift_left > 1:
            self.shift_left -= 1
        else:
            self.value = max(self.value / self.rule["scale_factor"], float(self.rule["min_scale"]))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "good_steps": self.good_steps, "shift_left": self.shift_left}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        if self.dynamic:
            self.value, self.good_steps, self.shift_left = saved["value"], saved["good_steps"], saved["shift_left"]


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer for the parameters of the DistributedModel. Make the model first.

        model = smp.DistributedModel(model)
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)

    optimizer: any with torch.optim's interface. When the model is cut, the parameters of other pipeline ranks leave its
        groups. With sharding its update of an element must not depend on others: Adam or SGD, but not LAMB
        or Adafactor.
    static_loss_scale: with fp16, the factor for the loss. None: init()'s parameter, or else a dynamic scale.
    dynamic_loss_scale: with fp16, the factor shrinks and grows. False requires static_loss_scale.
    dynamic_loss_args: in place of those of init()'s parameters: init_scale (2**32), scale_factor (2), scale_window
        (1000 updates without overflow until it grows), min_scale (1), delayed_shift (1: overflows until it shrinks).

    With fp16 or bf16, 16-bit parameters have f32 masters, which the optimizer updates. All ranks of the job must call
    step(), zero_grad(), clip_master_grads() and state_dict() in the same order. ValueError: the model does not have a
    parameter, or the optimizer cannot be sharded.
    """

    _is_accelerate_prepared = True  # accelerate must not wrap it

    def __init__(self, optimizer: torch.optim.Optimizer, static_loss_scale: float | None = None,
                 dynamic_loss_scale: bool = True, dynamic_loss_args: Mapping[str, Any] | None = None) -> None:
        model = model_of(optimizer)
        if model is None:
            raise RuntimeError("smp.DistributedOptimizer needs the model: make the smp.DistributedModel first")
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("this is a DistributedOptimizer already: give it the plain optimizer")
        self.optimizer = optimizer
        self.scaler = _loss_scale(static_loss_scale, dynamic_loss_scale, dynamic_loss_args)
        self.shards: sharding.Shards | sharding.Parts | None = None
        self.overflow = self.step_was_skipped = False
        self._model_ref = weakref.ref(model)  # the model has its optimizer; without a cycle both are freed at once
        self._pieces: list[Piece] | None = None  # None before the partition
        self._of_parameter: dict[int, list[Piece]] = {}
        self._own: set[int] = set()  # ids of this rank's parameters that are in the groups
        self._updated = False  # the gradients are ready for the update
        self._pending: tuple[Mapping[str, Any], bool] | None = None  # what to load after the partition
        self._names = self._named_groups()
        if any(hasattr(p, "tp_split") for p in model.parameters()):
            sharding.check_elementwise(optimizer, "tensor_parallel_degree > 1")
        gradients.install()
        state.optimizer = model.distributed_optimizer = self
        model.on_partition(self._take_partition)

    @property
    def _model(self) -> Any:
        model = self._model_ref()
        if model is None:
            raise RuntimeError("the optimizer's DistributedModel is gone: keep it as long as its optimizer")
        return model

    # torch.optim.Optimizer's own attributes are the inner optimizer's.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's groups. Schedulers set their learning rates. After the partition they hold this rank's
        parameters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state, keyed by the tensors that it updates."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.optimizer.defaults

    @property
    def loss_scale(self) -> float:
        """The factor that model.backward() multiplies losses by. 1 without fp16."""
        return self.scaler.value if self.scaler else 1.0

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedOptimizer cannot be pickled or copied: save its state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group. RuntimeError after the first step."""
        if self._pieces is not None:
            raise RuntimeError("the model has been cut: make the optimizer with all of its parameter groups")
        self.optimizer.add_param_group(param_group)
        self._names = self._named_groups()

    def register_step_pre_hook(self, hook: Callable) -> Any:
        """Like torch.optim.Optimizer's. The hook gets the inner optimizer; so do those of the next methods."""
        return self.optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable) -> Any:
        return self.optimizer.register_step_post_hook(hook)

    # The parameters.

    def _named_groups(self) -> list[list[str]]:
        names = {}
        for name, parameter in self._model.named_parameters():
            names[id(parameter)] = name
            if hasattr(parameter, "_shoal_was"):
                names[id(parameter._shoal_was)] = name
        groups = []
        for group in self.optimizer.param_groups:
            # Tensor parallelism replaces split parameters by this rank's parts. A part has the whole parameter's name.
            group["params"] = [getattr(p, "tp_part", p) for p in group["params"]]
            unknown = [p for p in group["params"] if id(p) not in names]
            if unknown:
                raise ValueError(f"the optimizer has a parameter of shape {list(unknown[0].shape)} that is not in the "
                                 "DistributedModel: make it from model.parameters() after smp.DistributedModel(model)")
            groups.append([names[id(p)] for p in group["params"]])
        return groups

    def _needs_master(self, parameter: nn.Parameter) -> bool:
        return (state.cfg.fp16 or state.cfg.bf16) and parameter.dtype in (torch.float16, torch.bfloat16)

    def has_master(self, name: str, parameter: nn.Parameter) -> bool:
        """Internal. Whether this optimizer, on any rank, updates the parameter's f32 master."""
        return self._needs_master(parameter) and any(name in names for names in self._names)

    def _take_partition(self, model: Any) -> None:
        """Replaces the groups' parameters by this rank's pieces."""
        if state.cfg.sharding_level == 1 and state.mesh.size("rdp") > 1:
            sharding.check_elementwise(self.optimizer, "shard_optimizer_state")
            self.shards = sharding.Shards()
        elif model.sharded_units:
            sharding.check_elementwise(self.optimizer, "sharded_data_parallel_degree > 1")
            self.shards = sharding.Parts()
        local = dict(model.local_named_parameters())
        before, self._pieces = dict(self.optimizer.state), []
        if before and (self.shards or any(self._needs_master(p) for p in local.values())):
            raise ValueError("the optimizer has a state already: make the DistributedOptimizer first, then load the "
                             "state into it")
        for group, names in zip(self.optimizer.param_groups, self._names):
            members = [(name, local[name]) for name in names if name in local]
            self._own.update(id(parameter) for _, parameter in members)
            pieces = self.shards.add(members, self._needs_master) if self.shards else [
                Piece(name, p, 0, p.numel(), nn.Parameter(p.detach().float(), p.requires_grad)
                      if self._needs_master(p) else p) for name, p in members]
            group["params"] = [piece.value for piece in pieces]
            self._pieces += pieces
        kept = {id(piece.value) for piece in self._pieces}
        for value in before:
            if id(value) not in kept:
                del self.optimizer.state[value]
        for piece in self._pieces:
            if piece.value is not piece.parameter:
                self._of_parameter.setdefault(id(piece.parameter), []).append(piece)
        whole = {id(piece.parameter) for piece in self._pieces if piece.value is piece.parameter}
        for parameter in self._own - whole if self.shards else ():
            self._of_parameter.setdefault(parameter, [])  # other replicas may have all of its elements
        if self._pending is not None:
            self._load_pending()

    @property
    def has_copies(self) -> bool:
        """Internal. True if it updates masters or segments instead of the parameters themselves."""
        return any(piece.value is not piece.parameter for piece in self._pieces or ())

    @property
    def partitioned(self) -> bool:
        """True once the groups hold this rank's parameters."""
        return self._pieces is not None

    def names(self) -> set[str]:
        """Internal. Names of the parameters that this rank's optimizer updates, wholly or in part."""
        return {piece.name for piece in self._require_pieces()}

    def has_all(self, found: Mapping[str, list[records.Record]]) -> bool:
        """Internal. Whether these records are just of this rank's pieces."""
        return all(any(record["range"] == [piece.start, piece.end] for record in found.get(piece.name, ()))
                   for piece in self._require_pieces())

    def _require_pieces(self) -> list[Piece]:
        if self._pieces is None:
            raise RuntimeError("the model has not been cut yet: run a step function first")
        return self._pieces

    def has(self, parameter: nn.Parameter) -> bool:
        """Internal. True for a parameter of this rank that is in one of the groups."""
        return id(parameter) in self._own

    def gradients_of(self, parameter: nn.Parameter) -> list[torch.Tensor] | None:
        """Internal. The gradients of this rank's masters or segments of `parameter`. None: the optimizer uses the
        parameter's own."""
        pieces = self._of_parameter.get(id(parameter))
        return None if pieces is None else [p.value.grad for p in pieces if p.value.grad is not None]

    # Updates.

    def take_gradients(self) -> None:
        """Internal. Adds the parameters' new gradients to those of the segments. gradients.reduce() calls it."""
        if self.shards:
            self.shards.reduce()
        self._updated = False

    def drop_gradients(self) -> None:
        """Internal. Drops the gradients of masters and segments, but not those of parameters. zero_grad() calls it."""
        self._updated = False
        for piece in self._pieces or ():
            if piece.value is not piece.parameter:
                piece.value.grad = None

    @torch.no_grad()
    def update_master_grads(self) -> None:
        """Prepares the gradients for the update: reduces them, converts them to f32 for masters and divides by the loss
        scale.

        With fp16, `overflow` is then true if any rank's gradients have inf or NaN. step() and clip_master_grads() call
        this method if it has not been called since the last step().
        """
        pieces = self._require_pieces()
        if self._updated:
            return
        gradients.reduce_pending(self._model)
        if not self.shards:
            for piece in pieces:
                if piece.has_master:
                    gradient = piece.parameter.grad
                    piece.value.grad = None if gradient is None else gradient.float()
        self.overflow = False
        if self.scaler:
            self.overflow = self._unscale([p.value.grad for p in pieces if p.value.grad is not None])
        self._updated = True

    def _unscale(self, scaled: list[torch.Tensor]) -> bool:
        """Divides by the loss scale; true if any rank of the job finds inf or NaN."""
        device = gradients.device_of_rank()
        found = torch.zeros((), dtype=torch.float32, device=device)
        inverse = torch.tensor(1.0 / self.loss_scale, dtype=torch.float32, device=device)
        for dtype in {gradient.dtype for gradient in scaled}:
            torch._amp_foreach_non_finite_check_and_unscale_([g for g in scaled if g.dtype == dtype], found, inverse)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=state.mesh.group("world"))
        return bool(found)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the unscaled gradients by their norm over the whole model. Returns the norm before clipping.

            norm = optimizer.clip_master_grads(1.0)
            optimizer.step()
        """
        return gradients.clip_grad_norm_(self._model.parameters(), max_norm, norm_type)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Updates the parameters, unless `overflow` is true. With shard_optimizer_state it also clears the gradients.

        closure: step() runs it first, with gradients enabled, and returns its result.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self.update_master_grads()
        self.step_was_skipped = self.overflow
        if not self.overflow:
            if state.cfg.sharding_level >= 2 and state.cfg.sdp_gradient_clipping:
                self.clip_master_grads(state.cfg.sdp_gradient_clipping)
            self._follow_parameters()
            self.optimizer.step()
            self._publish()
        if self.scaler:
            self.scaler.follow(self.overflow)
        self.drop_gradients()
        self._model.passes = 0
        return result

    @torch.no_grad()
    def _follow_parameters(self) -> None:
        """Copies parameters that other code has changed into their masters."""
        for piece in self._require_pieces():
            if piece.has_master and piece.version != piece.parameter_version:
                piece.value.copy_(piece.elements())
                piece.version = piece.parameter_version

    @torch.no_grad()
    def _publish(self) -> None:
        """Copies the updated values into the parameters of every replica."""
        if self.shards:
            self.shards.gather()
        mastered = [piece for piece in self._require_pieces() if piece.has_master]
        if mastered and not self.shards:
            torch._foreach_copy_([p.parameter for p in mastered], [p.value for p in mastered])
        for piece in mastered:
            piece.version = piece.parameter_version

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like torch.optim.Optimizer's, for parameters, masters and segments."""
        self.drop_gradients()
        self._model.reduced = []
        for parameter in self._model.local_parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad = torch.zeros_like(parameter.grad)
        gradients.mark_zeros(self._model.local_parameters())

    # State dicts.

    def own_records(self) -> dict[str, list[records.Record]]:
        """Internal. The optimizer state and f32 masters of the elements that this rank updates, by parameter name."""
        found: dict[str, list[records.Record]] = {}
        for piece in self._require_pieces():
            record = records.describe(piece.parameter, piece.start, piece.end)
            for key, value in self.optimizer.state.get(piece.value, {}).items():
                records.add(record, key, value, piece.value)
            if piece.has_master:
                records.add(record, "master", piece.value, piece.value)
            found.setdefault(piece.name, []).append(record)
        return found

    def named_groups(self) -> list[dict[str, Any]]:
        """Internal. The groups' options, with parameter names."""
        return [{**{key: value for key, value in group.items() if key != "params"}, "param_names": list(names)}
                for group, names in zip(self.optimizer.param_groups, self._names)]

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Returns this rank's part of the state, keyed by parameter name. load_state_dict() accepts it in any layout.

        gather_if_shard: with shard_optimizer_state, include the segments of all replicas. Every rank of the rdp group
            must then call this. False: only this rank's segments. With sharded parameters the parts of all replicas are
            always included, since scripts then save one replica's state, as the Trainer does.
        """
        own = self.own_records()
        has_own = bool(self.shards) and state.cfg.sharding_level == 1 and not gather_if_shard
        if self.shards and not has_own:
            own = records.merge(_gathered(own, "rdp"))
        return {LOCAL: 1, "layout": list(state.mesh.shape), "sharded": has_own, "records": own,
                "param_groups": self.named_groups(), "loss_scale": self.scaler and self.scaler.state_dict()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole model's state in torch.optim's form, which the plain optimizer in a single process can
        load.

        Every rank of the job calls it. Indices count the parameters in the order in which the optimizer was given them.
        A group's "param_names" lists their names. With fp16 and bf16, a parameter's state includes its f32 master.
        """
        own = self.own_records()
        if state.mesh.rank("tp"):  # only tp rank 0 contributes parameters that are not split
            own = {name: found for name, found in own.items() if found[0]["split"]}
        merged = records.merge(_gathered(own, "world" if self.shards else "mp"))
        whole: dict[int, dict[str, Any]] = {}
        groups, index = self.named_groups(), 0
        for group in groups:
            group["params"] = list(range(index, index + len(group["param_names"])))
            for index, name in zip(group["params"], group["param_names"]):
                if name in merged and (found := records.assemble(name, merged[name])):
                    whole[index] = found
            index = group["params"][-1] + 1 if group["params"] else index
        saved: dict[str, Any] = {"state": whole, "param_groups": groups}
        if self.scaler:
            saved["loss_scale"] = self.scaler.state_dict()
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any], only_masters: bool = False) -> None:
        """Loads the result of state_dict() or local_state_dict() in any layout, or a plain optimizer's state dict.

        It sets the groups' options, such as learning rates, and the loss scale at once. Before the first step, tensors
        wait until the model is cut. only_masters: loads just f32 masters and the loss scale. ValueError: parameters or
        groups differ from the optimizer's, or elements are missing.
        """
        self._check_groups(state_dict["param_groups"])
        if not only_masters:
            for group, saved in zip(self.optimizer.param_groups, state_dict["param_groups"]):
                group.update({key: value for key, value in saved.items() if key not in ("params", "param_names")})
        if self.scaler and state_dict.get("loss_scale"):
            self.scaler.load_state_dict(state_dict["loss_scale"])
        self._pending = (state_dict, only_masters)
        if self._pieces is not None:
            self._load_pending()

    def _check_groups(self, groups: list[dict[str, Any]]) -> None:
        if len(groups) != len(self._names):
            raise ValueError(f"the optimizer's state has {len(groups)} parameter groups, this optimizer "
                             f"{len(self._names)}: make it with the same groups")
        for names, saved in zip(self._names, groups):
            if "param_names" in saved and list(saved["param_names"]) != names:
                raise ValueError("the optimizer's state is of other parameters than this optimizer's: "
                                 f"{_first_difference(saved['param_names'], names)}")

    def _load_pending(self) -> None:
        (saved, only_masters), self._pending = self._pending, None

        def load() -> None:
            found = self._saved_records(saved)
            if not only_masters:
                self.optimizer.state.clear()
            self._follow_parameters()
            for piece in self._require_pieces():
                if piece.name in found:
                    self._load(piece, found[piece.name], only_masters)
                elif LOCAL in saved:
                    raise ValueError(f"the optimizer's state has no part for {piece.name}: it is of another cut of the "
                                     "model; load all ranks' parts, as smp.load() does")

        if self.shards:
            files.together(load)  # ranks wait for each other in _publish()
        else:
            load()
        self._publish()

    def _saved_records(self, saved: Mapping[str, Any]) -> dict[str, list[records.Record]]:
        if LOCAL in saved:
            return saved["records"]() if callable(saved["records"]) else saved["records"]
        found = {}
        for group, names in zip(saved["param_groups"], self._names):
            if len(group["params"]) != len(names):
                raise ValueError(f"a parameter group of the optimizer's state has {len(group['params'])} parameters, "
                                 f"this optimizer's {len(names)}: make it with the same groups")
            for index, name in zip(group["params"], names):
                if index in saved["state"]:
                    found[name] = [_whole_record(saved["state"][index], self._shape_of(name))]
        return found

    def _shape_of(self, name: str) -> list[int]:
        if not hasattr(self, "_shapes"):
            self._shapes = {n: records.describe(p)["shape"] for n, p in self._model.named_parameters()}
        return self._shapes[name]

    @torch.no_grad()
    def _load(self, piece: Piece, saved: list[records.Record], only_masters: bool) -> None:
        values = {key for record in saved for key in record["values"]}
        state_of = {}
        for key, value in records.extract(piece.name, saved, records.describe(
                piece.parameter, piece.start, piece.end)).items():
            if key in values:
                value = value.view(piece.value.shape)
            if key == "master":
                if piece.has_master:
                    piece.value.copy_(value)
            elif only_masters:
                continue
            elif isinstance(value, torch.Tensor) and key != "step":
                state_of[key] = value.to(device=piece.value.device, dtype=piece.value.dtype if
                                         value.is_floating_point() else None, copy=True)
            else:
                state_of[key] = value.clone() if isinstance(value, torch.Tensor) else value
        if state_of:
            self.optimizer.state[piece.value] = state_of


def model_of(optimizer: torch.optim.Optimizer) -> Any:
    """The DistributedModel that has one of its parameters; without such a one the newest."""
    if isinstance(optimizer, DistributedOptimizer):
        return optimizer._model
    given = {id(getattr(p, "tp_part", p)) for group in optimizer.param_groups for p in group["params"]}
    for model in state.require().models():
        if any(id(p) in given or id(getattr(p, "_shoal_was", p)) in given for p in model.parameters()):
            return model
    return state.model


def _loss_scale(static: float | None, dynamic: bool, arguments: Mapping[str, Any] | None) -> LossScale | None:
    """Makes the loss scale from the arguments; those not given are init()'s parameters. None without fp16."""
    cfg = state.cfg
    if not cfg.fp16:
        return None
    unknown = sorted(set(arguments or {}) - set(cfg.dynamic_loss_args))
    if unknown:
        raise ValueError(f"dynamic_loss_args has no {unknown[0]}: it has {', '.join(cfg.dynamic_loss_args)}")
    static = cfg.static_loss_scale if static is None else static
    if static is None and not (dynamic and cfg.dynamic_loss_scale):
        raise ValueError("fp16 needs a loss scale: give static_loss_scale or dynamic_loss_scale=True")
    return LossScale(static, {**cfg.dynamic_loss_args, **(arguments or {})})


def is_own_layout(saved: Mapping[str, Any]) -> bool:
    """True if a local_state_dict() has this layout and all parameters of this rank's optimizer."""
    own = state.optimizer
    return own is not None and own.partitioned and saved["layout"] == list(state.mesh.shape) and (
        own.has_all(saved["records"]) if saved["sharded"] else own.names() <= set(saved["records"]))


def merge_local(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the local_state_dict()s of several ranks into one."""
    return {**parts[0], "records": records.merge(part["records"] for part in parts), "sharded": False}


def _whole_record(saved: Mapping[str, Any], shape: list[int]) -> records.Record:
    record: records.Record = {"shape": shape, "split": None, "range": [0, torch.Size(shape).numel()], "values": {},
                              "others": {}}
    like = torch.empty(shape, device="meta")
    for key, value in saved.items():
        records.add(record, key, value, like)
    return record


def _first_difference(saved: list[str], own: list[str]) -> str:
    for index in range(max(len(saved), len(own))):
        pair = (saved[index] if index < len(saved) else None, own[index] if index < len(own) else None)
        if pair[0] != pair[1]:
            return f"number {index} is {pair[0]} there, {pair[1]} here"
    return "none"


def _gathered(found: dict[str, list[records.Record]], axis: str) -> Iterator[dict[str, list[records.Record]]]:
    """Yields the records of each rank along the axis, on the CPU."""
    mesh = state.mesh
    own = {name: [{**r, "values": {k: v.cpu().clone() for k, v in r["values"].items()},
                   "others": {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in r["others"].items()}}
                  for r in each] for name, each in found.items()}
    everywhere: list[Any] = [own] * mesh.size(axis)
    if mesh.size(axis) > 1:
        dist.all_gather_object(everywhere, own, group=mesh.group(axis))
    return iter(everywhere)
