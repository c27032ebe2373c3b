"""Files that hold a job's state: objects of single ranks, and checkpoints of the model, the optimizer and the user's
content."""
import contextlib
import gc
import json
import logging
import os
import pickle
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from shoal.torch.parallel import checkpoint_parts, files
from shoal.torch.parallel.mesh import Shape
from shoal.torch.parallel.optimizer import LOCAL, is_own_layout, merge_local, model_of
from shoal.torch.parallel.state import state

_log = logging.getLogger("shoal.torch.parallel")
_CHECKSUMS = "crc32"  # in the metadata of a safetensors file, by tensor
_SAVED = "shoal_saved"  # the entry of a file of save() that has its _Saved


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_beside(path: str, write: Callable[[Any], None]) -> str:
    """Writes a temporary file beside `path` and returns its name. OSError names `path`; no file is left then."""
    folder, name = os.path.split(os.path.abspath(path))
    beside = os.path.join(folder, f".{name}.{state.require().mesh.rank('world')}.part")  # hosts may share the folder
    writer = None
    try:
        with open(beside, "w+b") as file:
            writer = files.Writer(file)
            write(writer)
            file.flush()
            os.fsync(file.fileno())
    except Exception as problem:
        with contextlib.suppress(OSError):
            os.remove(beside)
        cause = writer.problem if writer is not None and writer.problem is not None else problem
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, path) from problem
        raise
    return beside


def _write(path: str, write: Callable[[Any], None]) -> None:
    """Writes a temporary file beside `path` and renames it, so that `path` never names an incomplete file."""
    os.replace(_write_beside(path, write), path)
    _sync_folder(os.path.dirname(os.path.abspath(path)))


def _read(path: str, map_location: Any = "cpu", **arguments: Any) -> Any:
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    try:
        files.check_archive(path)
        with contextlib.nullcontext(path) if arguments.get("mmap") else open(path, "rb") as source:
            return torch.load(source, map_location=map_location, **arguments)  # the name may imply another format
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile, pickle.UnpicklingError) as problem:
        raise ValueError(f"{path} is not whole: {problem}; load another checkpoint") from problem


class _Saved(NamedTuple):
    """When and by which layout a file of save() was written."""

    save: str | None  # the same for all files of one save; empty: of none of Shoal's; None: unreadable, see _read()
    time: float = 0
    layout: list[int] | None = None
    name: str | None = None  # without a folder and a suffix: "a_1" has files that look like some of "a"

    @staticmethod
    def of(path: str) -> "_Saved":
        try:
            text = files.read_entry(path, _SAVED)
        except (OSError, zipfile.BadZipFile, UnicodeDecodeError):
            return _Saved(None)
        return _Saved(*json.loads(text)) if text else _Saved("", os.stat(path).st_mtime)


def _newest_save(f: str) -> tuple[dict[str, _Saved], list[str]]:
    """The files of the newest save under the name `f`, and the names of older saves' files, both by suffix."""
    folder, name = os.path.split(os.path.abspath(f))
    found = {}
    for other in os.listdir(folder) if os.path.isdir(folder) else ():
        if re.fullmatch(r"(_\d+){2,3}", suffix := other.removeprefix(name)):
            saved = _Saved.of(os.path.join(folder, other))
            if saved.name in (None, name):
                found[suffix] = saved
    newest = max(found.values(), key=lambda saved: saved.time, default=None)
    current = {suffix: saved for suffix, saved in found.items() if saved.save in (None, newest.save)}
    return current, sorted(found.keys() - current.keys())


def _suffix(pp: int, tp: int, rdp: int | None = None) -> str:
    return f"_{pp}_{tp}" + ("" if rdp is None else f"_{rdp}")


