#!/usr/bin/env python3
"""One training step of transformers' Llama or Qwen3 on CPU: a server (pytorch_step.py says how).
Random weights and tokens, whole sequences, scaled_dot_product_attention, the tied head's loss.
"""

import torch
import torch.nn.functional as F
import transformers

import pytorch_step

MODELS = {"llama-3.2-1b": ("Llama", dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192,
                                         num_hidden_layers=16, num_attention_heads=32,
                                         num_key_value_heads=8)),
          "qwen3-0.6b": ("Qwen3", dict(hidden_size=1024, intermediate_size=3072,
                                       num_hidden_layers=28, num_attention_heads=16,
                                       num_key_value_heads=8))}


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, targets):  # both [B, T]
        logits = self.model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.reshape(-1))


def build(args):
    prefix, sizes = MODELS[args.model]
    config = getattr(transformers, f"{prefix}Config")(
        **sizes, tie_word_embeddings=True, attention_dropout=args.dropout, attn_implementation="sdpa")
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    model.train()
    ids = torch.randint(config.vocab_size, (args.batch, args.length + 1))
    return pytorch_step.Training(args.variant, Loss(model), [((ids[:, :-1], ids[:, 1:]), {})])


if __name__ == "__main__":
    parser = pytorch_step.arguments(__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(MODELS))
    pytorch_step.serve(parser.parse_args(), build)
