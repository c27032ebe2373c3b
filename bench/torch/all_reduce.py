#!/usr/bin/env python3
"""torch.distributed's all_reduce of CPU tensors: backend shoal beside gloo, by turns, one JSON line a size.

    PYTHONPATH=build/release/python python bench/torch/all_reduce.py --ranks 2 --sizes 8,1k,64k,1M,16M

The memory of a row is `ordinary` (torch.empty) or `symmetric` (the backend's allocate_tensor); gloo
always reduces ordinary memory. Times are medians over rounds of the slowest rank's mean, ratios medians
of the rounds' ratios. With --ranks 1 a call only passes through PyTorch and the backend.

--communicator LIBRARY (build/release/bench/torch/libshoal_bench_communicator.so) adds the Communicator's own
call in ordinary memory, and c10d's ProcessGroup.allreduce without torch.distributed's Python around it, by turns with
the others. overhead_us and c10d_overhead_us are medians of the rounds' differences to the Communicator's call.
"""
import argparse
import ctypes
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

import shoal.torch
from start_ranks import start_ranks

UNITS = {"k": 1 << 10, "M": 1 << 20}


def size_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def mean_of(calls, tensor, group):
    dist.barrier(group=group)
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - begin) / calls


def mean_of_c10d(calls, tensor, group):
    how, tensors = dist.AllreduceOptions(), [tensor]
    dist.barrier(group=group)
    begin = time.perf_counter()
    for _ in range(calls):
        group.allreduce(tensors, how).wait()
    return (time.perf_counter() - begin) / calls


class Communicator:
    """The Communicator's own calls, in this process and without PyTorch."""

    def __init__(self, library, rank, size, directory):
        self.library = ctypes.CDLL(library)
        self.library.shoal_bench_connect.restype = ctypes.c_void_p
        self.library.shoal_bench_all_reduce.restype = ctypes.c_double
        self.ranks = ctypes.c_void_p(self.library.shoal_bench_connect(rank, size, directory.encode()))
        if not self.ranks:
            raise RuntimeError("the Communicator did not connect")

    def mean_of(self, calls, elements):
        took = self.library.shoal_bench_all_reduce(self.ranks, ctypes.c_int64(elements), calls)
        if took < 0:
            raise RuntimeError("the Communicator's all_reduce failed")
        return took


def rank_main(rank, options, path):
    torch.set_num_threads(1)
    dist.init_process_group("shoal", init_method=f"file://{path}", rank=rank, world_size=options.ranks)
    groups = {"shoal": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    own = options.communicator and Communicator(options.communicator, rank, options.ranks, os.path.dirname(path))
    for size in options.sizes:
        elements = max(size // 4, 1)
        memories = {("gloo", "ordinary"): torch.zeros(elements), ("shoal", "ordinary"): torch.zeros(elements),
                    ("shoal", "symmetric"): backend.allocate_tensor(elements, dtype=torch.float32, device=cpu).zero_()}
        calls = max(1, min(options.calls, (64 << 20) // max(size, 1)))
        times = {key: [] for key in memories}
        if own:
            times["communicator", "ordinary"], times["c10d", "ordinary"] = [], []
        measures = {"communicator": lambda: own.mean_of(calls, elements),
                    "c10d": lambda: mean_of_c10d(calls, memories["shoal", "ordinary"], groups["shoal"])}
        for turn in range(options.rounds + 1):
            for key, kept in times.items():
                took = torch.tensor([measures[key[0]]() if key[0] in measures else
                                     mean_of(calls, memories[key], groups[key[0]])], dtype=torch.float64)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                if turn > 0:  # the first warms up
                    kept.append(took.item())
        if rank == 0:
            row = {"bench": "torch/all_reduce", "ranks": options.ranks, "bytes": size}
            median = {key: statistics.median(values) for key, values in times.items()}
            for (name, memory), value in median.items():
                row[f"{name}_{memory}_us"] = round(value * 1e6, 1)
            for memory in ("ordinary", "symmetric"):
                pairs = zip(times["gloo", "ordinary"], times["shoal", memory])
                row[f"{memory}_ratio"] = round(statistics.median(gloo / shoal for gloo, shoal in pairs), 2)
            if own:
                for name, column in (("shoal", "overhead_us"), ("c10d", "c10d_overhead_us")):
                    pairs = zip(times[name, "ordinary"], times["communicator", "ordinary"])
                    row[column] = round(statistics.median(shoal - alone for shoal, alone in pairs) * 1e6, 1)
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,1k,16k,256k,1M,16M,64M,256M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="at most, in a round")
    parser.add_argument("--communicator", help="the library with the Communicator's own calls")
    options = parser.parse_args()
    options.sizes = [size_of(text) for text in options.sizes.split(",")]
    start_ranks(rank_main, options)


if __name__ == "__main__":
    main()
