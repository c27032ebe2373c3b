"""Training steps in PyTorch on CPU as a server: forward, loss, backward, clipping, AdamW.

Answers on stdin and stdout, so that a driver can interleave its rounds with another program's
(interleave.py does): it builds and warms up one VARIANT, prints {"event": "ready", ...}, and then
answers each line `round` with one JSON line after running --steps steps; `quit` or the end of the
input ends it. By hand: `yes round | head -5 | python pytorch_gpt2.py f32-compile`.

VARIANT = precision-mode, precision one of
  f32            everything in float32
  bf16-autocast  float32 weights under torch.autocast(bfloat16)
  bf16-pure      bfloat16 weights, activations and gradients; AdamW on float32 masters
and mode `eager` or `compile` (inductor).

Memory: `peak_rss_bytes` is the highest resident size during the timed steps,
`process_peak_rss_bytes` that of the whole process, start and compilation included. The process
restarts itself with HELD_MEMORY, PyTorch's tuning advice for CPU in glibc's terms: without it each
large activation is mapped and faulted in anew (bf16 steps take 1.4x the time, and peak memory is a
sixth lower); --allocator default shows that.
"""

import argparse
import itertools
import json
import os
import re
import resource
import sys
import time

import torch
import torch.nn as nn

ADAMW = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8)
WEIGHT_DECAY, MAX_GRAD_NORM = 0.01, 1.0
HELD_MEMORY = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40),
                   MALLOC_TOP_PAD_=str(64 << 20))


class Training:
    """`model(*inputs, **named)` is the loss. Steps take `batches`, of (inputs, named), in turn."""

    def __init__(self, variant, model, batches):
        precision, _, mode = variant.rpartition("-")
        self.model, self.batches = model, itertools.cycle(batches)
        self.autocast = precision == "bf16-autocast"
        self.masters = None
        if precision == "bf16-pure":
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.model.parameters()]
            self.model.to(torch.bfloat16)
        updated = self.masters or list(self.model.parameters())
        groups = [dict(params=[p for p in updated if p.dim() > 1], weight_decay=WEIGHT_DECAY),
                  dict(params=[p for p in updated if p.dim() == 1], weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, fused=True, **ADAMW)
        self.loss_of = torch.compile(self.model) if mode == "compile" else self.model

    def step(self):
        inputs, named = next(self.batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.loss_of(*inputs, **named)
        loss.backward()
        parameters = list(self.model.parameters())
        if self.masters:
            for master, parameter in zip(self.masters, parameters):
                master.grad = parameter.grad.float()
                parameter.grad = None
        nn.utils.clip_grad_norm_(self.masters or parameters, MAX_GRAD_NORM, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(parameters, self.masters)
        return loss.item()


def reset_peak_rss():
    """Linux: writing 5 sets VmHWM to the current size."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_rss():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


def run_round(work, args):
    start = time.perf_counter()
    for _ in range(args.steps):
        loss = work.step()
    seconds = (time.perf_counter() - start) / args.steps
    return dict(operation=f"{args.model}_step", peer=f"pytorch {torch.__version__}",
                variant=args.variant, batch=args.batch, length=args.length, dropout=args.dropout,
                threads=args.threads,
                allocator=args.allocator, steps=args.steps, step_seconds=seconds,
                tokens_per_second=args.tokens / seconds, loss=loss,
                peak_rss_bytes=peak_rss(),
                process_peak_rss_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


VARIANTS = [f"{p}-{m}" for p in ("f32", "bf16-autocast", "bf16-pure") for m in ("eager", "compile")]


def arguments(description, more_variants=()):
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=[*VARIANTS, *more_variants])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps a round")
    parser.add_argument("--warmup", type=int, default=2, help="steps before `ready`")
    parser.add_argument("--allocator", choices=["held", "default"], default="held")
    parser.add_argument("--dropout", type=float, default=0.0)
    return parser


def serve(args, build):
    """`build(args)` returns the object to time, which has step()."""
    if args.allocator == "held" and any(os.environ.get(k) != v for k, v in HELD_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **HELD_MEMORY})
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' output must not mix with the answers

    def answer(row):
        print(json.dumps(row), file=output, flush=True)

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.tokens = args.batch * args.length
    work = build(args)
    start = time.perf_counter()
    for _ in range(args.warmup):
        work.step()
    answer(dict(event="ready", variant=args.variant, warmup_seconds=time.perf_counter() - start))
    reset_peak_rss()
    for line in sys.stdin:
        command = line.strip()
        if command == "quit":
            break
        if command != "round":
            sys.exit(f"unknown command '{command}': round or quit")
        answer(run_round(work, args))
