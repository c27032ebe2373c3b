#!/usr/bin/env python3
"""GPT-2 124M trained by PyTorch's DistributedDataParallel over gloo: real computation, f32.

The peer of `shoal train` in bench/collectives/ddp_train.py, which runs both. One process a rank, found by
torchrun's variables or Open MPI's; GLOO_SOCKET_IFNAME chooses the network. The model is pytorch_gpt2.py's (no
dropout, tied head), eager, with memory held by the allocator as there; AdamW fused, gradients not clipped, the
same random ids on all ranks. Rank 0 prints one JSON line with the time of a step and the mean loss by
windows of steps; alone_seconds is a step under no_sync(), which reduces nothing. --write-initial writes its
initial weights as Hugging Face's files, so that others can start from them, and ends.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 python pytorch_ddp_gpt2.py
"""

import argparse
import contextlib
import json
import os
import random
import struct
import sys
import time

import torch
import torch.distributed as dist

from pytorch_ddp import join, rank_and_size
from pytorch_gpt2 import HEADS, LAYERS, POSITIONS, VOCABULARY, WIDTH, Gpt2
from pytorch_step import ADAMW, HELD_MEMORY

HUGGING_FACE = {"qkv": "attn.c_attn", "out": "attn.c_proj", "mlp_in": "mlp.c_fc", "mlp_out": "mlp.c_proj"}


def initial_model():
    torch.manual_seed(0)
    return Gpt2()


def write_initial(directory):
    """config.json and model.safetensors"""
    config = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH,
              "n_layer": LAYERS, "n_head": HEADS, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    header, parts, end = {}, [], 0
    for name, parameter in initial_model().named_parameters():
        words = name.split(".")
        value = parameter.detach()
        if words[0] == "blocks":
            if words[2] in HUGGING_FACE and words[3] == "weight":
                value = value.t()  # Conv1D: [in, out]
            name = f"h.{words[1]}.{HUGGING_FACE.get(words[2], words[2])}.{words[3]}"
        data = value.contiguous().numpy().tobytes()
        header[f"transformer.{name}"] = {"dtype": "F32", "shape": list(value.shape),
                                         "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="samples of a rank")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--bucket-mb", type=float, default=25, help="bucket_cap_mb")
    parser.add_argument("--window", type=int, default=3, help="steps of a window")
    parser.add_argument("--warmup", type=int, default=1, help="windows before the first that is timed")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--backend", default="gloo", help="or shoal, with its package in PYTHONPATH")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write-initial", metavar="DIRECTORY")
    arguments = parser.parse_args()
    if arguments.write_initial:
        return write_initial(arguments.write_initial)
    if any(os.environ.get(name) != value for name, value in HELD_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **HELD_MEMORY})
    torch.set_num_threads(arguments.threads)
    rank, size = rank_and_size()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29400")
    join(arguments.backend, rank, size)
    model = initial_model()
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=arguments.bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, weight_decay=0.0, **ADAMW)
    sample = random.Random(1).choices(range(VOCABULARY), k=arguments.length)
    ids = torch.tensor([sample] * arguments.batch)
    # The last position has no target, as in `shoal train`.
    targets = torch.cat([ids[:, 1:], torch.full((arguments.batch, 1), -100)], dim=1)

    def window(reducing=True):
        """seconds of a step, mean loss"""
        begin = time.perf_counter()
        total = 0.0
        for _ in range(arguments.window):
            with contextlib.nullcontext() if reducing else ddp.no_sync():
                loss = ddp(ids, targets)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.item()
        return (time.perf_counter() - begin) / arguments.window, total / arguments.window

    windows = [window() for _ in range(arguments.warmup + arguments.windows)]
    # Measured last, because ranks drift apart under no_sync().
    dist.barrier()
    window(reducing=False)
    alone = [window(reducing=False)[0]]
    if rank == 0:
        print(json.dumps({
            "operation": "gpt2_124m_training_step", "peer": f"pytorch {torch.__version__} DDP, {arguments.backend}",
            "ranks": size, "batch": arguments.batch, "length": arguments.length, "threads": arguments.threads,
            "bucket_bytes": int(arguments.bucket_mb * 2**20),
            "step_seconds": [seconds for seconds, _ in windows[arguments.warmup:]], "alone_seconds": alone,
            "loss": [round(loss, 3) for _, loss in windows]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
