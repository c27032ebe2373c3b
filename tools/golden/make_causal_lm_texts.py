#!/usr/bin/env python3
"""Writes tests/golden/causal_lm_texts.json: a text file and a file of JSON lines, read, tokenized and grouped as by
transformers' run_clm: the ids of each line or record, with and without special tokens, and the blocks.

Needs `transformers` and `datasets`. Deterministic.
"""
import json
import pathlib
import tempfile

import datasets
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/tokenizer"
TEXT = "In the beginning God created the heaven\n\n and the earth. \nAnd <s> the earth</s>\nwas void"
RECORDS = ["God said", "", "let there\nbe light", " light"]
BLOCK = 8


def tokenizers():
    def from_json(name, **roles):
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / name), **roles)
    sentence_piece = GOLDEN / "sentence_piece"
    return {"sentence_piece/llama": transformers.LlamaTokenizer.from_pretrained(sentence_piece / "llama"),
            "sentence_piece/llama_legacy": transformers.LlamaTokenizer.from_pretrained(sentence_piece / "llama_legacy"),
            "sentence_piece/llama_bare": transformers.LlamaTokenizer.from_pretrained(sentence_piece / "llama_bare"),
            "sentence_piece/t5.json": from_json("sentence_piece/t5.json"),
            "llama.json": from_json("llama.json"),  # byte-level, with Llama 3's template
            "plain.json": from_json("plain.json")}  # like GPT-2's: no special tokens


def group(lists):
    """run_clm's group_texts."""
    ids = sum(lists, [])
    return [ids[at:at + BLOCK] for at in range(0, len(ids) // BLOCK * BLOCK, BLOCK)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        text, records = pathlib.Path(folder, "a.txt"), pathlib.Path(folder, "a.jsonl")
        text.write_text(TEXT)
        records.write_text("".join(json.dumps({"text": one}) + "\n" for one in RECORDS))
        lines = datasets.load_dataset("text", data_files=str(text), keep_linebreaks=True, cache_dir=folder)["train"]["text"]
        rows = datasets.load_dataset("json", data_files=str(records), cache_dir=folder)["train"]["text"]
        lines, rows = list(lines), list(rows)
    cases = {}
    for name, tokenizer in tokenizers().items():
        cases[name] = {kind: {"with": tokenizer(texts)["input_ids"],
                              "without": tokenizer(texts, add_special_tokens=False)["input_ids"],
                              "blocks": group(tokenizer(texts)["input_ids"])}
                       for kind, texts in (("a.txt", lines), ("a.jsonl", rows))}
    result = {"text": TEXT, "records": RECORDS, "block": BLOCK, "cases": cases}
    (ROOT / "tests/golden/causal_lm_texts.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
