#!/usr/bin/env python3
"""Writes tests/golden/packing.json: the documents that share a block in TRL's pack_dataset.

A case is a block's length, the documents' lengths, and for each packing_strategy the rows: of each
the parts in it, as [first token, tokens], where tokens are counted through all documents. With
`wrapped` TRL keeps no boundaries, so a row is one part.

    pip install trl; make_packing.py [--out FILE]
"""
import argparse
import json
from pathlib import Path

import numpy as np
from datasets import Dataset, disable_progress_bars
from trl import pack_dataset

SMALL = [  # (block, documents)
    (4, [5, 2, 3, 1]),  # the example of TRL's documentation
    (6, [3, 5, 0, 1, 5, 7, 2]),
    (10, [3, 4, 5, 6, 7]),
    (10, [6, 6, 6, 4, 4, 4]),      # several blocks have the same space: the oldest takes the next
    (10, [7, 7, 7, 2, 2, 2, 1, 1]),
    (8, [20, 9, 17, 3, 0, 8, 16]),  # longer than a block, by one token, by none
    (5, [5, 5, 5]),
]


def random_cases():
    rng = np.random.default_rng(5)
    for block, count in ((12, 14), (16, 20), (24, 30), (64, 40), (65, 40)):
        yield block, [int(length) for length in rng.integers(0, block + block // 3, count)]


def rows_of(block, documents, strategy):
    ends = np.cumsum(documents)
    tokens = [list(range(int(end) - length, int(end))) for length, end in zip(documents, ends)]
    packed = pack_dataset(Dataset.from_dict({"input_ids": tokens}), block, strategy)
    rows = []
    for row in packed:
        ids = row["input_ids"]
        parts, at = [], 0
        for length in row.get("seq_lengths", [len(ids)]):
            assert ids[at:at + length] == list(range(ids[at], ids[at] + length))
            parts.append([ids[at], length])
            at += length
        assert at == len(ids) <= block
        rows.append(parts)
    return rows


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "packing.json"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    disable_progress_bars()
    cases = [dict(block=block, documents=documents,
                  **{strategy: rows_of(block, documents, strategy)
                     for strategy in ("bfd", "bfd_split", "wrapped")})
             for block, documents in (*SMALL, *random_cases())]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    args.out.write_text("[\n" + lines + "\n]\n")
    print(len(cases), "cases,", args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
