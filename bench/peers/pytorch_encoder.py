#!/usr/bin/env python3
"""One training step of transformers' BERT, MiniLM, RoBERTa, DistilBERT or ALBERT on CPU: a server
(pytorch_step.py says how). Random weights and tokens, the modules' own loss,
scaled_dot_product_attention. Sequences are whole, or with --lengths padded to the longest of their
batch, as transformers' DataCollatorWithPadding does.
"""

import torch
import transformers

import pytorch_step

BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
             intermediate_size=4096)
# Configuration class, sizes, prefix of the classes.
MODELS = {"bert-base": (transformers.BertConfig, BASE, "Bert"),
          "bert-large": (transformers.BertConfig, LARGE, "Bert"),
          "minilm": (transformers.BertConfig, dict(BASE, hidden_size=384, intermediate_size=1536),
                     "Bert"),
          "roberta-base": (transformers.RobertaConfig,
                           dict(BASE, vocab_size=50265, max_position_embeddings=514,
                                type_vocab_size=1), "Roberta"),
          "distilbert-base": (transformers.DistilBertConfig, {}, "DistilBert"),
          "albert-base": (transformers.AlbertConfig, dict(BASE, vocab_size=30000), "Albert")}
TASKS = {"classification": "ForSequenceClassification", "answers": "ForQuestionAnswering",
         "masked": "ForMaskedLM"}
MASKED_SHARE = 0.15


def make_model(name, dropout):
    """The class for its task, with every dropout as given."""
    base, _, task = name.rpartition("-")
    config_class, sizes, prefix = MODELS[base]
    if prefix == "DistilBert":
        drops = dict(dropout=dropout, attention_dropout=dropout, seq_classif_dropout=dropout,
                     qa_dropout=dropout)
    else:
        drops = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        drops["classifier_dropout_prob" if prefix == "Albert" else "classifier_dropout"] = dropout
    config = config_class(**sizes, **drops, attn_implementation="sdpa")
    return getattr(transformers, prefix + TASKS[task])(config), task, config.vocab_size


def make_labels(task, batch, length, vocabulary):
    if task == "classification":
        return dict(labels=torch.randint(2, (batch,)))
    if task == "answers":
        return dict(start_positions=torch.randint(length, (batch,)),
                    end_positions=torch.randint(length, (batch,)))
    labels = torch.randint(vocabulary, (batch, length))
    labels[torch.rand(batch, length) >= MASKED_SHARE] = -100
    return dict(labels=labels)


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, **named):
        return self.model(input_ids=ids, **named).loss


def make_batch(task, lengths, vocabulary):
    length = max(lengths)
    named = make_labels(task, len(lengths), length, vocabulary)
    if min(lengths) < length:
        named["attention_mask"] = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
        if task == "masked":
            named["labels"][named["attention_mask"] == 0] = -100
    return (torch.randint(2, vocabulary, (len(lengths), length)),), named


def build(args):
    model, task, vocabulary = make_model(args.model, args.dropout)
    model.train()
    batches = [[args.length] * args.batch]
    if args.lengths:
        with open(args.lengths) as file:
            batches = [[int(length) for length in line.split()] for line in file]
        args.steps, args.tokens = len(batches), sum(map(sum, batches)) / len(batches)
    return pytorch_step.Training(args.variant, Loss(model),
                                 [make_batch(task, lengths, vocabulary) for lengths in batches])


if __name__ == "__main__":
    parser = pytorch_step.arguments(__doc__)
    parser.add_argument("--model", default="bert-base-classification",
                        choices=[f"{model}-{task}" for model in MODELS for task in TASKS])
    parser.add_argument("--lengths", help="a file of samples' lengths, a batch a line")
    pytorch_step.serve(parser.parse_args(), build)
