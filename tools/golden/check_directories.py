#!/usr/bin/env python3
"""Shoal trains directories that transformers wrote, and transformers opens the results.

For each family of models and each head: transformers saves a tiny random model with a tokenizer in each of several
forms; `shoal train` opens it, trains a step at learning rate 0, evaluates and saves; transformers opens that, must
miss nothing, and have the same weights. For each pair of heads, the weights that Shoal
reports as newly initialised or not used are those of transformers' loading info. Prints a row for each case; exits
with 1 if one fails.

    check_directories.py SHOAL [--family FAMILY ...]
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
TOKENIZERS = ROOT / "tests" / "golden" / "tokenizer"
ENCODER = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
               max_position_embeddings=48)
LLAMA = dict(hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=4, max_position_embeddings=48)
FAMILIES = {  # prefix of classes, tokenizer, fields of the configuration
    "bert": ("Bert", "word_piece", dict(ENCODER)),
    "roberta": ("Roberta", "roberta", dict(ENCODER, type_vocab_size=1)),
    "xlm-roberta": ("XLMRoberta", "roberta", dict(ENCODER, type_vocab_size=1)),
    "electra": ("Electra", "word_piece", dict(ENCODER, embedding_size=8)),
    "distilbert": ("DistilBert", "word_piece",
                   dict(dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=48)),
    "albert": ("Albert", "word_piece", dict(ENCODER, embedding_size=8, num_hidden_groups=2)),
    "modernbert": ("ModernBert", "roberta", dict(ENCODER, local_attention=8)),
    "gpt2": ("GPT2", "plain", dict(n_positions=48, n_embd=12, n_layer=2, n_head=3, n_inner=20)),
    "llama": ("Llama", "plain", dict(LLAMA)),
    "mistral": ("Mistral", "plain", dict(LLAMA, sliding_window=8)),
    "qwen2": ("Qwen2", "plain", dict(LLAMA, hidden_size=16)),
    "qwen3": ("Qwen3", "plain", dict(LLAMA)),
    "gpt_neox": ("GPTNeoX", "plain", dict(hidden_size=12, intermediate_size=20, num_hidden_layers=2,
                                          num_attention_heads=3, max_position_embeddings=48)),
    "gemma": ("Gemma", "plain", dict(LLAMA)),
    "gemma2": ("Gemma2", "plain", dict(LLAMA, sliding_window=8, attn_logit_softcapping=0.5, final_logit_softcapping=2.0)),
    "gemma3_text": ("Gemma3Text", "plain", dict(LLAMA, sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
}
FAMILIES |= {
    "bart": ("Bart", "roberta", dict(d_model=12, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3,
                                     decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=16,
                                     max_position_embeddings=48)),
    "t5": ("T5", "roberta", dict(d_model=12, d_kv=5, d_ff=20, num_layers=1, num_decoder_layers=2, num_heads=3)),
}
PAIRS = ("bart", "t5")  # encoder-decoders
LANGUAGE_MODELS = {"gpt2": ("LMHeadModel", "causal-lm"),
                   **{family: ("ForCausalLM", "causal-lm") for family in (
                       "llama", "mistral", "qwen2", "qwen3", "gpt_neox", "gemma", "gemma2", "gemma3_text")},
                   **{family: ("ForConditionalGeneration", "summarization") for family in PAIRS}}
# Classes that transformers does not have or calls otherwise.
ABSENT = {"gemma": ["question-answering"], "gemma2": ["question-answering"],
          "gemma3_text": ["question-answering", "token-classification"],
          "bart": ["token-classification"]}
OTHER_NAMES = {"Gemma3TextForCausalLM": "Gemma3ForCausalLM"}
HEADS = {"text-classification": "ForSequenceClassification",
         "question-answering": "ForQuestionAnswering",
         "token-classification": "ForTokenClassification"}
LABELS = {"text-classification": ["bad", "good"], "token-classification": ["B-X", "O"]}


def heads_of(family):
    suffix, task = LANGUAGE_MODELS.get(family, ("ForMaskedLM", "masked-lm"))
    return {task: suffix, **{head: name for head, name in HEADS.items() if head not in ABSENT.get(family, [])}}


def class_of(family, suffix):
    name = FAMILIES[family][0] + suffix
    return getattr(transformers, OTHER_NAMES.get(name, name))


def write_data(folder):
    sentences = [f"In the {'heaven' if i % 2 else 'earth'} God said {i}" for i in range(16)]
    (folder / "rows.tsv").write_text("sentence\tlabel\n" + "".join(
        f"{text}\t{'good' if i % 2 else 'bad'}\n" for i, text in enumerate(sentences)))
    (folder / "words.conll").write_text("".join(
        "".join(f"{word} {'B-X' if word == 'God' else 'O'}\n" for word in text.split()) + "\n"
        for text in sentences))
    (folder / "text.txt").write_text("\n".join(sentences * 4) + "\n")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(dict(text=text, summary="God said")) + "\n"
                                                for text in sentences))
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [
        {"context": text, "qas": [{"id": f"q{i}", "question": "Who?", "answers": [
            {"text": "God", "answer_start": text.index("God")}]}]}]}
        for i, text in enumerate(sentences)]}))


DATA = {"text-classification": "rows.tsv", "token-classification": "words.conll",
        "question-answering": "squad.json", "masked-lm": "text.txt", "causal-lm": "text.txt",
        "summarization": "pairs.jsonl"}


def make_model(family, suffix, task="", **fields):
    """Sets weights of which none has a usual initial value."""
    prefix, tokenizer_name, tiny = FAMILIES[family]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZERS / f"{tokenizer_name}.json"), **special_tokens(tokenizer_name))
    if task in LABELS:
        fields.update(id2label=dict(enumerate(LABELS[task])),
                      label2id={name: i for i, name in enumerate(LABELS[task])})
    ids = dict(pad_token_id=tokenizer.pad_token_id)
    if family in LANGUAGE_MODELS:
        ids.update(bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id)
    if family in PAIRS:
        ids.update(decoder_start_token_id=tokenizer.pad_token_id if family == "t5" else tokenizer.eos_token_id)
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=len(tokenizer) + 3, **ids, **tiny, **fields)
    torch.manual_seed(7)
    model = class_of(family, suffix)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model, tokenizer


def special_tokens(tokenizer):
    return {"word_piece": dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                               sep_token="[SEP]", mask_token="[MASK]"),
            "roberta": dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                            cls_token="<s>", sep_token="</s>", mask_token="<mask>"),
            "plain": dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>")}[tokenizer]


def rewrite(folder, change):
    path = folder / "model.safetensors"
    save_file({name: t.clone() for name, t in change(load_file(path)).items()}, path,
              metadata={"format": "pt"})


def old_names(tensors):
    return {re.sub("LayerNorm.bias$", "LayerNorm.beta",
                   re.sub("LayerNorm.weight$", "LayerNorm.gamma", name)): t
            for name, t in tensors.items()}


def save(family, suffix, task, form, folder):
    fields = {"tied": dict(tie_word_embeddings=True),
              "untied": dict(tie_word_embeddings=False)}.get(form, {})
    model, tokenizer = make_model(family, suffix, task, **fields)
    if form == "bf16":
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder, **({"max_shard_size": "8KB"} if form == "sharded" else {}))
    tokenizer.save_pretrained(folder)
    if form == "gamma_beta":
        rewrite(folder, old_names)
    if form == "bin":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def train(shoal, data, directory, task, out, *more):
    file = data / DATA[task]
    words = [shoal, "train", "--task", task, "--model_name_or_path", directory, "--train_file", file,
             "--validation_file", file, "--max_steps", "1", "--learning_rate", "0",
             "--save_strategy", "no", "--output_dir", out, *more]
    words += {"causal-lm": ["--block_size", "32"], "masked-lm": ["--block_size", "32"],
              "summarization": ["--max_source_length", "32", "--max_target_length", "16"]
              }.get(task, ["--max_seq_length", "32"])
    if task == "question-answering":
        words += ["--doc_stride", "8"]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


def forms_of(family, task):
    forms = ["single", "sharded", "bf16", "bin"]
    if family in ("bert", "roberta", "albert"):
        forms.append("gamma_beta")
    return forms + (["tied", "untied"] if task.endswith("lm") else [])


def check_form(shoal, data, family, task, suffix, form, work):
    """The differences; empty if there are none."""
    theirs, ours = work / "theirs", work / "ours"
    save(family, suffix, task, form, theirs)
    run = train(shoal, data, theirs, task, ours)
    if form == "bin":
        told = run.stderr.count("\n") == 1 and "pytorch_model.bin, which is not read" in run.stderr
        return "" if run.returncode and told else run.stderr or "pytorch_model.bin was not refused"
    if run.returncode:
        return run.stderr
    said = re.findall("(?:newly initialised|not used): .*", run.stdout)
    if said:
        return "; ".join(said)
    if "eval_loss" not in run.stdout:
        return "there is no eval_loss"
    before = class_of(family, suffix).from_pretrained(theirs, dtype=torch.float32)
    after, info = class_of(family, suffix).from_pretrained(ours, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            return f"{kind}: {sorted(map(str, info[kind]))}"
    if json.loads((ours / "config.json").read_text())["architectures"] != [type(before).__name__]:
        return "config.json names another class"
    for name, value in before.state_dict().items():
        # With an untied decoder.bias, this bias is not used. Shoal writes the other's values there.
        unused = form == "untied" and re.fullmatch(r"(cls\.)?predictions\.bias|lm_head\.bias", name)
        if not unused and not torch.equal(value, after.state_dict()[name]):
            return f"{name} differs"
    transformers.AutoTokenizer.from_pretrained(ours)
    return ""


def named(text, kind):
    """The names that Shoal lists, and the number that it reports."""
    match = re.search(kind + ": ([^;\n]*)", text)
    if not match:
        return [], 0
    names = re.sub(r" and (\d+) more$", "", match[1]).split(", ")
    more = re.search(r" and (\d+) more$", match[1])
    return names, len(names) + int(more[1] if more else 0)


def check_pair(shoal, data, family, source, target, work):
    heads = heads_of(family)
    theirs, ours = work / "theirs", work / "ours"
    suffix = heads.get(source, "Model")
    save(family, suffix, source, "single", theirs)
    if family in ("llama", "qwen2", "qwen3") and "question-answering" in (source, target) and source != target:
        renamed = "transformer"  # only in LlamaForQuestionAnswering: see docs/internals/decoders.md
    else:
        renamed = None
    run = train(shoal, data, theirs, target, ours)
    # transformers would make a decoder of random values.
    if family == "t5" and source == "token-classification" != target:
        return "" if "decoder.block" in run.stderr else "a model without a decoder was not refused: " + run.stderr
    if run.returncode:
        return run.stderr
    _, info = class_of(family, heads[target]).from_pretrained(theirs, output_loading_info=True)
    wrong = []
    for kind, words in (("missing_keys", "newly initialised"), ("unexpected_keys", "not used")):
        expected = set(info[kind])
        if renamed:
            expected = {name for name in expected
                        if not name.startswith(("model.", "transformer.", "layers.", "embed_tokens.", "norm."))}
        names, count = named(run.stdout, words)
        if not set(names) <= expected or count != len(expected):
            wrong.append(f"{words}: {names} ({count}), transformers {sorted(expected)}")
    return "; ".join(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shoal", type=Path)
    parser.add_argument("--family", choices=list(FAMILIES), action="append", help="default: all")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        write_data(data)

        def row(what, problem):
            nonlocal failed
            failed += bool(problem)
            print(what, "ok" if not problem else "FAILED: " + problem.strip(), flush=True)

        for family in args.family or FAMILIES:
            heads = heads_of(family)
            for task, suffix in heads.items():
                for form in forms_of(family, task):
                    with tempfile.TemporaryDirectory(dir=folder) as work:
                        row(f"{family} {task} {form}:",
                            check_form(args.shoal, data, family, task, suffix, form, Path(work)))
            for source in ("base", *heads):
                for target in heads:
                    with tempfile.TemporaryDirectory(dir=folder) as work:
                        row(f"{family} {source} -> {target}:",
                            check_pair(args.shoal, data, family, source, target, Path(work)))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
