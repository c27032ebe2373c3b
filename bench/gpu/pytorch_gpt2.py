#!/usr/bin/env python3
"""Training steps of GPT-2, BERT (masked tokens) or a Llama in PyTorch on one GPU, as fast as PyTorch
allows: the peer of gpt2_gpu_step. The models are in pytorch_models.py.

The same work as ours: bf16 forward and backward, updates of f32 masters, the norm of all gradients
clipped to 1, AdamW; tied head; --dropout (BERT's). --precision pure (the default) keeps bf16 weights, which
each update refreshes from the masters, and a bf16 residual stream, as ours does; autocast keeps f32
weights, f32 gradients and an f32 residual stream.

It uses PyTorch's means for speed: torch.compile (--compile whole, or blocks: each block and the
head by themselves, which compiles faster), fused AdamW, scaled_dot_product_attention with
FlashAttention or cuDNN, whichever is faster at this shape (measured first), a vocabulary padded to a
multiple of 128, and no synchronisation within the steps.

Without a mode it runs --steps steps after --warmup and prints one JSON line. --serve answers each
line `round` on stdin with one such line, after {"event": "ready"}, and returns memory that it does not
need between rounds to the GPU. --find-batch prints the largest batch that runs within --memory-cap.
--check DIRECTORY prints, on the CPU and in f32, the loss of the weights and the batch that
`gpt2_gpu_step --save DIRECTORY` left there: both sides must agree.
"""

