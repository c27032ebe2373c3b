#!/usr/bin/env python3
"""Writes tests/golden/FAMILY/CASE/: a tiny random LlamaForCausalLM, Qwen3ForCausalLM ..., as
transformers saves it, and case.safetensors: a padded batch, loss, logits and every gradient,
computed in float64 (norms and rotary angles in float32, as transformers has them). Other heads:
make_decoder_heads.py. rope.json: frequencies and scale of every type of rotary positions.
generated.json: what each model generates.

`check DIRECTORY CASE` opens a directory that Shoal wrote and compares its logits on the case's
batch with the golden ones.

    make_decoders.py [--out DIR] [CASE ...]
    make_decoders.py check DIRECTORY CASE
"""
import argparse
import json
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

BATCH, LENGTHS, VOCABULARY = 3, (11, 8, 3), 37
# Padding after longer texts would see no key; transformers then averages all values, Shoal gives 0.
WINDOW_LENGTHS = (11, 10, 9)
TINY = dict(vocab_size=VOCABULARY, hidden_size=12, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            bos_token_id=1, eos_token_id=2, attn_implementation="eager")
NEOX = dict(vocab_size=VOCABULARY, intermediate_size=20, num_hidden_layers=2, max_position_embeddings=32,
            bos_token_id=1, eos_token_id=2, attn_implementation="eager")
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gpt_neox": "GPTNeoX",
           "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text"}
LANGUAGE_MODELS = {"gemma3_text": "Gemma3ForCausalLM"}
# transformers renames these parameters as it saves and loads directories.
SAVED_NAMES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
CASES = {
    "llama/tied": dict(TINY, head_dim=4, tie_word_embeddings=True, pad_token_id=0,
                 rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # The heads' total width differs from the model's. There is one key head, biases, and stretched positions: of three
    # frequencies one stays, one is blended, one is divided.
    "llama/untied": dict(TINY, num_hidden_layers=1, num_key_value_heads=1, head_dim=6,
                   attention_bias=True, mlp_bias=True,
                   rope_parameters=dict(rope_type="llama3", rope_theta=50.0, factor=4.0,
                                        low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=32)),
    "mistral/windows": dict(TINY, head_dim=4, sliding_window=4, pad_token_id=0,
                            rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=2.0)),
    # Dynamic positions are plain ones within max_position_embeddings.
    "mistral/plain": dict(TINY, head_dim=6, sliding_window=None, tie_word_embeddings=True,
                          rope_parameters=dict(rope_type="dynamic", rope_theta=50.0, factor=2.0)),
    "qwen2/tied": dict(TINY, tie_word_embeddings=True, pad_token_id=0, hidden_size=24,
                       rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # The first of three layers has no window. Attention is scaled.
    "qwen2/windows": dict(TINY, num_hidden_layers=3, hidden_size=16, use_sliding_window=True, sliding_window=5,
                          max_window_layers=1,
                          rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=4.0,
                                               original_max_position_embeddings=8)),
    "qwen3/tied": dict(TINY, head_dim=6, tie_word_embeddings=True, pad_token_id=0,
                       rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # All calls have more positions than the pretrained ones.
    "qwen3/windows": dict(TINY, head_dim=4, attention_bias=True, num_key_value_heads=1,
                          use_sliding_window=True, sliding_window=3,
                          layer_types=["sliding_attention", "full_attention"],
                          rope_parameters=dict(rope_type="longrope", rope_theta=50.0, attention_factor=1.1,
                                               original_max_position_embeddings=2,
                                               short_factor=[1.0, 1.5], long_factor=[1.25, 4.0])),
    "gpt_neox/parallel": dict(NEOX, hidden_size=24, num_attention_heads=3, pad_token_id=0,
                              rope_parameters=dict(rope_type="default", rope_theta=100.0,
                                                   partial_rotary_factor=0.5)),
    # 6.5 of 10 channels would turn, so 6 do.
    "gpt_neox/sequential": dict(NEOX, hidden_size=20, num_attention_heads=2, use_parallel_residual=False,
                                attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new",
                                rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=2.0,
                                                     partial_rotary_factor=0.65)),
    # One key head for all, and heads wider than the model divided by them, as in Gemma 2B.
    "gemma/tied": dict(TINY, num_key_value_heads=1, head_dim=6, pad_token_id=0,
                       rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    "gemma/untied": dict(TINY, num_hidden_layers=1, head_dim=4, attention_bias=True, tie_word_embeddings=False,
                         pad_token_id=None,
                         rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=2.0)),
    # The first and the third layer have a window. The caps are near the scores and the logits.
    "gemma2/windows": dict(TINY, num_hidden_layers=3, head_dim=6, pad_token_id=0, sliding_window=4,
                           query_pre_attn_scalar=10, attn_logit_softcapping=0.5, final_logit_softcapping=1.5,
                           rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    "gemma2/untied": dict(TINY, head_dim=4, attention_bias=True, tie_word_embeddings=False, pad_token_id=None,
                          query_pre_attn_scalar=6, attn_logit_softcapping=1.0, final_logit_softcapping=None,
                          layer_types=["full_attention", "full_attention"],
                          rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=2.0)),
    # Two layers with a window and a small base, then one without.
    "gemma3_text/windows": dict(TINY, num_hidden_layers=3, head_dim=6, pad_token_id=0, sliding_window=4,
                                query_pre_attn_scalar=10,
                                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                rope_parameters=dict(
                                    sliding_attention=dict(rope_type="default", rope_theta=20.0),
                                    full_attention=dict(rope_type="linear", rope_theta=500.0, factor=4.0))),
}
ROPE = [  # rope_parameters of a Llama with heads of 16 channels and 64 positions
    dict(rope_type="default"),
    dict(rope_type="linear", factor=4.0),
    dict(rope_type="dynamic", factor=4.0),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False, beta_fast=8.0,
         beta_slow=2.0, attention_factor=1.5),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.4),
    dict(rope_type="longrope", original_max_position_embeddings=16, short_factor=[1.0 + i / 8 for i in range(8)],
         long_factor=[2.0 + i for i in range(8)]),
    dict(rope_type="longrope", factor=2.0, attention_factor=1.25, original_max_position_embeddings=16,
         short_factor=[1.0] * 8, long_factor=[3.0] * 8),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_max_position_embeddings=32),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
    dict(rope_type="proportional", partial_rotary_factor=0.5, factor=2.0),
]


