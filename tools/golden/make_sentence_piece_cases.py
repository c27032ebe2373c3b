#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/sentence_piece/: small SentencePiece models like those in directories of ALBERT, T5,
XLNet, Llama and Gemma, tokenizer.json files of other forms, and Hugging Face's results for odd texts (ids, offsets
in characters, decoded text), for every character, and for the files of ../shared/data.

Needs the packages `tokenizers`, `transformers` and `sentencepiece`, Debian's `sentencepiece` (spm_train), and
genesis.txt of make_tokenizer_cases.py.
Deterministic.
"""
import argparse
import hashlib
import io
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AlbertTokenizer, GemmaTokenizer, LlamaTokenizer, T5Tokenizer, XLNetTokenizer

import make_tokenizer_cases as base

MARK = "\u2581"


def texts():
    """Texts that SentencePiece's normalizers, marks and unknown pieces affect."""
    return base.word_piece_texts() + [
        "``quoted'' text, `` '' ''' ```` `a' ''", "It''s 'tis'' ``", "a\u2581b \u2581 \u2581\u2581c\u2581", "\u2581", " \u2581 x",
        "\r\n", "a\r\nb\rc\n\rd", "\r\u0301 \n\u0301", "line one\nline two\ttabbed\x0bvt\x0cff",
        "\u0001start \u0001\u0002mid\u0001dle end\u0001", "\u00adsoft\u00adhyphen\u00ad", "\u0001", "\u0001\u00ad ", "\u0001''``",
        "a\u0301e\u0301 A\u0301E\u0301 \u00e1\u00c1 a\u0301\u0302 a\u0300\u0301b", "Zo\u0308\u0301 q\u0301 q\u0301\u0302 \u0301a",
        "\ufb01ne o\ufb03ce \uff21\uff22\uff43 \uff01 \u2460\u2461 \u00bd cup \ufdfa \u33a5 \u2126 \u212b",
        "\u1100\u1161\u11a8 \u1100\u1161\u0301 \u1161\u0301 \uac00\u0301 \uac00\u11a8 \ud55c\uad6d\uc5b4",
        "\u0915\u094d\u0915\u0301 \u0915\u093c \u0915\u094d\u200d\u0937 \u0e01\u0e33 \u0e33a \u0600a \u0d4eab \u0600\u0301",
        "\u00a9\u200d\u00a9\u0301 \u00a9\u200da \U0001f468\u200d\U0001f469 \u2764\ufe0f a\ufe0f a\u200db \u200d",
        "a\u05b0\u05b1 \u05d0\u05b4 e\u0327\u0301 \u1e69\u0323 \u0344 \u0f73\u0f71", "\u0130stanbul I\u0307 \u1e9e \u03a3\u03c2",
        "<unk> <pad>x [CLS] a[MASK]b (c) \u00a3-\u20ac. \"q\"", "<unk><unk>\u0394\u03a9<unk>", "\u0394\u03b7\u03bc \U0001f600\U0001f601 x\U0001f600",
        "<0x41> <0x0A> \u4f60\u597d", "</s> <s> <sep> <cls> <mask>a <extra_id_0>b<extra_id_99>", "  lead  and   trail   ", "x  y   z",
        "\u2003em\u3000ideo\u00a0nb\u2028ls\u0085nel\u200bzw", "1,000 and 2,5 3,", "in the beginning" * 40,
        "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
        "def f(x):\n    if x:\n        return   x\n", "    ", "a<s>b <s> c</s>d<bos> e", "<s> a", " <s>", "line\n\n\n\nline", "\ttab\t\t",
        "\u2581\u2581x\u2581 \u2581y", "and" * 60 + " and" * 60, "\u4f60" * 70, " " * 300 + "x", "the\u2581the the", "x\u0000y\u0000", "<end>a <end>",
    ]


