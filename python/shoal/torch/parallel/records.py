"""Records: tensors with a value for each element of a part of a parameter, and that part's position.

A record is a dict of plain values, which torch.load(weights_only=True) accepts:

    shape   shape of the whole parameter
    split   None, or the rank's part: [dim, size, blocks, tp rank, tp ranks]
    range   [start, end) of the flattened part
    values  by key, flat tensors with one element for each in the range
    others  by key, values that belong to the parameter as a whole, such as a step count
"""
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from shoal.torch.parallel.parts import span
from shoal.torch.parallel.state import state

Record = dict[str, Any]


def describe(parameter: nn.Parameter, start: int = 0, end: int | None = None) -> Record:
    """Makes a record without values for elements [start, end) of a parameter; without `end`, for those of this rank."""
    if end is None:
        start, end = span(parameter)
    shape, split = list(parameter.shape), None
    if (known := getattr(parameter, "tp_split", None)) is not None:
        shape[known.dim] = known.size
        split = [known.dim, known.size, known.blocks, state.mesh.rank("tp"), state.mesh.size("tp")]
    return {"shape": shape, "split": split, "range": [start, end], "values": {}, "others": {}}


def add(record: Record, key: str, value: Any, like: torch.Tensor) -> None:
    """Adds `value` to the record's values if it has the shape of `like`, else to its others."""
    if isinstance(value, torch.Tensor) and value.shape == like.shape and (key != "step" or value.dim()):
        record["values"][key] = value.detach().reshape(-1)
    else:
        record["others"][key] = value


def merge(parts: Iterable[dict[str, list[Record]]]) -> dict[str, list[Record]]:
    """Merges the records of several ranks, by parameter name."""
    merged: dict[str, list[Record]] = {}
    for part in parts:
        for name, records in part.items():
            merged.setdefault(name, []).extend(records)
    return merged


def _split(record: Record) -> Any:
    from shoal.torch.parallel.tensor.functions import TensorSplit

    return TensorSplit(*record["split"][:3])


def _part_shape(record: Record, rank: int) -> list[int]:
    shape = list(record["shape"])
    if record["split"]:
        split = _split(record)
        shape[split.dim] = split.length(rank, record["split"][4])
    return shape


def assemble(name: str, records: list[Record]) -> dict[str, Any]:
    """Assembles whole tensors, by key, from all records of a parameter. ValueError if elements are missing."""
    first = records[0]
    ranks = first["split"][4] if first["split"] else 1
    if any(r["shape"] != first["shape"] or bool(r["split"]) != bool(first["split"]) or
           (r["split"] and (r["split"][:3], r["split"][4]) != (first["split"][:3], ranks)) for r in records):
        raise ValueError(f"the parts of {name} are of different layouts: load files of one checkpoint")
    of_rank = [[r for r in records if not r["split"] or r["split"][3] == rank] for rank in range(ranks)]
    whole = dict(first["others"])
    for key in first["values"]:
        parts = []
        for rank, members in enumerate(of_rank):
            shape = _part_shape(first, rank)
            parts.append(_join(name, key, members, math.prod(shape)).view(shape))
        whole[key] = _split(first).join(parts) if first["split"] else parts[0]
    return whole


def _join(name: str, key: str, records: list[Record], size: int) -> torch.Tensor:
    by_range = {tuple(r["range"]): r["values"].get(key) for r in records}
    at = 0
    for (start, end) in sorted(by_range):
        if start != at or by_range[start, end] is None:
            break
        at = end
    if at != size:
        raise ValueError(f"{key} of {name} has no elements from {at} to {size}: a rank's file is missing")
    if len(by_range) == 1:
        return next(iter(by_range.values()))
    return torch.cat([by_range[one] for one in sorted(by_range)])


def extract(name: str, records: list[Record], target: Record) -> dict[str, Any]:
    """Returns the values for the target's elements as flat tensors, and the others. ValueError as in assemble()."""
    if list(records[0]["shape"]) != list(target["shape"]):
        raise ValueError(f"{name} has the shape {records[0]['shape']} in the checkpoint, but {target['shape']} in the "
                         "model: load a checkpoint of this model")
    for record in records:
        if record["split"] == target["split"] and record["range"] == target["range"]:
            return {**record["others"], **record["values"]}
    found = assemble(name, records)
    start, end = target["range"]
    for key in records[0]["values"]:
        value = found[key]
        if target["split"]:
            value = _split(target).take(value, *target["split"][3:])
        found[key] = value.reshape(-1)[start:end]
    return found
