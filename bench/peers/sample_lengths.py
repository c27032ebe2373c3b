#!/usr/bin/env python3
"""Prints the lengths, in BERT's tokens, of the samples of a data set as batches come: a batch a line.

    sample_lengths.py sst2-train.tsv bert-base-uncased-vocab.txt > sst2.lengths
    ./dev bench train --peers PYTHON --dtype f32 --model minilm-classification --lengths sst2.lengths

A .tsv has a sentence and a label a line, as SST-2 has; a .txt is MRPC's msr_paraphrase_train.txt,
whose two sentences make one sample.
"""

import argparse
import csv
import random

import transformers

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data")
parser.add_argument("vocabulary", help="BERT's vocab.txt, uncased")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--batches", type=int, default=8)
parser.add_argument("--seed", type=int, default=42, help="of the shuffle")
args = parser.parse_args()

with open(args.data, encoding="utf-8-sig", newline="") as file:
    rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
if args.data.endswith(".tsv"):
    rows = [row[:1] for row in rows]
else:
    rows = [row[3:5] for row in rows[1:]]
random.Random(args.seed).shuffle(rows)
rows = rows[:args.batch * args.batches]
tokenizer = transformers.BertTokenizerFast(vocab_file=args.vocabulary)
ids = tokenizer(*map(list, zip(*rows)), truncation=True, max_length=128)["input_ids"]
for first in range(0, len(ids), args.batch):
    print(*(len(sample) for sample in ids[first:first + args.batch]))
