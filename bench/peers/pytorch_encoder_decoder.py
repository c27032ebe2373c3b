#!/usr/bin/env python3
"""One training step of transformers' T5 or BART on CPU: a server (pytorch_step.py says how). Random
weights and tokens, sources and targets of --length tokens each, scaled_dot_product_attention where
the model has it, the modules' own loss.
"""

import torch
import transformers

import pytorch_step

T5 = dict(vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)
BART = dict(d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072,
            decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12)


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):  # both [B, T]
        return self.model(input_ids=ids, labels=labels, use_cache=False).loss


def build(args):
    if args.model == "t5-base":
        config = transformers.T5Config(**T5, dropout_rate=args.dropout, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        config = transformers.BartConfig(**BART, dropout=args.dropout, attn_implementation="sdpa")
        model = transformers.BartForConditionalGeneration(config)
    model.train()
    ids, labels = (torch.randint(3, config.vocab_size, (args.batch, args.length)) for _ in range(2))
    return pytorch_step.Training(args.variant, Loss(model), [((ids, labels), {})])


if __name__ == "__main__":
    parser = pytorch_step.arguments(__doc__)
    parser.add_argument("--model", default="t5-base", choices=["t5-base", "bart-base"])
    pytorch_step.serve(parser.parse_args(), build)
