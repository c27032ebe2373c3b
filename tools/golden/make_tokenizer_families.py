#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/families/: the pipelines of published tokenizer.json files of Qwen, Mistral, Gemma,
Phi, SmolLM, DeepSeek, ModernBERT, DeBERTa-v3 and others with small models trained here, and Hugging Face's results
for hard texts (ids, offsets in characters, decoded text).

families.json has the models once and, for each family, its model with options, and the other members of its
tokenizer.json. cases.json has the results and texts.json the texts. Needs the package `tokenizers`. Deterministic.
"""
import argparse
import hashlib
import json
import pathlib
import random
import struct

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Added to the Bible's English, so that merges cross the boundaries of the families' patterns.
LINES = [
    "In 1984 and 2024, 3.14159 and 1,000,000 of 12345678 were 007; x_1 = y[2]**3 - f(10) // 7", "the caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u00c5ngstr\u00f6m",
    "\u4f60\u597d\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8\u3068\u3072\u3089\u304c\u306a \ud55c\uad6d\uc5b4 \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "def main(argv):\n    return 0\n\n\tif x != y:\r\n",
    "don't I'll WE'VE they're it's", "HTTPServer camelCase XMLHttpRequest",
] * 3

TEXTS = [
    "", " ", "  ", "     ", "\n", "\n\n\n", "\r\n", "a\r\nb\r\n\r\nc", "\t\t\n  \n x", "Hello world", " hello  world   again ", "a   ", "   a",
    "don't DON'T I'll WE'LL 'tis ''s 'S \u2019s", "1 12 123 1234 12345678 3.14 1,000 007 1st x1y22z333", "\u0661\u0662\u0663 \u2163\u00bd\u00b2 \U0001d7d8\U0001d7d9 \u3007\u4e5d9 \u2460",
    "camelCase HTTPServer XMLHttp \u00c9cole \u01c5x \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u0130I", "f(x)=y^2; a[i]+=b/c //x #tag $5 ~`|\\ <a href=\"q\">", "...!!!???--- _under_ __init__ /path/to/",
    "e\u0301 cafe\u0301 n\u0303 \u0301 o\u0323\u0302 o\u0302\u0323 \u1ec7 s\u0323\u0307 \u1e69", "\u1100\u1161\u11a8 \uac01 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\u212b \u2126 \u1f71 \ufb1d \u0958 \u0344 \u0f73\u0f72 a\u0f72\u0f71",
    "\ufb01 \u00bd \uff21\uff22\uff11 \u3392 \u2076 \u1d2c", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd\U0001f1eb\U0001f1f7 \u2764\ufe0f", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8\u3072\u3089 abc\u4e2d\u6587123",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u093f \u0e01\u0e33 \u0e44\u0e17\u0e22", "\x00\x01\x1b[0m\x7f\x85\x9f \ufeff\ufffd\u200b\u00ad", "a\u00a0b \u00a0 c\u2003d\u3000e\u2028f\u2029g\u000bh\fi",
    "\u2581 \u2581\u2581a a\u2581b \u0120\u010a \u00a1\u00ff", "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c<|endoftext|><|endoftext|>", "<s>x</s> <unk> <bos>y<eos>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>", "<|user|>  \n q<|end|>\n\n<|assistant|> x", "[CLS] a [MASK]  b[MASK]c [SEP] [PAD]", "x        y                z", "if a:\n    b\n\n\n        c\n\t\td \t e",
    "a \nb  \n  c\t\n\n d  ", "trailing \n", "\n leading", "  \u4e2d  \u6587  ", "a" * 60, "ab1" * 20, " " * 40 + "x", "9" * 25, "\u00e9" * 20, "e\u0301" * 12, "x" + "\u0301" * 6 + "y",
    "word Word sword word_", "norm NORM nO\u0301RM n\u00f3rm", "\ue000 \U000f0000 \u0378 \U0010ffff",
]


def texts():
    rng = random.Random(25)
    pools = [
        [chr(c) for c in range(0x20, 0x7F)], [" ", "\n", "\t", "\r\n", "\u00a0", "  "], [chr(c) for c in range(0xA0, 0x600)],
        [chr(c) for c in range(0x300, 0x345)] + ["e", "o", "\u1ec7", "\u1100", "\u1161"], ["1", "23", "456", "\u0663", "\u00b2"],
        ["'s", "'RE", "Ab", "<|endoftext|>", "<s>", "\u2581"], ["\u4e2d", "\u3042", "\U0001f44d", "!", "\u3002", "\uff01"],
    ]
    return TEXTS + ["".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(2, 24))) for _ in range(12)]


# --- models --------------------------------------------------------------------------------------
def byte_model(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=540, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def piece_model(lines):
    """A model with marks for spaces and byte tokens. Its alphabet is that of the lines."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=560, special_tokens=special,
                                                             show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def character_model(lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=260, special_tokens=["<unk>"],
                                                             show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def unigram_model(lines):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[CLS]", "[SEP]", "[UNK]"], unk_token="[UNK]", show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    model["vocab"] = [[token, round(score, 4)] for token, score in model["vocab"]]
    return model


# --- parts ---------------------------------------------------------------------------------------
def sequence(key, *members):
    return {"type": "Sequence", key: list(members)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, trim=True, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def metaspace(scheme, splits=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": splits}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(single, pair, **ids):
    def pieces(text):
        result = []
        for piece in text.split():
            name, kind = piece.rsplit(":", 1)
            result.append({"Sequence": {"id": name[1:], "type_id": int(kind)}} if name[0] == "$" else
                          {"SpecialToken": {"id": name, "type_id": int(kind)}})
        return result
    return {"type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair),
            "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids["ids"].items()}}


def added(content, special=True, **options):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special,
            "special": special, **options}


LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
QWEN_2 = LLAMA_3.replace("{1,3}", "")
QWEN_3_5 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT_4O = TEKKEN.replace("]+|[^", "]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^").replace(
    r"\p{M}]*|\p{N}|", r"\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|")
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u1e00-\u1f15\u2126\u212a-\u212d"
    "\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U0001e900-\U0001e943]+")
DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
              "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
EMPTY = sequence("normalizers")
NFC = {"type": "NFC"}
DIGITS, DIGIT_RUNS = ({"type": "Digits", "individual_digits": each} for each in (True, False))
TO_MARKS = replace(" ", "\u2581")
FROM_MARKS = [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
LLAMA_DECODER = sequence("decoders", *FROM_MARKS, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
END = added("<|endoftext|>")
PIECES = [added("<unk>"), added("<s>"), added("</s>")]


def of_bytes(normalizer, *cut, post=None, tokens=(), **model):
    return {"model": "bytes", "options": model, "normalizer": normalizer, "post_processor": post,
            "pre_tokenizer": cut[0] if len(cut) == 1 else sequence("pretokenizers", *cut),
            "decoder": byte_level(True, True, True), "added_tokens": [END, *tokens]}


def of_pieces(normalizer, cut, decoder, tokens=(), **model):
    return {"model": "pieces", "options": model, "normalizer": normalizer, "pre_tokenizer": cut, "decoder": decoder,
            "post_processor": template("<s>:0 $A:0", "<s>:0 $A:0 <s>:1 $B:1", ids={"<s>": 1}),
            "added_tokens": [*PIECES, *tokens]}


def families():
    gpt2 = byte_level(regex=True)
    bos = template("<|endoftext|>:0 $A:0", "<|endoftext|>:0 $A:0 <|endoftext|>:1 $B:1", ids={"<|endoftext|>": 0})
    phi = [added(token, rstrip=True) for token in ("<|end|>", "<|user|>", "<|assistant|>")]
    blanks = [added(" " * n, special=False, normalized=True) for n in (16, 8, 4, 3, 2)]
    return {
        # GPT-2's form, with parts that have no effect.
        "llama_3": of_bytes(EMPTY, split(LLAMA_3), byte_level(), ignore_merges=True,
                            post=sequence("processors", byte_level(True, False, True), bos)),
        "bloom": of_bytes(EMPTY, split(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"), byte_level(),
                          post=byte_level()),
        # Other parts around a byte alphabet.
        "smollm": of_bytes(None, DIGITS, gpt2),
        "command_r": of_bytes(NFC, DIGITS, gpt2, post=bos),
        "falcon": of_bytes(None, {"type": "Punctuation", "behavior": "Contiguous"}, gpt2, DIGIT_RUNS,
                           split("[0-9][0-9][0-9]")),
        "qwen_2": of_bytes(NFC, split(QWEN_2), byte_level(trim=False), post=byte_level(trim=False),
                           tokens=[added("<|im_start|>"), added("<|im_end|>")]),
        "qwen_3_5": of_bytes(NFC, split(QWEN_3_5), byte_level(trim=False), post=byte_level(trim=False)),
        "tekken": of_bytes(None, split(TEKKEN), byte_level(), post=bos, ignore_merges=True),
        "phi_4_mini": of_bytes(None, split(GPT_4O), byte_level(), post=byte_level(True, True)),
        "deepseek_v2": of_bytes(EMPTY, split("[\r\n]"), split(DEEPSEEK_LETTERS), split(DEEPSEEK_PUNCTUATION),
                                split("\\s+$"), split(DEEPSEEK_IDEOGRAPHS), DIGITS, byte_level(), post=bos),
        "deepseek_coder": of_bytes(EMPTY, split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"),
                                   split(DEEPSEEK_IDEOGRAPHS), DIGITS, byte_level()),
        "deepseek_v3": of_bytes(EMPTY, split("\\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK_3),
                                byte_level(), post=sequence("processors", byte_level(True, False, True), bos)),
        "modernbert": of_bytes(NFC, byte_level(regex=True), tokens=[
            added("[CLS]"), added("[SEP]"), added("[PAD]"), added("[MASK]", lstrip=True), *blanks],
            post=template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                          ids={"[CLS]": 540, "[SEP]": 541})),
        "gpt_neox": of_bytes(NFC, gpt2, tokens=[added("<|padding|>"), *blanks], post=byte_level(True, False, True)),
        # Characters, with byte tokens for unknown ones.
        "phi_3": of_pieces(sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, TO_MARKS), None, LLAMA_DECODER,
                           [END, *phi]),
        "mistral_v3": of_pieces(None, metaspace("first", False), LLAMA_DECODER),
        "gemma_3": of_pieces(TO_MARKS, split(" ", "MergedWithPrevious", kind="String"),
                             sequence("decoders", *FROM_MARKS),
                             [added("\n" * n, False, normalized=False) for n in (2, 3)] +
                             [added("\u2581" * n, False, normalized=False) for n in (2, 3, 4, 5, 8)]),
        # Unigram models.
        "deberta_v3": {
            "model": "unigram", "options": {},
            "normalizer": sequence("normalizers", {"type": "Lowercase"}, replace("\\s{2,}|[\n\r\t]", " ", "Regex"), NFC,
                                   {"type": "Strip", "strip_left": False, "strip_right": True}),
            "pre_tokenizer": sequence("pretokenizers", {"type": "Punctuation", "behavior": "Isolated"},
                                      metaspace("always")),
            "decoder": metaspace("always"),
            "post_processor": template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                                       ids={"[CLS]": 1, "[SEP]": 2}),
            "added_tokens": [added("[PAD]"), added("[CLS]"), added("[SEP]"), added("[UNK]", normalized=True),
                             added("[MASK]")]},
        "xlm_roberta": {
            "model": "unigram", "options": {},
            "normalizer": sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"}, replace(" {2,}", " ", "Regex")),
            "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always")),
            "decoder": metaspace("always"),
            "post_processor": template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0",
                                       ids={"[CLS]": 1, "[SEP]": 2}),
            "added_tokens": [added("[PAD]"), added("[CLS]"), added("[SEP]"), added("[UNK]"), added("<mask>", lstrip=True)]},
        "deberta_v3_split": {
            "model": "unigram", "options": {},
            "normalizer": sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Nmt"},
                                   {"type": "NFKC"}, replace(" {2,}", " ", "Regex")),
            "pre_tokenizer": sequence("pretokenizers", DIGIT_RUNS, metaspace("first")),
            "decoder": sequence("decoders", metaspace("first")), "post_processor": None,
            "added_tokens": [added("[PAD]"), added("[CLS]"), added("[SEP]"), added("[UNK]")]},
        # Parts that no family above has.
        "whitespace": {
            "model": "characters", "options": {},
            "normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}, sequence("normalizers")),
            "pre_tokenizer": sequence("pretokenizers", {"type": "Whitespace"}, DIGITS),
            "decoder": {"type": "BPEDecoder", "suffix": "e"}, "post_processor": None,
            "added_tokens": [added("<unk>"), added("norm", False, normalized=True, single_word=True)]},
        "bert_cut": {
            "model": "characters", "options": {"fuse_unk": True},
            "normalizer": sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"}),
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "post_processor": byte_level(True, True), "added_tokens": [added("<unk>"), added("word", False, lstrip=True)]},
        "patterns": {
            "model": "characters", "options": {"unk_token": None},
            "normalizer": sequence("normalizers", replace("^\\w", "x", "Regex"), replace("\\A |.$", "y", "Regex")),
            "pre_tokenizer": sequence(
                "pretokenizers", {"type": "CharDelimiterSplit", "delimiter": "o"}, split("\\s\\z|^.", "MergedWithNext"),
                split("\\W", "MergedWithPrevious"), split("[\\w]\\Z", "Contiguous", True),
                {"type": "Punctuation", "behavior": "Removed"}, split("(?=(\\d{3})+(?!\\d))")),
            "decoder": sequence("decoders", replace("[ae]", "\u00e9", "Regex"), {"type": "Fuse"}), "post_processor": None,
            "added_tokens": [added("<unk>")]},
        "bytes_twice": of_bytes({"type": "ByteLevel"}, split("th", "MergedWithNext", kind="String"),
                                {"type": "WhitespaceSplit"}),
        "prefixed": of_bytes(NFC, split("\\s", "MergedWithNext"), byte_level(True, True, True),
                             post=byte_level(True, True, True)),
    }


