"""SMP's parameters (docs/reference/smp_parameters.md) as attributes."""
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from shoal import native

_native = native._native()
_VARIABLE = "SM_HP_MP_PARAMETERS"
_log = logging.getLogger("shoal.torch.parallel")


def _keys(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys alone, without {"enabled": true, "parameters": {...}} around them."""
    if str(given.get("enabled", True)).lower() in ("false", "0"):
        return {}
    return given.get("parameters", {}) if {"enabled", "parameters"} & given.keys() else given


class Config:
    """The resolved SMP parameters. Every key and every alias is an attribute that holds the given value or the default.

        config = Config({"partitions": 2, "microbatches": 4})
        config.pipeline_parallel_degree, config.partitions, config.pipeline   # 2, 2, "interleaved"

    parameters: the keys, or {"enabled": true, "parameters": {...}} around them. The keys of the variable
        SM_HP_MP_PARAMETERS, which SageMaker sets from the job's own, take the place of these.
    sharding_level: 0, 1 (optimizer state), 2 (gradients too) or 3 (parameters too).

    ValueError lists every invalid key and every key that PyTorch models do not support, one a line.
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        text, source = os.environ.get(_VARIABLE) or "{}", _VARIABLE
        if parameters:
            of_job = _keys(json.loads(text))
            text = json.dumps({**_keys(parameters), **of_job} if of_job else dict(parameters))
            source = f"config and {_VARIABLE}" if of_job else "config"
        self._parsed = json.loads(_native.parse_smp_parameters(text, source))
        self.sharding_level: int = self._parsed["sharding_level"]

    def __getattr__(self, name: str) -> Any:
        keys = self.__dict__.get("_parsed", {}).get("keys", {})
        if name not in keys:
            raise AttributeError(f"SMP has no parameter {name}")
        return keys[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._parsed == other._parsed

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Config({json.dumps(self._parsed['plan'])})"

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of these parameters, as Shoal's own runs write it."""
        return self._parsed["plan"]

    @property
    def forbids_replicas(self) -> bool:
        """Internal. True if the caller gave `ddp` as false."""
        return self._parsed["plan"].get("ddp") is False

    @property
    def backend_options(self) -> list[str]:
        """Internal. The given keys that affect how torch.distributed starts."""
        given = {"ddp_dist_backend": self.ddp_dist_backend != "auto",
                 "sdp_hierarchical_allgather": bool(self._parsed["collectives"])}
        return [key for key, is_given in given.items() if is_given]

    def set_collectives(self) -> None:
        """Internal. Appends these parameters' rules to SHOAL_COLLECTIVES, which a new process group reads."""
        if rules := self._parsed["collectives"]:
            before = os.environ.get("SHOAL_COLLECTIVES", "")
            if before.startswith("@"):
                raise ValueError(f"sdp_hierarchical_allgather is false, which is the rule {rules}, and "
                                 f"SHOAL_COLLECTIVES names the file {before[1:]}: put the rule into it")
            os.environ["SHOAL_COLLECTIVES"] = f"{before}#{rules}" if before else rules

    def log_notices(self) -> None:
        """Internal. Logs each given key that has no effect, with the reason."""
        for notice in self._parsed["notices"]:
            _log.warning("%s", notice)
