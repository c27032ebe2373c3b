"""torch.amp's GradScaler for a DistributedModel."""
from typing import Any

import torch
import torch.distributed as dist

from shoal.torch.parallel import gradients
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

    device: by default the device of the model's parameters, if there is a model. The other arguments are torch's.

    Every rank of the job must call unscale_(), step() and update() in the same order.
    """

    def __init__(self, device: str | None = None, **arguments: Any) -> None:
        if device is None:
            own = None if state.model is None else next(state.model.local_parameters(), None)
            device = "cuda" if own is None and torch.cuda.is_available() else "cpu" if own is None else own.device.type
        super().__init__(device, **arguments)

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[torch.Tensor, torch.Tensor]:
        if self._scale is None:  # this rank has not called scale() itself
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor,
                        allow_fp16: bool) -> dict[torch.device, torch.Tensor]:
        gradients.reduce_pending(state.require().model)
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        everywhere = found.setdefault(found_inf.device, found_inf)
        for other in found.values():
            if other is not everywhere:
                everywhere.copy_(torch.maximum(everywhere, other.to(everywhere.device)))
        dist.all_reduce(everywhere, dist.ReduceOp.MAX, group=gradients.norm_group())
        return found
