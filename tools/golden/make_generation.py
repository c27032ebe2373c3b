#!/usr/bin/env python3
"""Writes tests/golden/generation.json: what transformers' generate() makes of 50 prompts for each of the tiny T5, BART,
GPT-2 and Llama in tests/golden (make_encoder_decoders.py, make_gpt2.py, make_decoders.py), in float32: greedily, with
beams and with logits processors. And which tokens its warpers keep for sampling, with their probabilities.

Only prompts whose tokens are the same in float64 are taken, so no token depends on a rounding error.

    make_generation.py [--out FILE]
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.generation import (LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper,
                                     TopPLogitsWarper)

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
MODELS = {"t5": "encoder_decoders/t5", "bart": "encoder_decoders/bart", "gpt2": "gpt2/tiny",
          "llama": "llama/untied"}
PROMPTS, NEW_TOKENS, LONGEST = 50, 12, 9


def cases_of(ends, common):
    """`common`: tokens that the model likes."""
    a, b, c, d = common
    beams = dict(num_beams=4)
    cases = [
        dict(),
        beams,
        dict(beams, length_penalty=0.0, early_stopping="never"),
        dict(beams, length_penalty=2.0, early_stopping="never"),
        dict(beams, length_penalty=2.0, early_stopping=True),
        dict(beams, length_penalty=-0.5),
        dict(num_beams=3, num_return_sequences=3, early_stopping=True),
        dict(repetition_penalty=1.4, no_repeat_ngram_size=2, min_new_tokens=5),
        dict(beams, repetition_penalty=1.2, no_repeat_ngram_size=3, min_length=8,
             length_penalty=0.7),
        dict(bad_words_ids=[[a], [b, b], [c, d]], suppress_tokens=[d],
             begin_suppress_tokens=[c, ends[-1]]),
        dict(beams, bad_words_ids=[[a, a], [b, b]], forced_bos_token_id=b, forced_eos_token_id=c,
             begin_suppress_tokens=[a, d]),
    ]
    return [dict(case, max_new_tokens=NEW_TOKENS, eos_token_id=ends) for case in cases]


class Model:
    def __init__(self, directory):
        self.encodes = directory.startswith("encoder_decoders")
        kind = (transformers.AutoModelForSeq2SeqLM if self.encodes
                else transformers.AutoModelForCausalLM)
        self.models = [kind.from_pretrained(GOLDEN / directory, dtype=dtype,
                                            attn_implementation="eager").eval()
                       for dtype in (torch.float32, torch.float64)]
        self.config = self.models[0].config

    def generate(self, prompt, options, precise=False):
        """The new tokens of each returned sequence, up to the first of the options' eos_token_id."""
        ids = torch.tensor([prompt])
        # The cache of transformers 5.24 takes the encoder's number of layers for the decoder's.
        rows = self.models[precise].generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
            use_cache=not self.encodes, **options).tolist()
        new = [row[1 if self.encodes else len(prompt):] for row in rows]
        ends = [next((i + 1 for i, token in enumerate(row) if token in options["eos_token_id"]),
                     len(row)) for row in new]
        return [row[:end] for row, end in zip(new, ends)]


def make_model(directory, rng):
    model = Model(directory)
    vocabulary, own_end = model.config.vocab_size, model.config.eos_token_id

    def prompt():
        return rng.integers(3, vocabulary, rng.integers(1, LONGEST + 1)).tolist()

    # Several tokens that the model likes end a text, so that texts end at all lengths.
    plain = dict(max_new_tokens=NEW_TOKENS, eos_token_id=[own_end])
    counts = np.zeros(vocabulary, int)
    for _ in range(40):
        for row in model.generate(prompt(), dict(plain, num_beams=3, num_return_sequences=3)):
            for token in set(row) - {own_end}:
                counts[token] += 1
    likes = np.argsort(-counts, kind="stable").tolist()
    cases = cases_of([own_end, likes[4], likes[5]], likes[:4])
    prompts, tokens, tried = [], [[] for _ in cases], 0
    while len(prompts) < PROMPTS:
        one, tried = prompt(), tried + 1
        results = [model.generate(one, case) for case in cases]
        if results != [model.generate(one, case, precise=True) for case in cases]:
            continue
        prompts.append(one)
        for rows, result in zip(tokens, results):
            rows.append(result)
    differ = [sum(row[0] != greedy[0] for row, greedy in zip(rows, tokens[0])) for rows in tokens]
    lengths = [np.mean([len(row[0]) for row in rows]).round(1) for rows in tokens]
    print(f"{directory}: {tried} prompts tried; other tokens than the greedy ones: {differ}; "
          f"mean lengths {[float(length) for length in lengths]}")
    return dict(directory=directory, encodes=model.encodes, prompts=prompts,
                cases=[dict(options=case, tokens=rows) for case, rows in zip(cases, tokens)])


def make_warpers(rng):
    scores = rng.standard_normal(24).round(3) * 2
    scores[[3, 7, 11]] = scores.max() - 1  # ties
    scores[5] = -np.inf
    cases = []
    for options in (dict(), dict(temperature=0.4), dict(top_k=3), dict(top_k=4), dict(top_p=0.6),
                    dict(top_p=0.01), dict(min_p=0.2), dict(min_p=1.0),
                    dict(temperature=1.7, top_k=9, top_p=0.9, min_p=0.1)):
        warpers = LogitsProcessorList()
        for name, kind in (("temperature", TemperatureLogitsWarper), ("top_k", TopKLogitsWarper),
                           ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)):
            if name in options:
                warpers.append(kind(options[name]))
        warped = warpers(None, torch.tensor(scores[None], dtype=torch.float64))
        probabilities = warped.softmax(-1)[0].tolist()
        cases.append(dict(options=dict(dict(top_k=0), **options),
                          probabilities={i: round(p, 7) for i, p in enumerate(probabilities) if p}))
    return dict(scores=[None if np.isinf(score) else float(score) for score in scores], cases=cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN / "generation.json")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    golden = {name: make_model(directory, np.random.default_rng(11))
              for name, directory in MODELS.items()}
    golden["warpers"] = make_warpers(np.random.default_rng(12))
    args.out.write_text(json.dumps(golden, separators=(",", ":")).replace('{"options"', '\n{"options"') + "\n")
    print(args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
