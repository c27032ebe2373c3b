"""Checkpoints in Shoal's own format: each rank writes what it holds, and any layout reads what it needs.

`shoal checkpoint` inspects and converts such a folder, and `shoal train` goes on from it where Shoal has the model:

    shard-RRRRR-of-NNNNN.safetensors  a rank's tensors, or parts of them: weights under the model's names (the f32
                                      masters, where there are any), and optimizer state as "exp_avg/NAME"
    trainer_state.json, config.json   the run's position; the model's configuration, where Hugging Face's has one
    user_content_P_T.pt               the script's object of pipeline rank P and tensor-parallel rank T
    extra.pt                          what the script's model and optimizer have besides tensors in parts
    COMPLETE                          the bytes and checksums of all files

The files of train/checkpoint explain the format. Its writer and its reader are C++.
"""
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shoal import native
from shoal.torch.parallel import files, records
from shoal.torch.parallel.optimizer import LOCAL
from shoal.torch.parallel.state import state
from shoal.torch.parallel.tensor.functions import TensorSplit

_native = native._native()
MARKER, EXTRA = "COMPLETE", "extra.pt"
_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64",
           torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.int8: "i8", torch.bool: "u8"}
_OF_NAME = {name: dtype for dtype, name in _DTYPES.items() if dtype != torch.bool}
_MOST_DIMS = 6
_LOOKS, _BETWEEN_LOOKS = 10, 0.02  # a network file system may show files late
_T = TypeVar("_T")


def _gather(what: str, work: Callable[[], _T]) -> list[_T]:
    """As files.gather(). Every problem is an OSError that begins with `what`."""
    def attempt() -> _T:
        try:
            return work()
        except Exception as problem:
            raise OSError(f"{what}: {problem}") from problem

    return files.gather(attempt)


def _description(name: str, record: records.Record, dtype: torch.dtype) -> dict[str, Any]:
    """Describes a part of a tensor in the form of train/checkpoint/tensor_shard.h."""
    whole = list(record["shape"])
    local, corner, pieces = list(whole), [0] * len(whole), []
    if record["split"]:
        dim, size, blocks, rank, ranks = record["split"]
        local[dim] = 0
        for start, length in TensorSplit(dim, size, blocks).ranges(rank, ranks):
            at = local[dim]
            local[dim] += length
            pieces.append([[*whole[:dim], length, *whole[dim + 1:]], [*corner[:dim], at, *corner[dim + 1:]],
                           [*corner[:dim], start, *corner[dim + 1:]]])
    else:
        pieces.append([whole, corner, corner])
    return {"name": name, "whole": whole, "local": local, "pieces": [p for p in pieces if math.prod(p[0])],
            "begin": record["range"][0], "end": record["range"][1], "dtype": _DTYPES[dtype]}