def without_model(family, model):
    """A tokenizer.json without its model."""
    ids = model["vocab"] if isinstance(model["vocab"], dict) else {t: i for i, (t, _) in enumerate(model["vocab"])}
    fresh = len(ids)
    tokens = []
    for token in family["added_tokens"]:
        if token["content"] not in ids:
            ids = {**ids, token["content"]: fresh}
            fresh += 1
        tokens.append({"id": ids[token["content"]], **token})
    tokens.sort(key=lambda token: token["id"])
    parts = {key: family[key] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, **parts}


def case(tokenizer, text):
    encoding = tokenizer.encode(text)
    result = {"ids": encoding.ids, "offsets": [at for span in encoding.offsets for at in span]}
    for key, skip in (("decoded", True), ("decoded_all", False)):
        decoded = tokenizer.decode(encoding.ids, skip_special_tokens=skip)
        if decoded != text:
            result[key] = decoded
    return result


def digest(numbers):
    return hashlib.sha256(struct.pack(f"<{len(numbers)}i", *numbers)).hexdigest()[:16]


def characters(tokenizer):
    """Every character between two letters, 32,768 at a time: hashes of ids and offsets."""
    result = []
    for first in range(0, 0x110000, 0x8000):
        text = "".join(f"a{chr(c)}b\n" for c in range(first, first + 0x8000) if not 0xD800 <= c < 0xE000)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        result.append(digest(encoding.ids + [at for span in encoding.offsets for at in span]))
    return result


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests/golden/tokenizer/families")
    out = parser.parse_args().output
    out.mkdir(parents=True, exist_ok=True)
    lines = (ROOT / "tests/golden/tokenizer/genesis.txt").read_text().splitlines() + LINES
    path = out / "families.json"
    # Unigram training gives a different result each time.
    trained = (json.loads(path.read_text())["models"] if path.exists() else
               {"bytes": byte_model(lines), "pieces": piece_model(lines), "characters": character_model(lines),
                "unigram": unigram_model(lines)})
    results, written = {}, {}
    for name, family in families().items():
        model, file = trained[family["model"]], without_model(family, trained[family["model"]])
        written[name] = {"model": family["model"], "options": family["options"], "file": file}
        tokenizer = Tokenizer.from_str(json.dumps({**file, "model": {**model, **family["options"]}}))
        results[name] = {"cases": [case(tokenizer, text) for text in texts()]}
        if name in ("command_r", "falcon", "whitespace", "bert_cut"):
            results[name]["characters"] = characters(tokenizer)
    write(path, {"models": trained, "families": written})
    write(out / "texts.json", texts())
    write(out / "cases.json", results)


if __name__ == "__main__":
    main()