def save(obj: Any, f: str, partial: bool = True, v3: bool = False, **arguments: Any) -> None:
    """Writes an object of this rank, as torch.save.

        if smp.rdp_rank() == 0:
            smp.save(optimizer.local_state_dict(), "optimizer.pt")   # optimizer.pt_0_0 and so on, by pp and tp rank

    partial: the name gets this rank's pipeline and tensor-parallel ranks. False: one file; one rank calls it.
    v3: the name gets the rdp rank too, for what each replica has its own of (shard_optimizer_state).
    arguments: further ones of torch.save. The file is complete or missing: it is renamed when it is on the disk.
    """
    mesh = state.require().mesh
    place, path = mesh.place, os.path.abspath(f)
    if not partial:
        _write(f, lambda file: torch.save(obj, file, **arguments))
        return
    state.saves[path, v3] += 1
    saved = _Saved(f"{mesh.job} {v3} {state.saves[path, v3]}", time.time(), list(mesh.shape), os.path.basename(path))

    def write(file: Any) -> None:
        torch.save(obj, file, **arguments)
        file.append(_SAVED, json.dumps(saved))

    try:
        _write(f + _suffix(place.pp, place.tp, place.rdp if v3 else None), write)
    except BaseException:
        state.saves[path, v3] -= 1  # a second try is the same save
        raise


def load(f: str, map_location: Any = None, partial: bool = True, **arguments: Any) -> Any:
    """Reads what save() wrote on this rank, as torch.load.

        optimizer.load_state_dict(smp.load("optimizer.pt"))

    An optimizer's local_state_dict() may be of another layout: the parts of all its ranks are then read and merged.
    Files of earlier saves under this name are ignored: the ranks' n-th calls of save() with a name are one save.
    FileNotFoundError: the newest save has no such file. ValueError: one is not whole.
    """
    if not partial:
        return _read(f, map_location, **arguments)
    mesh = state.require().mesh
    place = mesh.place
    own = [_suffix(place.pp, place.tp, place.rdp), _suffix(place.pp, place.tp)]
    current, stale = _newest_save(f)
    if stale and mesh.rank("local") == 0:
        _log.warning("%s: ignored the files %s of earlier saves", f, ", ".join(stale))
    suffix = next((s for s in [*own, _suffix(0, 0, 0), _suffix(0, 0)] if s in current), None)
    if suffix is None:
        raise FileNotFoundError(f"there is no file {f}{own[1]}: " + (
            f"the newest save under this name has only {', '.join(sorted(current))}" if current else
            "nothing was saved under this name"))
    found = _read(f + suffix, map_location, **arguments)
    is_local = isinstance(found, Mapping) and LOCAL in found
    if suffix in own and (is_own_layout(found) if is_local else _has_degrees(current[suffix], suffix, mesh.shape)):
        return found
    wanted = _suffixes(found["layout"], found["sharded"]) if is_local else own[1:]
    missing = [one for one in wanted if one not in current]
    if missing and (is_local or _has_degrees(current[suffix], suffix, mesh.shape)):
        raise FileNotFoundError(f"there is no file {f}{missing[0]} of the save that {f}{suffix} is of: a rank did not "
                                "save; load another checkpoint")
    if not is_local:
        raise FileNotFoundError(f"there is no file {f}{own[1]} of this layout: it was saved with other ranks; call "
                                "smp.save() on each rank whose smp.rdp_rank() is 0, and load with the same degrees")
    return merge_local([_read(f + one, map_location, **arguments) for one in wanted])


def _has_degrees(saved: _Saved, suffix: str, shape: Shape) -> bool:
    """Whether a file is of a layout with these degrees, as far as its name depends on them."""
    first = 0 if suffix.count("_") == 3 else 1  # rdp, pp, tp
    return saved.layout is None or saved.layout[first:] == list(shape[first:])


def _suffixes(layout: list[int], of_each_replica: bool | int) -> list[str]:
    """of_each_replica: whether each has a file, or how many have."""
    rdp, pp, tp = layout
    replicas = range(rdp if of_each_replica is True else of_each_replica) if of_each_replica else (None,)
    return [_suffix(p, t, r) for p in range(pp) for t in range(tp) for r in replicas]


# Checkpoints.


