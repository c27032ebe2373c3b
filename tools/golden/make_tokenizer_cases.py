#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: small tokenizers as saved by Hugging Face, its results for odd texts (ids, offsets
in characters, decoded text), and the result of its BPE trainer.

Needs the packages `tokenizers` and `transformers`, Debian's `bible` for the training text (only if genesis.txt is
missing), and GPT-2's vocabulary for gpt2.cases.json. Deterministic.
"""
import argparse
import hashlib
import json
import pathlib
import random
import struct
import subprocess

from tokenizers import (AddedToken, BertWordPieceTokenizer, ByteLevelBPETokenizer, Regex, Tokenizer, decoders,
                        models, normalizers, pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

HAND_MADE = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n\n", "\r\n", "a\r\nb\r\n\r\nc", "\t\t\n  \n x", " " * 70,
    "Hello world", "hello  world   again", "In the beginning God created the heaven and the earth.",
    "don't DON'T I'll WE'LL we've 'tis ''s 'S", "x's  't 're're'ree 'l 'll'lll ' s 's '", "o\u2019clock it\u2019s",
    "1st 2nd 3.14 1,000 007", "_under_score __init__ a_b", "e-mail@x.org #tag C++ f(x)=y^2;",
    "a\u00a0b \u00a0 c\u2003d\u3000e\u0085f\u1680g\u180eh\u200bi\u2028j\u202fk\u205fl\ufeffm",
    "na\u00efve cafe\u0301 e\u0301\u0302\u0303 \u0301 \u0e01\u0e33 \u0928\u093f",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd\U0001f1eb\U0001f1f7",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0661\u0662\u0663 \u096a\u096b\u096c \u2163\u2167 \u00bd\u00be \u00b2\u00b3 \U0001d7d8\U0001d7d9 \u3007",
    "\x00\x01\x02 \x1b[0m\x1c\x1d\x1e\x1f\x7f\x80\x9f", "\u017f '\u017f \u212a \u00df \u0130 \u0131",
    "\u1c89\u1c8a \ua7cb\ua7da \U000105c0 \U00010d40 \U0001ccf0 \u0378 \U0010ffff \ufffd \ue000",
    "a" * 200, "ab" * 90, "\u00e9" * 40, "x" * 47, "x" * 48, "x" * 49, "\u4e2d" * 30, "!?" * 40,
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c<|endoftext|><|endoftext|>", "<|endoftext", "<|end<|endoftext|>",
    "I <mask> it, a <mask>  b\u3000<mask>\u2003<mask>", "<s>x</s> <pad><unk>", "word wordy sword word_ word\u0301 \u00e9word word",
    "RR  rr \u2003rr x", "[L] [LONG] [LONGER", "norm NORM  norm\n",
]


def texts():
    rng = random.Random(7)
    pools = [
        [chr(c) for c in range(0x20, 0x7F)], [" ", "\n", "\t", "\u00a0", "\u2003", "\r"],
        [chr(c) for c in range(0xA0, 0x600)], [chr(c) for c in range(0x600, 0xD7FF, 7)],
        [chr(c) for c in range(0xE000, 0x10FFFF, 997)], ["'s", "'re", " '", "ll", "don't", "<|endoftext|>", "<mask>"],
        ["\U0001f468", "\u200d", "\ufe0f", "\u0301", "\u0e33", "5", "\u0663"],
    ]
    made = ["".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 30))) for _ in range(30)]
    return HAND_MADE + made


def word_piece_texts():
    """Texts that BERT's normalization changes."""
    marks = "".join(chr(c) for c in (0x300, 0x323, 0x5B0, 0x302E, 0x1D165, 0x94D, 0x345, 0x1D16D, 0x16FF0, 0x110BA))
    rng = random.Random(11)
    jumble = ["".join(rng.choice("aE\u00c9\u1e69\u4e2d" + marks) for _ in range(12)) for _ in range(12)]
    return texts() + jumble + [
        "In the beginning GOD created", "\u00c9l\u00e8ve \u00c5ngstr\u00f6m \u0130stanbul \u0130\u0307 STRASSE \u1e9e \u03a3\u0391\u03a3",
        "e\u0301a\u0323\u0301b \u1ea9 \u1e69s\u0307\u0323 \u0344", "\ud55c\uad6d\uc5b4 \uac01", "\u4e2d\u6587abc\u3400\U00020000\U0002b820x\uf900",
        "a\ufffdb\u200bc\u00add\u0000e\u000bf\u0085g", "[CLS] [cls] [MASK]ed un[MASK]able [SEP][PAD] [UNK]", "unaffable##able ##s # #",
        "a" * 99 + " " + "a" * 100 + " " + "a" * 101 + " " + "\u00e9" * 101, "don't do not n't 'm ' x ' y , . ! ? it's we've we're",
        "\U00011938 \u0958 \u212b \u2126 \u1f71 \ufb1d \u1d15e", "$%^+<=>|~` \u00a1\u00a7\u2014\u3001\uff01 \u20ac\u00a3",
        "NewTok newtok N\u00c9WTOK raw RAW alone alone2 sp  x",
    ]


