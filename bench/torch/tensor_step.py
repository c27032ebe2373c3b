#!/usr/bin/env python3
"""A training step of GPT-2 split over tensor-parallel ranks beside DDP, by turns, one JSON line for each mode.

    PYTHONPATH=build/release/python python bench/torch/tensor_step.py --ranks 2 --layers 4 --batch 4 --length 256

Needs transformers. Each rank has a batch of its own (prescaled_batch: every rank has all samples), so that the same
samples are trained; the row has the medians of the slowest rank's times, and DDP's time over the split model's. The
optimizer is left out.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

from shoal.torch import parallel as smp
from shoal.torch.parallel import tensor
from start_ranks import start_ranks

MODES = {"batch": {"prescaled_batch": False}, "none": {"prescaled_batch": True, "optimize": "speed"},
         "sequence": {"prescaled_batch": True, "optimize": "memory"}}


def model_of(options):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=options.layers, n_embd=options.width, n_head=options.width // 64,
                                      vocab_size=options.vocabulary, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0,
                                      attn_pdrop=0.0))


def step_of(model, ids):
    model.zero_grad(set_to_none=True)
    dist.barrier()
    begin = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    took = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def rank_main(rank, options, path):
    torch.set_num_threads(1)
    dist.init_process_group("shoal", init_method=f"file://{path}", rank=rank, world_size=options.ranks)
    ids = torch.randint(options.vocabulary, (options.batch * options.ranks, options.length),
                        generator=torch.Generator().manual_seed(1))
    own = ids.chunk(options.ranks)[rank]
    replica = DistributedDataParallel(model_of(options))
    for mode in options.modes.split(","):
        smp.init({"tensor_parallel_degree": options.ranks, "ddp": True, **MODES[mode]})
        split = model_of(options)
        smp.set_tensor_parallelism(split)
        split = tensor.distribute(split)
        times = {"ddp": [], "split": []}
        for turn in range(options.rounds + 1):
            for name, model, batch in (("ddp", replica, own), ("split", split, own if mode == "batch" else ids)):
                took = step_of(model, batch)
                if turn:
                    times[name].append(took)
        if rank == 0:
            ddp, each = (statistics.median(times[name]) for name in ("ddp", "split"))
            print(json.dumps({"bench": "torch/tensor_step", "mode": mode, "ranks": options.ranks,
                              "layers": options.layers, "width": options.width, "vocabulary": options.vocabulary,
                              "tokens": ids.numel(), "ddp_ms": round(ddp * 1e3, 1), "split_ms": round(each * 1e3, 1),
                              "ddp_over_split": round(ddp / each, 3)}), flush=True)
        smp.shutdown()
    dist.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("ranks", 2), ("layers", 4), ("width", 768), ("vocabulary", 8192), ("batch", 4),
                        ("length", 256), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--modes", default="batch,none,sequence")
    start_ranks(rank_main, parser.parse_args())


if __name__ == "__main__":
    main()