def save_checkpoint(path: str, tag: str, partial: bool = True, model: Any = None, optimizer: Any = None,
                    user_content: Any = None, translate_if_full: bool = True,
                    num_kept_partial_checkpoints: int | None = None,
                    trainer_state: Mapping[str, Any] | None = None) -> None:
    """Writes a checkpoint; every rank of the job calls it.

        smp.save_checkpoint("checkpoints", tag=f"step{step}", model=model, optimizer=optimizer,
                            user_content={"step": step}, num_kept_partial_checkpoints=3)

    path: a folder, which all hosts share or each has its own of. tag: the checkpoint's name.
    partial: each rank writes its part into the folder `<tag>_partial`; resume_from_checkpoint() loads it in any layout.
        `shoal checkpoint` reads it, and `shoal train` goes on from it where Shoal has the model.
        False: rank 0 writes the whole model's state dict into the file `tag` (of safetensors by that ending, else of
        torch.save), with Hugging Face's names, the whole optimizer's into `optimizer_<tag>`, and `user_content.pt`.
    model, optimizer: left out if None. user_content: any object; of partial checkpoints each model-parallel rank's.
    translate_if_full: false: the names and shapes are those of the modules in use.
    num_kept_partial_checkpoints: older partial checkpoints in `path` are removed. None: all are kept.
    trainer_state: with partial, fields of trainer_state.json by which `shoal train` goes on: global_step (else the
        optimizer's steps), data_epoch, data_position, global_batch_size, seed, max_steps and so on.

    The file `newest` names the last one. A checkpoint has its name only when all of it is on the disk. OSError with the
    path on every rank: a rank could not write, for instance because its disk is full.
    """
    mesh = state.require().mesh
    if num_kept_partial_checkpoints is not None and num_kept_partial_checkpoints < 1:
        raise ValueError(f"num_kept_partial_checkpoints is {num_kept_partial_checkpoints}: give 1 or more, or None")
    if not tag or os.path.basename(tag) != tag:
        raise ValueError(f'the tag "{tag}" must be a name without folders')
    _check_kinds("save_checkpoint saves", model, optimizer)
    files.together(lambda: os.makedirs(path, exist_ok=True))
    if partial:
        checkpoint_parts.write(os.path.join(path, f"{tag}_partial"), model, optimizer, user_content, trainer_state,
                               _write)
    else:
        _save_full(path, tag, model, optimizer, user_content, translate_if_full)

    old: list[Any] = [files.together(lambda: _partial_ones(path)[:-num_kept_partial_checkpoints]
                                     if partial and num_kept_partial_checkpoints and mesh.rank("world") == 0 else [])]
    dist.broadcast_object_list(old, 0, group=mesh.group("world"))

    def finish() -> None:
        if mesh.rank("local") == 0:
            _write(os.path.join(path, "newest"), lambda file: file.write(tag.encode()))
            for name in old[0]:
                shutil.rmtree(os.path.join(path, name), ignore_errors=True)

    files.together(finish)


def _check_kinds(does: str, model: Any, optimizer: Any) -> None:
    for given, kind in ((model, "DistributedModel"), (optimizer, "DistributedOptimizer")):
        if given is not None and not any(cls.__name__ == kind for cls in type(given).__mro__):
            raise TypeError(f"{does} an smp.{kind}, not a {type(given).__name__}: wrap it first")


def _partial_ones(path: str) -> list[str]:
    """The partial checkpoints, the oldest first."""
    found = []
    for name in os.listdir(path):
        marker = os.path.join(path, name, checkpoint_parts.MARKER)
        if name.endswith("_partial") and os.path.exists(marker):
            found.append((os.stat(marker).st_mtime_ns, name))
    return [name for _, name in sorted(found)]


def _save_full(path: str, tag: str, model: Any, optimizer: Any, user_content: Any, translate: bool) -> None:
    whole = None if model is None else model.state_dict()
    if whole is not None and translate:
        for to_hf, _ in state.module_manager.translate_functions:
            whole = to_hf(whole)
    optimizer_state = None if optimizer is None else optimizer.state_dict()
    contents: dict[str, Callable[[Any], None]] = {"user_content.pt": lambda file: torch.save(user_content, file)}
    if optimizer_state is not None:
        contents[f"optimizer_{tag}"] = lambda file: torch.save(optimizer_state, file)
    if whole is not None:
        contents[tag] = lambda file: _write_model(whole, tag, file)  # written last: it marks the checkpoint as complete

    def write() -> None:
        if state.mesh.rank("world"):
            return
        beside: dict[str, str] = {}
        try:
            for name, content in contents.items():
                beside[name] = _write_beside(os.path.join(path, name), content)
        except Exception:
            for one in beside.values():
                os.remove(one)
            raise
        with contextlib.suppress(FileNotFoundError):  # left by an earlier save under this tag
            os.remove(os.path.join(path, f"optimizer_{tag}"))
        for name, one in beside.items():
            os.replace(one, os.path.join(path, name))
        _sync_folder(path)

    files.together(write)


