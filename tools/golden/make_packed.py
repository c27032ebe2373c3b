#!/usr/bin/env python3
"""Several documents in a row that do not attend to each other, as transformers computes them.

Writes tests/golden/packed/{gpt2,llama_tied,llama_untied}/case.safetensors: a batch of such rows
(input_ids, labels, position_ids [B, T], sequences [B, n]: where a row's documents begin), and
loss, logits and every gradient, computed in float64 (norms and rotary angles of Llama in float32,
as transformers has them). The Llamas are those of tests/golden/llama; the GPT-2 is written too.

The rows are DOCUMENTS packed by best-fit decreasing into blocks of LENGTH. The script asserts that
transformers gives the same results for three inputs: rows with a block-diagonal mask [B, 1, T, T];
rows with only position ids, from whose restarts transformers makes that mask; and each document by
itself, without packing. Rows without padding are DataCollatorWithFlattening's.

    make_packed.py [--out DIR]
"""
import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make_decoders import make_model, value_of
from safetensors.torch import save_file
from transformers import DataCollatorWithFlattening, GPT2Config, GPT2LMHeadModel

LENGTH, VOCABULARY, PADDING = 16, 37, 0
DOCUMENTS = (5, 7, 16, 3, 8, 4)  # numbers of tokens
ROWS = ((0, 3, 5), (1, 4), (2,))  # the documents of each row; the padding after them is treated as one more
GPT2 = dict(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=12, n_head=3, n_layer=2,
            bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, attn_implementation="eager")


def make_gpt2():
    model = GPT2LMHeadModel(GPT2Config(**GPT2)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1 if ".ln_" in name and name.endswith("weight") else 0
            parameter.copy_(value_of(name, tuple(parameter.shape)) + centre)
    return model


def make_batch():
    rng = np.random.default_rng(11)
    documents = [rng.integers(3, VOCABULARY, length) for length in DOCUMENTS]
    shape = (len(ROWS), LENGTH)
    ids, positions = np.full(shape, PADDING), np.zeros(shape, dtype=np.int64)
    labels, owner = np.full(shape, -100), np.full(shape, len(DOCUMENTS))
    begins = []
    for row, members in enumerate(ROWS):
        at, begins_of_row = 0, []
        for member in members:
            document = documents[member]
            own = slice(at, at + len(document))
            begins_of_row.append(at)
            ids[row, own] = document
            labels[row, own] = document
            labels[row, at] = -100  # not a target
            owner[row, own] = member
            positions[row, own] = np.arange(len(document))
            at += len(document)
        if at < LENGTH:
            begins_of_row.append(at)
            positions[row, at:] = np.arange(LENGTH - at)
        begins.append(begins_of_row)
    most = max(len(row) for row in begins)
    sequences = np.array([row + [LENGTH] * (most - len(row)) for row in begins])
    return [torch.tensor(t) for t in (ids, labels, positions, sequences, owner)]


def loss_of(logits, labels):
    """transformers' ForCausalLMLoss as a sum, in the logits' precision."""
    targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), reduction="sum")


def gradients_of(model):
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return gradients


def assert_equal(what, a, b):
    apart = float((a - b).detach().norm() / b.detach().norm())
    assert apart < 1e-6, f"{what}: {apart} apart"  # float32 errors of norms and angles


def check_other_ways(model, batch, logits, loss, gradients):
    ids, labels, positions, _, owner = batch
    packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    assert_equal("position ids alone", packed, logits)
    seeing = model(input_ids=ids, use_cache=False).logits
    assert (seeing - logits).norm() > 0.1 * logits.norm(), "packing changes nothing"
    total = 0
    for member in range(len(DOCUMENTS)):
        own = owner == member
        alone = model(input_ids=ids[own][None], use_cache=False).logits
        assert_equal(f"document {member} alone", alone[0], logits[own])
        total = total + loss_of(alone, labels[own][None])
    total = total / (labels != -100).sum()
    assert_equal("the documents' losses", total, loss)
    total.backward()
    for name, gradient in gradients_of(model).items():
        if gradients[name].norm() > 1e-9:  # a key's bias has gradient 0
            assert_equal(name, gradient, gradients[name])


def check_collator(batch):
    ids, labels, positions, _, owner = batch
    for row, members in enumerate(ROWS):
        if (owner[row] == len(DOCUMENTS)).any():
            continue
        flat = DataCollatorWithFlattening()([{"input_ids": ids[row][owner[row] == member].tolist()}
                                             for member in members])
        for name, own in (("input_ids", ids), ("labels", labels), ("position_ids", positions)):
            assert (flat[name][0] == own[row]).all(), (row, name)


def make_case(name, model, out):
    batch = make_batch()
    ids, labels, positions, sequences, owner = batch
    check_collator(batch)
    model.double()
    sees = (owner[:, :, None] == owner[:, None, :]) & torch.ones(LENGTH, LENGTH).tril().bool()
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, float("-inf"))
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask[:, None],
                   use_cache=False).logits
    loss = loss_of(logits, labels) / (labels != -100).sum()
    loss.backward()
    gradients = gradients_of(model)
    check_other_ways(model, batch, logits, loss, gradients)
    tensors = dict(input_ids=ids, labels=labels, position_ids=positions, sequences=sequences,
                   loss=loss.reshape(1), logits=logits)
    tensors.update({f"grad.{n}": gradient for n, gradient in gradients.items()})
    (out / name).mkdir(parents=True, exist_ok=True)
    save_file({n: (t.detach().float() if t.is_floating_point() else t.int()).contiguous()
               for n, t in tensors.items()}, out / name / "case.safetensors")
    print(name, sum(path.stat().st_size for path in (out / name).iterdir()), "bytes, loss",
          loss.item())


def main():
    default = Path(__file__).resolve().parents[2] / "tests" / "golden" / "packed"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation
    torch.use_deterministic_algorithms(True)
    gpt2 = make_gpt2()
    gpt2.save_pretrained(args.out / "gpt2")
    (args.out / "gpt2" / "generation_config.json").unlink(missing_ok=True)
    make_case("gpt2", gpt2, args.out)
    for name in ("tied", "untied"):
        make_case(f"llama_{name}", make_model(f"llama/{name}"), args.out)


if __name__ == "__main__":
    main()
