#!/usr/bin/env python3
"""Writes tests/golden/encoder_decoders/NAME/: a tiny random T5, T5 1.1, BART and mBART as directories, and
case.safetensors: a padded batch, the loss, the logits and every gradient of transformers' class,
computed in float64 without dropout, and what it generates greedily.

`check DIRECTORY NAME` opens a directory that Shoal wrote and compares its logits on the batch with
the golden ones.

    make_encoder_decoders.py [--out DIR] [--name NAME]...
    make_encoder_decoders.py check DIRECTORY NAME
"""
import argparse
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY, SOURCES, TARGETS, NEW_TOKENS = 37, (15, 9, 4), (14, 6, 1), 12
T5 = dict(vocab_size=VOCABULARY, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_decoder_layers=3,
          num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=10,
          dropout_rate=0.0, decoder_start_token_id=0)
BART = dict(vocab_size=VOCABULARY, d_model=12, encoder_layers=2, decoder_layers=3,
            encoder_attention_heads=3, decoder_attention_heads=2, encoder_ffn_dim=20,
            decoder_ffn_dim=28, max_position_embeddings=20, dropout=0.0, attention_dropout=0.0,
            activation_dropout=0.0)
CASES = {
    "t5": ("T5", T5),
    # As the published T5 1.1: the head has its own weight and takes hidden states as they are.
    "t5_v1_1": ("T5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "bart": ("Bart", BART),
    "mbart": ("MBart", dict(BART, scale_embedding=True)),
    "bart_scaled": ("Bart", dict(BART, scale_embedding=True, activation_function="relu")),
}


def class_of(name):
    return getattr(transformers, f"{CASES[name][0]}ForConditionalGeneration")


def config_of(name):
    prefix, fields = CASES[name]
    return getattr(transformers, f"{prefix}Config")(**fields, attn_implementation="eager")


def value_of(name, shape):
    """The values depend only on the name; exact in float32."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape) * 0.2
    if "norm" in name.lower() and name.endswith("weight"):
        values = values + 1
    return torch.tensor(values.astype(np.float32))


def make_model(name):
    model = class_of(name)(config_of(name)).eval()
    if not CASES[name][1].get("tie_word_embeddings", True):
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(value_of(key, tuple(parameter.shape)))
        if name == "mbart":  # published ones name the language of the text
            model.generation_config.decoder_start_token_id = 5
        if name == "bart_scaled":
            model.generation_config.forced_bos_token_id = 0
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(value_of("final_logits_bias", (1, VOCABULARY)))
    return model


def make_batch(name):
    padding = config_of(name).pad_token_id
    rng = np.random.default_rng(7)
    shape = (len(SOURCES), max(SOURCES))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in SOURCES])
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), padding)
    shape = (len(TARGETS), max(TARGETS))
    labels = np.array([[t if i < length else -100 for i, t in enumerate(row)]
                       for row, length in zip(rng.integers(3, VOCABULARY, shape), TARGETS)])
    return {key: torch.tensor(values) for key, values in
            {"input_ids": ids, "attention_mask": mask, "labels": labels}.items()}


def make_case(name, out):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(name)
    model.save_pretrained(folder)
    model = model.double()
    batch = make_batch(name)
    # The cache of transformers 5.24 takes the encoder's number of layers for the decoder's.
    output = model(**batch, use_cache=False)
    output.loss.backward()
    case = dict(batch)
    case["loss"] = output.loss.detach().reshape(1)
    case["logits"] = output.logits.detach()
    for key, parameter in model.named_parameters():
        case[f"grad.{key}"] = parameter.grad
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    case["generated"] = model.generate(**inputs, max_new_tokens=NEW_TOKENS, num_beams=1,
                                       do_sample=False, use_cache=False)
    save_file({key: (t.float() if t.is_floating_point() else t).contiguous()
               for key, t in case.items()}, folder / "case.safetensors")
    print(name, sum(p.numel() for p in model.parameters()), "parameters,",
          sum(path.stat().st_size for path in folder.iterdir()), "bytes")


def check(directory, name):
    model, info = class_of(name).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" /
                       "encoder_decoders" / name / "case.safetensors")
    with torch.no_grad():
        logits = model.eval()(**make_batch(name), use_cache=False).logits
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{name}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "encoder_decoders"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--name", choices=list(CASES), action="append", help="default: all")
    parser.add_argument("check", nargs="*", metavar="check DIRECTORY NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.check:
        check(*args.check[1:])
        return
    for name in args.name or CASES:
        make_case(name, args.out)


if __name__ == "__main__":
    main()
