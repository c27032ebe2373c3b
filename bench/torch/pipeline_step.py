#!/usr/bin/env python3
"""A training step of a GPT-2 shape: a pipeline of two ranks beside two replicas, by turns, one JSON line.

    OMP_NUM_THREADS=1 PYTHONPATH=build/release/python python bench/torch/pipeline_step.py --microbatches 16

Both take the same samples a step. `ratio` is the median over rounds of the replicas' seconds by the pipeline's.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import shoal.torch
from shoal.torch import parallel as smp
from start_ranks import start_ranks


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens, self.places = nn.Embedding(options.vocabulary, options.width), nn.Embedding(1024, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.width // 64) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.places):  # as GPT-2; PyTorch's default gives denormal gradients, which are slow
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def measured(options, partitions, rounds, seen):
    """Seconds of steps with this many partitions; `seen` takes their processor seconds on this rank."""
    smp.init({"partitions": partitions, "microbatches": options.microbatches if partitions > 1 else 1, "ddp": True,
              "optimize": "speed", "pipeline": options.pipeline,
              "active_microbatches": options.active if partitions > 1 else 1})
    torch.manual_seed(1)
    model = smp.DistributedModel(Gpt2(options))

    @smp.step
    def step(model, ids):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        model.backward(loss)
        return loss

    ids = torch.randint(options.vocabulary, (options.rows if partitions > 1 else options.rows // 2, options.length))
    times = []
    for turn in range(rounds + 1):
        for parameter in model.parameters():
            parameter.grad = None
        dist.barrier()
        begin, work = time.perf_counter(), time.process_time()
        step(model, ids)
        dist.barrier()
        if turn > 0:  # the first warms up and partitions the model
            times.append(time.perf_counter() - begin)
            seen.append(time.process_time() - work)
    smp.shutdown()
    return times


def rank_main(rank, options, path):
    torch.set_num_threads(1)
    dist.init_process_group("shoal", init_method=f"file://{path}", rank=rank, world_size=2)
    seconds = {1: [], 2: []}
    work = {1: [], 2: []}
    for _ in range(options.turns):
        for partitions in seconds:
            seconds[partitions] += measured(options, partitions, options.rounds, work[partitions])
    spent = [None, None]
    dist.all_gather_object(spent, {key: statistics.median(value) for key, value in work.items()})
    if rank == 0:
        one, two = (statistics.median(values) for values in seconds.values())
        print(json.dumps({"bench": "torch/pipeline_step", "microbatches": options.microbatches,
                          "pipeline": options.pipeline, "active": options.active,
                          "layers": options.layers, "width": options.width,
                          "rows": options.rows, "length": options.length, "vocabulary": options.vocabulary,
                          "replicas_s": round(one, 3), "pipeline_s": round(two, 3), "ratio": round(one / two, 3),
                          "replicas_cpu_s": [round(part[1], 3) for part in spent],
                          "pipeline_cpu_s": [round(part[2], 3) for part in spent]}), flush=True)
    dist.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("microbatches", 8), ("layers", 8), ("width", 512), ("rows", 16), ("length", 128),
                        ("vocabulary", 4096), ("rounds", 3), ("turns", 2), ("active", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--pipeline", default="interleaved")
    options = parser.parse_args()
    options.ranks = 2
    start_ranks(rank_main, options)


if __name__ == "__main__":
    main()
