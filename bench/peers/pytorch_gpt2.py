#!/usr/bin/env python3
"""One training step of GPT-2 124M in PyTorch on CPU: a server (pytorch_step.py says how).

VARIANT is one of pytorch_step.py's; or f32-matmul, bf16-matmul: only the matrix products of a step
(pytorch_matmul.py), which bound what any step with them can reach.

The model is GPT-2 with scaled_dot_product_attention, the fused tanh GELU and a tied head, no
dropout: less work than transformers' module for the same numbers.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import pytorch_step
from pytorch_matmul import LAYERS, VOCABULARY, WIDTH, Bound

HEADS, POSITIONS = 12, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp_in, self.mlp_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):  # [B, T, C]
        batch, length, _ = x.shape
        heads = [t.view(batch, length, HEADS, -1).transpose(1, 2)
                 for t in self.qkv(self.ln_1(x)).split(WIDTH, dim=2)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if "ln_" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                residual = name.endswith(("out.weight", "mlp_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * LAYERS) if residual else 1))

    def forward(self, ids, targets):  # both [B, T]
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.reshape(-1))


def build(args):
    if args.variant.endswith("-matmul"):
        return Bound(args.batch * args.length, args.variant.split("-")[0])
    ids = torch.randint(VOCABULARY, (args.batch, args.length + 1))
    return pytorch_step.Training(args.variant, Gpt2(), [((ids[:, :-1], ids[:, 1:]), {})])


if __name__ == "__main__":
    parser = pytorch_step.arguments(__doc__, ["f32-matmul", "bf16-matmul"])
    parser.add_argument("--model", choices=["gpt2"], default="gpt2")
    pytorch_step.serve(parser.parse_args(), build)
