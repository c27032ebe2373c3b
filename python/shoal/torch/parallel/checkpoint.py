"""Files of a job's state: objects of each rank or of the whole."""
import os
from collections.abc import Mapping
from typing import Any

import torch

from shoal.torch.parallel import records
from shoal.torch.parallel.optimizer import LOCAL
from shoal.torch.parallel.state import state


def _write(obj: Any, path: str, **arguments: Any) -> None:
    """Writes beside `path` and renames, so that the name never has half a file."""
    folder, name = os.path.split(os.path.abspath(path))
    beside = os.path.join(folder, f".{name}.part")
    with open(beside, "wb") as file:
        torch.save(obj, file, **arguments)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: str, map_location: Any = "cpu", **arguments: Any) -> Any:
    try:
        return torch.load(path, map_location=map_location, **arguments)
    except (RuntimeError, EOFError, OSError) as problem:
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}") from None
        raise ValueError(f"{path} is not whole: {problem}; load another checkpoint") from problem


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
    place = state.require().mesh.place
    _write(obj, f + (_suffix(place.pp, place.tp, place.rdp if v3 else None) if partial else ""), **arguments)


def load(f: str, map_location: Any = None, partial: bool = True, **arguments: Any) -> Any:
    """Reads what save() wrote on this rank, as torch.load.

        optimizer.load_state_dict(smp.load("optimizer.pt"))

    An optimizer's local_state_dict() may be of another layout: the parts of all its ranks are then read and merged.
    FileNotFoundError: there is no such file. ValueError: one is not whole.
    """
    if not partial:
        return _read(f, map_location, **arguments)
    place = state.require().mesh.place
    for suffix in (_suffix(*place[1:], place.rdp), _suffix(*place[1:]), _suffix(0, 0, 0), _suffix(0, 0)):
        if os.path.exists(f + suffix):
            break
    else:
        raise FileNotFoundError(f"there is no file {f}{_suffix(*place[1:])}: this rank has no part of it")
    found = _read(f + suffix, map_location, **arguments)
    is_own = not suffix.startswith(_suffix(0, 0)) or place[1:] == (0, 0)
    if not isinstance(found, Mapping) or LOCAL not in found:
        if is_own:
            return found
        raise FileNotFoundError(f"there is no file {f}{_suffix(*place[1:])}: it was saved with fewer ranks")
    mesh, sharded = state.mesh, found["sharded"]
    if is_own and found["layout"] == list(mesh.shape) and (not sharded or getattr(state.optimizer, "shards", None)):
        return found
    rdp, pp, tp = found["layout"]
    parts = [_read(f + _suffix(p, t, r if suffix.count("_") == 3 else None), map_location, **arguments)
             for p in range(pp) for t in range(tp) for r in (range(rdp) if sharded else range(1))]
    return {**found, "records": records.merge(part["records"] for part in parts), "sharded": False}
