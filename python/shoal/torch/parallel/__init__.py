"""Model parallelism for PyTorch models, by the names of SageMaker's library (SMP).

    import smdistributed.modelparallel.torch as smp   # or: from shoal.torch import parallel as smp
    smp.init({"partitions": 2, "microbatches": 4, "ddp": True})
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def train_step(model, inputs, labels):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        model.backward(loss)
        return loss

    loss = train_step(model, inputs, labels).reduce_mean()
    optimizer.step()
"""
# Import the modules first: some functions imported below have the same names and must win.
from shoal.torch.parallel import amp, checkpoint, model, partition, step  # isort: skip
from shoal.torch.parallel.activations import checkpoint, checkpoint_sequential, set_activation_checkpointing
from shoal.torch.parallel.checkpoint import load, resume_from_checkpoint, save, save_checkpoint
from shoal.torch.parallel.config import Config
from shoal.torch.parallel.creation import delay_param_initialization, model_creation
from shoal.torch.parallel.mesh import Mesh
from shoal.torch.parallel.model import DistributedModel
from shoal.torch.parallel.objects import (
    WORLD, CommGroup, RankType, allgather, barrier, broadcast, dp_barrier, dp_rank, dp_size, get_dp_group,
    get_dp_process_group, get_mp_group, get_mp_process_group, get_pp_group, get_pp_process_group, get_rdp_group,
    get_rdp_process_group, get_tp_group, get_tp_process_group, get_world_group, get_world_process_group, local_rank,
    local_size, mp_barrier, mp_rank, mp_size, pp_barrier, pp_rank, pp_size, rank, rdp_barrier, rdp_rank, rdp_size,
    recv_from, send, size, tp_barrier, tp_rank, tp_size)
from shoal.torch.parallel.optimizer import DistributedOptimizer
from shoal.torch.parallel.partition import partition, set_partition
from shoal.torch.parallel.state import init, is_initialized, is_tracing, shutdown, state
from shoal.torch.parallel.step import StepOutput, step
from shoal.torch.parallel.tensor import (
    nn, set_tensor_parallelism, tensor_parallelism, tp_register, tp_register_with_module)

__all__ = [
    "CommGroup", "Config", "DistributedModel", "DistributedOptimizer", "Mesh", "RankType", "StepOutput", "WORLD",
    "allgather", "amp", "barrier", "broadcast", "checkpoint", "checkpoint_sequential", "delay_param_initialization",
    "dp_barrier", "dp_rank", "dp_size", "get_dp_group", "get_dp_process_group", "get_mp_group",
    "get_mp_process_group", "get_pp_group", "get_pp_process_group", "get_rdp_group", "get_rdp_process_group",
    "get_tp_group", "get_tp_process_group", "get_world_group", "get_world_process_group", "init", "is_initialized",
    "is_tracing", "load", "local_rank", "local_size", "model", "model_creation", "mp_barrier", "mp_rank", "mp_size",
    "nn", "partition", "pp_barrier", "pp_rank", "pp_size", "rank", "rdp_barrier", "rdp_rank", "rdp_size",
    "recv_from", "resume_from_checkpoint", "save", "save_checkpoint", "send", "set_activation_checkpointing",
    "set_partition", "set_tensor_parallelism", "shutdown", "size", "state", "step", "tensor_parallelism",
    "tp_barrier", "tp_rank", "tp_register", "tp_register_with_module", "tp_size"]
