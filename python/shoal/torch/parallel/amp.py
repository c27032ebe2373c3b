"""torch.amp's GradScaler for a DistributedModel."""
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch.parallel import gradients
from shoal.torch.parallel.optimizer import model_of
from shoal.torch.parallel.state import state


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler whose ranks skip an update together.

        scaler = smp.amp.GradScaler()

        @smp.step
        def train_step(model, inputs, labels):
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), labels)
            model.backward(scaler.scale(loss))
            return loss

        train_step(model, inputs, labels)
        scaler.step(optimizer)
        scaler.update()

    device: by default that of the model's parameters, where there is one. The other arguments are torch's. Every rank
        of the job calls unscale_(), step() and update() alike. ValueError: init()'s parameters have fp16 or bf16, with
        which the DistributedOptimizer has f32 masters and a loss scale of its own.
    """

    def __init__(self, device: str | None = None, **arguments: Any) -> None:
        super().__init__(device or gradients.device_of_rank().type, **arguments)
        if self.is_enabled():
            _refuse_masters()

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[torch.Tensor, torch.Tensor]:
        if self._scale is None:  # this rank has not called scale() itself
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor,
                        allow_fp16: bool) -> dict[torch.device, torch.Tensor]:
        _refuse_masters()
        gradients.reduce_pending(model_of(optimizer))
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        everywhere = found.setdefault(found_inf.device, found_inf)
        for other in found.values():
            if other is not everywhere:
                everywhere.copy_(torch.maximum(everywhere, other.to(everywhere.device)))
        gradients.over_parts(everywhere, dist.ReduceOp.MAX)
        return found


def _refuse_masters() -> None:
    cfg = state.cfg
    if cfg is not None and (cfg.fp16 or cfg.bf16):
        name = "fp16" if cfg.fp16 else "bf16"
        raise ValueError(f"smp.amp.GradScaler cannot be used with \"{name}\": true, where the DistributedOptimizer "
                         "keeps f32 masters" + (" and scales the loss itself" if cfg.fp16 else "") +
                         ": leave the scaler out, or leave the key out and use torch.autocast")
