#!/usr/bin/env python3
"""One training step of transformers' BERT, RoBERTa, DistilBERT or ALBERT on CPU: a server
(pytorch_step.py says how). Random weights and tokens, whole sequences (no padding), the modules'
own loss, scaled_dot_product_attention.
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

    def forward(self, ids, **labels):
        return self.model(input_ids=ids, **labels).loss


def build(args):
    model, task, vocabulary = make_model(args.model, args.dropout)
    model.train()
    ids = torch.randint(2, vocabulary, (args.batch, args.length))
    return pytorch_step.Training(args.variant, Loss(model), (ids,),
                                 make_labels(task, args.batch, args.length, vocabulary))


if __name__ == "__main__":
    parser = pytorch_step.arguments(__doc__)
    parser.add_argument("--model", default="bert-base-classification",
                        choices=[f"{model}-{task}" for model in MODELS for task in TASKS])
    pytorch_step.serve(parser.parse_args(), build)
