#!/usr/bin/env python3
"""PyTorch's AdamW (fused), LayerNorm and GELU at the shapes of shoal_bench_kernels, one JSON line each."""

import json
import statistics
import time

import torch

TOKENS, WIDTH, VOCABULARY = 2048, 768, 50257


def measure(operation, dtype, run, rounds=41):
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    print(json.dumps({"operation": operation, "dtype": dtype, "peer": f"torch {torch.__version__}",
                      "threads": torch.get_num_threads(), "p50_us": statistics.median(times)}),
          flush=True)


def activations(dtype, name):
    x = torch.rand(TOKENS, WIDTH, dtype=dtype)
    gamma, beta = torch.rand(WIDTH, dtype=dtype), torch.rand(WIDTH, dtype=dtype)
    wide, dy = torch.rand(TOKENS, 4 * WIDTH, dtype=dtype), torch.rand(TOKENS, 4 * WIDTH, dtype=dtype)
    y, mean, rstd = torch.native_layer_norm(x, (WIDTH,), gamma, beta, 1e-5)
    measure("layer_norm", name, lambda: torch.native_layer_norm(x, (WIDTH,), gamma, beta, 1e-5))
    # First only dx, then also the gradients of gamma and beta.
    backward = torch.ops.aten.native_layer_norm_backward
    measure("layer_norm_backward", name,
            lambda: backward(y, x, (WIDTH,), mean, rstd, gamma, beta, [True, False, False]))
    measure("layer_norm_backward_all", name,
            lambda: backward(y, x, (WIDTH,), mean, rstd, gamma, beta, [True, True, True]))
    for form, label in (("tanh", "gelu_tanh"), ("none", "gelu_erf")):
        measure(label, name, lambda: torch.nn.functional.gelu(wide, approximate=form))
        measure(label + "_backward", name,
                lambda: torch.ops.aten.gelu_backward(dy, wide, approximate=form))


def main():
    with torch.no_grad():
        for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            activations(dtype, name)
    for options in ({"fused": True}, {"foreach": True}):
        parameter = torch.rand(VOCABULARY * WIDTH, requires_grad=True)
        parameter.grad = torch.rand_like(parameter)
        optimizer = torch.optim.AdamW([parameter], lr=1e-4, weight_decay=0.01, **options)
        measure("adamw_" + next(iter(options)), "f32", optimizer.step, rounds=9)


if __name__ == "__main__":
    main()
