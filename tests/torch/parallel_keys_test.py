"""The effect of keys of smp.init() that other tests only read back: seeds, the schedule, the cut, the process group."""
import os
import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch import nn

import ranks
from shoal.torch import parallel as smp

ROWS, WIDTH = 6, 64
RULE = "all_gather:^hierarchical"  # of sdp_hierarchical_allgather = false


def seeded(rank, size, key):
    torch.manual_seed(rank)
    smp.init({"ddp": True, key: 7})
    return torch.rand(3).tolist()


class Slow(nn.Module):
    """Takes far longer than it computes, and has no parameters."""

    def forward(self, x):
        time.sleep(0.01)
        return x * 1


def most_in_flight(rank, size, config):
    """The largest number of microbatches that the step function's rank has begun and not ended."""
    smp.init({"partitions": size, "microbatches": ROWS, "auto_partition": False, "default_partition": 0,
              "partition_assignment": {"1": 1, "2": 1}, **config})
    model = smp.DistributedModel(nn.Sequential(nn.Linear(WIDTH, WIDTH), Slow(), nn.Linear(WIDTH, WIDTH)))
    lock, running, seen = threading.Lock(), set(), [0]

    @smp.step
    def step(model, x):
        with lock:
            running.add(threading.get_ident())
            seen.append(len(running))
        model.backward(model(x).square().mean())
        with lock:
            running.discard(threading.get_ident())

    step(model, torch.ones(ROWS, WIDTH))
    return max(seen)


def cut(rank, size, weight):
    """The partitions of two modules with parameters and two that take time."""
    smp.init({"partitions": size, "microbatches": 2, "memory_weight": weight})
    model = smp.DistributedModel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)), Slow(), Slow()))

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    step(model, torch.ones(2, WIDTH))
    return [model.stage_of(str(number)) for number in range(4)]


class Begun(Exception):
    pass


def began(parameters, **variables):
    """The backend that init() starts torch.distributed with, and SHOAL_COLLECTIVES at that moment."""
    seen = []

    def begin(backend, **options):
        seen.append((backend, os.environ.get("SHOAL_COLLECTIVES")))
        raise Begun

    with unittest.mock.patch.dict(os.environ, variables), unittest.mock.patch.object(dist, "init_process_group", begin):
        with ranks.raises(Begun):
            smp.init(parameters)
    assert not smp.is_initialized()
    return seen[0]


def gathers(rank, size):
    """A group that init() starts with the rule works."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    begin = dist.init_process_group

    def with_store(backend):
        begin(backend, store=dist.PrefixStore("again", store), rank=rank, world_size=size)

    with unittest.mock.patch.dict(os.environ, RANK=str(rank)):
        with unittest.mock.patch.object(dist, "init_process_group", with_store):
            smp.init({"ddp": True, "sdp_hierarchical_allgather": False})
    out = torch.zeros(size)
    dist.all_gather_into_tensor(out, torch.tensor([float(rank)]))
    return out.tolist()


class Keys(unittest.TestCase):
    def test_random_seed(self):
        wanted = torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()
        for key in ("random_seed", "tensor_parallel_seed"):
            self.assertEqual(ranks.run(2, seeded, key), [wanted] * 2)

    def test_active_microbatches(self):
        for config, most in (({"active_microbatches": 1}, 1), ({"active_microbatches": 3}, 3), ({}, 4),
                             ({"pipeline": "1f1b"}, 2), ({"pipeline": "simple"}, ROWS)):
            with self.subTest(config):
                self.assertEqual(ranks.run(2, most_in_flight, config)[0], most)

    def test_memory_weight(self):
        for weight, stages in ((1.0, [0, 1, 1, 1]), (0.0, [0, 0, 0, 1])):
            with self.subTest(weight):
                self.assertEqual(ranks.run(2, cut, weight), [stages] * 2)

    def test_ddp_dist_backend(self):
        self.assertEqual(began({"ddp": True, "ddp_dist_backend": "nccl"})[0], "cpu:shoal,cuda:nccl")
        for parameters in ({"ddp": True}, {"ddp": True, "ddp_dist_backend": "auto"}):
            self.assertEqual(began(parameters)[0], "shoal")

    def test_sdp_hierarchical_allgather(self):
        parameters = {"ddp": True, "sdp_hierarchical_allgather": False}
        self.assertEqual(began(parameters)[1], RULE)
        self.assertEqual(began(parameters, SHOAL_COLLECTIVES="all_reduce:@ring")[1], f"all_reduce:@ring#{RULE}")
        self.assertIsNone(began({**parameters, "sdp_hierarchical_allgather": True})[1])
        with unittest.mock.patch.dict(os.environ, SHOAL_COLLECTIVES="@cluster.tune"):
            with ranks.raises(ValueError, "cluster.tune", RULE):
                smp.init(parameters)
        self.assertEqual(ranks.run(2, gathers), [[0.0, 1.0]] * 2)


if __name__ == "__main__":
    unittest.main()
