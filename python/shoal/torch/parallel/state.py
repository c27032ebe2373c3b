"""The state of model parallelism in this process, which is the package's only global variable."""
import collections
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch import launcher
from shoal.torch.parallel.config import Config
from shoal.torch.parallel.mesh import Mesh

_log = logging.getLogger("shoal.torch.parallel")
StateDict = dict[str, Any]


class ModuleManager:
    """Functions that translate state dicts. `translate_functions` holds pairs: the first converts Shoal's names and
    shapes to Hugging Face's, the second converts back. transformers' save_pretrained() calls the first ones."""

    def __init__(self) -> None:
        self.translate_functions: list[tuple[Callable[[StateDict], StateDict], Callable[[StateDict], StateDict]]] = []


class State:
    """`cfg` (the parameters), the `mesh`, and this process's `model` and `optimizer`. Each is None before it exists."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Restores the state before init()."""
        self.cfg: Config | None = None
        self.mesh: Mesh | None = None
        self.model = self.optimizer = None
        self.trainer_model: Any = None  # while Hugging Face's Trainer loads a checkpoint: its model
        self.engine: Any = None  # what the models share (model.py)
        self.module_manager = ModuleManager()
        self.saves: collections.Counter[tuple] = collections.Counter()  # of checkpoint.save(), by path and v3
        self.tracing = False
        self.owns_default_group = False

    # A model or optimizer that the script drops is freed, because only the script holds a reference to it.

    @property
    def model(self) -> Any:
        return self._model and self._model()

    @model.setter
    def model(self, model: Any) -> None:
        self._model = model if model is None else weakref.ref(model)

    @property
    def optimizer(self) -> Any:
        return self._optimizer and self._optimizer()

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer if optimizer is None else weakref.ref(optimizer)

    def models(self) -> list[Any]:
        """The live DistributedModels of this process, in the order in which they were made."""
        return [] if self.engine is None else [model for one in self.engine.models if (model := one()) is not None]

    @property
    def initialized(self) -> bool:
        """True from init() to shutdown()."""
        return self.mesh is not None

    def require(self) -> "State":
        """Returns this state. RuntimeError before init()."""
        if not self.initialized:
            raise RuntimeError("model parallelism has not begun: call smp.init() first")
        return self


state = State()


def init(config: Mapping[str, Any] | None = None) -> None:
    """Starts model parallelism. Every rank of the job calls it.

        import smdistributed.modelparallel.torch as smp
        smp.init({"partitions": 2, "microbatches": 4, "ddp": True})

    config: SMP's parameters (docs/reference/smp_parameters.md). Those in SageMaker's variable SM_HP_MP_PARAMETERS take
        their place, as a job's own do in SageMaker. Without any there is one partition.

    Unless the script has done so, it starts torch.distributed with the backend "shoal", using torchrun's or mpirun's
    variables. Without either launcher, this process is the whole job. A second call does nothing. ValueError: a
    parameter is wrong, the degrees do not divide the number of ranks, or a second call has other parameters.
    """
    if state.initialized:
        if config is not None and Config(config) != state.cfg:
            raise ValueError("smp.init() was called before with other parameters: call it once, with all of them, or "
                             "call smp.shutdown() between")
    else:
        _begin(Config(config))
    from shoal.torch.parallel import trainer  # imported late, because it imports this module

    trainer.adapt()


def _begin(config: Config) -> None:
    if not dist.is_initialized():
        _start_default_group(config)
        state.owns_default_group = True
    elif config.backend_options:
        _log.warning("%s: no effect, because the script has started torch.distributed itself",
                     ", ".join(config.backend_options))
    try:
        mesh = Mesh(config)
        _check_replicas(config, mesh)
    except BaseException:
        if state.owns_default_group:
            dist.destroy_process_group()
        state.clear()
        raise
    state.cfg, state.mesh = config, mesh
    if config.random_seed is not None:
        torch.manual_seed(config.random_seed)
    if dist.get_rank() == 0:
        config.log_notices()


def _start_default_group(config: Config) -> None:
    launcher.set_variables()
    config.set_collectives()
    backend = "cpu:shoal,cuda:nccl" if config.ddp_dist_backend == "nccl" else "shoal"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def _check_replicas(config: Config, mesh: Mesh) -> None:
    if config.forbids_replicas and mesh.shape.rdp > 1:
        raise ValueError(
            f"ddp is false, but {mesh.size('world')} ranks make {mesh.shape.rdp} replicas of pipeline_parallel_degree "
            f"{mesh.shape.pp} x tensor_parallel_degree {mesh.shape.tp}: set ddp to true, or start "
            f"{mesh.size('mp')} ranks")


def is_initialized() -> bool:
    """True from init() to shutdown()."""
    return state.initialized


def shutdown() -> None:
    """Ends model parallelism. Also ends torch.distributed if init() started it. Every rank calls it."""
    if not state.initialized:
        return
    assert state.mesh is not None
    if state.owns_default_group:
        dist.destroy_process_group()
    else:
        for group in state.mesh.made:
            dist.destroy_process_group(group)
    state.clear()


def is_tracing() -> bool:
    """True while the model runs to measure each module's costs."""
    return state.tracing
