#!/usr/bin/env python3
"""Shoal and transformers open each other's GPT-2 checkpoints.

check DIR LOGITS   opens DIR, which Shoal exported, with transformers and compares its logits with
                   those that Shoal computed: LOGITS is a safetensors file with input_ids i64 [B, T]
                   and logits [B, T, V]. Missing or unexpected keys, and differences beyond
                   --tolerance (times the largest logit, if that is above 1), fail. --text FILE
                   also checks that DIR's tokenizer turns FILE into these input_ids.
write              writes tests/golden/interop/FORM/: a very small model in each form in which GPT-2
                   checkpoints occur, and expected.safetensors with input_ids and the float32
                   logits that each reader must compute.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2Model

SMALL = dict(n_layer=2, n_head=2, n_embd=12, vocab_size=29, n_positions=9, resid_pdrop=0.0,
             embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
             attn_implementation="eager")


def logits_of(model, ids):
    with torch.no_grad():
        return model.float().eval()(input_ids=ids, use_cache=False).logits


def small_model(**config):
    model = GPT2LMHeadModel(GPT2Config(**SMALL, **config))
    generator = torch.Generator().manual_seed(40)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            offset = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(offset + 0.3 * noise)
    return model


def rewrite(folder, change):
    """Replaces the tensors of a saved model by change(tensors)."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def write_plain(folder):
    small_model().save_pretrained(folder)


def write_sharded(folder):
    small_model().save_pretrained(folder, max_shard_size="4KB")


def write_untied(folder):
    small_model(tie_word_embeddings=False).save_pretrained(folder)


def write_tied_with_head(folder):
    """The head is tied, but the file contains it too, as after conversions from .bin files."""
    write_plain(folder)
    rewrite(folder, lambda t: {**t, "lm_head.weight": t["transformer.wte.weight"].clone()})


def write_no_prefix(folder):
    """Like OpenAI's own gpt2: keys without `transformer.`, and the causal masks as buffers."""
    model = small_model()
    base = GPT2Model(model.config)
    base.load_state_dict(model.transformer.state_dict())
    base.save_pretrained(folder)
    size = SMALL["n_positions"]
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, size, size).tril()
             for i in range(SMALL["n_layer"])}
    rewrite(folder, lambda t: {**t, **masks})


def write_bf16(folder):
    small_model().to(torch.bfloat16).save_pretrained(folder)


def write_inverse_layer_scale(folder):
    """Attention scores are also divided by the layer's number. This must be honoured or refused, never ignored."""
    small_model(scale_attn_by_inverse_layer_idx=True).save_pretrained(folder)


FORMS = dict(plain=write_plain, sharded=write_sharded, untied=write_untied,
             tied_with_head=write_tied_with_head, no_prefix=write_no_prefix, bf16=write_bf16,
             inverse_layer_scale=write_inverse_layer_scale)


def write(args):
    ids = torch.randint(SMALL["vocab_size"], (2, SMALL["n_positions"]),
                        generator=torch.Generator().manual_seed(41))
    for name, write_form in FORMS.items():
        folder = args.out / name
        if folder.exists():
            shutil.rmtree(folder)
        write_form(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        model, _ = open_checkpoint(folder)
        save_file({"input_ids": ids, "logits": logits_of(model, ids)},
                  folder / "expected.safetensors")
        print(folder, "|logits|", f"{logits_of(model, ids).abs().max():.3f}")


def open_checkpoint(folder):
    """The model, and a list of complaints about its keys."""
    model, info = GPT2LMHeadModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    complaints = [f"{kind}: {sorted(map(str, info[kind]))}"
                  for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]]
    return model, complaints


def check(args):
    given = load_file(args.logits)
    model, complaints = open_checkpoint(args.dir)
    ids = given["input_ids"].long()
    if args.text:
        tokens = AutoTokenizer.from_pretrained(args.dir)(args.text.read_text(encoding="utf-8"),
                                                         add_special_tokens=False)["input_ids"]
        if tokens != ids.flatten().tolist():
            complaints.append(f"the tokenizer gives {len(tokens)} ids, other than input_ids")
    expected = logits_of(model, ids)
    actual = given["logits"].float()
    row = dict(directory=str(args.dir), shape=list(actual.shape))
    if actual.shape != expected.shape:
        complaints.append(f"logits are {list(actual.shape)}, not {list(expected.shape)}")
    else:
        difference = (actual - expected).abs()
        largest = float(expected.abs().max())
        row.update(max_difference=float(difference.max()), largest_logit=largest,
                   relative_norm=float(difference.norm() / expected.norm()),
                   same_argmax=float((actual.argmax(-1) == expected.argmax(-1)).float().mean()))
        # `not <=` makes NaN fail.
        if not row["max_difference"] <= args.tolerance * max(1.0, largest):
            complaints.append(f"logits differ by {row['max_difference']:.3g}")
    print(json.dumps(dict(row, ok=not complaints, complaints=complaints)))
    return 1 if complaints else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="check|write")
    checker = commands.add_parser("check")
    checker.add_argument("dir", type=Path)
    checker.add_argument("logits", type=Path)
    checker.add_argument("--text", type=Path)
    checker.add_argument("--tolerance", type=float, default=1e-4)
    checker.set_defaults(run=check)
    writer = commands.add_parser("write")
    writer.add_argument("--out", type=Path,
                        default=Path(__file__).resolve().parents[2] / "tests/golden/interop")
    writer.set_defaults(run=write)
    args = parser.parse_args()
    sys.exit(args.run(args))


if __name__ == "__main__":
    main()
