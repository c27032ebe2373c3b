#!/usr/bin/env python3
"""PyTorch's matrix products at GPT-2 124M's shapes: one JSON line a shape, pass and dtype.

A linear layer y[M, N] = x[M, K] W costs three products of 2 M N K operations each: the forward,
dgrad (dx = dy W^T) and wgrad (dW = x^T dy). Weights are laid out as PyTorch's nn.Linear has them,
[N, K]. `bound` at the end is the time of all products of one training step (attention's excluded):
no step that uses these products can be faster.
"""

import argparse
import json
import statistics
import time

import torch

LAYERS, WIDTH, VOCABULARY = 12, 768, 50257
# name, K, N, number in the model
SHAPES = [("qkv", WIDTH, 3 * WIDTH, LAYERS), ("attention_out", WIDTH, WIDTH, LAYERS),
          ("mlp_in", WIDTH, 4 * WIDTH, LAYERS), ("mlp_out", 4 * WIDTH, WIDTH, LAYERS),
          ("head", WIDTH, VOCABULARY, 1)]
PASSES = ("forward", "dgrad", "wgrad")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Linear:
    """The three products of one shape; results go to buffers that are allocated once."""

    def __init__(self, tokens, k, n, dtype):
        self.flops = 2 * tokens * k * n
        self.x, self.dy = (torch.randn(tokens, size, dtype=dtype) for size in (k, n))
        self.w = torch.randn(n, k, dtype=dtype)
        self.y, self.dx, self.dw = map(torch.empty_like, (self.dy, self.x, self.w))

    def run(self, which):
        if which == "forward":
            torch.mm(self.x, self.w.t(), out=self.y)
        elif which == "dgrad":
            torch.mm(self.dy, self.w, out=self.dx)
        else:
            torch.mm(self.dy.t(), self.x, out=self.dw)

    def seconds(self, which):
        start = time.perf_counter()
        self.run(which)
        return time.perf_counter() - start


class Bound:
    """All products of one step, once each; the same interface as a training step."""

    def __init__(self, tokens, dtype):
        self.linears = [(Linear(tokens, k, n, DTYPES[dtype]), count)
                        for _, k, n, count in SHAPES]

    def step(self):
        for linear, count in self.linears:
            for _ in range(count):
                for which in PASSES:
                    linear.run(which)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--dtype", choices=list(DTYPES), action="append", help="default: both")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for dtype in args.dtype or DTYPES:
        bound = flops = 0.0
        for name, k, n, count in SHAPES:
            linear = Linear(args.tokens, k, n, DTYPES[dtype])
            for which in PASSES:
                linear.run(which)  # the first call sets up
                times = [linear.seconds(which) for _ in range(args.repeats)]
                seconds = statistics.median(times)
                bound += count * seconds
                flops += count * linear.flops
                print(json.dumps(dict(
                    operation="matmul", peer=f"pytorch {torch.__version__}", shape=name, m=args.tokens,
                    k=k, n=n, **{"pass": which}, dtype=dtype, threads=args.threads,
                    p50_seconds=seconds, best_seconds=min(times),
                    gflops=linear.flops / seconds * 1e-9)), flush=True)
        print(json.dumps(dict(
            operation="matmul_bound", peer=f"pytorch {torch.__version__}", dtype=dtype,
            threads=args.threads, tokens=args.tokens, step_seconds=bound,
            tokens_per_second=args.tokens / bound, gflops=flops / bound * 1e-9)), flush=True)


if __name__ == "__main__":
    main()
