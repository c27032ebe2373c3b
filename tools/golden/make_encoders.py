#!/usr/bin/env python3
"""Writes tests/golden/encoders/FAMILY/: a tiny random BERT, RoBERTa, DistilBERT, ALBERT, XLM-RoBERTa, ELECTRA and
ModernBERT with all their heads in one model.safetensors, and for each head HEAD.safetensors: a padded batch, the loss,
the logits and every gradient of transformers' class, computed in float64 without dropout.
reports.json: the missing and unexpected weights that transformers reports if a masked-LM directory
is opened for another head, and the names in such a directory.

`check DIRECTORY HEAD` opens a directory that Shoal wrote and compares its logits on the family's
batch with the golden ones.

    make_encoders.py [--out DIR] [--family NAME]...
    make_encoders.py check DIRECTORY HEAD
"""
import argparse
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HEADS = {"masked_lm": "MaskedLM", "sequence_classification": "SequenceClassification",
         "question_answering": "QuestionAnswering", "token_classification": "TokenClassification"}
BATCH, LENGTHS, VOCABULARY = 3, (7, 5, 2), 37
# transformers computes NaN for padding whose window holds no visible key, which these lengths avoid.
WINDOW_LENGTHS = (12, 9, 8)
BERT = dict(vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=20, max_position_embeddings=20, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0)
MODERNBERT = dict(vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=3, num_attention_heads=3,
                  intermediate_size=24, max_position_embeddings=20, local_attention=8, pad_token_id=0,
                  bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2)
FAMILIES = {
    "bert": ("Bert", dict(BERT)),
    "bert_regression": ("Bert", dict(BERT, num_hidden_layers=1, num_labels=1,
                                     problem_type="regression")),
    # Its decoder has its own weight and bias, so cls.predictions.bias is not used.
    "bert_untied": ("Bert", dict(BERT, num_hidden_layers=1, tie_word_embeddings=False)),
    "roberta": ("Roberta", dict(BERT, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)),
    "xlm-roberta": ("XLMRoberta", dict(BERT, type_vocab_size=1, layer_norm_eps=1e-5, num_hidden_layers=1)),
    "electra": ("Electra", dict(BERT, embedding_size=8)),
    # An embedding as wide as the blocks has no projection.
    "electra_wide": ("Electra", dict(BERT, embedding_size=12, num_hidden_layers=1, hidden_act="relu")),
    "distilbert": ("DistilBert", dict(vocab_size=VOCABULARY, dim=12, n_layers=2, n_heads=3,
                                      hidden_dim=20, max_position_embeddings=20, dropout=0.0,
                                      attention_dropout=0.0, seq_classif_dropout=0.0,
                                      qa_dropout=0.0)),
    # Four layers in two groups: two layers share the weights of a group, and the groups share none.
    "albert": ("Albert", dict(BERT, embedding_size=8, num_hidden_layers=4, num_hidden_groups=2,
                              classifier_dropout_prob=0.0)),
    # Layers 1 and 2 have windows of 4 positions to each side.
    "modernbert": ("ModernBert", dict(MODERNBERT)),
    # Every bias, other layers with windows, and the mean of the visible states.
    "modernbert_biases": ("ModernBert", dict(
        MODERNBERT, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "default", "rope_theta": 5000.0}},
        norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, tie_word_embeddings=False,
        classifier_pooling="mean", hidden_activation="gelu_pytorch_tanh", classifier_activation="relu")),
}


def class_of(prefix, head):
    return getattr(transformers, f"{prefix}For{HEADS[head]}")


def config_of(family):
    prefix, fields = FAMILIES[family]
    return getattr(transformers, f"{prefix}Config")(**fields, attn_implementation="eager")


def heads_of(family):
    alone = {"bert_regression": ["sequence_classification"], "bert_untied": ["masked_lm"],
             "electra_wide": ["masked_lm"],
             "modernbert_biases": ["masked_lm", "sequence_classification"]}
    return alone.get(family, list(HEADS))


def value_of(name, shape):
    """The values depend only on the name, so that all heads share them; exact in float32."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape) * 0.3
    if "norm" in name.lower() and name.endswith("weight"):
        values = values + 1
    return torch.tensor(values.astype(np.float32))


def named_parameters(model):
    """A table that the head shares has the embedding's name, whichever module comes first."""
    table = model.get_input_embeddings().weight
    own = next(name for name, parameter in model.base_model.named_parameters() if parameter is table)
    return [(f"{model.base_model_prefix}.{own}" if parameter is table else name, parameter)
            for name, parameter in model.named_parameters()]


