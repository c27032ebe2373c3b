#!/usr/bin/env python3
"""Writes tests/golden/encoder_decoder_heads/CASE/: a tiny random T5, BART or mBART with a head for texts (classes,
numbers), tokens or answers, as transformers saves it, and case.safetensors: a padded batch, loss, logits and every
gradient, computed in float64 without dropout. Each text has two ends, of which the second counts. reports.json:
transformers' reports on a language model's directory opened for every head.

`check DIRECTORY CASE` opens a directory that Shoal wrote and compares its logits on the case's batch with the golden
ones.

    make_encoder_decoder_heads.py [--out DIR]
    make_encoder_decoder_heads.py check DIRECTORY CASE
"""
import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from make_decoder_heads import BATCH, HEADS, LENGTHS, NAMES, VOCABULARY, logits_of, loss_of
from make_encoder_decoders import value_of

BART = dict(vocab_size=VOCABULARY, d_model=12, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3,
            decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=16, max_position_embeddings=20)
T5 = dict(vocab_size=VOCABULARY, d_model=12, d_kv=5, d_ff=20, num_layers=1, num_decoder_layers=2, num_heads=3,
          relative_attention_num_buckets=8, relative_attention_max_distance=10, decoder_start_token_id=0)
FAMILIES = {
    "bart": ("Bart", BART),
    "mbart": ("MBart", dict(BART, scale_embedding=True)),
    "t5": ("T5", T5),
    "t5_v1_1": ("T5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
}
CASES = ["bart_classes", "bart_numbers", "bart_answers", "mbart_classes", "t5_classes", "t5_numbers", "t5_tokens",
         "t5_answers", "t5_v1_1_tokens"]
ABSENT = ["bart_tokens", "mbart_tokens"]  # transformers has no such classes
FIELDS = dict(HEADS, classes=(HEADS["classes"][0], dict(HEADS["classes"][1], classifier_dropout=0.25)))


def class_of(case):
    family, head = case.rsplit("_", 1)
    return getattr(transformers, FAMILIES[family][0] + FIELDS[head][0])


def config_of(family, **fields):
    prefix, tiny = FAMILIES[family]
    return getattr(transformers, f"{prefix}Config")(**dict(tiny, **fields), attn_implementation="eager")


def with_values(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value_of(name, tuple(parameter.shape)))
    return model.eval()


def make_batch(case):
    """Rows padded on the right with the padding's id."""
    family, head = case.rsplit("_", 1)
    config = config_of(family)
    rng = np.random.default_rng(7)
    shape = (BATCH, max(LENGTHS))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in LENGTHS])
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), config.pad_token_id)
    for row, length in enumerate(LENGTHS):
        ids[row, length // 2] = ids[row, length - 1] = config.eos_token_id
    batch = dict(input_ids=ids, attention_mask=mask)
    if head == "classes":
        batch["labels"] = np.array([2, 0, 1])
    elif head == "numbers":
        batch["labels"] = np.array([0.5, -1.25, 2.0])
    elif head == "tokens":
        batch["labels"] = np.where((mask == 1) & (rng.random(shape) < 0.8), rng.integers(0, len(NAMES["id2label"]), shape),
                                   -100)
    else:
        batch["start_positions"], batch["end_positions"] = np.array([4, 0, 1]), np.array([9, 3, 1])
    return {name: torch.tensor(values) for name, values in batch.items()}


def make_case(case, out):
    family, head = case.rsplit("_", 1)
    model = with_values(class_of(case)(config_of(family, **FIELDS[head][1])))
    model.save_pretrained(out / case)
    (out / case / "generation_config.json").unlink(missing_ok=True)
    batch = make_batch(case)
    model.double()
    # The cache of transformers 5.24 takes the encoder's number of layers for the decoder's.
    output = model(**batch, **({} if head == "tokens" else {"use_cache": False}))
    logits = logits_of(output)
    loss = loss_of(logits, batch)
    assert abs(output.loss.item() - loss.item()) < 1e-6, (output.loss, loss)
    loss.backward()
    tensors = dict(batch, loss=loss.reshape(1), logits=logits)
    tensors.update({f"grad.{n}": p.grad for n, p in model.named_parameters()})
    save_file({name: (t.detach().float() if t.is_floating_point() else t).contiguous()
               for name, t in tensors.items()}, out / case / "case.safetensors")
    print(case, sum(path.stat().st_size for path in (out / case).iterdir()), "bytes, loss", loss.item())


def make_reports(out):
    """Opens a language model's directory for each head."""
    reports = {}
    for family, (prefix, _) in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            with_values(getattr(transformers, prefix + "ForConditionalGeneration")(config_of(family))
                        ).save_pretrained(folder)
            opened = dict(names=sorted(load_file(Path(folder) / "model.safetensors")))
            for head in HEADS:
                if f"{family}_{head}" in ABSENT:
                    continue
                _, info = class_of(f"{family}_{head}").from_pretrained(folder, output_loading_info=True)
                opened[head] = dict(missing=sorted(info["missing_keys"]), unexpected=sorted(info["unexpected_keys"]))
            reports[family] = opened
    (out / "reports.json").write_text(json.dumps(reports, indent=1) + "\n")


def check(directory, case):
    model, info = class_of(case).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" / "encoder_decoder_heads" / case /
                       "case.safetensors")
    with torch.no_grad():
        logits = logits_of(model.eval()(input_ids=golden["input_ids"], attention_mask=golden["attention_mask"],
                                        **({} if case.endswith("tokens") else {"use_cache": False})))
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{case}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "encoder_decoder_heads"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("check", nargs="*", metavar="check DIRECTORY CASE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.check:
        check(*args.check[1:])
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        make_case(case, args.out)
    make_reports(args.out)


if __name__ == "__main__":
    main()
