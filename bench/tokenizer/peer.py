#!/usr/bin/env python3
"""The same work by Hugging Face `tokenizers` on one thread, interleaved with Shoal's, ids compared.

Prints one JSON line for each text. Needs the packages `tokenizers`, and for the unigram model and Llama's BPE
`transformers` and `sentencepiece`, which trains them on wikitext-2; and ../shared/data.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer  # noqa: E402: after the environment is set

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def shoal_rate(program, row, model=()):
    out = subprocess.run([program, *model, f"--benchmark_filter=^{row}$", "--benchmark_format=json",
                          "--benchmark_min_time=1"], capture_output=True, check=True, text=True).stdout
    return json.loads(out)["benchmarks"][0]["bytes_per_second"] / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoal", required=True, help="shoal_bench_tokenizer")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    byte_level = ByteLevelBPETokenizer(str(arguments.data / "gpt2-vocab.json"), str(arguments.data / "gpt2-merges.txt"))
    byte_level.add_special_tokens(["<|endoftext|>"])
    word_piece = BertWordPieceTokenizer(str(arguments.data / "bert-base-uncased-vocab.txt"), lowercase=True)
    compare(arguments, byte_level, ["--ids"], "EncodeLines", "byte-level BPE")
    compare(arguments, word_piece, ["--word-piece-ids"], "WordPieceLines", "WordPiece")
    with tempfile.TemporaryDirectory() as folder:
        albert, library = unigram(arguments.data / "wikitext2-valid.txt", pathlib.Path(folder))
        compare(arguments, albert, ["--model-ids", folder], "UnigramLines", "unigram, 7,000 tokens",
                ["--unigram-model", folder], library)
    with tempfile.TemporaryDirectory() as folder:
        peer, library = llama(arguments.data / "wikitext2-valid.txt", pathlib.Path(folder))
        compare(arguments, peer, ["--model-ids", folder], "LlamaLines", "Llama's BPE, 8,000 tokens",
                ["--llama-model", folder], library, "LlamaLongWord")


def unigram(text, folder):
    """An ALBERT tokenizer as transformers makes it of a spiece.model, and the library on the same model."""
    import sentencepiece
    from transformers import AlbertTokenizer
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spiece"), vocab_size=7000, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"], num_threads=1, minloglevel=2)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "AlbertTokenizer"}')
    return (AlbertTokenizer.from_pretrained(folder)._tokenizer,
            sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")))


def llama(text, folder):
    """A LlamaTokenizer of a tokenizer.model like Llama 2's, and the library on the same model."""
    import sentencepiece
    from transformers import LlamaTokenizer
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=8000, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, num_threads=1, minloglevel=2)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true}')
    return (LlamaTokenizer.from_pretrained(folder)._tokenizer,
            sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")))


def compare(arguments, peer, ids_flags, row_name, kind, model=(), library=None, long_word=None):
    for path in sorted(arguments.data.glob("*.txt")):
        text = path.read_bytes().decode()
        ids = subprocess.run([arguments.shoal, *ids_flags, path], capture_output=True, check=True).stdout
        identical = peer.encode(text, add_special_tokens=False).ids == [int(i) for i in ids.split()]
        print(json.dumps({"kind": kind, "text": path.name, "identical": identical}))
    lines = (arguments.data / "wikitext2-valid.txt").read_bytes().decode().splitlines(keepends=True)
    def rate(work, size):  # by processor time, like Google Benchmark: other processes do not count
        start = time.process_time()
        work()
        return size / (time.process_time() - start) / 1e6

    def measure(operation, row_name, texts):
        size = sum(len(text.encode()) for text in texts)
        ours, theirs, library_s = [], [], []
        for _ in range(arguments.repeats):
            theirs.append(rate(lambda: peer.encode_batch(texts, add_special_tokens=False), size))
            ours.append(shoal_rate(arguments.shoal, row_name, model))
            if library:
                library_s.append(rate(lambda: library.encode(texts, num_threads=1), size))
        row = {"operation": f"{operation}, {kind}", "text": "wikitext2-valid", "threads": 1,
               "shoal_MB/s": round(statistics.median(ours), 1), "tokenizers_MB/s": round(statistics.median(theirs), 2)}
        row["ratio"] = round(row["shoal_MB/s"] / row["tokenizers_MB/s"], 1)
        if library:
            row["sentencepiece_MB/s"] = round(statistics.median(library_s), 2)
        print(json.dumps(row))

    measure("encode lines", row_name, lines)
    if long_word:
        measure("encode one word", long_word, ["".join(c for c in "".join(lines) if c > " ")])


if __name__ == "__main__":
    main()
