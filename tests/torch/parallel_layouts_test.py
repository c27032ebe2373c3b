"""Hugging Face's own models over generated layouts equal one process: three steps' losses, gradients and norms.

A layout is (rdp, pp, tp) with a product of 8 at most, with or without shard_optimizer_state or
sharded_data_parallel_degree, activation checkpointing, offloading and prescaled_batch. The normal run takes a subset
in which each pair of values occurs, without products of 5 and 7; SHOAL_TEST_FULL=1 takes all.
"""
import functools
import importlib.util
import itertools
import math
import os
import unittest
from typing import NamedTuple

import ranks
import torch
import torch.distributed as dist
from torch import nn

from shoal.torch import parallel as smp
from shoal.torch.parallel import activations, records, sharding
from shoal.torch.parallel.optimizer import _whole_record
from shoal.torch.parallel.parts import is_part
from shoal.torch.parallel.state import state

FULL = os.environ.get("SHOAL_TEST_FULL") == "1"
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
FAMILIES = ("gpt2", "bert", "t5", "llama")
SCHEDULES, PLACEMENTS = ("interleaved", "simple", "1f1b"), ("cluster", "spread")
STEPS, CLIP, TOLERANCE = 3, 0.5, 1e-5
TIMEOUT = 600 if FULL else 120


class Layout(NamedTuple):
    family: str
    rdp: int
    pp: int
    tp: int
    sharding: str  # "none", of optimizer "state", or "parts" of parameters
    activations: str  # "kept", "checkpointed" or "offloaded"
    batch: str  # "own" of each tp rank; one of all, with activations that are whole ("speed") or split ("memory")
    schedule: str
    placement: str

    @property
    def ranks(self):
        return self.rdp * self.pp * self.tp

    @property
    def microbatches(self):
        return {"interleaved": 4, "simple": 2, "1f1b": 3}[self.schedule]

    @property
    def batches(self):
        """Distinct batches of a step."""
        return self.rdp * (self.tp if self.batch == "own" else 1)

    @property
    def model(self):
        """A sample for each microbatch of each distinct batch."""
        return sizes_of(self.family, self.tp, self.batches * self.microbatches)

    @property
    def parameters(self):
        return {"partitions": self.pp, "tensor_parallel_degree": self.tp, "ddp": True, "pipeline": self.schedule,
                "microbatches": self.microbatches, "placement_strategy": self.placement,
                "prescaled_batch": self.batch != "own", "optimize": "speed" if self.batch == "speed" else "memory",
                "offload_activations": self.activations == "offloaded", **self.sharding_parameters}

    @property
    def sharding_parameters(self):
        if self.sharding == "parts":  # over half of the replicas if possible; norms stay whole
            return {"sharded_data_parallel_degree": self.rdp // 2 if self.rdp in (4, 6, 8) else self.rdp,
                    "sdp_param_persistence_threshold": 64, "sdp_gradient_clipping": 0}
        return {"shard_optimizer_state": self.sharding == "state"}


