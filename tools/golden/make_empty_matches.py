#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/empty_matches.json: Split pre-tokenizers, Replace normalizers and Replace decoders whose
pattern matches an empty text, in tokenizer.json files around one small model, and the ids, offsets and decoded text of
Hugging Face `tokenizers`.

Needs `tokenizers`. Deterministic.
"""
import json
import pathlib

from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/tokenizer/empty_matches.json"
LETTERS = ["a", "b", "c", "\u00e9", " ", "-", "+"]
MERGES = ["a a", "aa b", "b \u00e9", "\u00e9 c", "c b", "- +"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PATTERNS = [{"String": ""}, {"Regex": ""}, {"Regex": "a*"}, {"Regex": "b*?"}, {"Regex": "(?=b)|c"}, {"Regex": "c*|$"}]
TEXTS = ["aab\u00e9c cb", "b", "caac", "\u00e9\u00e9<x>aab", ""]


def model():
    merges = [pair.split(" ") for pair in MERGES]
    vocab = LETTERS + ["".join(pair) for pair in merges] + ["<x>"]
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "vocab": {token: i for i, token in enumerate(vocab)},
            "merges": merges}


def parts():
    for pattern in PATTERNS:
        for behavior in BEHAVIORS:
            for invert in (False, True):
                yield {"pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}}
    for pattern in PATTERNS[1:]:
        step = {"type": "Replace", "pattern": pattern, "content": "-+"}
        yield {"normalizer": step}
        yield {"decoder": step}


def main():
    base = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model()}
    base["added_tokens"] = [{"id": base["model"]["vocab"]["<x>"], "content": "<x>", "single_word": False, "lstrip": False,
                             "rstrip": False, "normalized": False, "special": True}]
    cases = []
    for part in parts():
        tokenizer = Tokenizer.from_str(json.dumps({**base, **part}))
        results = []
        for text in TEXTS:
            encoding = tokenizer.encode(text)
            results.append({"ids": encoding.ids, "offsets": [at for span in encoding.offsets for at in span],
                            "decoded": tokenizer.decode(encoding.ids)})
        cases.append({"part": part, "results": results})
    OUT.write_text(json.dumps({"base": base, "texts": TEXTS, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