def value_of(name, shape, norm=1):
    """The values depend only on the name; exact in float32. `norm`: the mean of a norm's weights."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * 0.3
    return torch.tensor((values + (norm if "norm" in name else 0)).astype(np.float32))


def make_model(case):
    prefix = CLASSES[case.split("/")[0]]
    config = getattr(transformers, f"{prefix}Config")(**CASES[case])
    model = getattr(transformers, LANGUAGE_MODELS.get(case.split("/")[0], f"{prefix}ForCausalLM"))(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value_of(name, tuple(parameter.shape), 0 if case.startswith("gemma") else 1))
    return model


def make_batch(case):
    rng = np.random.default_rng(7)
    lengths = WINDOW_LENGTHS if case.endswith("windows") else LENGTHS
    shape = (BATCH, max(lengths))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in lengths])
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), 0)
    labels = np.where((mask == 1) & (rng.random(shape) < 0.8), ids, -100)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)


def make_case(case, out):
    model = make_model(case)
    model.save_pretrained(out / case)
    (out / case / "generation_config.json").unlink(missing_ok=True)
    ids, mask, labels = make_batch(case)
    model.double()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    # This is transformers' ForCausalLMLoss in float64.
    targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
    loss.backward()
    tensors = dict(input_ids=ids, attention_mask=mask, labels=labels, loss=loss.reshape(1),
                   logits=logits)
    saved = SAVED_NAMES.get(case.split("/")[0], {})
    tensors.update({f"grad.{saved.get(n, n)}": p.grad for n, p in model.named_parameters()})
    save_file({name: (t.detach().float() if t.is_floating_point() else t).contiguous()
               for name, t in tensors.items()}, out / case / "case.safetensors")
    print(case, sum(path.stat().st_size for path in (out / case).iterdir()), "bytes, loss",
          loss.item())


def make_rope(out):
    rows = []
    for parameters in ROPE:
        config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=64,
                                          rope_parameters=dict(parameters, rope_theta=500.0))
        read = dict(hidden_size=32, num_attention_heads=2, max_position_embeddings=64,
                    rope_parameters=dict(parameters, rope_theta=500.0), model_type="llama")
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        row = dict(config=read, frequencies=rotary.inv_freq.tolist(), scale=rotary.attention_scaling)
        if parameters["rope_type"] == "longrope":
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=17)
            row["long_frequencies"] = frequencies.tolist()
        rows.append(row)
    (out / "rope.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def generated(case):
    """What the model continues ids 5 to 11 with, greedily, whatever its end-of-text. All windows are shorter."""
    model = make_model(case).double()
    model.generation_config = transformers.GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0)
    return model.generate(torch.arange(5, 12)[None])[0, 7:].tolist()


def check(directory, case):
    prefix = CLASSES[case.split("/")[0]]
    model, info = getattr(transformers, LANGUAGE_MODELS.get(case.split("/")[0], f"{prefix}ForCausalLM")).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" / case / "case.safetensors")
    with torch.no_grad():
        logits = model.eval()(input_ids=golden["input_ids"],
                              attention_mask=golden["attention_mask"]).logits
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{case}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("cases", nargs="*", metavar="CASE, or check DIRECTORY CASE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.cases[:1] == ["check"]:
        check(*args.cases[1:])
        return
    make_rope(args.out)
    (args.out / "generated.json").write_text(json.dumps({case: generated(case) for case in CASES}, indent=1) + "\n")
    for case in args.cases or CASES:
        make_case(case, args.out)


if __name__ == "__main__":
    main()