def rules():
    """A small precompiled_charsmap of every kind: shorter, longer, removed, several characters of a cluster."""
    table = {"9": "20", "A": "20", "D": "20", "A0": "20", "3000": "20", "200B": "20", "1": "", "AD": "", "2": "",
             "FB01": "66 69", "FB03": "66 66 69", "BD": "31 2044 32", "2460": "31", "2461": "32", "1100 1161": "AC00",
             "45": "65", "915": "916", "33A5": "6D 33", "D 301": "21", "1161": "78 79 7A", "A9": "28 63 29"}
    for letter in "aeiouAU":
        for mark, name in (("300", "\u0300"), ("301", "\u0301"), ("302", "\u0302"), ("308", "\u0308")):
            composed = unicodedata.normalize("NFC", letter + name)
            if len(composed) == 1:
                table[f"{ord(letter):X} {mark}"] = f"{ord(composed):X}"
    for c in range(0xFF01, 0xFF5F):
        table[f"{c:X}"] = f"{c - 0xFEE0:X}"
    return "".join(f"{source}\t{target}\n" for source, target in sorted(table.items()))


def train(lines, **options):
    """A model's bytes, without data about this machine."""
    out, here = io.BytesIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            pathlib.Path("rules.tsv").write_text(rules())
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=out, num_threads=1, minloglevel=2,
                **{"model_type": "unigram", "vocab_size": 400, "hard_vocab_limit": False,
                   **({} if "normalization_rule_name" in options else {"normalization_rule_tsv": "rules.tsv"}), **options})
        finally:
            os.chdir(here)
    return out.getvalue()


LLAMA = dict(model_type="bpe", vocab_size=420, byte_fallback=True, normalization_rule_name="identity",
             remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True)

FAMILIES = {
    "albert": (AlbertTokenizer, {}, dict(
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="<pad>", control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", "\"", "-", ".", "\u2013", "\u00a3", "\u20ac"])),
    "albert_cased": (AlbertTokenizer, {"do_lower_case": False, "keep_accents": True, "mask_token": {
        "__type": "AddedToken", "content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False,
        "single_word": False}}, dict(
        vocab_size=300, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])),
    "t5": (T5Tokenizer, {}, dict(vocab_size=400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)),
    "xlnet": (XLNetTokenizer, {}, dict(
        vocab_size=400, unk_id=0, bos_id=1, eos_id=2, pad_id=5, control_symbols=["<cls>", "<sep>", "<mask>", "<eod>", "<eop>"])),
    "llama": (LlamaTokenizer, {"add_bos_token": True}, LLAMA),
    "llama_legacy": (LlamaTokenizer, {"add_bos_token": True, "add_eos_token": True, "legacy": True, "pad_token": "<pad>",
                                      "added_tokens_decoder": {"420": {
                                          "content": "[INST]", "lstrip": False, "normalized": False, "rstrip": True,
                                          "single_word": False, "special": False}}}, LLAMA),
    "llama_bare": (LlamaTokenizer, {"add_bos_token": False, "add_prefix_space": False}, LLAMA),
    "gemma": (GemmaTokenizer, {"add_bos_token": True}, dict(
        LLAMA, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>",
        user_defined_symbols=["<start_of_turn>", "\n\n", "\u2581\u2581", "\t"])),
}


def family(lines, name, out):
    kind, config, options = FAMILIES[name]
    folder = out / name
    folder.mkdir(exist_ok=True)
    (folder / kind.vocab_files_names.get("vocab_file", "tokenizer.model")).write_bytes(train(lines, **options))
    base.write(folder / "tokenizer_config.json", {"tokenizer_class": kind.__name__, **config})
    return kind.from_pretrained(str(folder))._tokenizer


def unigram(model, byte_fallback=False, unknown=True):
    """The model of a spiece.model in the form of a tokenizer.json."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    return models.Unigram(vocab, unk_id=processor.unk_id() if unknown else None, byte_fallback=byte_fallback)


def charsmap(model):
    from transformers.convert_slow_tokenizer import import_protobuf
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def merged(model, **options):
    """The model of a tokenizer.model in the form of a tokenizer.json: every way to build a piece from two others."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    merges = [(piece[:at], piece[at:]) for piece in vocab for at in range(1, len(piece))
              if piece[:at] in vocab and piece[at:] in vocab]
    return models.BPE(vocab=vocab, merges=merges, **options)


