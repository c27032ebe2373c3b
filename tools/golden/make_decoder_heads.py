#!/usr/bin/env python3
"""Writes tests/golden/decoders/CASE/: a tiny random decoder with a head for texts (classes,
numbers), tokens or answers, as transformers saves it, and case.safetensors: a padded batch, loss,
logits and every gradient, computed in float64 (RMS norms and angles in float32, as transformers
has them). reports.json: transformers' reports on a language model's directory opened for every
head, and the directories' names.

`check DIRECTORY CASE` opens a directory that Shoal wrote and compares its logits on the case's
batch with the golden ones.

    make_decoder_heads.py [--out DIR]
    make_decoder_heads.py check DIRECTORY CASE
"""
import argparse
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

BATCH, LENGTHS, VOCABULARY = 3, (11, 8, 3), 37
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=12, intermediate_size=20, num_hidden_layers=1,
             num_attention_heads=4, num_key_value_heads=2, head_dim=4, max_position_embeddings=32,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
FAMILIES = {
    "gpt2": ("GPT2", dict(vocab_size=VOCABULARY, n_positions=32, n_embd=12, n_layer=1, n_head=3,
                          n_inner=20, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                          bos_token_id=1, eos_token_id=2, pad_token_id=2)),
    "llama": ("Llama", LLAMA),
    "mistral": ("Mistral", dict(LLAMA, sliding_window=None)),
    "qwen2": ("Qwen2", dict(LLAMA, hidden_size=16)),
    "qwen3": ("Qwen3", LLAMA),
    # Its hidden_dropout is not the token classifier's.
    "gpt_neox": ("GPTNeoX", dict(vocab_size=VOCABULARY, hidden_size=12, intermediate_size=20, num_hidden_layers=1,
                                 num_attention_heads=3, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
                                 pad_token_id=0, hidden_dropout=0.4,
                                 rope_parameters=dict(rope_type="default", rope_theta=100.0,
                                                      partial_rotary_factor=0.5))),
    "gemma": ("Gemma", LLAMA),
    "gemma2": ("Gemma2", dict(LLAMA, sliding_window=20, query_pre_attn_scalar=10, attn_logit_softcapping=0.5)),
    "gemma3_text": ("Gemma3Text", dict(LLAMA, sliding_window=20, query_pre_attn_scalar=10)),
}
NAMES = dict(id2label={0: "calm", 1: "glad", 2: "sad"}, label2id={"calm": 0, "glad": 1, "sad": 2})
HEADS = {
    "classes": ("ForSequenceClassification", dict(NAMES, problem_type="single_label_classification")),
    "numbers": ("ForSequenceClassification", dict(num_labels=1, problem_type="regression")),
    "tokens": ("ForTokenClassification", dict(NAMES, classifier_dropout=0.25)),
    "answers": ("ForQuestionAnswering", {}),
}
LANGUAGE_MODELS = {family: prefix + ("LMHeadModel" if family == "gpt2" else "ForCausalLM")
                   for family, (prefix, _) in FAMILIES.items()} | {"gemma3_text": "Gemma3ForCausalLM"}
ABSENT = ["gemma_answers", "gemma2_answers", "gemma3_text_tokens", "gemma3_text_answers"]  # transformers has no such classes
CASES = [case for family in FAMILIES for head in HEADS if (case := f"{family}_{head}") not in ABSENT]


def class_of(case):
    family, head = case.rsplit("_", 1)
    return getattr(transformers, FAMILIES[family][0] + HEADS[head][0])


def config_of(family, **fields):
    prefix, tiny = FAMILIES[family]
    return getattr(transformers, f"{prefix}Config")(**tiny, **fields, attn_implementation="eager")


