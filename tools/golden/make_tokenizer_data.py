#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/data/: tokenizers with vocabularies of real size, and hashes of Hugging Face's ids and
offsets for every line of ../shared/data and every text of tests/golden/tokenizer.

The byte-level families take GPT-2's vocabulary, which lies in ../shared/data and is not copied. The SentencePiece
families take models that `sentencepiece` trains here on ../shared/data: t5/, gemma/ and llama/. families.json has the
other members of each tokenizer.json. hashes.json has a hash for each LINES lines of a file and each TEXTS texts of a
list, and the ids of pairs. Needs the packages `tokenizers`, `transformers` and `sentencepiece`, and Debian's
`sentencepiece` (spm_train), whose map nmt_nfkc the test uses too. Deterministic.
"""
import argparse
import base64
import json
import pathlib
import struct
import subprocess
import tempfile

import sentencepiece
from tokenizers import Tokenizer, normalizers
from transformers import GemmaTokenizer, LlamaTokenizer, MBartTokenizer, T5Tokenizer, XLMRobertaTokenizer
from transformers.convert_slow_tokenizer import import_protobuf
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

import make_sentence_piece_cases as spiece
import make_tokenizer_cases as base
import make_tokenizer_families as parts

LINES, TEXTS = 250, 25
FILES = ("mrpc-test.txt", "mrpc-train.txt", "squad-v1.1-sample.json", "sst2-dev.tsv", "sst2-train.tsv", "wikitext2-test.txt",
         "wikitext2-valid.txt")
LISTS = ("texts", "word_piece.texts", "sentence_piece/texts", "families/texts")
BYTE_FAMILIES = ("llama_3", "tekken", "qwen_2", "qwen_3_5", "phi_4_mini", "deepseek_v3", "smollm", "modernbert", "gpt_neox")
# Where merges are missing, only ignore_merges finds some words.
MISSING_MERGE = 7

SIZE = 4000
TRAINED = {
    "t5": ("spiece.model", T5Tokenizer, {}, dict(
        vocab_size=SIZE, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_name="nmt_nfkc")),
    "gemma": ("tokenizer.model", GemmaTokenizer, {"add_bos_token": True}, {**spiece.FAMILIES["gemma"][2], "vocab_size": SIZE}),
    "llama": ("tokenizer.model", LlamaTokenizer, {"add_bos_token": True}, {**spiece.LLAMA, "vocab_size": SIZE}),
}


def texts_of(data):
    """The texts by name: the lines of each file, the contexts and questions of SQuAD, and the lists."""
    texts = {name: (LINES, (data / name).read_bytes().decode().split("\n")) for name in FILES}
    squad = json.loads((data / "squad-v1.1-sample.json").read_text())
    texts["squad"] = LINES, [text for article in squad["data"] for paragraph in article["paragraphs"]
                             for text in [paragraph["context"], *(each["question"] for each in paragraph["qas"])]]
    for name in LISTS:
        texts[name] = TEXTS, json.loads((base.ROOT / f"tests/golden/tokenizer/{name}.json").read_text())
    return texts


def hashes(tokenizer, texts):
    result = {}
    for name, (size, list_of_texts) in texts.items():
        result[name] = []
        for first in range(0, len(list_of_texts), size):
            numbers = []
            for encoding in tokenizer.encode_batch(list_of_texts[first:first + size]):
                numbers += encoding.ids + [at for span in encoding.offsets for at in span]
            result[name].append(base.digest(struct.pack(f"<{len(numbers)}i", *numbers)))
    return result


# --- models --------------------------------------------------------------------------------------
def gpt2_model(data):
    merges = (data / "gpt2-merges.txt").read_text().splitlines()
    return {"type": "BPE", "vocab": json.loads((data / "gpt2-vocab.json").read_text()),
            "merges": [line.split(" ") for line in merges if not line.startswith("#version")]}


def trained(name, out, lines):
    """A directory with a model, and the tokenizer that transformers makes of it. Its map of characters is left out:
    it is too large for the repository."""
    file, kind, config, options = TRAINED[name]
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(spiece.train(lines, **options))
    proto.normalizer_spec.precompiled_charsmap = b""
    (out / name).mkdir(exist_ok=True)
    (out / name / file).write_bytes(proto.SerializeToString(deterministic=True))
    base.write(out / name / "tokenizer_config.json", {"tokenizer_class": kind.__name__, **config})
    return kind.from_pretrained(str(out / name))._tokenizer


def nmt_nfkc():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spm_train", f"--input={base.ROOT / 'tests/golden/tokenizer/genesis.txt'}", "--vocab_size=300",
                        f"--model_prefix={folder}/m", "--num_threads=1", "--minloglevel=2"], check=True, capture_output=True)
        return spiece.charsmap(pathlib.Path(folder, "m.model").read_bytes())


# --- families ------------------------------------------------------------------------------------
def with_ids(value, ids):
    """Gives the special tokens of templates the ids of this vocabulary."""
    if isinstance(value, list):
        return [with_ids(each, ids) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "TemplateProcessing":
        value = {**value, "special_tokens": {name: {**token, "ids": [ids[name]]}
                                             for name, token in value["special_tokens"].items()}}
    return {key: with_ids(each, ids) for key, each in value.items()}


def of_parts(family, vocab, **where):
    """An entry of families.json."""
    file = parts.without_model(family, {"vocab": vocab})
    ids = dict(vocab) if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    file["post_processor"] = with_ids(file["post_processor"], {**ids, **{t["content"]: t["id"] for t in file["added_tokens"]}})
    return {"options": family["options"], "file": file, **where}


def byte_families(model):
    known = parts.families()
    families = {name: known[name] for name in BYTE_FAMILIES}
    gpt2 = parts.byte_level(regex=True)
    families["gpt2"] = parts.of_bytes(None, gpt2, post=parts.byte_level(True, False, True))
    names = ("<s>", "<pad>", "</s>", "<unk>")
    families["roberta"] = parts.of_bytes(None, gpt2, tokens=[
        *(parts.added(name, normalized=True) for name in names), parts.added("<mask>", lstrip=True)])
    ids = {name: len(model["vocab"]) + i for i, name in enumerate(names)}
    families["roberta"]["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]], "trim_offsets": True,
        "add_prefix_space": False}
    return {name: of_parts(family, model["vocab"], model="gpt2", missing_merge=MISSING_MERGE if family["options"] else 0)
            for name, family in families.items()}


def unigram_families(pieces, charsmap):
    """Entries whose vocabulary is `before`, the pieces and `after`."""
    def of(names, unknown, after=(), make=None, family=None):
        before, after = [[name, 0.0] for name in names], [[name, 0.0] for name in after]
        vocab = [tuple(each) for each in [*before, *pieces, *after]]
        where = {"model": "unigram", "before": before, "after": after}
        if family:
            return of_parts({**family, "options": {"unk_id": unknown}}, vocab, **where)
        file = json.loads(make(vocab).to_str())
        model = file.pop("model")
        assert model["unk_id"] == unknown and [tuple(each) for each in model["vocab"]] == vocab
        assert file["normalizer"]["type"] == "Precompiled"
        file["normalizer"]["precompiled_charsmap"] = "nmt_nfkc"
        return {"options": {"unk_id": unknown}, "file": file, **where}

    def mbart(vocab):  # transformers 5 drops the map that the published file has
        tokenizer = MBartTokenizer(vocab=vocab, src_lang="en_XX", tgt_lang="ro_RO")._tokenizer
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
        return tokenizer

    fairseq = ("<s>", "<pad>", "</s>", "<unk>")
    return {
        "t5_nmt_nfkc": of(("<pad>", "</s>", "<unk>"), 2, [f"<extra_id_{i}>" for i in reversed(range(100))],
                          lambda vocab: T5Tokenizer(vocab=vocab, _spm_precompiled_charsmap=charsmap)._tokenizer),
        "xlm_roberta": of(fairseq, 3, ["<mask>"],
                          lambda vocab: XLMRobertaTokenizer(vocab=vocab, _spm_precompiled_charsmap=charsmap)._tokenizer),
        "mbart": of(fairseq, 3, [*FAIRSEQ_LANGUAGE_CODES, "<mask>"], mbart),
        "deberta_v3": of(("[PAD]", "[CLS]", "[SEP]", "[UNK]"), 3, family=parts.families()["deberta_v3"]),
    }


def tokenizer_of(entry, gpt2, pieces, charsmap):
    """What the test makes of an entry, by Hugging Face."""
    file = json.loads(json.dumps(entry["file"]))
    if entry["model"] == "gpt2":
        missing = entry["missing_merge"]
        merges = [each for i, each in enumerate(gpt2["merges"]) if not missing or i % missing != missing - 1]
        model = {**gpt2, "merges": merges}
    else:
        model = {"type": "Unigram", "byte_fallback": False, "vocab": [*entry["before"], *pieces, *entry["after"]]}
        if file["normalizer"]["type"] == "Precompiled":
            file["normalizer"]["precompiled_charsmap"] = base64.b64encode(charsmap).decode()
    return Tokenizer.from_str(json.dumps({**file, "model": {**model, **entry["options"]}}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=base.ROOT / "tests/golden/tokenizer/data")
    parser.add_argument("--data", type=pathlib.Path, default=base.ROOT.parent / "shared/data")
    arguments = parser.parse_args()
    out = arguments.output
    out.mkdir(parents=True, exist_ok=True)
    texts = texts_of(arguments.data)
    lines = [line for name in (*FILES, "squad") if name != "squad-v1.1-sample.json" for line in texts[name][1] if line]
    tokenizers = {name: trained(name, out, lines) for name in TRAINED}
    processor = sentencepiece.SentencePieceProcessor(model_file=str(out / "t5/spiece.model"))
    pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(3, processor.get_piece_size())]
    gpt2, charsmap = gpt2_model(arguments.data), nmt_nfkc()
    families = {**byte_families(gpt2), **unigram_families(pieces, charsmap)}
    base.write(out / "families.json", families)
    tokenizers |= {name: tokenizer_of(entry, gpt2, pieces, charsmap) for name, entry in families.items()}
    base.write(out / "hashes.json", {
        "lines": LINES, "texts": TEXTS,
        "families": {name: {"pair": base.pairs(tokenizer), "files": hashes(tokenizer, texts)}
                     for name, tokenizer in tokenizers.items()}})


if __name__ == "__main__":
    main()