import argparse
import contextlib
import json
import os
import struct
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytorch_models import LLAMA_KEY_HEADS, MODELS, VOCABULARIES, family, load, make_model

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def time_attention(name, args):
    """Milliseconds of forward and backward with one backend; None if it fails."""
    _, heads, width = MODELS[args.model]
    key_heads = LLAMA_KEY_HEADS if family(args.model) == "llama" else heads
    q, k, v = (torch.randn(args.batch, args.length, count, width // heads, device="cuda", dtype=torch.bfloat16)
               .transpose(1, 2).requires_grad_() for count in (heads, key_heads, key_heads))
    grad = torch.randn_like(q)

    def once():
        with sdpa_kernel([BACKENDS[name]]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=family(args.model) != "bert",
                                               dropout_p=args.dropout, enable_gqa=key_heads != heads)
            torch.autograd.grad(y, (q, k, v), grad)

    try:
        for _ in range(3):
            once()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            once()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 10
    except RuntimeError as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return None


class Training:
    def __init__(self, args, attention):
        self.args, self.attention = args, attention
        with torch.device("cuda"):
            self.model = make_model(args.model, MODELS[args.model], VOCABULARIES[family(args.model)],
                                    max(1024, args.length), args.dropout)
        self.masters = None
        if args.precision == "pure":
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.model.parameters()]
            self.model.to(torch.bfloat16)
        updated = self.masters or list(self.model.parameters())
        groups = [dict(params=[p for p in updated if p.dim() > 1], weight_decay=0.1),
                  dict(params=[p for p in updated if p.dim() == 1], weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, fused=True)
        self.loss_of = self.model
        if args.compile == "whole":
            self.loss_of = torch.compile(self.model, mode=args.compile_mode or None)
        elif args.compile == "blocks":
            for module in [*self.model.blocks, self.model.head]:
                module.compile(mode=args.compile_mode or None)
        tokens = torch.randint(self.model.vocabulary, (args.batch, args.length + 1), device="cuda")
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.inputs = ids, targets
        if family(args.model) == "bert":  # 15 % of the positions
            rows = torch.randperm(ids.numel(), device="cuda")[:ids.numel() * 15 // 100].sort().values
            types = (torch.arange(args.length, device="cuda") >= args.length // 2).long().expand_as(ids).contiguous()
            targets = ids.flatten()[rows].clone()
            ids.view(-1)[rows] = 103
            self.inputs = ids, types, rows, targets

    def step(self):
        autocast = torch.autocast("cuda", torch.bfloat16) if self.masters is None else contextlib.nullcontext()
        with sdpa_kernel([BACKENDS[self.attention]]):
            with autocast:
                loss = self.loss_of(*self.inputs)
            loss.backward()
        parameters = list(self.model.parameters())
        if self.masters:
            for master in self.masters:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in parameters])
        nn.utils.clip_grad_norm_(self.masters or parameters, 1.0, foreach=True)
        self.optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(parameters, self.masters)
        return loss.detach()


def measure(training, args, facts):
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):  # reuses memory that was given back
        loss = training.step()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    torch.cuda.synchronize()
    for mark in marks[:-1]:
        mark.record()
        loss = training.step()
    marks[-1].record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))
    ms = times[len(times) // 2]
    return dict(operation="step", peer=f"pytorch {torch.__version__}", model=args.model, batch=args.batch,
                length=args.length, precision=args.precision, compile=args.compile, steps=args.steps,
                dropout=args.dropout, step_ms=ms, tokens_per_second=args.batch * args.length / ms * 1e3,
                sequences_per_second=args.batch / ms * 1e3, loss=loss.item(),
                peak_bytes=torch.cuda.max_memory_allocated(),
                peak_reserved_bytes=torch.cuda.max_memory_reserved(), **facts)


def runs(args, attention):
    """True if three steps of this batch fit."""
    training = None
    try:
        training = Training(args, attention)
        for _ in range(3):
            training.step()
        torch.cuda.synchronize()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        del training
        torch.cuda.empty_cache()


def find_batch(args, attention):
    low, high = 0, 1
    while high <= 4096 and runs(argparse.Namespace(**{**vars(args), "batch": high}), attention):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if runs(argparse.Namespace(**{**vars(args), "batch": middle}), attention):
            low = middle
        else:
            high = middle
    return low


def tensors_of(path):
    """Reads a safetensors file without its package."""
    dtypes = {"F32": torch.float32, "I32": torch.int32}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data, dtype=dtypes[entry["dtype"]], offset=entry["data_offsets"][0],
                                   count=(entry["data_offsets"][1] - entry["data_offsets"][0]) // 4)
            .reshape(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def check(directory):
    """The loss for the files of gpt2_gpu_step --save."""
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)

    def size(*names):
        return next(config[name] for name in names if name in config)

    sizes = (size("n_layer", "num_hidden_layers"), size("n_head", "num_attention_heads"), size("n_embd", "hidden_size"))
    model = make_model(config["model_type"], sizes, config["vocab_size"],
                       size("n_positions", "max_position_embeddings"), 0)
    load(model, tensors_of(os.path.join(directory, "model.safetensors")))
    model.eval()
    batch = {name: tensor.long() for name, tensor in tensors_of(os.path.join(directory, "batch.safetensors")).items()}
    inputs = (batch["input_ids"], batch["labels"])
    if "token_type_ids" in batch:
        labels = batch["labels"].flatten()
        rows = (labels >= 0).nonzero().flatten()
        inputs = (batch["input_ids"], batch["token_type_ids"], rows, labels[rows])
    # Padding rows do not matter for training on random logits, but they would count in the softmax.
    table = model.wte if hasattr(model, "wte") else model.words
    table.weight = nn.Parameter(table.weight[:model.vocabulary])
    if hasattr(model.head, "bias"):
        model.head.bias = nn.Parameter(model.head.bias[:model.vocabulary])
    with torch.no_grad():
        return model(*inputs).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--precision", choices=["pure", "autocast"], default="pure")
    parser.add_argument("--compile", choices=["off", "whole", "blocks"], default="whole")
    parser.add_argument("--compile-mode", default="", help="torch.compile's: max-autotune, reduce-overhead ...")
    parser.add_argument("--attention", choices=["best", *BACKENDS], default="best")
    parser.add_argument("--memory-cap", type=float, default=0, help="GB (1e9 bytes) for PyTorch; 0: no cap")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--find-batch", action="store_true")
    parser.add_argument("--check", metavar="DIRECTORY")
    args = parser.parse_args()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' output must not mix with the answers

    def answer(row):
        print(json.dumps(row), file=output, flush=True)

    if args.check:
        answer(dict(operation="check", peer=f"pytorch {torch.__version__}", loss=check(args.check)))
        return
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if args.memory_cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.memory_cap * 1e9 / total))
    timed = {}
    if args.attention == "best":
        timed = {name: ms for name in BACKENDS if (ms := time_attention(name, args)) is not None}
        attention = min(timed, key=timed.get)
    else:
        attention = args.attention
    torch.cuda.empty_cache()
    facts = dict(attention=attention, attention_ms=timed)
    if args.find_batch:
        batch = find_batch(args, attention)
        answer(dict(operation="largest_batch", peer=f"pytorch {torch.__version__}", model=args.model,
                    length=args.length, precision=args.precision, compile=args.compile,
                    memory_cap_gb=args.memory_cap, batch=batch, **facts))
        return
    start = time.perf_counter()
    training = Training(args, attention)
    for _ in range(args.warmup):
        training.step()
    torch.cuda.synchronize()
    facts["start_seconds"] = round(time.perf_counter() - start, 1)
    if not args.serve:
        answer(measure(training, args, facts))
        return
    torch.cuda.empty_cache()
    answer(dict(event="ready", **facts))
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        answer(measure(training, args, facts))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