def sizes_of(family, tp, samples):
    """The model and its data: (family, heads, Llama's heads of keys, samples, length). `tp` ranks can split them."""
    heads = tp if tp > 2 else 4
    return family, heads, 2 if tp <= 2 else heads, samples, -(-24 // tp) * tp


def degrees(most):
    """(rdp, pp, tp) of `most` ranks at most."""
    return [each for each in itertools.product(range(1, most + 1), repeat=3) if math.prod(each) <= most]


def shardings(rdp, pp):
    return ("none",) if rdp == 1 else ("none", "state") if pp > 1 else ("none", "state", "parts")


def all_layouts():
    """Each combination once. Schedule and placement take turns."""
    others = itertools.cycle(itertools.product(SCHEDULES, PLACEMENTS))
    return [Layout(family, rdp, pp, tp, sharding, activations, batch, *next(others))
            for rdp, pp, tp in degrees(8) for family in FAMILIES for sharding in shardings(rdp, pp)
            for activations in ("kept", "checkpointed", "offloaded")
            for batch in (("own", "speed", "memory") if tp > 1 else ("own",))]


def covering(layouts):
    """A subset in which each pair of fields' values occurs that occurs in `layouts`: greedily, the most new pairs."""
    numbers, pairs = {}, {}
    for layout in layouts:
        pairs[layout] = sum(1 << numbers.setdefault(pair, len(numbers))
                            for pair in itertools.combinations(enumerate(layout), 2))
    chosen, left = [], (1 << len(numbers)) - 1
    while left:
        best = max(pairs, key=lambda layout: ((pairs[layout] & left).bit_count(), -layout.ranks))
        left &= ~pairs.pop(best)
        chosen.append(best)
    return chosen


@functools.lru_cache
def _classes():
    import transformers as hf

    hf.logging.set_verbosity_error()
    return hf


def model_of(family, heads, key_heads, samples, length):
    hf, width = _classes(), 8 * heads
    common = dict(vocab_size=53, hidden_size=width, num_hidden_layers=2, num_attention_heads=heads,
                  intermediate_size=4 * width, max_position_embeddings=length, pad_token_id=1)
    cls, config = {
        "gpt2": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(
            vocab_size=53, n_embd=width, n_layer=2, n_head=heads, n_positions=length, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0)),
        "bert": lambda: (hf.BertForMaskedLM, hf.BertConfig(
            **common, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
        "t5": lambda: (hf.T5ForConditionalGeneration, hf.T5Config(
            vocab_size=53, d_model=width, d_kv=8, d_ff=4 * width, num_layers=2, num_heads=heads, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=1)),
        "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(
            **common, num_key_value_heads=key_heads, head_dim=8)),
    }[family]()
    config.use_cache = False
    torch.manual_seed(3)
    model = cls(config).double()
    with torch.no_grad():  # so that biases and norms are not 0 and 1
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def blocks_of(model, family):
    if family == "t5":
        return [model.encoder.block, model.decoder.block]
    return [{"gpt2": lambda: model.transformer.h, "bert": lambda: model.bert.encoder.layer,
             "llama": lambda: model.model.layers}[family]()]


def batch_of(samples, length, step):
    """All labels count, so that the batch's loss is the mean of its parts' losses."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, 53, (samples, length), generator=generator)
    mask = torch.ones_like(ids)
    if step > 0:  # none in the first step; then in every other sample, so only some ranks' batches have it
        mask[step % 2::2, -3:] = 0
    return ids, mask, torch.randint(3, 53, (samples, length), generator=generator)


def optimizer_of(model):
    # Without eps, updates would be the rounding errors of gradients that are 0.
    return torch.optim.AdamW(model.parameters(), lr=0.003, eps=1e-4)


@functools.lru_cache(maxsize=None)
def expected(*model, steps=STEPS):
    """One process: (loss, gradients by name, norm) of each step."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    samples, length = model[-2:]
    model = model_of(*model)
    optimizer = optimizer_of(model)
    found = []
    for step in range(steps):
        ids, mask, labels = batch_of(samples, length, step)
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        found.append((loss.item(), gradients, norm.item()))
    return found


def difference(pieces, whole):
    """The largest difference of the pieces' gradients from those of one process, relative to the whole gradient's norm
    or a thousandth of the largest one; with the parameter's name."""
    norms = {name: gradient.norm().item() for name, gradient in whole.items()}
    floor = 1e-3 * max(norms.values())
    worst = (0.0, "")
    for piece in pieces:
        record = _whole_record({"grad": whole[piece.name]}, list(whole[piece.name].shape))
        target = records.describe(piece.parameter, piece.start, piece.end)
        wanted = records.extract(piece.name, [record], target)["grad"].reshape(-1)
        found = piece.value.grad
        found = torch.full_like(wanted, float("nan")) if found is None else found.reshape(-1)
        relative = (found - wanted).norm().item() / max(norms[piece.name], floor)
        worst = max(worst, (relative if relative == relative else float("inf"), piece.name))
    return worst