def _write_model(whole: dict[str, Any], tag: str, file: Any) -> None:
    if not tag.endswith(".safetensors"):
        torch.save(whole, file)
        return
    from safetensors.torch import save as to_bytes

    once, seen = {}, set()
    for name, value in whole.items():
        if isinstance(value, torch.Tensor) and (value.data_ptr(), value.shape) not in seen:  # a tied tensor is kept
                                                                                             # once
            if value.numel():
                seen.add((value.data_ptr(), value.shape))
            once[name] = value.contiguous()
    sums = json.dumps({name: files.checksum(value) for name, value in once.items()})
    file.write(to_bytes(once, {"format": "pt", _CHECKSUMS: sums}))


def resume_from_checkpoint(path: str, tag: str | None = None, partial: bool = True, strict: bool = True,
                           load_optimizer: bool = True, load_sharded_optimizer_state: bool = True,
                           translate_function: Callable | None = None, model: Any = None,
                           optimizer: Any = None) -> Any:
    """Loads a checkpoint into the DistributedModel and its DistributedOptimizer; every rank of the job calls it.

        content = smp.resume_from_checkpoint("checkpoints")
        step = content["step"]

    path, tag, partial: as of save_checkpoint(). tag None: the newest; of partial ones the newest partial one. A partial
        checkpoint may be of any layout, and of a run of `shoal train`, whose output_dir is `path` and whose
        checkpoint's folder is `tag`. A full one may also be `model.safetensors` of Hugging Face, where there is no file
        `tag`.
    strict: missing and unexpected names are errors.
    load_optimizer: false: the optimizer stays as it is. It has the parameter groups with their learning rates, which
        are there at once, and the loss scale. load_sharded_optimizer_state: false: with a sharded state, only the f32
        masters and the loss scale are loaded.
    translate_function: of a full checkpoint's state dict, before it is loaded.
    model, optimizer: what is loaded into. Of several live DistributedModels, one must be named; the Trainer's calls are
        for its own. An optimizer that is not named is the model's.

    A partial checkpoint also gives each rank torch's random states back if the layout is the same. Schedulers, and the
    states of Python's and numpy's generators, are the script's: put them into user_content.

    Returns the user_content, or the fields of trainer_state.json where `shoal train` has written the checkpoint. All
    ranks raise if one does. FileNotFoundError: there is no such checkpoint. ValueError:
    it is not whole, or bytes of it have changed.
    """
    state.require()
    _check_kinds("resume_from_checkpoint loads into", model, optimizer)
    model, optimizer = files.together(lambda: _targets(model, optimizer))
    if partial and translate_function is not None:
        raise ValueError("translate_function is of full checkpoints: a partial one has the model's own names; give "
                         "partial=False, or leave it out")
    if not load_sharded_optimizer_state and state.cfg.sharding_level == 0:
        raise ValueError("load_sharded_optimizer_state=False needs a sharded optimizer state (shard_optimizer_state): "
                         "give load_optimizer=False instead")
    tag = files.together(lambda: _newest(path, partial) if tag is None else tag)
    if not partial:
        return _resume_full(path, tag, strict, model, optimizer if load_optimizer else None,
                            not load_sharded_optimizer_state, translate_function)
    own = os.path.join(path, f"{tag}_partial")
    checkpoint = checkpoint_parts.Checkpoint(own if os.path.isdir(own) else os.path.join(path, tag))
    if load_optimizer and optimizer is not None and not checkpoint.has_optimizer:
        raise ValueError(f"{checkpoint.folder} has no optimizer: it was saved without one; give load_optimizer=False")
    if checkpoint.has_model:
        files.together(lambda: checkpoint.load_model(model, strict))
    if load_optimizer and optimizer is not None:
        optimizer.load_state_dict(checkpoint.optimizer_state(optimizer), only_masters=not load_sharded_optimizer_state)
    return files.together(checkpoint.user_content)


