#!/usr/bin/env python3
"""A training step of DDP: backend shoal beside gloo, by turns, one JSON line a model.

    PYTHONPATH=build/release/python python bench/torch/ddp_step.py --ranks 2 --models gpt2,bert

The third contestant, `none`, has a communication hook that ends at once: its step has DDP's own work (copies of
gradients into buckets and back), but no communication. Exposed communication is a step's time less that of
none in the same round. no_sync_ms is a step without DDP's own work too. The row has the medians of the slowest
rank's times.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shoal.torch
from start_ranks import start_ranks


class Transformer(nn.Module):
    """The shape of GPT-2 124M or BERT-base: parameters and products, without what makes text of them."""

    def __init__(self, vocabulary, positions, causal):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(vocabulary, 768), nn.Embedding(positions, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=causal)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(768)
        for embedding in (self.words, self.places):  # as both models; PyTorch's default gives denormal gradients, which are slow
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        hidden = self.words(tokens) + self.places(torch.arange(length))
        hidden = self.norm(self.layers(hidden, mask=mask, is_causal=self.causal))
        return nn.functional.cross_entropy((hidden @ self.words.weight.T).flatten(0, 1), tokens.flatten())


MODELS = {"gpt2": (50257, 1024, True), "bert": (30522, 512, False)}


def step_of(model, tokens, synchronised, group):
    model.zero_grad(set_to_none=True)
    dist.barrier(group)
    begin = time.perf_counter()
    with contextlib.nullcontext() if synchronised else model.no_sync():
        model(tokens).backward()
    took = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return took.item()


def without_communication(_, bucket):
    reduced = torch.futures.Future()
    reduced.set_result(bucket.buffer())
    return reduced


def rank_main(rank, options, path):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("shoal", init_method=f"file://{path}", rank=rank, world_size=options.ranks)
    groups = {"shoal": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), "none": dist.group.WORLD}
    for name in options.models.split(","):
        tokens = torch.randint(MODELS[name][0], (options.batch, options.length))
        models = {backend: DistributedDataParallel(Transformer(*MODELS[name]), process_group=group)
                  for backend, group in groups.items()}
        models["none"].register_comm_hook(None, without_communication)
        arms = [(backend, True) for backend in models] + [("none", False)]
        times = {arm: [] for arm in arms}
        for turn in range(options.rounds + 2):
            for (backend, synchronised), found in times.items():
                took = step_of(models[backend], tokens, synchronised, dist.group.WORLD)
                if turn > 1:  # the first rebuilds the buckets
                    found.append(took)
        if rank == 0:
            row = {"bench": "torch/ddp_step", "model": name, "ranks": options.ranks,
                   "parameters": sum(value.numel() for value in models["shoal"].parameters()),
                   "tokens": options.batch * options.length}
            exposed = {}
            for backend in models:
                steps = times[backend, True]
                row[f"{backend}_step_ms"] = round(statistics.median(steps) * 1e3, 1)
                if backend != "none":
                    exposed[backend] = statistics.median(a - b for a, b in zip(steps, times["none", True]))
                    row[f"{backend}_exposed_ms"] = round(exposed[backend] * 1e3, 1)
            row["no_sync_ms"] = round(statistics.median(times["none", False]) * 1e3, 1)
            row["exposed_share"] = round(exposed["shoal"] / exposed["gloo"], 3)
            print(json.dumps(row), flush=True)
        del models
    dist.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default="gpt2,bert")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    start_ranks(rank_main, options)


if __name__ == "__main__":
    main()
