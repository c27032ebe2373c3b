#!/usr/bin/env python3
"""Writes tests/golden/llama/CASE/: a tiny random LlamaForCausalLM, as transformers saves it, and
case.safetensors: a padded batch, loss, logits and every gradient, computed in float64 (norms and
rotary angles in float32, as transformers has them). Other heads: make_decoder_heads.py.

`check DIRECTORY CASE` opens a directory that Shoal wrote and compares its logits on the case's
batch with the golden ones.

    make_llama.py [--out DIR]
    make_llama.py check DIRECTORY CASE
"""
import argparse
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTHS, VOCABULARY = 3, (11, 8, 3), 37
TINY = dict(vocab_size=VOCABULARY, hidden_size=12, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            bos_token_id=1, eos_token_id=2, attn_implementation="eager")
CASES = {
    "tied": dict(TINY, head_dim=4, tie_word_embeddings=True, pad_token_id=0,
                 rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # The heads' total width differs from the model's. There is one key head, biases, and stretched positions: of three
    # frequencies one stays, one is blended, one is divided.
    "untied": dict(TINY, num_hidden_layers=1, num_key_value_heads=1, head_dim=6,
                   attention_bias=True, mlp_bias=True,
                   rope_parameters=dict(rope_type="llama3", rope_theta=50.0, factor=4.0,
                                        low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=32)),
}


def value_of(name, shape):
    """The values depend only on the name; exact in float32."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * 0.3
    return torch.tensor((values + (1 if "norm" in name else 0)).astype(np.float32))


def make_model(case):
    model = LlamaForCausalLM(LlamaConfig(**CASES[case])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value_of(name, tuple(parameter.shape)))
    return model


def make_batch():
    rng = np.random.default_rng(7)
    shape = (BATCH, max(LENGTHS))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in LENGTHS])
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), 0)
    labels = np.where((mask == 1) & (rng.random(shape) < 0.8), ids, -100)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)


def make_case(case, out):
    model = make_model(case)
    model.save_pretrained(out / case)
    (out / case / "generation_config.json").unlink(missing_ok=True)
    ids, mask, labels = make_batch()
    model.double()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    # This is transformers' ForCausalLMLoss in float64.
    targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
    loss.backward()
    tensors = dict(input_ids=ids, attention_mask=mask, labels=labels, loss=loss.reshape(1),
                   logits=logits)
    tensors.update({f"grad.{n}": p.grad for n, p in model.named_parameters()})
    save_file({name: (t.detach().float() if t.is_floating_point() else t).contiguous()
               for name, t in tensors.items()}, out / case / "case.safetensors")
    print(case, sum(path.stat().st_size for path in (out / case).iterdir()), "bytes, loss",
          loss.item())


def check(directory, case):
    model, info = LlamaForCausalLM.from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" / "llama" / case /
                       "case.safetensors")
    with torch.no_grad():
        logits = model.eval()(input_ids=golden["input_ids"],
                              attention_mask=golden["attention_mask"]).logits
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"llama {case}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "llama"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("check", nargs="*", metavar="check DIRECTORY CASE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.check:
        check(*args.check[1:])
        return
    for case in CASES:
        make_case(case, args.out)


if __name__ == "__main__":
    main()