def _targets(model: Any, optimizer: Any) -> tuple[Any, Any]:
    """The model and the optimizer to load into. None: the script has not named it."""
    if model is None:
        model = state.trainer_model if optimizer is None else model_of(optimizer)
    if model is None:
        if len(state.models()) > 1:
            gc.collect()  # a model that the script has dropped may be part of a cycle
        alive = state.models()
        if not alive:
            raise RuntimeError("resume_from_checkpoint needs the model: make the smp.DistributedModel first")
        if len(alive) > 1:
            raise ValueError(f"there are {len(alive)} live DistributedModels: name the one to load into by model=")
        model = alive[0]
    if optimizer is not None and model_of(optimizer) is not model:
        raise ValueError("the optimizer is of another model than the one to load into: give both of one model")
    return model, model.distributed_optimizer if optimizer is None else optimizer


def _newest(path: str, partial: bool) -> str:
    newest = os.path.join(path, "newest")
    if os.path.exists(newest):
        with open(newest, encoding="utf-8") as file:
            tag = file.read().strip()
        if not partial or os.path.isdir(os.path.join(path, f"{tag}_partial")):
            return tag
        if found := _partial_ones(path):  # the last of them is complete
            return found[-1].removesuffix("_partial")
        return tag
    if tag := checkpoint_parts.newest_of_run(path):
        return tag
    raise FileNotFoundError(f"{path} has no file newest: give the tag of a checkpoint")


def _resume_full(path: str, tag: str, strict: bool, model: Any, optimizer: Any, only_masters: bool,
                 translate: Callable | None) -> Any:
    def load() -> dict[str, Any] | None:
        model.load_state_dict(_whole_model(path, tag, model, translate), strict=strict)
        optimizer_path = os.path.join(path, f"optimizer_{tag}")
        if optimizer is None:
            return None
        if os.path.exists(optimizer_path):
            return _read(optimizer_path, weights_only=False)
        _log.warning("%s is missing: the optimizer begins without a state", optimizer_path)
        return None

    found = files.together(load)
    if found is not None:
        optimizer.load_state_dict(found, only_masters=only_masters)
    content = os.path.join(path, "user_content.pt")
    return files.together(lambda: _read(content, weights_only=False)
                          if os.path.exists(content) and os.path.getsize(content) else None)


def _whole_model(path: str, tag: str, model: Any, translate: Callable | None) -> dict[str, Any]:
    """The full checkpoint's state dict by the model's names; tied parameters have all of theirs."""
    whole = _read_model(path, tag)
    if translate is not None:
        whole = translate(whole)
    else:
        for _, from_hf in reversed(state.module_manager.translate_functions):
            whole = from_hf(whole)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        known = next((name for name in tied if name in whole), None)
        if known is not None:
            whole.update({name: whole[known] for name in tied if name not in whole})
    return whole


def _read_model(path: str, tag: str) -> dict[str, Any]:
    file = os.path.join(path, tag)
    if not os.path.exists(file):
        file = os.path.join(path, "model.safetensors")
    if not os.path.exists(file):
        raise FileNotFoundError(f"{path} has neither {tag} nor model.safetensors: give the tag of a full checkpoint")
    if not file.endswith(".safetensors"):
        return dict(_read(file))
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ImportError(f"{file} needs the package safetensors: pip install safetensors") from None
    try:
        with safe_open(file, "pt") as opened:
            sums = json.loads((opened.metadata() or {}).get(_CHECKSUMS, "{}"))
            found = {name: opened.get_tensor(name) for name in opened.keys()}
    except (SafetensorError, ValueError) as problem:
        raise ValueError(f"{file} is not whole: {problem}; load another checkpoint") from problem
    damaged = [name for name in sums if name not in found or files.checksum(found[name]) != sums[name]]
    if damaged or (sums and len(sums) != len(found)):
        raise ValueError(f"{file} is damaged: the checksums of {damaged} differ; load another checkpoint")
    return found