class _Held:
    """The tensors, parts of tensors and other values that this rank can write to a checkpoint."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.tensors: list[tuple[str, records.Record, torch.Tensor]] = []
        self.values: dict[str, Any] = {}  # of the model
        self.others: dict[str, dict[str, Any]] = {}  # of the optimizer, by parameter
        self.groups: list[dict[str, Any]] | None = None
        if model is not None:
            self._take_model(model, optimizer)
        if optimizer is not None:
            self.groups = optimizer.named_groups()
            self._take_optimizer(optimizer.own_records())

    def _take_model(self, model: Any, optimizer: Any) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        seen = set()
        for name, value in model.local_state_dict().items():
            if not isinstance(value, torch.Tensor):
                self.values[name] = value
                continue
            parameter = parameters.get(name, value)
            if id(parameter) in seen or (optimizer is not None and optimizer.has_master(name, parameter)):
                continue
            if name in parameters:
                seen.add(id(parameter))  # a tied parameter has its first name
            self._add(name, records.describe(parameter), value, self.values)

    def _take_optimizer(self, found: Mapping[str, list[records.Record]]) -> None:
        for name, each in found.items():
            for record in each:
                others = dict(record["others"])
                for key, value in record["values"].items():
                    self._add(name if key == "master" else f"{key}/{name}", record, value, others, key)
                if others:
                    self.others[name] = others

    def _add(self, name: str, record: records.Record, value: torch.Tensor, rest: dict[str, Any],
             key: str | None = None) -> None:
        if record["split"] is None and state.mesh.rank("tp"):
            return  # tp rank 0 has it, perhaps divided differently
        if not value.numel() and math.prod(record["shape"]):
            return
        if value.dtype in _DTYPES and len(record["shape"]) <= _MOST_DIMS:
            self.tensors.append((name, record, value.detach()))
        elif record["split"] is None and value.numel() == math.prod(record["shape"]):
            rest[key or name] = value.detach().cpu().view(record["shape"])
        else:
            raise ValueError(f"{name} is {value.dtype} with {len(record['shape'])} dimensions: such a tensor is not "
                             "saved in parts; save it whole with partial=False")

    def steps(self) -> int:
        return max((int(others["step"]) for others in self.others.values() if "step" in others), default=0)

    def keys(self) -> list[tuple]:
        """Keys of this rank's tensors. Ranks that hold the same elements have the same key."""
        return [(name, *(record["split"] or ()), *record["range"]) for name, record, _ in self.tensors]

    def keep_own(self, keys: list[list[tuple]]) -> None:
        """Drops the tensors that a lower rank holds too, because that rank writes them. `keys`: keys() of all ranks."""
        before = {key for of_rank in keys[:state.mesh.rank("world")] for key in of_rank}
        self.tensors = [one for one, key in zip(self.tensors, self.keys()) if key not in before]

    def write(self, folder: str, save: str) -> str:
        rank, ranks = state.mesh.rank("world"), state.mesh.size("world")
        values = [value.cpu().contiguous() for _, _, value in self.tensors]
        _native.write_shard(folder, rank, ranks, json.dumps([_description(name, record, value.dtype)
                                                             for name, record, value in self.tensors]),
                            [value.data_ptr() for value in values], save)
        return _native.shard_name(rank, ranks)


def _owner(path: str, token: str) -> int:
    """The first rank that sees the folder `path` of this rank; hosts may each have a folder of that name."""
    ranks = state.mesh.size("world")

    def probe(rank: int) -> str:
        return os.path.join(path, f".{token}.{rank}")

    def touch() -> None:
        with open(probe(state.mesh.rank("world")), "wb"):
            pass

    def look() -> int:
        for _ in range(_LOOKS):
            if os.path.exists(probe(0)):
                break
            time.sleep(_BETWEEN_LOOKS)
        return next(rank for rank in range(ranks) if os.path.exists(probe(rank)))

    _gather(f"{path} takes no files", touch)
    owner = _gather(f"{path} cannot be read", look)[state.mesh.rank("world")]
    os.remove(probe(state.mesh.rank("world")))
    return owner


def _run_fields(optimizer: Any, steps: int, given: Mapping[str, Any] | None) -> dict[str, Any]:
    cfg, scaler = state.cfg, getattr(optimizer, "scaler", None)
    given = dict(given or {})
    fields: dict[str, Any] = {"global_step": steps, **given.pop("shoal", {}), **given}
    fields.update(
        optimizer_steps=steps or fields["global_step"],  # not every optimizer counts its updates
        compute_dtype="f16" if cfg.fp16 else "bf16" if cfg.bf16 else "f32",
        layout={"ranks": state.mesh.size("world"), "threads": torch.get_num_threads(),
                "instruction_set": f"PyTorch {torch.__version__}", "plan": cfg.plan})
    if scaler is not None:
        fields.update(loss_scale=scaler.value, loss_scale_dynamic=scaler.dynamic,
                      loss_scale_good_steps=scaler.good_steps, loss_scale_shift_left=scaler.shift_left)
    return fields