def cases(tokenizer, of=None):
    """For each text: ids, offsets as begin, end, begin, end ..., and the result of decode() if it differs from the
    text."""
    result = []
    for text in of or texts():
        encoding = tokenizer.encode(text)
        case = {"ids": encoding.ids, "offsets": [at for span in encoding.offsets for at in span]}
        for key, skip in (("decoded", True), ("decoded_all", False)):
            decoded = tokenizer.decode(encoding.ids, skip_special_tokens=skip)
            if decoded != text:
                case[key] = decoded
        result.append(case)
    return result


def train(path, size, special):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(path)], vocab_size=size, min_frequency=2, special_tokens=special, show_progress=False)
    return tokenizer._tokenizer


def roberta(path):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = train(path, 500, special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True,
                                                            add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("rr", rstrip=True),
                          AddedToken("[L"), AddedToken("[LONG]"), AddedToken("norm", lstrip=True, rstrip=True)])
    return tokenizer


def trimmed(path):
    tokenizer = train(path, 400, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    return tokenizer


def llama(path):
    tokenizer = train(path, 500, ["<|endoftext|>"])
    state = json.loads(tokenizer.to_str())
    # No merge creates this token: only ignore_merges finds it.
    state["model"]["vocab"]["\u0120created"] = max(state["model"]["vocab"].values()) + 1
    state["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(state))
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>", pair="$A $B",
                                      special_tokens=[("<|endoftext|>", 0)])])
    return tokenizer


