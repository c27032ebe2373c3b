#!/usr/bin/env python3
"""A step of PyTorch's DistributedDataParallel over gloo whose computation only sleeps.

The peer of bench/collectives/ddp_step.cc; bench/collectives/ddp.py runs both. One process a rank, found by
torchrun's variables or Open MPI's. MODEL is the JSON that `shoal_bench_ddp_step --describe` prints:
the layers in the order of backward, each with the parameters whose gradients are complete after it.
Each layer sleeps forward and backward, then writes its gradients once, as a kernel would; the rest is
DDP's own work: copies into buckets, all_reduce in backward, waiting. Rank 0 prints one JSON line a
timed step. GLOO_SOCKET_IFNAME chooses the network.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 python pytorch_ddp.py gpt2.json
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist


def rank_and_size():
    for rank, size in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise SystemExit("pytorch_ddp: neither torchrun's nor Open MPI's variables are set")


def join(backend, rank, size):
    if backend == "shoal":
        import shoal.torch  # noqa: F401 (registers the backend if no package is installed)
    dist.init_process_group(backend, rank=rank, world_size=size)


class SleepingLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer, *parameters):
        ctx.layer = layer
        ctx.shapes = [p.shape for p in parameters]
        time.sleep(layer.forward_seconds)
        return x + 0

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.layer.backward_seconds)
        return (gradient, None, *[torch.full(shape, ctx.layer.value) for shape in ctx.shapes])


class Layer(torch.nn.Module):
    def __init__(self, shapes, forward_seconds, backward_seconds):
        super().__init__()
        self.values = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(s)) for s in shapes)
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds
        self.value = 0.0

    def forward(self, x):
        return SleepingLayer.apply(x, self, *self.values)


class Model(torch.nn.Module):
    """The layers run forward in the reverse of the file's order, which is backward's."""

    def __init__(self, layers, forward_seconds, backward_seconds):
        super().__init__()
        # Puts layers without parameters, and the first one's x, into the graph too.
        self.start = torch.nn.Parameter(torch.zeros(1))
        self.layers = torch.nn.ModuleList(
            Layer([p["shape"] for p in layer["parameters"]], forward_seconds, backward_seconds)
            for layer in reversed(layers))

    def forward(self):
        x = self.start + 0
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--forward-ms", type=float, default=0, help="sleep of a whole forward")
    parser.add_argument("--backward-ms", type=float, default=0, help="sleep of a whole backward")
    parser.add_argument("--bucket-mb", type=float, default=25, help="bucket_cap_mb")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2, help="DDP rebuilds its buckets after one")
    parser.add_argument("--backend", default="gloo", help="or shoal, with its package in PYTHONPATH")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rank, size = rank_and_size()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29400")
    join(arguments.backend, rank, size)
    with open(arguments.model) as file:
        described = json.load(file)
    layers = described["layers"]
    model = Model(layers, arguments.forward_ms * 1e-3 / len(layers),
                  arguments.backward_ms * 1e-3 / len(layers))
    # PyTorch's guide advises this to save memory and copies: gradients are views of buckets.
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=arguments.bucket_mb, gradient_as_bucket_view=True)
    size_in_bytes = 4 * sum(p.numel() for p in model.parameters())
    right = True
    dist.barrier()
    for step in range(arguments.warmup + arguments.steps):
        for layer in model.layers:
            layer.value = float((rank + 1) * (step + 1))
        ddp.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        ddp().backward()
        mean = (step + 1) * (size + 1) / 2  # DDP averages
        right = right and all(float(p.grad.view(-1)[0]) == mean == float(p.grad.view(-1)[-1])
                              for layer in model.layers for p in layer.values)
        elapsed = time.perf_counter() - begin
        if rank == 0 and step >= arguments.warmup:
            exposed = max(0.0, elapsed - (arguments.forward_ms + arguments.backward_ms) * 1e-3)
            print(json.dumps({
                "operation": "ddp_step", "peer": f"pytorch {torch.__version__} DDP, {arguments.backend}",
                "model": described["model"], "bytes": size_in_bytes, "ranks": size, "dtype": "f32",
                "bucket_bytes": int(arguments.bucket_mb * 2**20),
                "forward_seconds": arguments.forward_ms * 1e-3,
                "backward_seconds": arguments.backward_ms * 1e-3, "step_seconds": elapsed,
                "exposed_seconds": exposed, "verified": right}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if not right:
        raise SystemExit(f"pytorch_ddp: rank {rank}: wrong means")


if __name__ == "__main__":
    main()
