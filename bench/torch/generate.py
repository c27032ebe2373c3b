#!/usr/bin/env python3
"""Generation with a key-value cache beside transformers, by turns, one JSON line.

    PYTHONPATH=build/release/python python bench/torch/generate.py --model gpt2 --beams 4 --tokens 64

Needs transformers and tokenizers. The models have the published sizes and random weights; nothing ends a text early.
A call also loads the model, or reads the prompt. So each side generates few tokens and many, and the row has the time
of the tokens between: medians, and transformers' time over Shoal's.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import tokenizers
import torch
import transformers as hf

import shoal

SHAPES = {
    "gpt2": (hf.GPT2LMHeadModel, lambda: hf.GPT2Config()),
    "t5-base": (hf.T5ForConditionalGeneration, lambda: hf.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)),
    "bart-base": (hf.BartForConditionalGeneration, lambda: hf.BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
        encoder_attention_heads=12, decoder_attention_heads=12, forced_eos_token_id=None)),
}
FEW = 8


def make(name, directory):
    """A model of a published size, saved with a tokenizer of bytes."""
    torch.manual_seed(0)
    cls, config = SHAPES[name]
    model = cls(config()).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(directory)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet, 3)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    return model, tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="gpt2")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as directory:
        model, tokenizer = make(options.model, directory)
        prompt = ("the quick brown fox jumps over it " * options.prompt)[:options.prompt]
        ids = torch.tensor([tokenizer.encode(prompt).ids])

        def transformers_call(tokens):
            with torch.inference_mode():
                model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=options.beams, do_sample=False,
                               max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)

        def shoal_call(tokens):
            shoal.generate(directory, prompt, num_beams=options.beams, greedy=options.beams == 1, max_new_tokens=tokens,
                           no_stop=True)

        times = {"transformers": [], "shoal": []}
        for turn in range(options.rounds + 1):
            for name, call in (("transformers", transformers_call), ("shoal", shoal_call)):
                took = []
                for tokens in (FEW, FEW + options.tokens):
                    begin = time.perf_counter()
                    call(tokens)
                    took.append(time.perf_counter() - begin)
                if turn > 0:  # the first turn reads files and makes plans of products
                    times[name].append(took[1] - took[0])
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(json.dumps({"operation": "generate", "model": options.model, "beams": options.beams, "tokens": options.tokens,
                      "prompt": options.prompt, "torch": torch.__version__, "transformers": hf.__version__,
                      "threads": torch.get_num_threads(), **{f"{name}_seconds": value for name, value in medians.items()},
                      "ratio": medians["transformers"] / medians["shoal"]}))


if __name__ == "__main__":
    main()
