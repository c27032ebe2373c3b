#!/usr/bin/env python3
"""Writes tests/golden/corruption.json: corrupted text as transformers' examples run_t5_mlm_flax.py and
run_bart_dlm_flax.py make it, whose algorithms are written anew here, on NumPy.

  lengths    [block_size, density, mean span, tokens of a block, tokens of its target]
  t5, bart   a case: tokens, options, the random numbers drawn in order, and the input and labels

`draws` are the numbers below a bound that shuffling takes, `spans` Poisson's. Differences from
run_bart_dlm_flax.py: it has NLTK find sentences and puts a padding token between them; here a
sentence ends with a token for . ! or ?, and nothing stands between. Sentences of a document are
permuted, a document being what special tokens enclose. One sample is a batch, and labels are whole.

Needs NumPy and the tokenizers of make_tokenizer_cases.py and make_sentence_piece_cases.py.
"""
import argparse
import json
import math
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


class Draws:
    """Stands for numpy.random, and notes what it draws."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.draws, self.spans = [], []

    def shuffle(self, array):  # from the back, as numpy.random.shuffle does
        for i in range(len(array) - 1, 0, -1):
            other = int(self.rng.integers(0, i + 1))
            self.draws.append(other)
            array[i], array[other] = array[other], array[i]

    def permutation(self, count):
        numbers = np.arange(count)
        self.shuffle(numbers)
        return numbers

    def poisson(self, lam, size):
        lengths = self.rng.poisson(lam, size)
        self.spans += [int(length) for length in lengths]
        return lengths


def input_and_target_lengths(inputs_length, density, mean):
    def lengths(tokens):
        noise = round(tokens * density)
        spans = round(noise / mean)
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = inputs_length
    while lengths(tokens + 1)[0] <= inputs_length:
        tokens += 1
    inputs, targets = lengths(tokens)
    if density == 0.5 and targets > inputs:
        tokens, targets = tokens - 1, targets - 1
    return tokens, targets


def noise_mask(length, density, mean, random):
    noise = min(max(int(np.round(length * density)), 1), length - 1)
    text = length - noise
    spans = max(int(np.round(min(noise, text) / mean)), 1)

    def segmentation(items, segments):
        begins = np.arange(items - 1) < segments - 1
        random.shuffle(begins)
        return np.unique(np.cumsum(np.pad(begins, [[1, 0]])), return_counts=True)[1]

    noise_lengths = segmentation(noise, spans)
    text_lengths = segmentation(text, spans)
    interleaved = np.stack([text_lengths, noise_lengths], axis=1).reshape(-1)
    starts = np.zeros(length, dtype=np.int8)
    starts[np.cumsum(interleaved)[:-1]] = 1
    return np.cumsum(starts) % 2 == 1


def sentinels(mask, vocabulary):
    """The sentinel at the start of each run, -1 in the rest of it, 0 elsewhere."""
    start = mask & ~np.concatenate([[False], mask[:-1]])
    ids = np.where(start, np.cumsum(start), 0)
    return np.where(ids != 0, vocabulary - ids, 0) - (mask & ~start)


def filtered(tokens, sentinel_ids, end):
    ids = np.where(sentinel_ids != 0, sentinel_ids, tokens)
    return [int(i) for i in ids[ids >= 0]] + [end]


def t5_case(seed, length, density, mean, vocabulary, end):
    random = Draws(seed)
    tokens = np.random.default_rng(seed + 100).integers(3, 300, length)
    mask = noise_mask(length, density, mean, random)
    return dict(tokens=tokens.tolist(), density=density, mean=mean, draws=random.draws, spans=[],
                input=filtered(tokens, sentinels(mask, vocabulary), end),
                labels=filtered(tokens, sentinels(~mask, vocabulary), end))


def permuted(tokens, special, stops, ratio, random):
    result, begin = tokens.copy(), 0
    for end in [*np.flatnonzero(special), len(tokens)]:
        ends = [begin + int(i) + 1 for i in np.flatnonzero(np.isin(tokens[begin:end], stops))]
        if end > begin and (not ends or ends[-1] != end):
            ends.append(int(end))
        if len(ends) > 1:
            moving = math.ceil(len(ends) * ratio)
            chosen = random.permutation(len(ends))[:moving]
            order = np.arange(len(ends))
            order[chosen] = chosen[random.permutation(moving)]
            parts = [tokens[(ends[i - 1] if i else begin):ends[i]] for i in order]
            result[begin:end] = np.concatenate(parts)
        begin = int(end) + 1
    return result


def with_masked_spans(tokens, special, ratio, lam, mask_id, random):
    wanted = math.ceil((~special).sum() * ratio)
    if wanted == 0:
        return tokens
    lengths = random.poisson(lam, wanted)
    while lengths.sum() < wanted:
        lengths = np.concatenate([lengths, random.poisson(lam, wanted)])
    lengths = lengths[lengths > 0]
    lengths = lengths[:np.argmin(np.abs(np.cumsum(lengths) - wanted)) + 1]
    words = np.flatnonzero(~special)
    starts = words[random.permutation(len(words))[:len(lengths)]]
    mask = np.zeros(len(tokens), dtype=bool)
    for start, length in zip(starts, lengths):
        mask[start:start + length] = True
    mask[special] = False
    result = np.where(mask, mask_id, tokens)
    return result[~(mask & np.concatenate([[False], mask[:-1]]))]


def bart_case(seed, length, ratio, lam, permute, ids):
    random = Draws(seed)
    rng = np.random.default_rng(seed + 100)
    tokens = rng.integers(40, 400, length)
    tokens[rng.random(length) < 0.15] = ids["stops"][seed % len(ids["stops"])]
    tokens[[0, -1]] = ids["bos"], ids["eos"]
    tokens[length // 3:length // 3 + 2] = ids["eos"], ids["bos"]
    special = np.isin(tokens, [ids["bos"], ids["eos"]])
    result = permuted(tokens, special, ids["stops"], permute, random) if permute else tokens
    result = with_masked_spans(result, special, ratio, lam, ids["mask"], random)
    return dict(tokens=tokens.tolist(), ratio=ratio, mean=lam, permute=permute, draws=random.draws,
                spans=random.spans, input=result.tolist(), labels=tokens.tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN / "corruption.json")
    args = parser.parse_args()
    t5 = json.loads((GOLDEN / "tokenizer/sentence_piece/t5.json").read_text())
    first = next(t["id"] for t in t5["added_tokens"] if t["content"] == "<extra_id_0>")
    roberta = json.loads((GOLDEN / "tokenizer/roberta.json").read_text())
    named = {t["content"]: t["id"] for t in roberta["added_tokens"]} | roberta["model"]["vocab"]
    ids = dict(bos=named["<s>"], eos=named["</s>"], mask=named["<mask>"],
               stops=[named[stop] for stop in ".!?"])
    lengths = [[inputs, density, mean, *input_and_target_lengths(inputs, density, mean)]
               for inputs in (16, 25, 64, 128, 512, 1024)
               for density, mean in ((0.15, 3.0), (0.25, 2.0), (0.5, 3.0), (0.15, 8.0))
               if inputs > 32 or mean < 8]  # else it counts no span, and then makes one
    cases = dict(
        lengths=lengths,
        t5=[t5_case(seed, length, density, mean, first + 1, 1)
            for seed, (length, density, mean) in enumerate(
                [(2, 0.15, 3.0), (8, 0.15, 3.0), (36, 0.15, 3.0), (141, 0.15, 3.0), (90, 0.5, 2.0)])],
        bart=[bart_case(seed, length, ratio, lam, permute, ids)
              for seed, (length, ratio, lam, permute) in enumerate(
                  [(9, 0.3, 3.0, 1.0), (30, 0.3, 3.0, 1.0), (64, 0.3, 3.0, 0.5), (64, 0.15, 1.0, 0.0),
                   (120, 0.5, 6.0, 1.0)])])
    args.out.write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