def elements(optimizer):
    """Elements that this rank's optimizer updates. Each element of the model counts on one rank of the job."""
    mesh = state.mesh
    if isinstance(optimizer.shards, sharding.Shards):
        counted = optimizer._pieces
    else:
        counted = [piece for piece in optimizer._pieces
                   if mesh.rank("copies") == 0 and (is_part(piece.parameter) or mesh.rank("shard") == 0)]
    return sum(piece.end - piece.start for piece in counted
               if hasattr(piece.parameter, "tp_split") or mesh.rank("tp") == 0)


@smp.step
def train_step(model, ids, mask, labels):
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    model.backward(loss)
    return loss


def begin(layout, sizes):
    """A new run's model and optimizer."""
    smp.init(layout.parameters)
    model = model_of(*sizes)
    smp.set_tensor_parallelism(model)
    model = smp.DistributedModel(model)
    if layout.activations != "kept":
        for blocks in blocks_of(model.module, layout.family):
            smp.set_activation_checkpointing(blocks)
    return model, smp.DistributedOptimizer(optimizer_of(model))


def train(model, optimizer, sizes, step):
    """Computes the gradients of this rank's share of the batch. Returns the whole batch's loss."""
    mesh, (*_, samples, length) = state.mesh, sizes
    mine = slice(mesh.rank(mesh.batch_axis), None, mesh.batches)
    optimizer.zero_grad()
    loss = train_step(model, *(part[mine].contiguous() for part in batch_of(samples, length, step))).reduce_mean()
    dist.all_reduce(loss, group=mesh.group(mesh.batch_axis))
    return loss.item() / mesh.batches


def run_layout(layout):
    """The largest errors of losses, gradients and norms; the number of elements; whether activations are treated."""
    model, optimizer = begin(layout, layout.model)
    errors = [0.0, (0.0, ""), 0.0]
    for step, (expected_loss, gradients, expected_norm) in enumerate(expected(*layout.model)):
        errors[0] = max(errors[0], abs(train(model, optimizer, layout.model, step) / expected_loss - 1))
        errors[1] = max(errors[1], difference(optimizer._pieces, gradients))
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        errors[2] = max(errors[2], abs(norm.item() / expected_norm - 1))
        optimizer.step()
    treated = {"kept": lambda: True,
               "checkpointed": lambda: any("_shoal_checkpoint" in module.__dict__ for module in model.module.modules()),
               "offloaded": lambda: activations._offloader().file._end > 0}[layout.activations]()
    kind = {type(None): "none", sharding.Shards: "state", sharding.Parts: "parts"}[type(optimizer.shards)]
    result = (*errors, elements(optimizer), treated, kind)
    smp.shutdown()
    return result


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Layouts(unittest.TestCase):
    def test_losses_gradients_and_norms_are_those_of_one_process(self):
        layouts = all_layouts()
        if not FULL:
            layouts = covering([layout for layout in layouts if layout.ranks not in (5, 7)])
        for layout in layouts:
            expected(*layout.model)  # computed once, not in each rank
        for layout, results in ranks.run_cases(run_layout, layouts, lambda layout: layout.ranks, TIMEOUT):
            with self.subTest(layout=layout):
                for loss, (gradient, name), norm, _, _, kind in results:
                    self.assertLess(loss, TOLERANCE)
                    self.assertLess(gradient, TOLERANCE, name)
                    self.assertLess(norm, TOLERANCE)
                    self.assertEqual(kind, layout.sharding)
                whole = expected(*layout.model)[0][1]
                self.assertEqual(sum(result[3] for result in results), sum(g.numel() for g in whole.values()))
                self.assertTrue(any(result[4] for result in results), "no activation is checkpointed or offloaded")


if __name__ == "__main__":
    unittest.main()
