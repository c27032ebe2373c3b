#!/usr/bin/env python3
"""Writes tests/golden/lora/CASE/: an adapter as PEFT saves it, of a golden model (BASES), and
case.safetensors: the batch, loss, logits and the gradients of everything that is trained, computed
by PEFT in float64.

`check DIRECTORY CASE` opens an adapter that Shoal wrote with PEFT and compares its logits on the
case's batch with the golden ones.

    make_lora.py [--out DIR]      (pip install peft)
    make_lora.py check DIRECTORY CASE
"""
import argparse
import json
import os
import zlib
from pathlib import Path

import numpy as np
import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
# name: base model, file of its batch, class, fields of the adapter
CASES = {
    "gpt2": ("gpt2/tiny", "case_f32", "GPT2LMHeadModel",
             dict(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")),
    "llama": ("llama/tied", "case", "LlamaForCausalLM",
              dict(r=3, lora_alpha=6, use_rslora=True, task_type="CAUSAL_LM")),
    "bert": ("encoders/bert", "sequence_classification", "BertForSequenceClassification",
             dict(r=2, lora_alpha=5, target_modules=["query", "value", "dense"],
                  task_type="SEQ_CLS")),
    "t5": ("encoder_decoders/t5", "case", "T5ForConditionalGeneration",
           dict(r=4, lora_alpha=2, target_modules=["q", "v", "wo"], task_type="SEQ_2_SEQ_LM")),
}


def base_of(case):
    directory, _, name, _ = CASES[case]
    return getattr(transformers, name).from_pretrained(
        GOLDEN / directory, dtype=torch.float32, attn_implementation="eager").eval()


def value_of(name, shape):
    """The values depend only on the name; exact in float32."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * 0.2
    return torch.tensor(values.astype(np.float32))


def batch_of(case):
    directory, file, _, _ = CASES[case]
    tensors = load_file(GOLDEN / directory / f"{file}.safetensors")
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    return {name: tensors[name] for name in names if name in tensors}


def loss_of(case, logits, labels):
    if case in ("gpt2", "llama"):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def plain(name):
    """Shoal's name of a parameter of a PeftModel."""
    return (name.removeprefix("base_model.model.").replace(".default", "")
            .replace("modules_to_save.", ""))


def make_case(case, out):
    model = peft.get_peft_model(base_of(case), peft.LoraConfig(**CASES[case][3]))
    # Relative to tests/golden; absolute paths do not belong in golden files.
    model.peft_config["default"].base_model_name_or_path = CASES[case][0]
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(value_of(plain(name), tuple(parameter.shape)))
    model.save_pretrained(out / case)
    (out / case / "README.md").unlink(missing_ok=True)
    config = out / case / "adapter_config.json"
    fields = json.loads(config.read_text())
    if isinstance(fields["target_modules"], list):
        fields["target_modules"].sort()  # PEFT has a set
    config.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    batch = batch_of(case)
    model.double().eval()
    logits = model(**batch).logits
    loss = loss_of(case, logits, batch["labels"])
    loss.backward()
    tensors = dict(batch, loss=loss.reshape(1), logits=logits)
    tensors.update({f"grad.{plain(n)}": p.grad for n, p in trained.items()})
    save_file({name: (t.detach().float() if t.is_floating_point() else t).contiguous()
               for name, t in tensors.items()}, out / case / "case.safetensors")
    print(case, len(trained), "trained tensors, loss", loss.item())


def check(directory, case):
    model = peft.PeftModel.from_pretrained(base_of(case), directory).double().eval()
    golden = load_file(GOLDEN / "lora" / case / "case.safetensors")
    with torch.no_grad():
        logits = model(**batch_of(case)).logits
    apart = float((logits - golden["logits"]).norm() / golden["logits"].norm())
    print(f"{case}: logits {apart:.1e} apart")
    assert apart < 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN / "lora")
    parser.add_argument("check", nargs="*", metavar="check DIRECTORY CASE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    if args.check:
        check(*args.check[1:])
        return
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    os.chdir(GOLDEN)  # where PEFT looks for the base models
    for case in CASES:
        make_case(case, args.out)


if __name__ == "__main__":
    main()
