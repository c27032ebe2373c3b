#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/added.cases.json: directories whose added tokens are outside tokenizer.json, or
with one, and transformers' results: ids of texts, the roles' tokens, the number of tokens. "saved" has the files
that transformers itself saves for a Llama, with tests/golden/tokenizer/sentence_piece/llama.json as the tokenizer.json.

Each case holds its files as text; a SentencePiece model is one of tests/golden/tokenizer/sentence_piece, a
tokenizer.json one of tests/golden/tokenizer.
Needs `transformers` and `sentencepiece`. Deterministic.
"""
import json
import logging
import pathlib
import shutil
import tempfile

import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/tokenizer"
ROLES = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "heaven", "earth", "##s", "and", "a", ".", "<", ">"]
LETTERS = list("abdehnrst") + ["\u0120", "<", ">", "|", "."]
MERGES = ["t h", "th e", "\u0120 the", "a n", "an d", "\u0120 and"]
TEXTS = ["the earth and the heavens", "the <ent> earth", " <ent>  the", "the<ent>s", "a <Norm> earth", "a <norm> earth",
         "the [NEW] [MASK] .", "<pad> and <|endoftext|>the", "<s>the</s>", "x<one>y <one> z", "<extra_id_0> the <extra_id_99>",
         "<last> <first>", "the <s> <mask> and", "", "[INST] the earth [/INST]",
         "a raw N\u00c9wTok , and  then raws of the [MASK] in heaven"]


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": False, **flags}


def decoder(first, *tokens):
    return {"added_tokens_decoder": {str(first + i): one for i, one in enumerate(tokens)}}


FLAGGED = [token("<ent>", lstrip=True, rstrip=True), token("<Norm>", normalized=True), token("<one>", single_word=True),
           token("[NEW]", special=True)]


def bert(words, **files):
    return {"vocab.txt": "".join(word + "\n" for word in words), **files}


def bpe(extra, **files):
    vocab = LETTERS + [merge.replace(" ", "") for merge in MERGES] + extra
    return {"vocab.json": json.dumps({token: id for id, token in enumerate(vocab)}),
            "merges.txt": "#version: 0.2\n" + "".join(merge + "\n" for merge in MERGES), **files}


BPE = len(LETTERS) + len(MERGES)
CASES = {  # name: (class, SentencePiece model, files)
    "bert_added": ("BertTokenizer", None, bert(WORDS, **{
        "added_tokens.json": {"<first>": 16, "<ent>": 14, "[NEW]": 15, "<Norm>": 17},
        "special_tokens_map.json": {"mask_token": "[MASK]", "additional_special_tokens": ["[NEW]"]}})),
    "bert_decoder": ("BertTokenizer", None, bert(WORDS, **{"tokenizer_config.json": {
        **decoder(14, *FLAGGED), "additional_special_tokens": ["[NEW]", "<last>"], "do_lower_case": True}})),
    "bert_cased": ("BertTokenizer", None, bert(WORDS, **{"tokenizer_config.json": {
        **decoder(14, *FLAGGED), "do_lower_case": False}})),
    "bert_lacks_roles": ("BertTokenizer", None, bert(WORDS[1:2] + WORDS[5:], **{
        "added_tokens.json": {"[SEP]": 10}, "special_tokens_map.json": {"pad_token": "<pad>"}})),
    "bert_odd_lines": ("BertTokenizer", None, {"vocab.txt": "\n".join(WORDS) + " \n<\u00a0\nx\r\nth\rs\nearth\nearth\n\n"
                                               "\u0085\nheaven\x1c\n\nlast"}),
    "gpt2_added": ("GPT2Tokenizer", None, bpe(["<|endoftext|>"], **{
        "added_tokens.json": {"<last>": BPE + 3, "<pad>": BPE + 1, "<ent>": BPE + 2},
        "special_tokens_map.json": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                                    "unk_token": "<|endoftext|>", "pad_token": "<pad>"}})),
    "gpt2_decoder": ("GPT2Tokenizer", None, bpe(["<|endoftext|>"], **{"tokenizer_config.json": {
        **decoder(BPE, token("<|endoftext|>", special=True, normalized=True), *FLAGGED), "add_bos_token": True,
        "mask_token": "<mask>", "pad_token": "<pad>"}})),
    "gpt2_lacks_roles": ("GPT2Tokenizer", None, bpe([], **{
        "added_tokens.json": {"<ent>": BPE},
        "special_tokens_map.json": {"pad_token": token("<pad>", rstrip=True), "mask_token": "<mask>"}})),
    "roberta_added": ("RobertaTokenizer", None, bpe(["<s>", "<pad>", "</s>", "<unk>"], **{
        "added_tokens.json": {"<ent>": BPE + 5, "<mask>": BPE + 4}, "special_tokens_map.json": {
            "mask_token": token("<mask>", lstrip=True)}})),
    "llama_added": ("LlamaTokenizer", "llama/tokenizer.model", {
        "added_tokens.json": {"<ent>": 420, "<pad>": 421}, "tokenizer_config.json": {"add_bos_token": True},
        "special_tokens_map.json": {"pad_token": "<pad>"}}),
    "llama_decoder": ("LlamaTokenizer", "llama/tokenizer.model", {"tokenizer_config.json": {
        **decoder(420, *FLAGGED, token("[/INST]", special=True)), "add_bos_token": True, "add_prefix_space": None,
        "mask_token": "<mask>", "pad_token": "<pad>", "additional_special_tokens": ["[NEW]", "<last>"]}}),
    "gemma_decoder": ("GemmaTokenizer", "gemma/tokenizer.model", {"tokenizer_config.json": {
        **decoder(420, token("<mask>", special=True), token("<ent>", lstrip=True)), "add_bos_token": True}}),
    "t5_decoder": ("T5Tokenizer", "t5/spiece.model", {"tokenizer_config.json": {
        **decoder(500, *FLAGGED), "extra_ids": 100}}),
    "t5_added": ("T5Tokenizer", "t5/spiece.model", {"added_tokens.json": {"<last>": 501, "<ent>": 500}}),
    "albert_added": ("AlbertTokenizer", "albert/spiece.model", {
        "added_tokens.json": {"<ent>": 400, "[NEW]": 401},
        "special_tokens_map.json": {"additional_special_tokens": ["[NEW]"]}}),
    # With a tokenizer.json: "raw" and "NÉwTok" are added tokens of word_piece.json that are not special. "the",
    # "and" and "of" are tokens of only the model. (A token that stops being normalized keeps its old text in
    # `tokenizers`' decoder.)
    **{f"{name}_{case}": ("PreTrainedTokenizerFast", f"{name}.json", files) for case, files in {
        "roles": {"special_tokens_map.json": {"mask_token": "the", "eos_token": "<eos>", "cls_token": token("and", rstrip=True)}},
        "role_of_added": {"special_tokens_map.json": {"eos_token": "raw"}},
        "role_with_flags": {"tokenizer_config.json": {"eos_token": token("raw", lstrip=True, rstrip=True, __type="AddedToken")}},
        "decoder": {"tokenizer_config.json": {"added_tokens_decoder": {
            "4": token("[MASK]", special=True, lstrip=True), "571": token("raw", rstrip=True),
            "570": token("N\u00c9wTok", special=True, normalized=True, single_word=True), "3": token("the"), "9": token("of", special=True)}}},
        "decoder_same": {"tokenizer_config.json": {"added_tokens_decoder": {"4": token("[MASK]", special=True)}}},
        "decoder_roles": {"tokenizer_config.json": {
            "added_tokens_decoder": {"571": token("raw"), "570": token("N\u00c9wTok", normalized=True, lstrip=True)}, "eos_token": "raw",
            "pad_token": "N\u00c9wTok", "mask_token": "the"}},
        "decoder_and_map": {"tokenizer_config.json": {"added_tokens_decoder": {"571": token("raw", special=True)}},
                            "special_tokens_map.json": {"pad_token": "the", "additional_special_tokens": ["and"]}},
        "added": {"added_tokens.json": {"raw": 571, "the": 9, "<ent>": 572},
                  "special_tokens_map.json": {"eos_token": "raw", "additional_special_tokens": ["<ent>"]}},
        "extra": {"tokenizer_config.json": {"extra_special_tokens": ["raw", "the", "<last>"]}},
        "further": {"tokenizer_config.json": {"additional_special_tokens": ["and", "<ent>", "raw"], "image_token": "of"}},
        "further_map": {"special_tokens_map.json": {"additional_special_tokens": ["and", "<ent>", "raw"]}},
        "extra_map": {"special_tokens_map.json": {"extra_special_tokens": ["and", {"content": "<ent>", "rstrip": True}, "raw"]}},
    }.items() for name in (["word_piece"] if "decoder" in case or case == "added" else ["word_piece", "plain"])},
    "xlnet_decoder": ("XLNetTokenizer", "xlnet/spiece.model", {"tokenizer_config.json": {
        **decoder(400, token("<ent>", lstrip=True)), "additional_special_tokens": ["<eop>", "<eod>"]}}),
}


def as_text(content):
    return content if isinstance(content, str) else json.dumps(content)


def case(kind, model, files):
    files = {**files, "tokenizer_config.json": {**files.get("tokenizer_config.json", {}), "tokenizer_class": kind}}
    texts = {name: as_text(content) for name, content in files.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            pathlib.Path(folder, name).write_text(text)
        if model and model.endswith(".json"):
            shutil.copy(GOLDEN / model, pathlib.Path(folder, "tokenizer.json"))
        elif model:
            shutil.copy(GOLDEN / "sentence_piece" / model, folder)
        tokenizer = getattr(transformers, kind).from_pretrained(folder)
    return {"files": texts, "model": model, "size": len(tokenizer), "added": tokenizer.get_added_vocab(),
            "roles": {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES},
            "ids": [tokenizer.encode(text) for text in TEXTS],
            "pairs": tokenizer.encode(TEXTS[0], TEXTS[1]),
            "decoded": [tokenizer._tokenizer.decode(tokenizer.encode(text)) for text in TEXTS]}


def saved():
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = transformers.LlamaTokenizer.from_pretrained(GOLDEN / "sentence_piece/llama")
        tokenizer.save_pretrained(folder)
        config = transformers.LlamaConfig(vocab_size=420, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                          num_attention_heads=2, architectures=["LlamaForCausalLM"])
        config.save_pretrained(folder)
        transformers.GenerationConfig.from_model_config(config).save_pretrained(folder)
        files = {path.name: path.read_text() for path in sorted(pathlib.Path(folder).iterdir())}
    theirs = json.loads((GOLDEN / "sentence_piece/llama.json").read_text())
    assert json.loads(files.pop("tokenizer.json")) == theirs
    return {"files": files, "ids": [tokenizer.encode(text) for text in TEXTS]}


def main():
    logging.disable(logging.WARNING)
    cases = {name: case(*description) for name, description in CASES.items()}
    text = json.dumps({"texts": TEXTS, "cases": cases, "saved": saved()}, ensure_ascii=False)
    (GOLDEN / "added.cases.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