def value_of(name, shape, adds_one):
    """The values depend only on the name; exact in float32. adds_one: norms use 1 + weight."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * 0.3
    is_norm = ("norm" in name or ".ln_" in name) and name.endswith("weight") and not adds_one
    return torch.tensor((values + (1 if is_norm else 0)).astype(np.float32))


def with_values(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value_of(name, tuple(parameter.shape), model.config.model_type.startswith("gemma")))
    return model.eval()


def make_batch(case):
    """Rows padded on the right with the padding's id."""
    family, head = case.rsplit("_", 1)
    rng = np.random.default_rng(7)
    shape = (BATCH, max(LENGTHS))
    mask = np.array([[int(t < length) for t in range(shape[1])] for length in LENGTHS])
    ids = np.where(mask, rng.integers(3, VOCABULARY, shape), FAMILIES[family][1]["pad_token_id"])
    batch = dict(input_ids=ids, attention_mask=mask)
    if head == "classes":
        batch["labels"] = np.array([2, 0, 1])
    elif head == "numbers":
        batch["labels"] = np.array([0.5, -1.25, 2.0])
    elif head == "tokens":
        batch["labels"] = np.where((mask == 1) & (rng.random(shape) < 0.8),
                                   rng.integers(0, 3, shape), -100)
    else:
        batch["start_positions"], batch["end_positions"] = np.array([4, 0, 1]), np.array([9, 3, 1])
    return {name: torch.tensor(values) for name, values in batch.items()}


def logits_of(output):
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits


def loss_of(logits, batch):
    """Computed in float64, because transformers' loss is not in float64 for every head."""
    if "start_positions" in batch:
        return (F.cross_entropy(logits[..., 0], batch["start_positions"]) +
                F.cross_entropy(logits[..., 1], batch["end_positions"])) / 2
    if batch["labels"].is_floating_point():
        return F.mse_loss(logits.squeeze(-1), batch["labels"].double())
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["labels"].reshape(-1))


def make_case(case, out):
    family, head = case.rsplit("_", 1)
    model = with_values(class_of(case)(config_of(family, **HEADS[head][1])))
    model.save_pretrained(out / case)
    (out / case / "generation_config.json").unlink(missing_ok=True)
    batch = make_batch(case)
    model.double()
    output = model(**batch, **({} if head == "answers" else {"use_cache": False}))
    logits = logits_of(output)
    loss = loss_of(logits, batch)
    assert abs(output.loss.item() - loss.item()) < 1e-6, (output.loss, loss)
    loss.backward()
    tensors = dict(batch, loss=loss.reshape(1), logits=logits)
    tensors.update({f"grad.{n}": p.grad for n, p in model.named_parameters()})
    save_file({name: (t.detach().float() if t.is_floating_point() else t).contiguous()
               for name, t in tensors.items()}, out / case / "case.safetensors")
    print(case, sum(path.stat().st_size for path in (out / case).iterdir()), "bytes, loss",
          loss.item())


def make_reports(out):
    """Opens a language model's directory, with its head tied or not, for each head."""
    reports = {}
    for family, name in LANGUAGE_MODELS.items():
        for tied in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                language_model = getattr(transformers, name)
                with_values(language_model(config_of(family, tie_word_embeddings=tied))
                            ).save_pretrained(folder)
                opened = dict(names=sorted(load_file(Path(folder) / "model.safetensors")))
                for head in HEADS:
                    if f"{family}_{head}" in ABSENT:
                        continue
                    _, info = class_of(f"{family}_{head}").from_pretrained(
                        folder, output_loading_info=True)
                    opened[head] = dict(missing=sorted(info["missing_keys"]),
                                        unexpected=sorted(info["unexpected_keys"]))
                reports[f"{family}_{'tied' if tied else 'untied'}"] = opened
    (out / "reports.json").write_text(json.dumps(reports, indent=1) + "\n")


def check(directory, case):
    model, info = class_of(case).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    golden = load_file(Path(__file__).resolve().parents[2] / "tests" / "golden" / "decoders" /
                       case / "case.safetensors")
    with torch.no_grad():
        logits = logits_of(model.eval()(input_ids=golden["input_ids"],
                                        attention_mask=golden["attention_mask"]))
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{case}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "decoders"
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
    args.out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        make_case(case, args.out)
    make_reports(args.out)


if __name__ == "__main__":
    main()
