"""Adapts accelerate and Hugging Face's Trainer to the mesh, which transformers 5 does not do.

The Trainer uses SMP's ranks and steps. But accelerate shards the data and gathers predictions by world rank,
TrainingArguments find no device on a CPU host, no optimizer is made, and a script refuses the --mp_parameters that
SageMaker's toolkit passes. init() repairs this when the variables SM_HP_MP_PARAMETERS and SM_FRAMEWORK_PARAMS
turn on transformers' SMP mode.
"""
import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch.parallel.mesh import Mesh
from shoal.torch.parallel.state import state

_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce")


def adapt() -> None:
    """Adapts accelerate at once, and transformers' classes when they are defined. transformers calls smp.init() while
    it imports transformers.training_args. At any other time, and outside SMP mode, this does nothing."""
    arguments = sys.modules.get("transformers.training_args")
    if arguments is None or hasattr(arguments, "TrainingArguments") or not arguments.is_sagemaker_mp_enabled():
        return
    _adapt_accelerate()
    _before_use(arguments, "TrainingArguments", _adapt_arguments)


def _before_use(module: types.ModuleType, name: str, adapts: Callable[[Any], bool]) -> None:
    """Calls adapts(class) each time `name`, which `module` will define, is read from the module, until adapts returns
    true."""

    class Watched(types.ModuleType):
        def __getattribute__(self, wanted: str) -> Any:
            value = super().__getattribute__(wanted)
            if wanted == name and adapts(value):
                self.__class__ = types.ModuleType
            return value

    module.__class__ = Watched


def _drop_mp_parameters() -> None:
    """Takes --mp_parameters from the script's words: SageMaker's toolkit passes every hyperparameter to the script,
    and transformers 5 has no argument for this one. init() reads SM_HP_MP_PARAMETERS."""
    for at, word in enumerate(sys.argv):
        name, has_value, _ = word.partition("=")
        if name == "--mp_parameters":
            del sys.argv[at:at + (1 if has_value else 2)]
            return


def _adapt_arguments(arguments: Any) -> bool:
    if "mp_parameters" not in arguments.__dataclass_fields__:
        _drop_mp_parameters()
    set_up_devices = arguments._setup_devices.func

    def _setup_devices(self: Any) -> torch.device:
        if torch.cuda.is_available() and not self.use_cpu:
            return set_up_devices(self)
        os.environ["ACCELERATE_USE_CPU"] = "true"
        self._n_gpu = 0
        self.distributed_state = None  # as with GPUs, makes the Trainer ask SMP for ranks
        return torch.device("cpu")

    if set_up_devices.__module__ != __name__:
        arguments._setup_devices = functools.cached_property(_setup_devices)
        arguments._setup_devices.__set_name__(arguments, "_setup_devices")
    # transformers.trainer reads TrainingArguments while it is imported, which may happen later.
    trainer = sys.modules.get("transformers.trainer")
    if trainer is not None:
        _before_use(trainer, "Trainer", _adapt_trainer)
    return trainer is not None


def _adapt_trainer(trainer: Any) -> bool:
    create_scheduler = trainer.create_scheduler

    @functools.wraps(create_scheduler)
    def with_optimizer(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        if optimizer is None and self.optimizer is None:
            self.optimizer = self.accelerator.prepare(self.create_optimizer())
        return create_scheduler(self, num_training_steps, optimizer)

    trainer.create_scheduler = with_optimizer
    save_random_state = trainer._save_rng_state

    @functools.wraps(save_random_state)
    def of_one_rank(self: Any, output_dir: str) -> None:
        mesh = _mesh()  # ranks with the same batch would write the same file
        if mesh.rank("mp" if mesh.batch_axis == "rdp" else "pp") == 0:
            save_random_state(self, output_dir)

    trainer._save_rng_state = of_one_rank
    for name in ("_load_from_checkpoint", "_load_best_model"):
        setattr(trainer, name, _into_own_model(getattr(trainer, name)))
    return True


def _into_own_model(load: Callable[..., Any]) -> Callable[..., Any]:
    """The Trainer calls resume_from_checkpoint() without a model. It may not be the only or the newest one."""

    @functools.wraps(load)
    def into_own_model(self: Any, *arguments: Any, **named: Any) -> Any:
        state.trainer_model = self.model_wrapped
        try:
            return load(self, *arguments, **named)
        finally:
            state.trainer_model = None

    return into_own_model


class _Distributed(types.ModuleType):
    """torch.distributed whose collectives run among the ranks that have distinct batches."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(dist, name)
        if name not in _COLLECTIVES:
            return function
        mesh = _mesh()
        return functools.partial(function, group=mesh.group(mesh.batch_axis))


class _Torch(types.ModuleType):
    """The torch module with _Distributed in place of torch.distributed."""

    distributed = _Distributed("torch.distributed")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _adapt_accelerate() -> None:
    from accelerate.state import PartialState
    from accelerate.utils import operations

    begin = PartialState.__init__

    @functools.wraps(begin)
    def begin_with_batches(self: Any, *arguments: Any, **named: Any) -> None:
        is_first = PartialState._shared_state == {}
        begin(self, *arguments, **named)
        if is_first:
            mesh = _mesh()
            if self.num_processes != mesh.size("world"):
                raise RuntimeError(f"accelerate found {self.num_processes} of the job's {mesh.size('world')} ranks: on "
                                   "a host without GPUs, set ACCELERATE_USE_CPU to true")
            self.num_processes, self.process_index = mesh.batches, mesh.rank(mesh.batch_axis)

    PartialState.__init__ = begin_with_batches
    operations.torch = _Torch("torch")


def _mesh() -> Mesh:
    mesh = state.require().mesh
    assert mesh is not None
    return mesh
