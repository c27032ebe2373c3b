"""Inputs of Hugging Face's example scripts: tiny models with random weights, data of ../shared/data, metrics."""
import csv
import itertools
import json
import pathlib

import torch
import transformers

# `evaluate` loads a metric from a folder of that name in the working directory; otherwise it asks the hub.
_METRIC = """
import datasets
import evaluate
class Metric(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(description="", citation="", inputs_description="",
                                   features=datasets.Features({{"predictions": {of}, "references": {to}}}))
    def _compute(self, predictions, references, **_):
        return {result}
"""
_VALUE = "datasets.Value('{}')"
METRICS = {
    "accuracy": {"of": _VALUE.format("int32"), "to": _VALUE.format("int32"),
                 "result": "{'accuracy': sum(p == r for p, r in zip(predictions, references)) / len(references)}"},
    "squad": {"of": "{'id': datasets.Value('string'), 'prediction_text': datasets.Value('string')}",
              "to": "{'id': datasets.Value('string'), 'answers': {'text': datasets.Sequence(datasets.Value('string')),"
                    " 'answer_start': datasets.Sequence(datasets.Value('int32'))}}",
              "result": "{'exact_match': 100 * sum(p['prediction_text'] in r['answers']['text']"
                        " for p, r in zip(predictions, references)) / len(references)}"},
    "rouge": {"of": _VALUE.format("string"), "to": _VALUE.format("string"), "result": "{'rouge1': 0.0}"},
}


def _metrics(folder):
    for name, parts in METRICS.items():
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(_METRIC.format(**parts))


def _roberta_vocabulary(folder, shared, merges=1000):
    """GPT-2's bytes and first merges, after RoBERTa's own tokens."""
    tokens = sorted(((index, token) for token, index in json.loads((shared / "gpt2-vocab.json").read_text()).items()))
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(token for _, token in tokens[:256 + merges])]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    with open(shared / "gpt2-merges.txt") as lines:
        (folder / "merges.txt").write_text("".join(itertools.islice(lines, merges + 1)))  # the first line is a comment
    return str(folder / "vocab.json"), str(folder / "merges.txt")


def _models(folder, shared):
    torch.manual_seed(7)
    words = transformers.BertTokenizerFast(str(shared / "bert-base-uncased-vocab.txt"), model_max_length=64)
    bytes_ = transformers.GPT2TokenizerFast(str(shared / "gpt2-vocab.json"), str(shared / "gpt2-merges.txt"))
    bert = transformers.BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                   intermediate_size=64, max_position_embeddings=64)
    gpt2 = transformers.GPT2Config(vocab_size=len(bytes_), n_embd=32, n_layer=2, n_head=2, n_positions=64)
    t5 = transformers.T5Config(vocab_size=len(words), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                               pad_token_id=words.pad_token_id, eos_token_id=words.sep_token_id,
                               decoder_start_token_id=words.pad_token_id)
    # Without dropout, so that microbatches give the same results as their batch.
    robertas = transformers.RobertaTokenizerFast(*_roberta_vocabulary(folder, shared), model_max_length=60)
    roberta = transformers.RobertaConfig(vocab_size=len(robertas), hidden_size=32, num_hidden_layers=4,
                                         num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
                                         pad_token_id=robertas.pad_token_id, bos_token_id=robertas.bos_token_id,
                                         eos_token_id=robertas.eos_token_id, hidden_dropout_prob=0,
                                         attention_probs_dropout_prob=0)
    for name, model, tokenizer in (("roberta", transformers.RobertaForMaskedLM(roberta), robertas),
                                   ("bert", transformers.BertForMaskedLM(bert), words),
                                   ("gpt2", transformers.GPT2LMHeadModel(gpt2), bytes_),
                                   ("t5", transformers.T5ForConditionalGeneration(t5), words)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def _rows(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def _data(folder, shared):
    for split, file, count in (("train", "mrpc-train.txt", 64), ("validation", "mrpc-test.txt", 20)):
        with open(shared / file, encoding="utf-8-sig", newline="") as lines:
            pairs = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            rows = list(itertools.islice(pairs, 1, count + 1))
        _rows(folder / f"pairs-{split}.json",
              ({"sentence1": row[3], "sentence2": row[4], "label": int(row[0])} for row in rows))
        _rows(folder / f"mnli-{split}.json",  # has its own columns and number of labels
              ({"premise": row[3], "hypothesis": row[4], "label": number % 3} for number, row in enumerate(rows)))
    squad = json.loads((shared / "squad-v1.1-sample.json").read_text())
    asked = [{"id": question["id"], "context": paragraph["context"], "question": question["question"],
              "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")}}
             for article in squad["data"] for paragraph in article["paragraphs"] for question in paragraph["qas"]]
    for split, part in (("train", asked[:48]), ("validation", asked[48:60])):
        (folder / f"squad-{split}.json").write_text(json.dumps({"data": part}))
        _rows(folder / f"summaries-{split}.json",
              ({"text": row["context"], "summary": row["question"]} for row in part))
    for split, file, count in (("train", "wikitext2-valid.txt", 200), ("validation", "wikitext2-test.txt", 40)):
        with open(shared / file) as lines:
            (folder / f"text-{split}.txt").write_text("".join(itertools.islice(lines, count)))


def make(folder: pathlib.Path, shared: pathlib.Path) -> None:
    _metrics(folder)
    _models(folder, shared)
    _data(folder, shared)
    (folder / "nltk/tokenizers/punkt").mkdir(parents=True)  # run_summarization.py checks whether it exists
