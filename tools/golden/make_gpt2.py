#!/usr/bin/env python3
"""Golden files of tiny GPT-2 models: loss, logits, every gradient, ten AdamW steps.

Writes, for each case, OUT/NAME/ with
  config.json, model.safetensors   as transformers saves them
  case_f32.safetensors             the reference, computed in float64 and stored as f32
  case_bf16.safetensors            the same in bf16 (see run_bf16)
  case.json                        hyperparameters, losses, and how far float32 is from float64
README.md lists the tensors.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

# valid: the number of targets that are not -100 after the shift; None ignores about one in six.
CASES = {
    "tiny": dict(batch=2, length=24, valid=None, max_grad_norm=1.0,
                 config=dict(n_layer=2, n_head=2, n_embd=32, vocab_size=96, n_positions=32)),
    "odd": dict(batch=3, length=31, valid=None, max_grad_norm=1.0,
                config=dict(n_layer=3, n_head=3, n_embd=48, n_inner=40, vocab_size=131,
                            n_positions=33)),
    # 63 tokens: the head's weight gradient has the shape m257 n17 k63, at which the bf16 AMX matmul of oneDNN 2.6.3
    # crashes (K = 31 mod 32). There are 31 valid targets, for implementations that gather those. Some steps clip.
    "k31": dict(batch=3, length=21, valid=31, max_grad_norm=3.0,
                config=dict(n_layer=2, n_head=1, n_embd=17, vocab_size=257, n_positions=21)),
}
STEPS = 10
OPTIMIZER = dict(learning_rates=[2e-3 * (1 - step / STEPS) for step in range(STEPS)],
                 betas=[0.9, 0.999], epsilon=1e-6, weight_decay=0.01)


def set_weights(model, rng):
    """Values that bf16 represents exactly, so that both precisions start from one model. Biases and LayerNorms are
    far from 0 and 1, so that each gradient matters."""
    for name, parameter in model.named_parameters():
        noise = rng.standard_normal(tuple(parameter.shape))
        if ".ln_" in name:
            value = (1.0 if name.endswith("weight") else 0.0) + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        elif ".wte" in name or ".wpe" in name:
            value = 0.3 * noise
        else:  # Conv1D: [in, out]
            value = noise / np.sqrt(parameter.shape[0])
        parameter.data.copy_(torch.from_numpy(value).to(torch.bfloat16))


def make_batches(case, rng):
    """input_ids and labels, int64 [STEPS, batch, length]; step 0 is also the single-step case."""
    shape = (STEPS, case["batch"], case["length"])
    # Zipf-like ids: some tokens repeat, so that embedding gradients accumulate.
    vocab = case["config"]["vocab_size"]
    ids = np.minimum((vocab * rng.random(shape) ** 2).astype(np.int64), vocab - 1)
    labels = ids.copy()
    for step in range(STEPS):
        targets = labels[step, :, 1:]  # column 0 is not a target
        count = targets.size
        ignored = count // 6 if case["valid"] is None else count - case["valid"]
        flat = rng.choice(count, ignored, replace=False)
        targets[np.unravel_index(flat, targets.shape)] = -100
    return torch.from_numpy(ids), torch.from_numpy(labels)


def causal_loss(logits, labels):
    """transformers' ForCausalLMLoss (mean over the valid targets), but in float64 if the logits are. bf16 logits are
    widened to float32 as in transformers."""
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def decays(name):
    """Groups parameters like Trainer: no weight decay for biases and LayerNorms."""
    return not (name.endswith("bias") or ".ln_" in name)


class Run:
    """Runs one precision: `dtype` computes; optimizer state and masters are in `master_dtype`."""

    def __init__(self, model, max_grad_norm, dtype, master_dtype):
        self.max_grad_norm = max_grad_norm
        self.model = GPT2LMHeadModel(model.config).eval()
        self.model.load_state_dict(model.state_dict())
        self.model.to(dtype)
        self.masters = {name: p.detach().to(master_dtype).clone().requires_grad_()
                        for name, p in self.model.named_parameters()}
        groups = [dict(params=[p for n, p in self.masters.items() if decays(n) == decay],
                       weight_decay=OPTIMIZER["weight_decay"] if decay else 0.0)
                  for decay in (True, False)]
        self.optimizer = torch.optim.AdamW(groups, betas=tuple(OPTIMIZER["betas"]),
                                           eps=OPTIMIZER["epsilon"], foreach=False)

    def forward_backward(self, ids, labels):
        self.model.zero_grad()
        logits = self.model(input_ids=ids, use_cache=False).logits
        loss = causal_loss(logits, labels)
        loss.backward()
        return logits.detach(), loss.item()

    def gradients(self):
        return {name: p.grad.detach().clone() for name, p in self.model.named_parameters()}

    def step(self, learning_rate):
        """Clips and updates; returns the global gradient norm before clipping."""
        for name, parameter in self.model.named_parameters():
            self.masters[name].grad = parameter.grad.to(self.masters[name].dtype)
        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.masters[name])
        return norm.item()


def run(model, max_grad_norm, ids, labels, dtype, master_dtype):
    trainer = Run(model, max_grad_norm, dtype, master_dtype)
    result = dict(losses=[], grad_norms=[])
    for step in range(STEPS):
        logits, loss = trainer.forward_backward(ids[step], labels[step])
        if step == 0:
            result.update(logits=logits, gradients=trainer.gradients())
        result["losses"].append(loss)
        result["grad_norms"].append(trainer.step(OPTIMIZER["learning_rates"][step]))
    result["final"] = {name: p.detach() for name, p in trainer.masters.items()}
    return result


def run_bf16(model, max_grad_norm, ids, labels):
    """Weights, activations, logits and the gradients that backward writes are bf16; softmax, the
    loss, the masters, clipping, AdamW and its moments are f32; after each step the bf16 weights
    are the masters rounded to nearest even."""
    return run(model, max_grad_norm, ids, labels, torch.bfloat16, torch.float32)


def tensors_of(result, ids, labels, dtype):
    out = {"input_ids": ids[0], "labels": labels[0], "steps.input_ids": ids,
           "steps.labels": labels, "logits": result["logits"].to(dtype),
           "loss": torch.tensor(result["losses"][0]),
           "steps.loss": torch.tensor(result["losses"]),
           "steps.grad_norm": torch.tensor(result["grad_norms"])}
    out.update({f"grad.{n}": t.to(dtype) for n, t in result["gradients"].items()})
    out.update({f"final.{n}": t.to(torch.float32) for n, t in result["final"].items()})
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}


def global_norm(tensors):
    return float(torch.sqrt(sum(t.double().square().sum() for t in tensors.values())))


def deviation(result, reference, initial, gradient_floor):
    """The distance of `result` from the float64 reference, as the tests measure it: losses and norms relative, each
    gradient relative to its own norm or `gradient_floor` of the global norm, the ten steps' update relative to its
    norm."""
    floor = global_norm(reference["gradients"]) * gradient_floor
    updates = {n: reference["final"][n].double() - initial[n].double() for n in initial}
    return dict(
        gradient_floor=gradient_floor,
        loss=max(abs(a / b - 1) for a, b in zip(result["losses"], reference["losses"])),
        grad_norm=max(abs(a / b - 1) for a, b in
                      zip(result["grad_norms"], reference["grad_norms"])),
        gradient=max(float((g.double() - reference["gradients"][n]).norm() /
                           max(float(reference["gradients"][n].norm()), floor))
                     for n, g in result["gradients"].items()),
        final_update=global_norm({n: result["final"][n].double() - reference["final"][n].double()
                                  for n in updates}) / global_norm(updates))


def make_case(name, case, seed, out):
    rng = np.random.default_rng(seed)
    config = GPT2Config(**case["config"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    set_weights(model, rng)
    ids, labels = make_batches(case, rng)
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}

    arguments = (model, case["max_grad_norm"], ids, labels)
    reference = run(*arguments, torch.float64, torch.float64)
    bf16 = run_bf16(*arguments)
    float32 = run(*arguments, torch.float32, torch.float32)

    folder = out / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(tensors_of(reference, ids, labels, torch.float32), folder / "case_f32.safetensors")
    save_file(tensors_of(bf16, ids, labels, torch.bfloat16), folder / "case_bf16.safetensors")
    summary = dict(
        name=name, seed=seed, batch=case["batch"], length=case["length"], steps=STEPS,
        valid_targets=[int((labels[s, :, 1:] != -100).sum()) for s in range(STEPS)],
        optimizer=dict(name="adamw", no_weight_decay=[n for n in initial if not decays(n)],
                       max_grad_norm=case["max_grad_norm"], **OPTIMIZER),
        f32=dict(losses=reference["losses"], grad_norms=reference["grad_norms"]),
        bf16=dict(losses=bf16["losses"], grad_norms=bf16["grad_norms"]),
        # The error allowed to a correct implementation of each precision: PyTorch's own distance.
        deviation_from_float64=dict(f32=deviation(float32, reference, initial, 1e-3),
                                    bf16=deviation(bf16, reference, initial, 0.05)))
    (folder / "case.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(name, json.dumps(summary["deviation_from_float64"]))


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "gpt2"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--case", choices=list(CASES), action="append", help="default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    for name in args.case or CASES:
        make_case(name, CASES[name], args.seed + list(CASES).index(name), args.out)


if __name__ == "__main__":
    main()