def write(final: str, model: Any, optimizer: Any, user_content: Any, trainer_state: Mapping[str, Any] | None,
          write_file: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Writes the folder `final`; every rank of the job calls it. OSError on every rank if one of them fails."""
    mesh, here = state.mesh, state.mesh.rank("world")
    if optimizer is not None:
        optimizer.names()  # RuntimeError before the first step
    path, name = os.path.split(os.path.abspath(final))
    what = f"{final} is not written"
    token: list[Any] = [uuid.uuid4().hex]
    dist.broadcast_object_list(token, 0, group=mesh.group("world"))
    owner = _owner(path, token[0])
    held = transaction = None

    def collect() -> tuple[int, list[tuple]]:
        nonlocal held
        held = _Held(model, optimizer)
        return held.steps(), held.keys()

    collected = _gather(what, collect)
    held.keep_own([keys for _, keys in collected])
    fields = _run_fields(optimizer, max(steps for steps, _ in collected), trainer_state)
    text = _native.trainer_state(json.dumps(fields))
    content = files.with_random_states(user_content)

    def begin() -> tuple[int, str]:
        nonlocal transaction
        if owner != here:
            return owner, ""
        transaction = _native.CheckpointTransaction(final, fields["global_step"])
        return owner, os.path.basename(transaction.directory)

    def write_own() -> list[Any]:
        names = [held.write(folder, f"{name} {token[0]}")]
        if mesh.place.rdp == 0:
            names.append(user_content_name(*mesh.place[1:]))
            write_file(os.path.join(folder, names[-1]), lambda file: torch.save(content, file))
        return [owner, [_native.seal_file(folder, one) for one in names], held.values, held.others]

    def finish() -> None:
        if transaction is None:
            return
        if here:
            transaction.commit_part()
            return
        extra = {"model": None if model is None else _merged(part[2] for part in everywhere),
                 "optimizer": None if optimizer is None else {"param_groups": held.groups, "others": _merged(
                     part[3] for part in everywhere)}}
        write_file(os.path.join(folder, EXTRA), lambda file: torch.save(extra, file))
        write_file(os.path.join(folder, "trainer_state.json"), lambda file: file.write(text.encode()))
        if hasattr(config := getattr(getattr(model, "module", None), "config", None), "to_json_string"):
            about = {**json.loads(config.to_json_string()), "architectures": [type(model.module).__name__]}
            write_file(os.path.join(folder, "config.json"),
                       lambda file: file.write((json.dumps(about, indent=2) + "\n").encode()))
        elsewhere = [one for part in everywhere if part[0] for one in part[1]]
        if not elsewhere:
            _native.ShardedCheckpoint(folder)  # checks that each element occurs exactly once
        transaction.commit([one for part in everywhere if not part[0] for one in part[1]], elsewhere)

    try:
        folder = os.path.join(path, _gather(what, begin)[0][1])
        everywhere = _gather(what, write_own)
        _gather(what, finish)
    finally:
        transaction = None  # removes incomplete files


def _merged(parts: Any) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def user_content_name(pp: int, tp: int) -> str:
    return f"user_content_{pp}_{tp}.pt"


def newest_of_run(output_dir: str) -> str | None:
    """The name of the last complete checkpoint-N of a run of Shoal's own."""
    whole = (one for one in reversed(_native.list_checkpoints(output_dir))
             if _native.checkpoint_problem(one, False) is None)
    return next((os.path.basename(one) for one in whole), None)


class Tensors:
    """The tensors of a checkpoint's folder, whichever ranks have written their parts."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = _native.ShardedCheckpoint(folder)
        self.tensors = {name: (shape, _OF_NAME[dtype]) for name, shape, dtype in self._file.tensors()}

    def read(self, name: str, record: records.Record) -> torch.Tensor:
        """The record's elements of a tensor, flat, in the checkpoint's dtype."""
        shape, dtype = self.tensors[name]
        if shape != list(record["shape"]):
            raise ValueError(f"{name} has the shape {shape} in {self.folder}, but {list(record['shape'])} in the "
                             "model: load a checkpoint of this model")
        start, end = record["range"]
        value = torch.empty(end - start, dtype=dtype)
        self._file.read(json.dumps(_description(name, record, dtype)), value.data_ptr())
        return value


class Checkpoint(Tensors):
    """A whole checkpoint of any layout, of Shoal's own runs too. Every rank of the job opens it together.

    FileNotFoundError: there is none. ValueError: it is not whole.
    """

    def __init__(self, folder: str) -> None:
        mesh = state.mesh

        def problem() -> str | None:
            if not os.path.exists(os.path.join(folder, MARKER)):
                return MARKER
            return _native.checkpoint_problem(folder, True, mesh.rank("world"), mesh.size("world"))

        problems = [one for one in _gather(f"{folder} cannot be read", problem) if one is not None]
        if MARKER in problems:
            raise FileNotFoundError(f"{folder} is no checkpoint: it has no {MARKER}")
        if problems:
            raise ValueError(f"{folder}: {problems[0]}; load another checkpoint")
        files.together(lambda: self._open(folder))
        self.kinds = sorted({name.split("/")[0] for name in self.tensors if "/" in name})

    def _open(self, folder: str) -> None:
        try:
            super().__init__(folder)
            self.run = json.loads(_native.read_trainer_state(folder))
        except RuntimeError as problem:
            raise ValueError(f"{problem}; load another checkpoint") from problem
        path = os.path.join(folder, EXTRA)
        self.extra = torch.load(path, map_location="cpu", weights_only=False) if os.path.exists(path) else None

    @property
    def has_model(self) -> bool:
        return self.extra is None or self.extra["model"] is not None

    @property
    def has_optimizer(self) -> bool:
        return bool(self.kinds) if self.extra is None else self.extra["optimizer"] is not None

    def user_content(self) -> Any:
        """The script's; of a run of Shoal's own the fields of its trainer_state.json."""
        if self.extra is None:
            return self.run
        own, first = (os.path.join(self.folder, user_content_name(*of)) for of in (state.mesh.place[1:], (0, 0)))
        return files.take_content(torch.load(own if os.path.exists(own) else first, map_location="cpu",
                                             weights_only=False))

    @torch.no_grad()
    def load_model(self, model: Any, strict: bool) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        tied: dict[int, list[str]] = {}
        for name, parameter in parameters.items():
            tied.setdefault(id(parameter), []).append(name)
        values = (self.extra or {}).get("model") or {}
        sources = {}
        for name in (targets := model.local_state_dict()):
            names = [name, *tied.get(id(parameters.get(name)), ())]
            sources[name] = next((one for one in names if one in self.tensors or one in values), None)
        missing = [name for name, source in sources.items() if source is None]
        known = set(model.module.state_dict(keep_vars=True))
        unexpected = [name for name in [*self.tensors, *values] if "/" not in name and name not in known]
        if strict and (missing or unexpected):
            raise ValueError(f"{self.folder} is of another model: missing {missing}, unexpected {unexpected}; give "
                             "strict=False to load what fits")
        states = {}
        for name, source in sources.items():
            target = targets[name]
            if source in values and not isinstance(target, torch.Tensor):
                states[name] = values[source]
            elif source in values:
                target.copy_(values[source])
            elif source is not None:
                value = self.read(source, records.describe(parameters.get(name, target)))
                target.copy_(value.view(target.shape))
        if states:
            model.load_state_dict(states, strict=False)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Returns the argument of DistributedOptimizer.load_state_dict(): groups and loss scale, and a function that
        reads the records once the model is cut."""
        groups = ((self.extra or {}).get("optimizer") or {"param_groups": optimizer.param_groups})["param_groups"]
        run = self.run["shoal"]
        scale = {"value": run["loss_scale"], "good_steps": run["loss_scale_good_steps"],
                 "shift_left": run["loss_scale_shift_left"]} if run["loss_scale_dynamic"] else None
        return {LOCAL: 1, "layout": list(state.mesh.shape), "sharded": False,
                "records": lambda: self._optimizer_records(optimizer), "param_groups": groups, "loss_scale": scale}

    def _optimizer_records(self, optimizer: Any) -> dict[str, list[records.Record]]:
        """The elements that this rank updates."""
        saved = (self.extra or {}).get("optimizer") or {}
        steps = self.run["shoal"]["optimizer_steps"]
        found: dict[str, list[records.Record]] = {}
        for name, each in optimizer.own_records().items():
            for record in each:
                values = {kind: self.read(f"{kind}/{name}", record) for kind in self.kinds
                          if f"{kind}/{name}" in self.tensors}
                others = {"step": torch.tensor(float(steps))} if "exp_avg" in values else {}
                if "master" in record["values"] and name in self.tensors:
                    values["master"] = self.read(name, record).float()
                found.setdefault(name, []).append(
                    {**record, "values": values, "others": saved["others"].get(name, {}) if "others" in saved else
                     others})
        return found
