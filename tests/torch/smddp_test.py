"""A script written for SageMaker's library runs on shoal: the library's names, and mpirun's variables."""
import os
import subprocess
import sys
import tempfile
import unittest

import torch

SCRIPT = """
import os, sys, torch
import smdistributed.dataparallel.torch.torch_smddp
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group(backend="smddp")
assert dist.get_backend() == "smddp" and dist.get_rank() == int(os.environ["RANK"])
assert os.environ["SMDATAPARALLEL_LOCAL_RANK"] == os.environ["LOCAL_RANK"]
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupShoal"
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(4, 1), device_ids=[int(os.environ["SMDATAPARALLEL_LOCAL_RANK"])])  # as transformers does
model(torch.randn(2, 4)).sum().backward()
grads = [torch.zeros_like(model.module.weight.grad) for _ in range(2)]
dist.all_gather(grads, model.module.weight.grad)
assert torch.equal(*grads)
"""
OLD_SCRIPT = """
import torch
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
import smdistributed.dataparallel.torch.parallel
if not dist.is_initialized():
    dist.init_process_group()
assert dist.get_world_size() == 2 and dist.get_local_rank() == dist.get_rank()
model = DDP(torch.nn.Linear(4, 1))
tensor = torch.ones(3)
dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
assert tensor.sum() == 6
dist.barrier()
"""
GLOO_SCRIPT = """
import os, sys, torch, torch.distributed as dist
assert sys.argv[1:] == ["one", "--two"], sys.argv
assert os.environ["ACCELERATE_USE_CPU"] == "true"
dist.init_process_group("gloo")
assert dist.get_backend() == "gloo"
dist.monitored_barrier()  # it uses rank 0's store, so the ranks meet again before rank 0 exits
for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
    assert type(group._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupShoal"
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.sum() == 6
    assert dist.get_process_group_ranks(group) == [0, 1]
dist.destroy_process_group()
"""


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Smddp(unittest.TestCase):
    def ranks(self, command, *, mpi):
        """Two ranks with the variables of mpirun, or of torchrun."""
        port, processes = free_port(), []
        for rank in range(2):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OMPI_")}
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
                environment.pop(name, None)
            prefix = "OMPI_COMM_WORLD_" if mpi else ""
            environment.update({f"{prefix}RANK": str(rank), f"{prefix}LOCAL_RANK": str(rank), "MASTER_PORT": port,
                                f"{prefix}SIZE" if mpi else "WORLD_SIZE": "2",
                                f"{prefix}LOCAL_SIZE" if mpi else "LOCAL_WORLD_SIZE": "2"})
            if not mpi:
                environment["MASTER_ADDR"] = "127.0.0.1"
            processes.append(subprocess.Popen([sys.executable, *command], env=environment, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        for process in processes:
            output, _ = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, output)

    def test_backend(self):
        self.ranks(["-c", SCRIPT], mpi=True)

    def test_names_before_1_4(self):
        self.ranks(["-c", OLD_SCRIPT], mpi=True)

    @unittest.skipIf(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9), "backends have no options")
    def test_run_replaces_gloo(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(GLOO_SCRIPT)
            script.flush()
            for mpi in (False, True):
                with self.subTest(mpi=mpi):
                    self.ranks(["-m", "shoal.run", script.name, "one", "--two"], mpi=mpi)


if __name__ == "__main__":
    unittest.main()