def split(path, behavior, invert):
    tokenizer = train(path, 300, ["<|endoftext|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[aeiou\s]"), behavior=behavior, invert=invert),
        pre_tokenizers.Split("th", behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    return tokenizer


def unknown(path, fuse):
    """The alphabet contains only the text's own characters; other bytes are unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train([str(path)], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    return tokenizer


def word_piece(path, name):
    lowercase, flags = name != "word_piece_cased", {}
    trainer = BertWordPieceTokenizer(lowercase=lowercase)
    trainer.train([str(path)], vocab_size=600, min_frequency=2, show_progress=False)
    tokenizer = trainer._tokenizer
    if name == "word_piece_odd":
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False,
                                                          strip_accents=True, lowercase=False)
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        tokenizer.model.max_input_chars_per_word = 12
        tokenizer.add_tokens([AddedToken("alone", single_word=True), AddedToken("sp", rstrip=True, lstrip=True)])
    else:
        tokenizer.add_tokens([AddedToken("N\u00c9wTok", normalized=True), AddedToken("raw", normalized=False)])
    tokenizer.post_processor = {
        "word_piece": processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]),
        "word_piece_cased": processors.BertProcessing(("[SEP]", tokenizer.token_to_id("[SEP]")),
                                                      ("[CLS]", tokenizer.token_to_id("[CLS]"))),
        "word_piece_odd": processors.TemplateProcessing(
            single="$A [SEP]:3", pair="$B:2 [SEP]:1 $A:1 [CLS]",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]),
    }[name]
    return tokenizer


def pairs(tokenizer):
    result = []
    for a, b in (("In the beginning", "God created"), ("", "b"), ("a", ""), ("a,b", "c d")):
        encoding = tokenizer.encode(a, b)
        result.append({"a": a, "b": b, "ids": encoding.ids, "types": encoding.type_ids,
                       "special": encoding.special_tokens_mask,
                       "offsets": [at for span in encoding.offsets for at in span]})
    return result


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def characters(tokenizer):
    """Every character between two letters, 8,192 at a time: hashes of the normalized text, and of ids and offsets."""
    result = []
    for first in range(0, 0x110000, 0x2000):
        text = "".join(f"a{chr(c)}b\n" for c in range(first, first + 0x2000) if not 0xD800 <= c < 0xE000)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        numbers = encoding.ids + [at for span in encoding.offsets for at in span]
        normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        result.append([digest(normalized.encode()),
                       digest(struct.pack(f"<{len(numbers)}i", *numbers))])
    return result


def of_file(tokenizer, path):
    """Lines, and hashes of their ids and offsets."""
    lines = path.read_text(encoding="utf-8").split("\n")
    encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    ids = [i for e in encodings for i in e.ids]
    offsets = [at for e in encodings for span in e.offsets for at in span]
    return {"lines": len(lines), "ids": digest(struct.pack(f"<{len(ids)}i", *ids)),
            "offsets": digest(struct.pack(f"<{len(offsets)}i", *offsets))}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests/golden/tokenizer")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data",
                        help="holds gpt2-vocab.json and gpt2-merges.txt")
    arguments = parser.parse_args()
    out = arguments.output
    out.mkdir(parents=True, exist_ok=True)
    text = out / "genesis.txt"
    if not text.exists():
        text.write_bytes(subprocess.run(["bible", "-f", "gen1:1-3:24"], capture_output=True, check=True).stdout)
    write(out / "texts.json", texts())
    variants = {
        "plain": train(text, 500, ["<|endoftext|>"]), "roberta": roberta(text), "trimmed": trimmed(text),
        "llama": llama(text), "unknown": unknown(text, False), "unknown_fused": unknown(text, True),
        "split_removed": split(text, "removed", False), "split_previous": split(text, "merged_with_previous", False),
        "split_next": split(text, "merged_with_next", False), "split_contiguous": split(text, "contiguous", True),
    }
    for name, tokenizer in variants.items():
        tokenizer.save(str(out / f"{name}.json"), pretty=False)
        write(out / f"{name}.cases.json", cases(tokenizer))
    write(out / "word_piece.texts.json", word_piece_texts())
    for name in ("word_piece", "word_piece_cased", "word_piece_odd"):
        tokenizer = word_piece(text, name)
        tokenizer.save(str(out / f"{name}.json"), pretty=False)
        write(out / f"{name}.cases.json", {"single": cases(tokenizer, word_piece_texts()), "pair": pairs(tokenizer),
                                           "characters": characters(tokenizer)})
    bert = BertWordPieceTokenizer(str(arguments.data / "bert-base-uncased-vocab.txt"), lowercase=True)._tokenizer
    write(out / "bert.cases.json", {"single": cases(bert, word_piece_texts()), "files": {
        path.name: of_file(bert, path) for path in sorted(arguments.data.iterdir())
        if path.suffix in (".txt", ".tsv") and "vocab" not in path.name and "merges" not in path.name}})
    gpt2 = ByteLevelBPETokenizer(str(arguments.data / "gpt2-vocab.json"), str(arguments.data / "gpt2-merges.txt"))
    gpt2.add_special_tokens(["<|endoftext|>"])
    write(out / "gpt2.cases.json", cases(gpt2._tokenizer))


if __name__ == "__main__":
    main()