def bpe_shapes(lines):
    """Contents of files with SentencePiece's BPE that transformers no longer creates from tokenizer.model."""
    plain, fewer = train(lines, **LLAMA), train(lines, **{**LLAMA, "byte_fallback": False, "vocab_size": 220})
    mapped = train(lines, model_type="bpe", vocab_size=440, byte_fallback=True)
    mark_spaces = normalizers.Replace(" ", MARK)
    of_bytes = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)

    llama_4 = Tokenizer(merged(plain, unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # as in transformers 4
    llama_4.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), mark_spaces])
    llama_4.decoder = decoders.Sequence([*of_bytes, decoders.Strip(" ", 1, 0)])
    llama_4.add_special_tokens(["<unk>", "<s>", "</s>"])
    llama_4.add_tokens([AddedToken("NEW Tok", normalized=True), AddedToken("raw", single_word=True, rstrip=True),
                        AddedToken("<mask>", lstrip=True, normalized=False, special=True),
                        AddedToken("<end>", normalized=True, special=True)])
    llama_4.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                           special_tokens=[("<s>", 1)])

    state = json.loads(llama_4.to_str())
    state["model"]["ignore_merges"] = True
    state["model"]["vocab"][MARK + "<mask"] = max(state["model"]["vocab"].values()) + 1  # no merge creates it
    for token in state["added_tokens"]:
        if token["id"] >= len(state["model"]["vocab"]) - 1:
            token["id"] += 1
    whole_first = Tokenizer.from_str(json.dumps(state))
    whole_first.normalizer = None
    whole_first.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)

    generic = Tokenizer(merged(mapped, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    generic.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(mapped)), mark_spaces])
    generic.decoder = decoders.Sequence(of_bytes)

    spaces = Tokenizer(merged(mapped, fuse_unk=True, byte_fallback=True))  # Shoal's conversion of such a model
    spaces.normalizer = normalizers.Sequence([
        normalizers.Precompiled(charsmap(mapped)), *(normalizers.Replace(Regex(pattern), content) for pattern, content in
                                                     ((r"\A +", ""), (r" +\z", ""), (" {2,}", " ")))])
    spaces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    spaces.decoder = llama_4.decoder
    spaces.add_special_tokens(["<unk>", "<s>", "</s>"])
    spaces.post_processor = llama_4.post_processor

    unknown = Tokenizer(merged(fewer, unk_token="<unk>"))
    unknown.normalizer = normalizers.Prepend(MARK)
    unknown.pre_tokenizer = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    fused = Tokenizer(merged(fewer, unk_token="<unk>", fuse_unk=True))
    fused.pre_tokenizer = first
    dropped = Tokenizer(merged(fewer))
    dropped.pre_tokenizer = first

    # Only some characters have byte tokens; these take precedence over unknown ones. One merge joins bytes.
    state = json.loads(fused.to_str())
    for token in ("<0xCE>", "<0x94>", "<0xCE><0x94>", "<0x0A>", "<0x0A>" + MARK):
        state["model"]["vocab"][token] = len(state["model"]["vocab"])
    state["model"]["merges"] += [["<0xCE>", "<0x94>"], ["<0x0A>", MARK]]
    state["model"]["byte_fallback"] = True
    return {"llama_4": llama_4, "whole_first": whole_first, "generic": generic, "spaces": spaces, "unknown": unknown,
            "fused": fused, "dropped": dropped, "some_bytes": Tokenizer.from_str(json.dumps(state))}, mapped


def shapes(lines):
    """Contents of other converted files."""
    plain = train(lines, vocab_size=300, pad_id=3)
    bytes_too = train(lines, vocab_size=560, byte_fallback=True)
    metaspace = pre_tokenizers.Metaspace

    fallback = Tokenizer(unigram(bytes_too, byte_fallback=True))
    fallback.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    fallback.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)])
    fallback.add_special_tokens(["<s>", "</s>"])
    fallback.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                            special_tokens=[("<s>", 1)])

    t5 = Tokenizer(unigram(plain))  # as the converters of transformers 4 create them
    t5.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(plain)), normalizers.Strip(left=False, right=True),
                                          normalizers.Replace(Regex(" {2,}"), MARK)])
    t5.pre_tokenizer = metaspace(prepend_scheme="first")
    t5.decoder = decoders.Metaspace(prepend_scheme="first")
    t5.add_tokens([AddedToken("NEW Tok", normalized=True), AddedToken("raw", single_word=True, rstrip=True),
                   AddedToken("<mask>", lstrip=True, normalized=False, special=True)])

    never = Tokenizer(unigram(plain))
    never.normalizer = normalizers.Sequence([
        normalizers.Lowercase(), normalizers.Replace("th", "TH"), normalizers.NFD(), normalizers.Strip(),
        normalizers.StripAccents(), normalizers.Replace("''", ""), normalizers.Replace(Regex("o{2,}"), "0")])
    never.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace(prepend_scheme="never")])
    never.decoder = decoders.Metaspace(prepend_scheme="never")

    whole = Tokenizer(unigram(plain))
    whole.pre_tokenizer = metaspace(split=False)

    words = Tokenizer(unigram(plain))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("o", 2, 0)])
    return {"byte_fallback": fallback, "old_t5": t5, "never": never, "whole": whole, "words": words}


