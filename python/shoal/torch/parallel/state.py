"""The state of model parallelism in this process: its only global."""
import logging
import os
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
    """What is known of the model's modules. `translate_functions` are pairs of functions from Shoal's names and
    shapes of a state dict to Hugging Face's, and back; transformers' save_pretrained() calls the first ones."""

    def __init__(self) -> None:
        self.translate_functions: list[tuple[Callable[[StateDict], StateDict], Callable[[StateDict], StateDict]]] = []


class State:
    """`cfg` (the parameters), `mesh`, and the `model` and `optimizer` of this process, None before there are any."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """As before init()."""
        self.cfg: Config | None = None
        self.mesh: Mesh | None = None
        self.model: Any = None
        self.optimizer: Any = None
        self.module_manager = ModuleManager()
        self.tracing = False
        self.owns_default_group = False

    @property
    def initialized(self) -> bool:
        """True from init() to shutdown()."""
        return self.mesh is not None

    def require(self) -> "State":
        """This state. RuntimeError where init() has not run."""
        if not self.initialized:
            raise RuntimeError("model parallelism has not begun: call smp.init() first")
        return self


state = State()


def init(config: Mapping[str, Any] | None = None) -> None:
    """Begins model parallelism; every rank of the job calls it.

        import smdistributed.modelparallel.torch as smp
        smp.init({"partitions": 2, "microbatches": 4, "ddp": True})

    config: SMP's parameters (docs/smp_parameters.md); None takes SageMaker's variable SM_HP_MP_PARAMETERS, and
        without it one partition.

    It starts torch.distributed with the backend "shoal" unless the script has started it already, by torchrun's
    or mpirun's variables; without either the job is this process. A second call does nothing. ValueError: a
    parameter is wrong, the degrees do not divide the number of ranks, or a second call has other parameters.
    """
    if state.initialized:
        if config is not None and Config(config) != state.cfg:
            raise ValueError("smp.init() was called before with other parameters: call it once, with all of them, or "
                             "call smp.shutdown() between")
    else:
        _begin(Config(config))
    from shoal.torch.parallel import trainer  # it needs the state

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
    """Ends model parallelism, and torch.distributed if init() started it. Every rank calls it."""
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
    """True while the model runs once to find what each module costs."""
    return state.tracing
