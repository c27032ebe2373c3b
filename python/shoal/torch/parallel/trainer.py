"""What accelerate and Hugging Face's Trainer must be told of the mesh, which transformers 5 leaves to them.

The Trainer asks SMP for ranks and steps, but accelerate shards the data, gathers the predictions and clips the
gradients by the world's ranks; on CPUs TrainingArguments find no device; and no optimizer is made. init() repairs
this where transformers itself has SMP's mode on, by the variables SM_HP_MP_PARAMETERS and SM_FRAMEWORK_PARAMS.
"""
import functools
import importlib.abc
import importlib.util
import sys
import types
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch.parallel.mesh import Mesh
from shoal.torch.parallel.state import state

_TRAINER = "transformers.trainer"
_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce")
_adapted: set[str] = set()


def adapt() -> None:
    """Adapts what is imported, and the Trainer when it is; does nothing outside transformers' SMP mode."""
    utilities = sys.modules.get("transformers.utils.import_utils")
    if utilities is None or not utilities.is_sagemaker_mp_enabled():
        return
    if utilities.is_accelerate_available() and "accelerate" not in _adapted:
        _adapted.add("accelerate")
        _adapt_accelerate()
    if "trainer" not in _adapted:
        _adapted.add("trainer")
        if _TRAINER in sys.modules and hasattr(sys.modules[_TRAINER], "Trainer"):
            _adapt_trainer(sys.modules[_TRAINER])
        else:
            sys.meta_path.insert(0, _TrainersFinder())


class _TrainersFinder(importlib.abc.MetaPathFinder):
    """Adapts the Trainer's module as soon as it has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            _adapt_trainer(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _adapt_trainer(module: Any) -> None:
    arguments = module.TrainingArguments
    set_up_devices = arguments._setup_devices.func

    def _setup_devices(self: Any) -> torch.device:
        if torch.cuda.is_available() and not self.use_cpu:
            return set_up_devices(self)
        self._n_gpu = 0
        self.distributed_state = None  # as for GPUs: ranks are then asked of SMP
        return torch.device("cpu")

    arguments._setup_devices = functools.cached_property(_setup_devices)
    arguments._setup_devices.__set_name__(arguments, "_setup_devices")
    create_scheduler = module.Trainer.create_scheduler

    @functools.wraps(create_scheduler)
    def with_optimizer(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        if optimizer is None and self.optimizer is None:
            self.optimizer = self.accelerator.prepare(self.create_optimizer())
        return create_scheduler(self, num_training_steps, optimizer)

    module.Trainer.create_scheduler = with_optimizer


class _Distributed(types.ModuleType):
    """torch.distributed, with collectives among the ranks that have distinct batches."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(dist, name)
        if name not in _COLLECTIVES:
            return function
        mesh = _mesh()
        return functools.partial(function, group=mesh.group(mesh.batch_axis))


class _Torch(types.ModuleType):
    """torch with this torch.distributed."""

    distributed = _Distributed("torch.distributed")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _adapt_accelerate() -> None:
    import accelerate
    from accelerate.state import PartialState
    from accelerate.utils import operations

    begin = PartialState.__init__

    @functools.wraps(begin)
    def begin_with_batches(self: Any, *arguments: Any, **named: Any) -> None:
        is_first = PartialState._shared_state == {}
        begin(self, *arguments, **named)
        if is_first and self.num_processes == dist.get_world_size():
            mesh = _mesh()
            self.num_processes, self.process_index = mesh.batches, mesh.rank(mesh.batch_axis)

    PartialState.__init__ = begin_with_batches
    operations.torch = _Torch("torch")

    def clip_grad_norm_(self: Any, parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        from shoal.torch.parallel import gradients

        self.unscale_gradients()
        return gradients.clip_grad_norm_(parameters, max_norm, norm_type)

    accelerate.Accelerator.clip_grad_norm_ = clip_grad_norm_


def _mesh() -> Mesh:
    mesh = state.require().mesh
    assert mesh is not None
    return mesh