def make_model(family, head):
    model = class_of(FAMILIES[family][0], head)(config_of(family)).eval()
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            parameter.copy_(value_of(name, tuple(parameter.shape)))
    return model


def make_batch(family, head):
    config = config_of(family)
    rng = np.random.default_rng(7)
    lengths = WINDOW_LENGTHS if hasattr(config, "local_attention") else LENGTHS
    shape = (BATCH, max(lengths))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in lengths])
    # Only padding has the padding's id.
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), config.pad_token_id)
    batch = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = np.where(mask, rng.integers(0, 2, shape), 0)
    if head == "masked_lm":
        chosen = (rng.random(shape) < 0.4) & (mask == 1)
        batch["labels"] = np.where(chosen, rng.integers(0, VOCABULARY, shape), -100)
    elif head == "token_classification":
        batch["labels"] = np.where(mask, rng.integers(0, 2, shape), -100)
    elif head == "question_answering":
        batch["start_positions"] = np.array([2, 0, 1])
        batch["end_positions"] = np.array([6, 3, 1])
    elif family == "bert_regression":
        batch["labels"] = np.array([0.5, -1.25, 2.0])
    else:
        batch["labels"] = np.array([1, 0, 1])
    return {name: torch.tensor(values) for name, values in batch.items()}


def logits_of(output):
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits


def make_case(family, head):
    model = make_model(family, head).double()
    batch = make_batch(family, head)
    output = model(**batch)
    output.loss.backward()
    out = dict(batch)
    out["loss"] = output.loss.detach().float().reshape(1)
    out["logits"] = logits_of(output).detach().float()
    for name, parameter in named_parameters(model):
        if parameter.grad is not None:
            out[f"grad.{name}"] = parameter.grad.float()
    out = {name: (t.float() if t.dtype == torch.float64 else t).contiguous()
           for name, t in out.items()}
    return out, {name: p.detach().float() for name, p in named_parameters(model)}


def make_reports(family):
    """Opens for every head: a masked-LM directory from save_pretrained, and one without a head for masked LM."""
    prefix = FAMILIES[family][0]
    with tempfile.TemporaryDirectory() as folder:
        make_model(family, "masked_lm").save_pretrained(folder)
        reports = {"names": sorted(load_file(Path(folder) / "model.safetensors"))}
        for head in HEADS:
            _, info = class_of(prefix, head).from_pretrained(folder, output_loading_info=True)
            reports[head] = {"missing": sorted(info["missing_keys"]),
                             "unexpected": sorted(info["unexpected_keys"])}
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, f"{prefix}Model")(config_of(family)).save_pretrained(folder)
        _, info = class_of(prefix, "masked_lm").from_pretrained(folder, output_loading_info=True)
        reports["from_base"] = {"missing": sorted(info["missing_keys"])}
    return reports


def make_family(family, out):
    folder = out / family
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for head in heads_of(family):
        case, parameters = make_case(family, head)
        save_file(case, folder / f"{head}.safetensors")
        weights.update(parameters)
    save_file({name: t.contiguous() for name, t in weights.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config_of(family).save_pretrained(folder)
    if len(heads_of(family)) > 1:
        (folder / "reports.json").write_text(json.dumps(make_reports(family), indent=1) + "\n")
    print(family, sum(t.numel() for t in weights.values()), "parameters,",
          sum(path.stat().st_size for path in folder.iterdir()), "bytes")


def check(directory, head):
    config = json.loads((Path(directory) / "config.json").read_text())
    family = config["model_type"]
    model, info = class_of(FAMILIES[family][0], head).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" / "encoders" /
                       family / f"{head}.safetensors")
    with torch.no_grad():
        logits = logits_of(model.eval()(**make_batch(family, head)))
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{family} {head}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "encoders"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--family", choices=list(FAMILIES), action="append", help="default: all")
    parser.add_argument("check", nargs="*", metavar="check DIRECTORY HEAD")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.check:
        check(*args.check[1:])
        return
    for family in args.family or FAMILIES:
        make_family(family, args.out)


if __name__ == "__main__":
    main()