def digests(tokenizer):
    """For each text, a hash of ids, offsets and both decoded texts. --full writes them out instead."""
    result = []
    for text in texts():
        encoding = tokenizer.encode(text)
        numbers = encoding.ids + [at for span in encoding.offsets for at in span]
        decoded = [tokenizer.decode(encoding.ids, skip_special_tokens=skip).encode() for skip in (True, False)]
        result.append(base.digest(struct.pack(f"<{len(numbers)}i", *numbers) + b"|".join(decoded)))
    return result


def all_cases(tokenizer, name, full):
    """All cases for the first family, and hashes for the others. Every character for families with different
    normalizers."""
    cases = {"pair": base.pairs(tokenizer)}
    cases["single"] = base.cases(tokenizer, texts()) if full or name == "albert" else digests(tokenizer)
    if name in ("albert", "albert_cased", "old_t5", "never", "llama", "generic", "some_bytes"):
        cases["characters"] = base.characters(tokenizer)
    return cases


def nmt_nfkc(text):
    """SentencePiece's default normalization for training. Its map is too large for the repository, so the test takes
    it from a model trained by Debian's library, and uses these cases only if the maps are equal. Debian's spm_train
    creates it here."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spm_train", f"--input={text}", f"--model_prefix={folder}/m", "--vocab_size=300",
                        "--num_threads=1", "--minloglevel=2"], check=True, capture_output=True)
        model = pathlib.Path(folder, "m.model").read_bytes()
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), (MARK, -1.0), *((chr(c), -2.0 - c / 1000) for c in range(33, 127))],
                                         unk_id=0))
    tokenizer.normalizer = normalizers.Precompiled(charsmap(model))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return {"sha256": hashlib.sha256(charsmap(model)).hexdigest(),
            "characters": base.characters(tokenizer), "model": json.loads(tokenizer.to_str())["model"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=base.ROOT / "tests/golden/tokenizer/sentence_piece")
    parser.add_argument("--data", type=pathlib.Path, default=base.ROOT.parent / "shared/data")
    parser.add_argument("--full", action="store_true", help="all cases in full, to look at; not to commit")
    arguments = parser.parse_args()
    out = arguments.output
    out.mkdir(parents=True, exist_ok=True)
    genesis = base.ROOT / "tests/golden/tokenizer/genesis.txt"
    lines = genesis.read_text().splitlines()
    base.write(out / "texts.json", texts())
    for name in FAMILIES:
        tokenizer = family(lines, name, out)
        (out / f"{name}.json").write_text(tokenizer.to_str(pretty=False))
        cases = all_cases(tokenizer, name, arguments.full)
        if name in ("albert", "llama"):
            cases["files"] = {path.name: base.of_file(tokenizer, path) for path in sorted(arguments.data.iterdir())
                              if path.suffix in (".txt", ".tsv", ".json") and not path.name.startswith(("bert-", "gpt2-"))}
        base.write(out / f"{name}.cases.json", cases)
    bpe, mapped = bpe_shapes(lines)
    (out / "spaces").mkdir(exist_ok=True)
    (out / "spaces" / "tokenizer.model").write_bytes(mapped)
    for name, tokenizer in {**shapes(lines), **bpe}.items():
        (out / f"{name}.json").write_text(tokenizer.to_str(pretty=False))
        base.write(out / f"{name}.cases.json", all_cases(tokenizer, name, arguments.full))
    base.write(out / "nmt_nfkc.cases.json", nmt_nfkc(genesis))


if __name__ == "__main__":
    main()
